//! The names and formats that users of Salvor write and read: configuration file, annotations, taints, conditions,
//! durations.
//!
//! This crate never accesses a cluster, and never panics on user input.

#![warn(missing_docs)]

pub mod config;
mod controllers;
pub mod crds;
mod feature_gates;
#[cfg(test)]
mod fuzz;
mod go_duration;
mod label_selector;
mod labels;
pub mod names;

pub use controllers::{Controller, ControllerList, UnknownController};
pub use feature_gates::{FeatureGates, Gate, ParseFeatureGatesError, Stage};
pub use go_duration::{GoDuration, ParseGoDurationError};
pub use label_selector::{
    LabelSelector, Operator, Requirement, SelectorDefect, SelectorField, is_dns_subdomain, value_defect,
};
pub use labels::{Labelled, Labels};
