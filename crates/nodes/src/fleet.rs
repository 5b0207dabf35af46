//! Runs any number of simulated nodes against an API: one loop, one watch of pods, one of nodes.

mod driver;

use std::time::Duration;

use kube::{Client, runtime::utils::Backoff};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    clock::Clock,
    profile::{Fault, NodeProfile, Timers},
    truth::GroundTruth,
};
use driver::Driver;

/// A failed call is tried again after this, doubled each time up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// The options of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct FleetOptions {
    /// Where the nodes read the time.
    pub clock: Clock,
    /// The seed of everything random.
    pub seed: u64,
    /// The kubelets' clockwork.
    pub timers: Timers,
}

impl Default for FleetOptions {
    /// Wall time and the kubelet's own timers.
    fn default() -> Self {
        Self { clock: Clock::system(), seed: 0, timers: Timers::default() }
    }
}

/// An error of a fleet.
#[derive(Debug, Error)]
pub enum FleetError {
    /// No node of this fleet has this name.
    #[error("this fleet has no node {0:?}; its nodes are {1}")]
    UnknownNode(String, String),
    /// A node of this fleet has this name already.
    #[error("this fleet already has a node {0:?}")]
    DuplicateNode(String),
    /// The fleet has been stopped.
    #[error("the fleet has been stopped")]
    Stopped,
}

/// The state of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStats {
    /// Nodes in the fleet.
    pub nodes: usize,
    /// Pods that its nodes know.
    pub pods: usize,
    /// Calls to the API that failed and were tried again.
    pub failed_calls: u64,
}

/// A running set of simulated nodes. Dropping it stops them all, without a word to the API.
#[derive(Debug)]
pub struct Fleet {
    commands: mpsc::Sender<Command>,
    truth: GroundTruth,
    clock: Clock,
    task: JoinHandle<()>,
    stop: DropGuard,
}

impl Fleet {
    /// Starts an empty fleet on the current tokio runtime.
    pub fn start(client: Client, options: FleetOptions) -> Self {
        let (commands, inbox) = mpsc::channel(64);
        let truth = GroundTruth::default();
        let stop = CancellationToken::new();
        let clock = options.clock;
        let driver = Driver::new(client.clone(), &options, truth.clone(), stop.clone());
        Self {
            commands,
            truth,
            clock,
            task: tokio::spawn(driver.run(client, inbox)),
            stop: stop.drop_guard(),
        }
    }

    /// Adds nodes and waits until each is registered, with its first Lease.
    pub async fn add(&self, profiles: impl IntoIterator<Item = NodeProfile>) -> Result<(), FleetError> {
        let profiles: Vec<_> = profiles.into_iter().collect();
        self.ask(|reply| Command::Add(profiles, reply)).await?
    }

    /// Makes a node suffer.
    pub async fn inject(&self, node: &str, fault: Fault) -> Result<(), FleetError> {
        self.ask(|reply| Command::Inject(node.to_owned(), fault, reply)).await?
    }

    /// Ends whatever a node suffers from. A crashed machine starts again; a partitioned one is heard again.
    pub async fn heal(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::Heal(node.to_owned(), reply)).await?
    }

    /// Restarts a machine: its containers end, its kubelet comes back at once.
    pub async fn reboot(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::Reboot(node.to_owned(), reply)).await?
    }

    /// Starts a machine whose network stays dead: its kubelet can neither send a heartbeat nor read its Node.
    pub async fn boot_cut_off(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::BootCutOff(node.to_owned(), reply)).await?
    }

    /// Takes a machine away for good: its containers end now, and its kubelet is not heard of any more. Its Node stays in the
    /// API until somebody deletes it.
    pub async fn remove(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::Remove(node.to_owned(), reply)).await?
    }

    /// The present state of the fleet.
    pub async fn stats(&self) -> Result<FleetStats, FleetError> {
        self.ask(Command::Stats).await
    }

    /// The record of everything that really ran, where, and when.
    pub fn truth(&self) -> &GroundTruth {
        &self.truth
    }

    /// The clock that the ground truth is written by.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Stops every node and waits until none makes a call any more.
    pub async fn stop(self) {
        drop(self.stop);
        // A panic of the loop has been printed already, and there is nothing left to stop then.
        let _ = self.task.await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, FleetError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| FleetError::Stopped)?;
        answer.await.map_err(|_| FleetError::Stopped)
    }
}

type Reply = oneshot::Sender<Result<(), FleetError>>;

#[derive(Debug)]
enum Command {
    Add(Vec<NodeProfile>, Reply),
    Inject(String, Fault, Reply),
    Heal(String, Reply),
    Reboot(String, Reply),
    BootCutOff(String, Reply),
    Remove(String, Reply),
    Stats(oneshot::Sender<FleetStats>),
}

fn retry_after(attempt: u32) -> Duration {
    (FIRST_RETRY * 2u32.saturating_pow(attempt.min(16).saturating_sub(1))).min(LONGEST_RETRY)
}

/// Without jitter: one process, and one seed must give one history.
#[derive(Default)]
pub(crate) struct RetryBackoff(u32);

impl Iterator for RetryBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0 += 1;
        Some(retry_after(self.0))
    }
}

impl Backoff for RetryBackoff {
    fn reset(&mut self) {
        self.0 = 0;
    }
}
