//! Computes the status that a Job should have now, from its present status and its pods.

use std::collections::BTreeSet;

use jiff::Timestamp;
use salvor_api::names::job::{conditions, reasons};

use super::job_end::JobEnd;
use super::policy::JobPolicy;
use super::tally::{Ending, Outcome, Tally};
use super::views::{JobCondition, JobStatus, Uncounted};
use crate::ids::Uid;
use crate::moments::to_the_second;

/// The status to write; unchanged if there is nothing new. Its lists of uncounted pods have at most `listed` entries.
pub(super) fn next(
    tally: &Tally<'_>,
    job_end: Option<&JobEnd>,
    listed: usize,
    policy: &JobPolicy,
    now: Timestamp,
) -> JobStatus {
    let job = tally.job;
    let now = to_the_second(now);
    let mut status = job.status.clone();
    let ends = job_end.is_some_and(|job_end| ends_with_this(tally, job_end));
    count_finished(&mut status, tally, job_end, if ends { usize::MAX } else { listed });

    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    status.active = number(tally.active.len());
    status.ready = Some(number(tally.ready()));
    // With the gate off, terminating pods are not tracked at all, which is not the same as zero.
    status.terminating = policy.replacement_policy.then(|| number(tally.terminating.len()));
    if status.start_time.is_none() && !job.spec.suspend {
        status.start_time = Some(now);
    }
    match job_end {
        None if job.deleting => {}
        None => suspend_or_resume(&mut status, job.spec.suspend, now),
        Some(job_end) => {
            if !job_end.written {
                let kind = match job_end.ending {
                    Ending::Success => conditions::SUCCESS_CRITERIA_MET,
                    Ending::Failure => conditions::FAILURE_TARGET,
                };
                set(&mut status, kind, "True", &job_end.reason, &job_end.message, now);
            }
            if ends {
                finish(&mut status, tally, job_end, now);
            }
        }
    }
    status
}

/// True if this write is the Job's last. Nothing of a finished Job is counted again. So a Job that succeeds may count
/// its last pods and finish in the same write, and release them afterwards. A failure is announced by a write of its
/// own, because users wait for it.
fn ends_with_this(tally: &Tally<'_>, job_end: &JobEnd) -> bool {
    let at_once = job_end.ending == Ending::Success;
    tally.pods.iter().all(|pod| pod.phase.is_terminal() && (at_once || !pod.is_tracked()))
}

/// Moves pods without finalizer from the lists to the counters, and newly ended pods into the lists.
fn count_finished(status: &mut JobStatus, tally: &Tally<'_>, job_end: Option<&JobEnd>, listed: usize) {
    let spec = &tally.job.spec;
    let tracked: BTreeSet<&Uid> =
        tally.pods.iter().filter(|pod| pod.is_tracked()).map(|pod| &pod.pod.uid).collect();
    let mut waiting = status.uncounted_terminated_pods.take().unwrap_or_default();
    let settle = |uids: &mut BTreeSet<Uid>, counter: &mut i32| {
        let before = uids.len();
        uids.retain(|uid| tracked.contains(uid));
        *counter = counter.saturating_add(i32::try_from(before - uids.len()).unwrap_or(i32::MAX));
    };
    settle(&mut waiting.succeeded, &mut status.succeeded);
    settle(&mut waiting.failed, &mut status.failed);

    let mut room = listed.saturating_sub(waiting.len());
    for pod in tally.pods.iter().filter(|pod| pod.is_tracked()) {
        let uid = &pod.pod.uid;
        if room == 0 || waiting.contains(uid) {
            continue;
        }
        let list = match tally.outcome(pod, job_end.map(|job_end| job_end.ending)) {
            Outcome::Succeeded if !spec.is_indexed() => &mut waiting.succeeded,
            Outcome::Failed => &mut waiting.failed,
            _ => continue,
        };
        list.insert(uid.clone());
        room -= 1;
    }
    status.uncounted_terminated_pods = Some(waiting);
    if spec.is_indexed() {
        status.completed_indexes = tally.completed_indexes.to_string();
        status.succeeded = i32::try_from(tally.completed_indexes.len()).unwrap_or(i32::MAX);
    }
    if spec.backoff_limit_per_index.is_some() {
        status.failed_indexes = Some(tally.failed_indexes.to_string());
    }
}

fn suspend_or_resume(status: &mut JobStatus, suspend: bool, now: Timestamp) {
    let suspended = status.holds(conditions::SUSPENDED).is_some();
    if suspend && !suspended {
        set(status, conditions::SUSPENDED, "True", reasons::JOB_SUSPENDED, "Job suspended", now);
        // A Job that has not started may have its template changed, and one that resumes gets its full deadline again.
        status.start_time = None;
    } else if !suspend && suspended {
        set(status, conditions::SUSPENDED, "False", reasons::JOB_RESUMED, "Job resumed", now);
        status.start_time = Some(now);
    }
}

/// The Job finishes only now that every pod has really ended.
fn finish(status: &mut JobStatus, tally: &Tally<'_>, job_end: &JobEnd, now: Timestamp) {
    let spec = &tally.job.spec;
    let listed = status.uncounted_terminated_pods.take().unwrap_or_default();
    let add = |counter: i32, uids: &BTreeSet<Uid>| {
        counter.saturating_add(i32::try_from(uids.len()).unwrap_or(i32::MAX))
    };
    status.succeeded = add(status.succeeded, &listed.succeeded);
    status.failed = add(status.failed, &listed.failed);
    status.uncounted_terminated_pods = Some(Uncounted::default());
    // A suspended Job has no start time, and a finished one must have one. The API server refuses the built-in
    // controller's last write for that, forever. The creation time of the oldest remaining pod is the closest known
    // value.
    let never_began = spec.suspend && spec.completions() == Some(0);
    if status.start_time.is_none() && !never_began {
        let oldest = tally.pods.iter().map(|pod| to_the_second(pod.created)).min();
        status.start_time = Some(oldest.map_or(now, |oldest| oldest.min(now)));
    }
    match job_end.ending {
        Ending::Failure => set(status, conditions::FAILED, "True", &job_end.reason, &job_end.message, now),
        Ending::Success => {
            let end = status.start_time.map_or(now, |start| start.max(now));
            set(status, conditions::COMPLETE, "True", &job_end.reason, &job_end.message, end);
            status.completion_time = Some(end);
        }
    }
}

fn set(status: &mut JobStatus, kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let condition = JobCondition {
        kind: kind.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_probe_time: Some(now),
        last_transition_time: Some(now),
    };
    match status.conditions.iter_mut().find(|c| c.kind == kind) {
        Some(known) => *known = condition,
        None => status.conditions.push(condition),
    }
}
