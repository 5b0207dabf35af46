//! One turn of one contender: the same work for each, on its own control plane.

use std::time::Instant;

use salvor_testkit::{ControlPlane, Part, accounting::Table};
use serde_json::json;

use super::{
    Sizes,
    contender::Contender,
    load::{JOB_COMPLETE, Load, READY, Wrapped},
};
use crate::process::{Disturbance, Watchman, cpu_seconds, memory_mb};
use crate::running::rest;

/// The grace period of a failed pod before the reset, in seconds.
pub(crate) const GRACE: f64 = 2.0;

/// The results of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// AppWrappers per second: from the first creation until the last one was Running, and until its pods were ready.
    pub(crate) running: f64,
    pub(crate) ready: f64,
    /// AppWrappers per second that succeeded, once their pods had.
    pub(crate) succeeded: f64,
    /// Jobs per second that became Complete: a controller of AppWrappers cannot be faster than the Job controller.
    pub(crate) jobs: f64,
    /// AppWrappers per second through both: from creation until ready, and succeeded.
    pub(crate) whole: f64,
    /// Writes per AppWrapper until its pods were ready, and until it had succeeded; without events and reviews.
    pub(crate) writes_ready: f64,
    pub(crate) writes_succeeded: f64,
    pub(crate) events: f64,
    /// Seconds from a pod's failure to Resetting, beyond the grace period: the median, and the longest.
    pub(crate) detection: f64,
    pub(crate) detection_longest: f64,
    pub(crate) cpu: f64,
    pub(crate) server_cpu: f64,
    pub(crate) memory_idle: f64,
    pub(crate) memory_peak: f64,
    pub(crate) disturbance: Disturbance,
}

/// Runs all work once with a contender.
pub(crate) async fn measure(contender: &Contender, sizes: &Sizes) -> Result<Turn, String> {
    let plane = ControlPlane::builder()
        .with(Part::ControllerManager)
        .flag(Part::ControllerManager, "--controllers=job-controller,garbage-collector-controller")
        .flag(Part::ControllerManager, "--kube-api-qps=10000")
        .flag(Part::ControllerManager, "--kube-api-burst=10000")
        .start()
        .await
        .map_err(|e| e.to_string())?;
    let server = plane.pid(Part::ApiServer).unwrap_or(0);
    let client = plane.admin().client("bench-world");
    let running = contender.start(&plane).await?;
    let pid = running.program.pid();
    let ours: Vec<u32> = Part::ALL.into_iter().filter_map(|part| plane.pid(part)).chain([pid]).collect();
    let watchman = Watchman::begin(&ours);
    let (cpu, server_cpu) = (cpu_seconds(pid), cpu_seconds(server));
    let (memory_idle, _) = memory_mb(pid);
    let accounting = plane.accounting();
    let (count, many) = (sizes.appwrappers, sizes.appwrappers as f64);

    let mut load = Load::open(&client, "many").await?;
    let mark = accounting.mark().await;
    let start = Instant::now();
    load.create((0..count).map(|i| format!("aw-{i:05}")).collect(), Wrapped::Job, json!({})).await?;
    let to_running = load.until(start, count, "Running").await?;
    let to_ready = load.until(start, count, READY).await?;
    let writes_ready = writes(&accounting.since(&mark).await, contender);
    let ended = Instant::now();
    load.move_pods("Succeeded").await?;
    let to_succeeded = load.until(ended, count, "Succeeded").await?;
    let to_complete = load.until(ended, count, JOB_COMPLETE).await?;
    let table = accounting.since(&mark).await;
    let cpu = cpu_seconds(pid) - cpu;
    let server_cpu = cpu_seconds(server) - server_cpu;

    let mut detections = detections(&client, pid, sizes.failures).await?;
    detections.sort_by(f64::total_cmp);
    let (_, memory_peak) = memory_mb(pid);
    let turn = Turn {
        running: many / to_running,
        ready: many / to_ready,
        succeeded: many / to_succeeded,
        jobs: many / to_complete,
        whole: many / (to_ready + to_succeeded),
        writes_ready: writes_ready / many,
        writes_succeeded: writes(&table, contender) / many,
        events: table.count(|r| contender.is(&r.user_agent) && r.resource.starts_with("events")) as f64
            / many,
        detection: detections.get(detections.len() / 2).copied().unwrap_or(0.0),
        detection_longest: detections.last().copied().unwrap_or(0.0),
        cpu,
        server_cpu,
        memory_idle,
        memory_peak,
        disturbance: watchman.end(None),
    };
    eprintln!("{table}");
    Ok(turn)
}

/// Makes pods fail when all AppWrappers are ready and the contender (with this process id) is idle. Returns the seconds
/// from there to Resetting, without the grace period.
async fn detections(client: &kube::Client, pid: u32, count: usize) -> Result<Vec<f64>, String> {
    let annotations = json!({
        "workload.codeflare.dev.appwrapper/failureGracePeriodDuration": format!("{GRACE}s"),
        "workload.codeflare.dev.appwrapper/retryPausePeriodDuration": "1h",
    });
    let mut load = Load::open(client, "failing").await?;
    let start = Instant::now();
    load.create((0..count).map(|i| format!("fail-{i:05}")).collect(), Wrapped::Pod, annotations).await?;
    load.until(start, count, READY).await?;
    // A contender that is still busy might happen to check them once more.
    rest(pid).await.ok_or("the contender does not come to rest")?;
    let failed = Instant::now();
    load.move_pods("Failed").await?;
    load.until(failed, count, "Resetting").await?;
    let resetting = load.reached.iter().filter(|((_, phase), _)| phase == "Resetting");
    Ok(resetting.map(|(_, at)| at.duration_since(failed).as_secs_f64() - GRACE).collect())
}

/// Writes of a contender, without events and without reviews.
fn writes(table: &Table, contender: &Contender) -> f64 {
    let counted = table.count(|request| {
        contender.is(&request.user_agent)
            && request.verb.is_write()
            && !request.resource.starts_with("events")
            && !request.resource.ends_with("reviews")
            && request.resource != "leases"
    });
    counted as f64
}
