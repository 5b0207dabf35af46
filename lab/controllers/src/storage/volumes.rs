//! Claims and volumes: binds each claim to its own volume, and keeps both while they are needed.

use jiff::Timestamp;
use salvor_apiserver::quantity;
use serde_json::{Value, json};

use crate::calls::{Call, Part, Ref};
use crate::driver::{Control, Errand, Plan, Queue};
use crate::world::collection::Kind;
use crate::world::views::{Claim, Volume, key};
use crate::world::{Change, World};

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

#[derive(Debug, Default)]
pub(crate) struct VolumeBinder {
    /// Claims by their key, volumes by their name after `*`.
    queue: Queue,
    all_claims: bool,
}

const VOLUME: &str = "*";

impl Control for VolumeBinder {
    fn follows(&self) -> &'static [Kind] {
        &[Kind::Claim, Kind::Volume, Kind::StorageClass, Kind::Pod]
    }

    fn observe(&mut self, change: &Change) {
        match change {
            Change::Claim(delta) => {
                for claim in delta.old.iter().chain(&delta.new) {
                    self.queue.add(claim.metadata.key());
                    self.queue.add(format!("{VOLUME}{}", claim.spec.volume_name));
                }
            }
            Change::Volume(delta) => {
                for volume in delta.old.iter().chain(&delta.new) {
                    self.queue.add(format!("{VOLUME}{}", volume.metadata.name));
                    match &volume.spec.claim_ref {
                        Some(claim) => self.queue.add(key(&claim.namespace, &claim.name)),
                        // Any claim may have waited for it.
                        None => self.all_claims = true,
                    }
                }
            }
            Change::StorageClass(_) => self.all_claims = true,
            Change::Pod(delta) => {
                if delta.new.is_none()
                    && let Some(pod) = &delta.old
                {
                    for claim in pod.claims() {
                        self.queue.add(key(&pod.metadata.namespace, claim));
                    }
                }
            }
            _ => {}
        }
    }

    fn again(&mut self, subject: &str) {
        self.queue.add(subject);
    }

    fn decide(&mut self, world: &World, now: Timestamp) -> Plan {
        if std::mem::take(&mut self.all_claims) {
            for claim in world.claims.iter() {
                self.queue.add(claim.metadata.key());
            }
        }
        let mut errands = Vec::new();
        for subject in self.queue.take(now) {
            let calls = match subject.strip_prefix(VOLUME) {
                Some(name) => world.volumes.get(name).map(|volume| tend_volume(volume, world)),
                None => world.claims.get(&subject).map(|claim| tend_claim(claim, world)),
            };
            if let Some(calls) = calls.filter(|calls| !calls.is_empty()) {
                errands.push(Errand::new(subject, calls));
            }
        }
        Plan { errands, wake: self.queue.wake() }
    }
}

fn release(of: Ref, finalizers: &[String], finalizer: &str) -> Option<Call> {
    let left: Vec<&String> = finalizers.iter().filter(|known| *known != finalizer).collect();
    let body = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [finalizer] } });
    (left.len() != finalizers.len()).then_some(Call::Patch { of, part: Part::Whole, body })
}

fn tend_claim(claim: &Claim, world: &World) -> Vec<Call> {
    let of = Ref::to(Kind::Claim, claim);
    if claim.metadata.is_terminating() {
        let used = world
            .pods
            .within(&claim.metadata.namespace)
            .any(|pod| pod.is_bound() && pod.claims().any(|name| name == claim.metadata.name));
        let released = if used { None } else { release(of, &claim.metadata.finalizers, CLAIM_PROTECTION) };
        return released.into_iter().collect();
    }
    if let Some(volume) = volume_for(claim, world) {
        return bind(claim, volume);
    }
    if !claim.spec.volume_name.is_empty() || claim.metadata.annotations.contains_key(PROVISIONER) {
        return Vec::new();
    }
    let class = claim.spec.storage_class_name.as_deref().unwrap_or("");
    let Some(class) = world.storage_classes.get(class) else { return Vec::new() };
    let waits = class.volume_binding_mode == "WaitForFirstConsumer";
    if class.provisioner == "kubernetes.io/no-provisioner"
        || (waits && !claim.metadata.annotations.contains_key(SELECTED_NODE))
    {
        return Vec::new();
    }
    let provisioner = &class.provisioner;
    let annotations = json!({ PROVISIONER: provisioner, OLD_PROVISIONER: provisioner });
    vec![Call::Patch { of, part: Part::Whole, body: json!({ "metadata": { "annotations": annotations } }) }]
}

/// The volume that was provisioned for a claim, or the smallest unused one that is large enough.
fn volume_for<'w>(claim: &Claim, world: &'w World) -> Option<&'w Volume> {
    if !claim.spec.volume_name.is_empty() {
        let volume = world.volumes.get(&claim.spec.volume_name)?;
        let free =
            volume.spec.claim_ref.as_ref().is_none_or(|of| of.uid == claim.metadata.uid || of.uid.is_empty());
        return free.then_some(volume);
    }
    let made_for = world.volumes.iter().find(|volume| is_for(volume, claim));
    made_for.map(|volume| &**volume).or_else(|| {
        let asked = claim.spec.resources.requests.get("storage").and_then(|text| quantity::amount(text));
        let size =
            |volume: &Volume| volume.spec.capacity.get("storage").and_then(|text| quantity::amount(text));
        let class = claim.spec.storage_class_name.as_deref().unwrap_or("");
        let waits = world.storage_classes.get(class).is_some_and(|class| {
            class.volume_binding_mode == "WaitForFirstConsumer"
                && !claim.metadata.annotations.contains_key(SELECTED_NODE)
        });
        let enough = world.volumes.iter().filter(|volume| {
            !waits
                && volume.spec.claim_ref.is_none()
                && !volume.metadata.is_terminating()
                && volume.spec.storage_class_name == class
                && size(volume) >= asked
                && claim.spec.access_modes.iter().all(|mode| volume.spec.access_modes.contains(mode))
        });
        enough.min_by_key(|volume| (size(volume), volume.metadata.name.clone())).map(|volume| &**volume)
    })
}

fn is_for(volume: &Volume, claim: &Claim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|of| {
        of.namespace == claim.metadata.namespace
            && of.name == claim.metadata.name
            && (of.uid == claim.metadata.uid || of.uid.is_empty())
    })
}

/// The writes for both sides of a binding, as far as they are still missing.
fn bind(claim: &Claim, volume: &Volume) -> Vec<Call> {
    let mut calls = Vec::new();
    let (of_claim, of_volume) = (Ref::to(Kind::Claim, claim), Ref::to(Kind::Volume, volume));
    let mut patch = |of: &Ref, part, body: Value| calls.push(Call::Patch { of: of.clone(), part, body });
    if volume.spec.claim_ref.as_ref().is_none_or(|known| known.uid != claim.metadata.uid) {
        let claim_ref = json!({
            "apiVersion": "v1", "kind": Kind::Claim.name(), "namespace": claim.metadata.namespace,
            "name": claim.metadata.name, "uid": claim.metadata.uid,
        });
        let annotations = json!({ BOUND_BY_CONTROLLER: "yes" });
        let body = json!({ "metadata": { "annotations": annotations }, "spec": { "claimRef": claim_ref } });
        patch(&of_volume, Part::Whole, body);
    }
    if volume.status.phase != "Bound" {
        patch(&of_volume, Part::Status, json!({ "status": { "phase": "Bound" } }));
    }
    if claim.spec.volume_name.is_empty() || !claim.metadata.annotations.contains_key(BIND_COMPLETED) {
        let annotations = json!({ BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes" });
        let spec = json!({ "volumeName": volume.metadata.name });
        patch(&of_claim, Part::Whole, json!({ "metadata": { "annotations": annotations }, "spec": spec }));
    }
    if claim.status.phase != "Bound" {
        let status = json!({
            "phase": "Bound", "accessModes": volume.spec.access_modes, "capacity": volume.spec.capacity,
        });
        patch(&of_claim, Part::Status, json!({ "status": status }));
    }
    calls
}

fn tend_volume(volume: &Volume, world: &World) -> Vec<Call> {
    let of = Ref::to(Kind::Volume, volume);
    let claim = volume.spec.claim_ref.as_ref().and_then(|claim| {
        world.claims.named(&claim.namespace, &claim.name).filter(|known| known.metadata.uid == claim.uid)
    });
    let phase = match (&volume.spec.claim_ref, claim) {
        (None, _) => "Available",
        (Some(known), None) if known.uid.is_empty() => "Available",
        (Some(_), None) => "Released",
        // The reconcile of the claim binds it.
        (Some(_), Some(_)) => "Bound",
    };
    if volume.metadata.is_terminating() && phase != "Bound" {
        return release(of, &volume.metadata.finalizers, VOLUME_PROTECTION).into_iter().collect();
    }
    let mut calls = Vec::new();
    if phase != "Bound" && volume.status.phase != phase {
        let body = json!({ "status": { "phase": phase } });
        calls.push(Call::Patch { of: of.clone(), part: Part::Status, body });
    }
    if phase == "Released" && volume.spec.persistent_volume_reclaim_policy == "Delete" {
        calls.push(Call::Delete { of, grace: None });
    }
    calls
}
