//! The Job recovery: a complete Job controller for Jobs that select it (KEP-3939 and everything around it).
//!
//! [`decide`] has the rules; read it top to bottom. Each decision requests one step, which changes what the next one
//! sees. A step whose result was lost, by a crash or a lost response, is seen like any other fact.
//!
//! A pod is counted exactly once. It keeps our finalizer until its end is written in the Job's status
//! (`uncountedTerminatedPods`, or `completedIndexes`). Only then is the finalizer removed, and only after that does the
//! pod move from the list to the counter.

mod backoff;
mod decide;
mod failure_policy;
mod indexes;
mod job_end;
mod memory;
mod missing_pods;
mod names;
mod new_pod;
mod notes;
mod policy;
mod read_back;
mod reasons;
mod record;
mod status;
mod steps;
mod success_policy;
mod tally;
mod unreadable;
mod views;
mod waiting;

pub use backoff::BackoffRecord;
pub use decide::{decide, decide_leftovers, decide_once_pods_are_found};
pub use failure_policy::{failure_action, failure_rule};
pub use indexes::{Indexes, NoIndexes};
pub use memory::Memory;
pub use names::UsedNames;
pub use notes::{created_note, refused_note, undeleted_note};
pub use policy::JobPolicy;
pub use reasons::{JobWhy, WaitingPod};
pub use record::remember_names;
pub use steps::{CreationReason, Step};
pub use tally::{recollect, remember};
pub use unreadable::Unreadable;
pub use views::{
    CompletionMode, Deletion, ExitCodeOperator, FailureAction, IndexFailures, JobCondition, JobSpec,
    JobStatus, JobView, OnExitCodes, OnPodCondition, PodFailurePolicy, PodFailureRule, PodReplacementPolicy,
    PodView, Ready, Selected, Stray, SuccessPolicy, SuccessRule, Template, Tracking, Uncounted,
};
pub use waiting::{Waiting, WaitsFor, waiting};

#[cfg(test)]
mod tests;
