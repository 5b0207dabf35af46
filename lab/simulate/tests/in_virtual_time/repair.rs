//! Unhealthy nodes under a NodeRepairPolicy, with Karpenter played by the test. Every revision of every object is
//! audited.

mod audit;
pub(crate) mod corrupted;
mod crash_points;
mod freed;
mod holds;
mod stories;
mod unseen;
mod world;
