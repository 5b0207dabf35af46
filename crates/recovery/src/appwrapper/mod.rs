//! Workloads that are wrapped in an AppWrapper.

pub mod admission;
pub mod inject;
pub mod podsets;
