//! Diagnoses why a workload does not recover. Reads objects of a cluster, changes nothing, and returns one answer.
//!
//! ```text
//! World (objects read so far) ──► diagnose, pure ──► Answer
//!         ▲                            │
//!         └────────── Reader ◄── objects still needed
//! ```
//!
//! The rules ask the [`World`] for objects. The world records those that it does not have, the [`Reader`] reads them,
//! and the rules run again until nothing is missing. So the reader reads only what a chain needs, and tests can
//! construct any world.

mod admission;
mod all;
mod answer;
mod code;
mod diagnosis;
mod expected;
mod jobs;
mod json;
mod kinds;
mod kueue;
mod near;
mod nodes;
mod owners;
mod pods;
mod presence;
mod quota;
mod read;
mod salvor;
mod slim;
#[cfg(test)]
mod tests;
mod volumes;
mod words;
mod world;

pub use all::everything;
pub use answer::{Answer, Group, Link, NotSeen, Object, Overview, Remedy, RootCause, Waiting};
pub use code::{Code, Stage};
pub use diagnosis::why;
pub use kinds::{Kind, is_namespace};
pub use near::{did_you_mean, near};
pub use presence::Judge;
pub use read::{Reader, WhyError};
pub use salvor_recovery::expected::{ExpectedBack, brief};
pub use world::{Outcome, Query, World};
