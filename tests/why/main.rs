//! Tests of `salvor why` with the built binary: each root cause on a control plane, and each remedy that is a command
//! is executed. Also `salvor doctor` and `salvor uninstall`, which read the same cluster.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod admission;
mod appwrappers;
mod cost;
mod doctor;
mod findings;
mod jobs;
mod kueue;
mod lost;
mod nodes;
mod played;
mod rights;
mod stage;
mod status;
mod uninstall;
