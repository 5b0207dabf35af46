use super::super::Step;
use crate::ids::NodeName;
use crate::step::Step as _;
use salvor_api::config::TerminateAction;

use super::*;
use crate::event::{Condition, EventNote, EventType};
use crate::verdict::{Reason, Verdict};

fn verdict(
    pod: &PodView,
    node: Option<&NodeView>,
    policy_rest: &str,
    now: Timestamp,
) -> Verdict<PodWhy, Step> {
    decide_pod(pod, node, &policy(policy_rest), now).verdict
}

/// The verdict's name, the reason's code and the steps, on one line.
fn outline(verdict: &Verdict<PodWhy, Step>) -> String {
    let steps: Vec<_> = verdict.actions().iter().map(Step::name).collect();
    format!("{} {} {}", verdict.name(), verdict.why().code(), steps.join("+")).trim_end().to_owned()
}

const TERMINATED: &str = "Act Zombie PatchPodStatus+EmitEvent";
const DELETED: &str = "Act Zombie PatchPodStatus+EmitEvent+ForceDeletePod";

#[test]
fn who_is_recovered_and_who_is_ignored() {
    let base = pod;
    let on = |phase| PodView { phase, ..base() };
    let consent = |terminate: &str, delete: &str| {
        let value = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        PodView {
            consent: ConsentAnnotations {
                terminate: value(terminate),
                delete: value(delete),
                ..ConsentAnnotations::default()
            },
            ..base()
        }
    };
    let deleting = |phase| PodView { phase, consent: delete(), ..base() };
    let cases: Vec<(&str, PodView, Option<NodeView>, &str)> = vec![
        ("annotated, deleted, stuck", base(), Some(node()), TERMINATED),
        ("pending is as good as running", on(PodPhase::Pending), Some(node()), TERMINATED),
        ("a phase that nobody knows is not an end", on(PodPhase::Unknown), Some(node()), TERMINATED),
        ("annotated to be deleted", deleting(PodPhase::Running), Some(node()), DELETED),
        ("with both, -delete wins", consent("true", "true"), Some(node()), DELETED),
        (
            "a -delete that does not consent leaves -terminate",
            consent("true", "false"),
            Some(node()),
            TERMINATED,
        ),
        ("not deleted", PodView { deletion: None, ..base() }, Some(node()), "Ignore NotTerminating"),
        ("not annotated", consent("", ""), Some(node()), "Ignore NotOptedIn"),
        ("annotation false", consent("false", ""), Some(node()), "Ignore NotOptedIn"),
        ("annotation True", consent("True", ""), Some(node()), "Ignore NotOptedIn"),
        ("annotation 1", consent("", "1"), Some(node()), "Ignore NotOptedIn"),
        ("annotation with a space", consent("true ", ""), Some(node()), "Ignore NotOptedIn"),
        ("failed, may not be deleted", on(PodPhase::Failed), Some(node()), "Ignore AlreadyTerminal"),
        ("succeeded, may not be deleted", on(PodPhase::Succeeded), Some(node()), "Ignore AlreadyTerminal"),
        ("failed, may be deleted", deleting(PodPhase::Failed), Some(node()), DELETED),
        ("succeeded, may be deleted", deleting(PodPhase::Succeeded), Some(node()), DELETED),
        ("not bound", PodView { node_name: None, ..base() }, None, "Ignore NotScheduled"),
        (
            "bound to nothing",
            PodView { node_name: Some(NodeName::default()), ..base() },
            None,
            "Ignore NotScheduled",
        ),
        ("node missing", base(), None, "Ignore NodeMissing"),
        ("node healthy", base(), Some(healthy_node()), "Ignore NodeReachable"),
        (
            "node only not-ready",
            base(),
            Some(NodeView { unreachable: None, ready: Ready::False, ..node() }),
            "Ignore NodeReachable",
        ),
    ];
    for (case, pod, node, expected) in cases {
        assert_eq!(outline(&verdict(&pod, node.as_ref(), "", at(3600))), expected, "{case}");
    }
}

#[test]
fn nothing_happens_unless_the_administrator_enabled_it() {
    let off = ZombiePolicy::new(&Configuration::default());
    let judged = decide_pod(&pod(), Some(&node()), &off, at(3600));
    assert_eq!(judged.verdict, Verdict::Ignore(PodWhy::Disabled(Disabled::Gate)));
    let left_out = policy("controllers: [-zombie]");
    let judged = decide_pod(&pod(), Some(&node()), &left_out, at(3600));
    assert_eq!(judged.verdict, Verdict::Ignore(PodWhy::Disabled(Disabled::Controllers)));
}

#[test]
fn due_a_minute_after_the_deletion_timestamp_to_the_nanosecond() {
    let due = at(60);
    let wait = Verdict::Wait {
        until: due,
        why: PodWhy::GraceRunning {
            due,
            consent: ConsentSource::Annotation("kueue.x-k8s.io/safe-to-forcefully-terminate"),
            terms: Terms::of(&pod(), policy("").consent(&pod().consent, &pod().labels).unwrap()),
        },
    };
    let nearly = due.checked_sub(SignedDuration::from_nanos(1)).unwrap();
    for now in [at(-30), at(0), at(59), nearly] {
        assert_eq!(verdict(&pod(), Some(&node()), "", now), wait, "{now}");
    }
    for now in [due, at(61), at(86_400)] {
        assert_eq!(outline(&verdict(&pod(), Some(&node()), "", now)), TERMINATED, "{now}");
    }
}

#[test]
fn the_wait_does_not_count_the_grace_twice() {
    for grace_seconds in [None, Some(0), Some(30), Some(86_400)] {
        let deletion = Some(Deletion { timestamp: at(0), grace_seconds });
        let pod = PodView { deletion, ..pod() };
        assert_eq!(verdict(&pod, Some(&node()), "", at(59)).wake_at(), Some(at(60)), "{grace_seconds:?}");
    }
}

#[test]
fn both_flows_of_the_seed_and_late_changes_lead_to_the_same() {
    let lost_before = NodeView { unreachable: Some(Unreachable { since: at(-400) }), ..node() };
    let lost_after_the_mark = NodeView { unreachable: Some(Unreachable { since: at(10) }), ..node() };
    let lost_after_the_due_time = NodeView { unreachable: Some(Unreachable { since: at(100) }), ..node() };
    for node in [lost_before, lost_after_the_mark, lost_after_the_due_time] {
        assert_eq!(outline(&verdict(&pod(), Some(&node), "", at(100))), TERMINATED);
    }
    let late = PodView { consent: ConsentAnnotations::default(), ..pod() };
    assert_eq!(outline(&verdict(&late, Some(&node()), "", at(100))), "Ignore NotOptedIn");
    let late = PodView { consent: terminate(), ..late };
    assert_eq!(outline(&verdict(&late, Some(&node()), "", at(100))), TERMINATED);
}

#[test]
fn a_taint_that_goes_away_before_the_due_time_cancels() {
    assert_eq!(outline(&verdict(&pod(), Some(&node()), "", at(59))), "Wait GraceRunning");
    assert_eq!(outline(&verdict(&pod(), Some(&healthy_node()), "", at(60))), "Ignore NodeReachable");
}

#[test]
fn a_taint_that_blips_is_not_trusted_for_the_minimum() {
    let minimum = "failureRecoveryPolicy: {minimumUnreachableDuration: 2m}";
    let tainted = |since| NodeView { unreachable: Some(Unreachable { since }), ..node() };
    let just_now = verdict(&pod(), Some(&tainted(at(100))), minimum, at(100));
    assert_eq!(outline(&just_now), "Wait UnreachableTooBriefly");
    assert_eq!(just_now.wake_at(), Some(at(220)));
    assert_eq!(outline(&verdict(&pod(), Some(&tainted(at(100))), minimum, at(220))), TERMINATED);
    let long_ago = verdict(&pod(), Some(&tainted(at(-300))), minimum, at(10));
    assert_eq!(outline(&long_ago), "Wait GraceRunning");
    let from_a_clock_ahead = verdict(&pod(), Some(&tainted(at(9_999))), "", at(60));
    assert_eq!(
        outline(&from_a_clock_ahead),
        TERMINATED,
        "without a minimum the taint's time does not matter"
    );
}

#[test]
fn a_taint_without_a_time_counts_from_when_it_was_seen() {
    let since = |unreachable: Option<Unreachable>| unreachable.map(|lost| lost.since);
    assert_eq!(since(Unreachable::from_taints([], at(5))), None);
    assert_eq!(since(Unreachable::from_taints([None], at(5))), Some(at(5)));
    assert_eq!(since(Unreachable::from_taints([None, Some(at(3))], at(5))), Some(at(3)));
    assert_eq!(since(Unreachable::from_taints([Some(at(4)), Some(at(3))], at(1))), Some(at(3)));
}

const RULES: &str = "
failureRecoveryPolicy:
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {tier: batch}}
      forcefulTerminationGracePeriod: 5m
  - terminatePod:
      podLabelSelector: {matchExpressions: [{key: tier, operator: Exists}]}
      forcefulTerminationGracePeriod: 10s
      action: FailAndDelete
";

#[test]
fn rules_opt_pods_in_by_their_labels_and_the_first_match_counts() {
    let labelled = |pairs: &[(&str, &str)]| PodView {
        consent: ConsentAnnotations::default(),
        labels: labels(pairs),
        ..pod()
    };
    let batch = labelled(&[("tier", "batch")]);
    assert_eq!(verdict(&batch, Some(&node()), RULES, at(299)).wake_at(), Some(at(300)));
    assert_eq!(outline(&verdict(&batch, Some(&node()), RULES, at(300))), TERMINATED);
    let other = labelled(&[("tier", "web")]);
    assert_eq!(verdict(&other, Some(&node()), RULES, at(9)).wake_at(), Some(at(10)));
    assert_eq!(outline(&verdict(&other, Some(&node()), RULES, at(10))), DELETED);
    let none = labelled(&[("team", "batch")]);
    assert_eq!(outline(&verdict(&none, Some(&node()), RULES, at(999))), "Ignore NotOptedIn");
}

#[test]
fn an_annotation_beats_every_rule() {
    let both = PodView { labels: labels(&[("tier", "web")]), ..pod() };
    assert_eq!(verdict(&both, Some(&node()), RULES, at(30)).wake_at(), Some(at(60)));
    assert_eq!(outline(&verdict(&both, Some(&node()), RULES, at(60))), TERMINATED);
    let both = PodView { labels: labels(&[("tier", "batch")]), consent: delete(), ..pod() };
    assert_eq!(outline(&verdict(&both, Some(&node()), RULES, at(60))), DELETED);
}

#[test]
fn the_writes_are_exactly_those_of_the_seed() {
    let message = "Pod forcefully terminated after 90s grace period due to unreachable node `node-a` (triggered by \
                   `kueue.x-k8s.io/safe-to-forcefully-terminate annotation`)";
    let condition =
        |kind, reason| Condition { kind, reason, message: message.into(), last_transition_time: at(61) };
    let now = at(61).checked_add(SignedDuration::from_millis(750)).unwrap();
    let expected = [
        Step::PatchPodStatus {
            pod: pod().pod,
            resource_version: "7".into(),
            phase: Some(PodPhase::Failed),
            conditions: vec![
                condition("KueueFailureRecovery", "KueueForcefullyTerminated"),
                condition("DisruptionTarget", "TerminationBySalvor"),
            ],
            ended: None,
        },
        Step::EmitEvent(EventNote {
            name: "zombie-terminated.uid-a".into(),
            regarding: (&pod().pod).into(),
            kind: EventType::Warning,
            reason: "KueueForcefullyTerminated".into(),
            action: "ForcefulTermination",
            reporting_controller: "pod-termination-controller",
            message: message.into(),
        }),
    ];
    let verdict = verdict(&pod(), Some(&node()), "", now);
    assert_eq!(verdict.actions(), expected);
    assert_eq!(verdict.why().to_string(), message);
}

#[test]
fn the_message_states_the_real_grace_and_trigger() {
    let message = |pod: &PodView, rest: &str| {
        let verdict = verdict(pod, Some(&node()), rest, at(3600));
        let Some(Step::PatchPodStatus { conditions, .. }) = verdict.actions().first() else {
            panic!("{verdict:?}")
        };
        conditions[0].message.clone()
    };
    let with_grace = |grace_seconds| PodView {
        deletion: Some(Deletion { timestamp: at(0), grace_seconds }),
        consent: delete(),
        ..pod()
    };
    let by_delete = "due to unreachable node `node-a` (triggered by `kueue.x-k8s.io/safe-to-forcefully-delete annotation`)";
    for (grace, seconds) in
        [(None, "60s"), (Some(0), "60s"), (Some(30), "90s"), (Some(3600), "3660s"), (Some(-1), "60s")]
    {
        let expected = format!("Pod forcefully terminated after {seconds} grace period {by_delete}");
        assert_eq!(message(&with_grace(grace), ""), expected);
    }
    let by_rule =
        PodView { consent: ConsentAnnotations::default(), labels: labels(&[("tier", "web")]), ..pod() };
    assert_eq!(
        message(&by_rule, RULES),
        "Pod forcefully terminated after 40s grace period due to unreachable node `node-a` (triggered by \
         `failureRecoveryPolicy.rules[1]`)"
    );
    assert_eq!(
        message(&by_rule, &RULES.replace("10s", "1ms")),
        "Pod forcefully terminated after 30.001s grace period due to unreachable node `node-a` (triggered by \
         `failureRecoveryPolicy.rules[1]`)"
    );
}

#[test]
fn a_pod_that_ended_keeps_its_phase_and_is_not_called_disrupted() {
    for phase in [PodPhase::Succeeded, PodPhase::Failed] {
        let pod = PodView { phase, consent: delete(), ..pod() };
        let verdict = verdict(&pod, Some(&node()), "", at(60));
        let Some(Step::PatchPodStatus { phase: new_phase, conditions, .. }) = verdict.actions().first()
        else {
            panic!("{verdict:?}")
        };
        assert_eq!(*new_phase, None);
        let kinds: Vec<_> = conditions.iter().map(|condition| (condition.kind, condition.reason)).collect();
        assert_eq!(kinds, [("KueueFailureRecovery", "KueueForcefullyDeleted")]);
    }
}

#[test]
fn a_disruption_that_others_have_noted_is_left_as_it_is() {
    let evicted = PodView { disruption_target: true, ..pod() };
    let verdict = verdict(&evicted, Some(&node()), "", at(60));
    let Some(Step::PatchPodStatus { conditions, .. }) = verdict.actions().first() else {
        panic!("{verdict:?}")
    };
    assert_eq!(conditions.len(), 1);
}

/// The state that our status patch leaves.
fn marked(action: TerminateAction, seconds: i64) -> PodView {
    PodView {
        phase: PodPhase::Failed,
        mark: Some(Mark { action, since: Some(at(seconds)) }),
        disruption_target: true,
        resource_version: "8".into(),
        consent: if action == TerminateAction::Fail { terminate() } else { delete() },
        ..pod()
    }
}

#[test]
fn an_earlier_attempt_is_finished_and_nothing_is_done_twice() {
    use TerminateAction::{Fail, FailAndDelete};
    let announced = |pod: PodView| PodView { announced: true, ..pod };
    let held_by_finalizer = |pod: PodView, seconds| PodView {
        deletion: Some(Deletion { timestamp: at(seconds), grace_seconds: Some(0) }),
        ..pod
    };
    let cases = [
        ("terminated and told", announced(marked(Fail, 60)), 61, "Ignore AlreadyRecovered"),
        ("terminated, not told", marked(Fail, 60), 61, "Act Unannounced EmitEvent"),
        ("terminated long ago, not known to be told", marked(Fail, 60), 60 + 600, "Ignore AlreadyRecovered"),
        (
            "patched, not told, not deleted",
            marked(FailAndDelete, 60),
            61,
            "Act HalfRecovered EmitEvent+ForceDeletePod",
        ),
        (
            "patched and told, not deleted",
            announced(marked(FailAndDelete, 60)),
            61,
            "Act HalfRecovered ForceDeletePod",
        ),
        (
            "patched long ago, not deleted",
            marked(FailAndDelete, 60),
            9_999,
            "Act HalfRecovered ForceDeletePod",
        ),
        (
            "the delete was cut short, deletionTimestamp moved",
            announced(PodView {
                deletion: Some(Deletion { timestamp: at(62), grace_seconds: None }),
                ..marked(FailAndDelete, 60)
            }),
            63,
            "Act HalfRecovered ForceDeletePod",
        ),
        (
            "deleted, held by a finalizer, deletionTimestamp moved",
            announced(held_by_finalizer(marked(FailAndDelete, 60), 62)),
            62,
            "Ignore AlreadyRecovered",
        ),
        (
            "the same when it would be due again",
            announced(held_by_finalizer(marked(FailAndDelete, 60), 62)),
            62 + 60,
            "Ignore AlreadyRecovered",
        ),
        (
            "the same a day later, after a restart",
            held_by_finalizer(marked(FailAndDelete, 60), 62),
            86_400,
            "Ignore AlreadyRecovered",
        ),
    ];
    for (case, pod, now, expected) in cases {
        assert_eq!(outline(&verdict(&pod, Some(&node()), "", at(now))), expected, "{case}");
    }
}

#[test]
fn a_half_done_attempt_stops_when_the_node_is_back() {
    let half = marked(TerminateAction::FailAndDelete, 60);
    assert_eq!(outline(&verdict(&half, Some(&healthy_node()), "", at(61))), "Ignore NodeReachable");
}

#[test]
fn a_pod_that_was_terminated_may_later_be_deleted_too() {
    let escalated = PodView { consent: delete(), ..marked(TerminateAction::Fail, 60) };
    let verdict_now = verdict(&escalated, Some(&node()), "", at(70));
    assert_eq!(outline(&verdict_now), DELETED);
    let Some(Step::EmitEvent(event)) = verdict_now.actions().get(1) else { panic!("{verdict_now:?}") };
    assert_eq!(event.name, "zombie-deleted.uid-a", "the name must differ from that of the first event");
    let taken_back =
        PodView { consent: terminate(), announced: true, ..marked(TerminateAction::FailAndDelete, 60) };
    assert_eq!(outline(&verdict(&taken_back, Some(&node()), "", at(70))), "Ignore AlreadyRecovered");
}

#[test]
fn a_mark_on_a_living_pod_proves_nothing() {
    let undone = PodView { phase: PodPhase::Running, ..marked(TerminateAction::Fail, 60) };
    assert_eq!(outline(&verdict(&undone, Some(&node()), "", at(70))), TERMINATED);
}

#[test]
fn a_pod_force_deleted_by_others_needs_no_second_delete() {
    let deletion = Some(Deletion { timestamp: at(0), grace_seconds: Some(0) });
    let pod = PodView { deletion, consent: delete(), ..pod() };
    assert_eq!(outline(&verdict(&pod, Some(&node()), "", at(60))), "Act Zombie PatchPodStatus+EmitEvent");
}

#[test]
fn conditions_are_read_back_as_marks() {
    let read = |status, reason| Mark::from_condition(status, reason, None).map(|mark| mark.action);
    assert_eq!(read("True", "KueueForcefullyTerminated"), Some(TerminateAction::Fail));
    assert_eq!(read("True", "KueueForcefullyDeleted"), Some(TerminateAction::FailAndDelete));
    assert_eq!(read("False", "KueueForcefullyDeleted"), None);
    assert_eq!(read("True", "Other"), None);
    let by_kueue = Mark::from_condition("True", "KueueForcefullyDeleted", None);
    let pod = PodView { mark: by_kueue, ..marked(TerminateAction::FailAndDelete, 60) };
    assert_eq!(outline(&verdict(&pod, Some(&node()), "", at(70))), "Act HalfRecovered ForceDeletePod");
}

#[test]
fn annotations_are_picked_out_of_all() {
    let all = [
        ("kueue.x-k8s.io/safe-to-forcefully-terminate", "true"),
        ("kueue.x-k8s.io/safe-to-forcefully-delete", "no"),
        ("salvor.dev/termination-grace-after", "90s"),
        ("salvor.dev/evict-after", "soon"),
        ("other", "true"),
    ];
    let all = all.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let picked = ConsentAnnotations::from_annotations(&all);
    let wait = AskedWait::For(SignedDuration::from_secs(90));
    let evict_after = AskedWait::Unreadable { value: "soon".into(), defect: WaitDefect::Malformed };
    assert_eq!(
        picked,
        ConsentAnnotations { terminate: Some("true".into()), delete: Some("no".into()), wait, evict_after }
    );
}

#[test]
fn every_rule_asked_is_shown_with_what_was_seen() {
    let judged = decide_pod(&pod(), Some(&node()), &policy(""), at(30));
    let shown: Vec<_> = judged
        .findings
        .iter()
        .map(|finding| {
            format!("{} {} {}", if finding.holds { "yes" } else { "no " }, finding.question, finding.observed)
        })
        .collect();
    assert_eq!(
        shown,
        [
            "yes Is zombie recovery switched on? feature gate FailureRecoveryPolicy is on, controller zombie is enabled",
            "yes Is the pod being deleted? deletionTimestamp 2027-01-15T08:00:00Z, which includes its grace of 30s",
            "yes Has its owner consented? yes, by kueue.x-k8s.io/safe-to-forcefully-terminate annotation, to Fail",
            "yes Is anything left to do to it? not marked, left: status, event",
            "yes Has it not ended, or may it be deleted? Running",
            "yes Is it bound to a node? node-a",
            "yes Does that Node exist? yes",
            "yes Is the node unreachable? taint node.kubernetes.io/unreachable since 2027-01-15T07:53:20Z",
            "yes Is the node not Ready? Ready is Unknown",
            "no  Is the wait over? until 2027-01-15T08:01:00Z, it is 2027-01-15T08:00:30Z; 1m0s after its grace period",
        ]
    );
    let report = serde_json::to_value(judged.report()).unwrap();
    assert_eq!(report["verdict"], "Wait");
    assert_eq!(report["reason"], "GraceRunning");
    assert_eq!(report["until"], "2027-01-15T08:01:00Z");
    assert_eq!(report["findings"].as_array().unwrap().len(), 10);
    assert!(report["whatWouldChangeIt"].as_str().unwrap().contains("node.kubernetes.io/unreachable"));
}

#[test]
fn a_near_miss_is_explained() {
    let pod =
        PodView { consent: ConsentAnnotations { terminate: Some("True".into()), ..terminate() }, ..pod() };
    let judged = decide_pod(&pod, Some(&node()), &policy(""), at(60));
    assert_eq!(
        judged.report().message,
        "The pod's owner has not consented: annotation kueue.x-k8s.io/safe-to-forcefully-terminate is \"True\", and only \
         \"true\" counts."
    );
}

#[test]
fn the_brake_turns_acting_into_blocked_and_says_so() {
    use crate::brake::{Brake, BrakeState, NodeCounts, Outage};
    use salvor_api::config::BrakeLimits;

    let limits = BrakeLimits { max_pods_per_minute: 1, ..BrakeLimits::default() };
    let mut brake = Brake::new(limits, BrakeState::default());
    let judged = |pod: &PodView, now| decide_pod(pod, Some(&node()), &policy(""), now);

    let passed = brake.pass(at(60), judged(&pod(), at(60)), Outage::Holds);
    assert_eq!(outline(&passed.verdict), TERMINATED);
    let second = brake.pass(at(60), judged(&pod(), at(60)), Outage::Holds);
    assert_eq!(outline(&second.verdict), "Blocked Zombie");
    assert_eq!(second.verdict.wake_at(), Some(at(121)));
    let last = second.findings.last().unwrap();
    assert!(!last.holds && last.observed.contains("brake.maxPodsPerMinute=1"), "{last:?}");
    assert!(second.report().blocked_by.is_some());

    let half = PodView { announced: true, ..marked(TerminateAction::FailAndDelete, 60) };
    assert_eq!(
        outline(&brake.pass(at(61), judged(&half, at(61)), Outage::Holds).verdict),
        "Act HalfRecovered ForceDeletePod"
    );
    let telling = marked(TerminateAction::Fail, 60);
    brake.observe(at(61), NodeCounts { unreachable: 3, total: 5 });
    assert_eq!(
        outline(&brake.review(at(61), judged(&telling, at(61)), Outage::Holds).verdict),
        "Act Unannounced EmitEvent"
    );
    assert_eq!(
        outline(&brake.review(at(61), judged(&half, at(61)), Outage::Holds).verdict),
        "Blocked HalfRecovered"
    );
    let waiting = brake.review(at(30), judged(&pod(), at(30)), Outage::Holds);
    assert_eq!(outline(&waiting.verdict), "Wait GraceRunning");
}
