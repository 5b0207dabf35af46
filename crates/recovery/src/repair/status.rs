//! What is written down about a policy: the repairs that are under way, counts, and conditions.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::action::Action;
use super::kept::{self, Kept};
use super::progress::CLOCKS_DIFFER;
use super::relapse::{self, Replacements};
use crate::ids::{NodeName, Uid};
use crate::moments::after;

/// The status of a NodeRepairPolicy. Of a NodePool only the repairs, their count, the last replacements and what is wrong with its spec are kept, in an annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The generation on which it rests.
    pub observed_generation: i64,
    /// The nodes for which the policy counts.
    pub nodes: u32,
    /// Those that are not sick.
    pub healthy: u32,
    /// Those whose toleration runs.
    pub waiting: u32,
    /// Those whose repair is held.
    pub blocked: u32,
    /// Those under repair.
    pub repairing: u32,
    /// Repairs that are over.
    pub repaired: u64,
    /// The repairs under way: only these nodes are touched.
    pub repairs: Vec<Repair>,
    /// The last replacements by pool and condition.
    #[serde(deserialize_with = "relapse::read")]
    pub replacements: Vec<Replacements>,
    /// What stood on Nodes that were deleted lately.
    #[serde(deserialize_with = "kept::read")]
    pub deleted_nodes: Vec<Kept>,
    /// Conditions.
    pub conditions: Vec<PolicyCondition>,
    /// What is wrong with the spec of a NodePool, which has no condition to tell it.
    #[serde(skip)]
    pub problem: String,
    /// True if what was written down cannot be read, so that nobody knows what is under way.
    #[serde(skip)]
    pub damaged: bool,
}

/// A repair that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// The node's name.
    pub node: NodeName,
    /// The node's UID.
    pub uid: Uid,
    /// The UID of its NodeClaim or Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Uid>,
    /// The NodePool of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// What is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The condition that made it sick.
    #[serde(default)]
    pub condition: String,
    /// Since when it was sick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sick: Option<Timestamp>,
    /// When its repair was decided.
    pub since: Timestamp,
}

/// The end of a repair that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// The machine was replaced: its Node and its NodeClaim or Machine are gone.
    Replaced,
    /// The machine was rebooted, and its node is well.
    Rebooted,
    /// The Node is gone, and its machine, which nothing owns, was not touched.
    NodeGone,
}

/// A repair that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// The repair.
    #[serde(flatten)]
    pub repair: Repair,
    /// Its end.
    pub end: End,
}

/// A condition of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its status.
    pub status: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    #[serde(default)]
    pub message: String,
    /// Since when.
    pub last_transition_time: Timestamp,
    /// The generation on which it rests.
    #[serde(default)]
    pub observed_generation: i64,
}

/// The part of it that is kept on a NodePool.
#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct OnPool {
    repaired: u64,
    repairs: Vec<Repair>,
    #[serde(deserialize_with = "relapse::read", skip_serializing_if = "Vec::is_empty")]
    replacements: Vec<Replacements>,
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
}

impl PolicyStatus {
    /// Reads the status of a NodeRepairPolicy.
    pub fn read(status: Option<&Value>) -> Self {
        let read =
            status.filter(|status| !status.is_null()).map(|status| serde_json::from_value(status.clone()));
        match read {
            None => Self::default(),
            Some(Ok(status)) => status,
            Some(Err(_)) => Self { damaged: true, ..Self::default() },
        }
    }

    /// The status of an object that was created then. A repair that was decided before was not written down by us.
    #[must_use]
    pub fn of_object(self, created: Timestamp) -> Self {
        let is_absurd = |repair: &Repair| after(repair.since, CLOCKS_DIFFER) < created;
        if self.repairs.iter().any(is_absurd) { Self { damaged: true, ..Self::default() } } else { self }
    }

    /// Reads the annotation of a NodePool.
    pub fn read_annotation(text: Option<&str>) -> Self {
        let is_object = text.is_none_or(|text| text.trim_start().starts_with('{'));
        match text.map(serde_json::from_str::<OnPool>) {
            None => Self::default(),
            Some(_) if !is_object => Self { damaged: true, ..Self::default() },
            Some(Ok(OnPool { repaired, repairs, replacements, problem })) => {
                Self { repaired, repairs, replacements, problem, ..Self::default() }
            }
            Some(Err(_)) => Self { damaged: true, ..Self::default() },
        }
    }

    /// The annotation of a NodePool; none if there is nothing to keep.
    pub fn annotation(&self) -> Option<String> {
        let kept = OnPool {
            repaired: self.repaired,
            repairs: self.repairs.clone(),
            replacements: self.replacements.clone(),
            problem: self.problem.clone(),
        };
        let is_empty = self.repaired == 0
            && self.repairs.is_empty()
            && self.replacements.is_empty()
            && self.problem.is_empty();
        // Times and strings always have a JSON form.
        (!is_empty).then(|| serde_json::to_string(&kept).unwrap_or_default())
    }

    /// The repair of a node.
    pub fn repair_of(&self, uid: &Uid) -> Option<&Repair> {
        self.repairs.iter().find(|repair| repair.uid == *uid)
    }

    /// The condition of a type, or a new one since now.
    pub(super) fn condition(
        &self,
        kind: &str,
        holds: bool,
        reason: &str,
        message: String,
        generation: i64,
        now: Timestamp,
    ) -> PolicyCondition {
        let status = if holds { "True" } else { "False" };
        let before = self.conditions.iter().find(|before| before.kind == kind && before.status == status);
        PolicyCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: before.map_or(now, |before| before.last_transition_time),
            observed_generation: generation,
        }
    }
}
