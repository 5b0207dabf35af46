//! Tests of the eviction of nodes with the built binary, on a real control plane and on the embedded one.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod damage;
mod faults;
mod hand_made;
mod outage;
mod proof;
mod returns;
mod stage;
mod story;
