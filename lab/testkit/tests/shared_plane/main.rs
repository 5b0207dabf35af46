//! Many tests on one control plane.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod network;
mod parts;
mod records;
mod rights;
#[path = "../support/mod.rs"]
mod support;
mod waiting;
