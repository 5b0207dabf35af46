//! The one watch of nodes in an operator. It tells the brake how many nodes are lost, and then tells every recovery that listens
//! what changed, each in the form that it keeps. Without a listener nodes are not watched.

mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use salvor_recovery::{
    brake::{Census, NodeStanding, Tally},
    objects::NodeRef,
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::wire::NodeWire;
use crate::{
    brake_keeper::BrakeKeeper,
    watch::{Change, Project, Source, Target, WatchHealth, follow},
};

/// All nodes.
pub(crate) const NODES: Target = Target::all("nodes", "/api/v1/nodes");
/// Changes that may wait to be passed on.
const CHANGES: usize = 64;
/// Changes counted at once before the brake is told: when a zone is lost, each node is a change, and all are counted each time.
const BATCH: usize = 256;

/// A node, as it is told to those who listen. It is theirs only while they take it in.
pub(crate) struct Node {
    pub(crate) wire: NodeWire,
    pub(crate) counted: Arc<CountedNode>,
}

/// The fields of every node that are needed to count it. All counters share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountedNode {
    pub(crate) node: NodeRef,
    /// Empty if it has none.
    pub(crate) zone: String,
    pub(crate) standing: NodeStanding,
}

impl From<&NodeWire> for CountedNode {
    fn from(wire: &NodeWire) -> Self {
        Self { node: wire.node(), zone: wire.zone(), standing: wire.standing() }
    }
}

/// True if somebody needs to know the volumes of a node.
pub(crate) type NeedsVolumes = Arc<dyn Fn(&NodeWire) -> bool + Send + Sync>;

/// What a listener needs of nodes besides what all need.
#[derive(Clone, Default)]
pub(crate) struct Needs {
    /// The volumes of some nodes.
    pub(crate) volumes: Option<NeedsVolumes>,
    /// All conditions.
    pub(crate) conditions: bool,
}

/// Those who listen, and what they need.
#[derive(Default)]
struct Listeners {
    to: Vec<mpsc::Sender<Change<Arc<Node>>>>,
    volumes: Vec<NeedsVolumes>,
    conditions: bool,
    /// True if anything was read by now: whoever comes later needs a list.
    begun: bool,
}

/// The watch of nodes. Clones are the same; it ends with the last of them.
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
    /// A watch that begins when somebody listens.
    pub(crate) fn new(source: Source, keeper: BrakeKeeper) -> Self {
        Self(Arc::new(Inner {
            source,
            keeper,
            health: WatchHealth::new(NODES.resource),
            listeners: Arc::default(),
            task: Mutex::default(),
        }))
    }

    /// The health of the watch.
    pub(crate) fn health(&self) -> &Arc<WatchHealth> {
        &self.0.health
    }

    /// All changes from now on, beginning with a full list.
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
            *task = Some(AbortOnDropHandle::new(tokio::spawn(run)));
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
            // Nobody judges by a node before the brake knows of it.
            keeper.take_in(&batch);
            let to = {
                let mut listeners = lock(&listeners);
                listeners.begun = true;
                listeners.to.clone()
            };
            for change in batch {
                for listener in &to {
                    // One that does not listen any more is dropped below.
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

/// Every node, with its volumes if anybody needs them.
struct AllNodes(Arc<Mutex<Listeners>>);

impl Project for AllNodes {
    type Wire = NodeWire;
    type Kept = Arc<Node>;

    fn keep(&self, mut wire: NodeWire) -> Option<Arc<Node>> {
        let (keeps_volumes, keeps_conditions) = {
            let mut listeners = lock(&self.0);
            listeners.begun = true;
            (listeners.volumes.iter().any(|needs| needs(&wire)), listeners.conditions)
        };
        wire.slim(keeps_volumes, keeps_conditions);
        let counted = Arc::new(CountedNode::from(&wire));
        Some(Arc::new(Node { wire, counted }))
    }
}

/// All nodes, to be counted.
#[derive(Debug, Default)]
pub(crate) struct Table {
    nodes: BTreeMap<String, Arc<CountedNode>>,
    listed: bool,
}

impl Table {
    /// Takes in a change; whether that changes the count.
    pub(crate) fn take_in(&mut self, change: &Change<Arc<Node>>) -> bool {
        match change {
            Change::Applied(node) => self.insert(&node.counted),
            Change::Gone(uid) => {
                let gone = self.nodes.values().find(|known| known.node.uid == *uid);
                let Some(name) = gone.map(|known| known.node.name.clone()) else { return false };
                self.nodes.remove(&name).is_some()
            }
            Change::Reset { all, .. } => {
                let present: BTreeSet<&str> = all.iter().map(|node| node.counted.node.uid.as_str()).collect();
                self.nodes.retain(|_, known| present.contains(known.node.uid.as_str()));
                all.iter().for_each(|node| {
                    self.insert(&node.counted);
                });
                self.listed = true;
                true
            }
        }
    }

    fn insert(&mut self, node: &Arc<CountedNode>) -> bool {
        let before = self.nodes.insert(node.node.name.clone(), node.clone());
        before.is_none_or(|before| before.zone != node.zone || before.standing != node.standing)
    }

    /// The count; none before all nodes are known.
    pub(crate) fn tally(&self, now: Timestamp, ready_within: SignedDuration) -> Option<Tally> {
        let mut census = Census::new(now, ready_within);
        self.nodes.values().for_each(|node| census.add(&node.zone, &node.standing));
        self.listed.then(|| census.all())
    }

    /// So many nodes, of which so many are lost.
    #[cfg(test)]
    pub(crate) fn of(unreachable: u32, total: u32) -> Self {
        let node = |number: u32| {
            let name = format!("node-{number:04}");
            let standing = NodeStanding {
                unreachable: number < unreachable,
                ready: salvor_recovery::brake::WasReady::Now,
                excluded: false,
            };
            let node = NodeRef { name: name.clone(), uid: name.clone() };
            (name, Arc::new(CountedNode { node, zone: String::new(), standing }))
        };
        Self { nodes: (0..total).map(node).collect(), listed: true }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
