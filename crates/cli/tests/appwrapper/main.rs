//! AppWrappers under the built binary: on a real control plane with real workload controllers and simulated nodes, and on
//! the embedded one. [`controller`] says how the same cases are played against the controller that users have today.

// A case that cannot set its stage has failed.
#![allow(clippy::unwrap_used)]

mod bounds;
mod causes;
mod changes;
mod controller;
mod crashes;
#[path = "../support/custom.rs"]
mod custom;
mod endings;
mod kinds;
mod kueue;
mod lifecycle;
mod machines;
mod multikueue;
mod nodes;
mod objects;
mod resets;
mod samples;
mod settings;
mod stage;
mod stamps;
mod suspension;
mod templates;
mod troubles;
mod webhooks;
