//! Nodes that a simulated Karpenter maintains, in virtual time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Client, ResourceExt};
use salvor_cluster::{LocalCluster, Options};
use salvor_nodes::{NodePool, NodeProfile};
use serde_json::json;
use tokio::time::{Instant, sleep};

async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(3600), "an hour later still not so: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Two nodes with an accelerator each.
async fn cluster() -> LocalCluster {
    let mut cluster = LocalCluster::start(Options::default()).await.unwrap();
    let pool = NodePool {
        name: "gpu".to_owned(),
        nodes: 2,
        template: NodeProfile::named("").with_capacity("nvidia.com/gpu", "1"),
        shutdown: Duration::from_secs(5),
        boot: Duration::from_secs(30),
        apart: Duration::ZERO,
    };
    cluster.add_pool(pool).await.unwrap();
    cluster
}

fn claims(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, "nodeclaims"))
}

async fn names(nodes: &Api<Node>) -> BTreeSet<String> {
    nodes.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
}

/// The nodes of the running pods.
async fn busy(pods: &Api<Pod>) -> BTreeSet<String> {
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let runs = |pod: &&Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    pods.iter().filter(runs).filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect()
}

fn set(of: [&str; 2]) -> BTreeSet<String> {
    of.map(str::to_owned).into()
}

async fn work(client: &Client) {
    let pod = json!({
        "nodeSelector": { "karpenter.sh/nodepool": "gpu" },
        "containers": [{ "name": "main", "image": "work", "resources": { "requests": { "nvidia.com/gpu": "1" } } }],
    });
    let labels = json!({ "app": "work" });
    let replicas = json!({
        "metadata": { "name": "work" },
        "spec": { "replicas": 2, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod } },
    });
    let replicas: ReplicaSet = serde_json::from_value(replicas).unwrap();
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &replicas).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_claim_is_deleted_is_drained_ended_and_replaced() {
    let cluster = cluster().await;
    let client = cluster.client();
    let (nodes, pods, claims) =
        (Api::<Node>::all(client.clone()), Api::default_namespaced(client.clone()), claims(&client));
    work(&client).await;
    until("both nodes are busy", || async { busy(&pods).await == set(["gpu-1", "gpu-2"]) }).await;
    let claim = claims.get("gpu-1").await.unwrap();
    let node = nodes.get("gpu-1").await.unwrap();
    assert_eq!(claim.data["status"]["providerID"].as_str(), node.spec.unwrap().provider_id.as_deref());

    claims.delete("gpu-1", &DeleteParams::default()).await.unwrap();
    until("the node and its claim are gone", || async {
        names(&nodes).await == BTreeSet::from(["gpu-2".to_owned()])
            && claims.get_opt("gpu-1").await.unwrap().is_none()
    })
    .await;
    assert_eq!(
        busy(&pods).await,
        BTreeSet::from(["gpu-2".to_owned()]),
        "there is no room before the new node"
    );
    until("the work is on the new node", || async { busy(&pods).await == set(["gpu-2", "gpu-3"]) }).await;
    assert_eq!(names(&nodes).await, set(["gpu-2", "gpu-3"]));
    assert_eq!(cluster.fleet().stats().await.unwrap().nodes, 2, "the machine is gone too");
    cluster.stop().await;
}

/// Its kubelet terminates no pod, so only the time of the forced termination releases the machine.
#[tokio::test(start_paused = true)]
async fn a_silent_node_is_ended_when_its_claim_says_from_when_on() {
    let cluster = cluster().await;
    let client = cluster.client();
    let (nodes, pods, claims) =
        (Api::<Node>::all(client.clone()), Api::default_namespaced(client.clone()), claims(&client));
    work(&client).await;
    until("both nodes are busy", || async { busy(&pods).await == set(["gpu-1", "gpu-2"]) }).await;
    cluster.fleet().inject("gpu-1", salvor_nodes::Fault::Crash).await.unwrap();
    claims.delete("gpu-1", &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(names(&nodes).await, set(["gpu-1", "gpu-2"]), "its pod is waited for");
    let forced = json!({ "metadata": { "annotations": {
        "karpenter.sh/nodeclaim-termination-timestamp": cluster.api().now().to_string() } } });
    claims.patch("gpu-1", &PatchParams::default(), &Patch::Merge(forced)).await.unwrap();
    until("the work is on the new node", || async { busy(&pods).await == set(["gpu-2", "gpu-3"]) }).await;
    assert_eq!(names(&nodes).await, set(["gpu-2", "gpu-3"]));
    cluster.stop().await;
}
