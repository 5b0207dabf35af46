//! Decides which nodes count for the share of unreachable nodes.
//!
//! A machine that was parked weeks ago is unreachable as well, and shows nothing about the network of today. So a node
//! counts while it is Ready and for a while afterwards, and not if its owner excludes it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::Tally;
use super::share::NodeCounts;
use crate::moments::after;

/// The fields of a node that decide whether it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStanding {
    /// True if the node has the unreachable taint.
    pub unreachable: bool,
    pub ready: WasReady,
    /// True if its owner excludes it.
    pub excluded: bool,
}

/// The Ready state of a node, now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WasReady {
    Now,
    /// The node was Ready until then.
    Until(Timestamp),
    /// The node is not Ready, and the time of the change is unknown.
    Sometime,
    /// Its kubelet has never reported.
    Never,
}

impl NodeStanding {
    /// Until when the node counts, with all else equal; none if it does not count. A period of 0 counts every node.
    fn counts(&self, now: Timestamp, ready_within: SignedDuration) -> Option<Option<Timestamp>> {
        if self.excluded {
            return None;
        }
        if !ready_within.is_positive() {
            return Some(None);
        }
        match self.ready {
            WasReady::Now | WasReady::Sometime => Some(None),
            WasReady::Never => None,
            WasReady::Until(time) => {
                let until = after(time, ready_within);
                (now < until).then_some(Some(until))
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct Census {
    now: Timestamp,
    ready_within: SignedDuration,
    cluster: NodeCounts,
    zones: BTreeMap<String, NodeCounts>,
    changes_at: Option<Timestamp>,
}

impl Census {
    /// Counts nodes that are Ready, or were within this period.
    pub fn new(now: Timestamp, ready_within: SignedDuration) -> Self {
        let (cluster, zones) = (NodeCounts::default(), BTreeMap::new());
        Self { now, ready_within, cluster, zones, changes_at: None }
    }

    pub fn add(&mut self, zone: &str, node: &NodeStanding) {
        // Any node makes its zone known, even if it does not count.
        if !self.zones.contains_key(zone) {
            self.zones.insert(zone.to_owned(), NodeCounts::default());
        }
        let Some(until) = node.counts(self.now, self.ready_within) else { return };
        let of_zone = self.zones.get_mut(zone);
        for counts in of_zone.into_iter().chain([&mut self.cluster]) {
            counts.total = counts.total.saturating_add(1);
            counts.unreachable = counts.unreachable.saturating_add(u32::from(node.unreachable));
        }
        self.changes_at = match (self.changes_at, until) {
            (Some(before), Some(until)) => Some(before.min(until)),
            (before, until) => until.or(before),
        };
    }

    /// The counts of the cluster and of each zone, and when they change without a change of a node.
    pub fn all(self) -> Tally {
        Tally { cluster: Some(self.cluster), zones: Some(self.zones), changes_at: self.changes_at }
    }

    pub fn zone(&self, zone: &str) -> NodeCounts {
        self.zones.get(zone).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap()
    }

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn lost(ready: WasReady) -> NodeStanding {
        NodeStanding { unreachable: true, ready, excluded: false }
    }

    #[test]
    fn a_node_counts_while_it_is_ready_and_for_a_day_after_it_was() {
        let cases = [
            (WasReady::Now, DAY, Some(None)),
            (WasReady::Until(at(-1)), DAY, Some(Some(at(23)))),
            (WasReady::Until(at(-24)), DAY, None),
            (WasReady::Until(at(-1000)), DAY, None),
            (WasReady::Until(at(1000)), DAY, Some(Some(at(1024)))),
            (WasReady::Sometime, DAY, Some(None)),
            (WasReady::Never, DAY, None),
            (WasReady::Until(at(-1000)), SignedDuration::ZERO, Some(None)),
            (WasReady::Never, SignedDuration::ZERO, Some(None)),
            (WasReady::Until(Timestamp::MAX), DAY, Some(Some(Timestamp::MAX))),
        ];
        for (ready, within, counts) in cases {
            assert_eq!(lost(ready).counts(at(0), within), counts, "{ready:?} {within}");
            let excluded = NodeStanding { excluded: true, ..lost(ready) };
            assert_eq!(excluded.counts(at(0), within), None, "{ready:?} {within}");
        }
    }

    /// Half of the machines were switched off a month ago to save power.
    #[test]
    fn parked_machines_do_not_make_an_outage() {
        let mut census = Census::new(at(0), DAY);
        for _ in 0..60 {
            census.add("a", &lost(WasReady::Until(at(-720))));
        }
        for number in 0..40 {
            let unreachable = number < 3;
            let ready = if unreachable { WasReady::Until(at(-number)) } else { WasReady::Now };
            census.add("a", &NodeStanding { unreachable, ready, excluded: false });
        }
        census.add("b", &lost(WasReady::Never));
        assert_eq!(census.zone("a"), NodeCounts { unreachable: 3, total: 40 });
        assert_eq!(census.zone("b"), NodeCounts::default());
        let tally = census.all();
        assert_eq!(tally.cluster, Some(NodeCounts { unreachable: 3, total: 40 }));
        assert_eq!(tally.changes_at, Some(at(22)));
        assert_eq!(tally.zones.unwrap().len(), 2);
    }
}
