//! The eviction of nodes by the built binary on a real control plane.

// A test that cannot set its stage has failed.
#![allow(clippy::unwrap_used)]

mod faults;
mod hand_made;
mod stage;
mod story;
