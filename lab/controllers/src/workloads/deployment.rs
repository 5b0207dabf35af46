//! Deployments: one ReplicaSet per template, and a rollout from the old to the new one by a few pods at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::object;
use serde_json::{Value, json};

use super::template;
use crate::calls::{Call, Note, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::views::{Workload, key};
use crate::world::{Change, World};

const COMPONENT: &str = "deployment-controller";
/// The label that distinguishes the pods of different templates.
const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

#[derive(Debug, Default)]
pub(crate) struct Deployments {
    queue: Queue,
}

impl Control for Deployments {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Deployment, Kind::ReplicaSet, Kind::Pod]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Workload(Kind::Deployment, delta) => {
                if let Some(deployment) = delta.last() {
                    self.queue.add(deployment.metadata.key());
                }
            }
            Change::Workload(Kind::ReplicaSet, delta) => {
                if let Some(set) = delta.last()
                    && let Some(owner) = set.metadata.controller()
                {
                    self.queue.add(key(&set.metadata.namespace, &owner.name));
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
            let Some(deployment) = world.deployments.get(&key) else { continue };
            let sets = Sets::of(deployment, world);
            let mut calls = if deployment.metadata.is_terminating() {
                Vec::new()
            } else {
                roll(deployment, &sets, world)
            };
            let (status, next) = status(deployment, &sets, now);
            if let Some(next) = next {
                self.queue.at(next, &key);
            }
            if template::differs(&deployment.status, &status) {
                let of = Ref::to(Kind::Deployment, &**deployment);
                calls.push(Call::Patch { of, part: Part::Status, body: json!({ "status": status }) });
            }
            if !calls.is_empty() {
                errands.push(Errand::new(key, calls));
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

/// The ReplicaSets of a Deployment: the one of its present template, and the others, oldest first.
struct Sets<'w> {
    new: Option<&'w Arc<Workload>>,
    old: Vec<&'w Arc<Workload>>,
}

impl<'w> Sets<'w> {
    fn of(deployment: &Workload, world: &'w World) -> Self {
        let mut own: Vec<&Arc<Workload>> = world
            .replica_sets
            .within(&deployment.metadata.namespace)
            .filter(|set| set.metadata.controller().is_some_and(|owner| owner.uid == deployment.metadata.uid))
            .collect();
        own.sort_by_key(|set| (set.metadata.creation_timestamp, revision(set)));
        let template = &deployment.spec["template"];
        let new = own.iter().position(|set| without_hash(&set.spec["template"]) == *template);
        let new = new.map(|index| own.remove(index));
        Self { new, old: own }
    }

    fn all(&self) -> impl Iterator<Item = &&'w Arc<Workload>> {
        self.new.iter().chain(&self.old)
    }

    /// The sum of a number in their statuses.
    fn total(&self, field: &str) -> usize {
        self.all().map(|set| number(&set.status, field)).sum()
    }

    fn wanted(&self) -> usize {
        self.all().map(|set| template::replicas(&set.spec)).sum()
    }
}

fn number(status: &Value, field: &str) -> usize {
    status[field].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

fn revision(set: &Workload) -> u64 {
    set.metadata.annotations.get(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn without_hash(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH);
    }
    template
}

/// A short name for a template that forms no words: FNV-1a over its text.
pub(crate) fn hash(template: &Value) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = template.to_string();
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let letter = |_| {
        let index = usize::try_from(hash % 27).unwrap_or(0);
        hash /= 27;
        char::from(ALPHABET[index])
    };
    (0..10).map(letter).collect()
}

/// The maxSurge and maxUnavailable of a rolling update.
fn leeway(deployment: &Workload) -> (usize, usize) {
    let wanted = template::replicas(&deployment.spec);
    let rolling = &deployment.spec["strategy"]["rollingUpdate"];
    let surge = template::share(&rolling["maxSurge"], wanted, true).unwrap_or(0);
    let missing = template::share(&rolling["maxUnavailable"], wanted, false).unwrap_or(0);
    if surge == 0 && missing == 0 { (0, 1) } else { (surge, missing.min(wanted)) }
}

/// The next step from the old ReplicaSets to the new one.
fn roll(deployment: &Workload, sets: &Sets<'_>, world: &World) -> Vec<Call> {
    let wanted = template::replicas(&deployment.spec);
    let recreate = deployment.spec["strategy"]["type"] == json!("Recreate");
    let paused = deployment.spec["paused"] == json!(true);
    let (surge, missing) = if recreate { (0, wanted) } else { leeway(deployment) };
    let Some(new) = sets.new else {
        if paused {
            return Vec::new();
        }
        let left = sets.old.iter().any(|set| world.pods_of(&set.metadata.uid).next().is_some());
        let replicas = match recreate {
            true if left => 0,
            true => wanted,
            false => (wanted + surge).saturating_sub(sets.wanted()).min(wanted),
        };
        return create(deployment, sets, replicas);
    };
    let mut calls = Vec::new();
    let has = template::replicas(&new.spec);
    let old_gone = sets.old.iter().all(|set| {
        template::replicas(&set.spec) == 0 && (!recreate || world.pods_of(&set.metadata.uid).next().is_none())
    });
    let goal = if has >= wanted {
        wanted
    } else if recreate {
        if old_gone { wanted } else { has }
    } else {
        (has + (wanted + surge).saturating_sub(sets.wanted())).min(wanted)
    };
    if goal != has && (!paused || sets.old.iter().all(|set| template::replicas(&set.spec) == 0)) {
        calls.extend(scale(deployment, new, goal));
    } else if !paused {
        calls.extend(shrink_old(deployment, sets, wanted.saturating_sub(missing)));
    }
    let newest = sets.old.iter().map(|set| revision(set)).max().unwrap_or(0);
    if revision(new) <= newest && !sets.old.is_empty() && !paused {
        calls.push(annotate(Kind::ReplicaSet, new, newest + 1));
    }
    if deployment.metadata.annotations.get(REVISION) != new.metadata.annotations.get(REVISION) {
        calls.push(annotate(Kind::Deployment, deployment, revision(new)));
    }
    if calls.is_empty() {
        calls.extend(forget_history(deployment, sets));
    }
    calls
}

fn annotate(kind: Kind, object: &Workload, revision: u64) -> Call {
    let body = json!({ "metadata": { "annotations": { REVISION: revision.to_string() } } });
    Call::Patch { of: Ref::to(kind, object), part: Part::Whole, body }
}

fn create(deployment: &Workload, sets: &Sets<'_>, replicas: usize) -> Vec<Call> {
    let template = &deployment.spec["template"];
    let hash = hash(template);
    let mut selector = deployment.spec["selector"].clone();
    selector["matchLabels"][HASH] = json!(hash);
    let mut labelled = template.clone();
    labelled["metadata"]["labels"][HASH] = json!(hash);
    let revision = sets.old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
    let name = format!("{}-{hash}", deployment.metadata.name);
    let body = json!({
        "metadata": {
            "name": name,
            "labels": labelled["metadata"]["labels"],
            "annotations": { REVISION: revision.to_string() },
            "ownerReferences": [template::owner(Kind::Deployment, &deployment.metadata)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": deployment.spec["minReadySeconds"].as_u64().unwrap_or(0),
            "selector": selector,
            "template": labelled,
        },
    });
    let namespace = deployment.metadata.namespace.clone();
    let scaled = Note {
        about: Ref::to(Kind::Deployment, deployment),
        component: COMPONENT,
        severity: "Normal",
        reason: "ScalingReplicaSet",
        message: format!("Scaled up replica set {name} from 0 to {replicas}"),
    };
    vec![Call::Create { kind: Kind::ReplicaSet, namespace, body }, Call::Event(scaled)]
}

fn scale(deployment: &Workload, set: &Workload, goal: usize) -> [Call; 2] {
    let from = template::replicas(&set.spec);
    let direction = if goal > from { "up" } else { "down" };
    let note = Note {
        about: Ref::to(Kind::Deployment, deployment),
        component: COMPONENT,
        severity: "Normal",
        reason: "ScalingReplicaSet",
        message: format!("Scaled {direction} replica set {} from {from} to {goal}", set.metadata.name),
    };
    let body = json!({ "spec": { "replicas": goal } });
    [Call::Patch { of: Ref::to(Kind::ReplicaSet, set), part: Part::Whole, body }, Call::Event(note)]
}

/// Scales the old ReplicaSets down as far as availability allows: first pods that are not available anyway.
fn shrink_old(deployment: &Workload, sets: &Sets<'_>, least: usize) -> Vec<Call> {
    let unready = sets.new.map_or(0, |new| {
        template::replicas(&new.spec).saturating_sub(number(&new.status, "availableReplicas"))
    });
    let mut spare = sets.wanted().saturating_sub(least).saturating_sub(unready);
    let mut goals: Vec<usize> = sets.old.iter().map(|set| template::replicas(&set.spec)).collect();
    for (set, goal) in sets.old.iter().zip(&mut goals) {
        let broken = goal.saturating_sub(number(&set.status, "availableReplicas")).min(spare);
        *goal -= broken;
        spare -= broken;
    }
    let mut spare = spare.min(sets.total("availableReplicas").saturating_sub(least));
    for goal in &mut goals {
        let less = (*goal).min(spare);
        *goal -= less;
        spare -= less;
    }
    let changed = sets.old.iter().zip(goals).filter(|(set, goal)| template::replicas(&set.spec) != *goal);
    changed.flat_map(|(set, goal)| scale(deployment, set, goal)).collect()
}

/// Deletes old ReplicaSets beyond the revision history limit.
fn forget_history(deployment: &Workload, sets: &Sets<'_>) -> Vec<Call> {
    let limit = deployment.spec["revisionHistoryLimit"].as_u64().unwrap_or(10);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let empty = |set: &&&Arc<Workload>| {
        template::replicas(&set.spec) == 0
            && number(&set.status, "replicas") == 0
            && !set.metadata.is_terminating()
    };
    let old: Vec<&&Arc<Workload>> = sets.old.iter().filter(empty).collect();
    let surplus = old.len().saturating_sub(limit);
    let gone = old.into_iter().take(surplus);
    gone.map(|set| Call::Delete { of: Ref::to(Kind::ReplicaSet, &***set), grace: None }).collect()
}

/// The status, and when the progress deadline expires.
fn status(deployment: &Workload, sets: &Sets<'_>, now: Timestamp) -> (Value, Option<Timestamp>) {
    let wanted = template::replicas(&deployment.spec);
    let (_, missing) = leeway(deployment);
    let (total, available) = (sets.total("replicas"), sets.total("availableReplicas"));
    let updated = sets.new.map_or(0, |new| number(&new.status, "replicas"));
    let complete = updated == wanted && total == wanted && available == wanted;
    let enough = available >= wanted.saturating_sub(missing);
    let available_condition = if enough {
        ("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
    } else {
        (
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".to_owned(),
        )
    };
    let name = sets.new.map_or("", |new| new.metadata.name.as_str());
    let known = condition(deployment, "Progressing");
    let moved = ["replicas", "updatedReplicas", "availableReplicas"]
        .iter()
        .zip([total, updated, available])
        .any(|(field, now)| number(&deployment.status, field) != now);
    let gave_up = known.is_some_and(|known| known["reason"] == json!("ProgressDeadlineExceeded"));
    let since = known.and_then(|known| known["lastUpdateTime"].as_str()).and_then(|text| text.parse().ok());
    let since: Timestamp = since.filter(|_| !moved).unwrap_or(now);
    let deadline = deployment.spec["progressDeadlineSeconds"].as_i64().filter(|s| *s < i64::from(i32::MAX));
    let deadline =
        deadline.map(|seconds| since.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(since));
    let progressing = if complete {
        ("True", "NewReplicaSetAvailable", format!("ReplicaSet \"{name}\" has successfully progressed."))
    } else if deadline.is_some_and(|deadline| deadline <= now) || (gave_up && !moved) {
        ("False", "ProgressDeadlineExceeded", format!("ReplicaSet \"{name}\" has timed out progressing."))
    } else {
        ("True", "ReplicaSetUpdated", format!("ReplicaSet \"{name}\" is progressing."))
    };
    let progressing = ("Progressing", progressing.0, progressing.1, progressing.2);
    let ours = BTreeSet::from(["Available", "Progressing"]);
    let mut conditions: Vec<Value> = object::list(&deployment.status, "/conditions")
        .iter()
        .filter(|condition| !ours.contains(object::text(condition, "/type")))
        .cloned()
        .collect();
    conditions.push(stamp(deployment, available_condition, false, now));
    conditions.push(stamp(deployment, progressing, moved && !complete, now));
    let status = json!({
        "observedGeneration": deployment.metadata.generation,
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": sets.total("readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": total.max(wanted).saturating_sub(available),
        "conditions": conditions,
    });
    (status, deadline.filter(|deadline| !complete && *deadline > now))
}

fn condition<'d>(deployment: &'d Workload, kind: &str) -> Option<&'d Value> {
    object::list(&deployment.status, "/conditions").iter().find(|known| object::text(known, "/type") == kind)
}

/// A condition with its lastTransitionTime and lastUpdateTime.
fn stamp(
    deployment: &Workload,
    (kind, status, reason, message): (&str, &str, &str, String),
    news: bool,
    now: Timestamp,
) -> Value {
    let at = json!(object::time(now));
    let known = condition(deployment, kind);
    let same_status = known.filter(|known| known["status"] == json!(status));
    let same = same_status.filter(|known| known["reason"] == json!(reason) && !news);
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": same_status.map_or(at.clone(), |known| known["lastTransitionTime"].clone()),
        "lastUpdateTime": same.map_or(at, |known| known["lastUpdateTime"].clone()),
    })
}
