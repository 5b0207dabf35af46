//! Hours in the life of a whole cluster, in virtual time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, PostParams};
use salvor_cluster::{LocalCluster, NodeFault, Options, inject, zoned};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

async fn cluster(nodes: usize, zones: usize) -> LocalCluster {
    let cluster = LocalCluster::start(Options::default()).await.unwrap();
    cluster.fleet().add(zoned(nodes, zones)).await.unwrap();
    cluster
}

fn pod(name: &str) -> Pod {
    from(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "work", "resources": {"requests": {"cpu": "1"}}}]},
    }))
}

fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Waits in virtual time, which costs nothing. Returns how long it took.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) -> Duration {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(3600), "an hour later still not so: {what}");
        sleep(Duration::from_millis(100)).await;
    }
    began.elapsed()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_the_nodes_and_run() {
    let cluster = cluster(3, 3).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    for index in 0..6 {
        pods.create(&PostParams::default(), &pod(&format!("p{index}"))).await.unwrap();
    }
    let all = || async { pods.list(&ListParams::default()).await.unwrap().items };
    until("six pods run", || async { all().await.iter().filter(|p| is_ready(p)).count() == 6 }).await;
    let mut per_node = std::collections::BTreeMap::new();
    for pod in all().await {
        *per_node.entry(pod.spec.unwrap().node_name.unwrap()).or_insert(0) += 1;
    }
    assert_eq!(per_node.into_values().collect::<Vec<_>>(), [2, 2, 2]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_says_so_and_is_placed_when_there_is_room() {
    let cluster = cluster(1, 1).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let mut large = pod("large");
    large.spec.as_mut().unwrap().containers[0].resources = Some(from(json!({"requests": {"cpu": "6"}})));
    let mut second = large.clone();
    second.metadata.name = Some("second".to_owned());
    for pod in [&large, &second] {
        pods.create(&PostParams::default(), pod).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    let message = || async {
        let pod = pods.get("second").await.unwrap();
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.into_iter().find(|c| c.type_ == "PodScheduled").and_then(|c| c.message)
    };
    until("it says why", || async { message().await.is_some() }).await;
    assert_eq!(message().await.unwrap(), "0/1 nodes are available: 1 Insufficient cpu.");
    pods.delete("large", &Default::default()).await.unwrap();
    until("the second runs", || async { is_ready(&pods.get("second").await.unwrap()) }).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_node_is_lost_after_its_grace_and_its_pods_leave_five_minutes_later() {
    let cluster = cluster(3, 1).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let nodes: Api<Node> = Api::all(cluster.client());
    pods.create(&PostParams::default(), &pod("p")).await.unwrap();
    until("it runs", || async { is_ready(&pods.get("p").await.unwrap()) }).await;
    let node = pods.get("p").await.unwrap().spec.unwrap().node_name.unwrap();
    NodeFault::Partition.strike(cluster.fleet(), &node).await.unwrap();
    let lost = until("it is tainted", || async {
        taints(&nodes.get(&node).await.unwrap()).iter().any(|t| t.ends_with("unreachable:NoExecute"))
    })
    .await;
    assert!((40..=60).contains(&lost.as_secs()), "a lease of ten seconds, fifty of grace: {lost:?}");
    assert!(!is_ready(&pods.get("p").await.unwrap()), "nobody vouches for it");
    let marked = until("it is marked", || async {
        pods.get("p").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!((295..=305).contains(&marked.as_secs()), "five minutes of toleration: {marked:?}");
    let marked = pods.get("p").await.unwrap();
    let conditions = marked.status.unwrap().conditions.unwrap();
    assert!(
        conditions
            .iter()
            .any(|c| c.type_ == "DisruptionTarget" && c.reason.as_deref() == Some("DeletionByTaintManager"))
    );
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        pods.list(&ListParams::default()).await.unwrap().items.len(),
        1,
        "a silent kubelet confirms nothing"
    );
    NodeFault::Heal.strike(cluster.fleet(), &node).await.unwrap();
    until("it is gone", || async { pods.get_opt("p").await.unwrap().is_none() }).await;
    until("the taints are gone", || async { taints(&nodes.get(&node).await.unwrap()).is_empty() }).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_can_be_made_to_fail_through_the_api_and_only_ours() {
    let cluster = cluster(3, 1).await;
    let client = kube::Client::new(cluster.service(), "default");
    inject(&client, "node-1", NodeFault::Crash).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    until("it is lost", || async { !taints(&nodes.get("node-1").await.unwrap()).is_empty() }).await;
    inject(&client, "node-1", NodeFault::Heal).await.unwrap();
    until("it is back", || async { taints(&nodes.get("node-1").await.unwrap()).is_empty() }).await;
    let error = inject(&client, "nobody", NodeFault::Crash).await.unwrap_err().to_string();
    assert!(error.contains("\"nobody\"") && error.contains("node-1, node-2, node-3"), "{error}");
    let ordinary = inject(&cluster.client(), "node-1", NodeFault::Crash).await.unwrap_err().to_string();
    assert!(ordinary.contains("salvor cluster"), "{ordinary}");
}

/// etcd goes back to a backup: kubelets report again what was lost, and run again the pods that they have forgotten.
#[tokio::test(start_paused = true)]
async fn after_a_restore_kubelets_and_the_api_agree_again() {
    let cluster = cluster(1, 1).await;
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    let mut ends = pod("ends");
    ends.metadata.annotations = Some([("sim.salvor.dev/run-for".to_owned(), "30s".to_owned())].into());
    ends.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    for it in [&ends, &pod("deleted"), &pod("kept")] {
        pods.create(&PostParams::default(), it).await.unwrap();
    }
    let phase = async |name: &str| Some(pods.get_opt(name).await.unwrap()?.status?.phase?);
    until("all run", || async { is_ready(&pods.get("kept").await.unwrap()) }).await;
    let backup = cluster.api().back_up();
    pods.delete("deleted", &Default::default()).await.unwrap();
    until("one has ended", || async { phase("ends").await.as_deref() == Some("Succeeded") }).await;
    until("one is gone", || async { phase("deleted").await.is_none() }).await;
    cluster.api().restore(&backup);
    assert_eq!(phase("ends").await.as_deref(), Some("Running"));
    until("its end is told again", || async { phase("ends").await.as_deref() == Some("Succeeded") }).await;
    until("what is back runs again", || async { is_ready(&pods.get("deleted").await.unwrap()) }).await;
    for name in ["deleted", "kept", "ends"] {
        pods.delete(name, &Default::default()).await.unwrap();
        until("it is gone for good", || async { phase(name).await.is_none() }).await;
    }
    cluster.stop().await;
}
