//! Jobs run by the built binary: on a real control plane, beside every built-in controller, and on the embedded one.
//!
//! After the integration tests of the built-in Job controller. Pods of a test are not scheduled unless it has nodes; the
//! test itself then plays the kubelet.

// A test that cannot set its stage has failed.
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
