//! The scheduler: every pod that is nowhere is put on the best of the nodes that will do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::json;

use super::calls::{Call, Note, Part, Ref};
use super::collection::Kind;
use super::driver::{Control, Errand, Plan};
use super::labels::Selector;
use super::node_lifecycle::region_and_zone;
use super::placement::{
    Alike, Amounts, Load, Obstacle, Score, add, amounts, obstacle, requests, score, selects, subtract,
};
use super::views::{Node, Pod};
use super::world::{Change, Delta, World};
use crate::object;

const COMPONENT: &str = "default-scheduler";
/// The annotation that tells a claim the node of its first consumer.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A pod that is on a node, or on its way there.
#[derive(Debug)]
struct Placed {
    node: String,
    asks: Amounts,
    owner: Option<String>,
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Scheduler {
    rng: fastrand::Rng,
    queue: BTreeSet<String>,
    /// Pods for which no node would do, until something changes that may help.
    stuck: BTreeSet<String>,
    /// Pods whose errand is not over.
    in_flight: BTreeSet<String>,
    loads: BTreeMap<String, Load>,
    placed: BTreeMap<String, Placed>,
    /// The number of pods of each owner on each node.
    alike: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            queue: BTreeSet::new(),
            stuck: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            loads: BTreeMap::new(),
            placed: BTreeMap::new(),
            alike: BTreeMap::new(),
        }
    }
}

impl Control for Scheduler {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::Node, Kind::Claim, Kind::Volume, Kind::StorageClass]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Pod(delta) => self.observe_pod(delta),
            Change::Node(delta) => self.observe_node(delta),
            Change::Claim(_) | Change::Volume(_) | Change::StorageClass(_) => self.retry_stuck(),
            _ => {}
        }
    }

    fn again(&mut self, subject: &str) {
        self.in_flight.remove(subject);
        self.queue.insert(subject.to_owned());
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        let waiting = std::mem::take(&mut self.queue);
        let mut waiting: Vec<(String, &Pod)> = waiting
            .into_iter()
            .filter(|key| !self.in_flight.contains(key))
            .filter_map(|key| world.pods.get(&key).map(|pod| (key, &**pod)))
            .filter(|(_, pod)| wants_a_node(pod))
            .collect();
        waiting.sort_by_key(|(_, pod)| (Reverse(pod.spec.priority), pod.metadata.creation_timestamp));
        let mut errands = Vec::new();
        for (key, pod) in waiting {
            // An errand that failed had promised it a node.
            self.release(&pod.metadata.uid);
            let calls = match self.place(pod, world) {
                Ok(Choice::Node(node)) => {
                    self.take(pod, &node);
                    bind(pod, node)
                }
                Ok(Choice::VolumesFirst(calls)) => {
                    self.stuck.insert(key.clone());
                    calls
                }
                Err(why) => {
                    self.stuck.insert(key.clone());
                    unschedulable(pod, why, now)
                }
            };
            if !calls.is_empty() {
                self.in_flight.insert(key.clone());
                errands.push(Errand::new(key, calls));
            }
        }
        Plan { errands, wake: None }
    }
}

/// The action for a pod.
enum Choice {
    Node(String),
    /// Its volumes must be made where it will be.
    VolumesFirst(Vec<Call>),
}

impl Scheduler {
    fn observe_pod(&mut self, delta: &Delta<Pod>) {
        if let Some(pod) = &delta.new
            && !pod.is_over()
        {
            if pod.is_bound() {
                self.take(pod, &pod.spec.node_name);
                self.stuck.remove(&pod.metadata.key());
            } else if !self.stuck.contains(&pod.metadata.key()) || changed_by_user(delta) {
                self.queue.insert(pod.metadata.key());
            }
            return;
        }
        let Some(pod) = delta.last() else { return };
        self.stuck.remove(&pod.metadata.key());
        if self.release(&pod.metadata.uid) {
            self.retry_stuck();
        }
    }

    fn observe_node(&mut self, delta: &Delta<Node>) {
        let Some(node) = &delta.new else {
            if let Some(load) = delta.old.as_ref().and_then(|old| self.loads.get_mut(&old.metadata.name)) {
                load.has.clear();
            }
            return;
        };
        let same = delta.old.as_ref().is_some_and(|old| {
            old.spec.taints == node.spec.taints
                && old.spec.unschedulable == node.spec.unschedulable
                && old.metadata.labels == node.metadata.labels
                && old.status.allocatable == node.status.allocatable
        });
        if !same {
            let load = self.loads.entry(node.metadata.name.clone()).or_default();
            load.has = amounts(&node.status.allocatable);
            self.retry_stuck();
        }
    }

    fn retry_stuck(&mut self) {
        self.queue.append(&mut self.stuck);
    }

    /// Counts a pod on a node, and nowhere else.
    fn take(&mut self, pod: &Pod, node: &str) {
        let uid = &pod.metadata.uid;
        if self.placed.get(uid).is_some_and(|placed| placed.node == node) {
            return;
        }
        self.release(uid);
        let asks = requests(pod);
        let owner = pod.metadata.controller().map(|owner| owner.uid.clone());
        let load = self.loads.entry(node.to_owned()).or_default();
        load.pods += 1;
        add(&mut load.taken, &asks);
        if let Some(owner) = &owner {
            *self.alike.entry(owner.clone()).or_default().entry(node.to_owned()).or_default() += 1;
        }
        self.placed.insert(uid.clone(), Placed { node: node.to_owned(), asks, owner });
    }

    /// Counts a pod nowhere; whether it was somewhere.
    fn release(&mut self, uid: &str) -> bool {
        let Some(Placed { node, asks, owner }) = self.placed.remove(uid) else { return false };
        if let Some(load) = self.loads.get_mut(&node) {
            load.pods = load.pods.saturating_sub(1);
            subtract(&mut load.taken, &asks);
        }
        if let Some(owner) = owner
            && let Some(nodes) = self.alike.get_mut(&owner)
        {
            if let Some(count) = nodes.get_mut(&node) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    nodes.remove(&node);
                }
            }
            if nodes.is_empty() {
                self.alike.remove(&owner);
            }
        }
        true
    }

    /// The best node, or why there is none.
    fn place(&mut self, pod: &Pod, world: &World) -> Result<Choice, String> {
        let volumes = Volumes::of(pod, world)?;
        let asks = requests(pod);
        let none = BTreeMap::new();
        let owner = pod.metadata.controller().map(|owner| &owner.uid);
        let alike_on = owner.and_then(|owner| self.alike.get(owner)).unwrap_or(&none);
        let mut alike_in: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (node, count) in alike_on {
            if let Some(node) = world.nodes.get(node) {
                *alike_in.entry(region_and_zone(node)).or_default() += count;
            }
        }
        let neighbours = Neighbours::of(pod, world);
        let empty = Load::default();
        let mut best: Option<Score> = None;
        let mut candidates: Vec<&str> = Vec::new();
        let mut obstacles: BTreeMap<Obstacle, usize> = BTreeMap::new();
        let mut count = 0;
        for node in world.nodes.iter() {
            count += 1;
            let name = &node.metadata.name;
            let load = self.loads.get(name).unwrap_or(&empty);
            let in_the_way = obstacle(pod, &asks, node, load)
                .or_else(|| volumes.obstacle(node))
                .or_else(|| neighbours.obstacle(node));
            if let Some(obstacle) = in_the_way {
                *obstacles.entry(obstacle).or_default() += 1;
                continue;
            }
            let alike = Alike {
                on_node: alike_on.get(name).copied().unwrap_or(0),
                in_zone: alike_in.get(&region_and_zone(node)).copied().unwrap_or(0),
            };
            let score = score(pod, &asks, node, load, alike);
            if best.is_none_or(|best| score > best) {
                best = Some(score);
                candidates.clear();
            }
            if best == Some(score) {
                candidates.push(name);
            }
        }
        if candidates.is_empty() {
            return Err(nowhere(count, &obstacles));
        }
        let node = candidates[self.rng.usize(..candidates.len())].to_owned();
        let calls = volumes.select(&node, world);
        Ok(if volumes.unbound.is_empty() { Choice::Node(node) } else { Choice::VolumesFirst(calls) })
    }
}

fn wants_a_node(pod: &Pod) -> bool {
    let ours = ["", COMPONENT].contains(&pod.spec.scheduler_name.as_str());
    ours && !pod.is_bound()
        && !pod.is_over()
        && !pod.metadata.is_terminating()
        && pod.spec.scheduling_gates.is_empty()
}

/// Our own condition on a pod is no reason to try again; another spec is.
fn changed_by_user(delta: &Delta<Pod>) -> bool {
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) => old.metadata.generation != new.metadata.generation,
        _ => true,
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).`
fn nowhere(nodes: usize, obstacles: &BTreeMap<Obstacle, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut reasons: Vec<String> =
        obstacles.iter().map(|(obstacle, count)| format!("{count} {obstacle}")).collect();
    reasons.sort();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}

/// The volumes of a pod, as far as they decide where it may be.
struct Volumes<'w> {
    bound: Vec<&'w super::views::Volume>,
    /// Claims that wait for their first consumer.
    unbound: Vec<&'w super::views::Claim>,
}

impl<'w> Volumes<'w> {
    fn of(pod: &Pod, world: &'w World) -> Result<Self, String> {
        let mut volumes = Self { bound: Vec::new(), unbound: Vec::new() };
        for name in pod.claims() {
            let Some(claim) = world.claims.named(&pod.metadata.namespace, name) else {
                return Err(format!("persistentvolumeclaim {name:?} not found"));
            };
            if claim.metadata.is_terminating() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if claim.status.phase == "Bound" {
                volumes.bound.extend(world.volumes.get(&claim.spec.volume_name).map(|volume| &**volume));
                continue;
            }
            let class = claim.spec.storage_class_name.as_deref().unwrap_or("");
            let class = world.storage_classes.get(class);
            if class.is_some_and(|class| class.volume_binding_mode == "WaitForFirstConsumer") {
                volumes.unbound.push(claim);
            } else {
                return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
            }
        }
        Ok(volumes)
    }

    fn obstacle(&self, node: &Node) -> Option<Obstacle> {
        let fits = |volume: &&super::views::Volume| {
            let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
            required.is_none_or(|required| selects(required, node))
        };
        (!self.bound.iter().all(fits)).then_some(Obstacle::VolumeNodeAffinity)
    }

    /// Tells claims that wait where their volume is needed, once.
    fn select(&self, node: &str, world: &World) -> Vec<Call> {
        let undecided = self.unbound.iter().filter(|claim| {
            let chosen = claim.metadata.annotations.get(SELECTED_NODE);
            chosen.is_none_or(|chosen| world.nodes.get(chosen).is_none())
        });
        undecided
            .map(|claim| Call::Patch {
                of: Ref::to(Kind::Claim, *claim),
                part: Part::Whole,
                body: json!({ "metadata": { "annotations": { SELECTED_NODE: node } } }),
            })
            .collect()
    }
}

/// Other pods that this one must not be beside, or must be evenly spread among.
struct Neighbours {
    /// Values of a node label that are forbidden.
    forbidden: Vec<(String, BTreeSet<String>)>,
    spread: Vec<(String, BTreeSet<String>)>,
}

impl Neighbours {
    fn of(pod: &Pod, world: &World) -> Self {
        let mut neighbours = Self { forbidden: Vec::new(), spread: Vec::new() };
        let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let terms = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        for term in terms.into_iter().flatten() {
            let selector = serde_json::to_value(&term.label_selector).unwrap_or_default();
            let found = domains(pod, world, &selector, &term.topology_key);
            let taken = found.into_iter().filter(|(_, count)| *count > 0).map(|(domain, _)| domain);
            neighbours.forbidden.push((term.topology_key.clone(), taken.collect()));
        }
        for constraint in &pod.spec.topology_spread_constraints {
            if constraint.when_unsatisfiable != "DoNotSchedule" {
                continue;
            }
            let found = domains(pod, world, &constraint.label_selector, &constraint.topology_key);
            let least = found.values().copied().min().unwrap_or(0);
            let full = |count: usize| {
                i64::try_from(count + 1 - least.min(count + 1)).is_ok_and(|skew| skew > constraint.max_skew)
            };
            let full = found.into_iter().filter(|(_, count)| full(*count)).map(|(domain, _)| domain);
            neighbours.spread.push((constraint.topology_key.clone(), full.collect()));
        }
        neighbours
    }

    fn obstacle(&self, node: &Node) -> Option<Obstacle> {
        let label = |key: &String| node.metadata.labels.get(key);
        if self.forbidden.iter().any(|(key, taken)| label(key).is_some_and(|value| taken.contains(value))) {
            return Some(Obstacle::AntiAffinity);
        }
        let uneven = |(key, full): &(String, BTreeSet<String>)| label(key).is_none_or(|v| full.contains(v));
        self.spread.iter().any(uneven).then_some(Obstacle::TopologySpread)
    }
}

/// The number of pods a selector finds in each domain that the pod could be in, those without any included.
fn domains(
    pod: &Pod,
    world: &World,
    selector: &serde_json::Value,
    topology_key: &str,
) -> BTreeMap<String, usize> {
    let selector = Selector::of(selector);
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for node in world.nodes.iter() {
        let selected =
            pod.spec.node_selector.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value));
        if let (true, Some(domain)) = (selected, node.metadata.labels.get(topology_key)) {
            let here = world.pods_on(&node.metadata.name).filter(|other| {
                other.metadata.namespace == pod.metadata.namespace
                    && !other.is_over()
                    && !other.metadata.is_terminating()
                    && selector.matches(&other.metadata.labels)
            });
            *found.entry(domain.clone()).or_default() += here.count();
        }
    }
    found
}

fn bind(pod: &Pod, node: String) -> Vec<Call> {
    let of = Ref::to(Kind::Pod, pod);
    let note = Note {
        about: of.clone(),
        component: COMPONENT,
        severity: "Normal",
        reason: "Scheduled",
        message: format!("Successfully assigned {} to {node}", pod.metadata.key()),
    };
    vec![Call::Bind { pod: of, node }, Call::Event(note)]
}

/// Says why a pod has to wait, unless it says so already.
fn unschedulable(pod: &Pod, why: String, now: Timestamp) -> Vec<Call> {
    let known = pod.condition("PodScheduled");
    if known.is_some_and(|known| known.status == "False" && known.message == why) {
        return Vec::new();
    }
    let of = Ref::to(Kind::Pod, pod);
    let since = known.filter(|known| known.status == "False").and_then(|known| known.last_transition_time);
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
        "lastTransitionTime": object::time(since.unwrap_or(now)),
    });
    let note = Note {
        about: of.clone(),
        component: COMPONENT,
        severity: "Warning",
        reason: "FailedScheduling",
        message: why,
    };
    let body = json!({ "status": { "conditions": [condition] } });
    vec![Call::Event(note), Call::Patch { of, part: Part::Status, body }]
}
