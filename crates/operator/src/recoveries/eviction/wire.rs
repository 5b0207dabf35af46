//! What is kept of nodes, pods and attached volumes, and how it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::{annotations, node_conditions, taints};
use salvor_recovery::{
    action::{NodeRef, PodPhase, PodRef, Taint},
    eviction::{
        AttachmentView, Claim, EvictionPolicy, Lease, NodeView, Owner, PodView, Progress, Toleration,
    },
    zombie::{Deletion, Ready},
};
use serde::Deserialize;

use crate::watch::{Identified, Project};

/// Set by a kubelet on the API's image of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

/// All that is kept of a node that nobody asks to empty, and the rest of one that somebody does.
#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(crate) node: NodeRef,
    pub(crate) zone: String,
    pub(crate) unreachable: bool,
    pub(crate) view: Option<Box<NodeView>>,
}

/// Whether the control plane has lost it.
pub(crate) fn is_unreachable(node: &NodeView) -> bool {
    node.taints.iter().any(|taint| taint.key == taints::UNREACHABLE)
}

/// Every node, at length only if its eviction is asked for or has begun.
pub(crate) struct Nodes(pub(crate) Arc<EvictionPolicy>);

impl Project for Nodes {
    type Wire = NodeWire;
    type Kept = SeenNode;

    fn keep(&self, wire: NodeWire) -> Option<SeenNode> {
        let view = wire.view();
        let is_concerned = view.progress.is_some() || view.taints.iter().any(|taint| self.0.concerns(taint));
        Some(SeenNode {
            node: view.node.clone(),
            zone: view.zone.clone(),
            unreachable: is_unreachable(&view),
            view: is_concerned.then(|| Box::new(view)),
        })
    }
}

/// Every pod of a node.
pub(crate) struct Pods;

impl Project for Pods {
    type Wire = PodWire;
    type Kept = PodView;

    fn keep(&self, wire: PodWire) -> Option<PodView> {
        Some(wire.view())
    }
}

/// Every attached volume, with its UID.
pub(crate) struct Attachments;

impl Project for Attachments {
    type Wire = AttachmentWire;
    type Kept = (String, AttachmentView);

    fn keep(&self, wire: AttachmentWire) -> Option<(String, AttachmentView)> {
        Some((wire.metadata.uid.clone(), wire.view()))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
    #[serde(default)]
    finalizers: Vec<String>,
    #[serde(default)]
    owner_references: Vec<OwnerWire>,
}

#[derive(Deserialize)]
struct OwnerWire {
    kind: String,
    #[serde(default)]
    controller: bool,
}

macro_rules! identified {
    ($($wire:ty),*) => {$(
        impl Identified for $wire {
            fn uid(&self) -> &str {
                &self.metadata.uid
            }

            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
        }
    )*};
}

identified!(NodeWire, PodWire, AttachmentWire);

#[derive(Deserialize)]
pub(crate) struct NodeWire {
    metadata: Meta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<TaintWire>,
}

#[derive(Deserialize)]
struct TaintWire {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    effect: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatus {
    conditions: Vec<ConditionWire>,
    volumes_in_use: Vec<String>,
}

#[derive(Deserialize)]
struct ConditionWire {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: String,
}

impl NodeWire {
    /// The node, without what only its Lease and our memory tell.
    pub(crate) fn view(self) -> NodeView {
        let NodeWire { metadata, spec, status } = self;
        let of_kind = |kind: &str| status.conditions.iter().find(|c| c.kind == kind);
        let label = |key: &str| metadata.labels.get(key).map_or("", String::as_str);
        // Node lifecycle counts a zone of one name in two regions as two.
        let zone = [label(REGION), label(ZONE)].into_iter().filter(|part| !part.is_empty());
        NodeView {
            zone: zone.collect::<Vec<_>>().join("/"),
            ready: Ready::from_api(of_kind("Ready").map(|c| c.status.as_str())),
            condition: of_kind(node_conditions::FORCE_EVICTION).map(|c| c.reason.clone()),
            taints: spec
                .taints
                .into_iter()
                .map(|t| Taint { key: t.key, value: t.value, effect: t.effect })
                .collect(),
            lease: Lease::Unread,
            progress: metadata
                .annotations
                .get(annotations::EVICTION)
                .and_then(|v| Progress::from_annotation(v)),
            volumes_in_use: status.volumes_in_use,
            node: NodeRef { name: metadata.name, uid: metadata.uid },
            resource_version: metadata.resource_version,
            told: BTreeSet::new(),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct PodWire {
    metadata: Meta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    tolerations: Vec<TolerationWire>,
    volumes: Vec<VolumeWire>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TolerationWire {
    key: String,
    operator: String,
    value: String,
    effect: String,
    toleration_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct VolumeWire {
    name: String,
    persistent_volume_claim: Option<ClaimWire>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClaimWire {
    claim_name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl PodWire {
    pub(crate) fn view(self) -> PodView {
        let PodWire { metadata, spec, status } = self;
        // A force delete whose client was killed between the server's two steps leaves a grace of 0 that nothing holds: it
        // must be deleted again.
        let held = !metadata.finalizers.is_empty();
        let grace_seconds = metadata.deletion_grace_period_seconds.filter(|grace| *grace != 0 || held);
        let claim = |name: String| Claim { namespace: metadata.namespace.clone(), name };
        let claims = spec.volumes.into_iter().filter_map(|volume| match volume {
            VolumeWire { persistent_volume_claim: Some(it), .. } => Some(claim(it.claim_name)),
            // The claim of a volume that lives as long as its pod is named after both.
            VolumeWire { name, ephemeral: Some(_), .. } => Some(claim(format!("{}-{name}", metadata.name))),
            _ => None,
        });
        PodView {
            claims: claims.collect(),
            owner: match metadata.owner_references.into_iter().find(|owner| owner.controller) {
                None => Owner::Nobody,
                Some(OwnerWire { kind, .. }) if kind == "StatefulSet" => Owner::StatefulSet,
                Some(OwnerWire { kind, .. }) => Owner::Other(kind),
            },
            tolerations: spec
                .tolerations
                .into_iter()
                .map(|t| Toleration {
                    key: t.key,
                    operator: t.operator,
                    value: t.value,
                    effect: t.effect,
                    seconds: t.toleration_seconds,
                })
                .filter(Toleration::concerns_eviction)
                .collect(),
            phase: PodPhase::from_api(&status.phase),
            deletion: metadata.deletion_timestamp.map(|timestamp| Deletion { timestamp, grace_seconds }),
            is_mirror: metadata.annotations.contains_key(MIRROR),
            pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
            resource_version: metadata.resource_version,
            announced: false,
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct AttachmentWire {
    metadata: Meta,
    spec: AttachmentSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttachmentSpec {
    attacher: String,
    node_name: String,
    #[serde(default)]
    source: AttachmentSource,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct AttachmentSource {
    persistent_volume_name: Option<String>,
}

impl AttachmentWire {
    pub(crate) fn view(self) -> AttachmentView {
        AttachmentView {
            name: self.metadata.name,
            node: self.spec.node_name,
            driver: self.spec.attacher,
            volume: self.spec.source.persistent_volume_name,
        }
    }
}
