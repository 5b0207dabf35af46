//! The status of a policy: the repairs under way, counts, and conditions.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::action::Action;
use super::kept::{self, Kept};
use super::progress::CLOCKS_DIFFER;
use crate::ids::{NodeName, Uid};
use crate::moments::after;

/// The status of a NodeRepairPolicy. For a NodePool, an annotation holds only the repairs, their count, the last
/// replacements and the errors in its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    pub observed_generation: i64,
    /// The nodes for which this policy counts.
    pub nodes: u32,
    /// Nodes that are not sick.
    pub healthy: u32,
    /// Sick nodes whose toleration is not over.
    pub waiting: u32,
    pub blocked: u32,
    pub repairing: u32,
    /// The number of repairs that are over.
    pub repaired: u64,
    /// The repairs under way. Salvor touches only these nodes.
    pub repairs: Vec<Repair>,
    /// The last replacements by pool and condition.
    #[serde(deserialize_with = "read_replacements")]
    pub replacements: Vec<Replacements>,
    /// The metadata of Nodes that Salvor deleted recently.
    #[serde(deserialize_with = "kept::read")]
    pub deleted_nodes: Vec<Kept>,
    pub conditions: Vec<PolicyCondition>,
    /// The errors in the spec of a NodePool, which has no condition to report them.
    #[serde(skip)]
    pub problem: String,
    /// True if the status cannot be read, so it is unknown what is under way.
    #[serde(skip)]
    pub damaged: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    pub node: NodeName,
    pub uid: Uid,
    /// The UID of the NodeClaim or Machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Uid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The condition that made the node sick.
    #[serde(default)]
    pub condition: String,
    /// Since when the node was sick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sick: Option<Timestamp>,
    /// When the repair was decided.
    pub since: Timestamp,
}

/// The last replacements of nodes of one pool for one condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replacements {
    /// Empty for nodes without a pool.
    pub pool: String,
    /// The type of the condition.
    pub condition: String,
    /// When the first replacement was decided.
    pub first: Timestamp,
    /// When the last replacement was decided.
    pub last: Timestamp,
    /// How many times one node was tried again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Entries that cannot be read are dropped: losing them must not block a repair.
fn read_replacements<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Replacements>, D::Error> {
    let all = match Value::deserialize(from)? {
        Value::Array(all) => all,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Vec::new(),
    };
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// The machine was replaced: its Node and its NodeClaim or Machine are gone.
    Replaced,
    /// The machine was rebooted, and its node is healthy.
    Rebooted,
    /// The Node is gone. Nothing owns its machine, which was not touched.
    NodeGone,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ended {
    #[serde(flatten)]
    pub repair: Repair,
    pub end: End,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    #[serde(default)]
    pub message: String,
    pub last_transition_time: Timestamp,
    #[serde(default)]
    pub observed_generation: i64,
}

/// The part of the status that a NodePool's annotation holds.
#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct OnPool {
    repaired: u64,
    repairs: Vec<Repair>,
    #[serde(deserialize_with = "read_replacements", skip_serializing_if = "Vec::is_empty")]
    replacements: Vec<Replacements>,
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
}

impl PolicyStatus {
    pub fn read(status: Option<&Value>) -> Self {
        let read =
            status.filter(|status| !status.is_null()).map(|status| serde_json::from_value(status.clone()));
        match read {
            None => Self::default(),
            Some(Ok(status)) => status,
            Some(Err(_)) => Self { damaged: true, ..Self::default() },
        }
    }

    /// Marks the status as damaged if a repair was decided before the object was created: Salvor did not write that.
    #[must_use]
    pub fn of_object(self, created: Timestamp) -> Self {
        let is_absurd = |repair: &Repair| after(repair.since, CLOCKS_DIFFER) < created;
        if self.repairs.iter().any(is_absurd) { Self { damaged: true, ..Self::default() } } else { self }
    }

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

    /// None if there is nothing to keep.
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
        // Times and strings always serialize to JSON.
        (!is_empty).then(|| serde_json::to_string(&kept).unwrap_or_default())
    }

    pub fn repair_of(&self, uid: &Uid) -> Option<&Repair> {
        self.repairs.iter().find(|repair| repair.uid == *uid)
    }

    /// The condition of this type. Its lastTransitionTime stays if the status is unchanged.
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
