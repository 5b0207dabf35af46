//! The reasons of the Job recovery, with all their sentences.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::job::BUILT_IN_CONTROLLER;

use super::unreadable::Unreadable;
use crate::ids::NodeName;
use crate::verdict::Reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobWhy {
    /// The list of controllers omits the recovery.
    Disabled,
    /// Another controller runs the Job.
    NotOurs { managed_by: Option<String> },
    /// The Job has a completion mode that this version does not know.
    UnknownMode { mode: String },
    /// The Job's status or annotations cannot be read.
    UnreadableStatus(Unreadable),
    /// Nothing is left to do.
    Finished { kind: String },
    /// Its time to live after the end is over.
    Expired { ended: Timestamp },
    /// Pods are still tracked for a Job that is finished, gone, or not ours any more.
    Leftover,
    /// Salvor is still looking for pods that are older than the Job, and that it may adopt.
    FindingPods,
    /// Pods must be adopted or released.
    Claiming,
    /// The end of the Job is decided.
    Decided { reason: String },
    /// The end of the Job is decided, and pods are still Terminating.
    Ending { reason: String, pods: Vec<WaitingPod> },
    /// The Job is suspended and still has pods.
    Suspending,
    /// The Job is suspended and has no pods.
    Suspended,
    /// The Job has more pods than it needs.
    TooManyPods { wanted: u32 },
    /// The Job has fewer pods than it needs.
    NeedsPods { wanted: u32 },
    /// Pods failed, and the Job backs off before it creates others.
    BackingOff { until: Timestamp },
    /// The API refused a pod.
    CreationRefused { until: Timestamp },
    /// The API refused to delete a pod.
    DeletionRefused { until: Timestamp },
    /// The names of pods that are about to go must first be recorded as used.
    RecordingNames,
    /// Pods that are still terminating occupy the places of their replacements.
    AwaitingTermination { pods: Vec<WaitingPod> },
    /// The status is out of date.
    StatusChanged,
    /// The status is slightly out of date, and the write is batched with others.
    Batching { until: Timestamp },
    /// Pods are counted and may lose their finalizer.
    Counted,
    /// Nothing has to be done.
    Running { active: usize, succeeded: u32 },
    /// The Job is being deleted.
    BeingDeleted,
}

/// A pod that must end before the Job can go on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitingPod {
    /// Its index, in an Indexed Job.
    pub index: Option<u32>,
    pub name: String,
    pub node: Option<NodeName>,
}

impl fmt::Display for WaitingPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index {
            write!(f, "index {index}: ")?;
        }
        write!(f, "pod {}", self.name)?;
        match &self.node {
            Some(node) => write!(f, " on node {node}"),
            None => f.write_str(" on no node"),
        }
    }
}

/// How many pods a sentence names.
const NAMED: usize = 10;

fn list(pods: &[WaitingPod], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (position, pod) in pods.iter().take(NAMED).enumerate() {
        let separator = if position == 0 { "" } else { "; " };
        write!(f, "{separator}{pod}")?;
    }
    if pods.len() > NAMED { write!(f, "; and {} more", pods.len() - NAMED) } else { Ok(()) }
}

impl fmt::Display for JobWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("The controller job is not enabled."),
            Self::NotOurs { managed_by: Some(name) } => write!(f, "The Job is managed by {name}."),
            Self::NotOurs { managed_by: None } => f.write_str("The Job is left to the built-in controller."),
            Self::UnknownMode { mode } => write!(f, "The completion mode {mode:?} is not known."),
            Self::UnreadableStatus(unreadable) => write!(f, "The Job is held: {unreadable}."),
            Self::Finished { kind } => write!(f, "The Job is finished: {kind}."),
            Self::Expired { ended } => write!(f, "The Job ended at {ended}, and its time to live is over."),
            Self::Leftover => f.write_str(
                "Pods still have our finalizer, but their Job is finished, deleted or not ours any more.",
            ),
            Self::FindingPods => f.write_str(
                "Salvor is looking for pods that are older than the Job and that its selector matches.",
            ),
            Self::Claiming => {
                f.write_str("The Job must adopt or release pods: its selector and its pods do not match.")
            }
            Self::Decided { reason } => write!(f, "The Job ends with {reason}."),
            Self::Ending { reason, pods } if pods.is_empty() => {
                write!(f, "The Job ends with {reason}; its pods are being counted.")
            }
            Self::Ending { reason, pods } => {
                write!(f, "The Job ends with {reason}. It waits for these pods to end: ")?;
                list(pods, f)
            }
            Self::Suspending => f.write_str("The Job is suspended and still has pods."),
            Self::Suspended => f.write_str("The Job is suspended."),
            Self::TooManyPods { wanted } => write!(f, "The Job needs {wanted} pods and has more."),
            Self::NeedsPods { wanted } => write!(f, "The Job needs {wanted} pods and has fewer."),
            Self::BackingOff { until } => {
                write!(f, "Pods have failed: no new pod is created before {until}.")
            }
            Self::CreationRefused { until } => {
                write!(f, "The API server refused a pod: no new pod is created before {until}.")
            }
            Self::DeletionRefused { until } => {
                write!(f, "A pod could not be deleted: the next attempt is at {until}.")
            }
            Self::RecordingNames => {
                f.write_str("Before pods are deleted, their names must be recorded as used.")
            }
            Self::AwaitingTermination { pods } => {
                f.write_str("No replacement is created before these pods have ended: ")?;
                list(pods, f)
            }
            Self::StatusChanged => f.write_str("The Job's pods have changed."),
            Self::Batching { until } => {
                write!(f, "The Job's status was written just now. It is written again at {until}.")
            }
            Self::Counted => f.write_str("Pods have ended and are counted; their finalizer is removed."),
            Self::Running { active, succeeded } => {
                write!(f, "The Job runs: {active} pods active, {succeeded} succeeded.")
            }
            Self::BeingDeleted => f.write_str("The Job is being deleted."),
        }
    }
}

impl Reason for JobWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::NotOurs { .. } => "NotOurs",
            Self::UnknownMode { .. } => "UnknownMode",
            Self::UnreadableStatus(_) => "UnreadableStatus",
            Self::Finished { .. } => "Finished",
            Self::Expired { .. } => "Expired",
            Self::Leftover => "Leftover",
            Self::FindingPods => "FindingPods",
            Self::Claiming => "Claiming",
            Self::Decided { .. } => "Decided",
            Self::Ending { .. } => "Ending",
            Self::Suspending => "Suspending",
            Self::Suspended => "Suspended",
            Self::TooManyPods { .. } => "TooManyPods",
            Self::NeedsPods { .. } => "NeedsPods",
            Self::BackingOff { .. } => "BackingOff",
            Self::CreationRefused { .. } => "CreationRefused",
            Self::DeletionRefused { .. } => "DeletionRefused",
            Self::RecordingNames => "RecordingNames",
            Self::AwaitingTermination { .. } => "AwaitingTermination",
            Self::StatusChanged => "StatusChanged",
            Self::Batching { .. } => "Batching",
            Self::Counted => "Counted",
            Self::Running { .. } => "Running",
            Self::BeingDeleted => "BeingDeleted",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled => "Add job to controllers.",
            Self::NotOurs { managed_by } if managed_by.as_deref().is_none_or(|by| by == BUILT_IN_CONTROLLER) => {
                "job.unmanagedJobs, where the built-in controller is switched off; managedBy cannot be changed after creation."
            }
            Self::NotOurs { .. } => "Nothing: managedBy cannot be changed after creation.",
            Self::UnknownMode { .. } => "A newer version of Salvor.",
            Self::UnreadableStatus(_) => "Correct the field. The Job then goes on from there.",
            Self::Finished { .. } | Self::Expired { .. } | Self::Leftover => "Nothing: a finished Job stays finished.",
            Self::Ending { .. } | Self::AwaitingTermination { .. } => {
                "The pods become Succeeded or Failed, or are deleted. On an unreachable node only a recovery of the \
                 pod or of the node does that."
            }
            Self::Suspending | Self::Suspended => "Set suspend to false.",
            Self::BackingOff { .. }
            | Self::CreationRefused { .. }
            | Self::DeletionRefused { .. }
            | Self::Batching { .. } => "Time.",
            Self::FindingPods => "The list of pods is read.",
            Self::Running { .. } => "A pod ends, or the Job changes.",
            Self::BeingDeleted => "Nothing: the Job is being deleted.",
            Self::Claiming
            | Self::Decided { .. }
            | Self::TooManyPods { .. }
            | Self::NeedsPods { .. }
            | Self::RecordingNames
            | Self::StatusChanged
            | Self::Counted => "Salvor does the step below.",
        }
        .to_owned()
    }
}
