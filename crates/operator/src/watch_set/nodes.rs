//! The single watch of nodes in an operator. It first updates the brake with the number of lost nodes, and then passes
//! the changes to every listening recovery, each in the form that it keeps. Without a listener nodes are not watched.

pub(crate) mod table;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

pub use self::wire::standing_of;
pub(crate) use self::{
    table::{CountedNode, Node},
    wire::{NodeWire, RepairAnnotations},
};
use crate::{
    engine::brake_keeper::BrakeKeeper,
    tasks,
    watch_set::{
        interned::Interned,
        watch::{Change, Project, Source, Target, WatchHealth, follow},
    },
};

pub(crate) const NODES: Target = Target::all("nodes", "/api/v1/nodes");
/// Changes that may be queued before they are passed on.
const CHANGES: usize = 64;
/// Changes counted at once before the brake is updated: when a zone is lost, each node is a change, and every update
/// counts all nodes.
const BATCH: usize = 256;

/// True if a listener needs the volumes of a node.
pub(crate) type NeedsVolumes = Arc<dyn Fn(&NodeWire) -> bool + Send + Sync>;

/// The fields that a listener needs beyond the common ones.
#[derive(Clone, Default)]
pub(crate) struct Needs {
    /// Selects the nodes whose volumes are needed.
    pub(crate) volumes: Option<NeedsVolumes>,
    /// True if all conditions are needed.
    pub(crate) conditions: bool,
}

#[derive(Default)]
struct Listeners {
    to: Vec<mpsc::Sender<Change<Arc<Node>>>>,
    volumes: Vec<NeedsVolumes>,
    conditions: bool,
    zones: Interned<str>,
    /// True if anything was read by now: a later listener needs a relist.
    begun: bool,
}

/// The watch of nodes. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub(crate) struct NodeFeed(Arc<Inner>);

struct Inner {
    source: Source,
    keeper: BrakeKeeper,
    health: Arc<WatchHealth>,
    listeners: Arc<Mutex<Listeners>>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl NodeFeed {
    /// The watch begins with the first listener.
    pub(crate) fn new(source: Source, keeper: BrakeKeeper) -> Self {
        Self(Arc::new(Inner {
            source,
            keeper,
            health: WatchHealth::new(NODES.resource),
            listeners: Arc::default(),
            task: Mutex::default(),
        }))
    }

    pub(crate) fn health(&self) -> &Arc<WatchHealth> {
        &self.0.health
    }

    /// All changes from now on, starting with a full list.
    pub(crate) fn listen(&self, needs: Needs) -> mpsc::Receiver<Change<Arc<Node>>> {
        let (to, changes) = mpsc::channel(CHANGES);
        let begun = {
            let mut listeners = lock(&self.0.listeners);
            listeners.to.push(to);
            listeners.volumes.extend(needs.volumes);
            listeners.conditions |= needs.conditions;
            listeners.begun
        };
        if begun {
            self.0.health.ask_for_list();
        }
        let mut task = lock(&self.0.task);
        if task.is_none() {
            let Inner { source, keeper, health, listeners, .. } = &*self.0;
            let run = run(source.clone(), keeper.clone(), health.clone(), listeners.clone());
            *task = Some(AbortOnDropHandle::new(tasks::spawn(run)));
        }
        changes
    }
}

async fn run(
    source: Source,
    keeper: BrakeKeeper,
    health: Arc<WatchHealth>,
    listeners: Arc<Mutex<Listeners>>,
) {
    let (changes, mut inbox) = mpsc::channel(CHANGES);
    let watch = follow(source, NODES, AllNodes(listeners.clone()), health, changes);
    let pass_on = async {
        while let Some(first) = inbox.recv().await {
            let mut batch = vec![first];
            while batch.len() < BATCH
                && let Ok(next) = inbox.try_recv()
            {
                batch.push(next);
            }
            // No recovery decides from a node before the brake knows of it.
            keeper.apply(&batch);
            let to = {
                let mut listeners = lock(&listeners);
                listeners.begun = true;
                listeners.to.clone()
            };
            for change in batch {
                for listener in &to {
                    // A closed receiver is dropped below.
                    let _ = listener.send(change.clone()).await;
                }
            }
            lock(&listeners).to.retain(|listener| !listener.is_closed());
        }
    };
    tokio::select! {
        biased;
        () = watch => {}
        () = pass_on => {}
        () = keeper.run() => {}
    }
}

/// Every node, with its volumes if a listener needs them.
struct AllNodes(Arc<Mutex<Listeners>>);

impl Project for AllNodes {
    type Wire = NodeWire;
    type Kept = Arc<Node>;

    fn keep(&self, mut wire: NodeWire) -> Option<Arc<Node>> {
        let (keeps_volumes, keeps_conditions, zone) = {
            let mut listeners = lock(&self.0);
            listeners.begun = true;
            let keeps_volumes = listeners.volumes.iter().any(|needs| needs(&wire));
            (keeps_volumes, listeners.conditions, listeners.zones.one(wire.zone().as_str()))
        };
        wire.slim(keeps_volumes, keeps_conditions);
        let counted = Arc::new(CountedNode { zone, ..CountedNode::from(&wire) });
        Some(Arc::new(Node { wire, counted }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
