//! A whole cluster in one process and in virtual time: the embedded API, simulated nodes, and the real operator.
//!
//! Everything runs on one thread whose clock stands still while there is work and jumps when there is none. Hours pass
//! in seconds, no test waits, and one seed gives one history, byte for byte.
//!
//! - [`in_virtual_time`] runs a future that way.
//! - [`cluster`] is a cluster of a seed, with control loops and room for nodes; [`History`] records all that happens in
//!   it.
//! - [`Process`] is an operator in it, which can be killed at any moment, also between two of its writes.
//! - [`swarm`] plays random clusters under random faults, and checks invariants at every revision.
//! - [`scenario`] is a file that defines nodes, work and failures; [`play`](mod@play) plays it with a policy, and
//!   [`report`] computes numbers from it.
//! - [`peers`] decide as other projects do, where no configuration of Salvor matches their rules.
//! - [`Karpenter`] launches and terminates the machines of NodeClaims, where a simulation needs them.

pub mod audit;
mod history;
mod json;
mod karpenter;
mod line;
pub mod peers;
pub mod play;
mod process;
pub mod report;
mod runtime;
pub mod scenario;
mod seed;
mod seeds;
pub mod swarm;

pub use history::History;
pub use karpenter::{Beat, Karpenter, Machine, define, objects, unless_gone};
pub use line::{CrashPoint, Line, Side, Wired};
pub use process::Process;
pub use runtime::in_virtual_time;
pub use seed::cluster;
pub use seeds::{Seeds, Threads};
