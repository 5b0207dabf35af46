//! Whose machine a node has, and what the live look right before a write finds.

use salvor_recovery::gate::Copies;

use super::*;
use crate::{
    client::recent_reads::ReadAge,
    engine::recovery::{Known, LiveRecheck as _},
    testing::fake_api::{Answer, FakeApi},
};

const NODE: &str = "/api/v1/nodes/n0000";
const CLAIM: &str = "/apis/karpenter.sh/v1/nodeclaims/n0000";
const MACHINE: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns/machines/m";
const POLICY: &str = "/apis/salvor.dev/v1alpha1/noderepairpolicies/gpu";
const PODS: &str = "/api/v1/pods";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n0000";
const JOB: &str = "/apis/batch/v1/namespaces/default/jobs/work";
const POD: &str = "/api/v1/namespaces/default/pods/work";

type Objects = BTreeMap<&'static str, Value>;
type Edit = fn(&mut Objects);

/// The repair of n0000 as its policy has it written down.
fn turn() -> Value {
    json!({"repairs": [{"node": "n0000", "uid": "uid-n0000", "since": at(300)}]})
}

/// What was seen of a sick node that has its turn, and what the API server has of it.
struct Stage {
    bench: Bench,
    objects: Objects,
}

impl Stage {
    /// Karpenter made the node.
    fn claimed() -> Self {
        Self::new(json!({"budgets": [{"nodes": 2}]}))
    }

    fn new(spec: Value) -> Self {
        let bench = Bench::new(4, 1, vec![policy("gpu", -10, 7, spec.clone(), turn())]);
        let objects = BTreeMap::from([
            (NODE, node("n0000", 10, true)),
            (CLAIM, claim_object("n0000", "fake://n0000", &json!({}))),
            (POLICY, policy_object("gpu", -10, 7, spec, turn())),
        ]);
        Self { bench, objects }
    }

    /// The same node, which Karpenter did not make.
    fn without_claims(spec: Value, node: Value) -> Self {
        let mut stage = Self::new(spec);
        stage.bench.on_change(News::Claim(OfKind::Lost(KindLost::NotServed)));
        let view = stage.bench.view(&node);
        stage.bench.on_change(News::Node(Change::Applied(view)));
        stage.objects.remove(CLAIM);
        stage.objects.insert(NODE, node);
        stage
    }

    /// Cluster API made the node.
    fn of_machine() -> Self {
        let mut of_machine = node("n0000", 11, true);
        of_machine["metadata"]["annotations"] = machine_of_node();
        let mut stage = Self::without_claims(json!({}), of_machine);
        stage.bench.on_change(News::Machine(0, OfKind::Change(reset(Vec::new()))));
        stage.on_machine("n0000", 5);
        stage.objects.insert(MACHINE, machine("n0000", 5));
        stage
    }

    fn on_machine(&mut self, node: &str, revision: u64) {
        let wire = serde_json::from_value(machine(node, revision)).unwrap();
        let machine = Reader::default().machine(wire, "v1beta2");
        self.bench.on_change(News::Machine(0, OfKind::Change(Change::Applied(machine))));
    }

    /// Nothing owns the node, which is cordoned; when it is empty, it is deleted.
    fn unowned() -> Self {
        let mut cordoned = node("n0000", 11, true);
        cordoned["spec"]["unschedulable"] = true.into();
        let progress = json!({"cordoned": true, "drainingSince": at(395)}).to_string();
        cordoned["metadata"]["annotations"] = json!({"repair.salvor.dev/progress": progress});
        let mut stage = Self::without_claims(json!({"unownedNodes": "DeleteNode"}), cordoned);
        stage.objects.insert(PODS, listed(&json!([])));
        stage
    }

    /// What the look finds, after the objects have changed.
    async fn finds(&self, subject: &Subject, change: Edit) -> Option<String> {
        let mut objects = self.objects.clone();
        change(&mut objects);
        let api = FakeApi::new(move |asked| match objects.get(asked.path.as_str()) {
            Some(object) => Answer::Json(200, object.clone()),
            None => Answer::Refused(404, "not found"),
        });
        let recheck = self.bench.repairs.recheck(subject, at(400));
        let found = recheck.ask(&api.client, Known::Nothing, at(400), &mut ReadAge::default()).await.unwrap();
        found.map(|decision| {
            let first = decision.verdict.actions().first().map(salvor_recovery::Step::name);
            let touched = first.filter(|name| *name != "ReportRepair");
            [Some(decision.report().reason), touched].into_iter().flatten().collect::<Vec<_>>().join(" ")
        })
    }

    async fn check(&self, subject: &Subject, cases: &[(&str, Edit, Option<&str>)]) {
        for (case, change, expected) in cases {
            assert_eq!(self.finds(subject, *change).await.as_deref(), *expected, "{case}");
        }
    }
}

fn machine_of_node() -> Value {
    json!({"cluster.x-k8s.io/cluster-namespace": "ns", "cluster.x-k8s.io/machine": "m"})
}

fn machine(node: &str, revision: u64) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "m", "uid": "machine-m", "resourceVersion": revision.to_string()},
        "status": {"nodeRef": {"name": node}},
    })
}

fn listed(pods: &Value) -> Value {
    json!({"metadata": {"resourceVersion": "20"}, "items": pods})
}

fn pod(uid: &str) -> Value {
    json!({
        "metadata": {
            "name": "work", "namespace": "default", "uid": uid, "resourceVersion": "20",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "work", "uid": "set", "controller": true},
            ],
        },
        "status": {"phase": "Running"},
    })
}

fn job(replacement: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": "work", "uid": "job", "resourceVersion": "20"},
        "spec": {"podReplacementPolicy": replacement},
    })
}

fn lease(renewed: i64) -> Value {
    json!({
        "metadata": {"name": "n0000", "uid": "lease", "resourceVersion": "20"},
        "spec": {"renewTime": at(renewed), "leaseDurationSeconds": 40},
    })
}

fn sick_node() -> Subject {
    Subject::Node("n0000".into())
}

/// After a rename two Nodes have one providerID, and the NodeClaim is that of the one which it names.
#[test]
fn a_nodeclaim_of_another_node_is_not_taken_for_its_own() {
    let mut bench = Stage::claimed().bench;
    for (named, revision, reason) in [("n0001", "6", "NoBackend"), ("n0000", "7", "Sick"), ("", "8", "Sick")]
    {
        let mut claim = claim("n0000", "fake://n0000");
        (claim.node, claim.resource_version) = (named.into(), revision.into());
        bench.on_change(News::Claim(OfKind::Change(Change::Applied(claim))));
        assert_eq!(bench.reason("n0000", 400), reason, "{named:?}");
    }
}

#[test]
fn a_machine_of_another_node_is_not_taken_for_its_own() {
    let mut stage = Stage::of_machine();
    assert_eq!(stage.bench.reason("n0000", 400), "Sick");
    for (node, revision, reason) in [("n0001", 6, "NoBackend"), ("", 7, "NoBackend"), ("n0000", 8, "Sick")] {
        stage.on_machine(node, revision);
        assert_eq!(stage.bench.reason("n0000", 400), reason, "{node:?}");
    }
}

#[tokio::test]
async fn the_look_ends_only_the_nodeclaim_of_the_node_that_was_judged() {
    let repaired = Some("Sick TightenTermination");
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("as it was judged", |_| {}, repaired),
        ("the node is gone", |it| drop(it.remove(NODE)), None),
        ("another node of its name", |it| it.get_mut(NODE).unwrap()["metadata"]["uid"] = json!("new"), None),
        ("no NodeClaim", |it| drop(it.remove(CLAIM)), Some("NoBackend")),
        (
            "another NodeClaim of its name",
            |it| it.get_mut(CLAIM).unwrap()["metadata"]["uid"] = json!("new"),
            Some("NoBackend"),
        ),
        (
            "a NodeClaim with another machine",
            |it| it.get_mut(CLAIM).unwrap()["status"]["providerID"] = json!("fake://other"),
            Some("NoBackend"),
        ),
        (
            "a NodeClaim of another node",
            |it| it.get_mut(CLAIM).unwrap()["status"]["nodeName"] = json!("n0001"),
            Some("NoBackend"),
        ),
        (
            "a NodeClaim that names the node",
            |it| it.get_mut(CLAIM).unwrap()["status"]["nodeName"] = json!("n0000"),
            repaired,
        ),
    ];
    Stage::claimed().check(&sick_node(), cases).await;
}

#[tokio::test]
async fn the_look_asks_the_policy_once_more() {
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("it is gone", |it| drop(it.remove(POLICY)), Some("NotSelected")),
        (
            "another of its name",
            |it| it.get_mut(POLICY).unwrap()["metadata"]["uid"] = json!("new"),
            Some("NotSelected"),
        ),
        (
            "it selects other nodes",
            |it| {
                it.get_mut(POLICY).unwrap()["spec"]["nodeSelector"]["matchLabels"]["karpenter.sh/nodepool"] =
                    json!("cpu");
            },
            Some("NotSelected"),
        ),
        (
            "it is not the node's turn any more",
            |it| it.get_mut(POLICY).unwrap()["status"] = json!({}),
            Some("NotReserved"),
        ),
        (
            "the node has another label",
            |it| it.get_mut(NODE).unwrap()["metadata"]["labels"] = json!({"karpenter.sh/nodepool": "cpu"}),
            Some("NotSelected"),
        ),
    ];
    Stage::claimed().check(&sick_node(), cases).await;
}

#[tokio::test]
async fn the_look_ends_only_the_machine_of_the_node_that_was_judged() {
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("as it was judged", |_| {}, Some("Sick RemediateMachine")),
        ("it is gone", |it| drop(it.remove(MACHINE)), Some("NoBackend")),
        (
            "another Machine of its name",
            |it| it.get_mut(MACHINE).unwrap()["metadata"]["uid"] = json!("new"),
            Some("NoBackend"),
        ),
        (
            "it has another node by now",
            |it| it.get_mut(MACHINE).unwrap()["status"]["nodeRef"]["name"] = json!("n0001"),
            Some("NoBackend"),
        ),
        (
            "it has no node any more",
            |it| it.get_mut(MACHINE).unwrap()["status"] = json!({}),
            Some("NoBackend"),
        ),
    ];
    Stage::of_machine().check(&sick_node(), cases).await;
}

/// The watch of its pods may be behind: a pod that must not run twice may have come meanwhile.
#[tokio::test]
async fn the_look_deletes_a_node_only_if_nothing_owns_it_and_it_is_empty() {
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("as it was judged", |_| {}, Some("Sick KeepNodeMetadata")),
        (
            "a pod is left",
            |it| drop(it.insert(PODS, listed(&json!([pod("uid-work")])))),
            Some("RepairUnderWay"),
        ),
        (
            "it has another machine by now",
            |it| it.get_mut(NODE).unwrap()["spec"]["providerID"] = json!("fake://other"),
            Some("NoBackend"),
        ),
        (
            "it is a node of Cluster API by now",
            |it| {
                let annotations = &mut it.get_mut(NODE).unwrap()["metadata"]["annotations"];
                for (key, value) in machine_of_node().as_object().unwrap() {
                    annotations[key] = value.clone();
                }
            },
            Some("NoBackend"),
        ),
        (
            "a person lets pods onto it again",
            |it| it.get_mut(NODE).unwrap()["spec"]["unschedulable"] = json!(false),
            Some("Sick CordonNode"),
        ),
    ];
    Stage::unowned().check(&sick_node(), cases).await;
}

/// The Job allowed a second copy when it was read first.
#[tokio::test]
async fn the_look_reads_the_job_of_a_pod_that_is_left_once_more() {
    let mut stage = Stage::unowned();
    stage.bench.repairs.watches();
    let mut of_job = pod("uid-work");
    of_job["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": "job", "controller": true}]);
    let view = Reader::default().pod(serde_json::from_value(of_job.clone()).unwrap());
    let key = (NodeName::from("n0000"), 1, view.pod.uid.clone());
    stage.bench.on_change(News::Pod { node: "n0000".into(), number: 1, change: reset(vec![view]) });
    stage.bench.on_change(News::Work { pod: key.clone(), copies: Copies::Allowed });
    assert!(stage.bench.repairs.works.now().contains_key(&key), "the Job is read again and again");
    stage.objects.insert(PODS, listed(&json!([of_job])));
    stage.objects.insert(JOB, job("TerminatingOrFailed"));
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("as it was judged", |_| {}, Some("Sick KeepNodeMetadata")),
        ("the Job is gone", |it| drop(it.remove(JOB)), Some("Sick KeepNodeMetadata")),
        (
            "it awaits the end of its pods by now",
            |it| drop(it.insert(JOB, job("Failed"))),
            Some("RepairUnderWay"),
        ),
    ];
    stage.check(&sick_node(), cases).await;
    stage.bench.on_change(News::Work { pod: key.clone(), copies: Copies::Forbidden("it waits".into()) });
    assert!(!stage.bench.repairs.works.now().contains_key(&key), "what is forbidden stays so");
}

/// A person says that the machine is off, and its kubelet renews its Lease.
#[tokio::test]
async fn the_look_believes_no_statement_about_a_machine_whose_kubelet_is_heard_of() {
    let mut stage = Stage::unowned();
    let mut off = stage.objects[NODE].clone();
    off["metadata"]["resourceVersion"] = json!("12");
    off["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    let conditions = off["status"]["conditions"].as_array_mut().unwrap();
    conditions.retain(|it| it["type"] != "Ready");
    conditions.push(json!({"type": "Ready", "status": "Unknown"}));
    let view = stage.bench.view(&off);
    stage.bench.on_change(News::Node(Change::Applied(view)));
    stage.bench.repairs.watches();
    assert!(stage.bench.repairs.leases.now().contains(&NodeName::from("n0000")), "its Lease is wanted");
    stage.objects.insert(NODE, off);
    stage.objects.insert(PODS, listed(&json!([pod("uid-work")])));
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("no Lease and no heartbeat", |_| {}, Some("Sick KeepNodeMetadata")),
        ("an old Lease", |it| drop(it.insert(LEASE, lease(300))), Some("Sick KeepNodeMetadata")),
        ("a renewed Lease", |it| drop(it.insert(LEASE, lease(390))), Some("RepairUnderWay")),
        (
            "no Lease, and a new heartbeat",
            |it| {
                let conditions = &mut it.get_mut(NODE).unwrap()["status"]["conditions"];
                let ready = conditions.as_array_mut().unwrap().iter_mut().find(|it| it["type"] == "Ready");
                ready.unwrap()["lastHeartbeatTime"] = json!(at(390));
            },
            Some("RepairUnderWay"),
        ),
    ];
    for (case, change, expected) in cases {
        // Each case is an incident of its own.
        stage.bench.repairs.heartbeats.forget(&"n0000".into());
        assert_eq!(stage.finds(&sick_node(), *change).await.as_deref(), *expected, "{case}");
    }
}

#[tokio::test]
async fn the_look_evicts_no_pod_from_a_node_that_is_not_drained_any_more() {
    let mut stage = Stage::unowned();
    stage.bench.repairs.watches();
    let view = Reader::default().pod(serde_json::from_value(pod("uid-work")).unwrap());
    let subject = Subject::Pod(Box::new(PodSubject { node: "n0000".into(), pod: view.pod.clone() }));
    stage.bench.on_change(News::Pod { node: "n0000".into(), number: 1, change: reset(vec![view]) });
    stage.objects.insert(POD, pod("uid-work"));
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("as it was judged", |_| {}, Some("Drained EvictPodFromSickNode")),
        ("the node is gone", |it| drop(it.remove(NODE)), Some("NotDrained")),
        (
            "another node of its name",
            |it| it.get_mut(NODE).unwrap()["metadata"]["uid"] = json!("new"),
            Some("NotDrained"),
        ),
        ("another pod of its name", |it| drop(it.insert(POD, pod("new"))), None),
    ];
    stage.check(&subject, cases).await;
}

/// Its Node and NodeClaim were gone by the watches.
#[tokio::test]
async fn the_look_frees_a_pod_only_if_its_node_and_its_machine_are_gone() {
    let mut bench = over(true);
    bench.repairs.watches();
    let (subject, view) = pod_on("n0000");
    bench.on_change(News::Pod { node: "n0000".into(), number: 1, change: reset(vec![view]) });
    let stage = Stage { bench, objects: BTreeMap::from([(POD, pod("uid-work"))]) };
    let cases: &[(&str, Edit, Option<&str>)] = &[
        ("as it was judged", |_| {}, Some("Orphaned FailOrphanedPod")),
        ("a node has its name", |it| drop(it.insert(NODE, node("n0000", 30, false))), Some("NodeIsThere")),
        (
            "its NodeClaim is there",
            |it| drop(it.insert(CLAIM, claim_object("n0000", "fake://n0000", &json!({})))),
            Some("MachineMayRun"),
        ),
        (
            "another NodeClaim has its name",
            |it| drop(it.insert(CLAIM, claim_object("n0000", "fake://n0000", &json!({"uid": "new"})))),
            Some("Orphaned FailOrphanedPod"),
        ),
        ("the pod is gone", |it| drop(it.remove(POD)), None),
        ("another pod of its name", |it| drop(it.insert(POD, pod("new"))), None),
    ];
    stage.check(&subject, cases).await;
}
