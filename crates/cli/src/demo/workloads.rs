//! The work that the demo's cluster does, and whether it is all being done.

use std::collections::BTreeSet;

use http::Request;
use jiff::Timestamp;
use kube::Client;
use salvor_api::crds;
use salvor_api::names::{annotations, appwrapper, job, repair, taints};
use salvor_cluster::STORAGE;
use salvor_nodes::script;
use serde_json::{Value, json};

use super::scenario::{GPU_POOL, Work};

/// Pods tolerate an unreachable node for this long: short, so that the story does not take long.
const TOLERATED_SECONDS: i64 = 30;
/// The grace period of pods.
const GRACE_SECONDS: i64 = 10;

// All of this is plain JSON: the types of these kinds would be a third of the program.
const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const APP_WRAPPERS: &str = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers";
const REPAIR_POLICIES: &str = "/apis/salvor.dev/v1alpha1/noderepairpolicies";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The queue is worked off in so many turns.
const BATCH_TURNS: u32 = 4;
/// A batch pod runs for this long.
const BATCH_RUNS_FOR: &str = "2m";

/// How long a reset waits for pods on silent nodes before it deletes them by force.
const FORCED_AFTER: &str = "1m";
/// How long a reset pauses between deletion and creation.
const RESET_PAUSE: &str = "15s";

/// The resource that an accelerator is, and the taint of its nodes.
pub(super) const ACCELERATOR: &str = "nvidia.com/gpu";
/// The condition by which an agent on a node says whether its accelerator works.
const ACCELERATOR_WORKS: &str = "AcceleratedHardwareReady";
/// A failed accelerator is tolerated for this long.
const SICK_FOR: &str = "1m";
/// A silent node with an accelerator is tolerated for this long.
const SILENT_FOR: &str = "5m";

/// Who runs AppWrappers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrapping {
    /// Salvor does.
    Salvor,
    /// Nobody does: what they would wrap is created as it is.
    Nobody,
}

/// Makes the cluster know AppWrappers.
pub(super) async fn define_app_wrappers(client: &Client) -> kube::Result<()> {
    define(client, crds::APPWRAPPER).await
}

/// Makes the cluster know NodeRepairPolicies, with one for nodes with an accelerator if there are any.
pub(super) async fn define_repair_policies(client: &Client, for_accelerators: bool) -> kube::Result<()> {
    define(client, crds::NODE_REPAIR_POLICY).await?;
    if !for_accelerators {
        return Ok(());
    }
    let policy = json!({
        "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy",
        "metadata": { "name": GPU_POOL },
        "spec": {
            "nodeSelector": { "matchLabels": { repair::labels::NODE_POOL: GPU_POOL } },
            "policies": [
                { "conditionType": ACCELERATOR_WORKS, "conditionStatus": "False", "toleration": SICK_FOR },
                { "conditionType": "Ready", "conditionStatus": "Unknown", "toleration": SILENT_FOR },
            ],
        },
    });
    post(client, REPAIR_POLICIES, &policy).await
}

async fn define(client: &Client, definition: &str) -> kube::Result<()> {
    let definition: Value =
        serde_saphyr::from_str(definition).map_err(|error| kube::Error::Service(error.to_string().into()))?;
    post(client, DEFINITIONS, &definition).await
}

/// Writes on a node whether its accelerator works, as an agent on it does.
pub(super) async fn tell_accelerator(
    client: &Client,
    node: &str,
    works: bool,
    now: Timestamp,
) -> kube::Result<()> {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let (status, reason, message) = if works {
        ("True", "AcceleratorIsReady", "the accelerator works")
    } else {
        ("False", "NvidiaXID79Error", "the accelerator has fallen off the bus")
    };
    let condition = json!({ "type": ACCELERATOR_WORKS, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now });
    let body = json!({ "status": { "conditions": [condition] } }).to_string().into_bytes();
    let request = Request::patch(format!("{NODES}/{node}/status"))
        .header("content-type", "application/strategic-merge-patch+json");
    client.request_text(request.body(body).map_err(kube::Error::HttpError)?).await.map(|_| ())
}

/// Creates all of it.
pub(super) async fn create(client: &Client, work: &Work, wrapping: Wrapping) -> kube::Result<()> {
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
        post(client, JOBS, &job).await?;
    }
    if work.database > 0 {
        let labels = json!({ "app": "database" });
        let service = json!({
            "metadata": { "name": "database" },
            "spec": { "clusterIP": "None", "selector": labels, "ports": [{ "port": 5432 }] },
        });
        post(client, SERVICES, &service).await?;
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
        post(client, STATEFUL_SETS, &set).await?;
    }
    if work.website > 0 {
        let deployment = json!({
            "metadata": { "name": "website" },
            "spec": { "replicas": work.website, "selector": { "matchLabels": { "app": "website" } },
                "template": template("website", "500m", &json!({}), "Always") },
        });
        post(client, DEPLOYMENTS, &deployment).await?;
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
        post(client, JOBS, &job).await?;
    }
    if work.simulation > 0 {
        let job = simulation(work.simulation);
        match wrapping {
            Wrapping::Salvor => post(client, APP_WRAPPERS, &wrapped(&job)).await?,
            Wrapping::Nobody => post(client, JOBS, &job).await?,
        }
    }
    if work.tuning > 0 {
        post(client, JOBS, &tuning(work.tuning)).await?;
    }
    Ok(())
}

/// A Job whose pods need an accelerator each.
fn tuning(pods: u32) -> Value {
    let consent = json!({ annotations::SAFE_TO_FORCEFULLY_TERMINATE: "true" });
    let mut template = template("tuning", "4", &consent, "Never");
    let spec = &mut template["spec"];
    spec["nodeSelector"] = json!({ repair::labels::NODE_POOL: GPU_POOL });
    if let Some(tolerations) = spec["tolerations"].as_array_mut() {
        tolerations.push(json!({ "key": ACCELERATOR, "operator": "Exists", "effect": taints::NO_SCHEDULE }));
    }
    let resources = &mut spec["containers"][0]["resources"];
    resources["requests"][ACCELERATOR] = json!("1");
    resources["limits"][ACCELERATOR] = json!("1");
    json!({
        "metadata": { "name": "tuning" },
        "spec": {
            "completionMode": "Indexed", "completions": pods, "parallelism": pods,
            "podReplacementPolicy": "Failed", "backoffLimit": 100, "template": template,
        },
    })
}

/// A Job whose pods are of use only together.
fn simulation(pods: u32) -> Value {
    let mut template = template("simulation", "500m", &json!({}), "Never");
    // The cluster's own: pods stay for five minutes, and the AppWrapper is reset long before.
    template["spec"]["tolerations"] = json!([]);
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "simulation" },
        "spec": {
            "completionMode": "Indexed", "completions": pods, "parallelism": pods,
            "podReplacementPolicy": "Failed", "backoffLimit": 100, "template": template,
        },
    })
}

/// An AppWrapper of one component, with its name.
fn wrapped(component: &Value) -> Value {
    use appwrapper::annotations::{FORCEFUL_DELETION_GRACE_PERIOD, RETRY_PAUSE_PERIOD};
    let timers = json!({ FORCEFUL_DELETION_GRACE_PERIOD: FORCED_AFTER, RETRY_PAUSE_PERIOD: RESET_PAUSE });
    json!({
        "apiVersion": appwrapper::API_VERSION, "kind": appwrapper::KIND,
        "metadata": { "name": component["metadata"]["name"], "annotations": timers },
        "spec": { "suspend": false, "components": [{ "template": component }] },
    })
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

async fn post(client: &Client, path: &str, object: &Value) -> kube::Result<()> {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(|_| ())
}

async fn list(client: &Client, path: &str) -> kube::Result<Vec<Value>> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    let mut answer: Value = client.request(request).await?;
    Ok(answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// The parts of the work that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Workloads with fewer pods running, on nodes that are heard of and whose accelerator has not failed, than they should have,
    /// and AppWrappers that are not Running.
    pub(super) short: Vec<String>,
    /// Pods that cannot end.
    pub(super) stuck: Vec<String>,
    /// Pieces of batch work that are not done.
    pub(super) unfinished: u32,
}

impl Missing {
    /// True if all that should run now runs; what is stuck besides does no harm to the work.
    pub(super) fn nothing_is_short(&self) -> bool {
        self.short.is_empty()
    }

    /// True if all is as if nothing had happened.
    pub(super) fn nothing(&self) -> bool {
        self.short.is_empty() && self.stuck.is_empty() && self.unfinished == 0
    }
}

/// Looks at the cluster.
pub(super) async fn missing(client: &Client, work: &Work) -> kube::Result<Missing> {
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
    let workloads = [
        ("training", work.training),
        ("database", work.database),
        ("website", work.website),
        ("simulation", work.simulation),
        ("tuning", work.tuning),
    ];
    for (app, wanted) in workloads {
        // Two pods of one index are one.
        let running: BTreeSet<_> =
            pods.iter().filter(|p| label(p, "app") == Some(app)).filter(runs).map(identity).collect();
        if running.len() < wanted as usize {
            missing.short.push(format!("{app} runs {} of {wanted} pods", running.len()));
        }
    }
    for wrapper in list(client, APP_WRAPPERS).await? {
        let phase = wrapper["status"]["phase"].as_str().unwrap_or("new");
        if phase != "Running" {
            missing.short.push(format!("the AppWrapper {} is {phase}", name(&wrapper)));
        }
    }
    let is_over = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    missing.stuck = pods
        .iter()
        .filter(|p| is_leaving(p) && on_silent_node(p) && !is_over(p))
        .map(|p| name(p).to_owned())
        .collect();
    if let Some(batch) = list(client, JOBS).await?.iter().find(|job| name(job) == "batch") {
        let done = batch["status"]["succeeded"].as_u64().and_then(|n| u32::try_from(n).ok());
        missing.unfinished = work.batch.saturating_sub(done.unwrap_or(0));
    }
    Ok(missing)
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn label<'a>(pod: &'a Value, key: &str) -> Option<&'a str> {
    pod["metadata"]["labels"][key].as_str()
}

/// A key that a pod and its replacement share.
fn identity(pod: &Value) -> &str {
    label(pod, job::COMPLETION_INDEX).unwrap_or_else(|| name(pod))
}

fn is_unreachable(node: &Value) -> bool {
    node["spec"]["taints"].as_array().into_iter().flatten().any(|t| t["key"] == taints::UNREACHABLE)
}

fn has_failed_accelerator(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == ACCELERATOR_WORKS && it["status"] == "False")
}
