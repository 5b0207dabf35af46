//! Zombie recovery: pods stuck terminating on a node that the control plane cannot reach (KEP-6757).
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
pub use policy::{Consent, ConsentSource, Disabled, WaitBy, ZombiePolicy};
pub use reasons::{NodeWhy, PodWhy, Terms, ZombieFacts};
pub use steps::Step;
pub use views::{
    AskedWait, ConsentAnnotations, Mark, NodeView, OutOfServiceMark, PodView, Unreachable, WaitDefect,
};

#[cfg(test)]
mod tests;
