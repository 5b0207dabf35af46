//! The status of an AppWrapper as the API has it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::names::conditions::RESOURCES_DEPLOYED;
use super::names::reasons::COMPONENT_CREATION_ERRORED;
pub use super::podsets::PodSet;
use crate::ids::NodeName;

/// `status.phase`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The controller has not handled it yet.
    #[default]
    Empty,
    /// Nothing of it is in the cluster.
    Suspended,
    /// Its components are being created.
    Resuming,
    /// Its components are created.
    Running,
    /// Its components are being deleted, to be created again.
    Resetting,
    /// Its components are being deleted because it is suspended.
    Suspending,
    Succeeded,
    Failed,
    Terminating,
    /// A phase that Salvor does not know.
    Unknown(String),
}

impl Phase {
    /// All known phases.
    pub const ALL: [Self; 9] = [
        Self::Empty,
        Self::Suspended,
        Self::Resuming,
        Self::Running,
        Self::Resetting,
        Self::Suspending,
        Self::Succeeded,
        Self::Failed,
        Self::Terminating,
    ];

    pub fn as_str(&self) -> &str {
        match self {
            Self::Empty => "",
            Self::Suspended => "Suspended",
            Self::Resuming => "Resuming",
            Self::Running => "Running",
            Self::Resetting => "Resetting",
            Self::Suspending => "Suspending",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
            Self::Unknown(phase) => phase,
        }
    }

    pub fn from_api(phase: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == phase)
            .unwrap_or_else(|| Self::Unknown(phase.into()))
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Empty { "Empty" } else { self.as_str() })
    }
}

impl Serialize for Phase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Phase {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|phase| Self::from_api(&phase))
    }
}

/// A condition like metav1.Condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    #[serde(default)]
    pub message: String,
    /// When `status` last changed.
    pub last_transition_time: Timestamp,
    /// Salvor never sets it, but keeps another writer's value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl Condition {
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    pub fn is_false(&self) -> bool {
        self.status == "False"
    }
}

/// The record of one component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ComponentStatus {
    /// Empty before its first creation.
    pub name: String,
    pub kind: String,
    pub api_version: String,
    /// The declared or inferred PodSets. Kueue reads them.
    pub pod_sets: Vec<PodSet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl ComponentStatus {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == kind)
    }

    /// The recorded name, if its object was created or may have been: a failed creation may have taken effect.
    pub fn name_in_use(&self) -> Option<&str> {
        let created = self
            .condition(RESOURCES_DEPLOYED)
            .is_some_and(|it| !it.is_false() || it.reason == COMPONENT_CREATION_ERRORED);
        Some(self.name.as_str()).filter(|name| created && !name.is_empty())
    }
}

/// The status of an AppWrapper. It is written as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppWrapperStatus {
    pub phase: Phase,
    /// The number of resets that count against the retry limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub resetting_count: i32,
    /// Conditions of other writers are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// One for each component, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub component_status: Vec<ComponentStatus>,
    /// Digests of what was admitted. Salvor's own field.
    #[serde(deserialize_with = "Admitted::read", skip_serializing_if = "Option::is_none")]
    pub admitted: Option<Admitted>,
    /// The last resets and the failure, oldest first. Salvor's own field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resets: Vec<ResetRecord>,
}

/// The version of the digest format. A record of another version is replaced, and not compared.
pub(super) const DIGEST_VERSION: u32 = 1;
/// The number of SHA-256 bytes kept. Finding two templates with the same prefix is infeasible.
pub(super) const DIGEST_BYTES: usize = 16;

/// What was admitted, as digests. Every field is written, even if empty: a merge patch keeps fields that it does not
/// name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Admitted {
    pub(super) version: u32,
    /// The label with the name of the creator; empty if there is none.
    pub(super) user: String,
    /// The label with the UID of the creator; empty if there is none.
    pub(super) userid: String,
    pub(super) components: Vec<AdmittedComponent>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AdmittedComponent {
    pub(super) template: String,
    /// Empty if no PodSets are declared.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) pod_sets: String,
}

impl Admitted {
    /// False for a record of another version, or with values that Salvor never writes.
    fn is_readable(&self) -> bool {
        let is_digest = |text: &str| {
            text.len() == 2 * DIGEST_BYTES && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_empty_or_digest = |text: &str| text.is_empty() || is_digest(text);
        self.version == DIGEST_VERSION
            && is_empty_or_digest(&self.user)
            && is_empty_or_digest(&self.userid)
            && self.components.iter().all(|it| is_digest(&it.template) && is_empty_or_digest(&it.pod_sets))
    }

    /// An unreadable record counts as none, and is written again.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self::deserialize(value).ok().filter(Self::is_readable))
    }
}

/// One reset, or the final failure, in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetRecord {
    /// When it was decided.
    pub time: Option<Timestamp>,
    /// The resulting phase: `Resetting` or `Failed`.
    pub phase: Phase,
    /// The reason of the condition `Unhealthy`.
    pub cause: String,
    pub message: String,
    /// True if it counted against the retry limit.
    pub counted: bool,
    /// The affected pods, at most [`EVIDENCE`](super::resets::EVIDENCE) of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodRecord>,
    /// The affected nodes, at most [`EVIDENCE`](super::resets::EVIDENCE) of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// Exit codes of the affected pods, including pods that are not listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<i32>,
}

/// A pod affected by a reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodRecord {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The reason of its disruption, or else its phase. Distinguishes a preempted pod from a crashed one.
    pub reason: String,
    /// The first exit code of its containers that is not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl AppWrapperStatus {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == kind)
    }

    /// True if the condition exists and is `True`.
    pub fn holds(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(Condition::is_true)
    }

    /// The number of expected pods of all components together.
    pub fn expected_pods(&self) -> usize {
        self.component_status.iter().flat_map(|it| &it.pod_sets).map(PodSet::expected).sum()
    }
}
