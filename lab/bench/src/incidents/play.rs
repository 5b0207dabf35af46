//! Plays an incident under a contender, and computes the results.

use std::{collections::BTreeSet, time::Duration};

use kube::api::PostParams;
use salvor_api::config;
use salvor_apiserver::{Cluster, Faults};
use salvor_simulate::{Line, Process, peers::NodeHealth};
use serde_json::json;
use tokio::{task::JoinHandle, time::sleep};

use super::outcome::Outcome;
use super::script::{CONDITIONS, Cause, Incident, STARTUP};
use super::world::{Node, World};

/// Seconds between two samples.
pub(super) const TICK: u64 = 10;
/// Seconds until a contender leads and has synced its caches, before anything happens.
const SETTLED: u64 = 60;
/// The operator with its defaults; its Lease is renewed rarely, because renewals are nearly all that happens.
const CONFIGURATION: &str = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\ncontrollers: [repair]\n\
    leaderElection: {leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}\n";

/// The contender whose rules decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// A model of Karpenter's own repair.
    Karpenter,
    /// The operator itself.
    Salvor,
}

enum Running {
    Karpenter(JoinHandle<kube::Error>),
    Salvor(Process),
}

impl Running {
    async fn start(contender: Contender, cluster: &Cluster) -> Result<Self, String> {
        match contender {
            Contender::Karpenter => Ok(Self::Karpenter(tokio::spawn(NodeHealth::new(cluster).run()))),
            Contender::Salvor => {
                policy(cluster).await.map_err(|error| error.to_string())?;
                let configuration = config::parse(CONFIGURATION).map_err(|error| error.to_string())?;
                let (line, faults) = (Line::default(), Faults::default());
                Ok(Self::Salvor(Process::start(cluster, "salvor", &configuration, line, &faults)))
            }
        }
    }

    async fn stop(self) -> Result<(), String> {
        match self {
            Self::Salvor(process) => process.stop().await,
            Self::Karpenter(task) if task.is_finished() => {
                return Err(task.await.map_or_else(|error| error.to_string(), |error| error.to_string()));
            }
            Self::Karpenter(task) => task.abort(),
        }
        Ok(())
    }
}

/// A NodeRepairPolicy for all nodes of Karpenter, with Karpenter's tolerations, and otherwise defaults.
async fn policy(cluster: &Cluster) -> Result<(), kube::Error> {
    let client = cluster.client();
    let definition = salvor_api::crds::NODE_REPAIR_POLICY;
    salvor_simulate::define(&client, "noderepairpolicies.salvor.dev", definition).await?;
    let entries = CONDITIONS.iter().map(|it| {
        json!({"conditionType": it.kind, "conditionStatus": it.sick, "toleration": format!("{}m", it.minutes)})
    });
    let policy = json!({
        "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "all"},
        "spec": {
            "nodeSelector": {"matchExpressions": [{"key": "karpenter.sh/nodepool", "operator": "Exists"}]},
            "policies": entries.collect::<Vec<_>>(),
            "startupTimeout": format!("{STARTUP}m"),
        },
    });
    let policy = serde_json::from_value(policy).map_err(kube::Error::SerdeError)?;
    let policies =
        salvor_simulate::objects(&client, "salvor.dev", "v1alpha1", "NodeRepairPolicy", "noderepairpolicies");
    policies.create(&PostParams::default(), &policy).await.map(|_| ())
}

/// Plays an incident, in virtual time.
pub(super) async fn play(incident: &Incident, contender: Contender) -> Result<Outcome, String> {
    let cluster = Cluster::new(salvor_simulate::cluster(1).api);
    let mut world = World::new(&cluster, incident).await.map_err(|error| error.to_string())?;
    let running = Running::start(contender, &cluster).await?;
    sleep(Duration::from_secs(SETTLED)).await;
    let mut events = incident.events.clone();
    events.sort_by_key(|(at, _)| *at);
    let mut events = events.into_iter().peekable();
    for now in (0..incident.minutes * 60).step_by(TICK as usize) {
        world.look(now).await.map_err(|error| error.to_string())?;
        while let Some((_, event)) = events.next_if(|(at, _)| *at <= now) {
            world.happens(event, now).await.map_err(|error| error.to_string())?;
        }
        count(&mut world, now);
        sleep(Duration::from_secs(TICK)).await;
    }
    running.stop().await?;
    Ok(world.outcome)
}

/// Adds the state of one sample to the results.
fn count(world: &mut World, now: u64) {
    let busy: BTreeSet<&str> =
        world.nodes().filter(|node| node.is_going()).map(|node| node.machine.pool.as_str()).collect();
    let due: Vec<&Node> =
        world.nodes().filter(|node| !node.told_to_go && node.is_past_toleration(now)).collect();
    let waits: Vec<&&Node> = due.iter().filter(|node| !busy.contains(node.machine.pool.as_str())).collect();
    let broken = waits.iter().any(|node| node.is(Cause::Machine)) && world.has_capacity;
    let to_replace = due.iter().filter(|node| node.is(Cause::Machine) && world.has_capacity).count() as u64;
    let (sick, lost) = (due.len() as u64 * TICK, world.lost * TICK);
    let late = (to_replace + world.missing) * TICK;
    let (held, frozen) = match (waits.is_empty(), broken) {
        (true, _) => (0, 0),
        (false, false) => (TICK, 0),
        (false, true) => (0, TICK),
    };
    let outcome = &mut world.outcome;
    outcome.late += late;
    outcome.lost += lost;
    outcome.sick += sick;
    outcome.held += held;
    outcome.frozen += frozen;
}
