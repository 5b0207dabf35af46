//! The scheduler: binds every pod without a node to the best of the nodes that fit.

mod board;
mod placement;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use salvor_apiserver::object;
use serde_json::json;

use self::board::{Board, Found};
use self::placement::{Obstacle, selects};
use crate::calls::{Call, Note, Part, Ref};
use crate::driver::{Control, Errand, Plan};
use crate::world::collection::Kind;
use crate::world::labels::Selector;
use crate::world::views::{Claim, Node, Pod, Volume};
use crate::world::{Change, Delta, World};

const COMPONENT: &str = "default-scheduler";
/// The annotation by which a claim learns the node of its first consumer.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The longest backoff of a pod that fits no node.
const LONGEST_REST: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Scheduler {
    rng: fastrand::Rng,
    queue: BTreeSet<String>,
    /// Pods that fit no node, until something changes that may help.
    stuck: BTreeSet<String>,
    /// Pods with an errand in progress.
    in_flight: BTreeSet<String>,
    board: Board,
    /// The failed attempts to place a pod.
    attempts: BTreeMap<String, Attempts>,
    /// Pods in backoff, by the time of the next attempt.
    rests: BTreeSet<(Timestamp, String)>,
}

#[derive(Debug, Clone, Copy)]
struct Attempts {
    count: u32,
    /// The next attempt is not before this time.
    next: Timestamp,
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            queue: BTreeSet::new(),
            stuck: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            board: Board::default(),
            attempts: BTreeMap::new(),
            rests: BTreeSet::new(),
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
        while let Some((at, _)) = self.rests.first()
            && *at <= now
            && let Some((_, key)) = self.rests.pop_first()
        {
            self.queue.insert(key);
        }
        let mut waiting: Vec<(String, &Pod)> = Vec::new();
        for key in std::mem::take(&mut self.queue) {
            if self.in_flight.contains(&key) {
                continue;
            }
            let Some(pod) = world.pods.get(&key).filter(|pod| wants_a_node(pod)) else { continue };
            match self.attempts.get(&key) {
                Some(attempts) if attempts.next > now => {
                    self.stuck.remove(&key);
                    self.rests.insert((attempts.next, key));
                }
                _ => waiting.push((key, &**pod)),
            }
        }
        waiting.sort_by_key(|(_, pod)| (Reverse(pod.spec.priority), pod.metadata.creation_timestamp));
        let mut errands = Vec::new();
        for (key, pod) in waiting {
            // A failed errand had already assigned it to a node.
            self.board.release(&pod.metadata.uid);
            let calls = match self.place(pod, world) {
                Ok(Choice::Node(node)) => {
                    self.board.take(pod, &node);
                    bind(pod, node)
                }
                Ok(Choice::VolumesFirst(calls)) => {
                    self.stuck.insert(key.clone());
                    calls
                }
                Err(why) => {
                    self.stuck.insert(key.clone());
                    let attempts =
                        self.attempts.entry(key.clone()).or_insert(Attempts { count: 0, next: now });
                    attempts.next = now + rest_after(attempts.count);
                    attempts.count += 1;
                    unschedulable(pod, why, now)
                }
            };
            if !calls.is_empty() {
                self.in_flight.insert(key.clone());
                errands.push(Errand::new(key, calls));
            }
        }
        Plan { errands, wake: self.rests.first().map(|(at, _)| *at) }
    }
}

enum Choice {
    Node(String),
    /// Its volumes must be provisioned on its node first.
    VolumesFirst(Vec<Call>),
}

impl Scheduler {
    fn observe_pod(&mut self, delta: &Delta<Pod>) {
        if let Some(pod) = &delta.new
            && !pod.is_over()
        {
            if pod.is_bound() {
                self.board.take(pod, &pod.spec.node_name);
                self.forget(&pod.metadata.key());
            } else if changed_by_user(delta) {
                self.forget(&pod.metadata.key());
                self.queue.insert(pod.metadata.key());
            } else if !self.is_known(&pod.metadata.key()) {
                self.queue.insert(pod.metadata.key());
            }
            return;
        }
        let Some(pod) = delta.last() else { return };
        self.forget(&pod.metadata.key());
        if self.board.release(&pod.metadata.uid) {
            self.retry_stuck();
        }
    }

    fn observe_node(&mut self, delta: &Delta<Node>) {
        let Some(node) = &delta.new else {
            if let Some(old) = &delta.old {
                self.board.see_node(&old.metadata.name, None);
            }
            return;
        };
        let same = delta.old.as_ref().is_some_and(|old| {
            old.spec.taints == node.spec.taints
                && old.spec.unschedulable == node.spec.unschedulable
                && old.metadata.labels == node.metadata.labels
                && old.status.allocatable == node.status.allocatable
        });
        if same {
            self.board.see_same_node(&node.metadata.name, node);
        } else {
            self.board.see_node(&node.metadata.name, Some(node));
            self.retry_stuck();
        }
    }

    /// True if a pod waits for a change that may help, or for the end of its backoff.
    fn is_known(&self, key: &str) -> bool {
        self.stuck.contains(key) || self.attempts.contains_key(key)
    }

    /// Drops the failed attempts of a pod.
    fn forget(&mut self, key: &str) {
        self.stuck.remove(key);
        if let Some(attempts) = self.attempts.remove(key) {
            self.rests.remove(&(attempts.next, key.to_owned()));
        }
    }

    fn retry_stuck(&mut self) {
        self.queue.append(&mut self.stuck);
    }

    /// The best node, or why there is none.
    fn place(&mut self, pod: &Pod, world: &World) -> Result<Choice, String> {
        let volumes = Volumes::of(pod, world)?;
        let neighbours = Neighbours::of(pod, world);
        let own = |node: &Node| volumes.obstacle(node).or_else(|| neighbours.obstacle(node));
        let has_own = !volumes.bound.is_empty() || neighbours.matter();
        let candidates = match self.board.find(pod, has_own.then_some(&own as _)) {
            Found::Best(candidates) => candidates,
            Found::None(why) => return Err(why),
        };
        let node = candidates[self.rng.usize(..candidates.len())].to_owned();
        let calls = volumes.select(&node, world);
        Ok(if volumes.unbound.is_empty() { Choice::Node(node) } else { Choice::VolumesFirst(calls) })
    }
}

/// The backoff after a failed attempt, by the number of attempts before it: kube-scheduler's, from one second to ten.
fn rest_after(count: u32) -> Duration {
    Duration::from_secs(1 << count.min(4)).min(LONGEST_REST)
}

fn wants_a_node(pod: &Pod) -> bool {
    let ours = ["", COMPONENT].contains(&pod.spec.scheduler_name.as_str());
    ours && !pod.is_bound()
        && !pod.is_over()
        && !pod.metadata.is_terminating()
        && pod.spec.scheduling_gates.is_empty()
}

/// Our own condition on a pod is no reason to try again; a changed spec is.
fn changed_by_user(delta: &Delta<Pod>) -> bool {
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) => old.metadata.generation != new.metadata.generation,
        _ => true,
    }
}

/// The volumes of a pod that restrict where it may run.
struct Volumes<'w> {
    bound: Vec<&'w Volume>,
    /// Claims that wait for their first consumer.
    unbound: Vec<&'w Claim>,
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
        let fits = |volume: &&Volume| {
            let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
            required.is_none_or(|required| selects(required, node))
        };
        (!self.bound.iter().all(fits)).then_some(Obstacle::VolumeNodeAffinity)
    }

    /// Annotates waiting claims with the node on which their volume is needed, once.
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

/// Other pods that this one must avoid, or must be spread evenly among.
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

    /// True if the pod has any such constraints.
    fn matter(&self) -> bool {
        !self.forbidden.is_empty() || !self.spread.is_empty()
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

/// The number of pods that a selector matches in each domain that the pod could be in, including empty domains.
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

/// Records why a pod has to wait, unless its condition already shows that.
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

#[cfg(test)]
mod tests;
