//! Decides whether a Job fails because its lost pods become `Failed`, and what is done about that first.
//!
//! A Job counts failed pods, and fails for good past its limit, together with all of its healthy pods. Without a
//! recovery it would only have waited.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::LostPods;
use salvor_api::names::{annotations, conditions, events, job, reasons};
use serde::{Deserialize, Serialize};

use super::policy::ZombiePolicy;
use super::reasons::PodWhy;
use super::steps::Step;
use super::views::PodView;
use crate::event::{EventNote, EventType};
use crate::ids::{ResourceVersion, Uid};
use crate::job::{
    FailureAction, Indexes, JobView, PodFailurePolicy, PodReplacementPolicy, Uncounted, failure_rule,
};
use crate::moments::after;
use crate::objects::{JobRef, PodPhase};
use crate::verdict::{Inquiry, Verdict};

/// How often a Job that would fail, or that cannot be read, is read again.
const READ_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// How long a requested read of a Job may take before it is requested again.
const READ_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The decision on one pod raises the limit for all. The other pods are decided on again this soon.
const RAISED_WITHIN: SignedDuration = SignedDuration::from_secs(1);
/// Pods that the record of a raised limit names at once: all annotations of an object have 256 KiB.
const RECORDED_AT_ONCE: usize = 500;
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
    /// All pods of that Job that are being deleted and may be recovered, including this one; only looked up when it is
    /// due.
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
    resource_version: ResourceVersion,
    /// Why no pod can make it fail any more, if so.
    settled: Option<&'static str>,
    managed_by: Option<String>,
    failure_policy: Option<PodFailurePolicy>,
    backoff_limit: u32,
    /// Failures that are in its status.
    failed: u32,
    uncounted: Uncounted,
    indexes: Option<IndexLimits>,
    /// Indexes are below this, if the Job has any.
    index_bound: Option<u32>,
    raised: Raised,
}

/// The limits of a Job with `backoffLimitPerIndex`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexLimits {
    limit: u32,
    max_failed: Option<u32>,
    failed: Indexes,
    completed: Indexes,
}

/// The record of a raised limit, as the annotation has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Raised {
    /// By how much in all.
    raised_by: u32,
    /// The pods for which it was raised and that were not seen to have ended. The decision on the first one raised it.
    pods: Vec<Uid>,
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
        } else if counts_at_deletion {
            Some("the Job counts pods when they are deleted (podReplacementPolicy)")
        } else {
            None
        };
        Ok(Self {
            resource_version: view.resource_version.clone(),
            settled,
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
    fn rule(&self, member: &Member) -> Option<FailureAction> {
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
    fn counts(&self, pod: &Relative) -> bool {
        let fails = match pod.stage {
            Stage::Due => true,
            Stage::Ended(phase) => phase == PodPhase::Failed,
            Stage::Waits => false,
        };
        let has_a_place = self.index_bound.is_none_or(|bound| pod.member.index.is_some_and(|i| i < bound));
        fails
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

/// What happens to a Job if a pod is marked now.
enum Outlook {
    /// It continues, or ends anyway.
    Unharmed(String),
    Falls(Doom),
}

/// What happens to the Job if this pod, and all others that are given up now, are marked.
fn outlook(facts: &JobFacts, pod: &PodView, of: &OfJob, policy: &ZombiePolicy) -> Outlook {
    let unharmed = |why: &str| Outlook::Unharmed(why.to_owned());
    if let Some(settled) = facts.settled {
        return unharmed(settled);
    }
    let rule = facts.rule(&of.member);
    match rule {
        Some(FailureAction::Ignore) => return unharmed("its podFailurePolicy ignores the failure"),
        Some(action @ (FailureAction::FailJob | FailureAction::FailIndex)) => {
            return Outlook::Falls(Doom::Rule(action));
        }
        Some(FailureAction::Count) | None => {}
    }
    if rule.is_none() && policy.job_ignores_disrupted(facts.managed_by.as_deref()) {
        return unharmed("job.disruptedPods is Ignore");
    }
    let me = Relative { uid: pod.pod.uid.clone(), member: of.member.clone(), stage: Stage::Due };
    if !facts.counts(&me) {
        return unharmed("the Job does not count the pod, or has counted it");
    }
    if let Some((index, limits)) = of.member.index.zip(facts.indexes.as_ref()) {
        let settled = limits.failed.contains(index) || limits.completed.contains(index);
        if !settled && of.member.earlier_failures >= limits.limit {
            let failed = limits.failed.len().saturating_add(1);
            let exceeded = limits.max_failed.filter(|max| failed > *max).map(|max| (failed, max));
            return Outlook::Falls(Doom::Index { index, limit: limits.limit, exceeded });
        }
    }
    let given_up: BTreeSet<&Uid> =
        of.family.iter().filter(|relative| facts.counts(relative)).map(|relative| &relative.uid).collect();
    let others = given_up.iter().filter(|uid| **uid != &pod.pod.uid).count();
    let more = u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
    let (failures, limit) = (facts.failed.saturating_add(more), facts.backoff_limit);
    if failures > limit {
        return Outlook::Falls(Doom::Limit { failures, limit });
    }
    Outlook::Unharmed(format!("{failures} pods would count as failed, and backoffLimit is {limit}"))
}

/// Checks what happens to the pod's Job. Returns the event about a raised limit that belongs to this pod, if any.
///
/// # Errors
/// The step to do first, or the wait.
pub(super) fn ask_the_job(
    ask: &mut Inquiry,
    pod: &PodView,
    policy: &ZombiePolicy,
    now: Timestamp,
) -> Result<Option<Step>, Verdict<PodWhy, Step>> {
    const QUESTION: &str = "Does its Job survive that?";
    let Some(of) = &pod.job else { return Ok(None) };
    let raises = match policy.lost_pods {
        LostPods::Count => return Ok(None),
        LostPods::RaiseLimit => true,
        LostPods::Hold => false,
    };
    let name = &of.job;
    let (facts, at) = match &of.sight {
        JobSight::Seen { job, at } => (job, *at),
        JobSight::Gone => {
            ask.that(QUESTION, format_args!("Job {name} is gone"), true);
            return Ok(None);
        }
        JobSight::Unread => {
            ask.that(QUESTION, format_args!("Job {name} is not read yet"), false);
            let why = PodWhy::JobUnread { job: Box::new(name.clone()) };
            return Err(Verdict::Wait { until: after(now, READ_WITHIN), why });
        }
        JobSight::Unreadable { error, at } => {
            ask.that(QUESTION, error, false);
            let why = PodWhy::JobUnreadable { job: Box::new(name.clone()), error: error.clone() };
            return Err(hold(pod, of, *at, ("job-unreadable", reasons::JOB_UNREADABLE), why, now));
        }
    };
    if raises && facts.raised.pods.contains(&pod.pod.uid) {
        ask.that(QUESTION, format_args!("its backoffLimit was raised to {}", facts.backoff_limit), true);
        // The process that raised it may have crashed before it recorded the event.
        let first = facts.raised.pods.first() == Some(&pod.pod.uid);
        return Ok(first.then(|| tell_of_raise(name, facts.raised.pods.len(), facts.backoff_limit)));
    }
    let doom = match outlook(facts, pod, of, policy) {
        Outlook::Unharmed(seen) => {
            ask.that(QUESTION, seen, true);
            return Ok(None);
        }
        Outlook::Falls(doom) => doom,
    };
    // The Job's owner wrote such a rule for exactly this case.
    let goes_on = raises && matches!(doom, Doom::Rule(_));
    ask.that(QUESTION, &doom, goes_on);
    match doom {
        Doom::Rule(_) if raises => Ok(None),
        Doom::Limit { .. } if raises => Err(raise(facts, pod, of, now)),
        doom @ (Doom::Limit { .. } | Doom::Index { .. } | Doom::Rule(_)) => {
            let why = PodWhy::JobWouldFail { job: Box::new(name.clone()), doom };
            Err(hold(pod, of, at, ("job-would-fail", reasons::JOB_WOULD_FAIL), why, now))
        }
    }
}

/// Raises the Job's limit for all pods that are given up now and not recorded yet. The decision on one pod does it for
/// all.
fn raise(facts: &JobFacts, pod: &PodView, of: &OfJob, now: Timestamp) -> Verdict<PodWhy, Step> {
    let stage = |uid: &Uid| of.family.iter().find(|relative| relative.uid == *uid).map(|it| it.stage);
    let recorded = &facts.raised.pods;
    let is_new = |relative: &&Relative| {
        relative.stage == Stage::Due && facts.counts(relative) && !recorded.contains(&relative.uid)
    };
    let mut new: BTreeSet<Uid> = of.family.iter().filter(is_new).map(|it| it.uid.clone()).collect();
    new.insert(pod.pod.uid.clone());
    // A pod that has ended is not decided on again, so nothing is raised for it twice.
    let mut kept: Vec<Uid> =
        recorded.iter().filter(|uid| !matches!(stage(uid), Some(Stage::Ended(_)))).cloned().collect();
    if kept.len() + new.len() > RECORDED_AT_ONCE {
        kept.retain(|uid| stage(uid).is_some());
    }
    let room = RECORDED_AT_ONCE.saturating_sub(kept.len());
    let new: Vec<Uid> = new.into_iter().take(room).collect();
    if new.first() != Some(&pod.pod.uid) {
        let why = PodWhy::AwaitsBackoffLimit { job: Box::new(of.job.clone()) };
        return Verdict::Wait { until: after(now, RAISED_WITHIN), why };
    }
    let pods = new.len();
    let by = u32::try_from(pods).unwrap_or(u32::MAX);
    let most = i32::MAX.unsigned_abs();
    let to = facts.backoff_limit.saturating_add(by).min(most);
    let raised = Raised {
        raised_by: facts.raised.raised_by.saturating_add(by),
        pods: new.into_iter().chain(kept).collect(),
    };
    let step = Step::RaiseBackoffLimit {
        job: of.job.clone(),
        resource_version: facts.resource_version.clone(),
        backoff_limit: to,
        raised,
    };
    let why = PodWhy::RaisesBackoffLimit { job: Box::new(of.job.clone()), from: facts.backoff_limit, to };
    Verdict::Act { actions: vec![step, tell_of_raise(&of.job, pods, to)], why }
}

fn tell_of_raise(job: &JobRef, pods: usize, to: u32) -> Step {
    Step::EmitEvent(EventNote {
        name: format!("backoff-limit-raised.{}.{to}", job.uid),
        regarding: job.into(),
        kind: EventType::Normal,
        reason: reasons::BACKOFF_LIMIT_RAISED.into(),
        action: events::RAISE_BACKOFF_LIMIT,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message: format!(
            "backoffLimit raised to {to}: {pods} pods on lost nodes are given up, and the Job would have failed because of them"
        ),
    })
}

/// Waits because of the Job, and records that once, on the pod and on the Job.
fn hold(
    pod: &PodView,
    of: &OfJob,
    read: Timestamp,
    (name, reason): (&str, &'static str),
    why: PodWhy,
    now: Timestamp,
) -> Verdict<PodWhy, Step> {
    if of.told {
        let until = after(read, READ_EVERY).max(after(now, READ_WITHIN));
        return Verdict::Wait { until, why };
    }
    let note = |uid: &Uid, regarding| {
        Step::Mention(EventNote {
            name: format!("{name}.{uid}"),
            regarding,
            kind: EventType::Warning,
            reason: reason.into(),
            action: events::FORCEFUL_TERMINATION,
            reporting_controller: events::POD_TERMINATION_CONTROLLER,
            message: why.to_string(),
        })
    };
    let actions = vec![note(&pod.pod.uid, (&pod.pod).into()), note(&of.job.uid, (&of.job).into())];
    Verdict::Act { actions, why }
}
