//! The objects as this recovery sees them: only the fields that it judges by.

use std::fmt;

use jiff::Timestamp;
use salvor_api::Labels;
use salvor_api::names::repair::{CONDITION, REBOOT_CONDITION, reasons};

use super::progress::Progress;
use crate::ids::ResourceVersion;
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

/// A condition of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionView {
    /// Its type.
    pub kind: Box<str>,
    /// Its status.
    pub status: Status,
    /// Its reason.
    pub reason: Box<str>,
    /// Its lastTransitionTime.
    pub since: Option<Timestamp>,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// The node.
    pub node: NodeRef,
    /// The state that was seen.
    pub resource_version: ResourceVersion,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Its zone; empty if it has none.
    pub zone: Box<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its providerID; empty if it has none.
    pub provider_id: Box<str>,
    /// All its conditions.
    pub conditions: Vec<ConditionView>,
    /// The value of the annotation `salvor.dev/do-not-repair`.
    pub do_not_repair: Option<Box<str>>,
    /// The value of the annotation `karpenter.sh/do-not-repair`.
    pub karpenter_do_not_repair: Option<Box<str>>,
    /// The memory on the node; none if there is none or it cannot be read.
    pub progress: Option<Box<Progress>>,
    /// Why the memory on the node cannot be read, if it cannot.
    pub damage: Option<Box<str>>,
    /// Namespace and name of its Machine, as its annotations say.
    pub machine: Option<Box<(String, String)>>,
    /// The ID of its boot; empty if it does not say.
    pub boot_id: Box<str>,
    /// The value of the annotation `salvor.dev/reboot-done`.
    pub reboot_done: Option<Box<str>>,
    /// True if new pods are kept away.
    pub unschedulable: bool,
    /// Another recovery that acts on it.
    pub other_actor: Option<NodeActor>,
}

impl NodeView {
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&ConditionView> {
        self.conditions.iter().find(|condition| &*condition.kind == kind)
    }

    /// True if the two differ at most in what we write on a node ourselves: its state, our conditions and our memory.
    pub fn is_same_but_for_us(&self, other: &Self) -> bool {
        let of_others = |node: &Self| {
            let ours = [CONDITION, REBOOT_CONDITION];
            let mut node =
                Self { progress: None, resource_version: ResourceVersion::default(), ..node.clone() };
            node.conditions.retain(|condition| !ours.contains(&&*condition.kind));
            node
        };
        of_others(self) == of_others(other)
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
        self.progress.is_some() || self.damage.is_some() || self.our_conditions().next().is_some()
    }

    /// The NodePool of its label.
    pub fn pool(&self) -> Option<&str> {
        self.labels.get(salvor_api::names::repair::labels::NODE_POOL).filter(|pool| !pool.is_empty())
    }
}

/// The object that owns a node's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// The NodeClaim or Machine.
    pub object: ObjectRef,
    /// The state that was seen.
    pub resource_version: ResourceVersion,
    /// True if it is being deleted.
    pub deleting: bool,
    /// The NodePool or MachineDeployment that makes its replacement; empty if it has none.
    pub pool: String,
    /// The value of Karpenter's annotation with the time of the forced termination.
    pub termination: Option<String>,
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

/// The server's words when it refused to repair a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The words.
    pub words: String,
    /// When it is tried again.
    pub until: Timestamp,
}
