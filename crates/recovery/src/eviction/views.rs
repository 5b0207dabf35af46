//! What the eviction recovery looks at: only the fields that it judges by.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use salvor_api::names::taints;
use serde::{Deserialize, Serialize};

use super::tolerations::Toleration;
use crate::brake::NodeCounts;
pub use crate::liveness::Lease;
use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready, Taint};

/// A node and all that is on it.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// Its pods; none before they are all known.
    pub pods: Option<Vec<&'a PodView>>,
    /// Volumes attached to it; none before they are all known.
    pub attachments: Option<Vec<&'a AttachmentView>>,
    /// The nodes of its zone.
    pub zone: NodeCounts,
}

/// A node, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Which node.
    pub node: NodeRef,
    /// The state that is judged.
    pub resource_version: String,
    /// Its zone; empty if it has none.
    pub zone: String,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Its `Ready` condition.
    pub ready: Ready,
    /// What its Lease says.
    pub lease: Lease,
    /// How far its eviction has come; none if it has not begun, or if nobody can read the annotation.
    pub progress: Option<Progress>,
    /// A request that was taken off while the node was called Ready.
    pub asked: Option<Asked>,
    /// The reason of our condition on it.
    pub condition: Option<String>,
    /// `status.volumesInUse`.
    pub volumes_in_use: Vec<String>,
    /// The names of events about it that are known to be recorded.
    pub told: BTreeSet<String>,
}

impl NodeView {
    /// Its taints with our key.
    pub(super) fn ours(&self) -> impl Iterator<Item = &Taint> {
        self.taints.iter().filter(|taint| taint.key == taints::FORCE_EVICTION)
    }

    /// The taint that makes a kubelet refuse pods.
    pub fn no_execute(&self) -> Option<&Taint> {
        self.ours().find(|taint| taint.effect == taints::NO_EXECUTE)
    }
}

/// How far an eviction has come: our annotation on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// When it began.
    pub started: Timestamp,
    /// The taint that asked for it.
    pub request: String,
    /// What the pods that were to go had claimed: when they are gone, nobody else knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
    /// Which volumes were let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Released>,
    /// When pods and volumes were gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// When somebody took our taint away in the middle, while another taint still asks for the eviction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Timestamp>,
}

impl Progress {
    /// Reads the annotation. What nobody can read counts as an eviction that has not begun: everything is checked anew.
    pub fn from_annotation(value: &str) -> Option<Self> {
        serde_json::from_str(value).ok()
    }

    /// Whether a taint with our key and the effect `NoExecute` was itself the request, and not added by us.
    pub(super) fn asked_by_no_execute(&self) -> bool {
        let key = self.request.split(['=', ':']).next();
        key == Some(taints::FORCE_EVICTION) && self.request.ends_with(taints::NO_EXECUTE)
    }
}

/// A person's request that was taken off because the node was called Ready: our annotation on the Node.
///
/// A machine that was switched off a moment ago is called Ready as well. If its kubelet is never heard of again, the person
/// was right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// The value of the taint.
    pub value: String,
    /// When the kubelet had last renewed its Lease by then.
    pub renewed: Timestamp,
}

impl Asked {
    /// Reads the annotation.
    pub fn from_annotation(value: &str) -> Option<Self> {
        serde_json::from_str(value).ok()
    }

    /// The taint as it was.
    pub(super) fn taint(&self) -> Taint {
        Taint {
            key: taints::FORCE_EVICTION.into(),
            value: self.value.clone(),
            effect: taints::NO_SCHEDULE.into(),
        }
    }
}

/// Which volumes were let go, and which stayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// When.
    pub at: Timestamp,
    /// Claims of pods that stayed on the node then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Claim>,
    /// The volumes behind them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
}

/// A claim to a volume, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod on such a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Which pod.
    pub pod: PodRef,
    /// The state that is judged.
    pub resource_version: String,
    /// Where it is in its life.
    pub phase: PodPhase,
    /// Whether it is being deleted.
    pub deletion: Option<Deletion>,
    /// Whether it is the API's image of a static pod.
    pub is_mirror: bool,
    /// Who looks after it.
    pub owner: Owner,
    /// What it tolerates.
    pub tolerations: Vec<Toleration>,
    /// The claims that it uses.
    pub claims: Vec<Claim>,
    /// Whether the event about it is known to be recorded.
    pub announced: bool,
}

/// Who looks after a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: what is deleted is lost.
    Nobody,
    /// A StatefulSet, which counts on never having two pods of one name.
    StatefulSet,
    /// Any other controller, by its kind.
    Other(String),
}

/// A volume attached to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentView {
    /// The VolumeAttachment's name.
    pub name: String,
    /// The node.
    pub node: String,
    /// The driver that attaches and detaches it.
    pub driver: String,
    /// The PersistentVolume.
    pub volume: Option<String>,
}
