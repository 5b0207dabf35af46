//! All nodes, counted for the brake.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use salvor_recovery::{
    brake::{Census, NodeStanding, Tally},
    ids::{NodeName, Uid},
    objects::NodeRef,
};

use super::wire::NodeWire;
use crate::watch_set::{packed::packed, watch::Change};

/// A node, as listeners receive it. They keep it only while they process it.
pub(crate) struct Node {
    pub(crate) wire: NodeWire,
    pub(crate) counted: Arc<CountedNode>,
}

/// The fields of every node that are needed to count it. All counters share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountedNode {
    pub(crate) node: NodeRef,
    /// Empty if it has none.
    pub(crate) zone: Arc<str>,
    pub(crate) standing: NodeStanding,
}

impl From<&NodeWire> for CountedNode {
    fn from(wire: &NodeWire) -> Self {
        Self { node: wire.node(), zone: wire.zone().into(), standing: wire.standing() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    nodes: BTreeMap<NodeName, Arc<CountedNode>>,
    listed: bool,
}

impl Table {
    /// Applies a change. Returns whether it changes the count.
    pub(crate) fn apply(&mut self, change: &Change<Arc<Node>>) -> bool {
        match change {
            Change::Applied(node) => self.insert(&node.counted),
            Change::Gone(uid) => {
                let gone = self.nodes.values().find(|known| known.node.uid == *uid);
                let Some(name) = gone.map(|known| known.node.name.clone()) else { return false };
                self.nodes.remove(&name).is_some()
            }
            Change::Reset { all, .. } => {
                let present: BTreeSet<&Uid> = all.iter().map(|node| &node.counted.node.uid).collect();
                self.nodes.retain(|_, known| present.contains(&known.node.uid));
                all.iter().for_each(|node| {
                    self.insert(&node.counted);
                });
                packed(&mut self.nodes);
                self.listed = true;
                true
            }
        }
    }

    fn insert(&mut self, node: &Arc<CountedNode>) -> bool {
        // Keep the known value if it is equal, because others share it.
        if self.nodes.get(&node.node.name) == Some(node) {
            return false;
        }
        let before = self.nodes.insert(node.node.name.clone(), node.clone());
        before.is_none_or(|before| before.zone != node.zone || before.standing != node.standing)
    }

    /// `None` before all nodes are known.
    pub(crate) fn tally(&self, now: Timestamp, ready_within: SignedDuration) -> Option<Tally> {
        let mut census = Census::new(now, ready_within);
        self.nodes.values().for_each(|node| census.add(&node.zone, &node.standing));
        self.listed.then(|| census.all())
    }

    /// Zones: the name, the lost nodes and the total nodes of each.
    #[cfg(test)]
    pub(crate) fn of(zones: &[(&str, u32, u32)]) -> Self {
        let node = |(zone, unreachable, number): (&str, u32, u32)| {
            let name = NodeName::from(format!("node-{zone}{number:04}"));
            let standing = NodeStanding {
                unreachable: number < unreachable,
                ready: salvor_recovery::brake::WasReady::Now,
                excluded: false,
            };
            let node = NodeRef { name: name.clone(), uid: name.as_str().into() };
            (name, Arc::new(CountedNode { node, zone: zone.into(), standing }))
        };
        let all =
            zones.iter().flat_map(|(zone, lost, total)| (0..*total).map(|number| (*zone, *lost, number)));
        Self { nodes: all.map(node).collect(), listed: true }
    }
}
