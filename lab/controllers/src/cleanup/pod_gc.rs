//! Pod garbage collection: removes pods that no other controller will ever remove.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use salvor_apiserver::object;
use serde_json::json;

use crate::calls::{Call, Part, Ref};
use crate::driver::{Control, Errand, Plan};
use crate::nodes::taints::OUT_OF_SERVICE;
use crate::world::collection::Kind;
use crate::world::views::Pod;
use crate::world::{Change, World};

/// When pods are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodGcTimers {
    /// The interval at which all pods are checked.
    pub period: Duration,
    /// The pods of a node are orphans if the node is missing for this long.
    pub quarantine: Duration,
    /// This many terminated pods are kept; `None` for all.
    pub terminated_threshold: Option<usize>,
}

impl Default for PodGcTimers {
    /// kube-controller-manager's defaults.
    fn default() -> Self {
        Self {
            period: Duration::from_secs(20),
            quarantine: Duration::from_secs(40),
            terminated_threshold: Some(12_500),
        }
    }
}

#[derive(Debug)]
pub(crate) struct PodGc {
    timers: PodGcTimers,
    next_look: Option<Timestamp>,
    /// Since when nodes with pods are missing.
    missing: BTreeMap<String, Timestamp>,
}

impl PodGc {
    pub(crate) fn new(timers: PodGcTimers) -> Self {
        Self { timers, next_look: None, missing: BTreeMap::new() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Terminated,
    OutOfService,
    Orphaned,
    Unscheduled,
}

impl Control for PodGc {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::Node]
    }

    /// The loop runs by the clock only.
    fn observe(&mut self, _: &Change) {}

    fn again(&mut self, _: &str) {}

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        if self.next_look.is_some_and(|at| at > now) {
            return Plan { errands: Vec::new(), wake: self.next_look };
        }
        self.next_look = Some(now + self.timers.period);
        let errands = self.garbage(world, now);
        let errands =
            errands.into_iter().map(|(pod, why)| Errand::new(pod.metadata.key(), collect(pod, why, now)));
        Plan { errands: errands.collect(), wake: self.next_look }
    }
}

impl PodGc {
    /// All pods to remove, each by the first rule that applies.
    fn garbage<'w>(&mut self, world: &'w World, now: Timestamp) -> Vec<(&'w Pod, Why)> {
        let mut found: Vec<(&Pod, Why)> = Vec::new();
        found.extend(self.surplus(world).into_iter().map(|pod| (pod, Why::Terminated)));
        let missing: BTreeMap<String, Timestamp> = world
            .pods
            .iter()
            .filter(|pod| pod.is_bound() && world.nodes.get(&pod.spec.node_name).is_none())
            .map(|pod| pod.spec.node_name.clone())
            .map(|node| (node.clone(), self.missing.get(&node).copied().unwrap_or(now)))
            .collect();
        self.missing = missing;
        for pod in world.pods.iter() {
            let node = world.nodes.get(&pod.spec.node_name);
            let out = node.is_some_and(|node| !node.is_ready() && node.has_taint(OUT_OF_SERVICE));
            let lost_since = self.missing.get(&pod.spec.node_name);
            let why = if pod.metadata.is_terminating() && out {
                Why::OutOfService
            } else if lost_since.is_some_and(|since| *since + self.timers.quarantine <= now) {
                Why::Orphaned
            } else if pod.metadata.is_terminating() && !pod.is_bound() {
                Why::Unscheduled
            } else {
                continue;
            };
            if !found.iter().any(|(known, _)| known.metadata.uid == pod.metadata.uid) {
                found.push((pod, why));
            }
        }
        found
    }

    /// The oldest terminated pods beyond the threshold.
    fn surplus<'w>(&self, world: &'w World) -> Vec<&'w Pod> {
        let Some(threshold) = self.timers.terminated_threshold else { return Vec::new() };
        let mut ended: Vec<&Pod> = world.pods.iter().map(|pod| &**pod).filter(|pod| pod.is_over()).collect();
        ended.sort_by_key(|pod| (pod.status.reason != "Evicted", pod.metadata.creation_timestamp));
        ended.truncate(ended.len().saturating_sub(threshold));
        ended
    }
}

/// First marks the pod Failed, then deletes it: watchers of the pod must be able to see its end.
fn collect(pod: &Pod, why: Why, now: Timestamp) -> Vec<Call> {
    let of = Ref::to(Kind::Pod, pod);
    let mut calls = Vec::new();
    if why == Why::Orphaned {
        calls.push(Call::ExpectAbsent { kind: Kind::Node, name: pod.spec.node_name.clone() });
    }
    if !pod.is_over() {
        let mut status = json!({ "phase": "Failed" });
        if why == Why::Orphaned {
            status["conditions"] = json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                "message": "PodGC: node no longer exists", "lastTransitionTime": object::time(now),
            }]);
        }
        let body = json!({ "status": status });
        calls.push(Call::Patch { of: of.clone(), part: Part::Status, body });
    }
    calls.push(Call::Delete { of, grace: Some(0) });
    calls
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn world(objects: &[Value]) -> World {
        let mut world = World::default();
        for object in objects {
            if object.get("spec").is_some_and(|spec| spec.get("isNode").is_some()) {
                world.with(Kind::Node, |w| &mut w.nodes, Change::Node, object.clone());
            } else {
                world.with(Kind::Pod, |w| &mut w.pods, Change::Pod, object.clone());
            }
        }
        world
    }

    #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
    fn node(name: &str, ready: &str, taints: Value) -> Value {
        json!({"metadata": {"name": name}, "spec": {"isNode": true, "taints": taints},
               "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn pod(name: &str, node: &str, terminating: bool, phase: &str) -> Value {
        let mut pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name},
               "spec": {"nodeName": node}, "status": {"phase": phase}});
        if terminating {
            pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        }
        pod
    }

    fn found(gc: &mut PodGc, world: &World, now: Timestamp) -> Vec<(String, Why)> {
        gc.garbage(world, now).into_iter().map(|(pod, why)| (pod.metadata.name.clone(), why)).collect()
    }

    #[test]
    fn each_rule_finds_its_own_and_no_other() {
        let out = json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]);
        let world = world(&[
            node("fine", "True", json!([])),
            node("out", "Unknown", out.clone()),
            node("out-but-ready", "True", out),
            node("lost", "Unknown", json!([])),
            pod("runs", "fine", false, "Running"),
            pod("leaves", "fine", true, "Running"),
            pod("stuck", "lost", true, "Running"),
            pod("freed", "out", true, "Running"),
            pod("not-asked", "out", false, "Running"),
            pod("held", "out-but-ready", true, "Running"),
            pod("orphan", "gone", false, "Running"),
            pod("nowhere", "", true, "Pending"),
            pod("waits", "", false, "Pending"),
        ]);
        let mut gc = PodGc::new(PodGcTimers::default());
        let at_once = [("freed".to_owned(), Why::OutOfService), ("nowhere".to_owned(), Why::Unscheduled)];
        assert_eq!(found(&mut gc, &world, at(0)), at_once);
        assert_eq!(found(&mut gc, &world, at(39)).len(), 2);
        assert!(found(&mut gc, &world, at(40)).contains(&("orphan".to_owned(), Why::Orphaned)));
    }

    #[test]
    fn a_node_that_comes_back_ends_the_quarantine() {
        let orphan = pod("orphan", "gone", false, "Running");
        let without = world(std::slice::from_ref(&orphan));
        let with = world(&[orphan, node("gone", "True", json!([]))]);
        let mut gc = PodGc::new(PodGcTimers::default());
        assert_eq!(found(&mut gc, &without, at(0)), []);
        assert_eq!(found(&mut gc, &with, at(20)), []);
        assert_eq!(found(&mut gc, &without, at(40)), [], "a new quarantine has begun");
    }

    #[test]
    fn of_those_that_ended_the_oldest_go() {
        let mut objects = vec![node("n", "True", json!([]))];
        for (index, phase) in ["Succeeded", "Failed", "Succeeded", "Running"].iter().enumerate() {
            let mut pod = pod(&format!("p{index}"), "n", false, phase);
            pod["metadata"]["creationTimestamp"] = json!(format!("2024-01-01T00:00:0{index}Z"));
            objects.push(pod);
        }
        objects[3]["status"]["reason"] = json!("Evicted");
        let timers = PodGcTimers { terminated_threshold: Some(1), ..PodGcTimers::default() };
        let gone = found(&mut PodGc::new(timers), &world(&objects), at(0));
        assert_eq!(gone, [("p2".to_owned(), Why::Terminated), ("p0".to_owned(), Why::Terminated)]);
    }

    #[test]
    fn only_orphans_are_marked_as_disrupted_and_only_after_a_second_look() {
        let pod: Pod = serde_json::from_value(pod("p", "gone", false, "Running")).unwrap();
        let orphan = collect(&pod, Why::Orphaned, at(0));
        assert!(matches!(&orphan[0], Call::ExpectAbsent { name, .. } if name == "gone"));
        assert!(
            matches!(&orphan[1], Call::Patch { body, .. } if body["status"]["conditions"][0]["reason"] == "DeletionByPodGC")
        );
        assert!(matches!(&orphan[2], Call::Delete { grace: Some(0), .. }));
        let freed = collect(&pod, Why::OutOfService, at(0));
        assert!(
            matches!(&freed[0], Call::Patch { body, .. } if body["status"] == json!({"phase": "Failed"}))
        );
    }
}
