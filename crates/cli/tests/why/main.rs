//! `salvor why` by the built binary: each root cause on a control plane, with the remedy carried out where it is a command.
//! `salvor doctor` and `salvor uninstall` as well, which look at the same cluster.

// A test that cannot set its stage has failed.
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
mod uninstall;
