//! The real operator on the embedded API, in virtual time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod appwrapper;
mod clocks;
mod corrupted;
mod crash_points;
mod determinism;
mod eviction;
mod eviction_crash_points;
mod eviction_waits;
mod job_crash_points;
mod job_faults;
mod job_unseen;
mod one_actor;
mod repair;
mod restore;
mod stage;
mod troubles;
mod waits;
mod zombie;
