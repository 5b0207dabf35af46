//! An hour of a large cluster with failing nodes, under the real operator, in virtual time.

mod mixed;
mod plain;

use std::{
    fmt::Write,
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use clap::{Args, ValueEnum};
use salvor_apiserver::{ChangeKind, Cluster};
use salvor_simulate::in_virtual_time;
use serde::{Deserialize, Serialize};

use crate::process::{Watchman, cores, cpu_seconds, memory_mb};

/// The target: a virtual hour in a minute, and within this memory.
const TARGET_SECONDS: f64 = 60.0;
const TARGET_MB: f64 = 500.0;
/// The page mentions it if other processes took more than this share of the machine.
const TOLERATED: f64 = 0.1;

/// A cluster and what happens in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum World {
    /// Jobs of 100 pods each; one node in twenty fails, one after the other
    Plain,
    /// Two large Jobs, a Deployment and a StatefulSet; three machines crash, and a zone is cut off for 15 minutes
    Mixed,
    /// The same as mixed, five times as large
    Large,
}

impl World {
    const ALL: [Self; 3] = [Self::Plain, Self::Mixed, Self::Large];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Mixed => "mixed",
            Self::Large => "large",
        }
    }

    fn usual(self) -> (usize, usize) {
        match self {
            Self::Plain => (1_000, 10_000),
            Self::Mixed => (1_000, 9_050),
            Self::Large => (5_000, 50_000),
        }
    }
}

/// What is played.
#[derive(Args, Clone)]
pub(crate) struct Choice {
    /// Play one cluster in this process, and write no page
    #[arg(long, value_name = "CLUSTER")]
    only: Option<World>,
    /// Simulated nodes [default: the cluster's own]
    #[arg(long, value_name = "N", requires = "only")]
    nodes: Option<usize>,
    /// Pods of all workloads together [default: the cluster's own]
    #[arg(long, value_name = "N", requires = "only")]
    pods: Option<usize>,
    /// Virtual minutes
    #[arg(long, default_value_t = 60, value_name = "N")]
    minutes: u64,
    /// What all that is random follows from
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Where the page is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/simulate.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Sizes {
    nodes: usize,
    pods: usize,
    minutes: u64,
    seed: u64,
}

/// The cost of a period of time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Spent {
    wall: f64,
    cpu: f64,
}

/// Measures what this process costs from here on.
struct Cost {
    began: Instant,
    cpu: f64,
}

impl Cost {
    fn begin() -> Self {
        Self { began: Instant::now(), cpu: cpu_seconds(std::process::id()) }
    }

    fn so_far(&self) -> Spent {
        Spent { wall: self.began.elapsed().as_secs_f64(), cpu: cpu_seconds(std::process::id()) - self.cpu }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Happened {
    changes: usize,
    pods_made: usize,
    recovered: usize,
}

#[derive(Clone, Default)]
struct Counts(Arc<[AtomicUsize; 3]>);

impl Counts {
    fn of(cluster: &Cluster) -> Self {
        let counts = Self::default();
        let counted = counts.clone();
        cluster.observe(move |change| {
            let [changes, made, recovered] = &*counted.0;
            changes.fetch_add(1, Ordering::Relaxed);
            match (change.resource, change.kind) {
                ("pods", ChangeKind::Added) => made.fetch_add(1, Ordering::Relaxed),
                ("events", ChangeKind::Added) if is_recovery(change.object) => {
                    recovered.fetch_add(1, Ordering::Relaxed)
                }
                _ => 0,
            };
        });
        counts
    }

    fn so_far(&self) -> Happened {
        let [changes, pods_made, recovered] =
            [0, 1, 2].map(|index: usize| self.0[index].load(Ordering::Relaxed));
        Happened { changes, pods_made, recovered }
    }
}

fn is_recovery(event: &[u8]) -> bool {
    let reason = b"\"reason\":\"KueueForcefully";
    event.windows(reason.len()).any(|text| text == reason)
}

/// The end of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Outcome {
    /// Until the pods ran.
    start: Spent,
    /// In total.
    spent: Spent,
    failed: usize,
    running: usize,
    counts: Happened,
}

/// One line of the page: a run in its own process.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    sizes: Sizes,
    outcome: Outcome,
    /// Resident memory at its peak, in MB.
    peak: f64,
}

pub(crate) async fn run(choice: Choice) -> Result<(), String> {
    if let Some(world) = choice.only {
        let line = tokio::task::spawn_blocking(move || play(world, &choice));
        let line = line.await.map_err(|error| error.to_string())??;
        eprintln!("{}", described(world, &line));
        // The parent run, which plays all clusters, reads this.
        let json = serde_json::to_string(&line).map_err(|e| e.to_string())?;
        #[expect(clippy::print_stdout, reason = "the result")]
        {
            println!("{json}");
        }
        return Ok(());
    }
    let watchman = Watchman::begin(&[]);
    let mut lines = Vec::new();
    for world in World::ALL {
        let line = in_a_process(world, &choice)?;
        eprintln!("{}", described(world, &line));
        lines.push((world, line));
    }
    let ours: f64 = lines.iter().map(|(_, line)| line.outcome.spent.cpu).sum();
    let others = watchman.end(None).share_without(ours);
    let page = page(&lines, others);
    eprintln!("{page}");
    std::fs::write(&choice.output, page)
        .map_err(|e| format!("the page cannot be written to {}: {e}", choice.output.display()))
}

fn play(world: World, choice: &Choice) -> Result<Line, String> {
    let (nodes, pods) = world.usual();
    let sizes = Sizes {
        nodes: choice.nodes.unwrap_or(nodes),
        pods: choice.pods.unwrap_or(pods),
        minutes: choice.minutes,
        seed: choice.seed,
    };
    let outcome = match world {
        World::Plain => in_virtual_time(plain::play(sizes)),
        World::Mixed | World::Large => in_virtual_time(mixed::play(sizes)),
    }?;
    Ok(Line { sizes, outcome, peak: memory_mb(std::process::id()).1 })
}

/// Runs in a separate process, so that each run has its own peak of memory.
fn in_a_process(world: World, choice: &Choice) -> Result<Line, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new(own)
        .args(["simulate", "--only", world.name()])
        .args(["--minutes", &choice.minutes.to_string(), "--seed", &choice.seed.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", world.name(), output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}

fn described(world: World, line: &Line) -> String {
    let Line { sizes, outcome, peak } = line;
    format!(
        "{}: {} virtual minutes of {} nodes and {} pods, {} nodes failed: {:.1} s of wall time, {:.1} s of CPU ({:.1} s of it \
         until the pods ran), peak {peak:.0} MB; {} changes, {} pods recovered, {} made in all, {} run in the end",
        world.name(),
        sizes.minutes,
        sizes.nodes,
        sizes.pods,
        outcome.failed,
        outcome.spent.wall,
        outcome.spent.cpu,
        outcome.start.cpu,
        outcome.counts.changes,
        outcome.counts.recovered,
        outcome.counts.pods_made,
        outcome.running,
    )
}

fn page(lines: &[(World, Line)], others: f64) -> String {
    let mut page = format!(
        "# Benchmarks: a virtual hour\n\n\
         Made by `make bench-simulate` ([how it measures](../../lab/bench/README.md#embedded-and-simulate)). The embedded cluster, its nodes \
         and the real operator in one process, on one thread of a machine with {} cores.\n\n\
         - **plain**: Jobs of 100 pods; 5 % of the nodes fail, one after the other.\n\
         - **mixed**: {} zones; Jobs of 2,000 and 3,000 pods, a Deployment of 4,000, and a StatefulSet of 50 with volumes. Three \
         machines crash, and one zone is cut off for 15 minutes. All of it together asks for a tenth more CPU than the nodes have, so \
         some pods always wait for a node. Target: at most {TARGET_SECONDS:.0} s on one core, and {TARGET_MB:.0} MB.\n\
         - **large**: the same shares on five times as many nodes. It has to finish.\n\n\
         | cluster | nodes | pods | nodes that fail | CPU of the hour | until the pods ran | memory, peak | changes of objects | \
         a change costs | pods recovered |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        cores(),
        mixed::ZONES,
    );
    for (world, Line { sizes, outcome, peak }) in lines {
        let Outcome { start, spent, failed, counts, .. } = outcome;
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| {} | {} | {} | {failed} | {:.1} s | {:.1} s | {peak:.0} MB | {} | {:.0} µs | {} |",
            world.name(),
            sizes.nodes,
            sizes.pods,
            spent.cpu,
            start.cpu,
            counts.changes,
            spent.cpu * 1e6 / counts.changes.max(1) as f64,
            counts.recovered,
        );
    }
    if others > TOLERATED {
        let _ = writeln!(
            page,
            "\nOthers took {:.0} % of the machine meanwhile: the times are too long.",
            others * 100.0
        );
    }
    page
}
