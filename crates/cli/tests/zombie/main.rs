//! Zombie recovery by the built binary on a real control plane.

// A test that cannot set its stage has failed.
#![allow(clippy::unwrap_used)]

mod rules;
mod stage;
mod story;
