//! Attaches a volume to the nodes whose pods use it, and detaches it only when no pod can still write to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::calls::{Call, Note, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::nodes::taints::OUT_OF_SERVICE;
use crate::workloads::deployment;
use crate::world::collection::Kind;
use crate::world::views::{AttachedVolume, Attachment, Node, Pod, Volume};
use crate::world::{Change, World};

const COMPONENT: &str = "attachdetach-controller";
/// Only nodes with this annotation leave attaching to the controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// When a volume is detached from a node that does not unmount it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachDetachTimers {
    /// A node that is not Ready may keep an unused volume for this long.
    pub max_wait_for_unmount: Duration,
}

impl Default for AttachDetachTimers {
    /// kube-controller-manager's defaults.
    fn default() -> Self {
        Self { max_wait_for_unmount: Duration::from_secs(6 * 60) }
    }
}

#[derive(Debug)]
pub(crate) struct AttachDetach {
    timers: AttachDetachTimers,
    /// Nodes to reconcile.
    queue: Queue,
    /// Since when an attachment is no longer needed.
    unwanted: BTreeMap<String, Timestamp>,
    /// The cluster has changed in a way that may affect any node.
    all: bool,
    /// Recorded events, once each: a pod, and the node that holds its volume.
    told: BTreeSet<(String, String)>,
}

impl AttachDetach {
    pub(crate) fn new(timers: AttachDetachTimers) -> Self {
        Self { timers, queue: Queue::default(), unwanted: BTreeMap::new(), all: false, told: BTreeSet::new() }
    }
}

impl Control for AttachDetach {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Pod, Kind::Claim, Kind::Volume, Kind::Attachment]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Node(delta) => {
                if let Some(node) = delta.last() {
                    self.queue.add(node.metadata.name.clone());
                }
            }
            Change::Pod(delta) => {
                if let Some(pod) = delta.last()
                    && pod.is_bound()
                    && pod.claims().next().is_some()
                {
                    self.queue.add(pod.spec.node_name.clone());
                    if delta.new.is_none() {
                        self.told.retain(|(uid, _)| *uid != pod.metadata.uid);
                    }
                }
            }
            // Any other node may wait for an exclusive volume that leaves this one.
            Change::Attachment(_) | Change::Claim(_) | Change::Volume(_) => self.all = true,
            _ => {}
        }
    }

    fn again(&mut self, subject: &str) {
        self.queue.add(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        if std::mem::take(&mut self.all) {
            let users = world.pods.iter().filter(|pod| pod.claims().next().is_some());
            let nodes = users.map(|pod| &pod.spec.node_name);
            let attached = world.attachments.iter().map(|attachment| &attachment.spec.node_name);
            for node in nodes.chain(attached).filter(|node| !node.is_empty()).collect::<BTreeSet<_>>() {
                self.queue.add(node.clone());
            }
            let attachments = &world.attachments;
            self.unwanted.retain(|name, _| attachments.get(name).is_some());
        }
        let mut errands = Vec::new();
        for node in self.queue.take(now) {
            let calls = self.tend(&node, world, now);
            if !calls.is_empty() {
                errands.push(Errand::new(node, calls));
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

impl AttachDetach {
    fn tend(&mut self, name: &str, world: &World, now: Timestamp) -> Vec<Call> {
        let node = world.nodes.get(name).map(|node| &**node);
        let wanted = wanted(name, node, world);
        let present: Vec<&Attachment> =
            world.attachments.iter().map(|one| &**one).filter(|one| one.spec.node_name == name).collect();
        let mut calls = Vec::new();
        for (volume, pods) in &wanted {
            let here = present.iter().find(|one| one.spec.source.persistent_volume_name == *volume);
            if here.is_none()
                && let Some(volume) = world.volumes.get(volume)
            {
                match held_by(volume, name, world) {
                    Some(holder) => calls.extend(self.tell(volume, pods, holder)),
                    None => calls.extend(attach(volume, name)),
                }
            }
        }
        let mut leaving: BTreeSet<String> = BTreeSet::new();
        for attachment in present.iter().filter(|one| !one.metadata.is_terminating()) {
            let volume = &attachment.spec.source.persistent_volume_name;
            let key = &attachment.metadata.name;
            if wanted.contains_key(volume.as_str()) {
                self.unwanted.remove(key);
                continue;
            }
            let since = *self.unwanted.entry(key.clone()).or_insert(now);
            let unique = world.volumes.get(volume).and_then(|volume| unique_name(volume));
            let force_at = since + self.timers.max_wait_for_unmount;
            if may_leave(node, unique.as_deref(), force_at <= now) {
                leaving.extend(unique);
                calls.push(Call::Delete { of: Ref::to(Kind::Attachment, *attachment), grace: None });
            } else if force_at > now {
                self.queue.at(force_at, name);
            }
        }
        // The node's status is updated before a detach, and after an attach.
        if let Some(call) = node.and_then(|node| report(node, &present, &leaving, world)) {
            calls.insert(0, call);
        }
        calls
    }

    fn tell(&mut self, volume: &Volume, pods: &[&Pod], holder: &str) -> Vec<Call> {
        let mut calls = Vec::new();
        for pod in pods {
            if self.told.insert((pod.metadata.uid.clone(), holder.to_owned())) {
                calls.push(Call::Event(Note {
                    about: Ref::to(Kind::Pod, *pod),
                    component: COMPONENT,
                    severity: "Warning",
                    reason: "FailedAttachVolume",
                    message: format!(
                        "Multi-Attach error for volume \"{}\" Volume is already used by node {holder}",
                        volume.metadata.name
                    ),
                }));
            }
        }
        calls
    }
}

/// The volumes that pods on a node need, and those pods.
fn wanted<'w>(name: &str, node: Option<&Node>, world: &'w World) -> BTreeMap<&'w str, Vec<&'w Pod>> {
    let mut wanted: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    if node.is_none_or(|node| node.metadata.annotations.get(MANAGED).is_none_or(|text| text != "true")) {
        return wanted;
    }
    for pod in world.pods_on(name).filter(|pod| uses_volumes(pod)) {
        for claim in pod.claims() {
            let Some(claim) = world.claims.named(&pod.metadata.namespace, claim) else { continue };
            let Some(volume) = world.volumes.get(&claim.spec.volume_name) else { continue };
            if claim.status.phase == "Bound" && volume.spec.csi.is_some() {
                wanted.entry(&volume.metadata.name).or_default().push(pod);
            }
        }
    }
    wanted
}

/// A terminal pod needs no volumes; one that is being deleted needs them while a container runs.
fn uses_volumes(pod: &Pod) -> bool {
    let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let runs = statuses.into_iter().any(|status| status.state.running.is_some());
    !pod.is_over() && (!pod.metadata.is_terminating() || runs)
}

/// The name under which nodes know a volume.
fn unique_name(volume: &Volume) -> Option<String> {
    let csi = volume.spec.csi.as_ref()?;
    Some(format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle))
}

/// The other node that has an exclusive volume.
fn held_by<'w>(volume: &Volume, node: &str, world: &'w World) -> Option<&'w str> {
    let shared = volume.spec.access_modes.iter().any(|mode| !mode.starts_with("ReadWriteOnce"));
    let elsewhere = world.attachments.iter().find(|one| {
        one.spec.source.persistent_volume_name == volume.metadata.name && one.spec.node_name != node
    });
    elsewhere.filter(|_| !shared).map(|one| one.spec.node_name.as_str())
}

fn attach(volume: &Volume, node: &str) -> Option<Call> {
    let csi = volume.spec.csi.as_ref()?;
    let hash = |salt: &str| deployment::hash(&json!([csi.volume_handle, csi.driver, node, salt]));
    let body = json!({
        "metadata": { "name": format!("csi-{}{}", hash("a"), hash("b")) },
        "spec": {
            "attacher": csi.driver, "nodeName": node,
            "source": { "persistentVolumeName": volume.metadata.name },
        },
    });
    Some(Call::Create { kind: Kind::Attachment, namespace: String::new(), body })
}

/// True if an unused volume may be detached from a node: the node has unmounted it, is out of service, or has been lost
/// for too long.
fn may_leave(node: Option<&Node>, unique: Option<&str>, waited: bool) -> bool {
    let Some(node) = node else { return waited };
    let in_use = unique.is_some_and(|unique| node.status.volumes_in_use.iter().any(|used| used == unique));
    !in_use || node.has_taint(OUT_OF_SERVICE) || (waited && !node.is_ready())
}

/// Updates a node's list of attached volumes, if that has changed.
fn report(node: &Node, present: &[&Attachment], leaving: &BTreeSet<String>, world: &World) -> Option<Call> {
    let attached = present.iter().filter(|one| one.status.attached && !one.metadata.is_terminating());
    let names = attached
        .filter_map(|one| world.volumes.get(&one.spec.source.persistent_volume_name))
        .filter_map(|volume| unique_name(volume))
        .filter(|unique| !leaving.contains(unique));
    let names: BTreeSet<String> = names.collect();
    let known: BTreeSet<&String> =
        node.status.volumes_attached.iter().map(|AttachedVolume { name, .. }| name).collect();
    if names.iter().collect::<BTreeSet<_>>() == known {
        return None;
    }
    let list: Vec<Value> = names.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
    Some(Call::MergeAt {
        of: Ref::to(Kind::Node, node),
        part: Part::Status,
        revision: node.metadata.resource_version.clone(),
        body: json!({ "status": { "volumesAttached": list } }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
    fn node(ready: &str, in_use: &[&str], taints: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "volumesInUse": in_use},
        }))
        .unwrap()
    }

    #[test]
    fn who_lets_go_of_a_volume_and_when() {
        let out = json!([{"key": OUT_OF_SERVICE, "effect": "NoSchedule"}]);
        for (node, waited, expected) in [
            (Some(node("True", &[], json!([]))), false, true),
            (Some(node("True", &["v"], json!([]))), false, false),
            (Some(node("True", &["v"], json!([]))), true, false),
            (Some(node("Unknown", &["v"], json!([]))), false, false),
            (Some(node("Unknown", &["v"], json!([]))), true, true),
            (Some(node("Unknown", &["v"], out.clone())), false, true),
            (Some(node("True", &["v"], out)), false, true),
            (None, false, false),
            (None, true, true),
        ] {
            assert_eq!(may_leave(node.as_ref(), Some("v"), waited), expected, "{node:?} {waited}");
        }
    }

    #[test]
    fn a_pod_that_is_told_to_end_needs_its_volumes_while_a_container_runs() {
        let pod = |phase: &str, leaving: bool, state: Value| -> Pod {
            let mut pod = json!({"status": {"phase": phase, "containerStatuses": [{"state": state}]}});
            if leaving {
                pod["metadata"] = json!({"deletionTimestamp": "2024-01-01T00:00:00Z"});
            }
            serde_json::from_value(pod).unwrap()
        };
        for (pod, expected) in [
            (pod("Pending", false, json!({"waiting": {}})), true),
            (pod("Running", false, json!({"running": {"startedAt": "2024-01-01T00:00:00Z"}})), true),
            (pod("Running", true, json!({"running": {}})), true),
            (pod("Running", true, json!({"terminated": {"exitCode": 0}})), false),
            (pod("Failed", true, json!({"running": {}})), false),
            (pod("Succeeded", false, json!({"terminated": {"exitCode": 0}})), false),
        ] {
            assert_eq!(uses_volumes(&pod), expected, "{pod:?}");
        }
    }
}
