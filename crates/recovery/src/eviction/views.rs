//! The input of the eviction recovery: only the fields that it decides by.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{annotations, taints};
use serde::{Deserialize, Serialize};

use super::memory::{Asked, Damage, Progress};
use super::tolerations::Toleration;
use crate::brake::NodeCounts;
use crate::gate::{Claim, Work};
use crate::ids::{NodeName, ResourceVersion};
pub use crate::liveness::Lease;
use crate::moments::after;
use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready, Taint, boot_to_remember};
use crate::one_actor::{EvictionSign, NodeSigns};

/// Reasons of the condition on a node whose eviction may not even have begun.
const TROUBLES: [&str; 2] = ["AnnotationUnreadable", "WriteRefused"];

/// The step that reports the progress.
pub(super) const REPORT: &str = "ReportEviction";

/// A node and everything on it.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    pub node: &'a NodeView,
    /// None until all are known.
    pub pods: Option<Vec<&'a PodView>>,
    /// Volumes attached to it; none until all are known.
    pub attachments: Option<Vec<&'a AttachmentView>>,
    /// The counts of its zone.
    pub zone: NodeCounts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub node: NodeRef,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    /// When the Node object was created.
    pub created: Option<Timestamp>,
    /// Empty if it has none.
    pub zone: String,
    pub taints: Vec<Taint>,
    pub ready: Ready,
    /// The boot ID that its kubelet reports; empty if it reports none.
    pub boot_id: Box<str>,
    pub lease: Lease,
    /// The heartbeat of its `Ready` condition, in the form of a Lease. It counts where there is no Lease.
    pub ready_heartbeat: Lease,
    /// The progress of its eviction; none if it has not begun, or if there is [`Self::damage`].
    pub progress: Option<Progress>,
    /// A request that was removed while the node was Ready; none if there is [`Self::damage`].
    pub asked: Option<Asked>,
    /// The annotation of ours that cannot be read. While there is one, nothing is done.
    pub damage: Option<Damage>,
    /// The writes to it that the server refused and has not accepted since; one of each kind.
    pub refused: Vec<Refusal>,
    /// True if our annotation says that zombie recovery tainted it out-of-service.
    pub out_of_service: bool,
    /// A person's override of the outage around it.
    pub despite_outage: Option<DespiteOutage>,
    /// The reason of our condition on it.
    pub condition: Option<String>,
    /// `status.volumesInUse`.
    pub volumes_in_use: Vec<String>,
    /// The names in `status.volumesAttached`.
    pub volumes_attached: Vec<String>,
    /// The names of events about it that are known to be recorded.
    pub told: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub step: &'static str,
    /// The step in words.
    pub what: String,
    /// The server's message.
    pub words: String,
    /// The write is not retried before then.
    pub until: Timestamp,
}

impl Refusal {
    /// True if the refused write was more than a progress report.
    pub(super) fn is_of_work(&self) -> bool {
        self.step != REPORT
    }
}

impl NodeView {
    /// The time that is recorded when an eviction starts. A time before the creation of the Node counts as damage, and
    /// the clock of an API server may be behind.
    pub(super) fn not_before(&self, now: Timestamp) -> Timestamp {
        self.created.map_or(now, |created| now.max(created))
    }

    /// What on the node shows which recovery acts on it.
    pub(super) fn signs(&self) -> NodeSigns<'_> {
        let eviction = match &self.progress {
            _ if self.damage.is_some() => EvictionSign::Unreadable,
            Some(progress) => EvictionSign::of(progress),
            None if self.asked.is_some() => EvictionSign::Asked,
            None => EvictionSign::None,
        };
        NodeSigns { taints: &self.taints, eviction, out_of_service: self.out_of_service }
    }

    /// Its taints with our key.
    pub(super) fn ours(&self) -> impl Iterator<Item = &Taint> {
        self.taints.iter().filter(|taint| taint.key == taints::FORCE_EVICTION)
    }

    /// A person's override of the outage around it, if it is not too old.
    pub fn despite_outage(&self, now: Timestamp) -> Option<&DespiteOutage> {
        self.despite_outage.as_ref().filter(|word| word.holds(now))
    }

    /// The taint that makes a kubelet refuse pods.
    pub fn no_execute(&self) -> Option<&Taint> {
        self.ours().find(|taint| taint.effect == taints::NO_EXECUTE)
    }

    /// What is known of its kubelet: from its Lease, or without one from the heartbeat of its `Ready` condition. A
    /// kubelet without a Lease renews that instead, and Kubernetes' own node lifecycle controller uses it likewise.
    pub fn heartbeat(&self) -> Lease {
        match self.lease {
            Lease::None => self.ready_heartbeat,
            Lease::Unread | Lease::Renewed { .. } => self.lease,
        }
    }

    /// The boot ID to store when its eviction begins; none if it is unknown.
    pub(super) fn boot_to_remember(&self) -> Option<String> {
        boot_to_remember(&self.boot_id)
    }

    /// True if one of our annotations is on it, readable or not.
    pub fn is_remembered(&self) -> bool {
        self.progress.is_some() || self.asked.is_some() || self.damage.is_some()
    }

    /// True if our condition on it reports a problem that may be over by now.
    pub fn reports_a_trouble(&self) -> bool {
        self.condition.as_deref().is_some_and(|reason| TROUBLES.contains(&reason))
    }
}

impl Progress {
    /// True if volumes were released, and the machine has not rebooted since: the containers of the evicted pods may
    /// still run there, and may have the volumes mounted. A missing boot ID counts as the same boot.
    pub(super) fn may_still_use_volumes(&self, node: &NodeView) -> bool {
        let same_boot = |boot: &String| node.boot_id.is_empty() || *node.boot_id == **boot;
        let any = self.released.as_ref().is_some_and(|released| !released.kept_all);
        any && self.boot_id.as_ref().is_some_and(same_boot)
    }
}

/// A defect of our annotations on a node: one is unreadable, or its times are impossible.
pub(super) fn damage(node: &NodeView, now: Timestamp) -> Option<Damage> {
    let absurd = || {
        let (problem, until) = node.progress.as_ref()?.absurd_time(node.created, now)?;
        Some(Damage { annotation: annotations::EVICTION, problem, until })
    };
    node.damage.clone().or_else(absurd)
}

/// A person's decision to evict a node although its zone, or most of the cluster, is lost as well: an annotation on the
/// Node. It is removed with the taint when the eviction ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DespiteOutage {
    pub by: String,
    pub at: Timestamp,
}

impl DespiteOutage {
    /// The permission is about the outage of today. If its eviction never began, it does not count for the next one.
    const LASTS: SignedDuration = SignedDuration::from_hours(24);
    /// The writer's clock may be ahead by this much.
    const AHEAD: SignedDuration = SignedDuration::from_mins(5);

    /// Reads the annotation. An unreadable value permits nothing.
    pub fn from_annotation(value: &str) -> Option<Self> {
        serde_json::from_str(value).ok().filter(|word: &Self| !word.by.is_empty())
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.at <= after(now, Self::AHEAD) && now < after(self.at, Self::LASTS)
    }
}

/// A pod on such a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub pod: PodRef,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    pub phase: PodPhase,
    pub deletion: Option<Deletion>,
    /// True if it is the mirror pod of a static pod.
    pub is_mirror: bool,
    pub created: Option<Timestamp>,
    /// The facts that decide whether two copies of it may run.
    pub work: Work,
    pub tolerations: Vec<Toleration>,
    /// The claims of its ephemeral volumes, which come and go with it.
    pub own_claims: Vec<Claim>,
    /// True if the event about it is known to be recorded.
    pub announced: bool,
}

impl PodView {
    pub fn all_claims(&self) -> impl Iterator<Item = &Claim> {
        self.work.claims.iter().chain(&self.own_claims)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentView {
    /// The VolumeAttachment's name.
    pub name: String,
    pub node: NodeName,
    /// The driver that attaches and detaches it.
    pub driver: String,
    /// The PersistentVolume.
    pub volume: Option<String>,
}
