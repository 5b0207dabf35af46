//! Many zombie pods that become due at once: how soon a contender has recovered them all, and at what cost.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use salvor_testkit::{ControlPlane, Part};

use super::{
    contender::Contender,
    floor,
    observer::{Observed, Observer},
    pids,
    world::{self, Consent, MadePod, WantedPod},
};
use crate::process::{Disturbance, Watchman, cpu_seconds};

/// Nearly a kubelet's default limit.
const PODS_PER_NODE: usize = 100;
/// From the deletion request until a pod is due: its own grace period of a second, the recovery's minute, and the
/// possible difference between the clocks of contenders and server.
const UNTIL_DUE: Duration = Duration::from_secs(1 + 60 + 3);

/// Storms of one kind, each with a floor beside it.
#[derive(Debug)]
pub(crate) struct Storm {
    pub(crate) consent: Consent,
    pub(crate) rounds: Vec<Round>,
}

/// One storm and one floor, on equal pods, one after the other.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) contender: Run,
    pub(crate) floor: Run,
    /// API writes per pod, refused ones included.
    pub(crate) writes: f64,
    /// CPU seconds of the contender.
    pub(crate) cpu: f64,
    pub(crate) disturbance: Disturbance,
}

/// The result for one set of pods.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) observed: Observed,
    /// CPU seconds of the API server.
    pub(crate) server_cpu: f64,
}

/// Future zombie pods, with their own nodes and namespace.
struct Set {
    namespace: String,
    nodes: Vec<String>,
    pods: Vec<MadePod>,
}

impl Set {
    async fn make(
        plane: &ControlPlane,
        namespace: String,
        annotation: (&'static str, &'static str),
        size: usize,
    ) -> Result<Self, String> {
        let client = plane.admin().client("bench-world");
        let nodes: Vec<String> =
            (0..size.div_ceil(PODS_PER_NODE)).map(|i| format!("{namespace}-{i:03}")).collect();
        let wanted = (0..size).map(|i| WantedPod {
            name: format!("training-{i:05}"),
            node: nodes[i % nodes.len()].clone(),
            annotation: Some(annotation),
        });
        let wanted: Vec<WantedPod> = wanted.collect();
        world::make_namespace(&client, &namespace).await?;
        // Their kubelets have sent no heartbeat for long; only the taint is missing.
        world::make_nodes(&client, nodes.clone(), "Unknown").await?;
        let pods = world::make_pods(&client, &namespace, wanted).await?;
        let pods = world::mark_deleted(&client, pods).await?;
        Ok(Self { namespace, nodes, pods })
    }

    fn names(&self) -> HashSet<String> {
        self.pods.iter().map(|pod| pod.name.clone()).collect()
    }
}

/// Runs the storms, each time with a restarted contender, and the floors between them.
pub(crate) async fn measure(
    plane: &ControlPlane,
    contender: &Contender,
    consent: Consent,
    zombies: usize,
    rounds: usize,
) -> Result<Storm, String> {
    eprintln!("storm: making zombies for {}, {consent:?}", contender.name());
    let mut sets = Vec::new();
    for round in 0..rounds {
        let named = |of: &str| format!("storm-{round}-{of}");
        // The same size, but without consent: the contender must ignore the floor's pods.
        let floor = Set::make(plane, named("floor"), (consent.annotation(), "none"), zombies).await?;
        let own = Set::make(plane, named(contender.name()), (consent.annotation(), "true"), zombies).await?;
        sets.push((own, floor));
    }
    tokio::time::sleep(UNTIL_DUE).await;
    let mut measured = Vec::new();
    for (number, (own, floor)) in sets.into_iter().enumerate() {
        // The second one finds a larger database, so they alternate.
        let (floor_first, floor_second) =
            if number % 2 == 0 { (Some(floor), None) } else { (None, Some(floor)) };
        let mut floor_run = None;
        if let Some(set) = floor_first {
            floor_run = Some(run_floor(plane, consent, set).await?);
        }
        let (run, writes, cpu, disturbance) = run_contender(plane, contender, consent, &own).await?;
        if let Some(set) = floor_second {
            floor_run = Some(run_floor(plane, consent, set).await?);
        }
        let Some((floor, disturbance_of_floor)) = floor_run else { continue };
        eprintln!(
            "storm: {} {:.2} s, floor {:.2} s, {writes:.2} writes a pod, {cpu:.2} CPU s",
            contender.name(),
            run.observed.seconds,
            floor.observed.seconds,
        );
        let disturbance = disturbance.and(disturbance_of_floor);
        measured.push(Round { contender: run, floor, writes, cpu, disturbance });
    }
    Ok(Storm { consent, rounds: measured })
}

async fn run_floor(plane: &ControlPlane, consent: Consent, set: Set) -> Result<(Run, Disturbance), String> {
    let server = plane.pid(Part::ApiServer).unwrap_or(0);
    let observer = Observer::start(plane, &set.namespace, set.names(), consent).await?;
    let client = plane.admin().client("bench-floor");
    let (watchman, server_before) = (Watchman::begin(&pids(plane)), cpu_seconds(server));
    let start = Instant::now();
    let (observed, ()) =
        tokio::try_join!(observer.until_done(start), floor::run(&client, consent, set.pods))?;
    let run = Run { observed, server_cpu: cpu_seconds(server) - server_before };
    Ok((run, watchman.end(None)))
}

async fn run_contender(
    plane: &ControlPlane,
    contender: &Contender,
    consent: Consent,
    set: &Set,
) -> Result<(Run, f64, f64, Disturbance), String> {
    let running = contender.start(plane).await?;
    let pid = running.program.pid();
    let server = plane.pid(Part::ApiServer).unwrap_or(0);
    let observer = Observer::start(plane, &set.namespace, set.names(), consent).await?;
    let accounting = plane.accounting();
    let mark = accounting.mark().await;
    let client = plane.admin().client("bench-world");
    let ours: Vec<u32> = pids(plane).into_iter().chain([pid]).collect();
    let watchman = Watchman::begin(&ours);
    let (cpu_before, server_before) = (cpu_seconds(pid), cpu_seconds(server));
    let start = Instant::now();
    let (observed, ()) = tokio::try_join!(observer.until_done(start), world::lose_nodes(&client, &set.nodes))
        .map_err(|e| format!("{e}\n{}", running.tail()))?;
    let (cpu, server_cpu) = (cpu_seconds(pid) - cpu_before, cpu_seconds(server) - server_before);
    let disturbance = watchman.end(None);
    let requests = accounting.since(&mark).await;
    let writes = requests.count(|request| contender.is(&request.user_agent) && request.verb.is_write());
    Ok((Run { observed, server_cpu }, writes as f64 / set.pods.len().max(1) as f64, cpu, disturbance))
}
