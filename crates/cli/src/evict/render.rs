//! What a person reads while a node is emptied.

use std::collections::BTreeMap;
use std::fmt::Write;

use salvor_operator::{End, Standing, Survey, SurveyedPod};

const BAR: usize = 30;

/// What is on the node, and what will be lost.
pub(super) fn survey(survey: &Survey) -> String {
    let mut text = String::new();
    let heard = survey.lease_renewed.map_or("it has no Lease".into(), |at| format!("last heard of at {at}"));
    line(&mut text, format_args!("node {}: Ready is {}, {heard}", survey.node, survey.ready));
    let count = |leaves: bool| survey.pods.iter().filter(|pod| pod.leaves == leaves).count();
    line(
        &mut text,
        format_args!(
            "{} pods go, {} stay; {} volumes are attached\n",
            count(true),
            count(false),
            survey.volumes.len()
        ),
    );
    let name = |pod: &SurveyedPod| format!("{}/{}", pod.namespace, pod.name);
    let owner = |pod: &SurveyedPod| match &pod.owner {
        Some(owner) => owner.clone(),
        None if pod.leaves => "nobody: lost for good".into(),
        None => "nobody".into(),
    };
    let widest = |of: &dyn Fn(&SurveyedPod) -> String| survey.pods.iter().map(|pod| of(pod).len()).max();
    let (names, owners) = (widest(&name).unwrap_or(0), widest(&owner).unwrap_or(0));
    for pod in &survey.pods {
        let fate = if pod.leaves { "goes " } else { "stays" };
        let claims = pod.claims.join(", ");
        let row = format!("  {fate}  {:<names$}  {:<owners$}  {claims}", name(pod), owner(pod));
        line(&mut text, format_args!("{}", row.trim_end()));
    }
    if !survey.volumes.is_empty() {
        line(&mut text, format_args!(""));
    }
    for volume in &survey.volumes {
        line(&mut text, format_args!("  attached: {} by {}", volume.volume, volume.driver));
    }
    let lost = survey.pods.iter().filter(|pod| pod.leaves && pod.owner.is_none()).count();
    if lost > 0 {
        line(&mut text, format_args!("\n{lost} pods have no controller: nobody will start them again."));
    }
    if let Some(alive) = &survey.alive {
        line(&mut text, format_args!("\nThe node is not silent: {alive}."));
    }
    text
}

/// One line of progress.
pub(super) fn bar(survey: &Survey, standing: &Standing) -> String {
    let pods = survey.pods.iter().filter(|pod| pod.leaves).count();
    let (all, left) = (pods + survey.volumes.len(), standing.pods_left + standing.volumes_left);
    let done = all.saturating_sub(left);
    let filled = (done * BAR).checked_div(all).unwrap_or(BAR);
    let phase = standing.phase.as_deref().unwrap_or("Requested");
    format!(
        "[{}{}] {phase}: {} pods and {} volumes left",
        "#".repeat(filled),
        "-".repeat(BAR - filled),
        standing.pods_left,
        standing.volumes_left
    )
}

/// How it ended, and where the work runs now.
pub(super) fn end(survey: &Survey, standing: &Standing, places: &BTreeMap<String, Option<String>>) -> String {
    let mut text = String::new();
    let node = &survey.node;
    match standing.end {
        Some(End::Finished) => {
            let taint = if standing.tainted {
                "goes when it is Ready again (or in a moment, with removeTaint: WhenEvicted)"
            } else {
                "is taken off"
            };
            line(
                &mut text,
                format_args!("Node {node} is empty and its volumes are free. Its taint {taint}."),
            );
        }
        Some(End::TaintGone) | None => line(
            &mut text,
            format_args!(
                "The taint of node {node} is gone before it was empty: it came back, or somebody took the taint off.\n\
                 `salvor explain node {node}` says which."
            ),
        ),
    }
    for pod in survey.pods.iter().filter(|pod| pod.leaves) {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let place = places.get(&name).cloned().flatten();
        let now = place.as_deref().unwrap_or(match &pod.owner {
            None => "nobody starts it again",
            Some(owner) if owner.starts_with("DaemonSet/") => "comes back with the node",
            Some(_) => "not replaced yet",
        });
        line(&mut text, format_args!("  {name}: {now}"));
    }
    text
}

/// What stays behind after an interrupt.
pub(super) fn interrupted(node: &str, is_asked: bool) -> String {
    let stays = if is_asked {
        format!("The taint stays on node {node}; Salvor empties it as long as it runs and nothing holds it.")
    } else {
        format!("Whether the taint was put on node {node} is not known: no answer has come yet.")
    };
    format!(
        "\nNot followed any more. {stays}\n\
         To follow it, or to ask again: salvor evict {node}\n\
         To see why it waits: salvor explain node {node}\n\
         To stop it: kubectl taint node {node} salvor.dev/force-eviction-\n"
    )
}

/// It is not taken up, and why, as far as anybody has said.
pub(super) fn not_begun(node: &str, said: Option<&str>) -> String {
    match said {
        Some(said) => format!("It has not begun. Salvor says: {said}\n"),
        None => format!(
            "Nobody has taken it up yet: does Salvor run, with the eviction controller, or does its brake hold? \
             `salvor explain node {node}` says what it would do.\n"
        ),
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use salvor_operator::SurveyedVolume;

    use super::*;

    fn pod(name: &str, owner: Option<&str>, leaves: bool) -> SurveyedPod {
        SurveyedPod {
            namespace: "shop".into(),
            name: name.into(),
            uid: name.into(),
            owner: owner.map(Into::into),
            owner_uid: None,
            index: None,
            claims: if leaves { vec!["data".into()] } else { vec![] },
            leaves,
        }
    }

    fn on_node() -> Survey {
        Survey {
            node: "node-a".into(),
            ready: "Unknown",
            lease_renewed: Some("2026-11-15T03:00:00Z".parse().unwrap()),
            alive: None,
            requested: false,
            pods: vec![
                pod("db-0", Some("StatefulSet/db"), true),
                pod("agent", Some("DaemonSet/agent"), false),
                pod("by-hand", None, true),
            ],
            volumes: vec![SurveyedVolume { volume: "pv-1".into(), driver: "disk".into() }],
            at: Default::default(),
        }
    }

    #[test]
    fn a_person_sees_what_goes_what_stays_and_what_is_lost() {
        assert_eq!(
            survey(&on_node()),
            "\
node node-a: Ready is Unknown, last heard of at 2026-11-15T03:00:00Z
2 pods go, 1 stay; 1 volumes are attached

  goes   shop/db-0     StatefulSet/db         data
  stays  shop/agent    DaemonSet/agent
  goes   shop/by-hand  nobody: lost for good  data

  attached: pv-1 by disk

1 pods have no controller: nobody will start them again.
"
        );
        let alive = Survey { alive: Some("it is Ready".into()), ..on_node() };
        assert!(survey(&alive).ends_with("\nThe node is not silent: it is Ready.\n"));
    }

    #[test]
    fn the_bar_fills_up() {
        let standing = |pods_left, volumes_left| Standing {
            phase: Some("EvictingPods".into()),
            pods_left,
            volumes_left,
            tainted: true,
            end: None,
        };
        let empty = Survey { pods: vec![], volumes: vec![], ..on_node() };
        assert_eq!(
            bar(&on_node(), &standing(2, 1)),
            format!("[{}] EvictingPods: 2 pods and 1 volumes left", "-".repeat(30))
        );
        assert!(bar(&on_node(), &standing(1, 1)).starts_with("[##########----"));
        assert!(bar(&on_node(), &standing(0, 0)).starts_with(&format!("[{}]", "#".repeat(30))));
        assert!(bar(&empty, &standing(0, 9)).starts_with(&format!("[{}]", "#".repeat(30))));
    }

    #[test]
    fn each_pod_that_went_is_told_of() {
        let places = BTreeMap::from([("shop/db-0".to_owned(), Some("db-0 on node-b (Running)".to_owned()))]);
        let last = |end, tainted| Standing {
            phase: Some("Finished".into()),
            pods_left: 0,
            volumes_left: 0,
            tainted,
            end: Some(end),
        };
        assert_eq!(
            end(&on_node(), &last(End::Finished, true), &places),
            "\
Node node-a is empty and its volumes are free. Its taint goes when it is Ready again (or in a \
moment, with removeTaint: WhenEvicted).
  shop/db-0: db-0 on node-b (Running)
  shop/by-hand: nobody starts it again
"
        );
        assert!(end(&on_node(), &last(End::Finished, false), &places).contains("Its taint is taken off."));
        assert!(end(&on_node(), &last(End::TaintGone, false), &places).contains("gone before it was empty"));
    }

    #[test]
    fn an_interrupt_claims_no_more_than_is_known() {
        assert!(interrupted("a", true).contains("The taint stays on node a"));
        assert!(interrupted("a", false).contains("is not known"));
    }
}
