//! A replica of the operator, which is restarted whenever it dies.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use salvor_api::config::Configuration;
use salvor_apiserver::{Cluster, Faults};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
    time::sleep,
};

use super::recorder::{Arrivals, Departures, Ledger};
use crate::{CrashPoint, Line, Process, Side};

/// The time until a dead process is restarted.
const DOWN: Duration = Duration::from_secs(5);

/// The end of a process that was killed.
#[derive(Clone, Debug)]
pub(super) struct Death {
    /// The identity of the process.
    pub(super) of: Arc<str>,
    pub(super) at: Timestamp,
}

/// What all replicas of a cluster share.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) cluster: Cluster,
    pub(super) ledger: Ledger,
    deaths: Arc<Mutex<Vec<Death>>>,
    dry: Arc<Mutex<Vec<Arc<str>>>>,
}

impl Site {
    pub(super) fn new(cluster: Cluster, ledger: Ledger) -> Self {
        Self { cluster, ledger, deaths: Arc::default(), dry: Arc::default() }
    }

    pub(super) fn deaths(&self) -> Vec<Death> {
        locked(&self.deaths).clone()
    }

    /// The identities of all processes that were configured for a dry run.
    pub(super) fn dry(&self) -> Arc<Mutex<Vec<Arc<str>>>> {
        self.dry.clone()
    }
}

/// Locks even after a panic: panics are collected elsewhere.
pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Order {
    Kill,
    Crash(CrashPoint),
    CrashAtRenewal(Side),
    /// Pauses everything that runs in it, or resumes it.
    Sleep(bool),
    /// Stops gracefully and starts with this configuration.
    Configure(Box<Configuration>),
    Restart,
}

/// A replica. Dropping it kills it permanently.
pub(super) struct Replica {
    /// The faults of its requests.
    pub(super) faults: Faults,
    orders: UnboundedSender<Order>,
    task: JoinHandle<()>,
}

impl Replica {
    /// Starts it; the names of its processes derive from `name`.
    pub(super) fn start(site: Site, name: String, configuration: Configuration) -> Self {
        let (orders, inbox) = unbounded_channel();
        let faults = Faults::default();
        let life = Life { site, name, configuration, faults: faults.clone(), lives: 0 };
        Self { faults, orders, task: tokio::spawn(life.run(inbox)) }
    }

    pub(super) fn kill(&self) {
        self.order(Order::Kill);
    }

    pub(super) fn crash(&self, point: CrashPoint) {
        self.order(Order::Crash(point));
    }

    pub(super) fn crash_at_renewal(&self, side: Side) {
        self.order(Order::CrashAtRenewal(side));
    }

    pub(super) fn sleep(&self, sleeps: bool) {
        self.order(Order::Sleep(sleeps));
    }

    pub(super) fn restart(&self) {
        self.order(Order::Restart);
    }

    pub(super) fn configure(&self, configuration: &Configuration) {
        self.order(Order::Configure(Box::new(configuration.clone())));
    }

    /// Stops it gracefully and permanently.
    pub(super) async fn stop(self) {
        drop(self.orders);
        // Panics of a process are collected elsewhere.
        let _ = self.task.await;
    }

    fn order(&self, order: Order) {
        // The task ends only when all senders are dropped.
        let _ = self.orders.send(order);
    }
}

struct Life {
    site: Site,
    name: String,
    configuration: Configuration,
    faults: Faults,
    lives: u32,
}

impl Life {
    async fn run(mut self, mut inbox: UnboundedReceiver<Order>) {
        loop {
            let (identity, process) = self.begin();
            let line = process.line().clone();
            loop {
                let order = tokio::select! {
                    biased;
                    () = line.died() => {
                        locked(&self.site.deaths).push(Death { of: identity, at: self.site.cluster.now() });
                        drop(process);
                        sleep(DOWN).await;
                        break;
                    }
                    order = inbox.recv() => order,
                };
                match order {
                    None => {
                        // A paused process cannot receive an order to stop.
                        process.sleep().end();
                        return process.stop().await;
                    }
                    Some(Order::Kill) => line.cut(),
                    Some(Order::Crash(point)) => line.die_at(point),
                    Some(Order::CrashAtRenewal(side)) => line.die_at_renewal(side),
                    Some(Order::Sleep(true)) => process.sleep().begin(),
                    Some(Order::Sleep(false)) => process.sleep().end(),
                    Some(Order::Restart) => {
                        process.sleep().end();
                        process.stop().await;
                        break;
                    }
                    Some(Order::Configure(configuration)) => {
                        process.sleep().end();
                        process.stop().await;
                        self.configuration = *configuration;
                        break;
                    }
                }
            }
        }
    }

    fn begin(&mut self) -> (Arc<str>, Process) {
        self.lives += 1;
        let identity: Arc<str> = format!("{}.{}", self.name, self.lives).into();
        if self.configuration.dry_run {
            locked(&self.site.dry).push(identity.clone());
        }
        let (cluster, line) = (&self.site.cluster, Line::default());
        let arrivals = Arrivals { cluster: cluster.clone(), ledger: self.site.ledger.clone() };
        let service = Departures {
            service: line.before(self.faults.before(arrivals)),
            by: identity.clone(),
            cluster: cluster.clone(),
        };
        let process = Process::over(service, cluster.now(), &identity, &self.configuration, line);
        (identity, process)
    }
}
