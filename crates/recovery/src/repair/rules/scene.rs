//! What the rules see: a node or a policy, with everything that its verdict depends on.

use jiff::Timestamp;

use crate::brake::Held;
use crate::objects::ObjectRef;
use crate::repair::counts::Survey;
use crate::repair::kept::Kept;
use crate::repair::member::Member;
use crate::repair::policy::Policy;
use crate::repair::status::Repair;

#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The policy's status lists the repair.
    Reserved(&'a Repair),
    /// The repair would be listed now. For dry runs and explanations.
    Planned(&'a Repair),
    /// The node has no turn.
    None,
}

impl<'a> Place<'a> {
    pub(super) fn repair(self) -> Option<&'a Repair> {
        match self {
            Self::Reserved(repair) | Self::Planned(repair) => Some(repair),
            Self::None => None,
        }
    }
}

/// A node with everything its verdict depends on.
pub struct Scene<'a> {
    pub member: Member<'a>,
    /// The policy that counts for the node.
    pub policy: Option<&'a Policy>,
    pub survey: Option<&'a Survey>,
    pub place: Place<'a>,
    /// The brake's last decision about this node.
    pub braked: Option<&'a Held>,
    /// The saved metadata of the machine's previous Node, which Salvor deleted.
    pub kept: Option<KeptBy<'a>>,
}

/// The saved metadata of a deleted Node, and the policy whose status holds it.
#[derive(Clone, Copy, Debug)]
pub struct KeptBy<'a> {
    pub policy: &'a Policy,
    pub kept: &'a Kept,
}

/// A policy with everything its verdict depends on.
pub struct PolicyScene<'a> {
    pub policy: &'a Policy,
    /// None if the policy selects nothing.
    pub survey: Option<&'a Survey>,
    /// The number of selected nodes for which an older policy counts, with the name of one such policy.
    pub overlap: Option<(usize, String)>,
    /// When this process last wrote the policy's status.
    pub written: Option<Timestamp>,
    /// The NodePool of a repair, by the UID of its node.
    pub pool_of: &'a dyn Fn(&Repair) -> Option<ObjectRef>,
}
