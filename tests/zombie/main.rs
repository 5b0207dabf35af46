//! Tests of zombie recovery with the built binary, on a real control plane and on the embedded one.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod brake;
mod events;
mod evict_after;
mod gauges;
mod health;
mod jobs;
mod kubelets;
mod pressure;
mod rules;
mod stage;
mod story;
mod terms;
