//! Simulated nodes under the real control plane, and most of it under the embedded one as well: they behave like any
//! other nodes until they die, and then the ground truth shows what a cluster cannot see.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod controllers;
mod faults;
mod volumes;
mod workloads;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;

/// The namespace's pods of one app.
fn of_app(app: &str) -> ListParams {
    ListParams::default().labels(&format!("app={app}"))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("")
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str())
}

fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().any(|t| t.key == key)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}
