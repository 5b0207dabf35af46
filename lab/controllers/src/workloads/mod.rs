//! The controllers of workloads, and the budgets of their disruptions.

pub(crate) mod deployment;
pub(crate) mod disruption;
pub(crate) mod replica_set;
pub(crate) mod stateful_set;
mod template;
