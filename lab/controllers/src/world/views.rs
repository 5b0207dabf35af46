//! The fields of objects that the loops need, decoded straight from the wire: whole pods would cost ten times as much
//! memory.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Affinity, NodeSelector, Taint, Toleration};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) creation_timestamp: Option<Timestamp>,
    pub(crate) deletion_timestamp: Option<Timestamp>,
}

impl Meta {
    /// Namespace and name, or the name alone.
    pub(crate) fn key(&self) -> String {
        key(&self.namespace, &self.name)
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(crate) fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true))
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }

    pub(crate) fn revision(&self) -> u64 {
        self.resource_version.parse().unwrap_or(0)
    }
}

/// The key of an object in its store.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// A complete owner reference: a writer of the list must not change the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) block_owner_deletion: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last_heartbeat_time: Option<Timestamp>,
    pub(crate) last_transition_time: Option<Timestamp>,
}

fn condition<'c>(conditions: &'c [Condition], kind: &str) -> Option<&'c Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Meta,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: String,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) affinity: Option<Box<Affinity>>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) topology_spread_constraints: Vec<Spread>,
    pub(crate) containers: Vec<Container>,
    pub(crate) init_containers: Vec<Container>,
    pub(crate) overhead: BTreeMap<String, String>,
    pub(crate) volumes: Vec<PodVolume>,
    pub(crate) scheduler_name: String,
    pub(crate) scheduling_gates: Vec<Value>,
    pub(crate) priority: i64,
}

/// A topology spread constraint.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spread {
    pub(crate) max_skew: i64,
    pub(crate) topology_key: String,
    pub(crate) when_unsatisfiable: String,
    pub(crate) label_selector: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Container {
    pub(crate) resources: Resources,
    pub(crate) restart_policy: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    pub(crate) requests: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodVolume {
    pub(crate) persistent_volume_claim: Option<ClaimSource>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSource {
    pub(crate) claim_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) restart_count: i64,
    pub(crate) state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) running: Option<serde::de::IgnoredAny>,
}

impl Pod {
    pub(crate) fn is_bound(&self) -> bool {
        !self.spec.node_name.is_empty()
    }

    /// True if its containers have terminated permanently.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.status == "True")
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        condition(&self.status.conditions, kind)
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = &str> {
        let sources = self.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        sources.map(|source| source.claim_name.as_str())
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) metadata: Meta,
    pub(crate) spec: NodeSpec,
    pub(crate) status: NodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) allocatable: BTreeMap<String, String>,
    pub(crate) volumes_in_use: Vec<String>,
    pub(crate) volumes_attached: Vec<AttachedVolume>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachedVolume {
    pub(crate) name: String,
    pub(crate) device_path: String,
}

impl Node {
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        condition(&self.status.conditions, kind)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.status == "True")
    }

    pub(crate) fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == key)
    }
}

/// The Lease that a kubelet renews as its heartbeat.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lease {
    pub(crate) metadata: Meta,
    pub(crate) spec: LeaseSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LeaseSpec {
    pub(crate) renew_time: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Claim {
    pub(crate) metadata: Meta,
    pub(crate) spec: ClaimSpec,
    pub(crate) status: PhaseOnly,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSpec {
    pub(crate) volume_name: String,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) resources: Resources,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PhaseOnly {
    pub(crate) phase: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Volume {
    pub(crate) metadata: Meta,
    pub(crate) spec: VolumeSpec,
    pub(crate) status: PhaseOnly,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeSpec {
    pub(crate) claim_ref: Option<ClaimRef>,
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) storage_class_name: String,
    pub(crate) persistent_volume_reclaim_policy: String,
    pub(crate) csi: Option<Csi>,
    pub(crate) node_affinity: Option<VolumeNodeAffinity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct VolumeNodeAffinity {
    pub(crate) required: Option<NodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Csi {
    pub(crate) driver: String,
    pub(crate) volume_handle: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StorageClass {
    pub(crate) metadata: Meta,
    pub(crate) provisioner: String,
    pub(crate) volume_binding_mode: String,
}

/// A volume that is, or is to be, attached to a node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Attachment {
    pub(crate) metadata: Meta,
    pub(crate) spec: AttachmentSpec,
    pub(crate) status: AttachmentStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentSpec {
    pub(crate) attacher: String,
    pub(crate) node_name: String,
    pub(crate) source: AttachmentSource,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentSource {
    pub(crate) persistent_volume_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AttachmentStatus {
    pub(crate) attached: bool,
}

/// A workload whose spec and status the loops read as raw JSON.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Workload {
    pub(crate) metadata: Meta,
    pub(crate) spec: Value,
    pub(crate) status: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    pub(crate) metadata: Meta,
    pub(crate) spec: NamespaceSpec,
    pub(crate) status: Value,
}

/// The finalizers that only namespaces have, besides those in the metadata.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamespaceSpec {
    pub(crate) finalizers: Vec<String>,
}

/// An object of a kind of which no loop reads more than its metadata.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Bare {
    pub(crate) metadata: Meta,
}
