//! Conditions and events on objects.

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use serde::Serialize;

use crate::objects::ObjectRef;

/// A condition to set to `True`, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub reason: &'static str,
    pub message: String,
    /// To the second, as Kubernetes stores it.
    pub last_transition_time: Timestamp,
}

/// A condition to set on a node, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
    /// To the second, as Kubernetes stores it.
    pub last_transition_time: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventType {
    Normal,
    /// A person should see it.
    Warning,
}

/// An event to record once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventNote {
    /// The same on every attempt, so that the API server refuses a duplicate.
    pub name: String,
    pub regarding: ObjectRef,
    #[serde(rename = "type")]
    pub kind: EventType,
    /// For the end of a Job this is the reason in the Job's conditions.
    pub reason: Cow<'static, str>,
    pub action: &'static str,
    pub reporting_controller: &'static str,
    pub message: String,
}

impl fmt::Display for EventNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record the {:?} event {} on {}", self.kind, self.reason, self.regarding)
    }
}
