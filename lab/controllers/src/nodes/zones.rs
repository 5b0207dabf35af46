//! Limits how many nodes of a zone may be tainted at once: the fewer are left, the slower.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZoneState {
    Normal,
    /// Many nodes are lost at once.
    Partial,
    /// No node is ready.
    Full,
}

/// The rate at which nodes are tainted unreachable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvictionRates {
    /// Nodes per second in a healthy zone, or in a zone that is lost completely while others are not.
    pub normal: f64,
    /// Nodes per second in a large zone with many lost nodes.
    pub disrupted: f64,
    /// In a zone of at most this many nodes, none is tainted while it is disrupted.
    pub large_zone: usize,
    /// The share of nodes, from 0 to 1, whose loss makes a zone disrupted. (And at least three.)
    pub unhealthy_share: f64,
}

impl Default for EvictionRates {
    /// kube-controller-manager's defaults.
    fn default() -> Self {
        Self { normal: 0.1, disrupted: 0.01, large_zone: 50, unhealthy_share: 0.55 }
    }
}

impl EvictionRates {
    pub(crate) fn state(&self, ready: usize, lost: usize) -> ZoneState {
        #[allow(clippy::cast_precision_loss, reason = "no cluster has 2^52 nodes")]
        let share = lost as f64 / (ready + lost).max(1) as f64;
        if ready == 0 && lost > 0 {
            ZoneState::Full
        } else if lost > 2 && share >= self.unhealthy_share {
            ZoneState::Partial
        } else {
            ZoneState::Normal
        }
    }

    fn rate(&self, state: ZoneState, nodes: usize) -> f64 {
        match state {
            ZoneState::Normal | ZoneState::Full => self.normal,
            ZoneState::Partial if nodes > self.large_zone => self.disrupted,
            ZoneState::Partial => 0.0,
        }
    }
}

/// One zone's queue of nodes to taint.
#[derive(Debug, Default)]
struct Zone {
    waiting: VecDeque<String>,
    rate: f64,
    /// When the next node may be tainted: a token bucket of size one.
    next: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(crate) struct Zones {
    zones: BTreeMap<String, Zone>,
    all_full: bool,
}

/// The state of the cluster, from its zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Each zone is handled by itself.
    Ordinary,
    /// Every zone is lost: the control plane itself must be cut off. No node is tainted.
    NobodyLeft,
    /// That has just ended: all nodes get another grace period.
    Relieved,
}

impl Zones {
    /// Updates the number of ready and lost nodes of each zone.
    pub(crate) fn update(
        &mut self,
        counts: &BTreeMap<String, (usize, usize)>,
        rates: &EvictionRates,
    ) -> Mood {
        let states = counts.values().map(|&(ready, lost)| rates.state(ready, lost));
        let all_full = !counts.is_empty() && states.clone().all(|state| state == ZoneState::Full);
        let relieved = self.all_full && !all_full;
        self.all_full = all_full;
        let live: BTreeSet<&String> = counts.keys().collect();
        self.zones.retain(|name, zone| live.contains(name) || !zone.waiting.is_empty());
        for (name, &(ready, lost)) in counts {
            let state = rates.state(ready, lost);
            let zone = self.zones.entry(name.clone()).or_default();
            zone.rate = if all_full { 0.0 } else { rates.rate(state, ready + lost) };
        }
        match (all_full, relieved) {
            (true, _) => Mood::NobodyLeft,
            (false, true) => Mood::Relieved,
            (false, false) => Mood::Ordinary,
        }
    }

    /// Queues a node to be tainted.
    pub(crate) fn enqueue(&mut self, zone: &str, node: &str) {
        let zone = self.zones.entry(zone.to_owned()).or_default();
        if !zone.waiting.iter().any(|known| known == node) {
            zone.waiting.push_back(node.to_owned());
        }
    }

    /// A node is healthy again, or gone.
    pub(crate) fn forget(&mut self, node: &str) {
        for zone in self.zones.values_mut() {
            zone.waiting.retain(|known| known != node);
        }
    }

    pub(crate) fn forget_all(&mut self) {
        for zone in self.zones.values_mut() {
            zone.waiting.clear();
        }
    }

    /// The nodes whose turn it is.
    pub(crate) fn take(&mut self, now: Timestamp) -> Vec<String> {
        let mut due = Vec::new();
        for zone in self.zones.values_mut() {
            while zone.rate > 0.0
                && zone.next.is_none_or(|next| next <= now)
                && let Some(node) = zone.waiting.pop_front()
            {
                let pause = Duration::from_secs_f64((1.0 / zone.rate).min(3600.0 * 24.0));
                // A token bucket of size one: idle time does not accumulate.
                zone.next = Some(now + pause);
                due.push(node);
            }
        }
        due
    }

    pub(crate) fn wake(&self) -> Option<Timestamp> {
        let waiting = self.zones.values().filter(|zone| zone.rate > 0.0 && !zone.waiting.is_empty());
        waiting.filter_map(|zone| zone.next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: EvictionRates =
        EvictionRates { normal: 0.1, disrupted: 0.01, large_zone: 50, unhealthy_share: 0.55 };

    #[test]
    fn the_states_of_a_zone() {
        for (ready, lost, expected) in [
            (5, 0, ZoneState::Normal),
            (1, 2, ZoneState::Normal),
            (3, 3, ZoneState::Normal),
            (2, 3, ZoneState::Partial),
            (45, 55, ZoneState::Partial),
            (46, 54, ZoneState::Normal),
            (0, 1, ZoneState::Full),
            (0, 9, ZoneState::Full),
        ] {
            assert_eq!(RATES.state(ready, lost), expected, "{ready} ready, {lost} lost");
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn counts(of: &[(&str, usize, usize)]) -> BTreeMap<String, (usize, usize)> {
        of.iter().map(|&(zone, ready, lost)| (zone.to_owned(), (ready, lost))).collect()
    }

    #[test]
    fn one_node_every_ten_seconds_and_zone() {
        let mut zones = Zones::default();
        assert_eq!(zones.update(&counts(&[("a", 8, 3), ("b", 8, 1)]), &RATES), Mood::Ordinary);
        for node in ["a1", "a2", "a3"] {
            zones.enqueue("a", node);
        }
        zones.enqueue("a", "a2");
        zones.enqueue("b", "b1");
        assert_eq!(zones.take(at(100)), ["a1", "b1"]);
        assert_eq!(zones.take(at(109)), Vec::<String>::new());
        assert_eq!(zones.wake(), Some(at(110)));
        assert_eq!(zones.take(at(110)), ["a2"]);
        zones.forget("a3");
        assert_eq!(zones.take(at(200)), Vec::<String>::new());
    }

    #[test]
    fn small_zones_stop_and_large_ones_slow_down_when_many_nodes_are_lost() {
        let mut zones = Zones::default();
        zones.update(&counts(&[("large", 20, 40), ("small", 2, 3)]), &RATES);
        for node in ["l1", "l2"] {
            zones.enqueue("large", node);
        }
        zones.enqueue("small", "s1");
        assert_eq!(zones.take(at(1000)), ["l1"]);
        assert_eq!(zones.take(at(1099)), Vec::<String>::new());
        assert_eq!(zones.take(at(1100)), ["l2"]);
        assert_eq!(zones.wake(), None, "nobody knows when the small zone gets better");
    }

    #[test]
    fn when_every_zone_is_lost_nothing_is_given_up_and_afterwards_all_begins_anew() {
        let mut zones = Zones::default();
        zones.update(&counts(&[("a", 1, 1), ("b", 0, 2)]), &RATES);
        zones.enqueue("a", "a1");
        assert_eq!(zones.update(&counts(&[("a", 0, 2), ("b", 0, 2)]), &RATES), Mood::NobodyLeft);
        assert_eq!(zones.take(at(1)), Vec::<String>::new());
        assert_eq!(zones.update(&counts(&[("a", 1, 1), ("b", 0, 2)]), &RATES), Mood::Relieved);
        assert_eq!(zones.update(&counts(&[("a", 1, 1), ("b", 0, 2)]), &RATES), Mood::Ordinary);
        assert_eq!(zones.take(at(1)), ["a1"]);
    }
}
