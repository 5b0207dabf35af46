//! Tests of Jobs with the built binary: on a real control plane, beside every built-in controller, and on the embedded
//! one.
//!
//! They follow the integration tests of the built-in Job controller. Pods are not scheduled unless a test has nodes;
//! otherwise the test itself plays the kubelet.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod alone;
mod basics;
mod endings;
mod late_news;
mod lost_nodes;
mod names;
mod policies;
mod replacement;
mod restarts;
mod side_by_side;
mod simulation;
mod stage;
mod users;
