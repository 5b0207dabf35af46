//! The control loops that turn an API into a cluster: ordinary clients, each with its own rules.
//!
//! A loop decides by the state of the shared `world` and the time that it is given; it does no I/O. The `driver`
//! runs it: changes go in, `calls` come out as values and are made, and the loop decides again. Loops share one watch
//! per kind. They work against any API server, and under a paused clock.

mod calls;
mod cleanup;
mod driver;
mod nodes;
mod scheduler;
mod storage;
mod workloads;
mod world;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use cleanup::pod_gc::PodGcTimers;
pub use nodes::node_lifecycle::NodeLifecycleTimers;
pub use nodes::zones::EvictionRates;
pub use storage::attach_detach::AttachDetachTimers;

use cleanup::{garbage, namespace, pod_gc, ttl};
use driver::{Clock, Control, Driver};
use nodes::{node_lifecycle, taint_eviction};
use storage::{attach_detach, volumes};
use workloads::{deployment, disruption, replica_set, stateful_set};
use world::collection::Kind;
use world::follow::{self, Ear, Known, Shared};
use world::{Change, everything};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loop {
    /// Assigns pods to nodes.
    Scheduler,
    /// Marks and taints nodes without heartbeats.
    NodeLifecycle,
    /// Deletes pods that do not tolerate a node's taints.
    TaintEviction,
    /// Removes pods that no other controller will ever remove.
    PodGc,
    /// Attaches volumes to the nodes whose pods use them.
    AttachDetach,
    /// Binds claims to volumes.
    VolumeBinder,
    /// Keeps the number of pods of a ReplicaSet.
    ReplicaSet,
    /// Rolls out a Deployment's template.
    Deployment,
    /// Keeps the pods of a StatefulSet, one for each name.
    StatefulSet,
    /// Computes how many disruptions a PodDisruptionBudget allows.
    Disruption,
    /// Deletes finished Jobs after their TTL.
    Ttl,
    /// Deletes objects that have lost their owners, and releases owners that wait for their dependents.
    GarbageCollector,
    /// Empties namespaces that are being deleted.
    Namespace,
}

impl Loop {
    pub const ALL: [Self; 13] = [
        Self::Scheduler,
        Self::NodeLifecycle,
        Self::TaintEviction,
        Self::PodGc,
        Self::AttachDetach,
        Self::VolumeBinder,
        Self::ReplicaSet,
        Self::Deployment,
        Self::StatefulSet,
        Self::Disruption,
        Self::Ttl,
        Self::GarbageCollector,
        Self::Namespace,
    ];

    /// The name by which it is selected.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::NodeLifecycle => "node-lifecycle",
            Self::TaintEviction => "taint-eviction",
            Self::PodGc => "pod-gc",
            Self::AttachDetach => "attach-detach",
            Self::VolumeBinder => "volume-binder",
            Self::ReplicaSet => "replica-set",
            Self::Deployment => "deployment",
            Self::StatefulSet => "stateful-set",
            Self::Disruption => "disruption",
            Self::Ttl => "ttl",
            Self::GarbageCollector => "garbage-collector",
            Self::Namespace => "namespace",
        }
    }
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no control loop {0:?}; there are {known}", known = Loop::ALL.map(Loop::name).join(", "))]
pub struct UnknownLoop(String);

impl FromStr for Loop {
    type Err = UnknownLoop;

    fn from_str(text: &str) -> Result<Self, UnknownLoop> {
        Self::ALL.into_iter().find(|known| known.name() == text).ok_or_else(|| UnknownLoop(text.to_owned()))
    }
}

#[derive(Debug, Clone)]
pub struct LoopOptions {
    pub loops: BTreeSet<Loop>,
    /// The seed of everything random.
    pub seed: u64,
    pub node_lifecycle: NodeLifecycleTimers,
    pub pod_gc: PodGcTimers,
    pub attach_detach: AttachDetachTimers,
}

impl Default for LoopOptions {
    /// All loops, with the timers of a real control plane.
    fn default() -> Self {
        Self {
            loops: Loop::ALL.into(),
            seed: 0,
            node_lifecycle: NodeLifecycleTimers::default(),
            pod_gc: PodGcTimers::default(),
            attach_detach: AttachDetachTimers::default(),
        }
    }
}

/// Running control loops. Dropping this stops them, between two of their calls or in the middle of one.
#[derive(Debug)]
pub struct ControlLoops {
    tasks: JoinSet<()>,
}

impl ControlLoops {
    /// Starts the loops on the current tokio runtime. `now` is the time in the cluster; it must pass as tokio's does.
    pub fn start(
        client: &Client,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        options: &LoopOptions,
    ) -> Self {
        Self::begin(client, &Clock::new(now), options)
    }

    // Not generic: all loops are compiled once here, and not again for every type of clock.
    fn begin(client: &Client, clock: &Clock, options: &LoopOptions) -> Self {
        let shared = Arc::new(Shared::new());
        let mut starting = Starting {
            tasks: JoinSet::new(),
            listeners: Vec::new(),
            kinds: BTreeSet::new(),
            everything: false,
        };
        for chosen in &options.loops {
            let (listener, inbox) = mpsc::unbounded_channel();
            let driver = Driver {
                name: chosen.name(),
                client: client.clone(),
                shared: Arc::clone(&shared),
                clock: clock.clone(),
                inbox,
            };
            match chosen {
                Loop::Scheduler => starting.run(listener, driver, scheduler::Scheduler::new(options.seed)),
                Loop::NodeLifecycle => {
                    starting.run(
                        listener,
                        driver,
                        node_lifecycle::NodeLifecycle::new(options.node_lifecycle),
                    );
                }
                Loop::TaintEviction => {
                    starting.run(listener, driver, taint_eviction::TaintEviction::default());
                }
                Loop::PodGc => starting.run(listener, driver, pod_gc::PodGc::new(options.pod_gc)),
                Loop::AttachDetach => {
                    starting.run(listener, driver, attach_detach::AttachDetach::new(options.attach_detach));
                }
                Loop::VolumeBinder => starting.run(listener, driver, volumes::VolumeBinder::default()),
                Loop::ReplicaSet => starting.run(listener, driver, replica_set::ReplicaSets::default()),
                Loop::Deployment => starting.run(listener, driver, deployment::Deployments::default()),
                Loop::StatefulSet => starting.run(listener, driver, stateful_set::StatefulSets::default()),
                Loop::Disruption => starting.run(listener, driver, disruption::Disruption::default()),
                Loop::Ttl => starting.run(listener, driver, ttl::TimeToLive::default()),
                Loop::GarbageCollector => {
                    starting.run(listener, driver, garbage::GarbageCollector::default());
                }
                Loop::Namespace => starting.run(listener, driver, namespace::Namespaces::default()),
            }
        }
        let Starting { mut tasks, listeners, kinds, everything } = starting;
        shared.listen(listeners);
        for kind in kinds {
            follow(kind, &mut tasks, client.clone(), Arc::clone(&shared));
        }
        if everything {
            tasks.spawn(everything::follow_everything(client.clone(), Arc::clone(&shared)));
        }
        Self { tasks }
    }

    /// Stops the loops and waits until all their calls have ended.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

struct Starting {
    tasks: JoinSet<()>,
    listeners: Vec<Ear>,
    kinds: BTreeSet<Kind>,
    /// True if one of them must see all objects of all kinds.
    everything: bool,
}

impl Starting {
    fn run(&mut self, inbox: mpsc::UnboundedSender<Change>, driver: Driver, control: impl Control) {
        let kinds = (!control.follows_everything()).then(|| control.follows());
        self.listeners.push(Ear { kinds, inbox });
        self.kinds.extend(control.follows());
        self.everything |= control.follows_everything();
        self.tasks.spawn(driver.run(control));
    }
}

/// Watches a kind for all loops.
fn follow(kind: Kind, tasks: &mut JoinSet<()>, client: Client, shared: Arc<Shared>) {
    macro_rules! follow {
        ($place:ident, $change:expr) => {
            tasks.spawn(follow::follow(
                Known { kind, place: |world| &mut world.$place, change: $change },
                client,
                shared,
            ))
        };
    }
    match kind {
        Kind::Pod => follow!(pods, Change::Pod),
        Kind::Node => follow!(nodes, Change::Node),
        Kind::Lease => follow!(leases, Change::Lease),
        Kind::Claim => follow!(claims, Change::Claim),
        Kind::Volume => follow!(volumes, Change::Volume),
        Kind::StorageClass => follow!(storage_classes, Change::StorageClass),
        Kind::Attachment => follow!(attachments, Change::Attachment),
        Kind::ReplicaSet => follow!(replica_sets, |delta| Change::Workload(Kind::ReplicaSet, delta)),
        Kind::Deployment => follow!(deployments, |delta| Change::Workload(Kind::Deployment, delta)),
        Kind::StatefulSet => follow!(stateful_sets, |delta| Change::Workload(Kind::StatefulSet, delta)),
        Kind::Job => follow!(jobs, |delta| Change::Workload(Kind::Job, delta)),
        Kind::Budget => follow!(budgets, |delta| Change::Workload(Kind::Budget, delta)),
        Kind::Namespace => follow!(namespaces, Change::Namespace),
        // Written, never read.
        Kind::Event => return,
    };
}
