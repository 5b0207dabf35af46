//! The input of the Job recovery: a Job's spec and status in the API's own form, and only the needed fields of pods.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::job::TRACKING_FINALIZER;
use salvor_api::{LabelSelector, Labels};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::unreadable::Unreadable;
use crate::ids::{NodeName, ResourceVersion, Uid};
use crate::objects::{JobRef, PodPhase, PodRef};

#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    pub job: Arc<JobRef>,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    pub deleting: bool,
    pub spec: JobSpec,
    pub status: JobStatus,
    /// The annotation with the used pod names, unparsed.
    pub used_names: Option<Box<str>>,
}

impl JobView {
    /// Drops what a finished Job does not need: there are many, and they stay for long.
    pub fn forget_its_work(&mut self) {
        self.used_names = None;
        self.spec.template = Template::default();
        self.spec.selector = LabelSelector::default();
        self.spec.success_policy = None;
        for condition in &mut self.status.conditions {
            condition.message = String::new();
        }
    }
}

/// The needed part of a Job's spec, field for field as in `batch/v1`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    pub parallelism: Option<i32>,
    pub completions: Option<i32>,
    pub completion_mode: CompletionMode,
    pub backoff_limit: Option<i32>,
    pub backoff_limit_per_index: Option<i32>,
    pub max_failed_indexes: Option<i32>,
    pub active_deadline_seconds: Option<i64>,
    pub ttl_seconds_after_finished: Option<i64>,
    pub suspend: bool,
    pub pod_replacement_policy: Option<PodReplacementPolicy>,
    pub pod_failure_policy: Option<PodFailurePolicy>,
    pub success_policy: Option<SuccessPolicy>,
    pub selector: LabelSelector,
    pub managed_by: Option<String>,
    pub template: Template,
}

impl JobSpec {
    /// With the API's default.
    pub fn parallelism(&self) -> u32 {
        count(self.parallelism.unwrap_or(1))
    }

    /// None for a work queue.
    pub fn completions(&self) -> Option<u32> {
        self.completions.map(count)
    }

    pub fn is_indexed(&self) -> bool {
        self.completion_mode == CompletionMode::Indexed
    }

    /// With the API's default.
    pub fn backoff_limit(&self) -> u32 {
        count(self.backoff_limit.unwrap_or(if self.backoff_limit_per_index.is_some() { i32::MAX } else { 6 }))
    }

    /// All indexes are below this.
    pub fn index_bound(&self) -> u32 {
        self.completions().unwrap_or(0)
    }
}

/// The API refuses negative numbers.
pub(super) fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CompletionMode {
    /// Any success counts.
    #[default]
    NonIndexed,
    /// Every index must succeed.
    Indexed,
    /// A mode that this version does not know.
    Unknown(String),
}

impl CompletionMode {
    /// The value in the API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::NonIndexed => "NonIndexed",
            Self::Indexed => "Indexed",
            Self::Unknown(mode) => mode,
        }
    }
}

impl<'de> Deserialize<'de> for CompletionMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("NonIndexed" | "") => Self::NonIndexed,
            Some("Indexed") => Self::Indexed,
            Some(other) => Self::Unknown(other.to_owned()),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum PodReplacementPolicy {
    /// As soon as it is being deleted or has failed.
    TerminatingOrFailed,
    /// Only once it has failed.
    Failed,
}

/// `spec.podFailurePolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    pub rules: Vec<PodFailureRule>,
}

/// The first rule that matches counts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFailureRule {
    pub action: FailureAction,
    pub on_exit_codes: Option<OnExitCodes>,
    #[serde(default, deserialize_with = "or_default")]
    pub on_pod_conditions: Vec<OnPodCondition>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureAction {
    /// The whole Job fails.
    FailJob,
    /// The pod's index fails.
    FailIndex,
    /// The failure does not count.
    Ignore,
    /// The failure counts as without a policy.
    Count,
}

impl fmt::Display for FailureAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnExitCodes {
    pub container_name: Option<String>,
    pub operator: ExitCodeOperator,
    #[serde(default)]
    pub values: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ExitCodeOperator {
    In,
    NotIn,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OnPodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default = "condition_true")]
    pub status: String,
}

fn condition_true() -> String {
    "True".to_owned()
}

/// `spec.successPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    pub rules: Vec<SuccessRule>,
}

/// The first rule that matches counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRule {
    pub succeeded_indexes: Option<String>,
    pub succeeded_count: Option<i32>,
}

/// The pod template as unparsed JSON: only the creation of a pod needs to parse it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(pub Arc<str>);

impl Default for Template {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl Template {
    /// True if containers that fail are restarted in place.
    pub fn restarts_on_failure(&self) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Glance {
            spec: Spec,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            restart_policy: String,
        }
        let glance: Glance = serde_json::from_str(&self.0).unwrap_or_default();
        glance.spec.restart_policy == "OnFailure"
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| Self(text.get().into()))
    }
}

/// A Job's status. Written whole: `None` removes a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    pub conditions: Vec<JobCondition>,
    pub start_time: Option<Timestamp>,
    pub completion_time: Option<Timestamp>,
    pub active: i32,
    pub succeeded: i32,
    pub failed: i32,
    pub terminating: Option<i32>,
    pub ready: Option<i32>,
    #[serde(deserialize_with = "or_default")]
    pub completed_indexes: String,
    pub failed_indexes: Option<String>,
    pub uncounted_terminated_pods: Option<Uncounted>,
}

fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl JobStatus {
    /// The condition of this type, if it is `True`.
    pub fn holds(&self, kind: &str) -> Option<&JobCondition> {
        self.conditions.iter().find(|c| c.kind == kind && c.status == "True")
    }

    /// The `Complete` or `Failed` condition, if the Job is finished.
    pub fn finished(&self) -> Option<&JobCondition> {
        self.holds("Complete").or_else(|| self.holds("Failed"))
    }
}

/// Pods that have ended, are listed in the status, and still have their finalizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uncounted {
    #[serde(deserialize_with = "or_default", serialize_with = "none_if_empty")]
    pub succeeded: BTreeSet<Uid>,
    #[serde(deserialize_with = "or_default", serialize_with = "none_if_empty")]
    pub failed: BTreeSet<Uid>,
}

/// Patching with an empty list leaves an empty list; only null removes it.
fn none_if_empty<S: Serializer>(uids: &BTreeSet<Uid>, serializer: S) -> Result<S::Ok, S::Error> {
    if uids.is_empty() { serializer.serialize_none() } else { uids.serialize(serializer) }
}

impl Uncounted {
    pub fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.failed.is_empty()
    }

    pub fn contains(&self, uid: &Uid) -> bool {
        self.succeeded.contains(uid) || self.failed.contains(uid)
    }

    pub fn len(&self) -> usize {
        self.succeeded.len() + self.failed.len()
    }
}

/// A condition of a Job, which any controller may have written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    pub last_probe_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub pod: PodRef,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    /// Whether its labels match its Job's selector.
    pub selected: Selected,
    pub phase: PodPhase,
    pub created: Timestamp,
    pub deletion: Option<Deletion>,
    /// The finalizer that keeps the pod until it is counted for good; none after that.
    pub tracking: Option<Tracking>,
    pub ready: Option<Ready>,
    /// The node to which it is bound.
    pub node: Option<NodeName>,
    /// From its annotation.
    pub index: Option<u32>,
    /// The number of failures of its index before this pod.
    pub earlier_failures: IndexFailures,
    /// The annotation with that number, if it cannot be read.
    pub unreadable: Option<Box<Unreadable>>,
    /// Restarts of all its containers.
    pub restarts: u32,
    /// When its last container ended, if all have.
    pub finished: Option<Timestamp>,
    /// Containers that failed, then init containers, with their exit codes.
    pub exit_codes: Vec<(String, i32)>,
    /// The status of each condition; stored only for pods that have failed or are being deleted.
    pub conditions: Vec<(String, String)>,
}

impl PodView {
    /// True if it is not yet counted for good.
    pub fn is_tracked(&self) -> bool {
        self.tracking.is_some()
    }

    pub fn tracked(&self) -> Option<(&PodRef, Tracking)> {
        self.tracking.map(|tracking| (&self.pod, tracking))
    }
}

/// Whether a selector matches a pod's labels. A selector never changes, so once a pod's Job is known, its labels, which
/// may be long, are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// Not checked yet.
    Unasked(Labels),
    Yes,
    No,
}

impl Selected {
    /// The stored result, or the result for this selector if there is none yet.
    pub fn by(&self, selector: &LabelSelector) -> bool {
        match self {
            Self::Unasked(labels) => selector.matches(labels),
            Self::Yes => true,
            Self::No => false,
        }
    }

    /// Stores the result for this selector, and drops the labels.
    pub fn ask(&mut self, selector: &LabelSelector) {
        *self = if self.by(selector) { Self::Yes } else { Self::No };
    }
}

/// A pod that no Job controls: one may adopt it, or it must lose our finalizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    pub pod: PodRef,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    /// Its labels, by which a Job claims it.
    pub labels: Labels,
    /// The finalizer that keeps the pod until it is counted for good.
    pub tracking: Option<Tracking>,
    /// True if a Job may adopt it: it has no controller and is not being deleted.
    pub adoptable: bool,
}

impl Stray {
    pub fn tracked(&self) -> Option<(&PodRef, Tracking)> {
        self.tracking.map(|tracking| (&self.pod, tracking))
    }
}

/// The finalizer that keeps a pod until it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    Ours,
    /// The finalizer of the built-in controller, where Salvor replaces it. Other replacements may use it too.
    BuiltIn,
}

impl Tracking {
    /// The tracking of a pod with these finalizers. The built-in controller's finalizer counts only where Salvor
    /// replaces it.
    pub fn of(finalizers: &[String], stands_in: bool) -> Option<Self> {
        let has = |tracking: &Self| finalizers.iter().any(|name| name == tracking.finalizer());
        [Self::Ours, Self::BuiltIn]
            .into_iter()
            .filter(|tracking| stands_in || *tracking == Self::Ours)
            .find(has)
    }

    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Ours => TRACKING_FINALIZER,
            Self::BuiltIn => "batch.kubernetes.io/job-tracking",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: the end of the grace period.
    pub timestamp: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace_seconds: i64,
}

/// A pod's `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub is_true: bool,
    pub since: Option<Timestamp>,
}

/// The failures of an index before a pod of it was created, from the pod's annotations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexFailures {
    /// Failures that count against `backoffLimitPerIndex`.
    pub counted: u32,
    /// Failures that the pod failure policy ignores.
    pub ignored: u32,
}

impl IndexFailures {
    pub fn total(self) -> u32 {
        self.counted.saturating_add(self.ignored)
    }
}
