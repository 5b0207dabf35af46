//! A mixed cluster: large Jobs, a Deployment and a StatefulSet with volumes, machines that crash, and a zone that is
//! partitioned.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use salvor_api::{
    ControllerList, Gate, GoDuration, LabelSelector,
    config::{Configuration, FailureRecoveryRule, TaintNodeOutOfService},
    crds,
    names::{annotations, taints},
};
use salvor_apiserver::Faults;
use salvor_cluster::{LocalCluster, STORAGE, zoned};
use salvor_nodes::{Fault, script};
use salvor_simulate::{Line, Process};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Cost, Counts, Outcome, Sizes};

pub(super) const ZONES: usize = 10;
/// The number of pods of each workload, relative to each other: a Job that runs forever, a Job of two minutes' work in
/// four batches, a Deployment, and a StatefulSet with a volume each.
const SHARES: [(&str, usize); 4] =
    [("training", 2_000), ("batch", 3_000), ("website", 4_000), ("database", 50)];
const TURNS: usize = 4;
/// The number of machines that crash, one after the other.
const CRASHES: usize = 3;
/// The zone that is partitioned, and for how long.
const CUT_OFF: usize = 2;
const CUT_OFF_FOR: Duration = Duration::from_secs(15 * 60);
/// The interval between two failures.
const PAUSE: Duration = Duration::from_secs(5 * 60);
const POOL: (&str, &str) = ("pool", "mixed");

/// The pods of each workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    training: usize,
    batch: usize,
    website: usize,
    database: usize,
}

impl Work {
    /// Splits a number of pods by these shares.
    fn of(pods: usize) -> Self {
        let all: usize = SHARES.iter().map(|(_, share)| share).sum();
        let share = |index: usize| (pods * SHARES[index].1 / all).max(1);
        Self { training: share(0), batch: share(1), website: share(2), database: share(3) }
    }
}

pub(super) async fn play(sizes: Sizes) -> Result<Outcome, String> {
    let Sizes { nodes, pods, minutes, seed } = sizes;
    let cost = Cost::begin();
    let world = LocalCluster::start(salvor_simulate::cluster(seed)).await.map_err(|e| e.to_string())?;
    let counts = Counts::of(world.api());
    let profiles = zoned(nodes, ZONES).map(|profile| profile.labelled(POOL.0, POOL.1));
    world.fleet().add(profiles).await.map_err(|e| e.to_string())?;
    let client = world.client();
    for definition in [crds::APPWRAPPER, crds::NODE_REPAIR_POLICY] {
        let definition: Value = serde_saphyr::from_str(definition).map_err(|e| e.to_string())?;
        post(&client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await?;
    }
    let salvor = Process::start(world.api(), "salvor", &configuration(), Line::default(), &Faults::default());
    create(&client, Work::of(pods)).await?;
    let hour = Duration::from_secs(minutes * 60);
    let end = tokio::time::Instant::now() + hour;
    sleep(PAUSE.min(hour / 12)).await;
    let start = cost.so_far();
    eprintln!(
        "{} pods run on {nodes} nodes after {:.1} s of CPU",
        world.fleet().truth().running().len(),
        start.cpu
    );
    let mut failed = 0;
    for number in 1..=CRASHES.min(nodes) {
        world.fleet().inject(&format!("node-{number}"), Fault::Crash).await.map_err(|e| e.to_string())?;
        failed += 1;
        sleep(PAUSE.min(hour / 12)).await;
    }
    let lost: Vec<String> = (0..nodes)
        .filter(|index| index % ZONES + 1 == CUT_OFF)
        .map(|index| format!("node-{}", index + 1))
        .collect();
    for node in &lost {
        world.fleet().inject(node, Fault::Partition).await.map_err(|e| e.to_string())?;
    }
    failed += lost.len();
    sleep(CUT_OFF_FOR.min(hour / 4)).await;
    for node in &lost {
        world.fleet().heal(node).await.map_err(|e| e.to_string())?;
    }
    tokio::time::sleep_until(end).await;
    let spent = cost.so_far();
    let running = Api::<Pod>::default_namespaced(client)
        .list_metadata(&ListParams::default().fields("status.phase=Running"))
        .await
        .map_err(|e| e.to_string())?;
    let outcome = Outcome { start, spent, failed, running: running.items.len(), counts: counts.so_far() };
    salvor.stop().await;
    Ok(outcome)
}

/// The configuration of the demo: every recovery, and nodes are tainted out-of-service.
fn configuration() -> Configuration {
    let mut configuration = Configuration::default();
    configuration.leader_election.enabled = false;
    configuration.feature_gates.set(Gate::FailureRecoveryPolicy, true);
    configuration.job.unmanaged_jobs = true;
    let selector = LabelSelector {
        match_labels: [(POOL.0.to_owned(), POOL.1.to_owned())].into(),
        ..LabelSelector::default()
    };
    configuration.failure_recovery_policy.rules =
        vec![FailureRecoveryRule::TaintNodeOutOfService(TaintNodeOutOfService {
            node_selector: selector,
            unreachable_node_timeout: GoDuration::from_secs(150),
        })];
    configuration.webhooks.enabled = false;
    configuration.appwrapper.wrapped_kinds_without_webhooks = vec!["Job.batch".to_owned()];
    configuration.controllers = ControllerList::new(["*", "appwrapper", "repair"]);
    configuration
}

async fn create(client: &Client, work: Work) -> Result<(), String> {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let terminate = json!({ annotations::SAFE_TO_FORCEFULLY_TERMINATE: "true" });
    let job = |name: &str, completions: usize, parallelism: usize, cpu: &str, marks: &Value| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "completionMode": "Indexed", "completions": completions, "parallelism": parallelism,
                "podReplacementPolicy": "Failed", "backoffLimit": 100_000, "template": template(name, cpu, marks, "Never"),
            },
        })
    };
    post(client, JOBS, &job("training", work.training, work.training, "3", &terminate)).await?;
    let database = json!({ "app": "database" });
    let service = json!({
        "metadata": { "name": "database" },
        "spec": { "clusterIP": "None", "selector": database, "ports": [{ "port": 5432 }] },
    });
    post(client, "/api/v1/namespaces/default/services", &service).await?;
    let mut stateful =
        template("database", "1", &json!({ annotations::SAFE_TO_FORCEFULLY_DELETE: "true" }), "Always");
    stateful["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": STORAGE,
            "resources": { "requests": { "storage": "10Gi" } } },
    });
    let set = json!({
        "metadata": { "name": "database" },
        "spec": { "serviceName": "database", "replicas": work.database, "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": database }, "template": stateful, "volumeClaimTemplates": [claim] },
    });
    post(client, "/apis/apps/v1/namespaces/default/statefulsets", &set).await?;
    let deployment = json!({
        "metadata": { "name": "website" },
        "spec": { "replicas": work.website, "selector": { "matchLabels": { "app": "website" } },
            "template": template("website", "500m", &json!({}), "Always") },
    });
    post(client, "/apis/apps/v1/namespaces/default/deployments", &deployment).await?;
    let mut marks = terminate;
    marks[format!("{}run-for", script::PREFIX)] = json!("2m");
    post(client, JOBS, &job("batch", work.batch, work.batch.div_ceil(TURNS), "1", &marks)).await
}

fn template(app: &str, cpu: &str, marks: &Value, restart: &str) -> Value {
    let tolerated = |key: &str| json!({ "key": key, "operator": "Exists", "effect": taints::NO_EXECUTE, "tolerationSeconds": 30 });
    json!({
        "metadata": { "labels": { "app": app }, "annotations": marks },
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 10,
            "tolerations": [tolerated(taints::UNREACHABLE), tolerated(taints::NOT_READY)],
            "containers": [{ "name": "main", "image": "work", "resources": { "requests": { "cpu": cpu } } }],
        },
    })
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<(), String> {
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).map_err(|e| e.to_string())?;
    client.request_text(request).await.map(|_| ()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_usual_size_are_the_usual_numbers() {
        let usual = Work { training: 2_000, batch: 3_000, website: 4_000, database: 50 };
        assert_eq!(Work::of(9_050), usual);
    }

    /// The work of a small cluster comes back; the benchmark measures how long that takes.
    #[test]
    fn a_small_mixed_cluster_recovers() {
        let sizes = Sizes { nodes: 20, pods: 91, minutes: 60, seed: 1 };
        let outcome = salvor_simulate::in_virtual_time(play(sizes)).unwrap();
        let work = Work::of(91);
        assert_eq!(outcome.failed, 3 + 2);
        // The batch is done by then.
        assert_eq!(outcome.running, work.training + work.website + work.database);
        assert!(outcome.counts.pods_made > outcome.running + work.batch, "pods were made anew");
    }
}
