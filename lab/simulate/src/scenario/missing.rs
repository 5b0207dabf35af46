//! Finds the part of a scenario's work that does not run.

use std::collections::BTreeSet;

use http::Request;
use kube::Client;
use salvor_api::names::{job, taints};
use serde_json::Value;

use super::{
    Scenario,
    objects::{APP_WRAPPERS, JOBS, NODES, PODS},
    raise::ACCELERATOR_WORKS,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Workloads with fewer running pods than they should have, and AppWrappers that are not Running. Only pods on
    /// reachable nodes with a working accelerator count.
    pub short: Vec<String>,
    /// Pods that cannot terminate.
    pub stuck: Vec<String>,
    /// Workloads with unfinished units of work, and the number of those.
    pub unfinished: Vec<(String, u32)>,
}

impl Missing {
    /// True if all that should run now runs. Pods that are stuck besides do not harm the work.
    pub fn nothing_is_short(&self) -> bool {
        self.short.is_empty()
    }

    /// True if everything is as if nothing had failed.
    pub fn nothing(&self) -> bool {
        self.short.is_empty() && self.stuck.is_empty() && self.unfinished.is_empty()
    }
}

/// Reads the cluster.
pub async fn missing(client: &Client, scenario: &Scenario) -> kube::Result<Missing> {
    let pods = list(client, PODS).await?;
    let nodes = list(client, NODES).await?;
    let silent: BTreeSet<&str> = nodes.iter().filter(|n| is_unreachable(n)).map(name).collect();
    let on_silent_node =
        |pod: &Value| pod["spec"]["nodeName"].as_str().is_some_and(|node| silent.contains(node));
    let failed: BTreeSet<&str> = nodes.iter().filter(|n| has_failed_accelerator(n)).map(name).collect();
    let makes_no_progress =
        |pod: &Value| pod["spec"]["nodeName"].as_str().is_some_and(|node| failed.contains(node));
    let is_leaving = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
    let runs = |pod: &&Value| {
        pod["status"]["phase"] == "Running"
            && !is_leaving(pod)
            && !on_silent_node(pod)
            && !makes_no_progress(pod)
    };
    let mut missing = Missing::default();
    let jobs = list(client, JOBS).await?;
    for workload in &scenario.workloads {
        let (app, wanted) = (workload.name.as_str(), workload.units());
        if workload.takes.is_some() {
            let own = jobs.iter().filter(|job| job["spec"]["template"]["metadata"]["labels"]["app"] == app);
            let done: u64 = own.filter_map(|job| job["status"]["succeeded"].as_u64()).sum();
            let left = wanted.saturating_sub(u32::try_from(done).unwrap_or(u32::MAX));
            if left > 0 {
                missing.unfinished.push((app.to_owned(), left));
            }
            continue;
        }
        // Two pods of one index count as one.
        let running: BTreeSet<_> =
            pods.iter().filter(|p| label(p, "app") == Some(app)).filter(runs).map(identity).collect();
        if running.len() < wanted as usize {
            missing.short.push(format!("{app} runs {} of {wanted} pods", running.len()));
        }
    }
    for wrapper in list(client, APP_WRAPPERS).await? {
        let phase = wrapper["status"]["phase"].as_str().unwrap_or("new");
        let takes = scenario.workloads.iter().any(|it| it.name == name(&wrapper) && it.takes.is_some());
        if phase != "Running" && !takes {
            missing.short.push(format!("the AppWrapper {} is {phase}", name(&wrapper)));
        }
    }
    let is_over = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    missing.stuck = pods
        .iter()
        .filter(|p| is_leaving(p) && on_silent_node(p) && !is_over(p))
        .map(|p| name(p).to_owned())
        .collect();
    Ok(missing)
}

async fn list(client: &Client, path: &str) -> kube::Result<Vec<Value>> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let mut answer: Value = client.request(request).await?;
    Ok(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn label<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    pod["metadata"]["labels"][key].as_str()
}

/// A key that a pod and its replacement share.
fn identity(pod: &Value) -> (&str, &str) {
    match label(pod, job::COMPLETION_INDEX) {
        Some(index) => (label(pod, "batch.kubernetes.io/job-name").unwrap_or_default(), index),
        None => ("", name(pod)),
    }
}

fn is_unreachable(node: &Value) -> bool {
    node["spec"]["taints"].as_array().into_iter().flatten().any(|t| t["key"] == taints::UNREACHABLE)
}

fn has_failed_accelerator(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == ACCELERATOR_WORKS && it["status"] == "False")
}
