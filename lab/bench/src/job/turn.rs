//! One turn of one contender: the same work for each, from a start to an end.

use std::time::Instant;

use salvor_testkit::{ControlPlane, Part, accounting::Verb};
use serde_json::{Value, json};

use super::{
    Sizes,
    contender::Contender,
    load::{Kubelet, Load},
};
use crate::process::{Disturbance, Watchman, cpu_seconds, memory_mb};

/// The results of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Jobs of one pod that became active per second.
    pub(crate) active: f64,
    /// Jobs of one pod that became Complete per second, once their pods terminated.
    pub(crate) complete: f64,
    /// Jobs per second from creation to Complete, with pods that terminate as soon as they exist.
    pub(crate) live: f64,
    /// Pods of the Indexed Job created per second.
    pub(crate) created: f64,
    /// Requests without events per Job: until it was active, then until it was Complete, and live.
    pub(crate) calls_active: f64,
    pub(crate) calls_complete: f64,
    pub(crate) calls_live: f64,
    /// The same for each pod of the Indexed Job, from its creation to its end.
    pub(crate) calls_pod: f64,
    /// Events for each Job and pod.
    pub(crate) events: f64,
    /// CPU seconds of the contender, and of the API server, over the whole turn.
    pub(crate) cpu: f64,
    pub(crate) server_cpu: f64,
    /// Resident memory in MB at the end, and at its peak.
    pub(crate) memory: f64,
    pub(crate) peak: f64,
    pub(crate) disturbance: Disturbance,
}

/// Runs all work once with a contender.
pub(crate) async fn measure(
    plane: &ControlPlane,
    contender: &Contender,
    round: usize,
    sizes: &Sizes,
) -> Result<Turn, String> {
    let server = plane.pid(Part::ApiServer).unwrap_or(0);
    let client = plane.admin().client("bench-world");
    let at_work = contender.start(plane).await?;
    let pid = at_work.pid();
    let ours: Vec<u32> =
        [Part::Etcd, Part::ApiServer].into_iter().filter_map(|part| plane.pid(part)).chain([pid]).collect();
    let watchman = Watchman::begin(&ours);
    let (cpu, server_cpu) = (cpu_seconds(pid), cpu_seconds(server));
    let namespace = |of: &str| format!("{}-{round}-{of}", contender.name());
    let accounting = plane.accounting();
    let mut events = 0;
    let calls = async |mark, events: &mut u64| {
        let table = accounting.since(&mark).await;
        *events += table.count(|r| contender.is(&r.user_agent) && r.resource.starts_with("events"));
        let table = table.count(|r| {
            contender.is(&r.user_agent) && r.verb != Verb::Watch && !r.resource.starts_with("events")
        });
        (accounting.mark().await, table as f64)
    };
    let (jobs, many) = (sizes.jobs, sizes.jobs as f64);
    let names = |of: &str| (0..jobs).map(|i| format!("{of}-{i:05}")).collect::<Vec<_>>();

    let mut load = Load::open(&client, &namespace("small")).await?;
    let mark = accounting.mark().await;
    let start = Instant::now();
    load.create(names("job"), &spec(contender, 1)).await?;
    let active =
        load.until(start, "all active", |load| load.active.len() == jobs && load.pods.len() == jobs).await?;
    let (mark, calls_active) = calls(mark, &mut events).await;
    let start = Instant::now();
    load.end_pods().await?;
    let complete = load.until(start, "all complete", |load| load.complete.len() == jobs).await?;
    load.until_let_go().await?;
    let (_, calls_complete) = calls(mark, &mut events).await;
    load.close().await?;

    let mut load = Load::open(&client, &namespace("live")).await?;
    let kubelet = Kubelet::start(&client, &namespace("live")).await?;
    let mark = accounting.mark().await;
    let start = Instant::now();
    load.create(names("job"), &spec(contender, 1)).await?;
    let live = load.until(start, "all complete", |load| load.complete.len() == jobs).await?;
    load.until_let_go().await?;
    let (_, calls_live) = calls(mark, &mut events).await;
    drop(kubelet);
    load.close().await?;

    let pods = sizes.pods;
    let mut load = Load::open(&client, &namespace("large")).await?;
    let mark = accounting.mark().await;
    let start = Instant::now();
    load.create(vec!["large".to_owned()], &spec(contender, pods)).await?;
    let created = load.until(start, "all pods made", |load| load.pods.len() == pods).await?;
    let start = Instant::now();
    load.end_pods().await?;
    load.until(start, "complete", |load| load.complete.len() == 1).await?;
    load.until_let_go().await?;
    let (_, calls_pod) = calls(mark, &mut events).await;
    load.close().await?;

    let (memory, peak) = memory_mb(pid);
    let turn = Turn {
        active: many / active,
        complete: many / complete,
        live: many / live,
        created: pods as f64 / created,
        calls_active: calls_active / many,
        calls_complete: calls_complete / many,
        calls_live: calls_live / many,
        calls_pod: calls_pod / pods as f64,
        events: events as f64 / (2.0 * many + pods as f64),
        cpu: cpu_seconds(pid) - cpu,
        server_cpu: cpu_seconds(server) - server_cpu,
        memory,
        peak,
        disturbance: watchman.end(None),
    };
    at_work.stop().await?;
    Ok(turn)
}

/// The spec of a Job for this contender: of one pod, or Indexed.
fn spec(contender: &Contender, pods: usize) -> Value {
    let container = json!({"name": "main", "image": "example.org/work:1", "command": ["work"]});
    json!({
        "managedBy": contender.managed_by(),
        "completions": pods,
        "parallelism": pods,
        "completionMode": if pods > 1 { "Indexed" } else { "NonIndexed" },
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    })
}
