//! Why a workload does not come back: from objects of a cluster to one answer, by reading alone.
//!
//! ```text
//! World (what was read) ──► diagnose, pure ──► Answer
//!    ▲                          │
//!    └────── Reader ◄── what is wanted besides
//! ```
//!
//! The rules ask the [`World`] for objects. What it does not have yet it notes, the [`Reader`] reads that, and the rules are run
//! again, until nothing is wanted. So only what a chain needs is read, and a test hands in a world as it likes.

mod admission;
mod all;
mod answer;
mod code;
mod diagnosis;
mod jobs;
mod json;
mod kinds;
mod kueue;
mod nodes;
mod owners;
mod pods;
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
pub use code::Code;
pub use diagnosis::why;
pub use kinds::Kind;
pub use read::{Reader, WhyError};
pub use salvor::Judge;
pub use world::{Outcome, Query, World};
