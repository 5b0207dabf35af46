//! The eviction recovery: a node that is certainly down is evicted now, without a race against its return (KEP-36).
//!
//! The rules are in `rules.rs`, [`decide_node`] and [`decide_pod`]; read them top to bottom, beside the seed document.
//! Their input is [`Scene`], [`NodeView`], [`PodView`] and the administrator's [`EvictionPolicy`], and their reasons
//! are [`NodeWhy`] and [`PodWhy`].

mod memory;
mod pod_ending;
mod policy;
mod reasons;
mod rules;
mod seen;
mod steps;
mod tolerations;
mod views;
mod volumes;
mod writes;

pub use memory::{Asked, Damage, Memory, Progress, Released};
pub use policy::{EvictionPolicy, Request, asked_in_person};
pub use reasons::{NodeWhy, PodWhy};
pub use rules::{decide_node, decide_pod, is_gone, leaves};
pub use steps::Step;
pub use tolerations::{Tolerance, Toleration};
pub use views::{AttachmentView, DespiteOutage, Lease, NodeView, PodView, Refusal, Scene};

#[cfg(test)]
mod tests;
