//! Which pods go, when, and how.

use super::super::Step;
use super::*;
use crate::step::Step as _;
use crate::zombie::ConsentSource;

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
        ("Ready", NodeView { ready: Ready::True, ..begun("") }, "Act NodeReturned: EvictPod"),
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
            // If several match, the first in the list counts.
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
    let stateful = stateful();
    let by = |key: &str| NodeView {
        taints: vec![taint(key, "", "NoSchedule"), taint(KEY, "", "NoExecute")],
        progress: Some(Progress { request: format!("{key}:NoSchedule"), ..started() }),
        ..begun("")
    };
    assert_eq!(judged(&stateful, &begun(""), 1), EVICT, "a person's word");
    assert_eq!(judged(&stateful, &by(SHUTDOWN), 1), EVICT, "a trigger that is proof");
    assert_eq!(judged(&stateful, &by("example.com/lost"), 1), "Ignore NeedsProof");
    assert_eq!(judged(&pod(), &by("example.com/lost"), 1), EVICT, "others need none");
    let mut out_of_service = by("example.com/lost");
    out_of_service.taints.push(taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute"));
    assert_eq!(judged(&stateful, &out_of_service, 1), EVICT, "a person's word beside the trigger");
    out_of_service.out_of_service = true;
    assert_eq!(judged(&stateful, &out_of_service, 1), "Ignore NeedsProof", "our own taint proves nothing");
    let done = PodView { phase: PodPhase::Succeeded, ..stateful };
    assert_eq!(judged(&done, &by("example.com/lost"), 1), "Act NodeDown: EmitEvent, ForceDeletePod");
}

#[test]
fn a_pod_of_which_two_must_never_run_goes_only_with_proof() {
    let unproven = NodeView {
        taints: vec![taint("example.com/lost", "", "NoSchedule"), taint(KEY, "lost", "NoExecute")],
        progress: Some(Progress { request: "example.com/lost:NoSchedule".into(), ..started() }),
        ..begun("")
    };
    let of = |kind: &str, group: &str| PodView { work: owned_by(vec![owner(kind, group)]), ..pod() };
    let with = |copies: Copies| PodView { work: Work { copies, ..claiming(vec![claim("data")]) }, ..pod() };
    let consents = Some(ConsentSource::Annotation("kueue.x-k8s.io/safe-to-forcefully-terminate"));
    let only_owner = Owner { controls: false, ..owner("StrimziPodSet", "core.strimzi.io") };
    let cases = [
        ("StatefulSet", of("StatefulSet", "apps"), true),
        ("Strimzi", of("StrimziPodSet", "core.strimzi.io"), true),
        ("CloudNativePG", of("Cluster", "postgresql.cnpg.io"), true),
        ("KubeVirt", of("VirtualMachineInstance", "kubevirt.io"), true),
        (
            "an owner that does not control it",
            PodView { work: owned_by(vec![owner("X", "x"), only_owner]), ..pod() },
            true,
        ),
        ("a kind of that name in another group", of("StatefulSet", "example.com"), false),
        ("Deployment", of("ReplicaSet", "apps"), false),
        ("Job", of("Job", "batch"), false),
        ("nothing", PodView { work: owned_by(vec![]), ..pod() }, false),
        (
            "LeaderWorkerSet",
            PodView { work: Work { in_leader_worker_set: true, ..stateful().work }, ..pod() },
            false,
        ),
        (
            "a StatefulSet that consents",
            PodView { work: Work { consent: consents, ..stateful().work }, ..pod() },
            false,
        ),
        ("a ReadWriteOnce claim", with(Copies::Forbidden("claim ns/data is ReadWriteOnce".into())), true),
        ("a claim that was not read", with(Copies::Unread), true),
        ("a claim that cannot be read", with(Copies::Unreadable("claim ns/data: no".into())), true),
        ("a ReadWriteMany claim", with(Copies::Allowed), false),
    ];
    for (case, pod, needs_proof) in cases {
        let expected = if needs_proof { "Ignore NeedsProof" } else { EVICT };
        assert_eq!(judged(&pod, &unproven, 1), expected, "{case}");
        assert_eq!(judged(&pod, &begun(""), 1), EVICT, "{case}, and a person's word");
        let ended = PodView { phase: PodPhase::Failed, announced: true, ..pod };
        assert_eq!(judged(&ended, &unproven, 1), "Act NodeDown: ForceDeletePod", "{case}, ended");
    }
    let configured =
        policy(&TRIGGERS.replace("{triggers", "{atMostOneOwners: [Shard.example.com], triggers"));
    let judged = |pod: PodView| say(&decide_pod(&pod, Some(&unproven), &configured, at(1)));
    assert_eq!(judged(of("Shard", "example.com")), "Ignore NeedsProof");
    assert_eq!(judged(of("StatefulSet", "apps")), EVICT, "what is set replaces the default");
    assert_eq!(judged(with(Copies::Forbidden("x".into()))), "Ignore NeedsProof", "whatever is set");
    let words = decide_pod(&of("Cluster", "postgresql.cnpg.io"), Some(&unproven), &policy(TRIGGERS), at(1));
    assert_eq!(
        words.verdict.why().to_string(),
        "The pod must never run twice (it belongs to a Cluster.postgresql.cnpg.io), and nothing proves that the machine is off."
    );
}

/// The statement that the machine is off applies to the silence before its return, and to the pods of that time.
#[test]
fn a_return_ends_the_proof_and_protects_what_came_since() {
    let returned = |ready, lease| NodeView {
        progress: Some(Progress { returned: Some(at(20)), ..started() }),
        ready,
        lease,
        ..begun("NodeReturned")
    };
    let late = PodView { created: Some(at(0)), ..pod() };
    let unknown = PodView { created: None, ..pod() };
    let ready = || NodeView { ready: Ready::True, ..begun("") };
    let silent_again = || returned(Ready::Unknown, lease(25));
    let cases = [
        ("it was there", pod(), ready(), "Act NodeReturned: EvictPod"),
        ("it came late", late.clone(), ready(), "Ignore CameLate"),
        ("nobody knows when it came", unknown.clone(), ready(), "Ignore CameLate"),
        ("late, while the machine is silent", late.clone(), begun(""), EVICT),
        ("silent again: it was there", pod(), silent_again(), EVICT),
        ("silent again: it came late", late, silent_again(), "Ignore CameLate"),
        ("silent again: nobody knows when it came", unknown, silent_again(), "Ignore CameLate"),
        ("silent again: two must not run", stateful(), silent_again(), "Ignore NeedsProof"),
    ];
    for (case, pod, node, expected) in cases {
        assert_eq!(judged(&pod, &node, 100), expected, "{case}");
    }
}

#[test]
fn a_graceful_deletion_is_guarded_looked_at_twice_and_counted() {
    let back = NodeView { ready: Ready::True, ..begun("") };
    let decision = decide_pod(&pod(), Some(&back), &policy(""), at(1));
    let [action] = decision.verdict.actions() else { panic!("{decision:?}") };
    let expected = Step::EvictPod { pod: pod().pod, resource_version: pod().resource_version };
    assert_eq!(*action, expected);
    assert!(action.needs_a_second_look() && action.is_disruptive());
    let limits = salvor_api::config::BrakeLimits { max_pods_per_minute: 1, ..Default::default() };
    let mut brake = crate::brake::Brake::new(limits, Default::default());
    assert_eq!(brake.pass(at(1), decision.clone(), crate::brake::Outage::Holds).verdict.name(), "Act");
    assert_eq!(brake.pass(at(1), decision, crate::brake::Outage::Holds).verdict.name(), "Blocked");
}

#[test]
fn the_pod_is_told_why() {
    let decision = decide_pod(&pod(), Some(&begun("")), &policy(""), at(5));
    let [Step::PatchPodStatus { phase, conditions, resource_version, .. }, Step::EmitEvent(note), _] =
        decision.verdict.actions()
    else {
        panic!("{decision:?}")
    };
    assert_eq!((*phase, resource_version.as_str()), (Some(PodPhase::Failed), "7"));
    assert_eq!((conditions[0].kind, conditions[0].reason), ("DisruptionTarget", "ForceEvictionBySalvor"));
    let message = "Node node-a is down and its pods were evicted by force (requested by taint salvor.dev/force-eviction=INC-1:NoSchedule)";
    assert_eq!((conditions[0].message.as_str(), note.message.as_str()), (message, message));
    assert_eq!(note.name, "evicted.uid-a");
}
