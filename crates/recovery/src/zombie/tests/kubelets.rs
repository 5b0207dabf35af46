//! A pod is left to a kubelet that may still end it.

use super::super::Step;
use super::*;
use crate::step::Step as _;
use crate::verdict::{Reason, Verdict};

const LASTS: SignedDuration = SignedDuration::from_secs(40);
const HOUR: i64 = 3_600;

fn read(renewed: i64) -> Option<NodeLease> {
    Some(NodeLease::new(at(renewed), LASTS))
}

fn judged(ready: Ready, heartbeat: Heartbeat, now: i64) -> Verdict<PodWhy, Step> {
    decide_pod(&pod(), Some(&NodeView { ready, heartbeat, ..node() }), &policy(""), at(now)).verdict
}

#[test]
fn the_node_must_not_be_ready_and_its_lease_must_be_silent() {
    use Ready::{False, True, Unknown};
    let first = |renewed, now| Heartbeat::UNREAD.then(read(renewed), at(now));
    let dead = "Act Zombie";
    let cases: Vec<(&str, Ready, Heartbeat, i64, &str)> = vec![
        ("dead", Unknown, heard(-460), 60, dead),
        ("dead, and the kubelet had said that it is not ready", False, heard(-460), 60, dead),
        ("dead, without a Lease", Unknown, no_lease(), 60, dead),
        ("Lease not read yet: read before it is done", Unknown, Heartbeat::UNREAD, 60, dead),
        ("Ready, and renewed a second ago", True, heard(59), 60, "Ignore NodeReady"),
        ("Ready, silent Lease", True, heard(-460), 60, "Ignore NodeReady"),
        ("Ready, no Lease", True, no_lease(), 60, "Ignore NodeReady"),
        ("Ready, not read", True, Heartbeat::UNREAD, 60, "Ignore NodeReady"),
        ("renewed a second ago, not Ready yet", Unknown, heard(59), 60, "Wait KubeletAlive until 99"),
        (
            "renewed a second ago, not ready by its own word",
            False,
            heard(59),
            60,
            "Wait KubeletAlive until 99",
        ),
        ("renewed 39 seconds ago", Unknown, heard(21), 60, "Wait KubeletAlive until 61"),
        ("renewed 40 seconds ago", Unknown, heard(20), 60, dead),
        ("an hour behind, seen once", Unknown, first(-HOUR, 60), 60, "Wait KubeletAlive until 80"),
        ("an hour behind, has not moved", Unknown, first(-HOUR, 60).then(read(-HOUR), at(80)), 80, dead),
        (
            "an hour behind, moves",
            Unknown,
            first(-HOUR, 60).then(read(-HOUR + 10), at(70)),
            80,
            "Wait KubeletAlive until 110",
        ),
        ("an hour ahead, seen once", Unknown, first(HOUR, 60), 60, "Wait KubeletAlive until 100"),
        ("an hour ahead, has not moved", Unknown, first(HOUR, 60).then(read(HOUR), at(100)), 100, dead),
        (
            "a clock that is set back",
            Unknown,
            first(HOUR, 60).then(read(90), at(90)),
            100,
            "Wait KubeletAlive until 130",
        ),
    ];
    for (case, ready, heartbeat, now, expected) in cases {
        let verdict = judged(ready, heartbeat, now);
        let until = verdict
            .wake_at()
            .map_or(String::new(), |until| format!(" until {}", until.as_second() - at(0).as_second()));
        assert_eq!(format!("{} {}{until}", verdict.name(), verdict.why().code()), expected, "{case}");
    }
}

#[test]
fn a_half_done_recovery_is_left_to_a_kubelet_that_is_back() {
    let half = PodView { phase: PodPhase::Failed, consent: delete(), ..pod() };
    let back = NodeView { ready: Ready::True, heartbeat: heard(60), ..node() };
    let verdict = decide_pod(&half, Some(&back), &policy(""), at(61)).verdict;
    assert_eq!(verdict, Verdict::Ignore(PodWhy::NodeReady { node: "node-a".into() }));
}

#[test]
fn what_the_lease_said_is_shown_and_told() {
    let moved = Heartbeat::UNREAD.then(read(-HOUR), at(60)).then(read(-HOUR + 10), at(70));
    let node = NodeView { heartbeat: moved, ..node() };
    let judged = decide_pod(&pod(), Some(&node), &policy(""), at(80));
    let last = judged.findings.last().unwrap();
    assert_eq!(
        (last.question, last.holds, last.observed.as_str()),
        (
            "Is its kubelet silent?",
            false,
            "Lease renewed at 2027-01-15T07:00:10Z by the kubelet's clock, that is at 2027-01-15T08:01:10Z, which counts until \
             2027-01-15T08:01:50Z; it is 2027-01-15T08:01:20Z",
        )
    );
    let message = judged.report().message;
    assert!(message.starts_with("The kubelet of node node-a may be alive"), "{message}");
    assert!(judged.verdict.actions().iter().all(|action| !Step::is_disruptive(action)));
}
