//! Creates the objects of a scenario's work. They are plain JSON: the typed forms of these kinds would add a third to
//! the size of the program.

use http::Request;
use kube::Client;
use salvor_api::names::{annotations, appwrapper, taints};
use salvor_cluster::STORAGE;
use salvor_nodes::script;
use serde_json::{Value, json};

use super::{Budget, Consent, Scenario, Shape, Workload, workloads::pool_label};

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
pub(super) const APP_WRAPPERS: &str = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers";
pub(super) const REPAIR_POLICIES: &str = "/apis/salvor.dev/v1alpha1/noderepairpolicies";
pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// Lost nodes must not make a Job fail.
const BACKOFF_LIMIT: u32 = 100_000;

/// Who runs AppWrappers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    Salvor,
    /// No controller: the wrapped components are created directly.
    Nobody,
}

pub async fn create(client: &Client, scenario: &Scenario, wrapping: Wrapping) -> kube::Result<()> {
    for workload in &scenario.workloads {
        for (path, object) in objects(scenario, workload, wrapping) {
            post(client, path, &object).await?;
        }
        if let Some(budget) = workload.budget {
            post(client, BUDGETS, &disruption_budget(&workload.name, budget)).await?;
        }
    }
    Ok(())
}

/// The objects of a workload, each with the path under which it is created.
fn objects(scenario: &Scenario, workload: &Workload, wrapping: Wrapping) -> Vec<(&'static str, Value)> {
    let name = workload.name.as_str();
    let template = template(scenario, workload);
    match &workload.shape {
        Shape::Job { indexed, parallelism, waits_for_the_end } => {
            vec![(JOBS, job(name, workload.pods, *parallelism, *indexed, *waits_for_the_end, &template))]
        }
        Shape::JobSet { jobs, waits_for_the_end } => (0..*jobs)
            .map(|number| {
                let name = format!("{name}-{number}");
                (JOBS, job(&name, workload.pods, workload.pods, true, *waits_for_the_end, &template))
            })
            .collect(),
        Shape::StatefulSet { volume } => stateful_set(workload, volume.as_deref(), template),
        Shape::Deployment => {
            let labels = json!({ "app": name });
            vec![(
                DEPLOYMENTS,
                json!({
                    "metadata": { "name": name },
                    "spec": { "replicas": workload.pods, "selector": { "matchLabels": labels }, "template": template },
                }),
            )]
        }
        Shape::AppWrapper => {
            let mut job = job(name, workload.pods, workload.pods, true, true, &template);
            job["apiVersion"] = "batch/v1".into();
            job["kind"] = "Job".into();
            match wrapping {
                Wrapping::Salvor => vec![(APP_WRAPPERS, wrapped(workload, &job))],
                Wrapping::Nobody => vec![(JOBS, job)],
            }
        }
    }
}

fn disruption_budget(name: &str, budget: Budget) -> Value {
    let (field, amount) = match budget {
        Budget::MinAvailable(amount) => ("minAvailable", amount),
        Budget::MaxUnavailable(amount) => ("maxUnavailable", amount),
    };
    json!({
        "metadata": { "name": name },
        "spec": { field: amount.value(), "selector": { "matchLabels": { "app": name } } },
    })
}

fn job(
    name: &str,
    completions: u32,
    parallelism: u32,
    indexed: bool,
    waits_for_the_end: bool,
    template: &Value,
) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "completionMode": if indexed { "Indexed" } else { "NonIndexed" },
            "completions": completions, "parallelism": parallelism,
            "podReplacementPolicy": if waits_for_the_end { "Failed" } else { "TerminatingOrFailed" },
            "backoffLimit": BACKOFF_LIMIT, "template": template,
        },
    })
}

fn stateful_set(
    workload: &Workload,
    volume: Option<&str>,
    mut template: Value,
) -> Vec<(&'static str, Value)> {
    let name = workload.name.as_str();
    let labels = json!({ "app": name });
    let service = json!({
        "metadata": { "name": name },
        "spec": { "clusterIP": "None", "selector": labels, "ports": [{ "port": 5432 }] },
    });
    let mut claims = Vec::new();
    if let Some(size) = volume {
        template["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
        claims.push(json!({
            "metadata": { "name": "data" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
                "resources": { "requests": { "storage": size } } },
        }));
    }
    let set = json!({
        "metadata": { "name": name },
        "spec": { "serviceName": name, "replicas": workload.pods, "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": labels }, "template": template, "volumeClaimTemplates": claims },
    });
    vec![(SERVICES, service), (STATEFUL_SETS, set)]
}

/// An AppWrapper of one component, with the name of that component.
fn wrapped(workload: &Workload, component: &Value) -> Value {
    json!({
        "apiVersion": appwrapper::API_VERSION, "kind": appwrapper::KIND,
        "metadata": { "name": workload.name, "annotations": workload.annotations },
        "spec": { "suspend": false, "components": [{ "template": component }] },
    })
}

fn template(scenario: &Scenario, workload: &Workload) -> Value {
    let mut marks = match workload.shape {
        // An AppWrapper has its own annotations.
        Shape::AppWrapper => json!({}),
        _ => json!(workload.annotations),
    };
    match workload.consent {
        Consent::None => {}
        Consent::Terminate => marks[annotations::SAFE_TO_FORCEFULLY_TERMINATE] = annotations::CONSENT.into(),
        Consent::Delete => marks[annotations::SAFE_TO_FORCEFULLY_DELETE] = annotations::CONSENT.into(),
    }
    if let Some(after) = workload.evict_after {
        marks[annotations::EVICT_AFTER] = millis(after).into();
    }
    if let Some(takes) = workload.takes {
        marks[format!("{}run-for", script::PREFIX)] = millis(takes).into();
    }
    if let Some(every) = workload.checkpoint_every {
        marks[format!("{}checkpoint-every", script::PREFIX)] = millis(every).into();
    }
    if let Some(delay) = workload.start_delay {
        marks[format!("{}start-delay", script::PREFIX)] = millis(delay).into();
    }
    let mut tolerations: Vec<Value> = Vec::new();
    if let Some(tolerates) = workload.tolerates {
        tolerations.extend([taints::UNREACHABLE, taints::NOT_READY].map(|key| {
            json!({ "key": key, "operator": "Exists", "effect": taints::NO_EXECUTE,
                "tolerationSeconds": tolerates.as_secs() })
        }));
    }
    let restart = if workload.accumulates() { "Never" } else { "Always" };
    let mut spec = json!({
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": workload.grace.as_secs(),
        "containers": [{ "name": "main", "image": "demo", "resources": resources(workload) }],
    });
    if let Some(pool) = workload.pool.as_ref().and_then(|pool| scenario.pool(pool)) {
        spec["nodeSelector"] = json!({ pool_label(pool.machines.is_some()): pool.name });
        tolerations.extend(
            pool.taints
                .iter()
                .map(|taint| json!({ "key": taint.key, "operator": "Exists", "effect": taint.effect })),
        );
    }
    spec["tolerations"] = tolerations.into();
    json!({ "metadata": { "labels": { "app": workload.name }, "annotations": marks }, "spec": spec })
}

/// Requests; extended resources must have the same limit.
fn resources(workload: &Workload) -> Value {
    let mut resources = json!({ "requests": workload.requests });
    for (name, amount) in workload.requests.iter().filter(|(name, _)| name.contains('/')) {
        resources["limits"][name] = json!(amount);
    }
    resources
}

fn millis(span: std::time::Duration) -> String {
    format!("{}ms", span.as_millis())
}

pub(super) async fn post(client: &Client, path: &str, object: &Value) -> kube::Result<()> {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(|_| ())
}
