//! The table of phase x event and the picture of the phases in the documentation, made by the machine itself.
//!
//! `SALVOR_UPDATE=1` writes them anew.

use std::fmt::Write as _;

use super::phases::in_phase;
use super::*;
use crate::documents::assert_named_tests_exist;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/appwrapper.md");
const BEGIN: &str = "<!-- begin: made by the test appwrapper::tests::picture -->";
const END: &str = "<!-- end -->";

/// Something that happens; false if it cannot happen to this AppWrapper.
type Happens = fn(&mut Cluster) -> bool;

fn with_component(it: &mut Cluster, then: fn(&mut Cluster)) -> bool {
    let exists = it.view.own_component(0).is_some();
    if exists {
        then(it);
    }
    exists
}

fn failed(it: &mut Cluster) {
    it.says(0, ComponentState::Failed { message: String::new() });
}

/// Before anybody has looked nothing is admitted.
fn changed(it: &mut Cluster) -> bool {
    it.view.admitted = Comparison::Changed(vec!["spec.components[0].template".into()]);
    it.phase() != Phase::Empty
}

const EVENTS: [(&str, Happens); 22] = [
    ("nothing", |_| true),
    ("`spec.suspend: true`", |it| {
        it.view.suspend = true;
        true
    }),
    ("`spec.suspend: false`", |it| {
        it.view.suspend = false;
        true
    }),
    ("deleted by a user", |it| {
        it.view.deleting = true;
        true
    }),
    ("refused by the rules of admission", |it| {
        it.view.refused = Some("no".into());
        true
    }),
    ("refused, and `spec.suspend: false`", |it| {
        it.view.refused = Some("no".into());
        it.view.suspend = false;
        true
    }),
    ("its components are changed", changed),
    ("its components are changed, and `spec.suspend: false`", |it| {
        it.view.suspend = false;
        changed(it)
    }),
    ("its components are changed, and the pause and the grace end", |it| {
        let pauses = it.phase() == Phase::Resetting;
        changed(it);
        it.run_for(3_700);
        pauses
    }),
    ("its components are changed, a component fails, and the timers end", |it| {
        changed(it)
            && with_component(it, |it| {
                failed(it);
                it.run_for(3_900);
            })
    }),
    ("a component can never be created", |it| {
        if it.phase() != Phase::Resuming {
            return false;
        }
        it.view.components[0].seen = Seen::NoSuchKind;
        it.view.pods.clear();
        true
    }),
    ("a component cannot be created until the grace ends", |it| {
        if it.phase() != Phase::Resuming {
            return false;
        }
        it.create_error = Some(false);
        it.view.components[0].seen = Seen::Absent { last: None };
        it.view.pods.clear();
        it.run_for(61);
        true
    }),
    ("all pods run", |it| {
        let some = !it.view.pods.is_empty() && it.view.pods.iter().all(PodView::is_active);
        it.set_pods(PodPhase::Running);
        some
    }),
    ("a pod fails and the grace ends", |it| {
        let some = it.view.pods.iter().any(PodView::is_active);
        if some {
            it.set_pod(0, PodPhase::Failed);
            it.run_for(62);
        }
        some
    }),
    ("pods are missing and both graces end", |it| {
        let some = it.view.pods.iter().any(PodView::is_active);
        if some {
            it.view.pods.clear();
            it.run_for(125);
        }
        some
    }),
    ("a component fails", |it| with_component(it, failed)),
    ("a component fails, no retry is left", |it| {
        it.policy.retry_limit = 0;
        with_component(it, failed)
    }),
    ("a component is deleted by a user", |it| with_component(it, |it| it.lose(0))),
    ("a node is to be left", |it| {
        it.view.nodes.get_mut("n1").unwrap().no_execute = BTreeSet::from(["nvidia.com/gpu".into()]);
        !it.view.pods.is_empty()
    }),
    ("all components and pods succeed", |it| {
        with_component(it, |it| {
            it.set_pods(PodPhase::Succeeded);
            it.says(0, ComponentState::Succeeded);
        })
    }),
    ("all components succeed, pods run on and the grace ends", |it| {
        let run_on = it.view.pods.iter().any(PodView::is_active);
        run_on
            && with_component(it, |it| {
                it.says(0, ComponentState::Succeeded);
                it.run_for(70);
            })
    }),
    ("what held it is gone, and its timer ends", |it| {
        if !it.view.pods.is_empty() && [Phase::Running, Phase::Resuming].contains(&it.phase()) {
            return false;
        }
        it.stuck_objects = false;
        if matches!(&it.view.components[0].seen, Seen::Found(found) if found.is_deleting()) {
            it.view.components[0].seen = Seen::Absent { last: None };
        }
        if let Some(until) = it.settle().verdict.wake_at() {
            it.now = until;
        }
        true
    }),
];

/// Where the machine goes from a phase when something happens, and why it stays.
fn outcome(phase: &Phase, happens: Happens) -> Option<(Vec<Phase>, String)> {
    let mut it = in_phase(phase);
    it.phases = vec![phase.clone()];
    if !happens(&mut it) {
        return None;
    }
    let last = it.settle();
    let end = if it.gone { "gone".into() } else { last.verdict.why().code().to_owned() };
    Some((it.phases, end))
}

fn drawn() -> String {
    let mut arrows: BTreeMap<(Phase, Phase), Vec<&str>> = BTreeMap::new();
    let mut table = String::from("| event |");
    for phase in Phase::ALL {
        write!(table, " {phase} |").unwrap();
    }
    table.push_str("\n|---|");
    table.push_str(&"---|".repeat(Phase::ALL.len()));
    for (event, happens) in EVENTS {
        write!(table, "\n| {event} |").unwrap();
        for phase in Phase::ALL {
            let Some((path, end)) = outcome(&phase, happens) else {
                table.push_str(" - |");
                continue;
            };
            for (index, pair) in path.windows(2).enumerate() {
                let labels = arrows.entry((pair[0].clone(), pair[1].clone())).or_default();
                let by_this = path.len() == 2 || (index == 0 && event.contains("suspend"));
                if by_this && labels.len() < 2 && event != "nothing" {
                    labels.push(event);
                }
            }
            let steps: Vec<String> = path[1..].iter().map(|it| format!("→ {it}")).collect();
            write!(table, " {} ({end}) |", if steps.is_empty() { "stays".into() } else { steps.join(" ") })
                .unwrap();
        }
    }
    let mut picture = String::from("```mermaid\nstateDiagram-v2\n    [*] --> Empty\n");
    for ((from, to), labels) in arrows {
        let label = labels.join(" / ").replace(['`', ':'], "");
        let label = if label.is_empty() { String::new() } else { format!(" : {label}") };
        writeln!(picture, "    {from} --> {to}{label}").unwrap();
    }
    picture.push_str("    Terminating --> [*]\n```\n");
    format!("{picture}\n{table}\n")
}

#[test]
fn the_documentation_shows_the_machine_as_it_is() {
    let drawn = drawn();
    let document = std::fs::read_to_string(DOCUMENT).unwrap();
    let (head, rest) = document.split_once(BEGIN).expect("the document has the mark of the beginning");
    let (shown, tail) = rest.split_once(END).expect("the document has the mark of the end");
    if std::env::var_os("SALVOR_UPDATE").is_some() {
        std::fs::write(DOCUMENT, format!("{head}{BEGIN}\n\n{drawn}\n{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(shown.trim(), drawn.trim(), "docs/appwrapper.md is old; run this test with SALVOR_UPDATE=1");
}

#[test]
fn every_phase_has_an_answer_to_every_event() {
    for (event, happens) in EVENTS {
        for phase in Phase::ALL {
            if let Some((path, end)) = outcome(&phase, happens) {
                assert!(!end.is_empty() && path.len() <= 5, "{event} in {phase}: {path:?}");
            }
        }
    }
}

/// The documents name tests by which a reader can check what they say, and each of them is there.
#[test]
fn every_test_that_the_documents_name_exists() {
    let documents = [DOCUMENT.to_owned(), DOCUMENT.replace("appwrapper.md", "appwrapper-tests.md")];
    for document in documents {
        assert_named_tests_exist(&document, 20, &["appwrapper_phase_total"]);
    }
}
