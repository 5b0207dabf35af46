//! Views of the objects: only the fields on which this recovery's decisions depend.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::repair::{CONDITION, REBOOT_CONDITION, labels, reasons};
use salvor_api::{Labelled, Labels};

use super::progress::Progress;
use crate::gate::Work;
use crate::ids::{NodeName, ResourceVersion};
use crate::objects::{Deletion, Kind, NodeRef, ObjectRef, PodPhase, PodRef};
use crate::one_actor::NodeActor;
use crate::proof::Proof;

pub static NODE_REPAIR_POLICY: Kind =
    Kind::known("salvor.dev", "v1alpha1", "NodeRepairPolicy", "noderepairpolicies");
pub static NODE_POOL: Kind = Kind::known("karpenter.sh", "v1", "NodePool", "nodepools");
pub static NODE_CLAIM: Kind = Kind::known("karpenter.sh", "v1", "NodeClaim", "nodeclaims");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    /// None for any other text.
    pub fn from_api(text: &str) -> Option<Self> {
        match text {
            "True" => Some(Self::True),
            "False" => Some(Self::False),
            "Unknown" => Some(Self::Unknown),
            _ => None,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Words {
    pub kind: Box<str>,
    pub status: Status,
    pub reason: Box<str>,
}

/// A condition of a node. Thousands of nodes have equal conditions except for the time, so `words` is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionView {
    words: Arc<Words>,
    /// Its lastTransitionTime.
    pub since: Option<Timestamp>,
}

impl ConditionView {
    pub fn new(words: impl Into<Arc<Words>>, since: Option<Timestamp>) -> Self {
        Self { words: words.into(), since }
    }
}

impl Deref for ConditionView {
    type Target = Words;

    fn deref(&self) -> &Words {
        &self.words
    }
}

impl DerefMut for ConditionView {
    /// Copy on write: changes only this condition, not others that share its words.
    fn deref_mut(&mut self) -> &mut Words {
        Arc::make_mut(&mut self.words)
    }
}

/// The label that distinguishes otherwise equal nodes.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The labels of a node. Thousands of nodes have the same labels except for the hostname, so the others are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// Empty if the label is missing or has no value.
    hostname: NodeName,
    others: Arc<Labels>,
}

impl NodeLabels {
    /// `share` returns an equal label set that is already kept, if there is one.
    pub fn new(all: &Labels, name: &NodeName, share: impl FnOnce(Labels) -> Arc<Labels>) -> Self {
        let hostname = match all.get(HOSTNAME).unwrap_or_default() {
            own if *name == *own => name.clone(),
            other => other.into(),
        };
        let is_other = |(key, _): &(&str, &str)| hostname.is_empty() || *key != HOSTNAME;
        let others = all.iter().filter(is_other).collect();
        Self { others: share(others), hostname }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        if key == HOSTNAME && !self.hostname.is_empty() {
            return Some(self.hostname.as_str());
        }
        self.others.get(key)
    }
}

impl Labelled for NodeLabels {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)
    }
}

/// Rare marks that concern the repair of a node. Most nodes have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMarks {
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<Box<str>>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<Box<str>>,
    /// Why the memory on the node cannot be read.
    pub damage: Option<Box<str>>,
    /// Namespace and name of its Machine.
    pub machine: Option<(Box<str>, Box<str>)>,
    /// The value of the annotation `salvor.dev/reboot-done`.
    pub reboot_done: Option<Box<str>>,
    pub deleting: Option<Timestamp>,
    /// What on the node proves that its machine is off, unless its kubelet renews its Lease.
    pub off: Option<Proof>,
}

impl NodeMarks {
    /// None if no mark is set.
    pub fn unless_none(self) -> Option<Box<Self>> {
        (self != NO_MARKS).then(|| Box::new(self))
    }
}

static NO_MARKS: NodeMarks = NodeMarks {
    do_not_repair: None,
    karpenter_do_not_repair: None,
    damage: None,
    machine: None,
    reboot_done: None,
    deleting: None,
    off: None,
};

#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    pub node: NodeRef,
    pub resource_version: ResourceVersion,
    pub created: Option<Timestamp>,
    /// Empty if it has none.
    pub zone: Arc<str>,
    pub labels: NodeLabels,
    /// Empty if it has none.
    pub provider_id: Box<str>,
    pub conditions: Vec<ConditionView>,
    /// None if the annotation is absent or cannot be read.
    pub progress: Option<Box<Progress>>,
    /// None for most nodes.
    pub marks: Option<Box<NodeMarks>>,
    /// Empty if the node does not report it.
    pub boot_id: Box<str>,
    /// The machine's ID from its firmware; empty if the node does not report it.
    pub system_uuid: Box<str>,
    pub unschedulable: bool,
    /// Another recovery that acts on the node.
    pub other_actor: Option<NodeActor>,
}

impl NodeView {
    pub fn marks(&self) -> &NodeMarks {
        self.marks.as_deref().unwrap_or(&NO_MARKS)
    }

    pub fn deleting(&self) -> Option<Timestamp> {
        self.marks().deleting
    }

    pub fn condition(&self, kind: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|condition| &*condition.kind == kind)
    }

    /// True if the two differ at most in what Salvor writes to a node: its resourceVersion, Salvor's conditions and the
    /// memory.
    pub fn is_same_but_for_us(&self, other: &Self) -> bool {
        // The destructuring makes a new field a compile error here.
        let Self {
            node,
            resource_version: _,
            created,
            zone,
            labels,
            provider_id,
            conditions,
            progress: _,
            marks,
            boot_id,
            system_uuid,
            unschedulable,
            other_actor,
        } = self;
        let is_of_others =
            |condition: &&ConditionView| ![CONDITION, REBOOT_CONDITION].contains(&&*condition.kind);
        *node == other.node
            && *created == other.created
            && *unschedulable == other.unschedulable
            && *marks == other.marks
            && *zone == other.zone
            && *labels == other.labels
            && *provider_id == other.provider_id
            && conditions.iter().filter(is_of_others).eq(other.conditions.iter().filter(is_of_others))
            && *boot_id == other.boot_id
            && *system_uuid == other.system_uuid
            && *other_actor == other.other_actor
    }

    pub fn is_cordoned_by_us(&self) -> bool {
        self.unschedulable && self.progress.as_deref().is_some_and(|progress| progress.cordoned)
    }

    /// Salvor's conditions on the node. A condition of the same type from another agent is excluded.
    pub fn our_conditions(&self) -> impl Iterator<Item = &'static str> {
        let own = self.condition(CONDITION).map(|_| CONDITION);
        let is_ours =
            |asked: &&ConditionView| [reasons::REBOOT_REQUESTED, reasons::REBOOTED].contains(&&*asked.reason);
        let reboot = self.condition(REBOOT_CONDITION).filter(is_ours).map(|_| REBOOT_CONDITION);
        own.into_iter().chain(reboot)
    }

    /// True if anything of Salvor's is on the node.
    pub fn has_traces(&self) -> bool {
        self.progress.is_some() || self.marks().damage.is_some() || self.our_conditions().next().is_some()
    }

    pub fn pool(&self) -> Option<&str> {
        self.labels.get(labels::NODE_POOL).filter(|pool| !pool.is_empty())
    }
}

/// The object that owns a node's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// A NodeClaim or a Machine.
    pub object: ObjectRef,
    pub resource_version: ResourceVersion,
    pub deleting: Option<Timestamp>,
    /// The NodePool or MachineDeployment that creates the replacement; empty if there is none.
    pub pool: Arc<str>,
    /// The value of Karpenter's annotation with the forced termination time.
    pub termination: Option<String>,
    /// The annotation's value before Salvor set it, empty if it was absent. None if Salvor did not set it.
    pub termination_before: Option<String>,
    /// True if the annotation that requests remediation is set.
    pub remediated: bool,
    /// A Cluster API annotation on the object that forbids its repair.
    pub veto: Option<&'static str>,
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<String>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<String>,
    /// Whether Karpenter reports it as initialized; none if Karpenter reports nothing.
    pub initialized: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    pub object: ObjectRef,
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<String>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Karpenter, through a NodeClaim.
    Claim(OwnerView),
    /// Cluster API, through a Machine.
    Machine(OwnerView),
    /// Nothing owns the node.
    Node,
    /// No backend can repair the node. The text says why.
    Missing(String),
}

impl Backend {
    pub fn owner(&self) -> Option<&OwnerView> {
        match self {
            Self::Claim(owner) | Self::Machine(owner) => Some(owner),
            Self::Node | Self::Missing(_) => None,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(owner) => write!(f, "Karpenter, {}", owner.object),
            Self::Machine(owner) => write!(f, "Cluster API, {}", owner.object),
            Self::Node => f.write_str("the Node itself"),
            Self::Missing(why) => f.write_str(why),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub pod: PodRef,
    pub resource_version: ResourceVersion,
    pub phase: PodPhase,
    pub deletion: Option<Deletion>,
    /// Why a drain does not evict the pod.
    pub stays: Option<Stays>,
    /// The facts that decide whether the pod may run twice.
    pub work: Work,
    /// True if the spec has a grace period of zero: a deletion then removes the pod from the API before its kubelet has
    /// ended it.
    pub without_grace: bool,
}

/// Why a drain does not evict a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// A mirror pod represents a static pod, which its kubelet runs.
    Mirror,
    /// Its DaemonSet would create it again on the same node.
    DaemonSet,
}

impl PodView {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// True if a drain waits for the pod to end.
    pub fn holds_a_drain(&self) -> bool {
        self.stays.is_none() && !self.has_ended()
    }
}

/// The pods that a drain has left on a node, without DaemonSet pods, static pods and pods that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Sorted by name.
    pub pods: Vec<PodView>,
}

/// A write that the API server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The server's message.
    pub words: String,
    /// When the write is retried.
    pub until: Timestamp,
}
