//! The reasons forevery decision of AppWrapper recovery, with their messages.

use std::fmt;

use jiff::Timestamp;

use super::deletion::{Held, Left};
use super::health::{Counts, Stage};
use super::names::CONTROLLER_NAME;
use super::resets::{Cause, GivenUp};
use super::status::Phase;
use crate::gate::MACHINE_MAY_RUN;
use crate::verdict::Reason;

/// The maximum length of an unknown phase in a message.
const LONGEST_PHASE: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppWrapperWhy {
    Disabled,
    NotOurs {
        managed_by: String,
    },
    /// The pods are not listed yet.
    PodsUnknown,
    UnknownPhase {
        phase: String,
    },
    New,
    /// It is suspended, and nothing of it is left.
    Suspended,
    /// It is suspended, and the admission rules refuse it: it would fail if it were resumed.
    SuspendedAndRefused {
        message: String,
    },
    /// It was changed after admission, so nothing is created for it.
    Changed {
        /// What was changed, and what to do.
        message: String,
    },
    /// The author's rights could not be checked.
    AuthorUnknown {
        message: String,
    },
    /// Objects exist that were created too late.
    LeftOver {
        left: Left,
    },
    /// The finalizer must be set before anything is created.
    NeedsFinalizer,
    Resuming,
    Creating {
        components: usize,
    },
    /// A component could not be created, and is retried.
    CreationFailed {
        error: String,
    },
    /// An object that the AppWrapper owns is adopted as the component that was created without a recorded name.
    Adopting {
        name: String,
    },
    /// The AppWrapper owns objects that are not its components.
    Strays {
        count: usize,
    },
    /// All components were created a moment ago.
    JustCreated,
    Created,
    /// All pods run or have succeeded.
    Healthy {
        counts: Counts,
    },
    /// Pods are missing or not running, and their grace period is not over.
    AwaitingPods {
        counts: Counts,
        stage: Stage,
    },
    /// All components are done, but some pods have not ended. They are ended if their own controllers do not do it.
    Finishing {
        pods: usize,
    },
    /// It is unhealthy, and its own controllers have time to repair it.
    Unhealthy {
        cause: Cause,
        message: String,
    },
    Reset {
        cause: Cause,
        message: String,
        /// True if the reset counts against the retry limit.
        counted: bool,
        /// Resets that counted, including this one.
        count: i32,
        limit: i32,
    },
    /// It is unhealthy and has failed.
    GivenUp {
        cause: Cause,
        message: String,
        /// Why it is not tried again.
        why: GivenUp,
    },
    Succeeded {
        pods: usize,
    },
    /// `spec.suspend` was set.
    Suspending {
        /// The phase before the suspension.
        phase: Phase,
    },
    Deleting {
        left: Left,
        forced: bool,
    },
    /// A deletion is in progress, and a pod is not forced because its machine may run.
    MachineMayRun(Box<Held>),
    /// Nothing that it created is left.
    Deleted {
        phase: Phase,
    },
    /// The pause between deletion and creation.
    Pausing,
    /// It has failed, and is kept for a while for debugging.
    KeptAfterFailure {
        since: Timestamp,
    },
    /// It succeeded, and its components are kept for a while.
    KeptAfterSuccess {
        since: Timestamp,
    },
    /// It has ended, and nothing is left to do.
    Ended {
        phase: Phase,
    },
    /// It is being deleted, and does not have Salvor's finalizer.
    BeingDeleted,
    /// It is being deleted, and nothing that it created is left.
    Released,
    /// The event is not recorded yet.
    Untold,
}

impl fmt::Display for AppWrapperWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("The controller appwrapper is not enabled."),
            Self::NotOurs { managed_by } => {
                write!(f, "spec.managedBy is {managed_by:?}, which is not Salvor.")
            }
            Self::PodsUnknown => f.write_str("The pods of the AppWrapper have not been listed yet."),
            Self::UnknownPhase { phase } => {
                let beginning: String = phase.chars().take(LONGEST_PHASE).collect();
                write!(f, "status.phase is {beginning:?}, which is not a known phase.")
            }
            Self::New => f.write_str("The AppWrapper is new."),
            Self::Suspended => f.write_str("The AppWrapper is suspended, and none of its resources exist."),
            Self::SuspendedAndRefused { message } => {
                write!(f, "The AppWrapper is suspended, and is refused as soon as it is to run: {message}.")
            }
            Self::Changed { message } => {
                write!(f, "The AppWrapper was changed after it was admitted: {message}.")
            }
            Self::AuthorUnknown { message } => {
                write!(f, "Nothing is created before it is known what its author may create: {message}.")
            }
            Self::LeftOver { left } => {
                write!(f, "Resources exist although none should, and are deleted: {left}.")
            }
            Self::NeedsFinalizer => {
                f.write_str("The AppWrapper needs its finalizer before anything is created.")
            }
            Self::Resuming => f.write_str("The AppWrapper is no longer suspended."),
            Self::Creating { components } => write!(f, "{components} components are to be created."),
            Self::CreationFailed { error } => write!(f, "A component is not created yet: {error}."),
            Self::Adopting { name } => {
                write!(
                    f,
                    "Object {name} is owned by the AppWrapper and is the component that has no recorded name."
                )
            }
            Self::Strays { count } => {
                write!(f, "{count} objects are owned by the AppWrapper but are not its components.")
            }
            Self::JustCreated => {
                f.write_str("All components were created just now; their pods have a moment to start.")
            }
            Self::Created => f.write_str("All components are created."),
            Self::Healthy { counts } => write!(f, "The workload is healthy: {counts}."),
            Self::AwaitingPods { counts, stage: Stage::Admission } => {
                write!(f, "Not all of {} pods exist: {counts}.", counts.expected)
            }
            Self::AwaitingPods { counts, stage: Stage::Warmup } => {
                write!(f, "Not all of {} pods run: {counts}.", counts.expected)
            }
            Self::Finishing { pods } => {
                write!(f, "All components are done; {pods} pods have not ended yet, so quota is kept.")
            }
            Self::Unhealthy { cause, message } => {
                write!(f, "The workload is unhealthy ({cause}{}), and has time to recover.", detail(message))
            }
            Self::Reset { cause, message, counted: true, count, limit } => write!(
                f,
                "The workload is unhealthy ({cause}{}) and is reset, {count} of {limit} times.",
                detail(message)
            ),
            Self::Reset { cause, message, counted: false, .. } => write!(
                f,
                "The workload is unhealthy ({cause}{}) and is reset; this does not count against its retry limit.",
                detail(message)
            ),
            Self::GivenUp { cause, message, why } => {
                let why = match why {
                    GivenUp::Terminal => "another attempt would not help",
                    GivenUp::LimitReached => "its retry limit is reached",
                    GivenUp::NoRetries => "its retry limit allows no reset",
                };
                write!(f, "The workload is unhealthy ({cause}{}) and has failed: {why}.", detail(message))
            }
            Self::Succeeded { pods } => write!(f, "The workload has succeeded: {pods} pods succeeded."),
            Self::Suspending { phase } => {
                write!(f, "The AppWrapper was suspended while in the {phase} phase.")
            }
            Self::Deleting { left, forced: false } => write!(f, "Its resources are being deleted; {left}."),
            Self::Deleting { left, forced: true } => {
                write!(f, "Its resources are being deleted by force; {left}.")
            }
            Self::MachineMayRun(held) => {
                write!(f, "Its resources are being deleted, and its quota is kept: {held}")
            }
            Self::Deleted { phase } => write!(f, "None of its resources exist any more ({phase})."),
            Self::Pausing => f.write_str("The pause before the resources are created again."),
            Self::KeptAfterFailure { since } => {
                write!(f, "The AppWrapper failed at {since}; its resources and quota are kept for debugging.")
            }
            Self::KeptAfterSuccess { since } => {
                write!(f, "The AppWrapper succeeded at {since}; its resources are kept for a while.")
            }
            Self::Ended { phase } => write!(f, "The AppWrapper is {phase}; nothing is left to do."),
            Self::BeingDeleted => {
                f.write_str("The AppWrapper is being deleted and does not have our finalizer.")
            }
            Self::Released => {
                f.write_str("The AppWrapper is being deleted and none of its resources exist any more.")
            }
            Self::Untold => f.write_str("The event about what happened may be missing."),
        }
    }
}

fn detail(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(", {message}") }
}

impl Reason for AppWrapperWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::NotOurs { .. } => "NotOurs",
            Self::PodsUnknown => "PodsUnknown",
            Self::UnknownPhase { .. } => "UnknownPhase",
            Self::New => "New",
            Self::Suspended => "Suspended",
            Self::SuspendedAndRefused { .. } => "SuspendedAndRefused",
            Self::Changed { .. } => "Changed",
            Self::AuthorUnknown { .. } => "AuthorUnknown",
            Self::LeftOver { .. } => "LeftOver",
            Self::NeedsFinalizer => "NeedsFinalizer",
            Self::Resuming => "Resuming",
            Self::Creating { .. } => "Creating",
            Self::CreationFailed { .. } => "CreationFailed",
            Self::Adopting { .. } => "Adopting",
            Self::Strays { .. } => "Strays",
            Self::JustCreated => "JustCreated",
            Self::Created => "Created",
            Self::Healthy { .. } => "Healthy",
            Self::AwaitingPods { .. } => "AwaitingPods",
            Self::Finishing { .. } => "Finishing",
            Self::Unhealthy { .. } => "Unhealthy",
            Self::Reset { .. } => "Reset",
            Self::GivenUp { .. } => "GivenUp",
            Self::Succeeded { .. } => "Succeeded",
            Self::Suspending { .. } => "Suspending",
            Self::Deleting { .. } => "Deleting",
            Self::MachineMayRun(_) => MACHINE_MAY_RUN,
            Self::Deleted { .. } => "Deleted",
            Self::Pausing => "Pausing",
            Self::KeptAfterFailure { .. } => "KeptAfterFailure",
            Self::KeptAfterSuccess { .. } => "KeptAfterSuccess",
            Self::Ended { .. } => "Ended",
            Self::BeingDeleted => "BeingDeleted",
            Self::Released => "Released",
            Self::Untold => "Untold",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled => "The administrator's --controllers list with appwrapper would: * stands for the controllers that are on by default, and appwrapper is not.".into(),
            Self::NotOurs { .. } => {
                format!("A spec.managedBy that is absent or {CONTROLLER_NAME:?} would; it cannot be changed later.")
            }
            Self::PodsUnknown => "A complete list of its pods would.".into(),
            Self::UnknownPhase { .. } => "A phase that is known would.".into(),
            Self::Suspended => "spec.suspend set to false would.".into(),
            Self::SuspendedAndRefused { .. } => {
                "A configuration that allows its components, or the spec as it was admitted would, before spec.suspend is set to false.".into()
            }
            Self::Changed { .. } => {
                "The spec as it was admitted would; after the admission grace period the AppWrapper fails.".into()
            }
            Self::AuthorUnknown { .. } => {
                "An answer to the SubjectAccessReviews would; they are asked again, and after the admission grace period the \
                 attempt ends."
                    .into()
            }
            Self::LeftOver { .. } | Self::Deleting { .. } => {
                "The end of these resources; after the forceful deletion grace period they are deleted by force where two of \
                 them may run, but no finalizer is removed."
                    .into()
            }
            Self::MachineMayRun(held) => {
                format!("The node's return, or: {}.", held.first.ways_out().join("; or: "))
            }
            Self::CreationFailed { .. } => "A successful creation, or the end of the admission grace period.".into(),
            Self::Healthy { .. } => "A pod or component that fails, a node to leave, success, or spec.suspend.".into(),
            Self::AwaitingPods { .. } => "All pods running, or the end of the grace period.".into(),
            Self::Finishing { .. } => {
                "The end of these pods; after the failure grace period their components are deleted, and after the \
                 forceful deletion grace period they are deleted by force where two of them may run."
                    .into()
            }
            Self::Unhealthy { .. } => "A workload that is healthy again, or the end of the grace period.".into(),
            Self::Pausing => "The end of the pause, or spec.suspend.".into(),
            Self::KeptAfterFailure { .. } => "The end of the time, or spec.suspend, or its deletion.".into(),
            Self::KeptAfterSuccess { .. } => "The end of its time to live, or spec.suspend, or its deletion.".into(),
            Self::Ended { .. } => "Only its deletion.".into(),
            Self::BeingDeleted => "Nothing of ours; other finalizers hold it.".into(),
            Self::Untold => "Recording the event ends it.".into(),
            Self::JustCreated => "All pods running, one that fails, or the end of that moment: a second after the last pod was created, five seconds where pods are not there yet.".into(),
            Self::New
            | Self::NeedsFinalizer
            | Self::Resuming
            | Self::Creating { .. }
            | Self::Adopting { .. }
            | Self::Strays { .. }
            | Self::Created
            | Self::Reset { .. }
            | Self::GivenUp { .. }
            | Self::Succeeded { .. }
            | Self::Suspending { .. }
            | Self::Deleted { .. }
            | Self::Released => "Only a change of the AppWrapper or its resources before it is done.".into(),
        }
    }
}
