//! The writes that AppWrapper recovery asks for, as data. Each names exactly the object that was judged.

use std::fmt;

use salvor_api::GoDuration;
use serde::Serialize;

use super::status::AppWrapperStatus;
use super::views::{AppWrapperRef, ComponentKind, ObjectRef};
use crate::action::EventType;
use crate::objects::PodRef;

/// One guarded write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Writes the whole status, if the AppWrapper is still exactly as it was judged (UID and resourceVersion).
    PatchStatus {
        /// The AppWrapper.
        appwrapper: AppWrapperRef,
        /// The state that was judged.
        resource_version: String,
        /// The status.
        status: Box<AppWrapperStatus>,
        /// What depends on it.
        stakes: Stakes,
    },
    /// Puts our finalizer on the AppWrapper, if it is still exactly as it was judged (UID and resourceVersion).
    AddFinalizer {
        /// The AppWrapper.
        appwrapper: AppWrapperRef,
        /// The state that was judged.
        resource_version: String,
    },
    /// Takes our finalizer off the AppWrapper, if it is still exactly as it was judged (UID and resourceVersion).
    RemoveFinalizer {
        /// The AppWrapper.
        appwrapper: AppWrapperRef,
        /// The state that was judged.
        resource_version: String,
    },
    /// Creates a component. Its body is a function of the AppWrapper that was judged, the index and the name; an object of that
    /// name whose controller has the AppWrapper's UID is the component, and its creation has succeeded.
    CreateComponent {
        /// The AppWrapper that will own it.
        appwrapper: AppWrapperRef,
        /// The state of the AppWrapper that the body is made from.
        resource_version: String,
        /// The component's index.
        index: usize,
        /// Its kind.
        #[serde(flatten)]
        kind: ComponentKind,
        /// The name that it gets, also if its template has only a `generateName`.
        name: String,
    },
    /// Deletes an object that the AppWrapper owns (UID), with propagation policy Background.
    DeleteComponent {
        /// The object.
        object: ObjectRef,
        /// The state that was judged.
        resource_version: String,
        /// With or without grace.
        manner: Manner,
    },
    /// Deletes a pod that has the AppWrapper's label (UID; with `Forceful` resourceVersion too).
    DeletePod {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: String,
        /// With or without grace.
        manner: Manner,
    },
    /// Records an event about the AppWrapper.
    RecordEvent(Note),
}

/// How an object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Manner {
    /// With the grace period that it has.
    Graceful,
    /// With a grace period of 0.
    Forceful,
}

/// What depends on a write to the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Stakes {
    /// Nothing that could not be put right by the next write.
    Bookkeeping,
    /// The end of the AppWrapper's life, or the release of its quota. Everything is read live once more before.
    Final,
    /// The workload is taken down because it is unhealthy. Everything is read live once more before, and the brake counts it.
    TakesDown {
        /// So many of its pods are not at their end yet.
        pods: u32,
    },
}

/// An event about the AppWrapper, to be recorded once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The event's own name, the same on every attempt, so that the API server refuses a second one.
    pub name: String,
    /// The AppWrapper.
    pub regarding: AppWrapperRef,
    /// How loudly it speaks.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Its reason.
    pub reason: &'static str,
    /// What was done.
    pub action: &'static str,
    /// What a person reads.
    pub message: String,
}

/// What a step takes away from those who use the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// Nothing, or only what somebody has asked to be taken away.
    Nothing,
    /// So many pods.
    Pods(u32),
    /// A whole workload.
    Workload {
        /// So many pods of it.
        pods: u32,
    },
}

impl Step {
    /// Whether everything must be read live and judged once more before it: whatever ends, deletes, or releases quota.
    pub fn needs_live_look(&self) -> bool {
        match self {
            Self::PatchStatus { stakes, .. } => match stakes {
                Stakes::Bookkeeping => false,
                Stakes::Final | Stakes::TakesDown { .. } => true,
            },
            Self::RemoveFinalizer { .. } | Self::DeleteComponent { .. } | Self::DeletePod { .. } => true,
            Self::AddFinalizer { .. } | Self::CreateComponent { .. } | Self::RecordEvent(_) => false,
        }
    }

    /// Whether nothing can bring back what it takes away.
    pub fn is_irreversible(&self) -> bool {
        match self {
            Self::PatchStatus { stakes, .. } => match stakes {
                Stakes::Bookkeeping => false,
                Stakes::Final | Stakes::TakesDown { .. } => true,
            },
            Self::RemoveFinalizer { .. } | Self::DeleteComponent { .. } | Self::DeletePod { .. } => true,
            Self::AddFinalizer { .. } | Self::CreateComponent { .. } | Self::RecordEvent(_) => false,
        }
    }

    /// What the brake counts.
    ///
    /// The decision to take a workload down counts, once; deleting its components then carries it out, or does what a user or
    /// Kueue asked for. Pods that are force-deleted may still run on a node that nobody reaches, so each counts.
    pub fn disrupts(&self) -> Disruption {
        match self {
            Self::PatchStatus { stakes: Stakes::TakesDown { pods }, .. } => {
                Disruption::Workload { pods: *pods }
            }
            Self::DeletePod { manner: Manner::Forceful, .. } => Disruption::Pods(1),
            Self::DeleteComponent { object, manner: Manner::Forceful, .. } if object.kind.kind == "Pod" => {
                Disruption::Pods(1)
            }
            Self::PatchStatus { stakes: Stakes::Bookkeeping | Stakes::Final, .. }
            | Self::DeletePod { manner: Manner::Graceful, .. }
            | Self::DeleteComponent { .. }
            | Self::AddFinalizer { .. }
            | Self::RemoveFinalizer { .. }
            | Self::CreateComponent { .. }
            | Self::RecordEvent(_) => Disruption::Nothing,
        }
    }

    /// Whether both mean the same, so that a second look confirms the first. Times and wordings may differ.
    pub fn means_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::PatchStatus { appwrapper: a, status: s, stakes: x, .. },
                Self::PatchStatus { appwrapper: b, status: t, stakes: y, .. },
            ) => a == b && gist(s) == gist(t) && std::mem::discriminant(x) == std::mem::discriminant(y),
            (Self::AddFinalizer { appwrapper: a, .. }, Self::AddFinalizer { appwrapper: b, .. })
            | (Self::RemoveFinalizer { appwrapper: a, .. }, Self::RemoveFinalizer { appwrapper: b, .. }) => {
                a == b
            }
            (
                Self::CreateComponent { appwrapper: a, index: i, name: n, kind: k, .. },
                Self::CreateComponent { appwrapper: b, index: j, name: m, kind: l, .. },
            ) => a == b && i == j && n == m && k == l,
            (
                Self::DeleteComponent { object: a, manner: m, .. },
                Self::DeleteComponent { object: b, manner: n, .. },
            ) => a.uid == b.uid && m == n,
            (Self::DeletePod { pod: a, manner: m, .. }, Self::DeletePod { pod: b, manner: n, .. }) => {
                a.uid == b.uid && m == n
            }
            (Self::RecordEvent(a), Self::RecordEvent(b)) => {
                a.reason == b.reason && a.regarding == b.regarding
            }
            (
                Self::PatchStatus { .. }
                | Self::AddFinalizer { .. }
                | Self::RemoveFinalizer { .. }
                | Self::CreateComponent { .. }
                | Self::DeleteComponent { .. }
                | Self::DeletePod { .. }
                | Self::RecordEvent(_),
                _,
            ) => false,
        }
    }
}

/// What a status says, without times and wordings.
fn gist(status: &AppWrapperStatus) -> (&str, i32, Vec<(&str, &str, &str)>) {
    let mut conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|it| (it.kind.as_str(), it.status.as_str(), it.reason.as_str()))
        .collect();
    conditions.sort_unstable();
    (status.phase.as_str(), status.resetting_count, conditions)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchStatus { appwrapper, status, .. } => {
                write!(f, "write the status of appwrapper {appwrapper}: phase {}", status.phase)
            }
            Self::AddFinalizer { appwrapper, .. } => {
                write!(f, "add our finalizer to appwrapper {appwrapper}")
            }
            Self::RemoveFinalizer { appwrapper, .. } => {
                write!(f, "remove our finalizer from appwrapper {appwrapper}")
            }
            Self::CreateComponent { appwrapper, index, kind, name, .. } => {
                write!(f, "create component {index} of appwrapper {appwrapper}: {kind} {name}")
            }
            Self::DeleteComponent { object, manner, .. } => write!(f, "delete {object} ({manner})"),
            Self::DeletePod { pod, manner, .. } => write!(f, "delete pod {pod} ({manner})"),
            Self::RecordEvent(note) => write!(f, "record event {}: {}", note.reason, note.message),
        }
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Graceful => "with its grace period",
            Self::Forceful => "with no grace period",
        })
    }
}

/// A duration as Go prints it.
pub(super) fn in_go(duration: jiff::SignedDuration) -> GoDuration {
    GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}
