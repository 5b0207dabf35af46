//! What the eviction recovery looks at: only the fields that it judges by.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::taints;
use serde::{Deserialize, Serialize};

use super::tolerations::Toleration;
use crate::brake::NodeCounts;
use crate::moments::after;
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
    /// A person's word that an outage around it does not matter.
    pub despite_outage: Option<DespiteOutage>,
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

    /// A person's word that an outage around it does not matter, if that is not too old.
    pub fn despite_outage(&self, now: Timestamp) -> Option<&DespiteOutage> {
        self.despite_outage.as_ref().filter(|word| word.holds(now))
    }

    /// The taint that makes a kubelet refuse pods.
    pub fn no_execute(&self) -> Option<&Taint> {
        self.ours().find(|taint| taint.effect == taints::NO_EXECUTE)
    }
}

/// What a node's Lease says about its kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It was not read yet.
    Unread,
    /// There is none.
    None,
    /// It was renewed.
    Renewed {
        /// The time that the kubelet wrote, by its own clock.
        written: Timestamp,
        /// When the kubelet was last heard of, by the server's clock: when we saw that time change, or, if we did not, that time
        /// itself, but not one that is yet to come.
        heard: Timestamp,
        /// For how long that counts.
        lasts: SignedDuration,
        /// Whether we saw it being renewed since we began to look.
        moves: bool,
    },
}

impl Lease {
    /// Whether the kubelet has renewed it while we looked, or not longer ago than it may take: it does so four times in
    /// the Lease's duration, and two of them may fail.
    pub(super) fn is_kept_up(self, now: Timestamp) -> bool {
        match self {
            Self::Renewed { heard, lasts, moves, .. } => moves || now < after(heard, lasts / 2),
            Self::Unread | Self::None => false,
        }
    }

    /// Whether the kubelet was heard of since it had written this time into the Lease. Without a Lease nobody can tell.
    pub(super) fn was_renewed_since(self, time: Timestamp) -> bool {
        match self {
            Self::Renewed { written, moves, .. } => moves || written != time,
            Self::None => true,
            Self::Unread => false,
        }
    }

    /// Until when it shows that the kubelet lives.
    pub(super) fn fresh_until(self) -> Option<Timestamp> {
        match self {
            Self::Renewed { heard, lasts, .. } => Some(after(heard, lasts)),
            Self::Unread | Self::None => None,
        }
    }

    /// Whether it shows that the kubelet lives.
    pub fn is_fresh(self, now: Timestamp) -> bool {
        self.fresh_until().is_some_and(|until| now < until)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread => f.write_str("Lease not read yet"),
            Self::None => f.write_str("no Lease"),
            Self::Renewed { heard, .. } => write!(f, "Lease renewed at {heard}"),
        }
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

/// A person's word that a node is to be emptied although its zone, or most of the cluster, is lost as well: an annotation on
/// the Node. It goes with the taint when the eviction ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DespiteOutage {
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

impl DespiteOutage {
    /// It is about the outage of today: left behind by an eviction that never began, it is no permission for the next one.
    const LASTS: SignedDuration = SignedDuration::from_hours(24);
    /// How far the clock of whoever wrote it may be ahead.
    const AHEAD: SignedDuration = SignedDuration::from_mins(5);

    /// Reads the annotation. What cannot be read is nobody's word.
    pub fn from_annotation(value: &str) -> Option<Self> {
        serde_json::from_str(value).ok().filter(|word: &Self| !word.by.is_empty())
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.at <= after(now, Self::AHEAD) && now < after(self.at, Self::LASTS)
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
