//! Properties that hold for every pod, node and time.

use super::super::Step;
use crate::step::Step as _;
use std::collections::BTreeSet;

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use salvor_api::config::TerminateAction;

use super::*;
use crate::objects::Taint;
use crate::verdict::{Decision, Reason, Verdict};

const NANOSECOND: SignedDuration = SignedDuration::from_nanos(1);

/// Times close to each other, so that deadlines are met and missed, and sometimes the limits of the type.
fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        12 => present(),
        1 => select(vec![Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH]),
    ]
}

/// Times at which a decision may be made.
pub(super) fn present() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        8 => (-300i64..300).prop_map(at),
        4 => (-300_000_000_000i64..300_000_000_000)
            .prop_map(|nanos| at(0).checked_add(SignedDuration::from_nanos(nanos)).unwrap()),
    ]
}

fn annotation() -> impl Strategy<Value = Option<String>> {
    select(vec![None, Some("true"), Some("True"), Some("false"), Some("")])
        .prop_map(|value| value.map(Into::into))
}

fn some_labels() -> impl Strategy<Value = Labels> {
    select(vec![vec![], vec![("tier", "batch")], vec![("tier", "web")], vec![("pool", "metal")]])
        .prop_map(|pairs| labels(&pairs))
}

fn any_deletion() -> impl Strategy<Value = Deletion> {
    let grace =
        prop_oneof![Just(None), Just(Some(0)), (0i64..100).prop_map(Some), any::<i64>().prop_map(Some)];
    (time(), grace).prop_map(|(timestamp, grace_seconds)| Deletion { timestamp, grace_seconds })
}

fn any_mark() -> impl Strategy<Value = Mark> {
    let action = select(vec![TerminateAction::Fail, TerminateAction::FailAndDelete]);
    (action, option::of(time())).prop_map(|(action, since)| Mark { action, since })
}

pub(super) fn any_pod() -> impl Strategy<Value = PodView> {
    use PodPhase::{Failed, Pending, Running, Succeeded, Unknown};
    let phase = select(vec![Pending, Running, Running, Succeeded, Failed, Unknown]);
    let deletion = option::weighted(0.9, any_deletion());
    let node_name = select(vec![None, Some(""), Some("node-a"), Some("node-a"), Some("node-a")]);
    (
        annotation(),
        annotation(),
        some_labels(),
        phase,
        deletion,
        node_name,
        option::of(any_mark()),
        any::<[bool; 4]>(),
        (any_wait(), any_wait()),
    )
        .prop_map(
            |(
                terminate,
                delete,
                labels,
                phase,
                deletion,
                node_name,
                mark,
                [disruption_target, announced, wait_told, evict_told],
                (wait, evict_after),
            )| {
                PodView {
                    labels,
                    consent: ConsentAnnotations { terminate, delete, wait, evict_after },
                    phase,
                    deletion,
                    node_name: node_name.map(Into::into),
                    mark,
                    disruption_target,
                    announced,
                    wait_told,
                    evict_told,
                    ..pod()
                }
            },
        )
}

/// A Lease that was read any number of times, and was renewed, deleted and recreated meanwhile.
fn any_heartbeat() -> impl Strategy<Value = Heartbeat> {
    let lasts = prop_oneof![Just(40i64), 1i64..60];
    let renewed = option::weighted(0.8, (time(), lasts));
    proptest::collection::vec((renewed, present()), 0..4).prop_map(|reads| {
        let lease = |(renewed, lasts)| NodeLease::new(renewed, SignedDuration::from_secs(lasts));
        reads
            .into_iter()
            .fold(Heartbeat::UNREAD, |heartbeat, (read, now)| heartbeat.then(read.map(lease), now))
    })
}

fn any_wait() -> impl Strategy<Value = AskedWait> {
    select(vec!["", "", "0s", "1s", "30s", "5m", "-1s", "soon", "2562048h"])
        .prop_map(|value| if value.is_empty() { AskedWait::Unset } else { AskedWait::of(value) })
}

pub(super) fn any_node() -> impl Strategy<Value = NodeView> {
    let ready = select(vec![Ready::True, Ready::False, Ready::Unknown, Ready::Unknown]);
    let unreachable = option::weighted(0.8, time().prop_map(|since| Unreachable { since }));
    let taint = Taint {
        key: "node.kubernetes.io/out-of-service".into(),
        value: "x".into(),
        effect: "NoExecute".into(),
    };
    let taints = select(vec![vec![], vec![], vec![taint]]);
    let mark =
        option::weighted(0.3, option::of(time()).prop_map(|since| OutOfServiceMark { since, boot_id: None }));
    (some_labels(), unreachable, ready, any_heartbeat(), taints, mark, any::<bool>()).prop_map(
        |(labels, unreachable, ready, heartbeat, out_of_service, out_of_service_mark, announced)| NodeView {
            labels,
            unreachable,
            ready,
            heartbeat,
            out_of_service,
            out_of_service_mark,
            announced,
            ..node()
        },
    )
}

fn any_policy() -> impl Strategy<Value = ZombiePolicy> {
    let rules = "
  rules:
  - terminatePod: {podLabelSelector: {matchLabels: {tier: batch}}, forcefulTerminationGracePeriod: 45s}
  - terminatePod:
      podLabelSelector: {matchExpressions: [{key: tier, operator: Exists}]}
      forcefulTerminationGracePeriod: 1.5s
      action: FailAndDelete
  - taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: metal}}, unreachableNodeTimeout: 30s}
";
    let minimum = select(vec!["0s", "1ns", "90s", "2562047h"]);
    (any::<bool>(), minimum, 0u8..10).prop_map(move |(with_rules, minimum, off)| {
        let rules = if with_rules { rules } else { "" };
        let annotated =
            "annotatedPods: {forcefulTerminationGracePeriod: 45s, minimumForcefulTerminationGracePeriod: 5s}";
        let head = format!("failureRecoveryPolicy:\n  minimumUnreachableDuration: {minimum}\n  minimumEvictAfter: 2s\n  {annotated}");
        let mut policy = policy(&format!("{head}{rules}"));
        policy.disabled = (off == 0).then_some(Disabled::Gate);
        policy
    })
}

fn touches_the_pod<Why>(decision: &Decision<Why, Step>) -> bool {
    decision.verdict.actions().iter().any(Step::is_disruptive)
}

/// Changes the pod like an API server. A pod without finalizers is gone after a force delete.
fn apply(
    pod: PodView,
    action: &Step,
    finalizer: bool,
    now: Timestamp,
    log: &mut Vec<String>,
) -> Option<PodView> {
    match action {
        Step::PatchPodStatus { pod: target, resource_version, phase, conditions, ended: _ } => {
            assert_eq!(
                (target, resource_version),
                (&pod.pod, &pod.resource_version),
                "a guard would have refused"
            );
            assert!(
                conditions.iter().collect::<Vec<_>>().windows(2).all(|pair| pair[0].kind != pair[1].kind)
            );
            let recovered =
                conditions.iter().find(|condition| condition.kind == "KueueFailureRecovery").unwrap();
            log.push(format!("patch {}", recovered.reason));
            Some(PodView {
                resource_version: format!("{}+", pod.resource_version).into(),
                phase: phase.unwrap_or(pod.phase),
                mark: Mark::from_condition("True", recovered.reason, Some(recovered.last_transition_time)),
                disruption_target: pod.disruption_target
                    || conditions.iter().any(|condition| condition.kind == "DisruptionTarget"),
                ..pod
            })
        }
        Step::EmitEvent(event) => {
            log.push(format!("event {}", event.name));
            Some(PodView { announced: true, ..pod })
        }
        Step::ForceDeletePod { pod: target, .. } => {
            assert_eq!(*target, pod.pod);
            assert!(pod.phase.is_terminal(), "status first, then the delete");
            log.push("delete".into());
            let deletion = Some(Deletion { timestamp: now, grace_seconds: Some(0) });
            finalizer.then_some(PodView { deletion, ..pod })
        }
        Step::Mention(event) => {
            log.push(format!("event {}", event.name));
            if event.reason == "InvalidEvictAfter" {
                return Some(PodView { evict_told: true, ..pod });
            }
            Some(PodView { wait_told: true, ..pod })
        }
        other => panic!("not about a pod: {other}"),
    }
}

/// Waits and acts until nothing is left. The process crashes once, after `crash` writes, and forgets which events it
/// recorded.
fn run_to_the_end(
    mut pod: PodView,
    node: &NodeView,
    policy: &ZombiePolicy,
    mut now: Timestamp,
    finalizer: bool,
    crash: usize,
) -> (Option<PodView>, Vec<String>) {
    let mut log = Vec::new();
    let mut writes = 0;
    for _ in 0..20 {
        match decide_pod(&pod, Some(node), policy, now).verdict {
            Verdict::Ignore(_) => return (Some(pod), log),
            Verdict::Wait { until, .. } if until == Timestamp::MAX => return (Some(pod), log),
            Verdict::Wait { until, .. } => now = until,
            Verdict::Blocked { .. } => panic!("there is no brake here"),
            Verdict::Act { actions, .. } => {
                for action in &actions {
                    match apply(pod, action, finalizer, now, &mut log) {
                        None => return (None, log),
                        Some(next) => pod = next,
                    }
                    writes += 1;
                    if writes == crash {
                        pod.announced = false;
                        (pod.wait_told, pod.evict_told) = (false, false);
                        break;
                    }
                }
            }
        }
    }
    panic!("never ends: {log:?}")
}

proptest! {
    #![proptest_config(crate::fuzz::cases(1500))]

    #[test]
    fn no_view_makes_it_panic_and_every_verdict_can_be_shown(
        pod in any_pod(), node in option::weighted(0.9, any_node()), policy in any_policy(), now in present(),
    ) {
        let of_pod = decide_pod(&pod, node.as_ref(), &policy, now);
        prop_assert!(!of_pod.report().message.is_empty());
        prop_assert!(!of_pod.report().what_would_change_it.is_empty());
        prop_assert!(serde_json::to_string(&of_pod.report()).is_ok());
        let acts = of_pod.verdict.name() == "Act";
        prop_assert_eq!(acts, !of_pod.verdict.actions().is_empty());
        if let Some(node) = &node {
            let of_node = decide_node(node, &policy, now);
            prop_assert!(!of_node.verdict.why().code().is_empty());
            prop_assert!(serde_json::to_string(&of_node.report()).is_ok());
        }
    }

    #[test]
    fn a_pod_is_touched_only_when_due_with_consent_on_a_lost_node(
        pod in any_pod(), node in option::weighted(0.9, any_node()), policy in any_policy(), now in present(),
    ) {
        let judged = decide_pod(&pod, node.as_ref(), &policy, now);
        if touches_the_pod(&judged) {
            prop_assert!(policy.disabled.is_none());
            let yes = |value: &Option<String>| value.as_deref() == Some("true");
            let annotated = yes(&pod.consent.terminate) || yes(&pod.consent.delete);
            let by_rule = policy.has_pod_rules() && pod.labels.get("tier").is_some();
            prop_assert!(annotated || by_rule);
            let wait = match (annotated, pod.labels.get("tier")) {
                (true, _) => match pod.consent.wait {
                    AskedWait::For(asked) => asked.max(SignedDuration::from_secs(5)),
                    AskedWait::Unset | AskedWait::Unreadable { .. } => SignedDuration::from_secs(45),
                },
                (false, Some("batch")) => SignedDuration::from_secs(45),
                (false, _) => SignedDuration::from_millis(1_500),
            };
            let waited = pod.deletion.map(|deletion| now.duration_since(deletion.timestamp));
            let lost_for = node.as_ref().and_then(|node| node.unreachable).map(|lost| now.duration_since(lost.since));
            let evict = match pod.consent.evict_after {
                AskedWait::For(asked) if annotated => Some(asked.max(SignedDuration::from_secs(2))),
                AskedWait::For(_) | AskedWait::Unset | AskedWait::Unreadable { .. } => None,
            };
            let evicted = evict.is_some_and(|evict| lost_for >= Some(evict)) && (!pod.phase.is_terminal() || pod.mark.is_some());
            let was_marked = pod.phase.is_terminal() && pod.mark.is_some_and(|mark| mark.since <= Some(now));
            prop_assert!(waited >= Some(wait) || evicted || was_marked, "{:?} is early", waited);
            prop_assert!(pod.deletion.is_some() || evict.is_some(), "its end was not wanted");
            let node = node.unwrap();
            prop_assert!(node.ready != Ready::True && node.heartbeat.alive_until(now).is_none());
            let lost = node.unreachable.unwrap().since;
            let minimum = policy.minimum_unreachable;
            prop_assert!(minimum.is_zero() || now.duration_since(lost) >= minimum);
            let deletes = judged.verdict.actions().iter().any(|action| matches!(action, Step::ForceDeletePod { .. }));
            prop_assert!(!deletes || yes(&pod.consent.delete) || (!annotated && pod.labels.get("tier") == Some("web")));
        }
    }

    #[test]
    fn a_wait_ends_exactly_when_the_verdict_changes(
        pod in any_pod(), node in any_node(), policy in any_policy(), now in present(), part in 0.0f64..1.0,
    ) {
        if let Verdict::Wait { until, why } = decide_pod(&pod, Some(&node), &policy, now).verdict {
            let verdict_at = |time| decide_pod(&pod, Some(&node), &policy, time).verdict;
            let same = Verdict::Wait { until, why };
            prop_assert!(until > now);
            let between = now.checked_add(until.duration_since(now).mul_f64(part)).unwrap().min(until - NANOSECOND);
            prop_assert_eq!(verdict_at(between), same.clone());
            prop_assert_eq!(verdict_at(until - NANOSECOND), same.clone());
            prop_assert_ne!(verdict_at(until), same);
        }
        if let Verdict::Wait { until, why } = decide_node(&node, &policy, now).verdict {
            let verdict_at = |time| decide_node(&node, &policy, time).verdict;
            let same = Verdict::Wait { until, why };
            prop_assert!(until > now);
            prop_assert_eq!(verdict_at(until - NANOSECOND), same.clone());
            prop_assert_ne!(verdict_at(until), same);
        }
    }

    #[test]
    fn once_done_there_is_nothing_more_to_do_ever(
        pod in any_pod(), node in any_node(), policy in any_policy(), now in present(), finalizer in any::<bool>(), later in present(),
    ) {
        let (end, log) = run_to_the_end(pod, &node, &policy, now, finalizer, usize::MAX);
        if let (Some(end), false) = (end, log.is_empty()) {
            let again = decide_pod(&end, Some(&node), &policy, later.max(now));
            prop_assert!(!touches_the_pod(&again), "{:?} after {:?}", again.verdict, log);
        }
    }

    #[test]
    fn a_crash_after_any_write_leads_to_the_same_end_and_nothing_is_written_twice(
        pod in any_pod(), node in any_node(), policy in any_policy(), now in present(), finalizer in any::<bool>(), crash in 1usize..4,
    ) {
        let pod = PodView { mark: None, announced: false, wait_told: false, evict_told: false, ..pod };
        let (calm, calm_log) = run_to_the_end(pod.clone(), &node, &policy, now, finalizer, usize::MAX);
        let (end, log) = run_to_the_end(pod, &node, &policy, now, finalizer, crash);
        prop_assert_eq!(end.map(|pod| (pod.phase, pod.mark)), calm.map(|pod| (pod.phase, pod.mark)));
        // An event may be sent again, but the API server recognizes it by its name.
        let distinct: BTreeSet<_> = log.iter().collect();
        prop_assert_eq!(&distinct, &calm_log.iter().collect());
        for write in log.iter().filter(|write| !write.starts_with("event")) {
            prop_assert_eq!(log.iter().filter(|other| *other == write).count(), 1, "{:?}", log);
        }
    }
}
