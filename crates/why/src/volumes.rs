//! Claims without a volume, and volumes that are attached to another node.

use jiff::Timestamp;
use salvor_api::names::taints;
use serde_json::Value;

use crate::{
    answer::{Object, Remedy},
    code::Code,
    diagnosis::{Diagnosis, Finding, Rules},
    json::{entry, is_terminating, list, name, named, namespace, text, time},
    kinds::{ATTACHMENT, CLAIM, POD, STORAGE_CLASS, VOLUME},
    nodes::{NodeState, evict},
    world::Seen,
};

impl Rules<'_> {
    /// The first claim that keeps a pod from being scheduled or started.
    pub(crate) fn unbound(&self, pod: &Value, scheduler_says: Option<&str>) -> Option<Finding> {
        claims(pod).into_iter().find_map(|claim| {
            let object = Object::of("PersistentVolumeClaim", namespace(pod), &claim);
            match self.world.get(&CLAIM, namespace(pod), &claim) {
                Seen::Here(claim) => self.unbound_claim(claim, scheduler_says),
                Seen::Absent => Some(
                    Finding::new(
                        Code::VolumeUnbound,
                        object,
                        format!("there is no claim {claim}, which the pod mounts"),
                    )
                    .advice(format!("Create PersistentVolumeClaim {claim} in namespace {}", namespace(pod))),
                ),
                Seen::Unknown => None,
            }
        })
    }

    /// Why a claim has no volume. A claim that waits for its first consumer is a cause only if the scheduler blames
    /// volumes.
    fn unbound_claim(&self, claim: &Value, scheduler_says: Option<&str>) -> Option<Finding> {
        let phase = text(claim, "/status/phase");
        if phase == "Bound" {
            return None;
        }
        let class = text(claim, "/spec/storageClassName");
        let found = if class.is_empty() { None } else { Some(self.world.get(&STORAGE_CLASS, "", class)) };
        let waits = found
            .and_then(Seen::here)
            .is_some_and(|class| text(class, "/volumeBindingMode") == "WaitForFirstConsumer");
        let chosen = entry(claim, "/metadata/annotations", "volume.kubernetes.io/selected-node");
        let blames_volumes = scheduler_says.is_some_and(|says| {
            says.to_lowercase().contains("persistentvolume") || says.contains("persistent volume")
        });
        if let (true, None, Some(_), false) = (waits, chosen, scheduler_says, blames_volumes) {
            return None;
        }
        let (why, remedy) = match found {
            Some(Seen::Absent) => (
                format!("there is no storage class {class}"),
                format!("Create storage class {class}, or make the claim anew with a class that exists"),
            ),
            _ if phase == "Lost" => (
                "its volume is gone".to_owned(),
                "Restore the volume from a backup, and make the claim anew".to_owned(),
            ),
            None => (
                "it names no storage class, and no free volume fits".to_owned(),
                format!(
                    "Create a PersistentVolume that fits claim {}, or make the claim anew with a storage class",
                    name(claim)
                ),
            ),
            Some(_) if waits && chosen.is_none() && scheduler_says.is_none() => (
                format!("storage class {class} waits until the scheduler has chosen a node for a pod that mounts it"),
                "Start a pod that mounts the claim, and let the scheduler choose its node: the volume is made then".to_owned(),
            ),
            Some(_) if waits && chosen.is_none() => (
                format!("storage class {class} waits for a pod, and no volume fits on any node"),
                format!("Create a PersistentVolume of class {class} that fits, or free one that is Released"),
            ),
            Some(_) => (
                format!("storage class {class} has not provided a volume"),
                format!("Look at the provisioner of storage class {class}: its events on the claim say why"),
            ),
        };
        let finding = Finding::new(
            Code::VolumeUnbound,
            named("PersistentVolumeClaim", claim),
            format!("claim {} has no volume: {why}", name(claim)),
        )
        .since(time(claim, "/metadata/creationTimestamp"))
        .advice(remedy);
        Some(finding)
    }

    pub(crate) fn attached_elsewhere(&self, pod: &Value) -> Option<Finding> {
        let on = text(pod, "/spec/nodeName");
        claims(pod).into_iter().find_map(|claim| {
            let claim = self.world.get(&CLAIM, namespace(pod), &claim).here()?;
            let finding = self.held_by_another_node(claim, on, time(pod, "/metadata/creationTimestamp"))?;
            Some(finding.under(named("PersistentVolumeClaim", claim), "is bound, and its volume is not free"))
        })
    }

    /// The attachment of a claim's volume to a node other than `on`, where a pod wants it.
    fn held_by_another_node(
        &self,
        claim: &Value,
        on: &str,
        wanted_since: Option<Timestamp>,
    ) -> Option<Finding> {
        let volume = text(claim, "/spec/volumeName");
        if volume.is_empty() {
            return None;
        }
        if let Seen::Here(volume) = self.world.get(&VOLUME, "", volume)
            && is_shared(volume)
        {
            return None;
        }
        let attachments = self.world.list(&ATTACHMENT, "", "", "")?;
        let other = attachments.into_iter().find(|attachment| {
            text(attachment, "/spec/source/persistentVolumeName") == volume
                && text(attachment, "/spec/nodeName") != on
        })?;
        let (holder, attachment) = (text(other, "/spec/nodeName"), name(other));
        let ends = if is_terminating(other) { ", and its detaching is under way" } else { "" };
        let message = format!("volume {volume} is attached to node {holder} by {attachment}{ends}");
        let finding = Finding::new(Code::VolumeAttachedElsewhere, named("VolumeAttachment", other), message)
            .since(time(other, "/metadata/creationTimestamp"));
        Some(match self.node_state(holder) {
            NodeState::Lost { .. } => finding
                .expects(self.volume_released(claim, holder, wanted_since))
                .advice(format!("Bring node {holder} back: then the volume is detached from it"))
                .remedy(if self.evicts() { evict(holder) } else { Remedy::command(
                    format!("If the machine of {holder} is off for sure (else its work may run twice), say so: its volumes are freed"),
                    format!(
                        "kubectl taint node {holder} --overwrite {}={}:{}",
                        taints::OUT_OF_SERVICE,
                        taints::OUT_OF_SERVICE_VALUE,
                        taints::NO_EXECUTE
                    ),
                ) }),
            NodeState::Sick { .. } => finding.advice(format!(
                "Repair node {holder}: its kubelet lives, and gives the volume back when the pod that uses it has ended"
            )),
            NodeState::Gone => finding.expects(self.volume_released(claim, holder, wanted_since)).advice(format!(
                "Wait: there is no node {holder} any more, and the control plane detaches the volume by itself, after six minutes at most"
            )),
            NodeState::Fine | NodeState::Unknown => finding.advice(format!(
                "End the pod on node {holder} that uses the volume: it is detached when that pod is gone"
            )),
        })
    }

    pub(crate) fn asked_claim(&self, claim: &Value) -> Diagnosis {
        if let Some(finding) = self.unbound_claim(claim, None) {
            return Diagnosis::phrase("its volume", vec![finding]);
        }
        let users = self.world.list(&POD, namespace(claim), "", "").unwrap_or_default();
        let object = named("PersistentVolumeClaim", claim);
        for pod in users {
            let on = text(pod, "/spec/nodeName");
            let uses = claims(pod).iter().any(|used| used == name(claim));
            if !uses
                || on.is_empty()
                || is_terminating(pod)
                || crate::json::has_ended(pod)
                || crate::json::is_ready(pod)
            {
                continue;
            }
            if let Some(finding) =
                self.held_by_another_node(claim, on, time(pod, "/metadata/creationTimestamp"))
            {
                let says = format!("is wanted by pod {} on node {on}", name(pod));
                let finding = finding.waiting(named("Pod", pod)).under(object.clone(), says);
                return Diagnosis::phrase(format!("its volume on node {on}"), vec![finding]);
            }
        }
        Diagnosis::default()
    }
}

/// Whether several nodes may have the volume at once.
pub(crate) fn is_shared(volume: &Value) -> bool {
    let shared = |mode: &Value| matches!(mode.as_str(), Some("ReadWriteMany" | "ReadOnlyMany"));
    list(volume, "/spec/accessModes").iter().any(shared)
}

pub(crate) fn claims(pod: &Value) -> Vec<String> {
    list(pod, "/spec/volumes")
        .iter()
        .filter_map(|volume| {
            let claim = text(volume, "/persistentVolumeClaim/claimName");
            if !claim.is_empty() {
                return Some(claim.to_owned());
            }
            volume.get("ephemeral").map(|_| format!("{}-{}", name(pod), text(volume, "/name")))
        })
        .collect()
}
