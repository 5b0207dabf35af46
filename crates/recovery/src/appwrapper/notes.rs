//! The events about an AppWrapper. Each has a fixed name, so that a retry does not record it twice.

use std::collections::BTreeSet;

use jiff::Timestamp;
use salvor_api::names::appwrapper::EVENT_COMPONENT;

use super::names::conditions::DELETING_RESOURCES;
use super::names::reasons::{INVALID_ANNOTATION, MACHINE_MAY_RUN};
use super::policy::Defect;
use super::status::{Phase, ResetRecord};
use super::views::AppWrapperView;
use crate::event::{EventNote, EventType};
use crate::fnv::Fnv;

/// The API server's limit, in characters.
const LONGEST_MESSAGE: usize = 1024;
const UNHEALTHY: &str = "Unhealthy";
const SUSPENDING: &str = "Suspending";

/// The workload is reset or has failed, as recorded in the status.
pub(super) fn unhealthy(view: &AppWrapperView, record: &ResetRecord) -> EventNote {
    let time = record.time.map_or(0, Timestamp::as_second);
    EventNote {
        name: format!("appwrapper-unhealthy.{}.{time}", view.appwrapper.uid),
        regarding: (&view.appwrapper).into(),
        reporting_controller: EVENT_COMPONENT,
        kind: EventType::Warning,
        reason: UNHEALTHY.into(),
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

/// `spec.suspend` was set.
pub(super) fn suspending(view: &AppWrapperView) -> EventNote {
    EventNote {
        name: format!("appwrapper-suspending.{}.{}", view.appwrapper.uid, view.resource_version),
        regarding: (&view.appwrapper).into(),
        reporting_controller: EVENT_COMPONENT,
        kind: EventType::Normal,
        reason: SUSPENDING.into(),
        action: "Suspend",
        message: format!("Externally suspended while in the {} phase", view.status.phase),
    }
}

/// A deletion, begun at that time, waits because a machine may run.
pub(super) fn machine_may_run(view: &AppWrapperView, begun: Timestamp, message: &str) -> EventNote {
    EventNote {
        name: format!("appwrapper-machine-may-run.{}.{}", view.appwrapper.uid, begun.as_second()),
        regarding: (&view.appwrapper).into(),
        reporting_controller: EVENT_COMPONENT,
        kind: EventType::Warning,
        reason: MACHINE_MAY_RUN.into(),
        action: "Delete",
        message: message.chars().take(LONGEST_MESSAGE).collect(),
    }
}

pub(super) fn unreadable(view: &AppWrapperView, defects: &[Defect]) -> EventNote {
    let all: Vec<String> = defects.iter().map(ToString::to_string).collect();
    let message = all.join(". ");
    let mut hash = Fnv::default();
    hash.add(message.as_bytes());
    EventNote {
        name: format!("appwrapper-annotations.{}.{:x}", view.appwrapper.uid, hash.finish()),
        regarding: (&view.appwrapper).into(),
        reporting_controller: EVENT_COMPONENT,
        kind: EventType::Warning,
        reason: INVALID_ANNOTATION.into(),
        action: "ReadAnnotations",
        message: message.chars().take(LONGEST_MESSAGE).collect(),
    }
}

/// The names of the events about resets, the failure and the deletion in the status. A caller that does not know which
/// of them were recorded, such as `explain`, assumes all of them.
pub fn notes_told(view: &AppWrapperView) -> BTreeSet<String> {
    let resets = view.status.resets.iter().map(|record| unhealthy(view, record).name);
    let deletion = view.status.condition(DELETING_RESOURCES);
    let held = deletion.map(|it| machine_may_run(view, it.last_transition_time, "").name);
    resets.chain(held).collect()
}
