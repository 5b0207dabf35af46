//! The kept fields of nodes, pods and attached volumes, and how they are decoded.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::SignedDuration;
use salvor_api::names::node_conditions;
use salvor_recovery::{
    eviction::{AttachmentView, DespiteOutage, EvictionPolicy, Lease, Memory, NodeView, PodView, Toleration},
    gate::{Claim, GatePolicy},
    ids::{NodeName, Uid},
    objects::{PodPhase, PodRef, Ready, Taint},
};
use serde::Deserialize;

use crate::{
    client::wire::{Condition, Nothing, Object, condition, node_ready},
    recoveries::work::{VolumeWire, WorkAnnotations, work},
    watch_set::{
        nodes::{CountedNode, NodeWire},
        watch::{Project, Target},
    },
};

pub(super) const ATTACHMENTS: Target =
    Target::all("volumeattachments", "/apis/storage.k8s.io/v1/volumeattachments");

/// A heartbeat is valid for this long: by default, the node lifecycle controller waits as long before it marks a node
/// unreachable.
const HEARTBEAT_LASTS: SignedDuration = SignedDuration::from_secs(40);

/// The basic data of a node, and its full view if its eviction is requested.
#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(crate) counted: Arc<CountedNode>,
    /// Present only if its eviction is requested or has begun.
    pub(crate) view: Option<Box<NodeView>>,
}

impl SeenNode {
    pub(crate) fn new(wire: &NodeWire, counted: &Arc<CountedNode>, policy: &EvictionPolicy) -> Self {
        let view = wire.may_be_evicted(policy).then(|| wire.view());
        let view = view.filter(|view| {
            view.is_remembered()
                || view.reports_a_trouble()
                || view.taints.iter().any(|taint| policy.concerns(taint))
        });
        Self { counted: counted.clone(), view: view.map(Box::new) }
    }
}

pub(crate) struct Pods(pub(super) Arc<EvictionPolicy>);

impl Project for Pods {
    type Wire = PodWire;
    type Kept = PodView;

    fn keep(&self, wire: PodWire) -> Option<PodView> {
        Some(wire.view(self.0.gate()))
    }
}

pub(crate) struct Attachments;

impl Project for Attachments {
    type Wire = AttachmentWire;
    type Kept = (Uid, AttachmentView);

    fn keep(&self, wire: AttachmentWire) -> Option<(Uid, AttachmentView)> {
        Some((wire.metadata.uid.clone(), wire.view()))
    }
}

impl NodeWire {
    /// True if its eviction may be requested or may have begun.
    pub(crate) fn may_be_evicted(&self, policy: &EvictionPolicy) -> bool {
        let annotations = &self.metadata.annotations;
        annotations.eviction.is_some()
            || annotations.eviction_asked.is_some()
            || condition(&self.status.conditions, node_conditions::FORCE_EVICTION).is_some()
            || self.spec.taints.iter().any(|taint| policy.concerns(&taint.into()))
    }

    /// The node, without the state from its Lease and our memory. Its heartbeat is as written.
    pub(crate) fn view(&self) -> NodeView {
        let NodeWire { metadata, spec, status } = self;
        let annotations = &metadata.annotations;
        let Memory { progress, asked, damage } =
            Memory::read(annotations.eviction.as_deref(), annotations.eviction_asked.as_deref());
        NodeView {
            zone: self.zone(),
            ready: node_ready(&status.conditions),
            boot_id: status.node_info.boot_id.clone(),
            condition: condition(&status.conditions, node_conditions::FORCE_EVICTION)
                .map(|c| c.reason.clone()),
            taints: spec.taints.iter().map(Taint::from).collect(),
            lease: Lease::Unread,
            ready_heartbeat: ready_heartbeat(&status.conditions),
            progress,
            asked,
            damage,
            refused: Vec::new(),
            out_of_service: annotations.out_of_service_since.is_some(),
            despite_outage: annotations
                .despite_zone_outage
                .as_deref()
                .and_then(DespiteOutage::from_annotation),
            volumes_in_use: status.volumes_in_use.clone(),
            volumes_attached: status.volumes_attached.iter().map(|volume| volume.name.clone()).collect(),
            created: metadata.creation_timestamp,
            node: self.node(),
            resource_version: metadata.resource_version.clone(),
            told: BTreeSet::new(),
        }
    }
}

/// The kubelet's last heartbeat in its node's `Ready` condition. The node lifecycle controller sets the status to
/// Unknown and leaves the heartbeat. Without a heartbeat, the transition to a status of the kubelet counts.
fn ready_heartbeat(conditions: &[Condition]) -> Lease {
    let by_kubelet = node_ready(conditions) != Ready::Unknown;
    let time = condition(conditions, "Ready")
        .and_then(|ready| ready.last_heartbeat_time.or(ready.last_transition_time.filter(|_| by_kubelet)));
    time.map_or(Lease::None, |written| Lease::Renewed {
        written,
        heard: written,
        lasts: HEARTBEAT_LASTS,
        moves: false,
    })
}

pub(crate) type PodWire = Object<PodSpec, PodStatus, WorkAnnotations>;

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
#[serde(default)]
pub(crate) struct PodStatus {
    phase: String,
}

impl PodWire {
    pub(crate) fn view(self, gate: &GatePolicy) -> PodView {
        let PodWire { metadata, spec, status } = self;
        // The claim of an ephemeral volume is named after the pod and the volume.
        let own_claim = |volume: &VolumeWire| Claim {
            namespace: metadata.namespace.clone(),
            name: format!("{}-{}", metadata.name, volume.name),
        };
        let ephemeral = spec.volumes.iter().filter(|volume| volume.ephemeral.is_some());
        PodView {
            own_claims: ephemeral.map(own_claim).collect(),
            work: work(&metadata, &spec.volumes, gate),
            created: metadata.creation_timestamp,
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
            is_mirror: metadata.annotations.is_mirror(),
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
    node_name: NodeName,
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
