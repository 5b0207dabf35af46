//! The Job of a pod, as far as zombie recovery reads it: how it counts its pods, and when it fails.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{annotations, conditions, job};
use serde::{Deserialize, Serialize};

use crate::ids::{ResourceVersion, Uid};
use crate::job::{
    FailureAction, Indexes, JobView, PodFailurePolicy, PodReplacementPolicy, Uncounted, failure_rule,
};
use crate::moments::after;
use crate::objects::{JobRef, PodPhase};

/// How often a Job that would fail, or that cannot be read, is read again.
pub(super) const READ_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// How much of an unreadable value is shown.
const LONGEST_SHOWN: usize = 64;

/// The Job that controls a pod, and the facts that show how it counts the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfJob {
    /// Which Job.
    pub job: JobRef,
    /// The pod as its Job counts it.
    pub member: Arc<Member>,
    /// What was read of the Job.
    pub sight: JobSight,
    /// All pods of that Job that may be recovered, including this one; only looked up when it is due.
    pub family: Vec<Relative>,
    /// True if the event about a wait for the Job is recorded, or not needed.
    pub told: bool,
}

/// A pod as its Job counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The completion index.
    pub index: Option<u32>,
    /// Failures of that index before this pod that count.
    pub earlier_failures: u32,
    /// True if it has the finalizer of its Job's controller: it is not counted for good.
    pub tracked: bool,
    /// Containers that failed, then init containers, with their exit codes.
    pub exit_codes: Vec<(String, i32)>,
    /// The type and status of each of its conditions.
    pub conditions: Vec<(String, String)>,
}

/// A pod of the same Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relative {
    /// Which pod.
    pub uid: Uid,
    /// The pod as its Job counts it.
    pub member: Arc<Member>,
    /// How far its recovery is.
    pub stage: Stage,
    /// True if it is being deleted.
    pub is_deleted: bool,
}

/// The progress of a pod's recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It may still end by itself.
    Waits,
    /// It is given up now.
    Due,
    /// It has ended.
    Ended(PodPhase),
}

/// The last read of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JobSight {
    /// Nothing yet.
    #[default]
    Unread,
    /// The Job does not exist any more.
    Gone,
    /// The Job, or its content, cannot be read.
    Unreadable {
        /// Why.
        error: Box<str>,
        /// When that was.
        at: Timestamp,
    },
    /// The Job.
    Seen {
        /// What matters of it.
        job: Arc<JobFacts>,
        /// When it was read.
        at: Timestamp,
    },
}

impl JobSight {
    /// `raised` is the annotation about a raised limit.
    pub fn of(job: &JobView, raised: Option<&str>, at: Timestamp) -> Self {
        match JobFacts::of(job, raised) {
            Ok(job) => Self::Seen { job: Arc::new(job), at },
            Err(error) => Self::Unreadable { error: error.into(), at },
        }
    }

    /// When to read it again although nothing requests that now.
    pub fn outdated_at(&self) -> Option<Timestamp> {
        match self {
            Self::Unreadable { at, .. } | Self::Seen { at, .. } => Some(after(*at, READ_EVERY)),
            Self::Unread | Self::Gone => None,
        }
    }
}

/// The fields of a Job that say when it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFacts {
    /// The resourceVersion that the decision rests on.
    pub(super) resource_version: ResourceVersion,
    /// Why no pod can make it fail any more, if so.
    pub(super) settled: Option<&'static str>,
    /// True if it counts a pod as soon as that is being deleted.
    pub(super) counts_at_deletion: bool,
    pub(super) managed_by: Option<String>,
    pub(super) failure_policy: Option<PodFailurePolicy>,
    pub(super) backoff_limit: u32,
    /// Failures that are in its status.
    pub(super) failed: u32,
    pub(super) uncounted: Uncounted,
    pub(super) indexes: Option<IndexLimits>,
    /// Indexes are below this, if the Job has any.
    pub(super) index_bound: Option<u32>,
    pub(super) raised: Raised,
}

/// The limits of a Job with `backoffLimitPerIndex`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexLimits {
    pub(super) limit: u32,
    pub(super) max_failed: Option<u32>,
    pub(super) failed: Indexes,
    pub(super) completed: Indexes,
}

/// The record of a raised limit, as the annotation has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Raised {
    /// How much the limit was raised in total.
    pub(super) raised_by: u32,
    /// The pods for which it was raised and that were not seen to have ended. The decision on the first one raised it.
    pub(super) pods: Vec<Uid>,
}

impl Raised {
    fn read(annotation: Option<&str>) -> Result<Self, String> {
        let Some(text) = annotation else { return Ok(Self::default()) };
        serde_json::from_str(text).map_err(|_| {
            let shown: String = text.chars().take(LONGEST_SHOWN).collect();
            format!(
                "its annotation {} is {shown:?}, which is not what Salvor writes there; remove it",
                annotations::BACKOFF_LIMIT_RAISED
            )
        })
    }
}

impl JobFacts {
    fn of(view: &JobView, raised: Option<&str>) -> Result<Self, String> {
        let JobView { spec, status, .. } = view;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let bound = spec.is_indexed().then(|| spec.index_bound());
        let indexes = |field: &str, text: &str| {
            Indexes::parse(text, spec.index_bound()).map_err(|error| format!("its {field}: {error}"))
        };
        let limits = |limit| -> Result<IndexLimits, String> {
            let failed = status.failed_indexes.as_deref().unwrap_or_default();
            Ok(IndexLimits {
                limit: count(limit),
                max_failed: spec.max_failed_indexes.map(count),
                failed: indexes("status.failedIndexes", failed)?,
                completed: indexes("status.completedIndexes", &status.completed_indexes)?,
            })
        };
        let holds = |kind| status.holds(kind).is_some();
        let counts_at_deletion = spec.pod_failure_policy.is_none()
            && spec.pod_replacement_policy != Some(PodReplacementPolicy::Failed);
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let failed =
            count(status.failed).saturating_add(u32::try_from(uncounted.failed.len()).unwrap_or(u32::MAX));
        let settled = if status.finished().is_some() || holds(job::conditions::SUCCESS_CRITERIA_MET) {
            Some("the Job is finished")
        } else if view.deleting {
            Some("the Job is being deleted")
        } else if holds(job::conditions::FAILURE_TARGET) || failed > spec.backoff_limit() {
            Some("the Job fails in any case")
        } else {
            None
        };
        Ok(Self {
            resource_version: view.resource_version.clone(),
            settled,
            counts_at_deletion,
            managed_by: spec.managed_by.clone(),
            failure_policy: spec.pod_failure_policy.clone(),
            backoff_limit: spec.backoff_limit(),
            failed,
            uncounted,
            indexes: spec.backoff_limit_per_index.map(limits).transpose()?,
            index_bound: bound,
            raised: Raised::read(raised)?,
        })
    }

    /// The state that was read.
    pub fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }

    /// The rule of the Job's podFailurePolicy that will match a pod once it is marked.
    pub(super) fn rule(&self, member: &Member) -> Option<FailureAction> {
        let policy = self.failure_policy.as_ref()?;
        let has = |kind: &str, status: &str| {
            let set_by_us = [conditions::DISRUPTION_TARGET, conditions::KUEUE_FAILURE_RECOVERY];
            if set_by_us.contains(&kind) {
                return status == "True";
            }
            member.conditions.iter().any(|(k, s)| k == kind && s == status)
        };
        failure_rule(policy, &member.exit_codes, has)
    }

    /// True if the Job will count this pod as failed, and has not yet.
    pub(super) fn counts(&self, pod: &Relative) -> bool {
        let fails = match pod.stage {
            Stage::Due => true,
            Stage::Ended(phase) => phase == PodPhase::Failed,
            Stage::Waits => false,
        };
        let has_a_place = self.index_bound.is_none_or(|bound| pod.member.index.is_some_and(|i| i < bound));
        fails
            && !(self.counts_at_deletion && pod.is_deleted)
            && has_a_place
            && pod.member.tracked
            && !self.uncounted.contains(&pod.uid)
            && self.rule(&pod.member) != Some(FailureAction::Ignore)
    }
}

/// Why a Job would fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doom {
    /// More pods fail than its limit allows.
    Limit {
        /// The failures, including the pods that are given up now.
        failures: u32,
        /// Its `backoffLimit`.
        limit: u32,
    },
    /// An index fails for good, and its limit cannot be raised.
    Index {
        /// The index.
        index: u32,
        /// Its `backoffLimitPerIndex`.
        limit: u32,
        /// The failed indexes and `maxFailedIndexes`, if that is exceeded, so that the whole Job ends at once.
        exceeded: Option<(u32, u32)>,
    },
    /// A rule of its podFailurePolicy matches a disrupted pod.
    Rule(FailureAction),
}

impl fmt::Display for Doom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { failures, limit } => {
                write!(f, "{failures} pods would count as failed, and its backoffLimit is {limit}")
            }
            Self::Index { index, limit, exceeded } => {
                write!(
                    f,
                    "index {index} would fail for good, and its backoffLimitPerIndex of {limit} cannot be raised"
                )?;
                exceeded.map_or(Ok(()), |(failed, max)| {
                    write!(f, "; with {failed} failed indexes and maxFailedIndexes {max} the whole Job ends")
                })
            }
            Self::Rule(action) => {
                write!(f, "a rule of its podFailurePolicy matches with the action {action}")
            }
        }
    }
}
