//! The nodes that run pods of AppWrappers, and the heartbeats of those that are unreachable.

use jiff::Timestamp;
use salvor_recovery::{
    appwrapper::AppWrapperRef,
    ids::{NodeName, Uid},
    liveness::Lease,
};

use super::{AppWrappers, wire::SeenNode};
use crate::client::live::NodeLease;

impl AppWrappers {
    pub(super) fn see_node(&mut self, node: SeenNode, now: Timestamp) -> Vec<AppWrapperRef> {
        let name = node.node.name.clone();
        let known = self.nodes.get(&name);
        let is_known = known.is_some_and(|before| before.view == node.view && before.node == node.node);
        if !node.view.unreachable {
            // The next time is another incident.
            self.heartbeats.forget(&name);
        }
        self.nodes.insert(name.clone(), node);
        self.track_lease(&name, now);
        if is_known { Vec::new() } else { self.on_node(&name) }
    }

    /// Requests that a node's Lease is read while pods are on it, its kubelet is in question, and a read may reveal
    /// something new.
    pub(super) fn track_lease(&self, name: &NodeName, now: Timestamp) {
        let lost = self.nodes.get(name).filter(|node| node.view.unreachable);
        let wanted = lost.is_some_and(|node| {
            !self.heartbeats.of(&node.node).is_settled(now) && self.pods.on(name).next().is_some()
        });
        self.leases.set(name, wanted);
    }

    pub(super) fn track_leases(&self, now: Timestamp) {
        self.nodes.keys().for_each(|name| self.track_lease(name, now));
    }

    pub(super) fn on_lease(
        &mut self,
        name: &NodeName,
        lease: Option<NodeLease>,
        now: Timestamp,
    ) -> Vec<AppWrapperRef> {
        let Some(node) = self.nodes.get(name) else { return Vec::new() };
        let before = self.heartbeats.of(&node.node);
        let heartbeat = self.heartbeats.note(&node.node, lease.or(node.ready_heartbeat), now);
        self.track_lease(name, now);
        // The Lease of a dead node does not change, and a live one matters only if that was unknown.
        let was_known = before.lease != Lease::Unread;
        if was_known && before.alive_until(now).is_some() == heartbeat.alive_until(now).is_some() {
            return Vec::new();
        }
        self.on_node(name)
    }

    fn on_node(&self, name: &NodeName) -> Vec<AppWrapperRef> {
        self.pods.on(name).filter_map(|pod| self.app_of(pod)).collect()
    }

    pub(super) fn drop_node(&mut self, uid: &Uid) -> Vec<AppWrapperRef> {
        let gone = self.nodes.values().find(|seen| seen.node.uid == *uid).map(|seen| seen.node.name.clone());
        let Some(name) = gone else { return Vec::new() };
        self.nodes.remove(&name);
        self.heartbeats.forget(&name);
        self.leases.set(&name, false);
        self.on_node(&name)
    }

    /// Replaces all nodes.
    pub(super) fn list_nodes(&mut self, all: Vec<SeenNode>, now: Timestamp) -> Vec<AppWrapperRef> {
        let before: Vec<NodeName> = self.nodes.keys().cloned().collect();
        self.nodes = all.into_iter().map(|seen| (seen.node.name.clone(), seen)).collect();
        for name in before.iter().filter(|name| !self.nodes.contains_key(*name)) {
            self.heartbeats.forget(name);
            self.leases.set(name, false);
        }
        self.nodes_listed = true;
        self.track_leases(now);
        self.apps.values().map(|known| known.app.appwrapper.clone()).collect()
    }
}
