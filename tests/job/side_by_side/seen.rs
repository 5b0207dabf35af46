//! The user-visible state of a Job, whether it is at rest, and the intended differences between the controllers.

use std::fmt;

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::ResourceExt;

use crate::stage::{condition, counts, index, is_over};

/// Everything about a Job that users can see.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Seen {
    counts: String,
    conditions: Vec<String>,
    completed: String,
    failed: String,
    started: bool,
    alive: Vec<Option<u32>>,
    terminating: Vec<Option<u32>>,
    at_rest: bool,
    pub(super) finished: bool,
    suspended: bool,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, conditions, completed, failed, started, alive, terminating, at_rest, .. } = self;
        write!(
            f,
            "{counts} {conditions:?} completed={completed:?} failed={failed:?} started={started} alive={alive:?} \
             terminating={terminating:?} at rest={at_rest}"
        )
    }
}

impl Seen {
    pub(super) fn of(job: &Job, pods: &[Pod]) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
        let places = |terminating: bool| {
            let mut places: Vec<_> = open(pods, terminating).map(index).collect();
            places.sort_unstable();
            places
        };
        Self {
            counts: counts(job),
            conditions: conditions(job),
            completed: status.completed_indexes.unwrap_or_default(),
            failed: status.failed_indexes.unwrap_or_default(),
            started: status.start_time.is_some() || (suspended && !suspending_clears_the_start()),
            alive: places(false),
            terminating: places(true),
            at_rest: is_at_rest(job, pods),
            finished: is_finished(job),
            suspended,
        }
    }

    /// Whether both have finished reacting and are equal.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.at_rest && self == other
    }

    fn is_bound_to_end(&self) -> bool {
        self.conditions.iter().any(|c| c.starts_with("SuccessCriteriaMet") || c.starts_with("FailureTarget"))
    }
}

/// Pods that have not ended and are (or are not) being deleted.
pub(super) fn open(pods: &[Pod], terminating: bool) -> impl Iterator<Item = &Pod> {
    pods.iter().filter(move |p| !is_over(p) && p.metadata.deletion_timestamp.is_some() == terminating)
}

/// Conditions that are True, with reason and message. A message about a pod contains the pod's name, so it may differ.
fn conditions(job: &Job) -> Vec<String> {
    let all = job.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let held = all.into_iter().filter(|c| c.status == "True").map(|c| {
        let reason = c.reason.unwrap_or_default();
        let message = c.message.filter(|_| reason != "PodFailurePolicy").unwrap_or_default();
        format!("{}({reason}: {message})", c.type_)
    });
    let mut held: Vec<String> = held.collect();
    held.sort();
    held
}

fn is_finished(job: &Job) -> bool {
    condition(job, "Complete").or_else(|| condition(job, "Failed")).is_some()
}

/// Whether no controller has visible work left for the Job.
fn is_at_rest(job: &Job, pods: &[Pod]) -> bool {
    let status = job.status.clone().unwrap_or_default();
    let spec = job.spec.clone().unwrap_or_default();
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let listed = |list: Option<Vec<String>>| list.unwrap_or_default().len();
    let number = |n: usize| i32::try_from(n).unwrap();
    let tracked = |pod: &Pod| pod.finalizers().iter().any(|f| f.ends_with("tracking"));
    // The last failed pod of an index with its own limit stays until it is replaced.
    let lingers = spec.backoff_limit_per_index.is_some();
    let owed = pods.iter().any(|pod| is_over(pod) && tracked(pod)) && !lingers;
    let terminating = open(pods, true).count();
    let bound_to_end = condition(job, "SuccessCriteriaMet").or_else(|| condition(job, "FailureTarget"));
    listed(uncounted.failed) + listed(uncounted.succeeded) == 0
        && status.active.unwrap_or(0) == number(open(pods, false).count())
        && status.terminating == Some(number(terminating))
        && status.ready.is_some()
        && !owed
        && match bound_to_end {
            Some(_) => terminating > 0 || is_finished(job),
            None => spec.suspend.unwrap_or(false) == condition(job, "Suspended").is_some(),
        }
}

/// The built-in controller does this since 1.36. Salvor always does.
fn suspending_clears_the_start() -> bool {
    let minor = salvor_testkit::kubernetes_minor();
    minor.split('.').nth(1).and_then(|minor| minor.parse().ok()).is_none_or(|minor: u32| minor >= 36)
}

/// An intended difference. `docs/guides/jobs.md` has the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnPurpose {
    /// The server refuses the built-in controller's last write of a suspended Job forever, because the start time is
    /// missing. Salvor's Job ends.
    EndsWhileSuspended,
}

impl OnPurpose {
    pub(super) fn between(theirs: &Seen, ours: &Seen) -> Option<Self> {
        (ours.suspended && ours.finished && !theirs.finished && !theirs.started && theirs.is_bound_to_end())
            .then_some(Self::EndsWhileSuspended)
    }
}
