//! The programs that tests run.

pub mod browser;
pub mod kubectl;
pub(crate) mod program;
pub(crate) mod prometheus;
pub(crate) mod salvor;
pub(crate) mod supervised;
