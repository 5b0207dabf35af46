//! The work that the demo's cluster does, and whether it is all being done.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource};
use salvor_api::names::{annotations, job, taints};
use salvor_cluster::STORAGE;
use salvor_nodes::script;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::scenario::Work;

/// How long pods stay on a node that is not heard of: short, so that a story is one.
const TOLERATED_SECONDS: i64 = 30;
/// How long a pod may take to end when it is asked to.
const GRACE_SECONDS: i64 = 10;

/// The queue is worked off in so many turns.
const BATCH_TURNS: u32 = 4;
/// How long a piece of batch work takes.
const BATCH_RUNS_FOR: &str = "2m";

/// Creates all of it.
pub(super) async fn create(client: &Client, work: &Work) -> kube::Result<()> {
    let terminate = annotations::SAFE_TO_FORCEFULLY_TERMINATE;
    let delete = annotations::SAFE_TO_FORCEFULLY_DELETE;
    if work.training > 0 {
        let job = json!({
            "metadata": { "name": "training" },
            "spec": {
                "completionMode": "Indexed", "completions": work.training, "parallelism": work.training,
                "podReplacementPolicy": "Failed", "backoffLimit": 100,
                "template": template("training", "3", &json!({ terminate: "true" }), "Never"),
            },
        });
        post::<Job>(client, job).await?;
    }
    if work.database > 0 {
        let labels = json!({ "app": "database" });
        let service = json!({
            "metadata": { "name": "database" },
            "spec": { "clusterIP": "None", "selector": labels, "ports": [{ "port": 5432 }] },
        });
        post::<Service>(client, service).await?;
        let mut template = template("database", "1", &json!({ delete: "true" }), "Always");
        template["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
        let claim = json!({
            "metadata": { "name": "data" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
                "resources": { "requests": { "storage": "10Gi" } } },
        });
        let set = json!({
            "metadata": { "name": "database" },
            "spec": { "serviceName": "database", "replicas": work.database, "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": labels }, "template": template, "volumeClaimTemplates": [claim] },
        });
        post::<StatefulSet>(client, set).await?;
    }
    if work.website > 0 {
        let deployment = json!({
            "metadata": { "name": "website" },
            "spec": { "replicas": work.website, "selector": { "matchLabels": { "app": "website" } },
                "template": template("website", "500m", &json!({}), "Always") },
        });
        post::<Deployment>(client, deployment).await?;
    }
    if work.batch > 0 {
        let run_for = format!("{}run-for", script::PREFIX);
        let job = json!({
            "metadata": { "name": "batch" },
            "spec": {
                "completionMode": "Indexed", "completions": work.batch,
                "parallelism": work.batch.div_ceil(BATCH_TURNS),
                "podReplacementPolicy": "Failed", "backoffLimit": 100,
                "template": template("batch", "1", &json!({ terminate: "true", run_for: BATCH_RUNS_FOR }), "Never"),
            },
        });
        post::<Job>(client, job).await?;
    }
    Ok(())
}

fn template(app: &str, cpu: &str, marks: &Value, restart: &str) -> Value {
    let tolerated = |key: &str| {
        json!({ "key": key, "operator": "Exists", "effect": taints::NO_EXECUTE,
            "tolerationSeconds": TOLERATED_SECONDS })
    };
    json!({
        "metadata": { "labels": { "app": app }, "annotations": marks },
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "tolerations": [tolerated(taints::UNREACHABLE), tolerated(taints::NOT_READY)],
            "containers": [{ "name": "main", "image": "demo", "resources": { "requests": { "cpu": cpu } } }],
        },
    })
}

async fn post<K>(client: &Client, object: Value) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    Api::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.map(|_| ())
}

/// What of the work is not being done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Workloads with fewer pods running, on nodes that are heard of, than they should have.
    pub(super) short: Vec<String>,
    /// Pods that cannot end.
    pub(super) stuck: Vec<String>,
    /// Pieces of batch work that are not done.
    pub(super) unfinished: u32,
}

impl Missing {
    /// Whether all that should run now runs; what is stuck besides does no harm to the work.
    pub(super) fn nothing_is_short(&self) -> bool {
        self.short.is_empty()
    }

    /// Whether all is as if nothing had happened.
    pub(super) fn nothing(&self) -> bool {
        self.short.is_empty() && self.stuck.is_empty() && self.unfinished == 0
    }
}

/// Looks at the cluster.
pub(super) async fn missing(client: &Client, work: &Work) -> kube::Result<Missing> {
    let pods = Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await?.items;
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?.items;
    let silent: BTreeSet<String> =
        nodes.iter().filter(|n| is_unreachable(n)).filter_map(|n| n.metadata.name.clone()).collect();
    let on_silent_node = |pod: &Pod| {
        pod.spec.as_ref().and_then(|s| s.node_name.as_ref()).is_some_and(|node| silent.contains(node))
    };
    let runs = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && !on_silent_node(pod)
    };
    let mut missing = Missing::default();
    for (app, wanted) in [("training", work.training), ("database", work.database), ("website", work.website)]
    {
        // Two pods of one index are one.
        let running: BTreeSet<_> =
            pods.iter().filter(|p| label(p, "app") == Some(app)).filter(runs).map(identity).collect();
        if running.len() < wanted as usize {
            missing.short.push(format!("{app} runs {} of {wanted} pods", running.len()));
        }
    }
    let is_over = |pod: &Pod| {
        matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
    };
    missing.stuck = pods
        .iter()
        .filter(|p| p.metadata.deletion_timestamp.is_some() && on_silent_node(p) && !is_over(p))
        .filter_map(|p| p.metadata.name.clone())
        .collect();
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    if let Some(batch) = jobs.get_opt("batch").await? {
        let done = batch.status.and_then(|s| s.succeeded).and_then(|n| u32::try_from(n).ok());
        missing.unfinished = work.batch.saturating_sub(done.unwrap_or(0));
    }
    Ok(missing)
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// What is the same for a pod and for the one that replaces it, where only one of them counts.
fn identity(pod: &Pod) -> String {
    let index = label(pod, job::COMPLETION_INDEX).map(str::to_owned);
    index.or_else(|| pod.metadata.name.clone()).unwrap_or_default()
}

fn is_unreachable(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten().any(|t| t.key == taints::UNREACHABLE)
}
