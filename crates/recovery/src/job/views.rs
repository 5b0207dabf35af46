//! What the Job recovery looks at: a Job's spec and status in the API's own form, and of pods only what it judges by.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::job::TRACKING_FINALIZER;
use salvor_api::{LabelSelector, Labels};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::backoff::BackoffRecord;
use super::names::UsedNames;
use super::read_back::Unreadable;
use crate::ids::{NodeName, ResourceVersion, Uid};
use crate::objects::{JobRef, PodPhase, PodRef};

/// A Job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobView {
    /// Which Job.
    pub job: Arc<JobRef>,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Its spec.
    pub spec: JobSpec,
    /// Its status.
    pub status: JobStatus,
    /// The annotation with the names of its pods that are used, as it is.
    pub used_names: Option<Box<str>>,
}

impl JobView {
    /// Forgets what no Job needs that has come to its end: such Jobs are many, and stay for long.
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

/// A Job's spec, as far as it matters; field for field as in `batch/v1`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
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
    /// `parallelism`, with the API's default.
    pub fn parallelism(&self) -> u32 {
        count(self.parallelism.unwrap_or(1))
    }

    /// `completions`; none for a work queue.
    pub fn completions(&self) -> Option<u32> {
        self.completions.map(count)
    }

    /// True if every pod has an index.
    pub fn is_indexed(&self) -> bool {
        self.completion_mode == CompletionMode::Indexed
    }

    /// `backoffLimit`, with the API's default.
    pub fn backoff_limit(&self) -> u32 {
        count(self.backoff_limit.unwrap_or(if self.backoff_limit_per_index.is_some() { i32::MAX } else { 6 }))
    }

    /// Indexes are below this.
    pub fn index_bound(&self) -> u32 {
        self.completions().unwrap_or(0)
    }
}

/// The API refuses negative numbers.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// The completion mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CompletionMode {
    /// Any success counts.
    #[default]
    NonIndexed,
    /// Every index must succeed.
    Indexed,
    /// A mode that came after this program.
    Unknown(String),
}

impl CompletionMode {
    /// The API's word for it.
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

/// When a pod may be replaced.
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
#[allow(missing_docs)]
pub struct PodFailurePolicy {
    pub rules: Vec<PodFailureRule>,
}

/// One rule; the first that matches counts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct PodFailureRule {
    pub action: FailureAction,
    pub on_exit_codes: Option<OnExitCodes>,
    #[serde(default, deserialize_with = "or_default")]
    pub on_pod_conditions: Vec<OnPodCondition>,
}

/// The action on a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureAction {
    /// The whole Job has failed.
    FailJob,
    /// Its index has failed.
    FailIndex,
    /// Does not count.
    Ignore,
    /// Counts as without a policy.
    Count,
}

impl fmt::Display for FailureAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Matches by exit code.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct OnExitCodes {
    pub container_name: Option<String>,
    pub operator: ExitCodeOperator,
    #[serde(default)]
    pub values: Vec<i32>,
}

/// The operator that compares exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum ExitCodeOperator {
    In,
    NotIn,
}

/// Matches by pod condition.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
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
#[allow(missing_docs)]
pub struct SuccessPolicy {
    pub rules: Vec<SuccessRule>,
}

/// One rule; the first that matches counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct SuccessRule {
    pub succeeded_indexes: Option<String>,
    pub succeeded_count: Option<i32>,
}

/// The pod template, kept as the text that it came as: only a new pod needs to read it.
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

/// A Job's status. Written whole: what is none is taken away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
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

    /// The condition of the end, if the Job is finished.
    pub fn finished(&self) -> Option<&JobCondition> {
        self.holds("Complete").or_else(|| self.holds("Failed"))
    }
}

/// Pods that have ended, are written down, and still have their finalizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Uncounted {
    #[serde(deserialize_with = "or_default", serialize_with = "none_if_empty")]
    pub succeeded: BTreeSet<Uid>,
    #[serde(deserialize_with = "or_default", serialize_with = "none_if_empty")]
    pub failed: BTreeSet<Uid>,
}

/// A patch of an empty list leaves an empty list; only null takes it away.
fn none_if_empty<S: Serializer>(uids: &BTreeSet<Uid>, serializer: S) -> Result<S::Ok, S::Error> {
    if uids.is_empty() { serializer.serialize_none() } else { uids.serialize(serializer) }
}

impl Uncounted {
    /// True if nothing waits to be counted.
    pub fn is_empty(&self) -> bool {
        self.succeeded.is_empty() && self.failed.is_empty()
    }

    /// True if this pod waits to be counted, one way or the other.
    pub fn contains(&self, uid: &Uid) -> bool {
        self.succeeded.contains(uid) || self.failed.contains(uid)
    }

    /// The number that wait.
    pub fn len(&self) -> usize {
        self.succeeded.len() + self.failed.len()
    }
}

/// One condition of a Job, whoever wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
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

/// A pod of a Job, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Which pod.
    pub pod: PodRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// The match of its labels with its Job's selector.
    pub selected: Selected,
    /// Where it is in its life.
    pub phase: PodPhase,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it is being deleted: until when it has, and the grace that this includes.
    pub deletion: Option<Deletion>,
    /// The finalizer that keeps it until it is counted for good; none after that.
    pub tracking: Option<Tracking>,
    /// Its `Ready` condition.
    pub ready: Option<Ready>,
    /// The node to which it is bound.
    pub node: Option<NodeName>,
    /// The completion index in its annotation.
    pub index: Option<u32>,
    /// The number of failures of its index before it.
    pub earlier_failures: IndexFailures,
    /// The annotation that should tell that and cannot be read.
    pub unreadable: Option<Box<Unreadable>>,
    /// The number of restarts of its containers.
    pub restarts: u32,
    /// When its last container ended, if all have.
    pub finished: Option<Timestamp>,
    /// Containers that ended badly, then init containers, with their exit codes.
    pub exit_codes: Vec<(String, i32)>,
    /// The status of each of its conditions; kept of pods that have failed or are being deleted.
    pub conditions: Vec<(String, String)>,
}

impl PodView {
    /// True if it is not counted for good.
    pub fn is_tracked(&self) -> bool {
        self.tracking.is_some()
    }

    /// The pod and how it is tracked, if it is.
    pub fn tracked(&self) -> Option<(&PodRef, Tracking)> {
        self.tracking.map(|tracking| (&self.pod, tracking))
    }
}

/// Whether a selector matches a pod's labels. A selector never changes, so of a pod whose Job is known the labels need not
/// be kept: they may be long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// Not checked yet.
    Unasked(Labels),
    /// The selector matches.
    Yes,
    /// The selector does not match.
    No,
}

impl Selected {
    /// True if this selector does, if it was not asked before.
    pub fn by(&self, selector: &LabelSelector) -> bool {
        match self {
            Self::Unasked(labels) => selector.matches(labels),
            Self::Yes => true,
            Self::No => false,
        }
    }

    /// Asks this selector for good, and forgets the labels.
    pub fn ask(&mut self, selector: &LabelSelector) {
        *self = if self.by(selector) { Self::Yes } else { Self::No };
    }
}

/// A pod that no Job controls and that one may adopt, or that must lose our finalizer: a reference to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Which pod.
    pub pod: PodRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// Its labels, by which a Job claims it.
    pub labels: Labels,
    /// The finalizer that keeps it until it is counted for good.
    pub tracking: Option<Tracking>,
    /// True if a Job may adopt it: nobody else controls it, and it is not being deleted.
    pub adoptable: bool,
}

impl Stray {
    /// The pod and how it is tracked, if it is.
    pub fn tracked(&self) -> Option<(&PodRef, Tracking)> {
        self.tracking.map(|tracking| (&self.pod, tracking))
    }
}

/// Which finalizer keeps a pod until it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// Our own.
    Ours,
    /// That of the built-in controller, for which we stand in. Others that take its place may use it too.
    BuiltIn,
}

impl Tracking {
    /// The tracking of a pod with these finalizers. The built-in controller's finalizer counts only where we replace it.
    pub fn of(finalizers: &[String], stands_in: bool) -> Option<Self> {
        let has = |tracking: &Self| finalizers.iter().any(|name| name == tracking.finalizer());
        [Self::Ours, Self::BuiltIn]
            .into_iter()
            .filter(|tracking| stands_in || *tracking == Self::Ours)
            .find(has)
    }

    /// The finalizer's name.
    pub fn finalizer(self) -> &'static str {
        match self {
            Self::Ours => TRACKING_FINALIZER,
            Self::BuiltIn => "batch.kubernetes.io/job-tracking",
        }
    }
}

/// A pod's deletion mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: the end of the grace.
    pub timestamp: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace_seconds: i64,
}

/// A pod's `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// True if it is `True`.
    pub is_true: bool,
    /// When it last changed.
    pub since: Option<Timestamp>,
}

/// The number of failures of an index before a pod of it was created, as the pod's annotations say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexFailures {
    /// Failures that count against `backoffLimitPerIndex`.
    pub counted: u32,
    /// Failures that the pod failure policy ignores.
    pub ignored: u32,
}

impl IndexFailures {
    /// All of them.
    pub fn total(self) -> u32 {
        self.counted.saturating_add(self.ignored)
    }
}

/// What is remembered of a Job between two judgements. None of it is needed for the counts: all that a lost memory
/// costs is a little less, or a little more, patience.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Failures since the last success.
    pub backoff: BackoffRecord,
    /// When the status was last written.
    pub status_written: Option<Timestamp>,
    /// True if pods were made since then.
    pub made_pods: bool,
    /// Until when no pod is made after the API refused one.
    pub creation_paused_until: Option<Timestamp>,
    /// Until when no pod is deleted after the API refused to delete one.
    pub deletion_paused_until: Option<Timestamp>,
    /// Names of pods that somebody else has.
    pub taken_names: BTreeSet<String>,
    /// Names of its pods that were seen: also of those that are gone before that was written down.
    pub names: UsedNames,
    /// The event that told why nothing is done, so that it is not told at every look.
    pub told: Option<String>,
}
