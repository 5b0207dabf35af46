//! A scenario on the real control plane: its kube-controller-manager and scheduler, simulated kubelets, and `salvor
//! run`.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use salvor_api::config::Configuration;
use salvor_apiserver::ChangeKind;
use salvor_cluster::STORAGE;
use salvor_nodes::{Clock, Fleet, FleetOptions, Storage};
use salvor_simulate::{
    play::{Agenda, IncidentRecord, Millis, Record, Recorder, document},
    scenario::{Consent, Scenario, Wrapping, create, introduce, join_spread, missing, moment},
};
use salvor_testkit::{ControlPlane, Part, wait::Patience};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    running::{LOOK, Running, START, start_salvor},
    watching::{self, Versioned},
};

/// kube-controller-manager's own defaults, which are those of the cluster in memory. The testkit's are shorter.
const SHIPPED: [&str; 6] = [
    "--node-monitor-period=5s",
    "--node-monitor-grace-period=50s",
    "--node-startup-grace-period=60s",
    "--node-eviction-rate=0.1",
    "--secondary-node-eviction-rate=0.01",
    "--large-cluster-size-threshold=50",
];
/// kube-controller-manager logs this if it removed a node from the queue of nodes to taint, because its cache still
/// showed the node as Ready. The node then waits for its next turn.
const STALE_VIEW: &str = "was in a taint queue, but it's ready now";
/// The verbosity that logs it.
const VERBOSITY: &str = "--v=4";

pub(super) struct Played {
    pub(super) record: Record,
    /// How often kube-controller-manager skipped the turn of a node, because its cache was stale.
    pub(super) stale: usize,
}

/// Any object, as the server sent it.
#[derive(Deserialize)]
#[serde(transparent)]
struct Object(Value);

impl Versioned for Object {
    fn version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

/// Plays a scenario once; the round determines when kubelets renew their Leases. The record comes from watches of pods
/// and nodes, and from the kubelets' own record of what ran.
pub(super) async fn play(
    name: &str,
    scenario: &Scenario,
    salvor: &Path,
    round: u64,
) -> Result<Played, String> {
    let parts = ControlPlane::builder().with(Part::ControllerManager).with(Part::Scheduler);
    let flags = SHIPPED.into_iter().chain([VERBOSITY]);
    let parts = flags.fold(parts, |parts, flag| parts.flag(Part::ControllerManager, flag));
    let plane = parts.start().await.map_err(text)?;
    let client = plane.admin().client("simulate-truth");
    let fleet = Fleet::start(plane.admin().client("simulate-truth-nodes"), FleetOptions::default());
    let storage = Storage::start(client.clone(), STORAGE).await.map_err(text)?;
    let recorder = Recorder::new(scenario);
    for resource in ["pods", "nodes"] {
        follow(&client, resource, recorder.clone(), fleet.clock()).await?;
    }
    join_spread(&fleet, scenario, round).await.map_err(text)?;
    introduce(&client, None).await.map_err(text)?;
    all_are_schedulable(&client, scenario.nodes.len()).await?;
    let folder = tempfile::tempdir().map_err(text)?;
    let configuration = yaml(&scenario.salvor.configuration);
    let (program, address) = start_salvor(salvor, &plane, folder.path(), &configuration).await?;
    let running = Running::when_at_rest("salvor", program, address, folder).await?;
    create(&client, scenario, Wrapping::Nobody).await.map_err(text)?;
    open(&client, scenario).await?;
    sleep(moment(round)).await;

    eprintln!("simulate-truth: {name} runs on the real control plane");
    let clock = fleet.clock();
    let (began, origin) = (clock.now(), Instant::now());
    let incidents = scenario.incidents(1);
    let ends = scenario.ends(&incidents);
    let mut agenda = Agenda::new(&incidents);
    while let Some(at) = agenda.next().filter(|at| *at < ends) {
        sleep_until(origin + at).await;
        agenda.act(&fleet, &client, clock.now()).await;
    }
    sleep_until(origin + ends).await;
    if running.program.has_ended() {
        return Err(format!("salvor has ended:\n{}", running.tail()));
    }
    let log = plane.folder().join(format!("{}.log", Part::ControllerManager));
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let stale = log.lines().filter(|line| line.contains(STALE_VIEW)).count();
    let mut record = recorder.finish(began, clock.now(), fleet.truth());
    record.incidents = incidents.iter().map(IncidentRecord::of).collect();
    due(&mut record, scenario);
    storage.stop().await;
    Ok(Played { record, stale })
}

/// Records every change of a resource, when it arrives.
async fn follow(
    client: &Client,
    resource: &'static str,
    recorder: Recorder,
    clock: Clock,
) -> Result<(), String> {
    let path = format!("/api/v1/{resource}");
    watching::watch::<Object>(client, path, move |seen| {
        let Ok(seen) = seen else { return false };
        let kind = match seen.kind.as_str() {
            "ADDED" => ChangeKind::Added,
            "DELETED" => ChangeKind::Removed,
            _ => ChangeKind::Modified,
        };
        recorder.note(("", resource), seen.object.0.to_string().as_bytes(), clock.now(), kind);
        true
    })
    .await
}

async fn all_are_schedulable(client: &Client, count: usize) -> Result<(), String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let is_free =
        |node: &Node| node.spec.as_ref().and_then(|it| it.taints.as_ref()).is_none_or(Vec::is_empty);
    Patience::of(START)
        .for_list(&nodes, &ListParams::default(), "every node is schedulable", |nodes: &[Node]| {
            nodes.len() == count && nodes.iter().all(is_free)
        })
        .await
        .map(|_| ())
        .map_err(text)
}

/// Waits until all work runs. New CRDs may not be served yet.
async fn open(client: &Client, scenario: &Scenario) -> Result<(), String> {
    let runs = async {
        while !missing(client, scenario).await.is_ok_and(|missing| missing.nothing_is_short()) {
            sleep(LOOK).await;
        }
    };
    Patience::of(START).until(runs).await.ok_or_else(|| "the work does not start to run".to_owned())
}

/// When the rules allow Salvor to act on a pod, computed from the API: after its grace period and the wait after it,
/// and not before its node was unreachable for long enough. It does not depend on Salvor's output.
fn due(record: &mut Record, scenario: &Scenario) {
    let rules = &scenario.salvor.configuration.failure_recovery_policy;
    let wait = millis(rules.annotated_pods.forceful_termination_grace_period.to_std());
    let least = millis(rules.minimum_unreachable_duration.to_std());
    for pod in &record.pods {
        let workload = &scenario.workloads[pod.workload];
        let marked = pod.node.as_ref().and_then(|node| record.nodes.get(node)?.unreachable.last());
        let (Some(deleted), Some((marked, _))) = (pod.deleted, marked) else { continue };
        if workload.consent != Consent::None {
            let at = (deleted + millis(workload.grace) + wait).max(marked + least);
            record.due.entry(format!("pod default/{}", pod.name)).or_default().push(at);
        }
    }
}

fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX)
}

/// A configuration as a file. The built-in controller runs the Jobs.
fn yaml(configuration: &Configuration) -> String {
    let mut configuration = configuration.clone();
    configuration.job.unmanaged_jobs = false;
    let document = document(&configuration);
    let fields = document.as_object().into_iter().flatten();
    let fields = fields.filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind"));
    fields.map(|(key, value)| format!("{key}: {value}\n")).collect()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
