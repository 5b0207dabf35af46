//! One seed gives one history, down to every revision, UID and time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::Api;
use kube::api::PostParams;
use salvor_apiserver::Settings;
use salvor_cluster::{LocalCluster, NodeFault, Options, STORAGE, zoned};
use salvor_controllers::LoopOptions;
use serde_json::{Value, json};
use tokio::time::sleep;

fn from<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Each history in its own cluster.
fn history(seed: u64) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(play(seed))
}

/// Half an hour with failures in each zone. Returns the final state of the cluster as text.
async fn play(seed: u64) -> String {
    let cluster = LocalCluster::start(Options {
        api: Settings { seed, ..Settings::default() },
        loops: LoopOptions { seed, ..LoopOptions::default() },
        ..Options::default()
    })
    .await
    .unwrap();
    cluster.fleet().add(zoned(9, 3)).await.unwrap();
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "500m"}}}]},
    });
    let selector = json!({"matchLabels": {"app": "web"}});
    let deployments: Api<Deployment> = Api::default_namespaced(cluster.client());
    let web = from(
        json!({"metadata": {"name": "web"}, "spec": {"replicas": 20, "selector": selector, "template": template}}),
    );
    deployments.create(&PostParams::default(), &web).await.unwrap();
    let sets: Api<StatefulSet> = Api::default_namespaced(cluster.client());
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE, "resources": {"requests": {"storage": "1Gi"}}},
    });
    let db = from(json!({
        "metadata": {"name": "db"},
        "spec": {"replicas": 3, "serviceName": "db", "selector": selector, "template": template, "volumeClaimTemplates": [claim]},
    }));
    sets.create(&PostParams::default(), &db).await.unwrap();
    for (node, fault, minutes) in [
        ("node-1", NodeFault::Partition, 4),
        ("node-5", NodeFault::Crash, 9),
        ("node-1", NodeFault::Heal, 2),
        ("node-6", NodeFault::Reboot, 2),
        ("node-9", NodeFault::Partition, 8),
        ("node-5", NodeFault::Heal, 2),
        ("node-9", NodeFault::Heal, 5),
    ] {
        fault.strike(cluster.fleet(), node).await.unwrap();
        sleep(Duration::from_secs(minutes * 60)).await;
    }
    let client = cluster.client();
    let mut all = String::new();
    for path in ["/api/v1/pods", "/api/v1/nodes", "/api/v1/events", "/apis/coordination.k8s.io/v1/leases"] {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        all.push_str(&client.request_text(request).await.unwrap());
    }
    cluster.stop().await;
    all
}

#[test]
fn the_same_seed_gives_the_same_history_and_another_one_another() {
    let first = history(7);
    assert!(first.contains("TaintManagerEviction"), "something must have happened");
    let again = history(7);
    if first != again {
        let at = first.bytes().zip(again.bytes()).take_while(|(one, other)| one == other).count();
        let from = at.saturating_sub(300);
        panic!("they differ at {at}:\n{}\n---\n{}", &first[from..at + 200], &again[from..at + 200]);
    }
    assert_ne!(first, history(8));
}
