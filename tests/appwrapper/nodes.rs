//! Nodes: Autopilot's labels, and lost machines.

use kube::ResourceExt;
use salvor_nodes::{Fault, Fleet, FleetOptions};
use salvor_testkit::{Site, nodes::QUICK, wait};
use serde_json::{Value, json};

use crate::{
    controller::cases,
    stage::{Run, Stage, Wrap, phases},
};

const HEALTH: &str = "autopilot.ibm.com/gpuhealth";

/// Two nodes with GPUs. They exist as long as the returned value.
async fn gpu_nodes(stage: &Stage<'_>) -> Fleet {
    let options = FleetOptions { timers: QUICK, ..FleetOptions::default() };
    let fleet = Fleet::start(stage.arena.admin().client("gpu-nodes"), options);
    let profile = |index: usize| stage.arena.node(index + 10).with_capacity("nvidia.com/gpu", "4");
    fleet.add((0..2).map(profile)).await.unwrap();
    fleet
}

async fn node_of(stage: &Stage<'_>, name: &str) -> String {
    let pods = stage.pods_until(name, "a pod runs", |pods| pods.iter().any(|pod| node(pod).is_some())).await;
    pods.iter().find_map(node).unwrap()
}

fn node(pod: &k8s_openapi::api::core::v1::Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

fn gpu() -> Run {
    Run::on().requests("nvidia.com/gpu", "1")
}

/// Autopilot migration, from CodeFlare's end-to-end tests: the workload moves, and no retry is used.
async fn a_workload_leaves_a_node_that_autopilot_evicts(site: Site) {
    let stage = Stage::new(site, "evict", 0).await;
    let _nodes = gpu_nodes(&stage).await;
    let recorder = stage.record().await;
    let wrap = Wrap::new("w")
        .of(stage.job("j", json!({}), &gpu()))
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    stage.ready("w").await;
    let bad = node_of(&stage, "w").await;
    stage.label_node(&bad, HEALTH, "EVICT".into()).await;
    let moved = |pods: &[k8s_openapi::api::core::v1::Pod]| {
        pods.len() == 1 && pods.iter().filter_map(node).any(|node| node != bad)
    };
    stage.pods_until("w", "its pod is on the other node", moved).await;
    stage.ready("w").await;
    assert!(phases(&recorder, "w").await.contains(&"Resetting".to_owned()));
    let wrapper = stage.get("w").await;
    assert_eq!(wrapper.resets(), 0, "an evacuation is nobody's failure");
    let told = crate::stage::history(&recorder, "w", "Unhealthy").await;
    let told = told.iter().find(|c| c.reason == "AutopilotNoExecute").unwrap();
    assert!(told.message.contains(&bad), "{}", told.message);
    stage.label_node(&bad, HEALTH, Value::Null).await;
}

/// A warning, or a label for a resource that the workload does not use, does not move it.
async fn a_warning_moves_nobody(site: Site) {
    let stage = Stage::new(site, "warn", 0).await;
    let _nodes = gpu_nodes(&stage).await;
    stage.create(Wrap::new("gpu").of(gpu().pod("gpu"))).await;
    stage.create(Wrap::new("plain").of(Run::on().pod("plain"))).await;
    stage.ready("gpu").await;
    stage.ready("plain").await;
    let recorder = stage.record().await;
    stage.label_node(&node_of(&stage, "gpu").await, HEALTH, "WARN".into()).await;
    let of_plain = node_of(&stage, "plain").await;
    if of_plain != node_of(&stage, "gpu").await {
        stage.label_node(&of_plain, HEALTH, "EVICT".into()).await;
    }
    stage
        .create(
            Wrap::new("clock")
                .of(Run::to_end("4s", 0).spec("tolerations", json!([{"operator": "Exists"}])).pod("clock")),
        )
        .await;
    stage.phase("clock", "Succeeded").await;
    for name in ["gpu", "plain"] {
        assert_eq!(phases(&recorder, name).await, ["Running"], "{name}");
    }
}

/// An evacuation without any retry left is no failure either (upstream ends in Failed).
async fn an_evacuation_needs_no_retries(site: Site) {
    let stage = Stage::new(site, "noretry", 0).await;
    let _nodes = gpu_nodes(&stage).await;
    let wrap = Wrap::new("w").of(gpu().pod("p")).set("retryPausePeriodDuration", "0s").set("retryLimit", "0");
    stage.create(wrap).await;
    stage.ready("w").await;
    let bad = node_of(&stage, "w").await;
    let recorder = stage.record().await;
    stage.label_node(&bad, HEALTH, "EVICT".into()).await;
    let moved =
        |pods: &[k8s_openapi::api::core::v1::Pod]| pods.iter().filter_map(node).any(|node| node != bad);
    stage.pods_until("w", "its pod is on the other node", moved).await;
    stage.ready("w").await;
    assert!(!phases(&recorder, "w").await.contains(&"Failed".to_owned()));
}

/// A bare pod on a lost machine is evicted. This does not count as a user's deletion, and the workload recovers (9, 9).
async fn a_bare_pod_comes_back_when_its_node_is_lost(site: Site) {
    let stage = Stage::new(site, "lost", 2).await;
    let wrap = Wrap::new("w")
        .of(Run::on().pod("p"))
        .set("failureGracePeriodDuration", "1s")
        .set("retryPausePeriodDuration", "0s")
        .set("forcefulDeletionGracePeriodDuration", "2s");
    stage.create(wrap).await;
    stage.ready("w").await;
    let lost = node_of(&stage, "w").await;
    let first = stage.pods.get("p").await.unwrap().uid();
    stage.fleet.inject(&lost, Fault::Crash).await.unwrap();
    let again = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.uid() != first && node(pod).is_some_and(|node| node != lost)
    };
    wait::for_object(&stage.pods, "p", "it runs on the other node", again).await;
    let ready = stage.ready("w").await;
    assert_ne!(ready.phase(), "Failed");
}

/// The Job replaces its pods by itself, and gets the time for it.
async fn a_job_comes_back_when_its_node_is_lost(site: Site) {
    let stage = Stage::new(site, "lostjob", 2).await;
    let wrap = Wrap::new("w")
        .of(stage.job("j", json!({"backoffLimit": 6}), &Run::on()))
        .set("failureGracePeriodDuration", "10s")
        .set("retryPausePeriodDuration", "0s")
        .set("forcefulDeletionGracePeriodDuration", "2s");
    stage.create(wrap).await;
    stage.ready("w").await;
    let lost = node_of(&stage, "w").await;
    stage.fleet.inject(&lost, Fault::Crash).await.unwrap();
    let moved = |pods: &[k8s_openapi::api::core::v1::Pod]| {
        let alive = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        alive.filter_map(node).any(|node| node != lost)
    };
    stage.pods_until("w", "a pod is on the other node", moved).await;
    stage.ready("w").await;
}

cases!(
    Both, on both sites:
    a_workload_leaves_a_node_that_autopilot_evicts,
    a_warning_moves_nobody,
    a_job_comes_back_when_its_node_is_lost,
);
cases!(
    Salvor, on both sites:
    an_evacuation_needs_no_retries,
    a_bare_pod_comes_back_when_its_node_is_lost,
);
