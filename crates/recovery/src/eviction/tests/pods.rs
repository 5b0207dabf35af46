//! Which pods go, when, and how.

use super::*;
use crate::Action;

fn judged(pod: &PodView, node: &NodeView, now: i64) -> String {
    say(&decide_pod(pod, Some(node), &policy(TRIGGERS), at(now)))
}

const EVICT: &str = "Act NodeDown: PatchPodStatus, EmitEvent, ForceDeletePod";

#[test]
fn a_pod_goes_only_from_a_silent_node_that_is_being_emptied() {
    let stopped = Progress { stopped: Some(at(1)), ..started() };
    let finished = Progress { finished: Some(at(1)), ..started() };
    let cases = [
        ("under way", begun(""), EVICT),
        ("late, after all others", NodeView { progress: Some(finished), ..begun("") }, EVICT),
        ("only asked for", node(), "Ignore NodeNotEvicted"),
        ("stopped", NodeView { progress: Some(stopped), ..begun("") }, "Ignore NodeNotEvicted"),
        (
            "request taken off",
            NodeView { taints: vec![taint(KEY, "", "NoExecute")], ..begun("") },
            "Ignore NodeNotEvicted",
        ),
        (
            "our taint taken off",
            NodeView { taints: vec![taint(KEY, "", "NoSchedule")], ..begun("") },
            "Ignore NodeNotEvicted",
        ),
        ("Lease unread", NodeView { lease: Lease::Unread, ..begun("") }, "Ignore LeaseUnread"),
        ("Lease renewed", NodeView { lease: lease(0), ..begun("") }, "Wait KubeletAlive until 40"),
        ("Ready", NodeView { ready: Ready::True, ..begun("") }, "Act NodeReturned: DeletePod"),
    ];
    for (case, node, expected) in cases {
        assert_eq!(judged(&pod(), &node, 1), expected, "{case}");
    }
    assert_eq!(say(&decide_pod(&pod(), None, &policy(""), at(1))), "Ignore NodeNotEvicted");
    let off = policy("controllers: []\n");
    assert_eq!(say(&decide_pod(&pod(), Some(&begun("")), &off, at(1))), "Ignore Disabled");
}

#[test]
fn what_is_left_to_do_to_a_pod() {
    let graceful = Some(Deletion { timestamp: at(30), grace_seconds: Some(30) });
    let forced = Some(Deletion { timestamp: at(0), grace_seconds: Some(0) });
    let cases = [
        ("running", pod(), EVICT),
        ("being deleted by taint eviction", PodView { deletion: graceful, ..pod() }, EVICT),
        ("done", PodView { phase: PodPhase::Succeeded, ..pod() }, "Act NodeDown: EmitEvent, ForceDeletePod"),
        (
            "failed and told, and then we died",
            PodView { phase: PodPhase::Failed, announced: true, ..pod() },
            "Act NodeDown: ForceDeletePod",
        ),
        (
            "force deleted by somebody, and held",
            PodView { deletion: forced, ..pod() },
            "Act NodeDown: PatchPodStatus, EmitEvent",
        ),
        (
            "failed, deleted and held",
            PodView { phase: PodPhase::Failed, deletion: forced, ..pod() },
            "Ignore HeldByFinalizers",
        ),
        ("a static pod", PodView { is_mirror: true, ..pod() }, "Ignore StaticPod"),
    ];
    for (case, pod, expected) in cases {
        assert_eq!(judged(&pod, &begun(""), 1), expected, "{case}");
    }
    let back = NodeView { ready: Ready::True, ..begun("") };
    assert_eq!(judged(&PodView { deletion: graceful, ..pod() }, &back, 1), "Ignore LeftToKubelet");
    assert_eq!(judged(&PodView { phase: PodPhase::Failed, ..pod() }, &back, 1), "Ignore LeftToKubelet");
}

#[test]
fn tolerations_mean_what_they_mean_to_kubernetes() {
    let t = |key: &str, operator: &str, value: &str, effect: &str, seconds| Toleration {
        key: key.into(),
        operator: operator.into(),
        value: value.into(),
        effect: effect.into(),
        seconds,
    };
    let cases: Vec<(Vec<Toleration>, &str)> = vec![
        (vec![], EVICT),
        (vec![t("", "Exists", "", "", None)], "Ignore Tolerates"),
        (vec![t(KEY, "Exists", "", "", None)], "Ignore Tolerates"),
        (vec![t(KEY, "Exists", "", "NoExecute", None)], "Ignore Tolerates"),
        (vec![t(KEY, "Exists", "", "NoSchedule", None)], EVICT),
        (vec![t(KEY, "Equal", "INC-1", "", None)], "Ignore Tolerates"),
        (vec![t(KEY, "", "INC-1", "NoExecute", None)], "Ignore Tolerates"),
        (vec![t(KEY, "Equal", "INC-2", "", None)], EVICT),
        (vec![t("", "Equal", "INC-1", "", None)], EVICT),
        (vec![t(KEY, "Gt", "1", "", None)], EVICT),
        (vec![t("node.kubernetes.io/unreachable", "Exists", "", "", None)], EVICT),
        (vec![t(KEY, "Exists", "", "NoExecute", Some(30))], "Wait ToleratesUntil until 30"),
        (vec![t(KEY, "Exists", "", "NoExecute", Some(0))], EVICT),
        (vec![t(KEY, "Exists", "", "NoExecute", Some(-5))], EVICT),
        (
            vec![t(KEY, "Exists", "", "NoExecute", Some(30)), t("", "Exists", "", "NoExecute", Some(10))],
            // Of several that fit, the first in the list.
            "Wait ToleratesUntil until 30",
        ),
        (
            vec![t("", "Exists", "", "NoExecute", Some(10)), t(KEY, "Exists", "", "NoExecute", Some(30))],
            "Wait ToleratesUntil until 10",
        ),
        (
            vec![t(KEY, "Exists", "", "NoExecute", Some(30)), t("", "Exists", "", "", None)],
            "Wait ToleratesUntil until 30",
        ),
        (vec![t("", "Exists", "", "", None), t(KEY, "Exists", "", "NoExecute", Some(0))], "Ignore Tolerates"),
        (
            vec![t(KEY, "Equal", "INC-2", "", Some(5)), t(KEY, "Exists", "", "NoExecute", Some(30))],
            "Wait ToleratesUntil until 30",
        ),
        (vec![t(KEY, "Exists", "", "NoExecute", Some(i64::MAX))], "Wait ToleratesUntil"),
    ];
    for (tolerations, expected) in cases {
        let pod = PodView { tolerations: tolerations.clone(), ..pod() };
        let said = judged(&pod, &begun(""), 1);
        assert!(said.starts_with(expected), "{tolerations:?}: {said}");
    }
    let pod = PodView { tolerations: vec![toleration(Some(30))], ..pod() };
    assert_eq!(judged(&pod, &begun(""), 30), EVICT);
    let back = NodeView { ready: Ready::True, ..begun("") };
    assert_eq!(judged(&pod, &back, 1), "Wait ToleratesUntil until 30");
}

#[test]
fn a_stateful_pod_goes_only_with_proof() {
    let stateful = PodView { owner: Owner::StatefulSet, ..pod() };
    let by = |key: &str| NodeView {
        taints: vec![taint(key, "", "NoSchedule"), taint(KEY, "", "NoExecute")],
        progress: Some(Progress { request: format!("{key}:NoSchedule"), ..started() }),
        ..begun("")
    };
    assert_eq!(judged(&stateful, &begun(""), 1), EVICT, "a person's word");
    assert_eq!(judged(&stateful, &by(SHUTDOWN), 1), EVICT, "a trigger that is proof");
    assert_eq!(judged(&stateful, &by("example.com/lost"), 1), "Ignore NeedsProof");
    assert_eq!(judged(&pod(), &by("example.com/lost"), 1), EVICT, "others need none");
    let done = PodView { phase: PodPhase::Succeeded, ..stateful };
    assert_eq!(judged(&done, &by("example.com/lost"), 1), "Act NodeDown: EmitEvent, ForceDeletePod");
}

#[test]
fn the_pod_is_told_why() {
    let judgement = decide_pod(&pod(), Some(&begun("")), &policy(""), at(5));
    let [Action::PatchPodStatus { phase, conditions, resource_version, .. }, Action::EmitEvent(note), _] =
        judgement.verdict.actions()
    else {
        panic!("{judgement:?}")
    };
    assert_eq!((*phase, resource_version.as_str()), (Some(PodPhase::Failed), "7"));
    assert_eq!((conditions[0].kind, conditions[0].reason), ("DisruptionTarget", "ForceEvictionBySalvor"));
    let message = "Node node-a is down and was emptied by force, asked for by taint salvor.dev/force-eviction=INC-1:NoSchedule";
    assert_eq!((conditions[0].message.as_str(), note.message.as_str()), (message, message));
    assert_eq!(note.name, "evicted.uid-a");
}
