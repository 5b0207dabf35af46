//! `salvor.dev/evict-after`: pods that are given up when their node is lost, whether or not they are being deleted.

use super::super::Step;
use super::*;
use crate::brake::{Brake, BrakeState, NodeCounts, Outage};
use crate::gate::{Copies, Gate, GatePolicy, Kubelet, Owner, Work, may_be_forced};
use crate::proof::Machine;
use crate::step::Step as _;
use crate::verdict::{Reason, Verdict};
use salvor_api::config::{BrakeLimits, TerminateAction};

const TERMINATED: &str = "Act Zombie PatchPodStatus+EmitEvent";
const DELETED: &str = "Act Zombie PatchPodStatus+EmitEvent+ForceDeletePod";

/// A pod that runs on, with this annotation beside its consent.
fn asking(value: &str) -> PodView {
    PodView {
        deletion: None,
        consent: ConsentAnnotations { evict_after: AskedWait::of(value), ..terminate() },
        evict_told: true,
        ..pod()
    }
}

/// A node whose kubelet last renewed its Lease at -50, and that is unreachable since time 0.
fn lost() -> NodeView {
    NodeView { unreachable: Some(Unreachable { since: at(0) }), heartbeat: heard(-50), ..node() }
}

fn verdict(pod: &PodView, node: &NodeView, settings: &str, now: Timestamp) -> Verdict<PodWhy, Step> {
    decide_pod(pod, Some(node), &policy(settings), now).verdict
}

fn outline(pod: &PodView, node: &NodeView, settings: &str, now: i64) -> String {
    let verdict = verdict(pod, node, settings, at(now));
    let steps: Vec<_> = verdict.actions().iter().map(Step::name).collect();
    format!("{} {} {}", verdict.name(), verdict.why().code(), steps.join("+")).trim_end().to_owned()
}

fn with_delete(pod: PodView) -> PodView {
    PodView { consent: ConsentAnnotations { delete: Some("true".into()), ..pod.consent }, ..pod }
}

#[test]
fn a_pod_is_given_up_that_long_after_its_node_was_lost_although_it_is_not_being_deleted() {
    let pod = asking("30s");
    for (value, due) in [("0s", 0), ("30s", 30), ("1m30s", 90)] {
        let pod = asking(value);
        let early = at(due) - SignedDuration::from_nanos(1);
        if due > 0 {
            assert_eq!(verdict(&pod, &lost(), "", early).wake_at(), Some(at(due)), "{value}");
        }
        assert_eq!(outline(&pod, &lost(), "", due), TERMINATED, "{value}");
    }
    assert_eq!(outline(&with_delete(pod.clone()), &lost(), "", 30), DELETED);
    let judged = decide_pod(&pod, Some(&lost()), &policy(""), at(10));
    assert_eq!(
        judged.report().message,
        "Node node-a may still come back. The pod is given up from 2027-01-15T08:00:30Z on (by \
         kueue.x-k8s.io/safe-to-forcefully-terminate annotation), 30s after its node became unreachable, by annotation \
         salvor.dev/evict-after."
    );
    assert_eq!(judged.verdict.why().code(), "EvictAfterRunning");
}

#[test]
fn what_else_a_recovery_needs_is_needed_here_too() {
    let no_consent =
        PodView { consent: ConsentAnnotations { terminate: None, ..asking("0s").consent }, ..asking("0s") };
    let withdrawn = PodView {
        consent: ConsentAnnotations { terminate: Some("false".into()), ..asking("0s").consent },
        ..asking("0s")
    };
    let ended = |phase| PodView { phase, ..with_delete(asking("0s")) };
    let back = NodeView { ready: Ready::True, ..lost() };
    let only_not_ready = NodeView { unreachable: None, ready: Ready::False, ..lost() };
    let renewed = NodeView { heartbeat: heard(70), ..lost() };
    for (case, pod, node, expected) in [
        ("all is given", asking("0s"), lost(), TERMINATED),
        ("no consent", no_consent, lost(), "Ignore NotOptedIn"),
        ("consent withdrawn", withdrawn, lost(), "Ignore NotOptedIn"),
        ("the node is there", asking("0s"), healthy_node(), "Ignore NodeReachable"),
        ("only not ready", asking("0s"), only_not_ready, "Ignore NodeReachable"),
        ("the node is back", asking("0s"), back, "Ignore NodeReady"),
        ("the Lease was renewed", asking("0s"), renewed, "Wait KubeletAlive"),
        ("no evict-after", PodView { deletion: None, ..pod() }, lost(), "Ignore NotTerminating"),
        ("it succeeded", ended(PodPhase::Succeeded), lost(), "Ignore NotTerminating"),
        ("it failed by itself", ended(PodPhase::Failed), lost(), "Ignore NotTerminating"),
        ("not bound", PodView { node_name: None, ..asking("0s") }, lost(), "Ignore NotScheduled"),
    ] {
        assert_eq!(outline(&pod, &node, "", 100), expected, "{case}");
    }
    let briefly = "failureRecoveryPolicy: {minimumUnreachableDuration: 3m}";
    assert_eq!(outline(&asking("0s"), &lost(), briefly, 100), "Wait UnreachableTooBriefly");
    let off = ZombiePolicy::new(&Configuration::default());
    assert_eq!(decide_pod(&asking("0s"), Some(&lost()), &off, at(100)).verdict.why().code(), "Disabled");
}

/// Work that may run only once has the same gate as ever: without consent it stays, whatever evict-after it has.
#[test]
fn work_that_may_run_once_is_not_given_up_without_consent() {
    let without =
        PodView { consent: ConsentAnnotations { terminate: None, ..asking("0s").consent }, ..asking("0s") };
    assert_eq!(outline(&without, &lost(), "", 100), "Ignore NotOptedIn");
    let gate = GatePolicy::new(&configuration(""));
    let stateful = |pod: &PodView| Work {
        owners: vec![Owner { kind: "StatefulSet".into(), group: "apps".into(), controls: true }],
        in_leader_worker_set: false,
        claims: Vec::new(),
        job: None,
        copies: Copies::Allowed,
        consent: gate.consent(&pod.consent, &pod.labels),
    };
    let ask = |pod: &PodView| {
        may_be_forced(&stateful(pod), PodPhase::Running, Kubelet::Silent, &Machine::MayRun, &gate)
    };
    assert!(matches!(ask(&without), Gate::No(_)));
    assert!(matches!(ask(&asking("0s")), Gate::Yes(_)));
}

#[test]
fn neither_the_grace_period_nor_the_minute_comes_on_top_and_the_earlier_counts() {
    let deleted = |timestamp: i64, value: &str| PodView {
        deletion: Some(Deletion { timestamp: at(timestamp), grace_seconds: Some(300) }),
        ..asking(value)
    };
    for (case, pod, due) in [
        ("deleted later", deleted(310, "30s"), 30),
        ("deleted with a long wait", deleted(20, "30s"), 30),
        ("deleted long before", deleted(-100, "1h"), -40),
        ("deleted, and evict-after is later", deleted(0, "5m"), 60),
    ] {
        if due > 0 {
            assert_eq!(verdict(&pod, &lost(), "", at(due - 1)).wake_at(), Some(at(due)), "{case}");
        }
        assert_eq!(outline(&pod, &lost(), "", due.max(0)), TERMINATED, "{case}");
    }
}

#[test]
fn the_floor_raises_what_a_pod_asks_for_and_the_setting_counts_for_the_others() {
    let floor = "failureRecoveryPolicy: {minimumEvictAfter: 20s}";
    let all = "failureRecoveryPolicy: {minimumEvictAfter: 20s, annotatedPods: {evictAfter: 40s}}";
    let unset = PodView { deletion: None, ..pod() };
    for (case, pod, settings, due, said) in [
        ("above the floor", asking("30s"), floor, 30, "by annotation salvor.dev/evict-after"),
        (
            "below it",
            asking("5s"),
            floor,
            20,
            "20s after its node became unreachable, by failureRecoveryPolicy.minimumEvictAfter: annotation \
             salvor.dev/evict-after asks for 5s",
        ),
        ("asks for itself", asking("30s"), all, 30, "by annotation salvor.dev/evict-after"),
        ("asks for nothing", unset, all, 40, "by failureRecoveryPolicy.annotatedPods.evictAfter"),
        (
            "unreadable",
            asking("soon"),
            all,
            40,
            "annotatedPods.evictAfter: annotation salvor.dev/evict-after is \"soon\"",
        ),
    ] {
        let judged = decide_pod(&pod, Some(&lost()), &policy(settings), at(1));
        assert_eq!(judged.verdict.wake_at(), Some(at(due)), "{case}");
        assert!(judged.report().message.contains(said), "{case}: {}", judged.report().message);
        assert_eq!(outline(&pod, &lost(), settings, due), TERMINATED, "{case}");
    }
    let by_rule = "
failureRecoveryPolicy:
  annotatedPods: {evictAfter: 0s}
  rules: [{terminatePod: {podLabelSelector: {matchLabels: {tier: batch}}, forcefulTerminationGracePeriod: 5m}}]
";
    let labelled = PodView { labels: labels(&[("tier", "batch")]), ..asking("0s") };
    let labelled =
        PodView { consent: ConsentAnnotations { terminate: None, ..labelled.consent }, ..labelled };
    let judged = decide_pod(&labelled, Some(&lost()), &policy(by_rule), at(100));
    assert_eq!(judged.verdict.why().code(), "NotTerminating", "a rule has its own wait");
    let seen = &judged.findings.last().unwrap().observed;
    assert!(seen.contains("beside an opt-in annotation"), "{seen}");
}

#[test]
fn an_unreadable_value_is_told_once_and_counts_as_none() {
    for (value, defect) in [
        ("soon", "is not a duration such as 30s or 1m30s"),
        ("-1s", "is negative"),
        ("30", "is not a duration"),
    ] {
        let unrecorded = PodView { evict_told: false, ..asking(value) };
        for node in [lost(), healthy_node()] {
            let judged = decide_pod(&unrecorded, Some(&node), &policy(""), at(100));
            let [Step::Mention(note)] = judged.verdict.actions() else { panic!("{:?}", judged.verdict) };
            assert_eq!(note.reason, "InvalidEvictAfter");
            assert!(note.message.contains(&format!("is {value:?}, which {defect}")), "{}", note.message);
        }
        let judged = decide_pod(&asking(value), Some(&lost()), &policy(""), at(100));
        assert_eq!(judged.verdict.why().code(), "NotTerminating", "{value}");
        let message = judged.report().message;
        assert!(
            message.contains(&format!("annotation salvor.dev/evict-after is {value:?}, which {defect}")),
            "{message}"
        );
    }
    let deleted = PodView { deletion: pod().deletion, ..asking("soon") };
    assert_eq!(verdict(&deleted, &node(), "", at(1)).wake_at(), Some(at(60)), "as without the annotation");
    let absurd = verdict(&asking("2562048h"), &lost(), "", at(1)).wake_at().unwrap();
    assert!(absurd.duration_since(at(0)).as_secs() > 292 * 365 * 86_400, "{absurd}");
}

#[test]
fn the_end_that_is_written_is_the_last_sign_of_life() {
    let verdict = verdict(&asking("30s"), &lost(), "", at(31));
    let [Step::PatchPodStatus { phase, conditions, ended, .. }, Step::EmitEvent(note)] = verdict.actions()
    else {
        panic!("{verdict:?}")
    };
    assert_eq!((*phase, *ended), (Some(PodPhase::Failed), Some(at(-50))));
    let message = "Pod forcefully terminated 30s after its node `node-a` became unreachable (triggered by \
                   `kueue.x-k8s.io/safe-to-forcefully-terminate annotation` with `salvor.dev/evict-after`)";
    assert_eq!((conditions[0].message.as_str(), note.message.as_str()), (message, message));
    let write = verdict.actions()[0].write(&[]).unwrap();
    let written = format!("{write:?}");
    assert!(written.contains("Ready") && written.contains("False"), "{written}");
    let without_lease = NodeView { heartbeat: no_lease(), ..lost() };
    let unknown = self::verdict(&asking("30s"), &without_lease, "", at(31));
    let Some(Step::PatchPodStatus { ended, .. }) = unknown.actions().first() else { panic!("{unknown:?}") };
    assert_eq!(*ended, None, "what is not known is not written");
}

#[test]
fn a_recovery_that_was_cut_short_goes_on_and_one_that_is_done_is_done() {
    let marked = |action| PodView {
        phase: PodPhase::Failed,
        mark: Some(Mark { action, since: Some(at(31)) }),
        announced: true,
        ..asking("30s")
    };
    assert_eq!(outline(&marked(TerminateAction::Fail), &lost(), "", 32), "Ignore AlreadyRecovered");
    let half = with_delete(marked(TerminateAction::FailAndDelete));
    assert_eq!(outline(&half, &lost(), "", 32), "Act HalfRecovered ForceDeletePod");
    let held = PodView { deletion: Some(Deletion { timestamp: at(33), grace_seconds: Some(0) }), ..half };
    assert_eq!(outline(&held, &lost(), "", 34), "Ignore AlreadyRecovered");
    let untold = PodView { announced: false, ..held };
    let verdict = verdict(&untold, &lost(), "", at(34));
    let [Step::EmitEvent(note)] = verdict.actions() else { panic!("{verdict:?}") };
    assert!(note.message.contains("30s after its node `node-a` became unreachable"), "{}", note.message);
}

#[test]
fn the_brake_holds_it() {
    let mut brake = Brake::new(BrakeLimits::default(), BrakeState::default());
    brake.observe(at(30), NodeCounts { unreachable: 3, total: 5 });
    let judged = decide_pod(&asking("30s"), Some(&lost()), &policy(""), at(30));
    assert_eq!(brake.review(at(30), judged, Outage::Holds).verdict.name(), "Blocked");
}

#[test]
fn a_taint_from_a_clock_that_is_ahead_does_not_delay_zero() {
    let ahead = NodeView { unreachable: Some(Unreachable { since: at(3_600) }), ..lost() };
    assert_eq!(outline(&asking("0s"), &ahead, "", 0), TERMINATED);
    assert_eq!(outline(&asking("30s"), &ahead, "", 0), "Wait EvictAfterRunning", "late, and never early");
}

#[test]
fn only_pods_that_may_be_given_up_are_watched_before_their_deletion() {
    let settings = "failureRecoveryPolicy: {annotatedPods: {evictAfter: 1m}}";
    let unset = PodView { deletion: None, ..pod() };
    let no_consent = ConsentAnnotations { terminate: None, ..asking("30s").consent };
    for (case, consent, by_default, by_setting) in [
        ("consent and evict-after", asking("30s").consent, true, true),
        ("an unreadable one is reported", asking("soon").consent, true, true),
        ("consent only", unset.consent, false, true),
        ("evict-after only", no_consent, false, false),
        ("neither", ConsentAnnotations::default(), false, false),
    ] {
        assert_eq!(policy("").watches_before_deletion(&consent), by_default, "{case}");
        assert_eq!(policy(settings).watches_before_deletion(&consent), by_setting, "{case}");
    }
}
