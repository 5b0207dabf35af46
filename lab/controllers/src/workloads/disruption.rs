//! PodDisruptionBudgets: how many pods may be evicted now.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::object;
use serde_json::{Value, json};

use super::template;
use crate::calls::{Call, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::labels::Selector;
use crate::world::views::{Pod, Workload};
use crate::world::{Change, World};

/// A granted eviction without a visible effect is forgotten after this time.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(2);

#[derive(Debug, Default)]
pub(crate) struct Disruption {
    queue: Queue,
    /// Namespaces in which pods have changed.
    namespaces: std::collections::BTreeSet<String>,
}

impl Control for Disruption {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Budget, Kind::Pod, Kind::ReplicaSet, Kind::StatefulSet, Kind::Deployment]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Workload(Kind::Budget, delta) => {
                if let Some(budget) = delta.last() {
                    self.queue.add(budget.metadata.key());
                }
            }
            Change::Workload(_, delta) => {
                self.namespaces.extend(delta.last().map(|object| object.metadata.namespace.clone()));
            }
            Change::Pod(delta) => {
                self.namespaces.extend(delta.last().map(|pod| pod.metadata.namespace.clone()));
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
        for namespace in std::mem::take(&mut self.namespaces) {
            for budget in world.budgets.within(&namespace) {
                self.queue.add(budget.metadata.key());
            }
        }
        let mut errands = Vec::new();
        for key in self.queue.take(now) {
            let Some(budget) = world.budgets.get(&key) else { continue };
            let (status, next) = status(budget, world, now);
            if let Some(next) = next {
                self.queue.at(next, &key);
            }
            if template::differs(&budget.status, &status) {
                // Evictions change the same numbers: on a conflict the loop reconciles again.
                let call = Call::MergeAt {
                    of: Ref::to(Kind::Budget, &**budget),
                    part: Part::Status,
                    revision: budget.metadata.resource_version.clone(),
                    body: json!({ "status": with_removals(&budget.status, status) }),
                };
                errands.push(Errand::new(key, vec![call]));
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

/// A merge patch removes a key only if it sets the key to null.
fn with_removals(known: &Value, mut status: Value) -> Value {
    let before = known["disruptedPods"].as_object().into_iter().flatten();
    let removed: Vec<String> = before
        .filter(|(name, _)| status["disruptedPods"].get(name.as_str()).is_none())
        .map(|(name, _)| name.clone())
        .collect();
    for name in removed {
        status["disruptedPods"][name] = Value::Null;
    }
    status
}

/// The budget's status, and when an eviction will be forgotten.
fn status(budget: &Workload, world: &World, now: Timestamp) -> (Value, Option<Timestamp>) {
    let selector = Selector::of(&budget.spec["selector"]);
    let selects_some = budget.spec["selector"].as_object().is_some();
    let pods: Vec<&Arc<Pod>> = world
        .pods
        .within(&budget.metadata.namespace)
        .filter(|pod| selects_some && selector.matches(&pod.metadata.labels) && !pod.is_over())
        .collect();
    let mut disrupted = serde_json::Map::new();
    let mut next: Option<Timestamp> = None;
    for (name, at) in budget.status["disruptedPods"].as_object().into_iter().flatten() {
        let granted: Option<Timestamp> = at.as_str().and_then(|text| text.parse().ok());
        let forgotten = granted.map_or(now, |granted| granted + REMEMBERED);
        let still_there = pods.iter().any(|pod| pod.metadata.name == *name && !pod.metadata.is_terminating());
        if still_there && forgotten > now {
            disrupted.insert(name.clone(), at.clone());
            next = Some(next.map_or(forgotten, |next| next.min(forgotten)));
        }
    }
    let healthy = pods.iter().filter(|pod| {
        pod.is_ready() && !pod.metadata.is_terminating() && !disrupted.contains_key(&pod.metadata.name)
    });
    let healthy = healthy.count();
    let (expected, desired) = goal(budget, &pods, world);
    let allowed = if expected == 0 { 0 } else { healthy.saturating_sub(desired) };
    let condition = condition(budget, allowed > 0, now);
    let status = json!({
        "observedGeneration": budget.metadata.generation,
        "expectedPods": expected,
        "desiredHealthy": desired,
        "currentHealthy": healthy,
        "disruptionsAllowed": allowed,
        "disruptedPods": if disrupted.is_empty() { Value::Null } else { Value::Object(disrupted) },
        "conditions": [condition],
    });
    (status, next)
}

/// The expected number of pods, and how many of them must be healthy. A plain `minAvailable` counts the existing pods;
/// all else is a share of the replicas that their controllers want.
fn goal(budget: &Workload, pods: &[&Arc<Pod>], world: &World) -> (usize, usize) {
    let (least, most) = (&budget.spec["minAvailable"], &budget.spec["maxUnavailable"]);
    if !most.is_null() {
        let expected = wanted(pods, world);
        let may_go = template::share(most, expected, true).unwrap_or(0);
        return (expected, expected.saturating_sub(may_go));
    }
    if least.is_u64() {
        return (pods.len(), template::share(least, pods.len(), true).unwrap_or(0));
    }
    let expected = wanted(pods, world);
    (expected, template::share(least, expected, true).unwrap_or(0))
}

/// The replicas that the controllers of these pods want, each counted once.
fn wanted(pods: &[&Arc<Pod>], world: &World) -> usize {
    let mut by_owner: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in pods {
        let Some(owner) = pod.metadata.controller() else { continue };
        let store = match owner.kind.as_str() {
            "ReplicaSet" => &world.replica_sets,
            "StatefulSet" => &world.stateful_sets,
            _ => continue,
        };
        let Some(set) = store.named(&pod.metadata.namespace, &owner.name) else { continue };
        if set.metadata.uid != owner.uid {
            continue;
        }
        // In a rollout, the two ReplicaSets of a Deployment are one workload.
        let deployment = set.metadata.controller().and_then(|above| {
            let found = world.deployments.named(&set.metadata.namespace, &above.name)?;
            (found.metadata.uid == above.uid).then_some(found)
        });
        let workload = deployment.unwrap_or(set);
        by_owner.insert(&workload.metadata.uid, template::replicas(&workload.spec));
    }
    by_owner.into_values().sum()
}

fn condition(budget: &Workload, allowed: bool, now: Timestamp) -> Value {
    let (status, reason) = if allowed { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let known = object::list(&budget.status, "/conditions").iter().find(|known| {
        object::text(known, "/type") == "DisruptionAllowed" && known["status"] == json!(status)
    });
    json!({
        "type": "DisruptionAllowed", "status": status, "reason": reason, "message": "",
        "observedGeneration": budget.metadata.generation,
        "lastTransitionTime": known.map_or(json!(object::time(now)), |known| known["lastTransitionTime"].clone()),
    })
}
