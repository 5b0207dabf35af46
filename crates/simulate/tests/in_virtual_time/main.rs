//! The real operator on the embedded API, in virtual time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod crash_points;
mod job;
mod stage;
mod zombie;
