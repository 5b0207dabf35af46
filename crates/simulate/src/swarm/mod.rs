//! The swarm: random small clusters in virtual time, under random faults and people's acts, with the real operator in them.
//!
//! A seed gives a [`Plan`]: plain data that says what the cluster is like and what happens in it. [`play`] plays it, and tells which
//! [`Invariant`]s were broken. [`shrink`] finds a shorter plan that still breaks one, and [`Swarm`] plays many seeds on many threads.
//!
//! Each run has three parts. First there is trouble. Then the API and the replicas are well, and machines that are dead stay dead:
//! what may be recovered must be. Last all machines are well: everything must end, and nothing of Salvor's may be left behind.

mod check;
mod deed;
mod drills;
mod eventually;
mod hands;
mod kinds;
mod objects;
mod panics;
mod plan;
mod play;
mod recorder;
mod replica;
mod runner;
mod shrink;
mod world;

pub use check::{Deeds, Invariant, Violation};
pub use deed::{Call, Deed, Move, NodeFault, Watched};
pub use kinds::Kind;
pub use plan::{Consent, JobPlan, Plan, PodPlan, Settings, TROUBLE, Workloads};
pub use play::{Outcome, play, play_and_tell};
pub use runner::{Finding, Progress, Report, Swarm};
pub use shrink::shrink;

pub use crate::seeds::Seeds;
