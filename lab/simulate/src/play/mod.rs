//! Plays a scenario in virtual time: the embedded cluster, simulated nodes, and the real operator with one policy.
//!
//! [`play`] returns a [`Record`]: all that a report needs, as plain data. The same scenario, policy and seed give the
//! same record. [`Agenda`] and [`Recorder`] are its parts, with which a benchmark plays the same scenario on a real
//! control plane.

mod agenda;
mod audience;
mod calls;
mod policy;
mod record;
mod recorder;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use salvor_api::Controller;
use salvor_cluster::{LocalCluster, StartError};
use salvor_operator::{Notice, Notices, Operator, Surroundings};
use salvor_why::{ExpectedBack, Judge, Overview, Reader, brief};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

pub use agenda::Agenda;
pub use audience::{Audience, Seat};
pub use policy::{Peer, Policy, PolicyError, UnknownPeer, document};
pub use record::{
    Calls, DoubleRun, Ended, Held, IncidentRecord, Millis, NodeLife, PodLife, Record, RunLife, Stuck,
    WorkloadFacts,
};
pub use recorder::Recorder;

use crate::{
    in_virtual_time,
    peers::{AppWrapperController, NodeHealth},
    scenario::{Scenario, create, introduce, missing, moment, raise_spread},
};
use audience::{Nobody, tell};

/// All pods of a new cluster must run within this time.
const OPENING: Duration = Duration::from_secs(300);
/// Nodes that have not registered by then never will: the server refuses them. Machines of a pool boot first.
const REGISTRATION: Duration = Duration::from_secs(2 * 24 * 3600);
/// The polling interval meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// At most this many workloads are named per cause.
const NAMED: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    #[error("the simulated cluster cannot be started: {0}")]
    Start(#[from] StartError),
    #[error("the simulated cluster refuses an object: {}", refusal(.0))]
    Api(#[from] kube::Error),
    #[error("the simulated cluster refuses the nodes: look at their labels, taints and capacity")]
    Registration,
    #[error("the state at the end cannot be read: {0}")]
    Why(#[from] salvor_why::WhyError),
}

fn refusal(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Plays a scenario on this thread.
pub fn play(scenario: &Scenario, policy: &Policy, seed: u64) -> Result<Record, PlayError> {
    in_virtual_time(run(&policy.scenario(scenario), policy, seed, &Seat::new(Nobody.into())))
}

/// Like [`play`], with an observer. The history is the same as without it.
pub fn play_before<A: Audience>(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    seat: &Seat<A>,
) -> Result<Record, PlayError> {
    in_virtual_time(run(&policy.scenario(scenario), policy, seed, seat))
}

/// When subjects became due, and which were blocked.
#[derive(Debug, Default)]
struct Verdicts {
    due: BTreeMap<String, Vec<Timestamp>>,
    held: BTreeMap<(&'static str, String), Timestamp>,
}

async fn run<A: Audience>(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    seat: &Seat<A>,
) -> Result<Record, PlayError> {
    let mut cluster = LocalCluster::start(crate::cluster(seed)).await?;
    let recorder = Recorder::new(scenario);
    let (pen, seen) = (recorder.clone(), seat.clone());
    cluster.api().observe(move |change| {
        pen.see(change);
        tell(&seen, |audience| audience.change(change));
    });
    match timeout(REGISTRATION, raise_spread(&mut cluster, scenario, seed)).await {
        Ok(raised) => raised?,
        Err(_) => return Err(PlayError::Registration),
    }
    introduce(&cluster.client(), policy.repair_policies()).await?;
    let (operators, count, verdicts) = start(&cluster, policy, seat);
    let peer = start_peer(&cluster, policy);
    create(&cluster.client(), scenario, policy.wrapping()).await?;
    open(&cluster, scenario).await?;
    sleep(moment(seed)).await;

    let began = cluster.api().now();
    tell(seat, |audience| audience.began(began));
    let calls_before = count.so_far();
    let origin = Instant::now();
    let incidents = scenario.incidents(seed);
    let ends = scenario.ends(&incidents);
    let mut agenda = Agenda::new(&incidents);
    while let Some(at) = agenda.next().filter(|at| *at < ends) {
        sleep_until(origin + at).await;
        agenda.act(cluster.fleet(), &cluster.client(), cluster.api().now()).await;
    }
    sleep_until(origin + ends).await;

    let now = cluster.api().now();
    let metrics =
        operators.iter().map(|(operator, is_ours)| if *is_ours { operator.metrics() } else { String::new() });
    let metrics: String = metrics.collect();
    let overview = overview(&cluster, policy).await?;
    tell(seat, |audience| audience.ended(now, &overview));
    let stuck = stuck(overview, began, now);
    let calls = count.so_far().since(&calls_before);
    let truth = cluster.fleet().truth();
    let verdicts = std::mem::take(&mut *verdicts.lock().unwrap_or_else(PoisonError::into_inner));
    let mut record = recorder.finish(began, now, truth);
    record.seed = seed;
    record.policy = policy.name.clone();
    // Failures after the end never happen.
    record.incidents = incidents.iter().filter(|it| it.at < ends).map(IncidentRecord::of).collect();
    record.calls = calls;
    record.stuck = stuck;
    record.writes = counters(&metrics, "salvor_writes_total", &["action", "result"]);
    record.held = held(&metrics, &verdicts, now);
    record.due = verdicts
        .due
        .into_iter()
        .map(|(subject, times)| (subject, times.iter().map(|at| record::millis(began, *at)).collect()))
        .collect();
    if let Some(peer) = peer {
        peer.abort();
    }
    for (operator, _) in operators {
        operator.stop().await;
    }
    cluster.stop().await;
    Ok(record)
}

type Shared = Arc<Mutex<Verdicts>>;

/// Starts the operator, plus a Job controller if the configuration has none: every cluster has one.
fn start<A: Audience>(
    cluster: &LocalCluster,
    policy: &Policy,
    seat: &Seat<A>,
) -> (Vec<(Operator, bool)>, calls::Count, Shared) {
    let (count, verdicts) = (calls::Count::default(), Shared::default());
    let mut operators = Vec::new();
    let now = cluster.api().now();
    if let Some(configuration) = &policy.configuration {
        let (notices, heard) = Notices::channel();
        let service = count.before(cluster.api().clone());
        let surroundings = Surroundings::in_process(service, now, "salvor").telling(notices);
        operators.push((Operator::start(surroundings, configuration), true));
        tokio::spawn(listen(heard, cluster.api().clone(), verdicts.clone(), seat.clone()));
    }
    let runs_jobs = policy.configuration.as_ref().is_some_and(|it| it.controllers.enabled(Controller::Job));
    if !runs_jobs {
        let surroundings = Surroundings::in_process(cluster.api().clone(), now, "kube-controller-manager");
        operators.push((Operator::start(surroundings, &policy::only_jobs()), false));
    }
    (operators, count, verdicts)
}

/// Starts the peer whose rules no configuration of the operator matches.
fn start_peer(cluster: &LocalCluster, policy: &Policy) -> Option<JoinHandle<kube::Error>> {
    match policy.peer? {
        Peer::Kubernetes | Peer::Kueue => None,
        Peer::Karpenter => Some(tokio::spawn(NodeHealth::new(cluster.api()).run())),
        Peer::AppWrapper => Some(tokio::spawn(AppWrapperController::new(cluster.api()).run())),
    }
}

async fn listen<A: Audience>(
    mut heard: mpsc::UnboundedReceiver<Notice>,
    cluster: salvor_apiserver::Cluster,
    verdicts: Shared,
    seat: Seat<A>,
) {
    // The last decision for each subject: only a change is recorded.
    let mut last: BTreeMap<(&'static str, String), &'static str> = BTreeMap::new();
    while let Some(notice) = heard.recv().await {
        tell(&seat, |audience| audience.notice(cluster.now(), &notice));
        match notice {
            Notice::Judged { recovery, subject, report } => {
                let before = last.insert((recovery, subject.clone()), report.verdict);
                let is_due = |verdict: Option<&str>| matches!(verdict, Some("Act" | "Blocked"));
                let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                let now = cluster.now();
                if recovery != "job" && is_due(Some(report.verdict)) && !is_due(before) {
                    verdicts.due.entry(subject.clone()).or_default().push(now);
                }
                if report.verdict == "Blocked" {
                    verdicts.held.entry((recovery, subject)).or_insert(now);
                }
            }
            Notice::Forgotten { recovery, subject } => {
                last.remove(&(recovery, subject));
            }
            Notice::Leads(_) | Notice::Paused(_) | Notice::Did { .. } => {}
        }
    }
}

async fn open(cluster: &LocalCluster, scenario: &Scenario) -> kube::Result<()> {
    let deadline = Instant::now() + OPENING;
    while Instant::now() < deadline && !missing(&cluster.client(), scenario).await?.nothing_is_short() {
        sleep(LOOK).await;
    }
    Ok(())
}

/// Everything that does not come back, as `salvor why --all` reports it.
async fn overview(cluster: &LocalCluster, policy: &Policy) -> Result<Overview, PlayError> {
    let judge = Judge { file: policy.configuration.clone() };
    let (overview, _) = Reader::of(cluster.client()).everything(&judge, Some("default")).await?;
    Ok(overview)
}

/// The overview in the form that a report uses.
fn stuck(overview: Overview, began: Timestamp, now: Timestamp) -> Vec<Stuck> {
    overview
        .groups
        .into_iter()
        .map(|group| {
            let count = group.workloads.len();
            let names = group.workloads.iter().take(NAMED);
            let mut workloads: Vec<String> =
                names.map(|it| format!("{} {}: {}", it.kind, it.name, it.missing)).collect();
            if count > NAMED {
                workloads.push(format!("and {} more", count - NAMED));
            }
            Stuck {
                code: group.root_cause.code.name(),
                since: group.root_cause.since.map(|at| record::millis(began, at)),
                message: group.root_cause.message,
                workloads,
                expected_back: expectation(group.root_cause.expected_back, now),
                remedy: group.remedies.into_iter().next().map(|remedy| match remedy.command {
                    Some(command) => format!("{}: {command}", remedy.text),
                    None => remedy.text,
                }),
            }
        })
        .collect()
}

/// Relative to the end of the simulation, like all times of a report.
fn expectation(expected: ExpectedBack, now: Timestamp) -> Option<String> {
    let depends = expected.depends_on.map(|on| format!("depends on {on}"));
    depends.or_else(|| expected.at.map(|at| format!("{} after the end", brief(at.duration_since(now)))))
}

/// The counters of a metric, keyed by the values of these labels.
fn counters(metrics: &str, name: &str, labels: &[&str]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')) else { continue };
        let Some((written, value)) = rest.rsplit_once('}') else { continue };
        let of = |label: &str| {
            let (_, after) = written.split_once(&format!("{label}=\""))?;
            after.split_once('"').map(|(value, _)| value)
        };
        let key: Vec<&str> = labels.iter().filter_map(|label| of(label)).collect();
        *found.entry(key.join(" ")).or_default() += value.trim().parse::<u64>().unwrap_or_default();
    }
    found
}

fn held(metrics: &str, verdicts: &Verdicts, now: Timestamp) -> Vec<Held> {
    let by_limit = counters(metrics, "salvor_held_total", &["recovery", "by"]);
    by_limit
        .into_iter()
        .map(|(key, times)| {
            let (recovery, by) = key.split_once(' ').unwrap_or((key.as_str(), ""));
            let own = || verdicts.held.iter().filter(|((of, _), since)| *of == recovery && **since <= now);
            Held {
                recovery: recovery.to_owned(),
                by: by.to_owned(),
                times,
                subjects: u64::try_from(own().count()).unwrap_or(u64::MAX),
            }
        })
        .collect()
}
