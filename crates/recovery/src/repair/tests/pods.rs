//! The pods of a node that is replaced, steps that the brake blocks, and traces on nodes that no policy selects any
//! more.

use super::*;
use crate::objects::Deletion;
use crate::proof::Proof;
use crate::repair::kept::with as kept_with;
use crate::step::{Disrupts, Grace, Guard, SecondLook, Step as _};

fn pod(phase: PodPhase) -> PodView {
    PodView {
        pod: PodRef { uid: "uid-pod".into(), namespace: "default".into(), name: "pod".into() },
        resource_version: "5".into(),
        phase,
        deletion: None,
        stays: None,
        work: twice(),
        without_grace: false,
    }
}

fn judged(
    pod: &PodView,
    place: &PodPlace,
    refused: Option<&Refusal>,
    now: Timestamp,
) -> Decision<PodWhy, Step> {
    decide_pod(pod, place, refused, &GatePolicy::new(&Configuration::default()), now)
}

fn going(grace_seconds: Option<i64>) -> PodView {
    let deletion = Some(Deletion { timestamp: at(59), grace_seconds });
    PodView { deletion, ..pod(PodPhase::Running) }
}

fn replaced(node_is_there: bool, owner_is_there: bool) -> PodPlace {
    let node = node("n").node;
    let owner = claim(&super::node("n")).object;
    PodPlace::Replaced { grave: Grave { node, owner }, node_is_there, owner_is_there }
}

fn drained(is_drained: bool) -> PodPlace {
    PodPlace::Drained { node: node("n").node, is_drained }
}

fn names(decision: &Decision<PodWhy, Step>) -> Vec<&'static str> {
    let steps = decision.verdict.actions().iter().filter(|step| !matches!(step, Step::Mention(_)));
    steps.map(crate::step::Step::name).collect()
}

/// At most once: while the Node or its NodeClaim exists, the machine may run, and nothing is forced.
#[test]
fn pods_are_freed_only_if_node_and_machine_are_gone() {
    const BOTH: [&str; 2] = ["FailOrphanedPod", "DeleteOrphanedPod"];
    const ONE: [&str; 1] = ["DeleteOrphanedPod"];
    let held = PodView { phase: PodPhase::Failed, ..going(Some(0)) };
    let cases: [(PodView, PodPlace, &[&str], &str); 10] = [
        (pod(PodPhase::Running), replaced(true, true), &[], "NodeIsThere"),
        (pod(PodPhase::Running), replaced(true, false), &[], "NodeIsThere"),
        (pod(PodPhase::Running), replaced(false, true), &[], "MachineMayRun"),
        (pod(PodPhase::Running), replaced(false, false), &BOTH, "Orphaned"),
        (pod(PodPhase::Pending), replaced(false, false), &BOTH, "Orphaned"),
        (going(Some(30)), replaced(false, false), &BOTH, "Orphaned"),
        (going(Some(0)), replaced(false, false), &BOTH, "Orphaned"),
        (going(None), replaced(false, false), &BOTH, "Orphaned"),
        (pod(PodPhase::Failed), replaced(false, false), &ONE, "Orphaned"),
        (held, replaced(false, false), &[], "Going"),
    ];
    for (pod, place, steps, reason) in cases {
        let decision = judged(&pod, &place, None, at(60));
        assert_eq!((names(&decision).as_slice(), decision.verdict.why().code()), (steps, reason), "{pod:?}");
        for step in decision.verdict.actions().iter().filter(|step| step.tells().is_none()) {
            assert_ne!(step.effect().second_look, SecondLook::No, "{step} is looked at live");
            assert_eq!(step.effect().disrupts, Disrupts::WhatWasBegun, "{step}");
            assert_eq!(step.write(&[]).unwrap().guard, as_judged(&pod), "{step}");
        }
    }
}

/// Whatever has changed since is refused by the server.
fn as_judged(pod: &PodView) -> Guard<'_> {
    Guard::Judged { uid: &pod.pod.uid, resource_version: &pod.resource_version }
}

#[test]
fn a_drain_asks_budgets_and_leaves_who_belongs_to_the_node() {
    let of = |stays| PodView { stays: Some(stays), ..pod(PodPhase::Running) };
    let cases: [(PodView, bool, &[&str], &str); 7] = [
        (pod(PodPhase::Running), true, &["EvictPodFromSickNode"], "Drained"),
        (pod(PodPhase::Pending), true, &["EvictPodFromSickNode"], "Drained"),
        (pod(PodPhase::Running), false, &[], "NotDrained"),
        (pod(PodPhase::Succeeded), true, &[], "Ended"),
        (going(Some(30)), true, &[], "Going"),
        (of(Stays::Mirror), true, &[], "Stays"),
        (of(Stays::DaemonSet), true, &[], "Stays"),
    ];
    for (pod, is_drained, steps, reason) in cases {
        let decision = judged(&pod, &drained(is_drained), None, at(60));
        assert_eq!((names(&decision).as_slice(), decision.verdict.why().code()), (steps, reason), "{pod:?}");
        for step in decision.verdict.actions() {
            assert_eq!(step.effect().disrupts, Disrupts::Pods(1), "{step}");
            assert_eq!(step.write(&[]).unwrap().guard, as_judged(&pod), "{step}");
        }
    }
}

/// The API removes a pod without grace period before its kubelet has ended it, which on a silent node is force.
#[test]
fn a_drain_gives_work_that_must_not_run_twice_a_second() {
    let of_set = Owner { kind: "StatefulSet".into(), group: "apps".into(), controls: true };
    let once = Work { owners: vec![of_set], ..twice() };
    let unread = Work { copies: Copies::Unread, ..twice() };
    for (work, without_grace, grace) in [
        (once.clone(), true, Grace::ASecond),
        (once, false, Grace::Own),
        (unread, true, Grace::ASecond),
        (twice(), true, Grace::Own),
    ] {
        let pod = PodView { work, without_grace, ..pod(PodPhase::Running) };
        let verdict = judged(&pod, &drained(true), None, at(60)).verdict;
        let [Step::EvictPod { grace: given, .. }] = verdict.actions() else { panic!("{verdict:?}") };
        assert_eq!(*given, grace, "{pod:?}");
    }
}

#[test]
fn what_was_refused_waits() {
    let refused = Refusal { words: "a disruption budget".into(), until: at(61) };
    for (place, now, until) in [
        (drained(true), at(60), Some(at(61))),
        (drained(true), at(61), None),
        (replaced(false, false), at(60), Some(at(61))),
        (replaced(false, false), at(61), None),
    ] {
        let decision = judged(&pod(PodPhase::Running), &place, Some(&refused), now);
        assert_eq!(decision.verdict.wake_at(), until, "{place:?}");
        assert_eq!(decision.verdict.actions().is_empty(), until.is_some(), "{place:?}");
    }
}

/// A policy, and a sick node that nothing owns.
#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
fn unowned(more: Value) -> World {
    let mut spec = json!({
        "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}],
        "unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let policy = policy_of(spec);
    assert!(policy.defects.is_empty(), "{:?}", policy.defects);
    let mut world = World::new(policy, [sick("n", 0), node("well")]);
    world.nodes[0].1 = Backend::Node;
    world
}

/// The same with a graceful policy of 15 minutes.
fn gentle() -> World {
    unowned(json!({"termination": "Graceful", "gracePeriod": "15m"}))
}

/// Cordons the node as its step says.
fn cordon(world: &mut World, now: Timestamp) {
    world.reserve(now);
    let decision = world.judge(0, now);
    let Some(Step::Cordon { progress, .. }) = decision.verdict.actions().first() else {
        panic!("{:?}", decision.verdict)
    };
    assert_eq!((progress.cordoned, progress.draining_since), (!world.nodes[0].0.unschedulable, Some(now)));
    let node = &mut world.nodes[0].0;
    (node.unschedulable, node.progress) = (true, Some(Box::new(progress.clone())));
}

fn drains(world: &World, now: Timestamp) -> bool {
    world.with_scene(0, now, |scene| is_drained(scene, &world.settings, now))
}

/// Nothing replaces the machine, which may run. With either termination the node is cordoned and drained, and then
/// blocked. Its Node stays.
#[test]
fn a_node_that_nothing_owns_is_drained_and_then_held() {
    let forceful = unowned(json!({}));
    for (mut world, held_from) in [(forceful, seconds(60 * 60 + 10)), (gentle(), at(75))] {
        assert!(!drains(&world, at(60)), "it is not its turn");
        cordon(&mut world, at(60));
        world.left = left(7);
        let before = Timestamp::from_second(held_from.as_second() - 1).unwrap();
        assert!(drains(&world, at(60)));
        assert!(drains(&world, before));
        assert_eq!(world.reason(0, before), "RepairUnderWay");
        assert_eq!(world.judge(0, before).verdict.actions().len(), 1, "it tells so");
        for now in [held_from, at(600)] {
            assert_eq!(world.deeds(0, now), NOTHING);
            let hold = world.hold(0, now).unwrap();
            assert_eq!(hold.code(), "MachineMayRun");
            let text = hold.to_string();
            for said in [
                "node n,",
                &at(60).to_string(),
                "default/db-0, default/db-1",
                "and 2 more",
                "salvor evict n",
                "kubectl taint nodes n node.kubernetes.io/out-of-service",
                "kubectl annotate pod -n default db-0",
                "kubectl delete node n",
            ] {
                assert!(text.contains(said), "{said} is not in {text}");
            }
            assert!(drains(&world, now), "who may go later is asked again");
        }
        world.left = None;
        assert_eq!(world.reason(0, before), "RepairUnderWay", "nobody knows who is left");
        assert_eq!(world.reason(0, held_from), "MachineMayRun");
        world.left = left(0);
        let decision = world.judge(0, before);
        assert_eq!(decision.verdict.why().code(), "MachineMayRun", "nobody is left");
        let events: Vec<&str> = decision
            .verdict
            .actions()
            .iter()
            .filter_map(|step| if let Step::Mention(note) = step { Some(&*note.reason) } else { None })
            .collect();
        assert_eq!(events, ["NodeRepairBlocked", "NodeDrained"], "a drain repairs nothing");
        world.left = left(2);
        world.policy.paused = true;
        assert!(!drains(&world, at(61)), "what holds the repair holds the drain");
        world.policy.paused = false;
        world.nodes[0].1 = Backend::Claim(claim(&world.nodes[0].0));
        assert!(!drains(&world, at(61)), "Karpenter drains its own nodes");
    }
}

/// Something such as the brake blocked the cordon for a while: the grace period of the drain counts from the cordon.
#[test]
fn the_grace_of_a_drain_counts_from_its_cordon() {
    let mut world = gentle();
    world.reserve(at(60));
    cordon(&mut world, at(70));
    world.left = left(1);
    assert_eq!(world.policy.status.repairs[0].since, at(60));
    assert_eq!(world.judge(0, at(71)).verdict.why().code(), "RepairUnderWay");
    assert_eq!(world.survey(at(71)).changes_at, Some(at(85)));
    assert_eq!(world.reason(0, seconds(85 * 60 - 1)), "RepairUnderWay");
    assert_eq!(world.reason(0, at(85)), "MachineMayRun");
    // Neither a drain from an earlier turn nor a time in the future counts.
    for (since, ends) in [(at(0), at(75)), (at(9_000), at(86))] {
        world.nodes[0].0.progress.as_mut().unwrap().draining_since = Some(since);
        let early = Timestamp::from_second(ends.as_second() - 1).unwrap();
        assert_eq!(world.reason(0, early.min(at(71))), "RepairUnderWay", "{since}");
    }
    // A cordon by a person does not count as the start of Salvor's drain.
    let mut world = gentle();
    world.nodes[0].0.unschedulable = true;
    cordon(&mut world, at(62));
    assert!(drains(&world, at(62)));
}

fn said_off() -> Proof {
    Proof::Taint("salvor.dev/force-eviction:NoExecute".into())
}

/// The Node is deleted only with proof that its machine is off, or if no pod is left that must not run twice.
#[test]
fn a_node_is_deleted_only_if_nothing_can_run_twice() {
    let stateful = || Work {
        owners: vec![Owner { kind: "StatefulSet".into(), group: "apps".into(), controls: true }],
        ..twice()
    };
    let unread = || Work { copies: Copies::Unread, ..twice() };
    let leaves = |works: Vec<Work>| {
        let pods = works.into_iter().enumerate().map(|(number, work)| pod_of(number, work)).collect();
        Some(Left { pods })
    };
    // The Node's metadata is saved first.
    const GONE: [&str; 1] = ["KeepNodeMetadata"];
    let gentle = json!({"unownedNodes": "DeleteNode", "termination": "Graceful", "gracePeriod": "15m"});
    for (spec, grace) in [(json!({"unownedNodes": "DeleteNode"}), None), (gentle, Some(15))] {
        let mut world = unowned(spec);
        cordon(&mut world, at(60));
        let over = at(60 + grace.unwrap_or(1));
        for (left, early, late) in [
            (None, &NOTHING[..], &NOTHING[..]),
            (leaves(vec![]), &GONE[..], &GONE[..]),
            (leaves(vec![twice()]), if grace.is_none() { &GONE[..] } else { &NOTHING[..] }, &GONE[..]),
            (leaves(vec![twice(), stateful()]), &NOTHING[..], &NOTHING[..]),
            (leaves(vec![unread()]), &NOTHING[..], &NOTHING[..]),
        ] {
            world.left = left;
            assert_eq!(world.deeds(0, at(60)), early, "{grace:?} {:?}", world.left);
            assert_eq!(world.deeds(0, over), late, "{grace:?} {:?}", world.left);
            if late.is_empty() {
                assert_eq!(world.reason(0, over), "MachineMayRun");
            }
        }
        world.left = leaves(vec![twice(), stateful()]);
        let text = world.hold(0, over).unwrap().to_string();
        assert!(
            text.contains("two of default/db-1 must not run: it belongs to a StatefulSet.apps"),
            "{text}"
        );
        assert!(text.contains("kubectl annotate pod -n default db-1"), "{text}");
        for left in [None, leaves(vec![stateful()])] {
            world.left = left;
            marks(&mut world.nodes[0].0).off = Some(said_off());
            assert_eq!(world.deeds(0, at(60)), GONE, "a person says that it is off");
            marks(&mut world.nodes[0].0).off = None;
        }
    }
    let mut world = unowned(json!({}));
    cordon(&mut world, at(60));
    world.left = leaves(vec![]);
    marks(&mut world.nodes[0].0).off = Some(said_off());
    assert_eq!(world.deeds(0, at(61)), NOTHING, "Drain deletes no Node");
}

/// A node that is not Ready may have a kubelet that runs its pods: as long as it renews its Lease, nothing proves that
/// the machine is off.
#[test]
fn a_statement_about_a_machine_whose_lease_is_renewed_is_no_proof() {
    let mut world = unowned(json!({"unownedNodes": "DeleteNode"}));
    cordon(&mut world, at(60));
    let stateful = Owner { kind: "StatefulSet".into(), group: "apps".into(), controls: true };
    world.left = Some(Left { pods: vec![pod_of(0, Work { owners: vec![stateful], ..twice() })] });
    marks(&mut world.nodes[0].0).off = Some(said_off());
    // The tests count minutes, and a Lease lasts less than one.
    let renewed =
        |at| Lease::Renewed { written: at, heard: at, lasts: SignedDuration::from_secs(40), moves: true };
    let gone = ["KeepNodeMetadata"];
    for (case, lease, expected) in [
        ("not read yet", Lease::Unread, &NOTHING[..]),
        ("renewed", renewed(at(61)), &NOTHING[..]),
        ("not renewed for long", renewed(at(60)), &gone[..]),
        ("there is none", Lease::None, &gone[..]),
    ] {
        world.lease = lease;
        assert_eq!(world.deeds(0, at(61)), expected, "{case}");
        if expected.is_empty() {
            let told = world.hold(0, at(61)).unwrap().to_string();
            for words in [
                "force-eviction:NoExecute says that the machine is off",
                "does not count",
                &lease.to_string(),
            ] {
                assert!(told.contains(words), "{case}: {told}");
            }
        }
    }
}

#[test]
fn a_node_that_a_person_uncordons_during_its_drain_is_cordoned_again_before_it_is_deleted() {
    let mut world = unowned(json!({"unownedNodes": "DeleteNode"}));
    cordon(&mut world, at(60));
    world.left = left(0);
    assert_eq!(world.deeds(0, at(61)), ["KeepNodeMetadata"]);
    world.nodes[0].0.unschedulable = false;
    let verdict = world.judge(0, at(61)).verdict;
    let Some(Step::Cordon { progress, .. }) = verdict.actions().first() else { panic!("{verdict:?}") };
    // Its grace does not begin again: otherwise an agent could put the end off for ever.
    assert_eq!((progress.cordoned, progress.draining_since), (true, Some(at(60))));
}

/// What does not make a new machine says nothing about whether new machines help.
#[test]
fn a_drain_is_not_counted_as_a_replacement() {
    for (spec, replacements) in [(json!({}), 0), (json!({"unownedNodes": "DeleteNode"}), 1)] {
        let survey = unowned(spec).survey(at(60));
        assert_eq!((survey.picks.len(), survey.replacements.len()), (1, replacements));
    }
}

/// A Node's metadata is saved before the Node is deleted, in exactly the version that is deleted. Missing parts are
/// restored when the same machine registers again.
#[test]
fn a_machine_that_comes_back_gets_back_what_stood_on_its_node() {
    let mut world = unowned(json!({"unownedNodes": "DeleteNode"}));
    cordon(&mut world, at(60));
    world.left = left(0);
    world.reserve(at(61));
    let whole = json!({
        "metadata": {
            "name": "n", "uid": "uid-n", "resourceVersion": "1",
            "labels": {"pool": "a", "team": "ml", "kubernetes.io/hostname": "n"},
            "annotations": {
                "repair.salvor.dev/progress": "{}", "salvor.dev/do-not-repair": "false",
                "salvor.dev/reboot-requested": "x", "rack": "7",
            },
        },
        "spec": {"providerID": "fake://n", "taints": [
            {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"},
            {"key": "salvor.dev/force-eviction", "effect": "NoExecute"},
        ]},
        "status": {"nodeInfo": {"systemUUID": "machine-n"}},
    });
    let body = |step: &Step, read: &Value| {
        let write = crate::step::Step::write(step, &[Some(read.clone())]).unwrap();
        let crate::step::Verb::Patch(patch) = write.verb else { panic!("{step}") };
        let content = patch.content.map(|(_, raw)| serde_json::from_str::<Value>(raw.get()).unwrap());
        (Value::Object(patch.metadata), content.unwrap_or_default())
    };
    let verdict = world.judge(0, at(61)).verdict;
    let [keep @ Step::KeepNode { .. }] = verdict.actions() else { panic!("{verdict:?}") };
    let (_, status) = body(keep, &whole);
    let mut changed = whole.clone();
    changed["metadata"]["resourceVersion"] = "2".into();
    assert!(crate::step::Step::write(keep, &[Some(changed)]).is_err(), "another state of it");
    world.policy.status = PolicyStatus {
        deleted_nodes: PolicyStatus::read(Some(&status)).deleted_nodes,
        ..world.policy.status.clone()
    };
    let kept = world.policy.status.deleted_nodes[0].clone();
    assert_eq!(kept.labels.keys().collect::<Vec<_>>(), ["pool", "team"]);
    assert_eq!(kept.annotations.keys().collect::<Vec<_>>(), ["rack", "salvor.dev/do-not-repair"]);
    assert_eq!(kept.taints.iter().map(|it| &*it.key).collect::<Vec<_>>(), ["dedicated"]);
    let verdict = world.judge(0, at(61)).verdict;
    assert!(matches!(verdict.actions(), [Step::DeleteNode { .. }, Step::Mention(_)]), "{verdict:?}");
    world.nodes[0].0.resource_version = "2".into();
    let verdict = world.judge(0, at(61)).verdict;
    assert!(matches!(verdict.actions(), [Step::KeepNode { .. }]), "it has changed since: {verdict:?}");
    // The policy drops it after a day, and not before.
    world.reserve(at(61 + 24 * 60 - 1));
    assert_eq!(world.policy.status.deleted_nodes.len(), 1);

    let mut back = node("n");
    (back.node.uid, back.created) = ("uid-new".into(), Some(at(70)));
    back.labels = labels(&[]);
    assert!(kept.is_of(&back, at(71)));
    assert!(!kept.is_of(&back, at(61 + 24 * 60)), "a day is over");
    for change in [
        |node: &mut NodeView| node.node.uid = "uid-n".into(),
        |node: &mut NodeView| {
            (node.system_uuid, node.provider_id) = ("".into(), "fake://other".into());
        },
        |node: &mut NodeView| node.node.name = "other".into(),
        |node: &mut NodeView| node.created = Some(at(0)),
    ] {
        let mut other = back.clone();
        change(&mut other);
        assert!(!kept.is_of(&other, at(71)), "{other:?}");
    }
    let member = Member {
        node: &back,
        backend: Backend::Node,
        refused: None,
        pods: None,
        pool: None,
        left: None,
        lease: Lease::None,
    };
    let kept_by = Some(KeptBy { policy: &world.policy, kept: &kept });
    let scene = Scene { member, policy: None, survey: None, place: Place::None, braked: None, kept: kept_by };
    let verdict = decide_node(&scene, &world.settings, at(71)).verdict;
    let [put_back @ Step::PutBack { .. }, forget @ Step::ForgetNode { .. }, Step::Mention(_)] =
        verdict.actions()
    else {
        panic!("{verdict:?}")
    };
    let registered = json!({
        "metadata": {"name": "n", "uid": "uid-new", "resourceVersion": "1", "labels": {"team": "web"},
            "annotations": {"rack": "8"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
    });
    let (metadata, spec) = body(put_back, &registered);
    assert_eq!(
        metadata,
        json!({"labels": {"pool": "a"}, "annotations": {"salvor.dev/do-not-repair": "false"}}),
        "only what is missing"
    );
    assert_eq!(spec["taints"].as_array().unwrap().len(), 2, "{spec}");
    assert_eq!(body(forget, &registered).1, json!({"deletedNodes": []}));
}

#[test]
fn a_drain_waits_for_pods_that_run_and_do_not_belong_to_the_node() {
    for (phase, stays, waits) in [
        (PodPhase::Running, None, true),
        (PodPhase::Pending, None, true),
        (PodPhase::Succeeded, None, false),
        (PodPhase::Failed, None, false),
        (PodPhase::Running, Some(Stays::DaemonSet), false),
        (PodPhase::Failed, Some(Stays::Mirror), false),
    ] {
        assert_eq!(PodView { stays, ..pod(phase) }.holds_a_drain(), waits, "{phase} {stays:?}");
    }
}

/// What is saved of a Node with these labels, annotations and keys of taints.
fn kept_of(labels: &Value, annotations: &Value, taints: &[&str]) -> Kept {
    let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    let whole = json!({
        "metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "1", "labels": labels, "annotations": annotations},
        "spec": {"providerID": "fake://n", "taints": taints},
        "status": {"nodeInfo": {"systemUUID": "machine-n"}},
    });
    Kept::of(&whole, &"uid-n".into(), &"1".into(), &["lost".to_owned()], at(60)).unwrap()
}

#[test]
fn what_belongs_to_the_moment_is_not_put_back_on_a_node() {
    let is_kept = |key: &str, stays: [bool; 3]| {
        let one = json!({key: "x"});
        let kept = kept_of(&one, &one, &[key]);
        let found = [!kept.labels.is_empty(), !kept.annotations.is_empty(), !kept.taints.is_empty()];
        assert_eq!(found, stays, "label, annotation and taint {key}");
    };
    for key in ["team", "example.com/team", "notsalvor.dev/team", "salvor.dev", "salvor.dev/do-not-repair"] {
        is_kept(key, [true, true, true]);
    }
    for key in ["salvor.dev/reboot-requested", "repair.salvor.dev/progress"] {
        is_kept(key, [false, false, false]);
    }
    for key in [
        "node.kubernetes.io/unreachable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "lost",
    ] {
        is_kept(key, [true, true, false]);
    }
    for key in ["kubernetes.io/hostname", "beta.kubernetes.io/arch"] {
        is_kept(key, [false, true, true]);
    }
}

#[test]
fn only_the_node_and_version_that_were_judged_are_saved() {
    let whole = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "1"}});
    let of = |uid: &str, version: &str| Kept::of(&whole, &uid.into(), &version.into(), &[], at(60));
    assert!(of("uid-n", "1").is_ok());
    assert!(of("uid-m", "1").is_err() && of("uid-n", "2").is_err() && of("uid-m", "2").is_err());
}

#[test]
fn the_longest_annotations_of_a_node_are_not_saved_if_they_are_too_long() {
    let text = |length: usize| "x".repeat(length);
    let annotations = json!({"a": text(10_000), "b": text(12_000), "c": text(3_000)});
    let kept = kept_of(&json!({"pool": "a"}), &annotations, &[]);
    assert_eq!(kept.annotations.keys().collect::<Vec<_>>(), ["a", "c"]);
    // Labels are what a policy selects by, so they stay.
    let kept = kept_of(&json!({"pool": text(20_000)}), &annotations, &[]);
    assert_eq!((kept.labels.len(), kept.annotations.len()), (1, 0));
}

#[test]
fn a_machine_is_the_same_by_its_name_and_by_its_firmware_or_provider() {
    let kept = kept_of(&json!({}), &json!({}), &[]);
    let node_of = |system_uuid: &str, provider_id: &str| {
        let mut back = node("n");
        (back.node.uid, back.created) = ("uid-new".into(), Some(at(70)));
        (back.system_uuid, back.provider_id) = (system_uuid.into(), provider_id.into());
        back
    };
    let is_of = |kept: &Kept, node: &NodeView| kept.is_of(node, at(71));
    assert!(is_of(&kept, &node_of("machine-n", "fake://other")));
    assert!(is_of(&kept, &node_of("other", "fake://n")));
    assert!(!is_of(&kept, &node_of("other", "fake://other")));
    let unknown = Kept { system_uuid: String::new(), provider_id: String::new(), ..kept.clone() };
    assert!(!is_of(&unknown, &node_of("", "")), "what is not known is not the same");
    // It registered after its Node was deleted, as far as two clocks can tell.
    let registered = |created: Option<Timestamp>| NodeView { created, ..node_of("machine-n", "fake://n") };
    assert!(is_of(&kept, &registered(Some(at(59)))));
    assert!(!is_of(&kept, &registered(Some(at(58)))));
    assert!(!is_of(&kept, &registered(None)));
}

#[test]
fn each_machine_is_saved_once_and_the_oldest_are_dropped() {
    let empty = kept_of(&json!({}), &json!({}), &[]);
    let one = |number: usize, minute: i64| Kept {
        uid: format!("uid-{number}").into(),
        system_uuid: format!("machine-{number}"),
        provider_id: format!("fake://{number}"),
        at: at(minute),
        ..empty.clone()
    };
    let uids = |all: &[Kept]| all.iter().map(|it| it.uid.to_string()).collect::<Vec<_>>();
    let before = [one(1, 1), one(2, 2)];
    assert_eq!(uids(&kept_with(&before, one(3, 3))), ["uid-1", "uid-2", "uid-3"]);
    for again in [
        Kept { uid: "uid-1".into(), ..one(3, 3) },
        Kept { system_uuid: "machine-1".into(), ..one(3, 3) },
        Kept { provider_id: "fake://1".into(), ..one(3, 3) },
    ] {
        assert_eq!(uids(&kept_with(&before, again.clone())), ["uid-2", again.uid.as_str()]);
    }
    // What is not known is not the same.
    let unknown = |number, minute| Kept {
        system_uuid: String::new(),
        provider_id: String::new(),
        ..one(number, minute)
    };
    assert_eq!(kept_with(&[unknown(1, 1)], unknown(2, 2)).len(), 2);
    // After a day a machine counts as another one.
    assert_eq!(uids(&kept_with(&before, one(3, 24 * 60 + 1))), ["uid-2", "uid-3"]);
    let many: Vec<Kept> = (0..32).map(|number| one(number, 40 - number as i64)).collect();
    let all = uids(&kept_with(&many, one(99, 50)));
    assert_eq!((all.len(), all[0].as_str(), all[31].as_str()), (32, "uid-30", "uid-99"));
    // All of them share 128 KiB, and the newest stays whatever its size.
    let long = |number, length| Kept {
        labels: BTreeMap::from([("x".to_owned(), "x".repeat(length))]),
        ..one(number, number as i64)
    };
    let long_ones: Vec<Kept> = (0..8).map(|number| long(number, 16_000)).collect();
    assert_eq!(uids(&kept_with(&long_ones, long(9, 16_000)))[0], "uid-1");
    assert_eq!(uids(&kept_with(&long_ones, long(9, 200_000))), ["uid-9"]);
}

/// The taint of a person who has decided otherwise since stays as it is.
#[test]
fn a_taint_that_is_there_again_is_not_put_back() {
    let kept = kept_of(&json!({}), &json!({}), &["dedicated", "gpu"]);
    let node = node("n");
    let patch = |taints: Value| {
        let read = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "1"}, "spec": {"taints": taints}});
        let patch = kept.patch(&[Some(read)], &node.node, &node.resource_version).unwrap();
        assert!(patch.metadata.is_empty(), "{:?}", patch.metadata);
        patch.content.map(|(_, raw)| serde_json::from_str::<Value>(raw.get()).unwrap())
    };
    let there = json!([{"key": "dedicated", "effect": "NoExecute"}]);
    let spec = patch(there).unwrap();
    let keys: Vec<&str> =
        spec["taints"].as_array().unwrap().iter().filter_map(|it| it["key"].as_str()).collect();
    assert_eq!(keys, ["dedicated", "gpu"]);
    assert_eq!(spec["taints"][0]["effect"], "NoExecute");
    let all = json!([{"key": "gpu", "effect": "NoSchedule"}, {"key": "dedicated", "effect": "NoSchedule"}]);
    assert_eq!(patch(all), None, "nothing is missing");
}

/// After the drain, a ladder continues with its reboot. A ladder that starts with a reboot reaches the drain in the
/// end.
#[test]
fn a_ladder_goes_on_after_the_drain() {
    let ladder = |rungs: Value| {
        let policies = json!([{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m",
            "ladder": rungs}]);
        let mut world = unowned(json!({"policies": policies}));
        world.left = left(1);
        world
    };
    let mut world = ladder(json!([{"action": "Replace"}, {"action": "Reboot", "timeout": "10m"}]));
    cordon(&mut world, at(60));
    assert_eq!(world.deeds(0, at(61)), ["RequestReboot"]);
    let decision = world.judge(0, at(61));
    let Step::RequestReboot { progress, .. } = &decision.verdict.actions()[0] else { panic!() };
    world.nodes[0].0.progress = Some(Box::new(progress.clone()));
    assert_eq!(world.deeds(0, at(70)), NOTHING);
    assert_eq!(world.reason(0, at(71)), "LadderExhausted");
    // The reboot cures it.
    let node = &mut world.nodes[0].0;
    node.conditions[1].status = Status::True;
    node.progress = None;
    let mut told = super::condition("SalvorRepair", Status::True, at(61));
    told.reason = "Rebooting".into();
    node.conditions.push(told);
    let over = world.survey(at(72)).over;
    assert_eq!(over.iter().map(|ended| ended.end).collect::<Vec<_>>(), [End::Rebooted]);

    let mut world = ladder(json!([{"action": "Reboot", "timeout": "10m"}, {"action": "Replace"}]));
    assert_eq!(world.deeds(0, at(60)), ["RequestReboot"]);
    let decision = world.judge(0, at(60));
    let Step::RequestReboot { progress, .. } = &decision.verdict.actions()[0] else { panic!() };
    world.nodes[0].0.progress = Some(Box::new(progress.clone()));
    cordon(&mut world, at(70));
    assert_eq!(world.reason(0, at(71)), "MachineMayRun");
    // A person brings it back: that does not count as Salvor's repair.
    let node = &mut world.nodes[0].0;
    node.conditions[1].status = Status::True;
    node.progress = None;
    let mut told = super::condition("SalvorRepair", Status::False, at(61));
    told.reason = "Blocked".into();
    node.conditions.push(told);
    assert_eq!(world.survey(at(80)).over, []);
}

/// If the Node is gone and its machine was not touched, no repair is reported.
#[test]
fn only_machines_that_were_replaced_or_rebooted_are_told_as_repaired() {
    for (backend, end, repaired) in [(Some(Backend::Node), End::NodeGone, 0), (None, End::Replaced, 1)] {
        let mut world = unowned(json!({}));
        world.nodes[0].1 = backend.unwrap_or_else(|| Backend::Claim(claim(&world.nodes[0].0)));
        world.reserve(at(60));
        world.nodes.remove(0);
        let survey = world.survey(at(61));
        assert_eq!(survey.over[0].end, end);
        world.reserve(at(61));
        assert_eq!(world.policy.status.repaired, repaired, "{end:?}");
        assert_eq!(world.policy.status.repairs, []);
    }
}

#[test]
fn a_node_that_gets_well_takes_pods_again_if_it_was_us_who_kept_them_away() {
    let mut world = gentle();
    cordon(&mut world, at(60));
    world.nodes[0].0.conditions[1].status = Status::True;
    let decision = world.judge(0, at(61));
    let Some(Step::Uncordon { progress: Some(progress), .. }) = decision.verdict.actions().first() else {
        panic!("{:?}", decision.verdict)
    };
    assert_eq!((progress.cordoned, progress.draining_since), (false, None));
    assert!(!drains(&world, at(61)));
    // A cordon by a person stays.
    let mut world = gentle();
    world.nodes[0].0.unschedulable = true;
    world.nodes[0].0.progress = Some(Box::default());
    world.nodes[0].0.conditions[1].status = Status::True;
    world.reserve(at(61));
    let steps = world.judge(0, at(61)).verdict;
    assert!(!steps.actions().iter().any(|step| matches!(step, Step::Uncordon { .. })), "{steps:?}");
}

/// A node counts once against the brake's rates: with the step that ends it.
#[test]
fn preparations_do_not_count_against_the_brakes_rates() {
    let mut world = World::new(policy(), [sick("n", 0)]);
    world.reserve(at(60));
    let first = |world: &World| world.judge(0, at(60)).verdict.actions()[0].clone();
    assert_eq!(first(&world).effect().disrupts, Disrupts::WhatWasBegun);
    world.owner(0).termination = Some(at(60).to_string());
    let ends = first(&world);
    assert_eq!(ends.effect().disrupts, Disrupts::Node { zone: "" });
    let judged = claim(&world.nodes[0].0);
    let guard = Guard::Judged { uid: &judged.object.uid, resource_version: &judged.resource_version };
    assert_eq!(ends.write(&[]).unwrap().guard, guard, "a NodeClaim that has changed since is not deleted");
    // Ending a drain that another writer began counts as the end of a node.
    world.owner(0).termination = Some(at(600).to_string());
    world.owner(0).deleting = Some(at(60));
    assert_eq!(first(&world).effect().disrupts, Disrupts::Node { zone: "" });
    let mut world = gentle();
    world.reserve(at(60));
    assert_eq!(first(&world).effect().disrupts, Disrupts::WhatWasBegun);
}

#[test]
fn the_brakes_hold_is_told_once_and_then_the_brake_is_asked_again() {
    let mut world = World::new(policy(), [sick("n", 0)]);
    world.reserve(at(60));
    world.braked = Some(Held::MaxNodesPerMinute { max_nodes_per_minute: 1, until: at(61) });
    let decision = world.judge(0, at(60));
    let Some(Step::Report { condition: Some(condition), progress: Some(progress), .. }) =
        decision.verdict.actions().first()
    else {
        panic!("{:?}", decision.verdict)
    };
    assert_eq!((condition.reason, condition.holds), ("Blocked", false));
    assert!(condition.message.contains("MaxNodesPerMinute"), "{}", condition.message);
    assert!(condition.message.contains(&at(61).to_string()), "{}", condition.message);
    assert!(decision.verdict.actions().iter().any(|step| matches!(step, Step::Mention(_))));
    let node = &mut world.nodes[0].0;
    node.progress = Some(Box::new(progress.clone()));
    let mut told = super::condition("SalvorRepair", Status::False, at(60));
    told.reason = "Blocked".into();
    node.conditions.push(told);
    assert_eq!(world.deeds(0, at(60)), TIGHTEN, "it is asked again");
    // The brake's block has expired.
    world.nodes[0].0.progress = None;
    assert_eq!(world.deeds(0, at(61)), TIGHTEN);
}

fn forsaken(world: &World) -> Verdict<NodeWhy, Step> {
    let scene = Scene {
        member: world.member(0),
        policy: None,
        survey: None,
        place: Place::None,
        braked: None,
        kept: None,
    };
    decide_node(&scene, &world.settings, at(60)).verdict
}

#[test]
fn nothing_of_ours_stays_on_a_node_that_no_policy_selects() {
    let mut world = World::new(policy(), [sick("n", 0)]);
    assert_eq!(forsaken(&world), Verdict::Ignore(NodeWhy::NotSelected));
    // A termination time from another writer stays.
    world.owner(0).termination = Some(at(60).to_string());
    assert_eq!(forsaken(&world), Verdict::Ignore(NodeWhy::NotSelected));
    let told = |kind: &str, reason: &str| {
        let mut told = super::condition(kind, Status::True, at(60));
        told.reason = reason.into();
        told
    };
    let node = &mut world.nodes[0].0;
    node.conditions.extend([told("SalvorRepair", "Rebooting"), told("NodeReboot", "RebootRequested")]);
    node.progress = Some(Box::new(Progress { cordoned: true, ..Progress::default() }));
    node.unschedulable = true;
    // Salvor's termination time is reset to the value before it.
    assert!(matches!(forsaken(&world).actions(), [Step::Uncordon { .. }]), "somebody else's is left");
    world.owner(0).termination_before = Some("2030-01-01T00:00:00Z".to_owned());
    let verdict = forsaken(&world);
    let [Step::TakeBackTermination { before, .. }] = verdict.actions() else { panic!("{verdict:?}") };
    assert_eq!(before, "2030-01-01T00:00:00Z");
    world.owner(0).termination_before = Some("soon".to_owned());
    let verdict = forsaken(&world);
    assert!(
        matches!(verdict.actions(), [Step::TakeBackTermination { before, .. }] if before.is_empty()),
        "what is no time is not written back: {verdict:?}"
    );
    world.owner(0).termination_before = None;
    assert!(matches!(forsaken(&world).actions(), [Step::Uncordon { progress: Some(_), .. }]));
    world.nodes[0].0.unschedulable = false;
    let verdict = forsaken(&world);
    let [Step::Forget { conditions, rebooting: true, .. }] = verdict.actions() else { panic!("{verdict:?}") };
    assert_eq!(*conditions, ["SalvorRepair", "NodeReboot"]);
    // Another writer's condition of that type stays.
    let node = &mut world.nodes[0].0;
    node.progress = None;
    marks(node).damage = Some("garbage".into());
    node.conditions.retain(|condition| &*condition.kind != "SalvorRepair");
    node.conditions.last_mut().unwrap().reason = "Kured".into();
    let verdict = forsaken(&world);
    let [Step::Forget { conditions, rebooting: false, .. }] = verdict.actions() else {
        panic!("{verdict:?}")
    };
    assert!(conditions.is_empty(), "garbage in our annotation goes too");
}
