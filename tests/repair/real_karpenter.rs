//! The real Karpenter 1.14.1 with its kwok provider as a process, on a real control plane. It replaces what Salvor
//! terminates.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_nodes::Fault;
use salvor_testkit::{
    Access, Kubelets, Plane, Recorder, Salvor, Site,
    peers::{Karpenter, RunningPeer},
    recorder::ChangeKind,
    wait,
    workloads::{self, PodShape},
};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::karpenter::{MEMBER, POOL, of_pool};
use crate::objects::{KWOKNodeClass, NodeClaim, NodePool, NodeRepairPolicy, Object};
use crate::stage::{CONFIGURATION, HOUR, TERMINATION, install_ours, start};

/// A control plane with Karpenter.
struct Ground {
    access: Access,
    _karpenter: RunningPeer,
    _plane: Plane,
}

impl Ground {
    /// With Karpenter's own node repair on or off.
    async fn new(node_repair: bool) -> Self {
        let plane = Site::Real.control_plane().await;
        let access = plane.admin();
        let karpenter = Karpenter::build().unwrap_or_else(|error| panic!("{error}"));
        karpenter.install(&access).await.unwrap();
        install_ours(&access).await;
        let class: KWOKNodeClass = Object::named("default", json!({}));
        Api::all(access.client("salvor-test")).create(&PostParams::default(), &class).await.unwrap();
        let running = karpenter.start(&access, node_repair).unwrap().ready().await;
        let running = running.unwrap_or_else(|error| panic!("{error}"));
        Self { access, _karpenter: running, _plane: plane }
    }

    /// The one that tests share, with a Salvor.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<(Ground, Salvor)> = OnceCell::const_new();
        let start_both = async || {
            let ground = Self::new(false).await;
            let salvor = start(&ground.access, &CONFIGURATION.replace("[repair]", "[repair, eviction]"), &[]);
            (ground, salvor)
        };
        &SHARED.get_or_init(start_both).await.0
    }
}

/// A pool, and a Deployment whose pods each fill a node.
struct Scene {
    pool: &'static str,
    nodes: Api<Node>,
    claims: Api<NodeClaim>,
    pods: Api<Pod>,
    policies: Api<NodeRepairPolicy>,
    kubelets: Kubelets,
}

impl Scene {
    async fn new(ground: &Ground, pool: &'static str, replicas: usize) -> Self {
        let access = ground.access.in_namespace(pool);
        let client = access.client("salvor-test-karpenter");
        let scene = Self {
            pool,
            nodes: Api::all(client.clone()),
            claims: Api::all(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            policies: Api::all(client.clone()),
            kubelets: Kubelets::start(&access, &of_pool(pool)),
        };
        let pool: NodePool = Object::named(
            scene.pool,
            json!({
                "template": {
                    "metadata": {"labels": {MEMBER: scene.pool}},
                    "spec": {
                        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
                        "expireAfter": "Never",
                        "terminationGracePeriod": "1h",
                    },
                },
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            }),
        );
        Api::all(client.clone()).create(&PostParams::default(), &pool).await.unwrap();
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": scene.pool}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let container = json!({"name": "main", "image": "work", "resources": {"requests": {"cpu": "5"}}});
        let shape = PodShape::new()
            .spec("containers", json!([container]))
            .spec("nodeSelector", json!({MEMBER: scene.pool}));
        let deployments: Api<Deployment> = Api::default_namespaced(client);
        let work = workloads::deployment("work", replicas, &shape);
        deployments.create(&PostParams::default(), &work).await.unwrap();
        scene.run(replicas, &[]).await;
        scene
    }

    /// Waits until this many pods run, none of them on these nodes.
    async fn run(&self, count: usize, without: &[&str]) -> Vec<Pod> {
        let runs = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running")
                && pod.metadata.deletion_timestamp.is_none()
                && !without.contains(&node_of(pod))
        };
        let all = ListParams::default();
        let what = format!("{count} pods run elsewhere than on {without:?}");
        let mut pods = wait::for_list(&self.pods, &all, &what, |pods: &[Pod]| {
            pods.iter().filter(|pod| runs(pod)).count() == count
        })
        .await;
        pods.retain(runs);
        pods
    }

    async fn claim_of(&self, node: &str) -> NodeClaim {
        // Pods may run a moment before the NodeClaim names its node.
        let is_known = |claims: &[NodeClaim]| claims.iter().any(|claim| claim.node() == node);
        let what = format!("a NodeClaim stands for {node}");
        let claims = wait::for_list(&self.claims, &of_pool(self.pool), &what, is_known).await;
        claims.into_iter().find(|claim| claim.node() == node).unwrap()
    }

    async fn policy(&self, rule: serde_json::Value) {
        let policy: NodeRepairPolicy = Object::named(
            self.pool,
            json!({"nodeSelector": {"matchLabels": {POOL: self.pool}}, "policies": [rule]}),
        );
        self.policies.create(&PostParams::default(), &policy).await.unwrap();
    }

    async fn set(&self, node: &str, kind: &str, status: &str, since: Timestamp) {
        let condition = json!({
            "type": kind, "status": status, "reason": "Test", "message": "",
            "lastTransitionTime": Timestamp::from_second(since.as_second()).unwrap().to_string(),
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        self.nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// A sick accelerator: the node is drained without its hour of grace, and its workload runs on a new node.
#[tokio::test]
async fn a_sick_accelerator_costs_one_node_and_its_work_is_back() {
    if !Site::Real.is_chosen() {
        return;
    }
    let scene = Scene::new(Ground::shared().await, "accelerators", 3).await;
    let pods = scene.run(3, &[]).await;
    let (sick, others) = (node_of(&pods[0]), [pods[1].uid(), pods[2].uid()]);
    let record: Recorder<NodeClaim> = Recorder::start(&scene.claims, &of_pool(scene.pool)).await;
    let claim = scene.claim_of(sick).await;
    let accelerator = "AcceleratedHardwareReady";
    scene.policy(json!({"conditionType": accelerator, "conditionStatus": "False", "toleration": "3s"})).await;
    scene.set(sick, accelerator, "False", Timestamp::now()).await;
    wait::for_absence(&scene.claims, &claim.name_any()).await;
    wait::for_absence(&scene.nodes, sick).await;
    let back = scene.run(3, &[sick]).await;
    for uid in others {
        assert!(back.iter().any(|pod| pod.uid() == uid), "the pods of well nodes stay");
    }
    let changes = record.changes().await;
    let ended: Vec<_> = changes
        .iter()
        .filter(|change| change.object["metadata"]["deletionTimestamp"].is_string())
        .map(|change| change.name.as_str())
        .collect();
    assert!(ended.iter().all(|name| *name == claim.name_any()), "{ended:?}");
    let marked = changes.iter().any(|change| {
        let at = change.object["metadata"]["annotations"][TERMINATION].as_str();
        change.name == claim.name_any()
            && at.is_some_and(|at| at.parse::<Timestamp>().unwrap() <= Timestamp::now())
    });
    assert!(marked, "it ends at once");
}

/// A dead machine: its node disappears without a drain. Its pods are released as soon as node and NodeClaim are gone,
/// and not only when Pod GC finds them about a minute later. So its workload runs on a new node at once.
#[tokio::test]
async fn the_work_of_a_dead_machine_is_back() {
    if !Site::Real.is_chosen() {
        return;
    }
    let scene = Scene::new(Ground::shared().await, "machines", 3).await;
    let pods = scene.run(3, &[]).await;
    let dead = node_of(&pods[0]);
    let claim = scene.claim_of(dead).await;
    let record: Recorder<Pod> = Recorder::start(&scene.pods, &ListParams::default()).await;
    scene.policy(json!({"conditionType": "Ready", "conditionStatus": "Unknown", "toleration": "2s"})).await;
    scene.kubelets.fleet().inject(dead, Fault::Crash).await.unwrap();
    wait::for_absence(&scene.claims, &claim.name_any()).await;
    let gone = std::time::Instant::now();
    scene.run(3, &[dead]).await;
    println!("the work of a dead machine runs {:?} after its NodeClaim is gone", gone.elapsed());
    let uid = pods[0].uid().unwrap();
    let changes = record.changes().await;
    let end = changes.iter().find(|it| it.uid == uid && it.kind == ChangeKind::Deleted).unwrap();
    let told = crate::custom::condition(&end.object["status"], "DisruptionTarget").unwrap();
    assert_eq!(told.reason, "NodeReplacedBySalvor", "{told:?}");
}

/// Weak point 1, side by side: with one of four nodes past its toleration and one within it, Karpenter's own repair
/// stops, and Salvor's continues.
#[tokio::test]
async fn karpenters_own_repair_freezes_where_ours_goes_on() {
    if !Site::Real.is_chosen() {
        return;
    }
    let ground = Ground::new(true).await;
    let scene = Scene::new(&ground, "frozen", 4).await;
    let pods = scene.run(4, &[]).await;
    let (past, inside) = (node_of(&pods[0]), node_of(&pods[1]));
    let claim = scene.claim_of(past).await;
    let unknown = |node: &Node| {
        crate::objects::node_condition(node, "Ready").is_some_and(|condition| condition.status == "Unknown")
    };
    for node in [inside, past] {
        scene.kubelets.fleet().inject(node, Fault::KubeletStop).await.unwrap();
        wait::for_object(&scene.nodes, node, "its kubelet is silent", unknown).await;
    }
    // Karpenter's toleration is ten minutes. Its own tests let them pass in the same way.
    scene.set(past, "Ready", "Unknown", Timestamp::now() - HOUR).await;
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(ground.access.client("salvor-test-events"));
    wait::for_list(&events, &ListParams::default(), "Karpenter is blocked", |events: &[_]| {
        events.iter().any(|event: &k8s_openapi::api::core::v1::Event| {
            event.reason.as_deref() == Some("NodeRepairBlocked")
                && event.involved_object.name.as_deref() == Some(past)
        })
    })
    .await;
    assert!(!scene.claim_of(past).await.is_deleting());
    scene.policy(json!({"conditionType": "Ready", "conditionStatus": "Unknown", "toleration": "10m"})).await;
    let _salvor = start(&ground.access, CONFIGURATION, &[]);
    wait::for_absence(&scene.claims, &claim.name_any()).await;
    assert!(!scene.claim_of(inside).await.is_deleting());
}
