//! The kept fields of nodes, pods and attached volumes, and how they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use salvor_api::names::node_conditions;
use salvor_recovery::{
    eviction::{
        Access, AttachmentView, Claim, DespiteOutage, EvictionPolicy, Lease, Memory, NodeView, Owner,
        PodView, Toleration,
    },
    ids::{NodeName, Uid},
    objects::{PodPhase, PodRef, Ready, Taint},
};
use serde::{Deserialize, de::IgnoredAny};

use super::claims::MOST_CLAIMS;
use crate::{
    nodes::{CountedNode, NodeWire},
    watch::Project,
    wire::{self, Condition, Nothing, Object, condition, node_ready},
};

/// Set by a kubelet on the API's image of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// A heartbeat counts for this long: node lifecycle waits as long by default before it marks a node unreachable.
const HEARTBEAT_LASTS: SignedDuration = SignedDuration::from_secs(40);

/// All that is kept of a node that nobody asks to empty, and the rest of one that somebody does.
#[derive(Clone, Debug)]
pub(crate) struct SeenNode {
    pub(crate) counted: Arc<CountedNode>,
    /// There only if its eviction is asked for or has begun.
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
    type Kept = (Uid, AttachmentView);

    fn keep(&self, wire: AttachmentWire) -> Option<(Uid, AttachmentView)> {
        Some((wire.metadata.uid.clone(), wire.view()))
    }
}

type Annotations = BTreeMap<String, String>;

impl NodeWire {
    /// True if it may have to be looked at: its eviction may be asked for or have begun.
    pub(crate) fn may_be_evicted(&self, policy: &EvictionPolicy) -> bool {
        let annotations = &self.metadata.annotations;
        annotations.eviction.is_some()
            || annotations.eviction_asked.is_some()
            || condition(&self.status.conditions, node_conditions::FORCE_EVICTION).is_some()
            || self.spec.taints.iter().any(|taint| policy.concerns(&taint.into()))
    }

    /// The node, without what only its Lease and our memory tell. Its heartbeat is as it was written.
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
            heartbeat: heartbeat(&status.conditions),
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

/// What a kubelet last said of itself in its node's `Ready` condition. Others set that to Unknown and leave the heartbeat;
/// where there is none, the change to what a kubelet says counts.
fn heartbeat(conditions: &[Condition]) -> Lease {
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
    ephemeral: Option<IgnoredAny>,
    // Disks that a pod names without a claim: one node at a time can have them.
    aws_elastic_block_store: Option<IgnoredAny>,
    azure_disk: Option<IgnoredAny>,
    cinder: Option<IgnoredAny>,
    fc: Option<IgnoredAny>,
    gce_persistent_disk: Option<IgnoredAny>,
    iscsi: Option<IgnoredAny>,
    rbd: Option<IgnoredAny>,
    vsphere_volume: Option<IgnoredAny>,
}

impl VolumeWire {
    fn is_disk(&self) -> bool {
        let disks = [
            self.aws_elastic_block_store,
            self.azure_disk,
            self.cinder,
            self.fc,
            self.gce_persistent_disk,
            self.iscsi,
            self.rbd,
            self.vsphere_volume,
        ];
        disks.iter().any(Option::is_some)
    }
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
        let disk = spec.volumes.iter().find(|volume| volume.is_disk()).map(|volume| volume.name.clone());
        let (mut claims, mut own_claims) = (Vec::new(), Vec::new());
        for volume in spec.volumes {
            match volume {
                VolumeWire { persistent_volume_claim: Some(it), .. } => claims.push(claim(it.claim_name)),
                // The claim of a volume that lives as long as its pod is named after both.
                VolumeWire { name, ephemeral: Some(_), .. } => {
                    own_claims.push(claim(format!("{}-{name}", metadata.name)));
                }
                _ => {}
            }
        }
        PodView {
            access: match (disk, claims.len()) {
                (Some(volume), _) => Access::Once(format!("volume {volume} is a disk for one node")),
                (None, 0) => Access::Many,
                (None, 1..=MOST_CLAIMS) => Access::Unread,
                (None, more) => Access::Once(format!("it has {more} claims, more than are read")),
            },
            claims,
            own_claims,
            created: metadata.creation_timestamp,
            owners: metadata.owner_references.iter().map(owner).collect(),
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

fn owner(owner: &wire::Owner) -> Owner {
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    Owner { kind: owner.kind.clone(), group: group.to_owned(), controls: owner.controller }
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
