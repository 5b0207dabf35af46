//! The pods of nodes under repair: released when node and machine are gone, and evicted one by one from a node without
//! an owner.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Recorder, Salvor, Site, on_both, recorder::ChangeKind, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::{NodeRepairPolicy, node_condition};
use crate::stage::{Stage, start};

/// With the eviction recovery, which releases pods.
const FREES: &str = "controllers: [repair, eviction]\n\
     brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}\n";

struct Work {
    pods: Api<Pod>,
    budgets: Api<PodDisruptionBudget>,
}

impl Work {
    async fn new(stage: &Stage) -> Self {
        let namespace = stage.namespace().await;
        Self {
            pods: Api::namespaced(stage.client.clone(), &namespace),
            budgets: Api::namespaced(stage.client.clone(), &namespace),
        }
    }

    /// A running pod on a node, with additional metadata. No kubelet acts on it.
    async fn runs(&self, name: &str, node: &str, more: Value) -> Pod {
        self.runs_with_grace(name, node, more, 0).await
    }

    /// The same with a grace period, which only a kubelet or a forced deletion can end.
    async fn runs_with_grace(&self, name: &str, node: &str, more: Value, grace: i64) -> Pod {
        let mut metadata = json!({"name": name, "labels": {"app": name}});
        for (key, value) in more.as_object().unwrap() {
            metadata[key] = value.clone();
        }
        let pod = json!({
            "metadata": metadata,
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": grace, "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "work"}],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap();
        let ready = json!({"type": "Ready", "status": "True"});
        let patch = Patch::Strategic(json!({"status": {"phase": "Running", "conditions": [ready]}}));
        self.pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap()
    }

    /// A PodDisruptionBudget for the pods of this name that allows this many disruptions. No controller updates it.
    async fn budget(&self, name: &str, allowed: i32) {
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
        });
        let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
        self.budgets.create(&PostParams::default(), &budget).await.unwrap();
        self.allow(name, allowed).await;
    }

    async fn allow(&self, name: &str, allowed: i32) {
        let status = json!({
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1 - allowed,
            "expectedPods": 1,
        });
        let patch = Patch::Merge(json!({ "status": status }));
        self.budgets.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Checks that these pods are not touched while `until` runs.
    async fn stay<T>(&self, names: &[&str], until: impl Future<Output = T>) -> T {
        let before = self.pods.list(&ListParams::default()).await.unwrap().items;
        let touched = |pod: &Pod| {
            let name = pod.name_any();
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            names.contains(&name.as_str())
                && (pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed"))
        };
        let forbidden = format!("one of {names:?} is touched");
        let outcome = wait::never(&self.pods, &ListParams::default(), &forbidden, touched, until).await;
        for name in names {
            let uid = before.iter().find(|pod| pod.name_any() == *name).and_then(ResourceExt::uid);
            let now = self.pods.get_opt(name).await.unwrap().and_then(|pod| pod.uid());
            assert_eq!(now, uid, "{name} is there");
        }
        outcome
    }
}

fn attended(stage: &Stage) -> Salvor {
    start(&stage.admin(), FREES, &[])
}

/// Nothing else releases pods here: there is no Pod GC.
async fn the_pods_of_a_replaced_machine_are_freed(site: Site) {
    let stage = Stage::unattended(site, "freed", Manner::Replaces).await;
    let nodes = stage.healthy(2).await;
    let work = Work::new(&stage).await;
    work.runs("plain", &nodes[0], json!({})).await;
    let of_set = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "0", "controller": true,
    }]);
    work.runs("db-0", &nodes[0], json!({"ownerReferences": of_set})).await;
    work.runs("held", &nodes[0], json!({"finalizers": ["example.com/held"]})).await;
    work.runs("elsewhere", &nodes[1], json!({})).await;
    let record: Recorder<Pod> = Recorder::start(&work.pods, &ListParams::default()).await;
    let _salvor = attended(&stage);
    stage.policy("30m", json!({})).await;
    work.stay(&["elsewhere"], async {
        stage.sicken(&nodes[0]).await;
        stage.is_gone(&nodes[0]).await;
        wait::for_absence(&work.pods, "plain").await;
        wait::for_absence(&work.pods, "db-0").await;
        let is_freed = |pod: &Pod| {
            let status = serde_json::to_value(&pod.status).unwrap();
            let told = crate::custom::condition(&status, "DisruptionTarget");
            status["phase"] == "Failed"
                && pod.metadata.deletion_timestamp.is_some()
                && told.is_some_and(|told| told.reason == "NodeReplacedBySalvor")
        };
        wait::for_object(&work.pods, "held", "its owner may have it", is_freed).await;
    })
    .await;
    // Each was marked before it was deleted, so that a Job counts it.
    let changes = record.changes().await;
    for name in ["plain", "db-0"] {
        let end = changes.iter().find(|it| it.name == name && it.kind == ChangeKind::Deleted).unwrap();
        assert_eq!(end.object["status"]["phase"], "Failed", "{name}");
    }
    stage.event("Pod", "plain", "NodeReplacedBySalvor").await;
}

/// At most once: while the NodeClaim exists, its machine may run, and nothing is forced. The same applies if a node
/// with that name exists again.
async fn a_machine_that_may_run_keeps_its_pods(site: Site) {
    let stage = Stage::unattended(site, "mayrun", Manner::Ends).await;
    let nodes = stage.healthy(3).await;
    let work = Work::new(&stage).await;
    work.runs("works", &nodes[0], json!({})).await;
    work.runs("works-too", &nodes[1], json!({})).await;
    work.runs("canary", &nodes[2], json!({})).await;
    stage.karpenter.hang();
    let _salvor = attended(&stage);
    stage.policy("30m", json!({})).await;
    work.stay(&["works", "works-too"], async {
        for node in &nodes[..2] {
            stage.sicken(node).await;
            stage.is_terminated(node).await;
            // Its Node goes first, as when Karpenter terminates it.
            stage.nodes.delete(node, &DeleteParams::default()).await.unwrap();
        }
        // A machine with the same name registers, and its kubelet takes the pods that are bound to it.
        let mut again = stage.launch("n0");
        again.has_claim = false;
        again.provider_id = "kwok://another".to_owned();
        stage.make(again).await;
        let other = stage.launch("other");
        stage.make(other).await;
        // Only the first of the NodeClaims is deleted. The second hangs.
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let claim = crate::stage::claim_name(&nodes[0]);
        stage.claims.patch(&claim, &PatchParams::default(), &patch).await.unwrap();
        wait::for_absence(&stage.claims, &claim).await;
        // Meanwhile, the pods of another node are released.
        stage.sicken(&nodes[2]).await;
        stage.is_terminated(&nodes[2]).await;
        stage.nodes.delete(&nodes[2], &DeleteParams::default()).await.unwrap();
        let claim = crate::stage::claim_name(&nodes[2]);
        stage.claims.patch(&claim, &PatchParams::default(), &patch).await.unwrap();
        wait::for_absence(&work.pods, "canary").await;
    })
    .await;
    stage.karpenter.go_on();
    wait::for_absence(&work.pods, "works-too").await;
}

/// Without the eviction recovery nothing is released. Neither are pods of a node without an owner, whose machine may
/// run.
async fn pods_are_left_to_pod_gc_without_proof(site: Site) {
    let stage = Stage::new(site, "left").await;
    let nodes = stage.healthy(2).await;
    let work = Work::new(&stage).await;
    work.runs("works", &nodes[0], json!({})).await;
    stage.policy("30m", json!({})).await;
    work.stay(&["works"], async {
        for node in &nodes {
            stage.sicken(node).await;
            stage.is_gone(node).await;
        }
        stage.has_nodes(2).await;
    })
    .await;
}

/// A node without an owner, with a policy.
async fn unowned(stage: &Stage, more: Value) -> String {
    let mut one = stage.launch("plain");
    (one.of_pool, one.has_claim) = (false, false);
    one.provider_id = String::new();
    let node = stage.make(one).await;
    stage.policy("30m", more).await;
    node
}

fn gentle(grace: &str) -> Value {
    json!({"termination": "Graceful", "gracePeriod": grace})
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

fn owned_by(kind: &str) -> Value {
    json!({"ownerReferences": [{
        "apiVersion": "apps/v1", "kind": kind, "name": "db", "uid": "0", "controller": true,
    }]})
}

/// Checks that a node is not deleted while `until` runs.
async fn remains<T>(stage: &Stage, node: &str, until: impl Future<Output = T>) -> T {
    let uid = stage.nodes.get(node).await.unwrap().uid();
    let goes = |it: &Node| it.name_any() == node && it.metadata.deletion_timestamp.is_some();
    let outcome = wait::never(&stage.nodes, &ListParams::default(), "the Node is deleted", goes, until).await;
    assert_eq!(stage.nodes.get(node).await.unwrap().uid(), uid, "the Node is there");
    outcome
}

/// Pods are evicted as their budgets allow. Pods of DaemonSets and static pods stay. After the others are gone, long
/// before the deadline, the node is blocked: nothing replaces its machine, so no repair is reported.
async fn a_node_that_nothing_owns_is_drained(site: Site) {
    let stage = Stage::new(site, "drain").await;
    let work = Work::new(&stage).await;
    let node = unowned(&stage, gentle("1h")).await;
    work.runs("agent", &node, owned_by("DaemonSet")).await;
    work.runs("static", &node, json!({"annotations": {"kubernetes.io/config.mirror": "x"}})).await;
    work.runs("free", &node, json!({})).await;
    work.runs("guarded", &node, json!({})).await;
    work.budget("guarded", 0).await;
    // Futures of nested waits are too large for the stack of a test thread.
    let drained = work.stay(&["agent", "static"], async {
        Box::pin(work.stay(&["guarded"], async {
            stage.sicken(&node).await;
            wait::for_object(&stage.nodes, &node, "it is cordoned", is_cordoned).await;
            wait::for_absence(&work.pods, "free").await;
            stage.says(&node, "Repairing").await;
        }))
        .await;
        work.allow("guarded", 1).await;
        wait::for_absence(&work.pods, "guarded").await;
        let told = stage.is_blocked_by(&node, "MachineMayRun").await;
        assert!(told.message.contains("no pod is left"), "{}", told.message);
        stage.event("Node", &node, "NodeDrained").await;
    });
    remains(&stage, &node, Box::pin(drained)).await;
    let counts = |policy: &NodeRepairPolicy| policy.status["blocked"] == 1;
    let policy = wait::for_object(&stage.policies, &stage.pool, "it counts as blocked", counts).await;
    assert_eq!(policy.status["repaired"], 0, "no machine was repaired");
}

/// A partitioned machine runs `db-0`. Whatever the termination, and whether or not a PodDisruptionBudget refuses the
/// eviction, the pod is never forced, the Node stays, and both report what they wait for.
async fn work_of_a_machine_that_nothing_owns_is_never_forced(site: Site) {
    for (name, more, is_guarded, grace) in [
        ("forceful", json!({}), false, 30),
        ("forcefulpdb", json!({}), true, 30),
        // Its own spec sets no grace period, which on a silent node would be a forced deletion.
        ("graceful", gentle("3s"), false, 0),
        ("gracefulpdb", gentle("3s"), true, 0),
    ] {
        let stage = Stage::new(site, name).await;
        let work = Work::new(&stage).await;
        let node = unowned(&stage, more).await;
        // Its kubelet does not answer, so a pod whose deletion is requested stays.
        work.runs_with_grace("db-0", &node, owned_by("StatefulSet"), grace).await;
        if is_guarded {
            work.budget("db-0", 0).await;
        }
        let is_freed = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Failed") || pod.metadata.deletion_grace_period_seconds == Some(0)
        };
        let held = async {
            stage.sicken(&node).await;
            let told = stage.is_blocked_by(&node, "MachineMayRun").await;
            for said in [&*node, "db-0", "kubectl delete node", "node.kubernetes.io/out-of-service"] {
                assert!(told.message.contains(said), "{said} is not in {}", told.message);
            }
            let explained = stage.explain_as("text", &node).await;
            for said in ["MachineMayRun", "db-0", "kubectl delete node"] {
                assert!(explained.contains(said), "{said} is not in {explained}");
            }
            stage.event("Node", &node, "NodeRepairBlocked").await;
            // Another node of the policy is still handled.
            let mut other = stage.launch("other");
            (other.of_pool, other.has_claim) = (false, false);
            other.provider_id = String::new();
            let other = stage.make(other).await;
            stage.sicken(&other).await;
            stage.is_blocked_by(&other, "MachineMayRun").await;
        };
        let all = ListParams::default();
        let kept = wait::never(&work.pods, &all, "db-0 is freed", is_freed, Box::pin(held));
        remains(&stage, &node, Box::pin(kept)).await;
        work.pods.get("db-0").await.unwrap();
    }
}

/// With `unownedNodes: DeleteNode` the Node is deleted if no pod is left that must not run twice, or if a person
/// confirms that the machine is off. When the machine registers again, its Node gets back what it had.
async fn a_node_that_nothing_owns_may_be_deleted(site: Site) {
    let stage = Stage::new(site, "deletes").await;
    let work = Work::new(&stage).await;
    let node = unowned(&stage, json!({"unownedNodes": "DeleteNode"})).await;
    let patch = json!({
        "metadata": {"labels": {"team": "ml"}, "annotations": {"example.com/rack": "7"}},
        "spec": {"taints": [{"key": "example.com/dedicated", "value": "ml", "effect": "NoSchedule"}]},
    });
    stage.nodes.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let machine = Patch::Merge(json!({"status": {"nodeInfo": {"systemUUID": stage.pool}}}));
    stage.nodes.patch_status(&node, &PatchParams::default(), &machine).await.unwrap();
    work.runs_with_grace("twice", &node, json!({}), 30).await;
    work.runs_with_grace("db-0", &node, owned_by("StatefulSet"), 30).await;
    let held = async {
        stage.sicken(&node).await;
        let told = stage.is_blocked_by(&node, "MachineMayRun").await;
        assert!(told.message.contains("StatefulSet.apps"), "{}", told.message);
    };
    remains(&stage, &node, Box::pin(held)).await;
    // A person confirms that the machine is off. This counts unless its kubelet shows a sign of life.
    let renewed = Timestamp::now();
    stage.lease(&node, renewed, 3600).await;
    stage.set(&node, "Ready", "Unknown", std::time::Duration::ZERO).await;
    let before = stage.nodes.get(&node).await.unwrap();
    let mut taints = serde_json::to_value(before.spec.unwrap().taints).unwrap();
    let off =
        json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
    taints.as_array_mut().unwrap().push(off);
    let off = Patch::Merge(json!({"spec": {"taints": taints}}));
    stage.nodes.patch(&node, &PatchParams::default(), &off).await.unwrap();
    // Its kubelet renews its Lease, so it is heard of although it is not Ready.
    let heard = async {
        let is_told = |it: &Node| {
            let told = node_condition(it, "SalvorRepair").map(|it| it.message).unwrap_or_default();
            told.contains("does not count while its kubelet may be heard of: Lease renewed at")
        };
        wait::for_object(&stage.nodes, &node, "the statement does not count", is_told).await;
    };
    remains(&stage, &node, Box::pin(heard)).await;
    // It falls silent: what was renewed last does not count any more.
    stage.lease(&node, renewed, 1).await;
    wait::for_absence(&stage.nodes, &node).await;
    stage.event("Node", &node, "NodeDeleted").await;
    let is_over = |policy: &NodeRepairPolicy| policy.status["repairing"] == 0;
    let policy = wait::for_object(&stage.policies, &stage.pool, "the repair is over", is_over).await;
    assert_eq!(policy.status["repaired"], 0, "no machine was repaired");

    // The machine is back, and its kubelet knows nothing of this.
    let back = json!({"metadata": {"name": node, "labels": {"team": "web"}}});
    let back: Node = serde_json::from_value(back).unwrap();
    stage.nodes.create(&PostParams::default(), &back).await.unwrap();
    stage.nodes.patch_status(&node, &PatchParams::default(), &machine).await.unwrap();
    let has_all = |node: &Node| {
        let label = node.labels().get(crate::karpenter::MEMBER).is_some();
        let annotation = node.annotations().get("example.com/rack").map(String::as_str) == Some("7");
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        label && annotation && taints.iter().any(|taint| taint.key == "example.com/dedicated")
    };
    let node = wait::for_object(&stage.nodes, &node, "it has what stood on it", has_all).await;
    assert_eq!(node.labels()["team"], "web", "what is there is left");
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    assert!(!taints.iter().any(|taint| taint.key.starts_with("node.kubernetes.io/out")), "{taints:?}");
    assert!(!is_cordoned(&node));
    let is_forgotten = |policy: &NodeRepairPolicy| policy.status["deletedNodes"] == json!([]);
    wait::for_object(&stage.policies, &stage.pool, "it is put back once", is_forgotten).await;
}

/// A Job allows a second copy of its pod, and then it does not any more: `podReplacementPolicy` may be changed.
async fn a_job_that_awaits_the_end_of_its_pods_by_now_keeps_the_node(site: Site) {
    let stage = Stage::new(site, "jobchanges").await;
    let work = Work::new(&stage).await;
    let jobs: Api<Job> = Api::namespaced(stage.client.clone(), &stage.pool);
    let node = unowned(&stage, json!({"unownedNodes": "DeleteNode"})).await;
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}});
    let job = json!({
        "metadata": {"name": "work"},
        "spec": {"podReplacementPolicy": "TerminatingOrFailed", "suspend": true, "template": template},
    });
    let job = jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": job.uid(), "controller": true}]);
    work.runs_with_grace("of-job", &node, json!({"ownerReferences": owner}), 30).await;
    work.runs_with_grace("db-0", &node, owned_by("StatefulSet"), 30).await;
    let kept = async {
        stage.sicken(&node).await;
        let told = stage.is_blocked_by(&node, "MachineMayRun").await;
        assert!(
            told.message.contains("db-0 must not run: it belongs to a StatefulSet.apps"),
            "{}",
            told.message
        );
        let awaits = Patch::Merge(json!({"spec": {"podReplacementPolicy": "Failed"}}));
        jobs.patch("work", &PatchParams::default(), &awaits).await.unwrap();
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        work.pods.delete("db-0", &at_once).await.unwrap();
        let is_told = |it: &Node| {
            let told = node_condition(it, "SalvorRepair").map(|it| it.message).unwrap_or_default();
            told.contains("waits for the end of its pods (podReplacementPolicy: Failed)")
        };
        wait::for_object(&stage.nodes, &node, "the Job keeps it", is_told).await;
    };
    remains(&stage, &node, Box::pin(kept)).await;
}

/// A node that recovers during its drain keeps its pods and accepts new ones.
async fn a_drain_stops_when_the_node_is_well(site: Site) {
    let stage = Stage::new(site, "drainstops").await;
    let work = Work::new(&stage).await;
    let node = unowned(&stage, gentle("1h")).await;
    work.runs("guarded", &node, json!({})).await;
    work.budget("guarded", 0).await;
    work.stay(&["guarded"], async {
        stage.sicken(&node).await;
        stage.says(&node, "Repairing").await;
        stage.heal(&node).await;
        wait::for_object(&stage.nodes, &node, "it takes pods", |node: &Node| !is_cordoned(node)).await;
        // A read is valid for a second. An eviction based on an earlier read is still refused, and has ended when the
        // first of two other nodes is repaired.
        for (name, allowed) in [("first", 0), ("second", 1)] {
            work.allow("guarded", allowed).await;
            let mut other = stage.launch(name);
            (other.of_pool, other.has_claim) = (false, false);
            other.provider_id = String::new();
            let other = stage.make(other).await;
            stage.sicken(&other).await;
            stage.is_blocked_by(&other, "MachineMayRun").await;
        }
    })
    .await;
    let node = stage.nodes.get(&node).await.unwrap();
    assert!(!is_cordoned(&node) && node.metadata.deletion_timestamp.is_none());
    assert_ne!(node_condition(&node, "SalvorRepair").unwrap().reason, "Repairing");
}

on_both!(
    the_pods_of_a_replaced_machine_are_freed,
    a_machine_that_may_run_keeps_its_pods,
    pods_are_left_to_pod_gc_without_proof,
    a_node_that_nothing_owns_is_drained,
    work_of_a_machine_that_nothing_owns_is_never_forced,
    a_node_that_nothing_owns_may_be_deleted,
    a_job_that_awaits_the_end_of_its_pods_by_now_keeps_the_node,
    a_drain_stops_when_the_node_is_well,
);
