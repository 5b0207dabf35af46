//! The texts of `salvor evict`.

use std::collections::BTreeMap;
use std::fmt::Write;

use salvor_operator::{End, Standing, Survey, SurveyedPod};

const BAR: usize = 30;

/// The pods and volumes on the node, and the pods that nothing will replace.
pub(super) fn survey(survey: &Survey) -> String {
    let mut text = String::new();
    let heard = survey.lease_renewed.map_or("it has no Lease".into(), |at| format!("Lease renewed at {at}"));
    line(&mut text, format_args!("node {}: Ready is {}, {heard}", survey.node, survey.ready));
    let count = |leaves: bool| survey.pods.iter().filter(|pod| pod.leaves == leaves).count();
    line(
        &mut text,
        format_args!(
            "{} pods will be evicted, {} stay; {} volumes are attached\n",
            count(true),
            count(false),
            survey.volumes.len()
        ),
    );
    let name = |pod: &SurveyedPod| format!("{}/{}", pod.namespace, pod.name);
    let owner = |pod: &SurveyedPod| match &pod.owner {
        Some(owner) => owner.clone(),
        None if pod.leaves => "no controller: lost".into(),
        None => "no controller".into(),
    };
    let widest = |of: &dyn Fn(&SurveyedPod) -> String| survey.pods.iter().map(|pod| of(pod).len()).max();
    let (names, owners) = (widest(&name).unwrap_or(0), widest(&owner).unwrap_or(0));
    for pod in &survey.pods {
        let fate = if pod.leaves { "evict" } else { "stays" };
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
        line(&mut text, format_args!("\n{lost} pods have no controller: nothing will create them again."));
    }
    if let Some(alive) = &survey.alive {
        line(&mut text, format_args!("\nThe node is alive: {alive}."));
    }
    text
}

pub(super) fn bar(survey: &Survey, standing: &Standing) -> String {
    let pods = survey.pods.iter().filter(|pod| pod.leaves).count();
    let (all, left) = (pods + survey.volumes.len(), standing.pods_left + standing.volumes_left);
    let done = all.saturating_sub(left);
    let filled = (done * BAR).checked_div(all).unwrap_or(BAR);
    let phase = standing.phase.as_deref();
    let phase =
        phase.unwrap_or(if standing.remembered { "Remembered until it is unreachable" } else { "Requested" });
    format!(
        "[{}{}] {phase}: {} pods and {} volumes left",
        "#".repeat(filled),
        "-".repeat(BAR - filled),
        standing.pods_left,
        standing.volumes_left
    )
}

/// The outcome, and the new node of each evicted pod.
pub(super) fn end(survey: &Survey, standing: &Standing, places: &BTreeMap<String, Option<String>>) -> String {
    let mut text = String::new();
    let node = &survey.node;
    match standing.end {
        Some(End::Finished) => {
            let taint = if standing.tainted {
                "is removed when the node is Ready again, after a reboot if volumes were released (or in a moment, with removeTaint: WhenEvicted)"
            } else {
                "is removed"
            };
            line(
                &mut text,
                format_args!("Node {node} is evicted and its volumes are detached. Its taint {taint}."),
            );
        }
        Some(End::TaintGone) | None => line(
            &mut text,
            format_args!(
                "The taint of node {node} was removed before the eviction ended: the node is Ready again, or somebody removed \
                 the taint.\n`salvor explain node {node}` shows the reason."
            ),
        ),
    }
    for pod in survey.pods.iter().filter(|pod| pod.leaves) {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let place = places.get(&name).cloned().flatten();
        let now = place.as_deref().unwrap_or(match &pod.owner {
            None => "lost: it has no controller",
            Some(owner) if owner.starts_with("DaemonSet/") => "runs again when the node is Ready",
            Some(_) => "not replaced yet",
        });
        line(&mut text, format_args!("  {name}: {now}"));
    }
    text
}

/// What remains after an interrupt.
pub(super) fn interrupted(node: &str, is_asked: bool) -> String {
    let stays = if is_asked {
        format!(
            "The taint stays on node {node}. Salvor goes on with the eviction as long as Salvor runs and nothing blocks it."
        )
    } else {
        format!("The API server has not answered yet, so it is not known whether node {node} has the taint.")
    };
    format!(
        "\nThis command has stopped. {stays}\n\
         To follow the eviction, or to request it again: salvor evict {node}\n\
         To see why it waits: salvor explain node {node}\n\
         To stop the eviction: kubectl taint node {node} salvor.dev/force-eviction-\n"
    )
}

/// The eviction has not started. Includes Salvor's reason if there is one.
pub(super) fn not_begun(node: &str, said: Option<&str>) -> String {
    match said {
        Some(said) => format!("The eviction has not begun. Salvor says: {said}\n"),
        None => format!(
            "The eviction has not begun. Does Salvor run, with the eviction controller enabled? Does the brake block it? \
             `salvor explain node {node}` shows what Salvor would do.\n"
        ),
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
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
node node-a: Ready is Unknown, Lease renewed at 2026-11-15T03:00:00Z
2 pods will be evicted, 1 stay; 1 volumes are attached

  evict  shop/db-0     StatefulSet/db       data
  stays  shop/agent    DaemonSet/agent
  evict  shop/by-hand  no controller: lost  data

  attached: pv-1 by disk

1 pods have no controller: nothing will create them again.
"
        );
        let alive = Survey { alive: Some("it is Ready".into()), ..on_node() };
        assert!(survey(&alive).ends_with("\nThe node is alive: it is Ready.\n"));
    }

    #[test]
    fn the_bar_fills_up() {
        let standing = |pods_left, volumes_left| Standing {
            phase: Some("EvictingPods".into()),
            pods_left,
            volumes_left,
            tainted: true,
            remembered: false,
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
            remembered: false,
            end: Some(end),
        };
        assert_eq!(
            end(&on_node(), &last(End::Finished, true), &places),
            "\
Node node-a is evicted and its volumes are detached. Its taint is removed when the node is Ready again, \
after a reboot if volumes were released (or in a moment, with removeTaint: WhenEvicted).
  shop/db-0: db-0 on node-b (Running)
  shop/by-hand: lost: it has no controller
"
        );
        assert!(end(&on_node(), &last(End::Finished, false), &places).contains("Its taint is removed."));
        assert!(
            end(&on_node(), &last(End::TaintGone, false), &places)
                .contains("removed before the eviction ended")
        );
    }

    #[test]
    fn an_interrupt_claims_no_more_than_is_known() {
        assert!(interrupted("a", true).contains("The taint stays on node a"));
        assert!(interrupted("a", false).contains("it is not known"));
    }
}
