//! The wait for an annotated pod.

use super::super::Step;
use super::*;
use crate::event::{EventNote, EventType};
use crate::step::Step as _;
use crate::verdict::{Reason, Verdict};

const SETTINGS: &str = "
failureRecoveryPolicy:
  annotatedPods: {forcefulTerminationGracePeriod: 20s, minimumForcefulTerminationGracePeriod: 10s}
  rules:
  - terminatePod: {podLabelSelector: {matchLabels: {tier: batch}}, forcefulTerminationGracePeriod: 5m}
";

fn asking(value: &str) -> PodView {
    PodView {
        consent: ConsentAnnotations { wait: AskedWait::of(value), ..terminate() },
        wait_told: true,
        ..pod()
    }
}

#[test]
fn the_pod_asks_the_administrator_bounds_and_what_nobody_can_read_is_replaced_aloud() {
    const YEARS: i64 = 292 * 365 * 86_400;
    let by_default = |value: &str| decide_pod(&asking(value), Some(&node()), &policy(""), at(-1));
    let cases = [
        ("0", "", 0),
        ("0s", "", 0),
        ("30s", "", 30),
        ("1m30s", "", 90),
        ("1.5h", "", 5_400),
        ("", "is \"\", which is not a duration", 60),
        ("30", "is \"30\", which is not a duration such as 30s or 1m30s", 60),
        ("soon", "is \"soon\", which is not a duration", 60),
        (" 30s", "is \" 30s\", which is not a duration", 60),
        ("30s\n", "is \"30s\\n\", which is not a duration", 60),
        ("1d", "is \"1d\", which is not a duration", 60),
        ("NaNs", "is \"NaNs\", which is not a duration", 60),
        ("-1s", "is \"-1s\", which is negative", 60),
        ("-9999999999999h", "is \"-9999999999999h\", which is negative", 60),
    ];
    for (value, said, seconds) in cases {
        let judged = by_default(value);
        assert_eq!(judged.verdict.wake_at(), Some(at(seconds)), "{value:?}");
        assert!(judged.report().message.contains(said), "{value:?}: {}", judged.report().message);
        assert!(judged.findings.last().unwrap().observed.contains(said), "{value:?}");
    }
    for absurd in ["2562047h", "2562048h", "99999999999999999999999999h"] {
        let until = by_default(absurd).verdict.wake_at().unwrap();
        assert!(until.duration_since(at(0)).as_secs() > YEARS, "{absurd}: {until}");
    }
    let long = "x".repeat(200_000);
    assert!(
        by_default(&long).report().message.len() < 500,
        "nobody can read so much, and it would be kept for every pod"
    );
}

#[test]
fn the_administrator_sets_the_wait_and_its_floor() {
    let until = |pod: &PodView| decide_pod(pod, Some(&node()), &policy(SETTINGS), at(-1));
    for (value, said, seconds) in [
        ("30s", "30s after its grace period, by annotation salvor.dev/termination-grace-after", 30),
        ("10s", "10s after its grace period, by annotation", 10),
        (
            "9.9s",
            "10s after its grace period, by failureRecoveryPolicy.annotatedPods.minimumForcefulTerminationGracePeriod: \
                  annotation salvor.dev/termination-grace-after asks for 9.9s",
            10,
        ),
        ("0s", "asks for 0s", 10),
        (
            "soon",
            "20s after its grace period, by failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod",
            20,
        ),
    ] {
        let judged = until(&asking(value));
        assert_eq!(judged.verdict.wake_at(), Some(at(seconds)), "{value:?}");
        assert!(judged.report().message.contains(said), "{value:?}: {}", judged.report().message);
    }
    assert_eq!(until(&pod()).verdict.wake_at(), Some(at(20)), "a pod that asks for nothing");
    let by_rule = PodView { labels: labels(&[("tier", "batch")]), ..asking("1s") };
    let by_rule =
        PodView { consent: ConsentAnnotations { terminate: None, ..by_rule.consent.clone() }, ..by_rule };
    let judged = until(&by_rule);
    assert_eq!(judged.verdict.wake_at(), Some(at(300)), "a rule has its own wait");
    assert!(
        judged.report().message.contains("counts only beside an opt-in annotation"),
        "{}",
        judged.report().message
    );
}

#[test]
fn what_cannot_be_read_is_told_once_for_each_value_before_the_wait_is_over() {
    let unrecorded = |value: &str| PodView { wait_told: false, ..asking(value) };
    let told = |pod: &PodView| -> EventNote {
        let verdict = decide_pod(pod, Some(&node()), &policy(""), at(1)).verdict;
        let [Step::Mention(note)] = verdict.actions() else { panic!("{verdict:?}") };
        assert_eq!((verdict.name(), verdict.why().code()), ("Act", "UnreadableWait"));
        assert!(!verdict.actions()[0].is_disruptive());
        note.clone()
    };
    let soon = told(&unrecorded("soon"));
    assert_eq!((soon.kind, &*soon.reason), (EventType::Warning, "InvalidTerminationGraceAfter"));
    assert_eq!(
        soon.message,
        "The pod is waited for 1m0s after its grace period, by \
         failureRecoveryPolicy.annotatedPods.forcefulTerminationGracePeriod: annotation salvor.dev/termination-grace-after is \
         \"soon\", which is not a duration such as 30s or 1m30s."
    );
    assert_eq!(soon.name, told(&unrecorded("soon")).name);
    assert_ne!(soon.name, told(&unrecorded("later")).name, "another value is another mistake");
    let good = decide_pod(&unrecorded("30s"), Some(&node()), &policy(""), at(1)).verdict;
    assert_eq!(good.why().code(), "GraceRunning");
    let on_a_node_that_is_there =
        decide_pod(&unrecorded("soon"), Some(&healthy_node()), &policy(""), at(1)).verdict;
    assert!(matches!(on_a_node_that_is_there, Verdict::Ignore(PodWhy::NodeReachable { .. })));
}
