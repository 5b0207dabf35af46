//! An hour of a large cluster with failing nodes, under the real operator, in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use salvor_api::config;
use salvor_cluster::{LocalCluster, zoned};
use salvor_embedded::{ChangeKind, Faults};
use salvor_nodes::Fault;
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use crate::process::{cpu_seconds, memory_mb};

/// All Jobs are as large; the last one takes the rest.
const PODS_OF_A_JOB: usize = 100;
const ZONES: usize = 5;
/// The target: a virtual hour in a minute.
const TARGET: f64 = 60.0;

#[derive(Args, Clone, Copy)]
pub(crate) struct Sizes {
    /// Simulated nodes
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// Pods, of Jobs that Salvor runs, with consent to their recovery
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// The share of nodes that fail, in percent
    #[arg(long, default_value_t = 5)]
    failing: usize,
    /// Virtual minutes
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// What all that is random follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What happened in the hour.
#[derive(Default)]
struct Counts {
    changes: AtomicU64,
    pods_made: AtomicU64,
    recovered: AtomicU64,
}

/// Plays the hour and prints what it took.
pub(crate) async fn run(sizes: Sizes) -> Result<(), String> {
    let played = tokio::task::spawn_blocking(move || in_virtual_time(play(sizes)));
    played.await.map_err(|error| error.to_string())?
}

async fn play(sizes: Sizes) -> Result<(), String> {
    let Sizes { nodes, pods, failing, minutes, seed } = sizes;
    let own = std::process::id();
    let (clock, cpu) = (Instant::now(), cpu_seconds(own));
    let world = LocalCluster::start(salvor_simulate::cluster(seed)).await.map_err(|e| e.to_string())?;
    let counts = Arc::new(Counts::default());
    let counted = Arc::clone(&counts);
    world.api().observe(move |change| {
        counted.changes.fetch_add(1, Ordering::Relaxed);
        match (change.resource, change.kind) {
            ("pods", ChangeKind::Added) => counted.pods_made.fetch_add(1, Ordering::Relaxed),
            ("events", ChangeKind::Added) if is_recovery(change.object) => {
                counted.recovered.fetch_add(1, Ordering::Relaxed)
            }
            _ => 0,
        };
    });
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
    let running = world.fleet().truth().running().len();
    eprintln!(
        "{running} pods run on {nodes} nodes after 5 virtual minutes and {:.1} s",
        clock.elapsed().as_secs_f64()
    );

    let (start, cpu_of_start) = (Instant::now(), cpu_seconds(own));
    let changes_before = counts.changes.load(Ordering::Relaxed);
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut order: Vec<usize> = (1..=nodes).collect();
    chance.shuffle(&mut order);
    let fails = nodes * failing / 100;
    // They fail one after the other in the first half, so that the second half sees them recovered.
    let pause = Duration::from_secs(minutes * 60) / 2 / u32::try_from(fails.max(1)).unwrap_or(1);
    for (turn, node) in order.iter().take(fails).enumerate() {
        let fault = if turn % 2 == 0 { Fault::Crash } else { Fault::Partition };
        world.fleet().inject(&format!("node-{node}"), fault).await.map_err(|e| e.to_string())?;
        sleep(pause).await;
    }
    sleep(Duration::from_secs(minutes * 60) - pause * u32::try_from(fails).unwrap_or(0)).await;
    let (wall, cpu_spent) = (start.elapsed().as_secs_f64(), cpu_seconds(own) - cpu_of_start);
    let all = jobs.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
    let active: i64 = all.iter().filter_map(|job| job.status.as_ref()?.active).map(i64::from).sum();
    let changes = counts.changes.load(Ordering::Relaxed) - changes_before;
    eprintln!(
        "{minutes} virtual minutes, {fails} nodes failed: {wall:.1} s of wall time, {cpu_spent:.1} s of CPU, {} times as fast as life",
        (f64::from(u32::try_from(minutes * 60).unwrap_or(u32::MAX)) / wall).round(),
    );
    eprintln!(
        "{changes} changes ({:.0} a second), {} pods recovered, {} pods made in all, {active} active in the end",
        f64::from(u32::try_from(changes).unwrap_or(u32::MAX)) / wall,
        counts.recovered.load(Ordering::Relaxed),
        counts.pods_made.load(Ordering::Relaxed),
    );
    let (memory, peak) = memory_mb(own);
    eprintln!(
        "memory {memory:.0} MB, peak {peak:.0} MB; {:.1} s of CPU with the start",
        cpu_seconds(own) - cpu
    );
    eprintln!("target for an hour of 1,000 nodes and 10,000 pods: at most {TARGET} s");
    salvor.stop().await;
    Ok(())
}

fn is_recovery(event: &[u8]) -> bool {
    let reason = b"\"reason\":\"KueueForcefully";
    event.windows(reason.len()).any(|text| text == reason)
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
