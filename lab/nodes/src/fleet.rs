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

/// The first backoff after a failed call; it doubles each time up to the longest.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
#[derive(Clone, Copy, Debug)]
pub struct FleetOptions {
    pub clock: Clock,
    /// The seed of everything random.
    pub seed: u64,
    pub timers: Timers,
}

impl Default for FleetOptions {
    /// Wall time and the kubelet's default timers.
    fn default() -> Self {
        Self { clock: Clock::system(), seed: 0, timers: Timers::default() }
    }
}

#[derive(Debug, Error)]
pub enum FleetError {
    #[error("this fleet has no node {0:?}; its nodes are {1}")]
    UnknownNode(String, String),
    #[error("this fleet already has a node {0:?}")]
    DuplicateNode(String),
    #[error("the fleet has been stopped")]
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetStats {
    pub nodes: usize,
    pub pods: usize,
    /// Calls to the API that failed and were retried.
    pub failed_calls: u64,
}

/// A running set of simulated nodes. Dropping it stops them all, without notice to the API.
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

    pub async fn inject(&self, node: &str, fault: Fault) -> Result<(), FleetError> {
        self.ask(|reply| Command::Inject(node.to_owned(), fault, reply)).await?
    }

    /// Ends all faults of a node. A crashed machine starts again; a partitioned one is reachable again.
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

    /// Removes a machine permanently: its containers end now, and its kubelet sends no more heartbeats. Its Node stays
    /// in the API until it is deleted.
    pub async fn remove(&self, node: &str) -> Result<(), FleetError> {
        self.ask(|reply| Command::Remove(node.to_owned(), reply)).await?
    }

    pub async fn stats(&self) -> Result<FleetStats, FleetError> {
        self.ask(Command::Stats).await
    }

    /// The record of everything that really ran, where, and when.
    pub fn truth(&self) -> &GroundTruth {
        &self.truth
    }

    /// The clock of the ground truth.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Stops every node and waits until all their calls have ended.
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

/// Without jitter: there is one process, and one seed must give one history.
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
