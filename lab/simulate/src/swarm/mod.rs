//! The swarm: random small clusters in virtual time, under random faults and user actions, with the real operator in
//! them.
//!
//! A seed gives a [`Plan`]: plain data that describes the cluster and what happens in it. [`play`] plays it and reports
//! the [`Invariant`]s that were broken. [`shrink`] finds a shorter plan that still breaks one, and [`Swarm`] plays many
//! seeds on many threads.
//!
//! Each run has three parts. First there are faults. Then the API and the replicas are healthy, and dead machines stay
//! dead: everything that may be recovered must be. Last all machines are healthy: everything must finish, and no mark
//! of Salvor may be left.

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
