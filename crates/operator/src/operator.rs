//! Puts the parts together and runs them until told to stop.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use salvor_api::config::Configuration;
use salvor_recovery::{
    action::Subject,
    brake::{Brake, BrakeState},
    eviction::EvictionPolicy,
    job::JobPolicy,
    zombie::ZombiePolicy,
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    client::connect,
    engine::{Engine, Shared},
    executor::Executor,
    http::Endpoints,
    leader::{Elector, Leadership},
    metrics::Metrics,
    recoveries::{eviction::Evictions, job::Jobs, zombie::Zombies},
    recovery::Recovery,
    time::{Time, std_duration},
};

/// Writes under way get this long to end when the process is told to stop.
const DRAIN: Duration = Duration::from_secs(15);
/// News that may wait to be taken in; past that, watches wait.
const NEWS: usize = 1024;

/// Why the operator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The address for metrics and health cannot be listened on.
    #[error("cannot listen on {address} (bind): {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// No client can be made of the given configuration.
    #[error("cannot make a client for the API server: {0}")]
    Client(kube::Error),
}

/// Runs the enabled recoveries until `shutdown` is cancelled; then finishes what is under way and gives the lease back.
///
/// # Errors
/// If it cannot begin. What happens later is survived, logged and counted.
pub async fn run(
    config: kube::Config,
    configuration: Configuration,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let address = configuration.bind;
    let listener = TcpListener::bind(address).await.map_err(|source| RunError::Bind { address, source })?;
    let served_at = listener.local_addr().map_err(|source| RunError::Bind { address, source })?;
    let time = Time::system();
    let client = connect(config, &time).map_err(RunError::Client)?;
    let metrics = Metrics::new(&time);
    let identity = identity();
    let brake = Arc::new(Mutex::new(Brake::new(configuration.brake.clone(), BrakeState::default())));

    let stop_election = CancellationToken::new();
    let (leadership, election) = if configuration.leader_election.enabled {
        let settings = configuration.leader_election.clone();
        let (elector, leadership) = Elector::new(
            client.clone(),
            settings,
            identity.clone(),
            time.clone(),
            metrics.clone(),
            brake.clone(),
        );
        (leadership, Some(tokio::spawn(elector.run(stop_election.clone()))))
    } else {
        metrics.leads(true);
        (Leadership::alone(), None)
    };

    let writes = configuration.concurrency.writes;
    let executor =
        Executor::new(client.clone(), time.clone(), leadership.clone(), metrics.clone(), identity, writes);
    let shared = Shared {
        time,
        leadership,
        executor,
        brake,
        metrics: metrics.clone(),
        dry_run: configuration.dry_run,
        home: home(&configuration),
        at_once: usize::try_from(writes).unwrap_or(1).max(1),
        freshness: std_duration(configuration.staleness.irreversible_action_limit),
    };

    let mut running =
        Running { client, shared, stop: shutdown.clone(), watches: Vec::new(), engines: Vec::new() };
    let zombie = ZombiePolicy::new(&configuration);
    let eviction = EvictionPolicy::new(&configuration);
    if eviction.enabled {
        // Both see all nodes; one of them tells the brake.
        running.start(Evictions::new(Arc::new(eviction), metrics.clone(), zombie.disabled.is_some()));
    } else {
        tracing::warn!(recovery = Evictions::NAME, "switched off");
    }
    if let Some(disabled) = zombie.disabled {
        tracing::warn!(recovery = Zombies::NAME, ?disabled, "switched off");
    } else {
        running.start(Zombies::new(Arc::new(zombie)));
    }

    let job = JobPolicy::new(&configuration);
    if job.enabled {
        running.start(Jobs::new(Arc::new(job), metrics.clone()));
    } else {
        tracing::warn!(recovery = Jobs::NAME, "switched off");
    }

    let watches = running.watches.clone();
    metrics.show_watches(watches.clone());
    let ready_limit = std_duration(configuration.staleness.ready_limit);
    let stop_serving = CancellationToken::new();
    let serving = tokio::spawn(
        Endpoints { metrics, watches, ready_limit }.serve(listener, stop_serving.clone().cancelled_owned()),
    );
    tracing::info!(address = %served_at, dry_run = configuration.dry_run, "salvor is running");

    shutdown.cancelled().await;
    tracing::info!("stopping: what is under way is finished first");
    let mut drained = true;
    for engine in running.engines {
        if tokio::time::timeout(DRAIN, engine).await.is_err() {
            tracing::warn!("writes under way did not end in time; the lease expires by itself");
            drained = false;
        }
    }
    match election {
        // A lease given back while something may still write would be another's too early.
        Some(election) if !drained => election.abort(),
        Some(election) => {
            stop_election.cancel();
            // A panic there has been printed already; the lease then expires by itself.
            let _ = election.await;
        }
        None => {}
    }
    stop_serving.cancel();
    // A scrape that never ends must not keep the process.
    let _ = tokio::time::timeout(Duration::from_secs(1), serving).await;
    Ok(())
}

struct Running {
    client: kube::Client,
    shared: Shared,
    stop: CancellationToken,
    watches: Vec<Arc<crate::watch::WatchHealth>>,
    engines: Vec<JoinHandle<()>>,
}

impl Running {
    fn start<R: Recovery>(&mut self, recovery: R) {
        let (news, inbox) = mpsc::channel(NEWS);
        let mut watches = Vec::new();
        for feed in recovery.feeds(&self.client, &news) {
            watches.push(feed.health);
            tokio::spawn(feed.run);
        }
        self.watches.extend(watches.iter().cloned());
        let engine = Engine::new(recovery, self.shared.clone(), watches);
        self.engines.push(tokio::spawn(engine.run(inbox, self.stop.clone())));
        tracing::info!(recovery = R::NAME, "started");
    }
}

/// Events about Salvor itself are about its lease, in its own namespace; without an election, in the default one.
fn home(configuration: &Configuration) -> Subject {
    let election = &configuration.leader_election;
    let namespace = if election.enabled { &election.lease_namespace } else { "default" };
    Subject::Lease { namespace: namespace.to_owned(), name: election.lease_name.clone() }
}

/// Who we are to other replicas: the pod's or machine's name, and what tells two processes on it apart.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "salvor".to_owned());
    format!("{host}_{}_{}", std::process::id(), jiff::Timestamp::now().as_millisecond())
}
