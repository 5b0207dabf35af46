//! Conditions and events on objects.

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use serde::Serialize;

use crate::objects::ObjectRef;

/// A condition to set to `True`, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// Since when, to the second.
    pub last_transition_time: Timestamp,
}

/// A condition to set on a node, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// True if it holds.
    pub holds: bool,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// Since when, to the second.
    pub last_transition_time: Timestamp,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventType {
    /// Something that should happen.
    Normal,
    /// Something that a person should know.
    Warning,
}

/// An event to record once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventNote {
    /// The event's own name, the same on every attempt, so that the API server refuses a second one.
    pub name: String,
    /// The object that it is about.
    pub regarding: ObjectRef,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Why it was recorded. Of a Job's end this is whatever its conditions say.
    pub reason: Cow<'static, str>,
    /// The action.
    pub action: &'static str,
    /// Its reporter.
    pub reporting_controller: &'static str,
    /// The message.
    pub message: String,
}

impl fmt::Display for EventNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record the {:?} event {} on {}", self.kind, self.reason, self.regarding)
    }
}
