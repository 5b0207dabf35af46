//! Nodes that die for one test, and a `salvor run` process.

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    events::v1::Event,
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use salvor_testkit::{Access, Arena, Ours, Salvor, Site};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub(crate) const KEY: &str = "salvor.dev/force-eviction";
/// A trigger of another controller that proves nothing.
pub(crate) const UNPROVEN: &str = "test.example.com/lost";
pub(crate) const PROGRESS: &str = "eviction.salvor.dev/progress";
pub(crate) const ASKED: &str = "eviction.salvor.dev/asked";

/// Starts `salvor run` with this configuration. It elects a leader only if the configuration has an election.
pub(crate) fn salvor(access: &Access, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
    let elects = format!("--leader-elect={}", configuration.contains("leaderElection"));
    let configuration = format!("controllers: [eviction]\n{configuration}");
    Salvor::start(env!("CARGO_BIN_EXE_salvor"), access, &configuration, &[&elects], environment)
}

/// A part of a cluster with all controllers and a shared Salvor. Each test has its own nodes.
pub(crate) async fn arena_with_salvor(site: Site, name: &str) -> (Arena<'static>, Ours) {
    static SALVOR: OnceCell<Salvor> = OnceCell::const_new();
    // Tests that run in parallel lose more nodes than the brake allows.
    let configuration = format!(
        "brake: {{maxUnreachablePercent: 0}}\neviction: {{detachWarningAfter: 5s, triggers: [{{key: {UNPROVEN}}}]}}\n"
    );
    let arena = site.arena(name).await;
    let ours = Ours::at(site, &SALVOR, || salvor(&arena.admin(), &configuration, &[])).await;
    (arena, ours)
}

pub(crate) async fn taint(client: &Client, node: &str, value: &str, effects: &[&str]) {
    taint_with(client, node, KEY, value, effects).await;
}

pub(crate) async fn taint_with(client: &Client, node: &str, key: &str, value: &str, effects: &[&str]) {
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let mut found = nodes.get(node).await.unwrap();
        let taints = found.spec.get_or_insert_default().taints.get_or_insert_default();
        for effect in effects {
            let taint = json!({"key": key, "value": value, "effect": effect});
            taints.push(serde_json::from_value(taint).unwrap());
        }
        // The node lifecycle controller writes taints too, so retry on a conflict.
        match nodes.replace(node, &Default::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return drop(other.unwrap()),
        }
    }
}

/// Removes every taint with Salvor's key, as a person would.
pub(crate) async fn untaint(client: &Client, node: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let mut found = nodes.get(node).await.unwrap();
        found.spec.get_or_insert_default().taints.get_or_insert_default().retain(|t| t.key != KEY);
        match nodes.replace(node, &Default::default(), &found).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return drop(other.unwrap()),
        }
    }
}

pub(crate) async fn annotate(nodes: &Api<Node>, node: &str, annotations: Value) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// The effects of Salvor's taints on a node.
pub(crate) fn effects(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
    taints.into_iter().filter(|t| t.key == KEY).map(|t| t.effect).collect()
}

/// A condition of a node as (status, reason).
pub(crate) fn condition(node: &Node, kind: &str) -> Option<(String, String)> {
    let all = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let found = all.into_iter().flatten().find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.reason.clone().unwrap_or_default()))
}

pub(crate) fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|(status, _)| status == "True")
}

/// The progress of the eviction, from the annotation.
pub(crate) fn progress(node: &Node) -> Value {
    node.annotations().get(PROGRESS).map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default()
}

pub(crate) fn is_finished(node: &Node) -> bool {
    progress(node)["finished"].is_string()
}

pub(crate) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub(crate) fn is_running(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

pub(crate) async fn attachments_to(client: &Client, node: &str) -> Vec<VolumeAttachment> {
    let all: Api<VolumeAttachment> = Api::all(client.clone());
    let all = all.list(&ListParams::default()).await.unwrap();
    all.into_iter().filter(|a| a.spec.node_name == node).collect()
}

/// The reasons of all events about a node, in the order in which they were recorded.
pub(crate) async fn events_about(client: &Client, name: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let mut all = events.list(&ListParams::default()).await.unwrap().items;
    all.retain(|e| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(name));
    all.retain(|e| e.reporting_controller.as_deref() == Some("salvor-eviction"));
    // Their times have a resolution of a second.
    all.sort_by_key(|e| {
        e.metadata.resource_version.as_ref().and_then(|revision| revision.parse::<u64>().ok())
    });
    all.into_iter().filter_map(|e| e.reason).collect()
}
