//! What is kept of nodes, pods and attached volumes, and how it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use salvor_api::names::{annotations, node_conditions};
use salvor_recovery::{
    brake::NodeStanding,
    eviction::{
        Asked, AttachmentView, Claim, DespiteOutage, EvictionPolicy, Lease, NodeView, Owner, PodView,
        Progress, Toleration,
    },
    objects::{NodeRef, PodPhase, PodRef, Taint},
};
use serde::Deserialize;

use crate::{
    watch::Project,
    wire::{self, Condition, NodeSpec, Nothing, Object, condition, node_ready, standing},
};

/// Set by a kubelet on the API's image of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

/// All that is kept of a node that nobody asks to empty, and the rest of one that somebody does.
#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(crate) node: NodeRef,
    pub(crate) zone: String,
    pub(crate) standing: NodeStanding,
    pub(crate) view: Option<Box<NodeView>>,
}

/// Every node, at length only if its eviction is asked for or has begun.
pub(crate) struct Nodes(pub(crate) Arc<EvictionPolicy>);

impl Project for Nodes {
    type Wire = NodeWire;
    type Kept = SeenNode;

    fn keep(&self, wire: NodeWire) -> Option<SeenNode> {
        let standing = wire.standing();
        let view = wire.view();
        let is_concerned = view.progress.is_some()
            || view.asked.is_some()
            || view.taints.iter().any(|taint| self.0.concerns(taint));
        Some(SeenNode {
            node: view.node.clone(),
            zone: view.zone.clone(),
            standing,
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

type Annotations = BTreeMap<String, String>;

pub(crate) type NodeWire = Object<NodeSpec, NodeStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeStatus {
    conditions: Vec<Condition>,
    volumes_in_use: Vec<String>,
}

impl NodeWire {
    /// What of it makes it count.
    pub(crate) fn standing(&self) -> NodeStanding {
        standing(&self.metadata.labels, &self.spec.taints, &self.status.conditions)
    }

    /// The node, without what only its Lease and our memory tell.
    pub(crate) fn view(self) -> NodeView {
        let NodeWire { metadata, spec, status } = self;
        let label = |key| metadata.labels.get(key).unwrap_or_default();
        // Node lifecycle counts a zone of one name in two regions as two.
        let zone = [label(REGION), label(ZONE)].into_iter().filter(|part| !part.is_empty());
        let progress = metadata.annotations.get(annotations::EVICTION);
        NodeView {
            zone: zone.collect::<Vec<_>>().join("/"),
            ready: node_ready(&status.conditions),
            condition: condition(&status.conditions, node_conditions::FORCE_EVICTION)
                .map(|c| c.reason.clone()),
            taints: spec.taints.into_iter().map(Taint::from).collect(),
            lease: Lease::Unread,
            progress: progress.and_then(|progress| Progress::from_annotation(progress)),
            asked: metadata
                .annotations
                .get(annotations::EVICTION_ASKED)
                .and_then(|it| Asked::from_annotation(it)),
            despite_outage: metadata
                .annotations
                .get(annotations::DESPITE_ZONE_OUTAGE)
                .and_then(|word| DespiteOutage::from_annotation(word)),
            volumes_in_use: status.volumes_in_use,
            node: NodeRef { name: metadata.name, uid: metadata.uid },
            resource_version: metadata.resource_version,
            told: BTreeSet::new(),
        }
    }
}

pub(crate) type PodWire = Object<PodSpec, PodStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
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
pub(crate) struct PodStatus {
    phase: String,
}

impl PodWire {
    pub(crate) fn view(self) -> PodView {
        let PodWire { metadata, spec, status } = self;
        let claim = |name: String| Claim { namespace: metadata.namespace.clone(), name };
        let claims = spec.volumes.into_iter().filter_map(|volume| match volume {
            VolumeWire { persistent_volume_claim: Some(it), .. } => Some(claim(it.claim_name)),
            // The claim of a volume that lives as long as its pod is named after both.
            VolumeWire { name, ephemeral: Some(_), .. } => Some(claim(format!("{}-{name}", metadata.name))),
            _ => None,
        });
        PodView {
            claims: claims.collect(),
            owner: match metadata.controller() {
                None => Owner::Nobody,
                Some(wire::Owner { kind, .. }) if kind == "StatefulSet" => Owner::StatefulSet,
                Some(wire::Owner { kind, .. }) => Owner::Other(kind.clone()),
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
            deletion: metadata.pod_deletion(),
            is_mirror: metadata.annotations.contains_key(MIRROR),
            pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
            resource_version: metadata.resource_version,
            announced: false,
        }
    }
}

pub(crate) type AttachmentWire = Object<AttachmentSpec, Nothing>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AttachmentSpec {
    attacher: String,
    node_name: String,
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
