//! Salvor's decisions and their reasons: one module per recovery, and the parts that recoveries share.
//!
//! Everything here is a function of what was observed, the policy and the time. There is no client, no clock, no async
//! and no randomness, so a decision can be read, tested and explained on its own.
//!
//! A recovery reads *views* (only the fields that it decides by), and returns a [`Decision`]: a [`Verdict`] with its
//! reason, and every rule that was checked. A [`Step`] is a guarded write as data, from the recovery's own enum of
//! steps; the operator carries it out. The [`Brake`](brake::Brake) blocks all recoveries when too much fails at once,
//! and the [`ServerClock`] gives the time by which nothing is ever done early.

pub mod appwrapper;
pub mod brake;
pub mod event;
pub mod eviction;
pub mod expected;
mod fnv;
#[cfg(test)]
mod fuzz;
pub mod gate;
pub mod ids;
pub mod job;
pub mod liveness;
mod moments;
pub mod objects;
pub mod one_actor;
pub mod opt_in;
pub mod pause;
mod pod_writes;
pub mod proof;
pub mod repair;
mod server_clock;
pub mod signing;
pub mod step;
pub mod taints;
mod verdict;
pub mod zombie;

pub use server_clock::{ClockChange, ServerClock};
pub use step::Step;
pub use verdict::{Decision, Finding, Reason, Report, Trace, Verdict, judge};
