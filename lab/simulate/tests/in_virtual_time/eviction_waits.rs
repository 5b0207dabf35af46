//! What an eviction waits for by the clock: the brake's minute, a claim that cannot be read, a write that is refused;
//! and what it must not do meanwhile when its watch is stale.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_apiserver::{Effect, Fault, Faults};
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{Stage, configuration};

const KEY: &str = "salvor.dev/force-eviction";
const UNPROVEN: &str = "example.com/lost";

/// A node whose kubelet stopped sending heartbeats a while ago.
async fn lost_node() -> Stage {
    let stage = Stage::new(1).await;
    for node in ["node", "other"] {
        stage.node(node).await;
    }
    sleep(Duration::from_secs(60)).await;
    stage.lose("node").await;
    stage
}

fn salvor(stage: &Stage, lines: &str, faults: &Faults) -> Process {
    let configuration = configuration(&format!("controllers: [eviction]\n{lines}"));
    Process::start(&stage.cluster, "salvor", &configuration, Line::default(), faults)
}

async fn ask(stage: &Stage, key: &str) {
    let mut node = stage.nodes().get("node").await.unwrap();
    let request = json!({"key": key, "effect": "NoSchedule"});
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    taints.push(serde_json::from_value(request).unwrap());
    stage.nodes().replace("node", &PostParams::default(), &node).await.unwrap();
}

/// Removes every taint with our key, as a user would.
async fn stop(stage: &Stage) {
    let mut node = stage.nodes().get("node").await.unwrap();
    node.spec.get_or_insert_default().taints.get_or_insert_default().retain(|taint| taint.key != KEY);
    stage.nodes().replace("node", &PostParams::default(), &node).await.unwrap();
}

/// The names of pods that were marked Failed or deleted, or that are gone.
async fn touched(stage: &Stage, all: &[String]) -> Vec<String> {
    let pods = stage.pods().list(&ListParams::default()).await.unwrap();
    let is_whole = |name: &String| {
        pods.iter().any(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.name_any() == *name && pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
        })
    };
    all.iter().filter(|name| !is_whole(name)).cloned().collect()
}

fn named(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{kind}-{i}")).collect()
}

async fn pods(stage: &Stage, names: &[String], extra: Value) {
    for name in names {
        stage.pod(name, "node", extra.clone()).await;
    }
}

/// The node comes back while the brake admits one pod a minute. Then its watch stalls, and a user removes the taint.
#[test]
fn a_pod_a_minute_is_asked_to_end_and_none_after_a_stop_that_no_watch_shows() {
    in_virtual_time(async {
        let stage = lost_node().await;
        let old = named("old", 8);
        pods(&stage, &old, json!({})).await;
        sleep(Duration::from_secs(5)).await;
        let faults = Faults::default();
        let process = salvor(&stage, "brake: {maxPodsPerMinute: 1}\n", &faults);
        sleep(Duration::from_secs(30)).await;
        ask(&stage, KEY).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(touched(&stage, &old).await.len(), 1, "forced");
        stage.comes_back("node").await;
        for minute in 2..5 {
            sleep(Duration::from_secs(60)).await;
            stage.renews("node").await;
            let gone = touched(&stage, &old).await;
            assert!((minute - 1..=minute).contains(&gone.len()), "in minute {minute}: {gone:?}");
        }
        let before = touched(&stage, &old).await;
        faults.add(Fault::new(Effect::Lag(Duration::from_secs(3600))).path("/api/v1/nodes?"));
        faults.cut_watches();
        sleep(Duration::from_secs(5)).await;
        stop(&stage).await;
        sleep(Duration::from_secs(2)).await;
        let new = named("new", 4);
        pods(&stage, &new, json!({})).await;
        sleep(Duration::from_secs(900)).await;
        assert_eq!(touched(&stage, &new).await, Vec::<String>::new());
        assert_eq!(touched(&stage, &old).await, before);
        // When the watch is back, the eviction is over.
        faults.clear();
        faults.cut_watches();
        sleep(Duration::from_secs(120)).await;
        let node = stage.nodes().get("node").await.unwrap();
        assert!(!node.annotations().contains_key("eviction.salvor.dev/progress"));
        assert_eq!(touched(&stage, &new).await, Vec::<String>::new());
        process.stop().await;
    });
}

/// A claim that the server does not return counts as one for a single node, until it can be read.
#[test]
fn a_pod_whose_claim_cannot_be_read_waits_until_it_can() {
    in_virtual_time(async {
        let stage = lost_node().await;
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(stage.client.clone());
        let claim = |name: &str| {
            let resources = json!({"requests": {"storage": "1Gi"}});
            let spec = json!({"accessModes": ["ReadWriteMany"], "resources": resources});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
        };
        claims.create(&PostParams::default(), &claim("there")).await.unwrap();
        for name in ["there", "missing"] {
            let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": name}});
            stage.pod(name, "node", json!({"spec": {"volumes": [volume]}})).await;
        }
        let faults = Faults::default();
        faults.add(Fault::new(Effect::InternalError).path("/persistentvolumeclaims/"));
        let process = salvor(&stage, &format!("eviction: {{triggers: [{{key: {UNPROVEN}}}]}}\n"), &faults);
        sleep(Duration::from_secs(30)).await;
        ask(&stage, UNPROVEN).await;
        sleep(Duration::from_secs(300)).await;
        let names = ["there", "missing"].map(str::to_owned);
        assert_eq!(touched(&stage, &names).await, Vec::<String>::new());
        faults.clear();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(touched(&stage, &names).await, ["there"]);
        claims.create(&PostParams::default(), &claim("missing")).await.unwrap();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(touched(&stage, &names).await, names);
        process.stop().await;
    });
}

/// Annotations of others leave no room for ours: it is tried once a minute, and begins when there is room.
#[test]
fn a_start_that_is_refused_is_tried_again_every_minute() {
    in_virtual_time(async {
        let stage = lost_node().await;
        pods(&stage, &["pod".to_owned()], json!({})).await;
        let others = async |value: Value| {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"others": value}}}));
            stage.nodes().patch("node", &PatchParams::default(), &patch).await.unwrap();
        };
        others(json!("x".repeat(256 * 1024 - 20))).await;
        let faults = Faults::default();
        let process = salvor(&stage, "", &faults);
        sleep(Duration::from_secs(30)).await;
        ask(&stage, KEY).await;
        sleep(Duration::from_secs(600)).await;
        let reason = |node: &Node| {
            let all = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            all.into_iter().flatten().find(|it| it.type_ == "ForceEviction").and_then(|it| it.reason.clone())
        };
        let node = stage.nodes().get("node").await.unwrap();
        assert_eq!(reason(&node).as_deref(), Some("WriteRefused"));
        let told = stage.happenings().into_iter().filter(|it| it.name().contains("write-refused")).count();
        assert_eq!(told, 1, "said once, not every minute");
        others(Value::Null).await;
        sleep(Duration::from_secs(70)).await;
        assert_eq!(touched(&stage, &["pod".to_owned()]).await, ["pod"]);
        let node = stage.nodes().get("node").await.unwrap();
        assert_eq!(reason(&node).as_deref(), Some("Finished"));
        process.stop().await;
    });
}
