//! Decides how a Job will end, and why: the questions in the order in which they count.

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::job::{conditions, reasons};

use super::success_policy;
use super::tally::{Ending, Tally};
use super::views::{FailureAction, count};
use crate::objects::PodPhase;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobEnd {
    pub(super) ending: Ending,
    pub(super) reason: String,
    pub(super) message: String,
    /// True if the status already says so. A written end is final, whatever happens to the pods afterwards.
    pub(super) written: bool,
}

impl JobEnd {
    fn new(ending: Ending, reason: &str, message: impl Into<String>) -> Self {
        Self { ending, reason: reason.into(), message: message.into(), written: false }
    }

    fn failure(reason: &str, message: impl Into<String>) -> Option<Self> {
        Some(Self::new(Ending::Failure, reason, message))
    }

    /// The recorded end; else the end that follows from the pods. Failure is checked before success.
    pub(super) fn of(tally: &Tally<'_>, now: Timestamp) -> Option<Self> {
        Self::written(tally)
            .or_else(|| by_failure_policy(tally))
            .or_else(|| by_backoff_limit(tally))
            .or_else(|| by_deadline(tally, now))
            .or_else(|| by_failed_indexes(tally))
            .or_else(|| by_success_policy(tally))
    }

    fn written(tally: &Tally<'_>) -> Option<Self> {
        let status = &tally.job.status;
        let success = status.holds(conditions::SUCCESS_CRITERIA_MET).map(|c| (Ending::Success, c));
        let failure = || status.holds(conditions::FAILURE_TARGET).map(|c| (Ending::Failure, c));
        let (ending, condition) = success.or_else(failure)?;
        Some(Self { written: true, ..Self::new(ending, &condition.reason, condition.message.clone()) })
    }

    /// Enough pods succeeded, and none is active. Checked last, when there are no surplus pods.
    pub(super) fn by_completions(tally: &Tally<'_>) -> Option<Self> {
        let enough = match tally.job.spec.completions() {
            Some(completions) => tally.succeeded >= completions,
            // The first success of a work queue means that the queue is empty; the other pods may finish.
            None => tally.succeeded > 0,
        };
        (enough && tally.active.is_empty()).then(|| {
            Self::new(
                Ending::Success,
                reasons::COMPLETIONS_REACHED,
                "Reached expected number of succeeded pods",
            )
        })
    }
}

fn by_failure_policy(tally: &Tally<'_>) -> Option<JobEnd> {
    let failed = tally.pods.iter().filter(|pod| tally.is_failed(pod));
    let mut ends =
        failed.filter_map(|pod| tally.matched(pod)).filter(|rule| rule.action == FailureAction::FailJob);
    JobEnd::failure(reasons::POD_FAILURE_POLICY, ends.next()?.message)
}

fn by_backoff_limit(tally: &Tally<'_>) -> Option<JobEnd> {
    let limit = tally.job.spec.backoff_limit();
    let exceeded = tally.failed > limit || restarts_exceed(tally, limit);
    exceeded
        .then(|| {
            JobEnd::failure(reasons::BACKOFF_LIMIT_EXCEEDED, "Job has reached the specified backoff limit")
        })
        .flatten()
}

/// Pods whose containers restart in place fail without ever reaching phase Failed.
fn restarts_exceed(tally: &Tally<'_>, limit: u32) -> bool {
    let alive = tally.pods.iter().filter(|pod| matches!(pod.phase, PodPhase::Pending | PodPhase::Running));
    let restarts = alive.map(|pod| pod.restarts).fold(0, u32::saturating_add);
    restarts > 0 && restarts >= limit && tally.job.spec.template.restarts_on_failure()
}

fn by_deadline(tally: &Tally<'_>, now: Timestamp) -> Option<JobEnd> {
    (now >= deadline(tally)?)
        .then(|| JobEnd::failure(reasons::DEADLINE_EXCEEDED, "Job was active longer than specified deadline"))
        .flatten()
}

/// When the Job's active deadline ends, if it has one and the time is running.
pub(super) fn deadline(tally: &Tally<'_>) -> Option<Timestamp> {
    let spec = &tally.job.spec;
    let limit = spec.active_deadline_seconds.filter(|_| !spec.suspend)?;
    let start = tally.job.status.start_time?;
    Some(start.checked_add(SignedDuration::from_secs(limit.max(0))).unwrap_or(Timestamp::MAX))
}

fn by_failed_indexes(tally: &Tally<'_>) -> Option<JobEnd> {
    let spec = &tally.job.spec;
    spec.backoff_limit_per_index?;
    let failed = tally.failed_indexes.len();
    if spec.max_failed_indexes.is_some_and(|limit| failed > count(limit)) {
        return JobEnd::failure(
            reasons::MAX_FAILED_INDEXES_EXCEEDED,
            "Job has exceeded the specified maximal number of failed indexes",
        );
    }
    let all_ended = failed > 0 && failed.saturating_add(tally.succeeded) >= spec.index_bound();
    all_ended.then(|| JobEnd::failure(reasons::FAILED_INDEXES, "Job has failed indexes")).flatten()
}

fn by_success_policy(tally: &Tally<'_>) -> Option<JobEnd> {
    let spec = &tally.job.spec;
    let rule =
        success_policy::matched(spec.success_policy.as_ref(), &tally.completed_indexes, spec.index_bound())?;
    Some(JobEnd::new(Ending::Success, reasons::SUCCESS_POLICY, format!("Matched rules at index {rule}")))
}
