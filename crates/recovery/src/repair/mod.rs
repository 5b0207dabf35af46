//! The repair recovery: a node that has been sick for too long is replaced or rebooted, gently where possible, and never too many
//! at once.
//!
//! Read [`rules`](decide_node) first. `sickness.rs` says which node is sick and until when that is tolerated, `progress.rs` keeps its
//! clock, `survey.rs` looks at all nodes of a policy and gives turns, `next.rs` has the next step for a node, `limits.rs` asks its limits about a node, `outages.rs` finds sickness that has one cause, `relapse.rs` finds
//! repairs that do not help, `pods.rs` drains nodes and frees the pods of those that are gone, and
//! `kept.rs` what stood on a Node that was deleted, and `provider.rs` has what providers repair by default.

mod action;
mod amounts;
mod cron;
mod holds;
mod kept;
mod ladder;
mod limits;
mod next;
mod outages;
mod pods;
mod policy;
mod progress;
mod provider;
mod reasons;
mod relapse;
mod rules;
mod sickness;
mod status;
mod steps;
mod survey;
#[cfg(test)]
mod tests;
mod veto;
mod views;

pub use action::Action;
pub use amounts::Amount;
pub use cron::Schedule;
pub use holds::Hold;
pub use kept::{Kept, KeptTaint};
pub use limits::Asked;
pub use outages::Outage;
pub use pods::{Grave, PodPlace, PodView, PodWhy, Stays, decide_pod};
pub use policy::{Budget, Entry, Head, Policy, Rung, Termination, UnownedNodes, allowance};
pub use progress::{Clock, Healed, Look, Observed, Progress, SickNow, Tried};
pub use provider::{Provider, Statement};
pub use reasons::{NodeWhy, PolicyWhy};
pub use relapse::{PoolCondition, Relapse, Replacements};
pub use rules::{COUNTS_EVERY, KeptBy, Place, PolicyScene, Scene, decide_node, decide_policy, is_drained};
pub use sickness::{Diagnosis, Resolution, STARTUP, Settings, Sick, Source, diagnose, resolve};
pub use status::{End, Ended, PolicyCondition, PolicyStatus, Repair};
pub use steps::{Begun, Step};
pub use survey::{LaunchTrouble, Member, RELEASE_AFTER, Scope, Survey, survey};
pub use veto::{Veto, veto};
pub use views::{
    Backend, ConditionView, Left, NODE_CLAIM, NODE_POOL, NODE_REPAIR_POLICY, NodeLabels, NodeMarks, NodeView,
    OwnerView, PoolView, Refusal, Status, Words,
};
