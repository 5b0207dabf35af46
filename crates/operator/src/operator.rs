//! Assembles the parts of the operator and runs them until shutdown.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use salvor_api::config::Configuration;
use salvor_recovery::{
    brake::{Brake, BrakeState},
    objects::ObjectRef,
};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    engine::{
        brake_keeper::BrakeKeeper,
        notices::Notices,
        running::{Running, at_once},
        shared::Shared,
    },
    execute::Executor,
    lead::{
        Elector, Leadership,
        pause::SwitchWatch,
        published::Published,
        watchdog::{OwnThread, Watchdog},
    },
    metrics::{CheckAtStart, Metrics},
    recoveries::{recoveries, webhooks},
    serve::endpoints::Endpoints,
    surroundings::Surroundings,
    tasks,
    time::{broadcast::Broadcast, std_duration},
    watch_set::{feeds::Hub, watch::Source},
    webhooks::{BoundWebhooks, WebhookError, WebhookServer},
};

/// Grace period for writes in flight at shutdown.
const DRAIN: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot listen on {address} (bind): {source}")]
    Bind {
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    #[error(transparent)]
    Webhooks(#[from] WebhookError),
    /// The thread is for health endpoints and leader election.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot make a client for the API server: {0}")]
    Client(kube::Error),
}

/// Runs the enabled recoveries until `shutdown` is cancelled; then finishes what is in flight and releases the Lease.
///
/// # Errors
/// If it cannot start. Later failures are survived, logged and counted.
pub fn run(
    config: kube::Config,
    configuration: Configuration,
    notices: Notices,
    checked: CheckAtStart,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), RunError>> {
    async move {
        let aside = OwnThread::start("health").map_err(RunError::Thread)?;
        let address = configuration.bind;
        let bound = aside.handle.spawn(async move {
            let listener = TcpListener::bind(address).await?;
            let served_at = listener.local_addr()?;
            Ok((listener, served_at))
        });
        let bound = bound.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (listener, served_at) = bound.map_err(|source| RunError::Bind { address, source })?;
        let webhooks = if webhooks::in_effect(&configuration).is_empty() {
            None
        } else {
            Some(BoundWebhooks::new(config.clone(), &configuration).await?)
        };
        let surroundings = Surroundings::of(config, aside.handle.clone()).map_err(RunError::Client)?;
        let keyring =
            webhooks.as_ref().map(|bound| bound.handler_context.keyring.clone()).unwrap_or_default();
        let surroundings = surroundings.telling(notices).believing(keyring);
        let mut operator = Operator::start(surroundings, &configuration);
        let metrics = &operator.endpoints.metrics;
        metrics.show_check(checked);
        let webhooks = webhooks.map(|bound| {
            let registrations = webhooks::registrations(&configuration, &bound.handler_context);
            bound.serve(registrations, &configuration, metrics.clone())
        });
        operator.endpoints.webhooks = webhooks.as_ref().map(WebhookServer::readiness);

        let stop_serving = CancellationToken::new();
        let serve = operator.endpoints.clone().serve(listener, stop_serving.clone().cancelled_owned());
        let serving = aside.handle.spawn(serve);
        tracing::info!(address = %served_at, dry_run = configuration.dry_run, "salvor is running");

        shutdown.cancelled().await;
        tracing::info!("stopping, finishing writes in flight");
        operator.stop().await;
        if let Some(webhooks) = webhooks {
            webhooks.stop().await;
        }
        stop_serving.cancel();
        // A scrape that never ends must not block the process.
        let _ = tokio::time::timeout(Duration::from_secs(1), serving).await;
        Ok(())
    }
    .boxed()
}

/// A running operator. Several may run in one process. Do not stop it by dropping: that finishes nothing and does not
/// release the Lease.
pub struct Operator {
    endpoints: Endpoints,
    _beat: Option<AbortOnDropHandle<()>>,
    stop: CancellationToken,
    engines: Vec<AbortOnDropHandle<()>>,
    election: Option<Election>,
    /// Reads the pause switch where there is no election.
    _switch: Option<AbortOnDropHandle<()>>,
}

struct Election {
    task: AbortOnDropHandle<()>,
    stop: CancellationToken,
}

impl Operator {
    /// Starts the enabled recoveries on the current tokio runtime.
    pub fn start(surroundings: Surroundings, configuration: &Configuration) -> Self {
        let Surroundings { client, time, identity, notices, keyring, aside } = surroundings;
        let metrics = Metrics::new(&time);
        let watchdog = if aside.is_some() { Watchdog::new() } else { Watchdog::of_this_thread() };
        metrics.show_watchdog(watchdog.clone());
        let beat = aside.is_some().then(|| AbortOnDropHandle::new(tokio::spawn(watchdog.clone().beat())));
        let source = Source { client: client.clone(), history: time.history().clone() };
        let brake = Arc::new(Mutex::new(Brake::new(configuration.brake.clone(), BrakeState::default())));

        let mut switch = None;
        let (leadership, election) = if configuration.leader_election.enabled {
            let settings = configuration.leader_election.clone();
            let (elector, leadership) = Elector::new(
                aside.as_ref().map_or(&client, |aside| &aside.client).clone(),
                settings,
                identity.clone(),
                time.clone(),
                metrics.clone(),
                brake.clone(),
            );
            let elector = elector.publishing(Published::of(configuration).to_text());
            let elector = if configuration.dry_run { elector.in_dry_run() } else { elector };
            let stop = CancellationToken::new();
            let elector = elector.minding(source.history.clone()).heeding(watchdog.clone());
            let run = elector.run(stop.clone());
            let task = match &aside {
                Some(aside) => aside.runtime.spawn(run),
                None => tasks::spawn(run),
            };
            (leadership, Some(Election { task: AbortOnDropHandle::new(task), stop }))
        } else {
            metrics.leads(true);
            let leadership = Leadership::alone();
            leadership.pause().wait_until_read();
            let watch = SwitchWatch {
                client: client.clone(),
                settings: configuration.leader_election.clone(),
                identity: identity.clone(),
                time: time.clone(),
                metrics: metrics.clone(),
                switch: leadership.pause().clone(),
            };
            switch = Some(AbortOnDropHandle::new(tasks::spawn(watch.run())));
            (leadership, None)
        };

        let writes = configuration.concurrency.writes;
        let executor = Executor::new(
            client.clone(),
            time.clone(),
            leadership.clone(),
            metrics.clone(),
            identity,
            writes,
            configuration.dry_run,
        );
        let shared = Shared {
            time,
            leadership,
            executor,
            brake,
            released: Broadcast::default(),
            metrics: metrics.clone(),
            dry_run: configuration.dry_run,
            home: home(configuration),
            at_once: at_once(writes),
            freshness: std_duration(configuration.staleness.irreversible_action_limit),
            notices,
        };

        let keeper = BrakeKeeper::new(shared.clone(), configuration.brake.count_nodes_ready_within.into());
        let mut running = Running {
            hub: Hub::new(source, keeper),
            keyring,
            shared,
            stop: CancellationToken::new(),
            engines: Vec::new(),
        };
        for entry in recoveries() {
            let start = (entry.prepare)(&metrics);
            match entry.off(configuration) {
                None => start(&mut running, configuration),
                Some(off) => {
                    let (recovery, why) = (entry.controller.name(), off.to_string());
                    tracing::info!(recovery, why = why.as_str(), "recovery disabled");
                }
            }
        }

        let Running { hub: Hub { watches, .. }, stop, engines, .. } = running;
        metrics.show_watches(watches.clone());
        let ready_limit = std_duration(configuration.staleness.ready_limit);
        Self {
            endpoints: Endpoints { metrics, watches, ready_limit, watchdog, webhooks: None },
            _beat: beat,
            stop,
            engines,
            election,
            _switch: switch,
        }
    }

    pub fn metrics(&self) -> String {
        self.endpoints.metrics.render()
    }

    /// Finishes what is in flight and releases the Lease.
    pub async fn stop(self) {
        self.stop.cancel();
        let mut drained = true;
        for engine in self.engines {
            if tokio::time::timeout(DRAIN, engine).await.is_err() {
                tracing::warn!("writes in flight at exit, the lease expires by itself");
                drained = false;
            }
        }
        // Releasing the Lease while a write may still be in flight would let another replica lead too early.
        if let Some(Election { task, stop }) = self.election.filter(|_| drained) {
            stop.cancel();
            // A panic there is already printed; the Lease then expires by itself.
            let _ = task.await;
        }
    }
}

/// Events about Salvor itself refer to its Lease, in its own namespace; without an election, in the default one.
fn home(configuration: &Configuration) -> ObjectRef {
    let election = &configuration.leader_election;
    let namespace = if election.enabled { &election.lease_namespace } else { "default" };
    ObjectRef::lease(namespace, &election.lease_name)
}
