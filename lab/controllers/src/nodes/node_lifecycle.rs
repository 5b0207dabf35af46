//! Node lifecycle: marks and taints a node that sends no heartbeat for too long as not ready.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use salvor_apiserver::object;
use serde_json::{Value, json};

use super::taints::{NO_EXECUTE, NO_SCHEDULE, NOT_READY, UNREACHABLE, UNSCHEDULABLE};
use super::zones::{EvictionRates, Mood, Zones};
use crate::calls::{Call, Note, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::views::{Node, Pod};
use crate::world::{Change, World};

const COMPONENT: &str = "node-controller";
/// Nodes with this label do not count for the state of a zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// The conditions that become Unknown without heartbeats.
const VOUCHED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// When a node is marked unreachable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeLifecycleTimers {
    /// The interval at which all nodes are checked.
    pub monitor_period: Duration,
    /// A node without heartbeat for this long becomes unreachable.
    pub grace_period: Duration,
    /// The same for a node that never sent a heartbeat.
    pub startup_grace_period: Duration,
    /// The rate at which nodes are tainted unreachable.
    pub rates: EvictionRates,
}

impl Default for NodeLifecycleTimers {
    /// kube-controller-manager's defaults.
    fn default() -> Self {
        Self {
            monitor_period: Duration::from_secs(5),
            grace_period: Duration::from_secs(50),
            startup_grace_period: Duration::from_secs(60),
            rates: EvictionRates::default(),
        }
    }
}

/// The last heartbeat of a node, by our own clock.
#[derive(Debug)]
struct Pulse {
    heard: Timestamp,
    renewed: Option<Timestamp>,
    heartbeat: Option<Timestamp>,
}

#[derive(Debug)]
pub(crate) struct NodeLifecycle {
    timers: NodeLifecycleTimers,
    queue: Queue,
    pulses: BTreeMap<String, Pulse>,
    zones: Zones,
    /// Nodes whose turn to be tainted has come.
    given_up: BTreeSet<String>,
    /// Nodes whose `NoExecute` taints are to be updated. That happens once per monitor period; only a node's turn, and
    /// the `NoSchedule` taints, take effect at once.
    in_round: BTreeSet<String>,
    /// Every zone is lost, so no node is tainted.
    suspended: bool,
    next_look: Option<Timestamp>,
}

impl NodeLifecycle {
    pub(crate) fn new(timers: NodeLifecycleTimers) -> Self {
        Self {
            timers,
            queue: Queue::default(),
            pulses: BTreeMap::new(),
            zones: Zones::default(),
            given_up: BTreeSet::new(),
            in_round: BTreeSet::new(),
            suspended: false,
            next_look: None,
        }
    }
}

impl Control for NodeLifecycle {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Lease, Kind::Pod]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Node(delta) => {
                if let Some(node) = delta.last() {
                    self.queue.add(node.metadata.name.clone());
                }
            }
            // A new pod on a node that is not ready is marked as not ready.
            Change::Pod(delta) => {
                if let Some(pod) = &delta.new
                    && pod.is_bound()
                    && pod.is_ready()
                {
                    self.queue.add(pod.spec.node_name.clone());
                }
            }
            _ => {}
        }
    }

    fn again(&mut self, subject: &str) {
        self.queue.add(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        if self.next_look.is_none_or(|at| at <= now) {
            // Our process was paused, and kubelets perhaps too: that does not count as missing heartbeats.
            if self.next_look.is_some_and(|at| at + self.timers.monitor_period < now) {
                self.pulses.values_mut().for_each(|pulse| pulse.heard = now);
            }
            self.next_look = Some(now + self.timers.monitor_period);
            self.look_at_all(world, now);
        }
        let mut calls: BTreeMap<String, Vec<Call>> = BTreeMap::new();
        loop {
            // A node that has just been found lost may be the next to be tainted.
            for node in self.zones.take(now) {
                self.given_up.insert(node.clone());
                self.queue.add(node);
            }
            let subjects = self.queue.take(now);
            if subjects.is_empty() {
                break;
            }
            for name in subjects {
                match world.nodes.get(&name) {
                    Some(node) => drop(calls.insert(name, self.judge(node, world, now))),
                    None => self.forget(&name),
                }
            }
        }
        let errands = calls.into_iter().filter(|(_, calls)| !calls.is_empty());
        let errands = errands.map(|(name, calls)| Errand::new(name, calls)).collect();
        let wake = [self.next_look, self.queue.wake(), self.zones.wake()].into_iter().flatten().min();
        Plan { errands, wake }
    }
}

impl NodeLifecycle {
    fn forget(&mut self, name: &str) {
        self.pulses.remove(name);
        self.given_up.remove(name);
        self.in_round.remove(name);
        self.zones.forget(name);
    }

    /// Checks the heartbeats of all nodes, and decides the state of the zones.
    fn look_at_all(&mut self, world: &World, now: Timestamp) {
        for node in world.nodes.iter() {
            if self.is_silent(node, world, now) || !node.is_ready() || is_given_up(node) {
                self.look_at(node);
            }
        }
        let gone: Vec<String> =
            self.pulses.keys().filter(|name| world.nodes.get(name).is_none()).cloned().collect();
        for name in gone {
            self.forget(&name);
        }
        let mood = self.zones.update(&count(world), &self.timers.rates);
        let was_suspended = self.suspended;
        self.suspended = mood == Mood::NobodyLeft;
        match mood {
            Mood::NobodyLeft => {
                self.zones.forget_all();
                self.given_up.clear();
                if !was_suspended {
                    world.nodes.iter().for_each(|node| self.look_at(node));
                }
            }
            Mood::Relieved => self.pulses.values_mut().for_each(|pulse| pulse.heard = now),
            Mood::Ordinary => {}
        }
    }

    fn look_at(&mut self, node: &Node) {
        self.in_round.insert(node.metadata.name.clone());
        self.queue.add(node.metadata.name.clone());
    }

    /// True if a node has sent no heartbeat for too long: neither its Lease nor its status has changed.
    fn is_silent(&mut self, node: &Node, world: &World, now: Timestamp) -> bool {
        let name = &node.metadata.name;
        let lease = world.leases.named("kube-node-lease", name);
        let renewed = lease.and_then(|lease| lease.spec.renew_time);
        let heartbeat = node.condition("Ready").and_then(|ready| ready.last_heartbeat_time);
        let unheard = Pulse { heard: now, renewed, heartbeat };
        let pulse = self.pulses.entry(name.clone()).or_insert(unheard);
        if renewed > pulse.renewed || heartbeat != pulse.heartbeat {
            pulse.heard = now;
        }
        (pulse.renewed, pulse.heartbeat) = (renewed, heartbeat);
        let grace = match node.condition("Ready") {
            Some(_) => self.timers.grace_period,
            None => self.timers.startup_grace_period,
        };
        // kube-controller-manager waits for more than the grace period, but its checks are a little more than their
        // period apart: the tenth check of five seconds is always past fifty. Here it is exactly at fifty.
        pulse.heard + grace <= now
    }

    /// The writes to a node and to its pods: first the conditions, then what follows from them.
    fn judge(&mut self, node: &Node, world: &World, now: Timestamp) -> Vec<Call> {
        let name = &node.metadata.name;
        let silent = self.is_silent(node, world, now);
        let of = Ref::to(Kind::Node, node);
        if silent {
            let unknown = unknown_conditions(node, now);
            if !unknown.is_empty() {
                let body = json!({ "status": { "conditions": unknown } });
                // The watch event of this change triggers the next reconcile.
                return vec![Call::Patch { of, part: Part::Status, body }];
            }
        }
        let mut calls = Vec::new();
        let lost = lost_by(node);
        let tainted = is_given_up(node);
        if lost.is_none() {
            self.given_up.remove(name);
        }
        let execute = if self.in_round.remove(name) {
            if lost.is_none() {
                self.zones.forget(name);
            }
            if lost.is_some() && !tainted && !self.suspended && !self.given_up.contains(name) {
                self.zones.enqueue(&zone_of(node), name);
            }
            Execute::Is(lost.filter(|_| !self.suspended && (tainted || self.given_up.contains(name))))
        } else if lost.is_some() && !tainted && self.given_up.contains(name) {
            Execute::Is(lost)
        } else {
            Execute::Stays
        };
        if let Some(taints) = changed_taints(node, execute, now) {
            let revision = node.metadata.resource_version.clone();
            let body = json!({ "spec": { "taints": taints } });
            calls.push(Call::MergeAt { of, part: Part::Whole, revision, body });
        }
        calls.extend(misinformed(node, world).flat_map(|pod| not_ready(pod, now)));
        calls
    }
}

/// Pods of a node that is not ready are not ready either, unless their kubelet has reported it since.
fn misinformed<'w>(node: &Node, world: &'w World) -> impl Iterator<Item = &'w Arc<Pod>> + use<'w> {
    let ready = node.condition("Ready").filter(|ready| ready.status != "True");
    let lost_since = ready.map(|ready| ready.last_transition_time);
    world.pods_on(&node.metadata.name).filter(move |pod| {
        let ready_since = pod.condition("Ready").map(|ready| ready.last_transition_time);
        pod.is_ready() && lost_since.is_some() && ready_since <= lost_since
    })
}

/// Ready and lost nodes of each zone.
fn count(world: &World) -> BTreeMap<String, (usize, usize)> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for node in world.nodes.iter().filter(|node| !node.metadata.labels.contains_key(EXCLUDED)) {
        let (ready, lost) = counts.entry(zone_of(node)).or_default();
        if node.is_ready() {
            *ready += 1;
        } else {
            *lost += 1;
        }
    }
    counts
}

fn zone_of(node: &Node) -> String {
    let (region, zone) = region_and_zone(node);
    format!("{region}/{zone}")
}

/// A node's region and zone, each empty if it has none.
pub(crate) fn region_and_zone(node: &Node) -> (&str, &str) {
    let label = |key: &str| node.metadata.labels.get(key).map_or("", String::as_str);
    (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

/// The change of a node's `NoExecute` taints.
#[derive(Debug, Clone, Copy)]
enum Execute {
    /// They stay until the next round.
    Stays,
    /// Exactly this one, or none.
    Is(Option<&'static str>),
}

/// True if a node has a `NoExecute` taint of ours.
fn is_given_up(node: &Node) -> bool {
    let ours = |key: &str| key == NOT_READY || key == UNREACHABLE;
    node.spec.taints.iter().any(|taint| taint.effect == NO_EXECUTE && ours(&taint.key))
}

/// The taint key of a node that is not ready; `None` if it is ready.
fn lost_by(node: &Node) -> Option<&'static str> {
    match node.condition("Ready")?.status.as_str() {
        "False" => Some(NOT_READY),
        "Unknown" => Some(UNREACHABLE),
        _ => None,
    }
}

fn unknown_conditions(node: &Node, now: Timestamp) -> Vec<Value> {
    let at = object::time(now);
    let unknown = |kind: &str| match node.condition(kind) {
        Some(known) if known.status == "Unknown" => None,
        Some(_) => Some(json!({
            "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.", "lastTransitionTime": at,
        })),
        None => Some(json!({
            "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.",
            "lastHeartbeatTime": node.metadata.creation_timestamp.map(object::time),
            "lastTransitionTime": at,
        })),
    };
    VOUCHED.into_iter().filter_map(unknown).collect()
}

/// The condition, the status that triggers a taint, and the taint.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// The taints that a node should have, if they differ from the present ones.
fn changed_taints(node: &Node, execute: Execute, now: Timestamp) -> Option<Vec<Taint>> {
    let ours = |taint: &Taint| match taint.effect.as_str() {
        NO_SCHEDULE => taint.key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, key)| *key == taint.key),
        NO_EXECUTE => {
            matches!(execute, Execute::Is(_)) && (taint.key == NOT_READY || taint.key == UNREACHABLE)
        }
        _ => false,
    };
    let holds = |(kind, status, key): (&str, &str, &'static str)| {
        node.condition(kind).is_some_and(|condition| condition.status == status).then_some(key)
    };
    let mut wanted: Vec<(&str, &str)> =
        BY_CONDITION.into_iter().filter_map(holds).map(|key| (key, NO_SCHEDULE)).collect();
    // A node that has never reported keeps the taint that it was registered with.
    let unheard = node.condition("Ready").is_none();
    let keeps = |taint: &Taint| unheard && taint.key == NOT_READY && taint.effect == NO_SCHEDULE;
    if node.spec.unschedulable {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    if let Execute::Is(Some(key)) = execute {
        wanted.push((key, NO_EXECUTE));
    }
    let is_wanted = |taint: &Taint| wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut taints: Vec<Taint> = node
        .spec
        .taints
        .iter()
        .filter(|taint| !ours(taint) || is_wanted(taint) || keeps(taint))
        .cloned()
        .collect();
    let mut changed = taints.len() != node.spec.taints.len();
    for (key, effect) in wanted {
        if !taints.iter().any(|taint| taint.key == key && taint.effect == effect) {
            changed = true;
            taints.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                    Timestamp::from_second(now.as_second()).unwrap_or(now),
                )),
            });
        }
    }
    changed.then_some(taints)
}

fn not_ready(pod: &Pod, now: Timestamp) -> [Call; 2] {
    let of = Ref::to(Kind::Pod, pod);
    let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": object::time(now) });
    let body = json!({ "status": { "conditions": [ready] } });
    let note = Note {
        about: of.clone(),
        component: COMPONENT,
        severity: "Warning",
        reason: "NodeNotReady",
        message: "Node is not ready".to_owned(),
    };
    [Call::Patch { of, part: Part::Status, body }, Call::Event(note)]
}

#[cfg(test)]
mod tests;
