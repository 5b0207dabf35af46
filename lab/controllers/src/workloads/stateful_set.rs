//! StatefulSets: pods with their own names and volumes, one after the other, and never two with one name.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::deployment::hash;
use super::template;
use crate::calls::{Call, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::views::{Pod, Workload, key};
use crate::world::{Change, World};

/// The template that a pod was created from.
const REVISION: &str = "controller-revision-hash";

#[derive(Debug, Default)]
pub(crate) struct StatefulSets {
    queue: Queue,
}

impl Control for StatefulSets {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::StatefulSet, Kind::Pod, Kind::Claim]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Workload(Kind::StatefulSet, delta) => {
                if let Some(set) = delta.last() {
                    self.queue.add(set.metadata.key());
                }
            }
            Change::Pod(delta) => {
                if let Some(pod) = delta.last()
                    && let Some(owner) = pod.metadata.controller()
                    && owner.kind == Kind::StatefulSet.name()
                {
                    self.queue.add(key(&pod.metadata.namespace, &owner.name));
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
            let Some(set) = world.stateful_sets.get(&key) else { continue };
            let pods = ordinals(set, world);
            let mut calls = if set.metadata.is_terminating() { Vec::new() } else { step(set, &pods, world) };
            let status = status(set, &pods);
            if template::differs(&set.status, &status) {
                let of = Ref::to(Kind::StatefulSet, &**set);
                calls.push(Call::Patch { of, part: Part::Status, body: json!({ "status": status }) });
            }
            if !calls.is_empty() {
                errands.push(Errand::new(key, calls));
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

type Pods<'w> = BTreeMap<usize, &'w Arc<Pod>>;

/// The pods of a set by their ordinal.
fn ordinals<'w>(set: &Workload, world: &'w World) -> Pods<'w> {
    let number = |pod: &Pod| {
        pod.metadata.name.strip_prefix(&set.metadata.name)?.strip_prefix('-')?.parse::<usize>().ok()
    };
    world.pods_of(&set.metadata.uid).filter_map(|pod| Some((number(pod)?, pod))).collect()
}

fn revision(set: &Workload) -> String {
    format!("{}-{}", set.metadata.name, hash(&set.spec["template"]))
}

fn first(set: &Workload) -> usize {
    set.spec["ordinals"]["start"].as_u64().and_then(|start| usize::try_from(start).ok()).unwrap_or(0)
}

/// True if a pod is running and ready, so that the next one may be changed.
fn is_healthy(pod: &Pod) -> bool {
    pod.is_ready() && !pod.metadata.is_terminating() && pod.status.phase == "Running"
}

/// The next step. In order: create missing pods from the lowest ordinal, delete surplus pods from the highest, replace
/// outdated pods from the highest; one at a time, unless the pod management policy is Parallel.
fn step(set: &Workload, pods: &Pods<'_>, world: &World) -> Vec<Call> {
    let one_by_one = set.spec["podManagementPolicy"] != json!("Parallel");
    let wanted = first(set)..first(set).saturating_add(template::replicas(&set.spec));
    let mut calls = Vec::new();
    for ordinal in wanted.clone() {
        match pods.get(&ordinal) {
            None => calls.extend(create(set, ordinal, world)),
            // The pod is terminal, and its name is free only when the pod is gone.
            Some(pod) if pod.is_over() && !pod.metadata.is_terminating() => calls.push(delete(pod)),
            Some(pod) if is_healthy(pod) => continue,
            Some(_) => {}
        }
        if one_by_one {
            return calls;
        }
    }
    for (_, pod) in pods.iter().rev().filter(|(ordinal, _)| !wanted.contains(ordinal)) {
        if !pod.metadata.is_terminating() {
            calls.push(delete(pod));
        }
        if one_by_one {
            return calls;
        }
    }
    if !calls.is_empty() || set.spec["updateStrategy"]["type"] == json!("OnDelete") {
        return calls;
    }
    let partition = set.spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64().unwrap_or(0);
    let partition = usize::try_from(partition).unwrap_or(usize::MAX);
    let revision = revision(set);
    for (_, pod) in pods.range(partition.max(wanted.start)..).rev() {
        if pod.metadata.labels.get(REVISION) != Some(&revision) {
            return if pod.metadata.is_terminating() { calls } else { vec![delete(pod)] };
        }
        if !is_healthy(pod) {
            return calls;
        }
    }
    calls
}

fn delete(pod: &Pod) -> Call {
    Call::Delete { of: Ref::to(Kind::Pod, pod), grace: None }
}

/// First its claims, which outlive it, then the pod.
fn create(set: &Workload, ordinal: usize, world: &World) -> Vec<Call> {
    let namespace = &set.metadata.namespace;
    let name = format!("{}-{ordinal}", set.metadata.name);
    let mut body = template::pod(Kind::StatefulSet, &set.metadata, &set.spec["template"], Some(&name));
    body["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = json!(name);
    body["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
    body["metadata"]["labels"][REVISION] = json!(revision(set));
    body["spec"]["hostname"] = json!(name);
    body["spec"]["subdomain"] = set.spec["serviceName"].clone();
    let templates = set.spec["volumeClaimTemplates"].as_array().into_iter().flatten();
    let mut volumes: Vec<Value> = Vec::new();
    let mut calls = Vec::new();
    for template in templates {
        let volume = template["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let claim = format!("{volume}-{name}");
        if world.claims.named(namespace, &claim).is_none() {
            let mut metadata = template["metadata"].clone();
            metadata["name"] = json!(claim);
            metadata["labels"] = set.spec["selector"]["matchLabels"].clone();
            let body = json!({ "metadata": metadata, "spec": template["spec"] });
            calls.push(Call::Create { kind: Kind::Claim, namespace: namespace.clone(), body });
        }
        volumes.push(json!({ "name": volume, "persistentVolumeClaim": { "claimName": claim } }));
    }
    let own: Vec<Value> = body["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    volumes.extend(own.into_iter().filter(|volume| {
        let claimed = set.spec["volumeClaimTemplates"].as_array().into_iter().flatten();
        !claimed.into_iter().any(|template| template["metadata"]["name"] == volume["name"])
    }));
    if !volumes.is_empty() {
        body["spec"]["volumes"] = json!(volumes);
    }
    calls.push(Call::Create { kind: Kind::Pod, namespace: namespace.clone(), body });
    calls
}

fn status(set: &Workload, pods: &Pods<'_>) -> Value {
    let update = revision(set);
    let of_revision = |pod: &&&Arc<Pod>, name: &str| {
        !pod.metadata.is_terminating() && pod.metadata.labels.get(REVISION).is_some_and(|label| label == name)
    };
    let updated = pods.values().filter(|pod| of_revision(pod, &update)).count();
    let ready = pods.values().filter(|pod| is_healthy(pod)).count();
    let wanted = template::replicas(&set.spec);
    let known = set.status["currentRevision"].as_str().filter(|known| !known.is_empty());
    // The new template becomes the current one as soon as all pods are created from it.
    let current = known.filter(|_| updated != wanted || ready != wanted || pods.len() != wanted);
    let current = current.unwrap_or(&update).to_owned();
    json!({
        "observedGeneration": set.metadata.generation,
        "replicas": pods.values().filter(|pod| !pod.is_over()).count(),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": pods.values().filter(|pod| of_revision(pod, &current)).count(),
        "updatedReplicas": updated,
        "currentRevision": current,
        "updateRevision": update,
        "collisionCount": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
    fn set(spec: Value) -> Workload {
        let mut set = json!({
            "metadata": {"name": "db", "namespace": "d", "uid": "set"},
            "spec": {
                "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
            },
        });
        for (key, value) in spec.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        serde_json::from_value(set).unwrap()
    }

    /// Pods by ordinal and state: ready, starting, leaving, failed, or old (ready, of an earlier template).
    fn world(set: &Workload, pods: &[(usize, &str)]) -> World {
        let mut world = World::default();
        for (ordinal, state) in pods {
            let label = if *state == "old" { "earlier".to_owned() } else { revision(set) };
            let phase = if *state == "failed" { "Failed" } else { "Running" };
            let ready = ["ready", "old", "leaving"].contains(state);
            let mut pod = json!({
                "metadata": {
                    "name": format!("db-{ordinal}"), "namespace": "d", "uid": format!("p{ordinal}"),
                    "labels": {REVISION: label},
                    "ownerReferences": [{"kind": "StatefulSet", "name": "db", "uid": "set", "controller": true}],
                },
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
            });
            if *state == "leaving" {
                pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
            }
            world.with(Kind::Pod, |w| &mut w.pods, Change::Pod, pod);
        }
        world
    }

    /// The next step as text.
    fn next(set: &Workload, pods: &[(usize, &str)]) -> Vec<String> {
        let world = world(set, pods);
        let words = |call: Call| match call {
            Call::Create { kind, body, .. } => {
                format!("create {} {}", kind.name(), body["metadata"]["name"].as_str().unwrap())
            }
            Call::Delete { of, grace: None } => format!("delete {}", of.name),
            other => format!("{other:?}"),
        };
        step(set, &ordinals(set, &world), &world).into_iter().map(words).collect()
    }

    #[test]
    fn pods_come_one_by_one_with_their_claims() {
        let set = set(json!({}));
        let first = ["create PersistentVolumeClaim data-db-0", "create Pod db-0"];
        assert_eq!(next(&set, &[]), first);
        assert_eq!(next(&set, &[(0, "starting")]), [""; 0]);
        assert_eq!(next(&set, &[(0, "ready")])[1], "create Pod db-1");
        assert_eq!(next(&set, &[(0, "ready"), (1, "ready"), (2, "ready")]), [""; 0]);
    }

    #[test]
    fn a_name_is_free_only_when_its_pod_is_gone() {
        let set = set(json!({}));
        assert_eq!(next(&set, &[(0, "ready"), (1, "leaving"), (2, "ready")]), [""; 0]);
        assert_eq!(next(&set, &[(0, "ready"), (1, "failed"), (2, "ready")]), ["delete db-1"]);
        assert_eq!(next(&set, &[(0, "ready"), (2, "ready")])[1], "create Pod db-1");
    }

    #[test]
    fn pods_that_are_too_many_go_from_above_and_one_by_one() {
        let set = set(json!({"replicas": 1}));
        assert_eq!(next(&set, &[(0, "ready"), (1, "ready"), (2, "ready")]), ["delete db-2"]);
        assert_eq!(next(&set, &[(0, "ready"), (1, "ready"), (2, "leaving")]), [""; 0]);
        assert_eq!(next(&set, &[(0, "starting"), (1, "ready")]), [""; 0], "not while another is not ready");
    }

    #[test]
    fn parallel_sets_do_not_wait() {
        let set = set(json!({"podManagementPolicy": "Parallel", "volumeClaimTemplates": []}));
        assert_eq!(next(&set, &[(1, "starting")]), ["create Pod db-0", "create Pod db-2"]);
    }

    #[test]
    fn a_new_template_is_rolled_out_from_above_down_to_the_partition() {
        let all_old = [(0, "old"), (1, "old"), (2, "old")];
        assert_eq!(next(&set(json!({})), &all_old), ["delete db-2"]);
        assert_eq!(next(&set(json!({})), &[(0, "old"), (1, "old"), (2, "ready")]), ["delete db-1"]);
        let partition = json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}});
        assert_eq!(next(&set(partition), &[(0, "old"), (1, "old"), (2, "ready")]), [""; 0]);
        assert_eq!(next(&set(json!({"updateStrategy": {"type": "OnDelete"}})), &all_old), [""; 0]);
    }
}
