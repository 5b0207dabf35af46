//! Zombie recovery: pods stuck terminating on a node that the control plane cannot reach (KEP-6757), and pods whose
//! owner wants them given up as soon as their node is lost (`salvor.dev/evict-after`).
//!
//! [`decide_pod`] and [`decide_node`] have the rules; read them top to bottom. Their input is [`PodView`], [`NodeView`]
//! and the administrator's [`ZombiePolicy`], and their reasons are [`PodWhy`] and [`NodeWhy`].

mod job_facts;
mod jobs;
mod node;
mod pod;
mod policy;
mod reasons;
mod steps;
mod views;

pub use job_facts::{Doom, JobFacts, JobSight, Member, OfJob, Raised, Relative, Stage};
pub use node::decide_node;
pub use pod::{decide_pod, is_due};
pub use policy::{Consent, ConsentSource, Disabled, EvictAfter, EvictBy, WaitBy, ZombiePolicy};
pub use reasons::{EvictTerms, NodeWhy, PodWhy, Terms, Waited, ZombieFacts};
pub use steps::Step;
pub use views::{
    AskedWait, ConsentAnnotations, Mark, NodeView, OutOfServiceMark, PodView, Unreachable, WaitDefect,
};

#[cfg(test)]
mod tests;
