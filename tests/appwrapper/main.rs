//! Tests of AppWrappers with the built binary: on a real control plane with real workload controllers and simulated
//! nodes, and on the embedded one. [`controller`] describes how the same cases run against CodeFlare's controller.

// A case whose setup fails has failed.
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
