//! The repair recovery: it replaces or reboots a node that has been sick for too long. It drains where possible, and
//! limits how many nodes are under repair at the same time.
//!
//! Start with [`rules`](decide_node); `rules/policy.rs` has the questions about a policy. `sickness.rs` decides which
//! node is sick and how long that is tolerated, and `progress.rs` keeps the clocks. `survey.rs` counts all nodes of a
//! policy into `counts.rs` and gives out turns, `limits.rs` applies the policy's limits to one node, and `next.rs`
//! chooses the next step for a node. `outages.rs` finds sickness with a common cause, and `relapse.rs` finds
//! replacements that do not help. `pods.rs` drains nodes and frees the pods of nodes that are gone. `kept.rs` saves the
//! metadata of a Node that is deleted, and `provider.rs` lists what providers repair by default.

mod action;
mod counts;
mod holds;
mod kept;
mod ladder;
mod limits;
mod member;
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
pub use counts::{PoolCondition, Relapse, Survey};
pub use holds::{Hold, LaunchTrouble, Outage};
pub use kept::{Kept, KeptTaint};
pub use limits::Asked;
pub use member::Member;
pub use pods::{Grave, PodPlace, PodWhy, decide_pod};
pub use policy::amounts::Amount;
pub use policy::cron::Schedule;
pub use policy::{Budget, Entry, Head, Policy, Rung, Termination, UnownedNodes, allowance};
pub use progress::{Clock, Healed, Look, Observed, Progress, SickNow, Tried};
pub use provider::{Provider, Statement};
pub use reasons::{NodeWhy, PolicyWhy};
pub use rules::{COUNTS_EVERY, KeptBy, Place, PolicyScene, Scene, decide_node, decide_policy, is_drained};
pub use sickness::{Diagnosis, Resolution, STARTUP, Settings, Sick, Source, diagnose, resolve};
pub use status::{End, Ended, PolicyCondition, PolicyStatus, Repair, Replacements};
pub use steps::{Begun, Step};
pub use survey::{RELEASE_AFTER, Scope, survey};
pub use veto::{Veto, veto};
pub use views::{
    Backend, ConditionView, Left, NODE_CLAIM, NODE_POOL, NODE_REPAIR_POLICY, NodeLabels, NodeMarks, NodeView,
    OwnerView, PodView, PoolView, Refusal, Status, Stays, Words,
};
