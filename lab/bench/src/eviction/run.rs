//! Rounds of an eviction and a floor, on equal sets, one after the other.

use std::{
    convert::Infallible,
    path::Path,
    time::{Duration, Instant},
};

use salvor_testkit::ControlPlane;

use super::{
    floor,
    world::{self, Detacher, Set, Shape},
};
use crate::{
    process::{Disturbance, Watchman, cpu_seconds, memory_mb},
    running::{Running, start_salvor},
    zombie::{observer::Observer, pids, world::Consent},
};

/// The brake is off: the benchmark measures many nodes at once.
const CONFIGURATION: &str = "controllers: [eviction]
brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}
";

#[derive(Debug)]
pub(crate) struct Round {
    /// From the first taint until the last pod was gone, its event recorded, and the last volume free.
    pub(crate) seconds: f64,
    /// The same by bare requests.
    pub(crate) floor: f64,
    /// API writes per pod, refused ones included.
    pub(crate) writes: f64,
    /// CPU seconds of Salvor.
    pub(crate) cpu: f64,
    /// Its resident memory before, a quarter of the way through, and at its peak.
    pub(crate) memory_before: f64,
    pub(crate) memory_early: f64,
    pub(crate) memory_peak: f64,
    pub(crate) disturbance: Disturbance,
}

/// Runs the rounds. The second one finds a larger database, so eviction and floor alternate.
pub(crate) async fn measure(
    plane: &ControlPlane,
    salvor: &Path,
    shape: Shape,
    rounds: usize,
) -> Result<Vec<Round>, String> {
    let client = plane.admin().client("bench-world");
    let mut measured = Vec::new();
    for number in 0..rounds {
        eprintln!("eviction: making {shape:?}, twice");
        let own = Set::make(&client, format!("round-{number}-salvor"), shape).await?;
        let bare = Set::make(&client, format!("round-{number}-floor"), shape).await?;
        let floor_comes_first = number % 2 == 0;
        let mut floor = 0.0;
        if floor_comes_first {
            floor = run_floor(plane, bare.clone()).await?;
        }
        let mut round = run_salvor(plane, salvor, &own).await?;
        if !floor_comes_first {
            floor = run_floor(plane, bare).await?;
        }
        round.floor = floor;
        eprintln!(
            "eviction: salvor {:.2} s, floor {:.2} s, {:.3} writes a pod, {:.2} CPU s",
            round.seconds, round.floor, round.writes, round.cpu
        );
        measured.push(round);
    }
    Ok(measured)
}

async fn run_floor(plane: &ControlPlane, set: Set) -> Result<f64, String> {
    let observer = Observer::start(plane, &set.namespace, set.names(), Consent::Delete).await?;
    let detacher = Detacher::start(plane.admin().client("bench-detacher"), &set).await?;
    let client = plane.admin().client("bench-floor");
    let start = Instant::now();
    let (observed, free, ()) =
        tokio::try_join!(observer.until_done(start), detacher.until_free(), floor::run(&client, set))?;
    Ok(observed.seconds.max(free.duration_since(start).as_secs_f64()))
}

/// Starts Salvor, and waits until it is idle.
pub(crate) async fn start(plane: &ControlPlane, salvor: &Path) -> Result<Running, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (program, address) = start_salvor(salvor, plane, folder.path(), CONFIGURATION).await?;
    Running::when_at_rest("salvor", program, address, folder).await
}

async fn run_salvor(plane: &ControlPlane, salvor: &Path, set: &Set) -> Result<Round, String> {
    let running = start(plane, salvor).await?;
    let pid = running.program.pid();
    let observer = Observer::start(plane, &set.namespace, set.names(), Consent::Delete).await?;
    let detacher = Detacher::start(plane.admin().client("bench-detacher"), set).await?;
    let accounting = plane.accounting();
    let mark = accounting.mark().await;
    let client = plane.admin().client("bench-world");
    let ours: Vec<u32> = pids(plane).into_iter().chain([pid]).collect();
    let watchman = Watchman::begin(&ours);
    let (cpu_before, memory_before) = (cpu_seconds(pid), memory_mb(pid).0);
    let start = Instant::now();
    let mut memory = Vec::new();
    let (observed, free, ()) = {
        let work = async {
            tokio::try_join!(observer.until_done(start), detacher.until_free(), world::request(&client, set))
        };
        tokio::select! {
            done = work => done.map_err(|e| format!("{e}\n{}", running.tail()))?,
            never = sample_memory(pid, &mut memory) => match never {},
        }
    };
    let seconds = observed.seconds.max(free.duration_since(start).as_secs_f64());
    let cpu = cpu_seconds(pid) - cpu_before;
    let disturbance = watchman.end(None);
    let requests = accounting.since(&mark).await;
    let writes =
        requests.count(|request| request.user_agent.starts_with("salvor") && request.verb.is_write());
    Ok(Round {
        seconds,
        floor: 0.0,
        writes: writes as f64 / set.pods.len().max(1) as f64,
        cpu,
        memory_before,
        memory_early: memory.get(memory.len() / 4).copied().unwrap_or(memory_before),
        memory_peak: memory_mb(pid).1,
        disturbance,
    })
}

/// Samples a process ten times a second.
async fn sample_memory(pid: u32, memory: &mut Vec<f64>) -> Infallible {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        memory.push(memory_mb(pid).0);
    }
}
