//! All events about a Job.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::job::{conditions, events};

use super::read_back::ReadBack;
use super::unreadable::Unreadable;
use super::views::{CompletionMode, JobCondition, JobStatus, JobView, PodView};
use crate::event::{EventNote, EventType};
use crate::objects::{JobRef, PodRef};

pub fn created_note(job: &Arc<JobRef>, pod: &PodRef) -> EventNote {
    let told = format!("Created pod: {}", pod.name);
    note(job, &format!("created.{}", pod.uid), EventType::Normal, events::SUCCESSFUL_CREATE, told)
}

pub fn refused_note(job: &Arc<JobRef>, message: &str, now: Timestamp) -> EventNote {
    let told = format!("Error creating: {message}");
    note(job, &format!("refused.{}", now.as_second()), EventType::Warning, events::FAILED_CREATE, told)
}

pub fn undeleted_note(job: &Arc<JobRef>, pod: &PodRef, message: &str, now: Timestamp) -> EventNote {
    let name = format!("undeleted.{}.{}", pod.uid, now.as_second());
    let told = format!("Error deleting: {message}");
    note(job, &name, EventType::Warning, events::FAILED_DELETE, told)
}

pub(super) fn deleted_note(job: &Arc<JobRef>, pod: &PodRef) -> EventNote {
    let told = format!("Deleted pod: {}", pod.name);
    note(job, &format!("deleted.{}", pod.uid), EventType::Normal, events::SUCCESSFUL_DELETE, told)
}

/// The event that says why nothing at all is done for a Job of ours; none if that is not the case.
pub(super) fn why_held(job: &JobView, pods: &[PodView]) -> Option<EventNote> {
    if matches!(job.spec.completion_mode, CompletionMode::Unknown(_)) {
        return Some(unknown_mode_note(&job.job));
    }
    let unreadable = ReadBack::of(job, pods).err()?;
    (job.status.finished().is_none() && !job.deleting).then(|| unreadable_note(job, &unreadable))
}

/// The Job needs a completion mode that this version does not know.
pub(super) fn unknown_mode_note(job: &Arc<JobRef>) -> EventNote {
    let told = "Skipped Job sync because completion mode is unknown".to_owned();
    note(job, "unknown-mode", EventType::Warning, events::UNKNOWN_COMPLETION_MODE, told)
}

/// The Job is blocked. One event for each resourceVersion in which it is.
pub(super) fn unreadable_note(job: &JobView, unreadable: &Unreadable) -> EventNote {
    let name = format!("unreadable.{}", job.resource_version);
    let told = format!("Nothing is done for this Job: {unreadable}");
    note(&job.job, &name, EventType::Warning, events::UNREADABLE_STATUS, told)
}

/// The events about a new status. The write has the Job's resourceVersion as a precondition, so the resourceVersion
/// distinguishes one occurrence from the next, however quickly they follow.
pub(super) fn news(job: &JobView, next: &JobStatus) -> Vec<EventNote> {
    let changed = next.conditions.iter().filter(|c| !job.status.conditions.contains(c));
    let mut notes: Vec<EventNote> = changed
        .filter_map(|condition| {
            let (name, kind, reason, message) = match (condition.kind.as_str(), condition.status.as_str()) {
                (conditions::COMPLETE, "True") => {
                    ("complete", EventType::Normal, events::COMPLETED.into(), "Job completed")
                }
                (conditions::FAILED, "True") => {
                    ("failed", EventType::Warning, reason_of_failure(condition), condition.message.as_str())
                }
                (conditions::SUSPENDED, "True") => {
                    ("suspended", EventType::Normal, events::SUSPENDED.into(), "Job suspended")
                }
                (conditions::SUSPENDED, "False") => {
                    ("resumed", EventType::Normal, events::RESUMED.into(), "Job resumed")
                }
                _ => return None,
            };
            let name = format!("{name}.{}", job.resource_version);
            Some(note(&job.job, &name, kind, reason, message.into()))
        })
        .collect();
    let asked = job.spec.completions.unwrap_or(i32::MAX);
    if next.completion_time != job.status.completion_time && next.succeeded > asked {
        let message = "Too many succeeded pods running after completion count reached".to_owned();
        let name = "too-many-succeeded";
        notes.push(note(&job.job, name, EventType::Warning, events::TOO_MANY_SUCCEEDED_PODS, message));
    }
    notes
}

/// The reason of the failure from the Job's condition, which any controller may have written.
fn reason_of_failure(condition: &JobCondition) -> Cow<'static, str> {
    match condition.reason.as_str() {
        "" => conditions::FAILED.into(),
        reason => reason.to_owned().into(),
    }
}

fn note(
    job: &Arc<JobRef>,
    name: &str,
    kind: EventType,
    reason: impl Into<Cow<'static, str>>,
    message: String,
) -> EventNote {
    EventNote {
        name: format!("{name}.{}", job.uid),
        regarding: (&**job).into(),
        kind,
        reason: reason.into(),
        action: events::RUN_JOB,
        reporting_controller: events::JOB_CONTROLLER,
        message,
    }
}
