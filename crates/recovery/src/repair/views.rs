//! The objects as this recovery sees them: only the fields that it judges by.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::repair::{CONDITION, REBOOT_CONDITION, labels, reasons};
use salvor_api::{Labelled, Labels};

use super::pods::PodView;
use super::progress::Progress;
use crate::gate::{Machine, Proof};
use crate::ids::{NodeName, ResourceVersion};
use crate::objects::{Kind, NodeRef, ObjectRef};
use crate::one_actor::NodeActor;

/// NodeRepairPolicies.
pub static NODE_REPAIR_POLICY: Kind =
    Kind::known("salvor.dev", "v1alpha1", "NodeRepairPolicy", "noderepairpolicies");
/// Karpenter's NodePools.
pub static NODE_POOL: Kind = Kind::known("karpenter.sh", "v1", "NodePool", "nodepools");
/// Karpenter's NodeClaims.
pub static NODE_CLAIM: Kind = Kind::known("karpenter.sh", "v1", "NodeClaim", "nodeclaims");

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    /// Reads it as the API writes it; an absent one is none.
    pub fn from_api(text: &str) -> Option<Self> {
        match text {
            "True" => Some(Self::True),
            "False" => Some(Self::False),
            "Unknown" => Some(Self::Unknown),
            _ => None,
        }
    }

    /// As the API writes it.
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

/// The words of a condition: all of it but its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Words {
    /// Its type.
    pub kind: Box<str>,
    /// Its status.
    pub status: Status,
    /// Its reason.
    pub reason: Box<str>,
}

/// A condition of a node. Thousands of nodes have conditions of the same words, so these can be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionView {
    words: Arc<Words>,
    /// Its lastTransitionTime.
    pub since: Option<Timestamp>,
}

impl ConditionView {
    /// A condition of these words.
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
    /// What is changed is this condition, and none that has the same words.
    fn deref_mut(&mut self) -> &mut Words {
        Arc::make_mut(&mut self.words)
    }
}

/// The label in which nodes that are otherwise alike differ.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The labels of a node. But for the hostname, thousands of nodes have the same, so these can be shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// Empty if it is not among them, or has no value.
    hostname: NodeName,
    others: Arc<Labels>,
}

impl NodeLabels {
    /// The labels of the node of this name. `share` finds equal ones that are kept already.
    pub fn new(all: &Labels, name: &NodeName, share: impl FnOnce(Labels) -> Arc<Labels>) -> Self {
        let hostname = match all.get(HOSTNAME).unwrap_or_default() {
            own if *name == *own => name.clone(),
            other => other.into(),
        };
        let is_other = |(key, _): &(&str, &str)| hostname.is_empty() || *key != HOSTNAME;
        let others = all.iter().filter(is_other).collect();
        Self { others: share(others), hostname }
    }

    /// The value of this label.
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

/// What concerns the repair of a node, and most nodes do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMarks {
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<Box<str>>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<Box<str>>,
    /// Why the memory on the node cannot be read, if it cannot.
    pub damage: Option<Box<str>>,
    /// Namespace and name of its Machine.
    pub machine: Option<(Box<str>, Box<str>)>,
    /// The value of the annotation `salvor.dev/reboot-done`.
    pub reboot_done: Option<Box<str>>,
    /// Since when it is being deleted.
    pub deleting: Option<Timestamp>,
    /// The taint that proves that its machine is off.
    pub off: Option<Box<str>>,
}

impl NodeMarks {
    /// These, unless there are none.
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

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// The node.
    pub node: NodeRef,
    /// The state that was seen.
    pub resource_version: ResourceVersion,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its zone; empty if it has none.
    pub zone: Arc<str>,
    /// Its labels.
    pub labels: NodeLabels,
    /// Its providerID; empty if it has none.
    pub provider_id: Box<str>,
    /// All its conditions.
    pub conditions: Vec<ConditionView>,
    /// The memory on the node; none if there is none or it cannot be read.
    pub progress: Option<Box<Progress>>,
    /// What most nodes do not have.
    pub marks: Option<Box<NodeMarks>>,
    /// The ID of its boot; empty if it does not say.
    pub boot_id: Box<str>,
    /// The ID of its machine, by the firmware; empty if it does not say.
    pub system_uuid: Box<str>,
    /// True if new pods are kept away.
    pub unschedulable: bool,
    /// Another recovery that acts on it.
    pub other_actor: Option<NodeActor>,
}

impl NodeView {
    /// What most nodes do not have.
    pub fn marks(&self) -> &NodeMarks {
        self.marks.as_deref().unwrap_or(&NO_MARKS)
    }

    /// What is known of its machine.
    pub(super) fn machine(&self) -> Machine {
        match &self.marks().off {
            Some(taint) => Machine::Off(Proof::Taint(taint.to_string())),
            None => Machine::MayRun,
        }
    }

    /// Since when it is being deleted.
    pub fn deleting(&self) -> Option<Timestamp> {
        self.marks().deleting
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|condition| &*condition.kind == kind)
    }

    /// True if the two differ at most in what we write on a node ourselves: its state, our conditions and our memory.
    pub fn is_same_but_for_us(&self, other: &Self) -> bool {
        // A field that is added must be thought of here.
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

    /// True if we keep new pods away from it.
    pub fn is_cordoned_by_us(&self) -> bool {
        self.unschedulable && self.progress.as_deref().is_some_and(|progress| progress.cordoned)
    }

    /// Our conditions on it, but not one of another's agent that has the same type.
    pub fn our_conditions(&self) -> impl Iterator<Item = &'static str> {
        let own = self.condition(CONDITION).map(|_| CONDITION);
        let is_ours =
            |asked: &&ConditionView| [reasons::REBOOT_REQUESTED, reasons::REBOOTED].contains(&&*asked.reason);
        let reboot = self.condition(REBOOT_CONDITION).filter(is_ours).map(|_| REBOOT_CONDITION);
        own.into_iter().chain(reboot)
    }

    /// True if anything of ours is on it.
    pub fn has_traces(&self) -> bool {
        self.progress.is_some() || self.marks().damage.is_some() || self.our_conditions().next().is_some()
    }

    /// The NodePool of its label.
    pub fn pool(&self) -> Option<&str> {
        self.labels.get(labels::NODE_POOL).filter(|pool| !pool.is_empty())
    }
}

/// The object that owns a node's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// The NodeClaim or Machine.
    pub object: ObjectRef,
    /// The state that was seen.
    pub resource_version: ResourceVersion,
    /// Since when it is being deleted.
    pub deleting: Option<Timestamp>,
    /// The NodePool or MachineDeployment that makes its replacement; empty if it has none.
    pub pool: Arc<str>,
    /// The value of Karpenter's annotation with the time of the forced termination.
    pub termination: Option<String>,
    /// The value that this annotation had before we set it, empty if it was not there; none if we did not set it.
    pub termination_before: Option<String>,
    /// True if the annotation that asks for its remediation is there.
    pub remediated: bool,
    /// An annotation of Cluster API on it that forbids its repair.
    pub veto: Option<&'static str>,
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<String>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<String>,
    /// Karpenter's word on its initialization; none if it says nothing.
    pub initialized: Option<bool>,
}

/// A NodePool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// The NodePool.
    pub object: ObjectRef,
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<String>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<String>,
}

/// The backend that repairs a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Karpenter, through a NodeClaim.
    Claim(OwnerView),
    /// Cluster API, through a Machine.
    Machine(OwnerView),
    /// Nothing owns the node.
    Node,
    /// None: the reason.
    Missing(String),
}

impl Backend {
    /// The owner of the machine.
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

/// The pods that a drain has left on a node. Those of DaemonSets, static pods and pods that have ended are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The pods, in the order of their names.
    pub pods: Vec<PodView>,
}

/// The server's words when it refused to repair a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The words.
    pub words: String,
    /// When it is tried again.
    pub until: Timestamp,
}
