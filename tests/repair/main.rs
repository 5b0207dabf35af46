//! Tests of node repair with the built binary: on a real API server and on the embedded one with a simulated Karpenter,
//! on a real control plane with the real Karpenter, and with a simulated owner of Cluster API Machines.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod actions;
mod backends;
mod catalogue;
mod crashes;
#[path = "../support/custom.rs"]
mod custom;
mod faults;
mod holds;
mod karpenter;
mod limits;
mod objects;
mod pods;
mod policies;
mod real_karpenter;
mod stage;
mod timing;
mod told;
mod vetoes;
