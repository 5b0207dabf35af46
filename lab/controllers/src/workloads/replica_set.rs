//! ReplicaSets: keeps exactly as many pods as wanted.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::template;
use crate::calls::{Call, Note, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::labels::Selector;
use crate::world::views::{Pod, Workload, key};
use crate::world::{Change, World};

const COMPONENT: &str = "replicaset-controller";
/// Pods created or deleted in one go; the rest follows when the watch has shown these.
const BURST: usize = 500;

#[derive(Debug, Default)]
pub(crate) struct ReplicaSets {
    queue: Queue,
}

impl Control for ReplicaSets {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::ReplicaSet, Kind::Pod]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Workload(Kind::ReplicaSet, delta) => {
                if let Some(set) = delta.last() {
                    self.queue.add(set.metadata.key());
                }
            }
            Change::Pod(delta) => {
                for pod in delta.old.iter().chain(&delta.new) {
                    self.queue.add(owner_key(pod).unwrap_or_else(|| orphan(pod)));
                }
            }
            _ => {}
        }
    }

    fn began(&mut self, subject: &str) {
        self.queue.hold(subject);
    }

    fn again(&mut self, subject: &str) {
        self.queue.release(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        let mut errands = Vec::new();
        for key in self.queue.take(now) {
            // Any ReplicaSet of its namespace may adopt a pod without an owner.
            if let Some(namespace) = key.strip_prefix(ORPHANS) {
                for set in world.replica_sets.within(namespace) {
                    if self.queue.holds(&set.metadata.key()) {
                        continue;
                    }
                    let calls = judge(set, world, now, &mut self.queue);
                    if !calls.is_empty() {
                        errands.push(Errand::new(set.metadata.key(), calls));
                    }
                }
            } else if let Some(set) = world.replica_sets.get(&key) {
                let calls = judge(set, world, now, &mut self.queue);
                if !calls.is_empty() {
                    errands.push(Errand::new(key, calls));
                }
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

/// The prefix of the queue key for pods without an owner. No namespace begins with it.
const ORPHANS: &str = "*";

fn owner_key(pod: &Pod) -> Option<String> {
    let owner = pod.metadata.controller()?;
    Some(key(&pod.metadata.namespace, &owner.name))
}

fn orphan(pod: &Pod) -> String {
    format!("{ORPHANS}{}", pod.metadata.namespace)
}

fn judge(set: &Workload, world: &World, now: Timestamp, queue: &mut Queue) -> Vec<Call> {
    let mut calls = Vec::new();
    let pods: Vec<&Arc<Pod>> = world.pods_of(&set.metadata.uid).collect();
    let active: Vec<&Pod> = pods.iter().map(|pod| &***pod).filter(|pod| is_active(pod)).collect();
    if !set.metadata.is_terminating() {
        calls.extend(adopt(set, world));
        calls.extend(scale(set, &active));
    }
    let (status, next) = status(set, &pods, &active, now);
    if let Some(next) = next {
        queue.at(next, &set.metadata.key());
    }
    if template::differs(&set.status, &status) {
        let of = Ref::to(Kind::ReplicaSet, set);
        calls.push(Call::Patch { of, part: Part::Status, body: json!({ "status": status }) });
    }
    calls
}

/// A pod counts until it is terminal or being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !pod.is_over() && !pod.metadata.is_terminating()
}

/// Adopts pods that match the selector and have no owner.
fn adopt(set: &Workload, world: &World) -> Vec<Call> {
    let selector = Selector::of(&set.spec["selector"]);
    let orphans = world.pods_of_nobody(&set.metadata.namespace);
    let orphans = orphans.filter(|pod| is_active(pod) && selector.matches(&pod.metadata.labels));
    orphans
        .map(|pod| Call::Patch {
            of: Ref::to(Kind::Pod, &**pod),
            part: Part::Whole,
            body: json!({ "metadata": { "ownerReferences": [template::owner(Kind::ReplicaSet, &set.metadata)] } }),
        })
        .collect()
}

fn scale(set: &Workload, active: &[&Pod]) -> Vec<Call> {
    let wanted = template::replicas(&set.spec);
    let about = Ref::to(Kind::ReplicaSet, set);
    if active.len() < wanted {
        let missing = (wanted - active.len()).min(BURST);
        let create = || Call::Create {
            kind: Kind::Pod,
            namespace: set.metadata.namespace.clone(),
            body: template::pod(Kind::ReplicaSet, &set.metadata, &set.spec["template"], None),
        };
        return (0..missing).map(|_| create()).collect();
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus == 0 {
        return Vec::new();
    }
    let mut by_worth: Vec<&&Pod> = active.iter().collect();
    by_worth.sort_by_cached_key(|pod| worth(pod));
    by_worth
        .into_iter()
        .take(surplus)
        .flat_map(|pod| {
            let of = Ref::to(Kind::Pod, *pod);
            let note = Note {
                about: about.clone(),
                component: COMPONENT,
                severity: "Normal",
                reason: "SuccessfulDelete",
                message: format!("Deleted pod: {}", of.name),
            };
            [Call::Delete { of, grace: None }, Call::Event(note)]
        })
        .collect()
}

/// Which pod goes first when there are too many: the one that is furthest from being ready, then the youngest.
fn worth(pod: &Pod) -> impl Ord + use<> {
    let phase = match pod.status.phase.as_str() {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let ready_since = pod.condition("Ready").and_then(|ready| ready.last_transition_time);
    (
        pod.is_bound(),
        phase,
        pod.is_ready(),
        Reverse(ready_since),
        Reverse(pod.metadata.creation_timestamp),
        pod.metadata.name.clone(),
    )
}

/// The status, and when a pod becomes available that only has to stay ready until then.
fn status(set: &Workload, pods: &[&Arc<Pod>], active: &[&Pod], now: Timestamp) -> (Value, Option<Timestamp>) {
    let labels = Selector::of(&json!({ "matchLabels": set.spec["template"]["metadata"]["labels"] }));
    let least = Duration::from_secs(set.spec["minReadySeconds"].as_u64().unwrap_or(0).min(1 << 32));
    let ready: Vec<&&Pod> = active.iter().filter(|pod| pod.is_ready()).collect();
    let available_at = |pod: &Pod| {
        let since = pod.condition("Ready").and_then(|ready| ready.last_transition_time);
        since.map_or(now, |since| since + least)
    };
    let available = |pod: &&&&Pod| least.is_zero() || available_at(pod) <= now;
    let next = ready.iter().filter(|pod| !available(pod)).map(|pod| available_at(pod)).min();
    let terminating = pods.iter().filter(|pod| pod.metadata.is_terminating() && !pod.is_over()).count();
    let status = json!({
        "replicas": active.len(),
        "fullyLabeledReplicas": active.iter().filter(|pod| labels.matches(&pod.metadata.labels)).count(),
        "readyReplicas": ready.len(),
        "availableReplicas": ready.iter().filter(available).count(),
        "terminatingReplicas": terminating,
        "observedGeneration": set.metadata.generation,
    });
    (status, next)
}
