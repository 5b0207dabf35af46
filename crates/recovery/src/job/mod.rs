//! The Job recovery: a whole Job controller for Jobs that say so (KEP-3939, and all around it).
//!
//! [`decide`] is the rules; read it top to bottom. Each judgement asks for one step, which changes what the next one
//! sees: a step that was done and forgotten, by a crash or a lost answer, is seen like any other fact.
//!
//! A pod is counted exactly once. It carries our finalizer until its end is written down in the Job's status
//! (`uncountedTerminatedPods`, or `completedIndexes`); only then the finalizer goes, and only when it is gone the pod
//! moves from the list to the counter.

mod backoff;
mod decide;
mod failure_policy;
mod fate;
mod indexes;
mod lack;
mod names;
mod new_pod;
mod notes;
mod policy;
mod read_back;
mod reasons;
mod status;
mod steps;
mod success_policy;
mod tally;
mod views;
mod waiting;

pub use backoff::BackoffRecord;
pub use decide::{decide, decide_leftovers, decide_once_pods_are_found};
pub use failure_policy::{failure_action, failure_rule};
pub use indexes::{Indexes, NoIndexes};
pub use names::{UsedNames, remember_names};
pub use notes::{created_note, refused_note, undeleted_note};
pub use policy::JobPolicy;
pub use read_back::Unreadable;
pub use reasons::{JobWhy, WaitingPod};
pub use steps::{CreationReason, Step};
pub use tally::{recollect, remember};
pub use views::{
    CompletionMode, Deletion, ExitCodeOperator, FailureAction, IndexFailures, JobCondition, JobSpec,
    JobStatus, JobView, Memory, OnExitCodes, OnPodCondition, PodFailurePolicy, PodFailureRule,
    PodReplacementPolicy, PodView, Ready, Selected, Stray, SuccessPolicy, SuccessRule, Template, Tracking,
    Uncounted,
};
pub use waiting::{Waiting, WaitsFor, waiting};

#[cfg(test)]
mod tests;
