//! Many Jobs of the same size. Nodes fail one after the other.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use salvor_api::config;
use salvor_apiserver::Faults;
use salvor_cluster::{LocalCluster, zoned};
use salvor_nodes::Fault;
use salvor_simulate::{Line, Process};
use serde_json::json;
use tokio::time::sleep;

use super::{Cost, Counts, Outcome, Sizes};

/// All Jobs have this size; the last one takes the rest.
const PODS_OF_A_JOB: usize = 100;
const ZONES: usize = 5;
/// The share of nodes that fail, in percent.
const FAILING: usize = 5;

/// Plays the hour, after five minutes in which the pods start.
pub(super) async fn play(sizes: Sizes) -> Result<Outcome, String> {
    let Sizes { nodes, pods, minutes, seed } = sizes;
    let cost = Cost::begin();
    let world = LocalCluster::start(salvor_simulate::cluster(seed)).await.map_err(|e| e.to_string())?;
    let counts = Counts::of(world.api());
    world.fleet().add(zoned(nodes, ZONES)).await.map_err(|e| e.to_string())?;
    let switched_on = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\nfeatureGates: {FailureRecoveryPolicy: true}\n";
    let configuration = config::parse(switched_on).map_err(|e| e.to_string())?;
    let salvor = Process::start(world.api(), "salvor", &configuration, Line::default(), &Faults::default());
    let jobs: Api<Job> = Api::default_namespaced(world.client());
    let mut left = pods;
    for number in 0.. {
        let size = left.min(PODS_OF_A_JOB);
        if size == 0 {
            break;
        }
        left -= size;
        let job = job(&format!("job-{number}"), size).map_err(|e| e.to_string())?;
        jobs.create(&PostParams::default(), &job).await.map_err(|e| e.to_string())?;
    }
    sleep(Duration::from_secs(300)).await;
    let start = cost.so_far();
    eprintln!(
        "{} pods run on {nodes} nodes after {:.1} s of CPU",
        world.fleet().truth().running().len(),
        start.cpu
    );

    let mut chance = fastrand::Rng::with_seed(seed);
    let mut order: Vec<usize> = (1..=nodes).collect();
    chance.shuffle(&mut order);
    let fails = nodes * FAILING / 100;
    // They fail one after the other in the first half, so that they recover in the second half.
    let pause = Duration::from_secs(minutes * 60) / 2 / u32::try_from(fails.max(1)).unwrap_or(1);
    for (turn, node) in order.iter().take(fails).enumerate() {
        let fault = if turn % 2 == 0 { Fault::Crash } else { Fault::Partition };
        world.fleet().inject(&format!("node-{node}"), fault).await.map_err(|e| e.to_string())?;
        sleep(pause).await;
    }
    sleep(Duration::from_secs(minutes * 60) - pause * u32::try_from(fails).unwrap_or(0)).await;
    let spent = cost.so_far();
    let all = jobs.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
    let active: i32 = all.iter().filter_map(|job| job.status.as_ref()?.active).sum();
    let running = usize::try_from(active).unwrap_or(0);
    let outcome = Outcome { start, spent, failed: fails, running, counts: counts.so_far() };
    salvor.stop().await;
    Ok(outcome)
}

fn job(name: &str, size: usize) -> Result<Job, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "managedBy": "salvor.dev/job-controller",
            "completions": size, "parallelism": size, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
            "backoffLimit": 1000,
            "template": {
                "metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "work", "resources": {"requests": {"cpu": "500m"}}}],
                },
            },
        },
    }))
}
