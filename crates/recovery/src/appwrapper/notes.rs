//! The events about an AppWrapper. Each has a name of its own, so that a second attempt records no second event.

use super::names::reasons::INVALID_ANNOTATION;
use super::policy::Defect;
use super::resets::ResetRecord;
use super::status::Phase;
use super::steps::Note;
use super::views::AppWrapperView;
use crate::action::EventType;
use crate::fnv::Fnv;

const UNHEALTHY: &str = "Unhealthy";
const SUSPENDING: &str = "Suspending";

/// The workload is reset or given up, as the status has recorded it.
pub(super) fn unhealthy(view: &AppWrapperView, record: &ResetRecord) -> Note {
    let time = record.time.map_or(0, jiff::Timestamp::as_second);
    Note {
        name: format!("appwrapper-unhealthy.{}.{time}", view.appwrapper.uid),
        regarding: view.appwrapper.clone(),
        kind: EventType::Warning,
        reason: UNHEALTHY,
        action: match &record.phase {
            Phase::Failed => "Fail",
            Phase::Resetting
            | Phase::Empty
            | Phase::Suspended
            | Phase::Resuming
            | Phase::Running
            | Phase::Suspending
            | Phase::Succeeded
            | Phase::Terminating
            | Phase::Unknown(_) => "Reset",
        },
        message: record.message.clone(),
    }
}

/// Somebody suspends it.
pub(super) fn suspending(view: &AppWrapperView) -> Note {
    Note {
        name: format!("appwrapper-suspending.{}.{}", view.appwrapper.uid, view.resource_version),
        regarding: view.appwrapper.clone(),
        kind: EventType::Normal,
        reason: SUSPENDING,
        action: "Suspend",
        message: format!("Externally suspended while in the {} phase", view.status.phase),
    }
}

/// Annotations cannot be read.
pub(super) fn unreadable(view: &AppWrapperView, defects: &[Defect]) -> Note {
    let all: Vec<String> = defects.iter().map(ToString::to_string).collect();
    let message = all.join(". ");
    let mut hash = Fnv::default();
    hash.add(message.as_bytes());
    Note {
        name: format!("appwrapper-annotations.{}.{:x}", view.appwrapper.uid, hash.finish()),
        regarding: view.appwrapper.clone(),
        kind: EventType::Warning,
        reason: INVALID_ANNOTATION,
        action: "ReadAnnotations",
        message: message.chars().take(1024).collect(),
    }
}
