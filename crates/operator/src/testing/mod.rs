//! What unit tests of several modules share.

pub(crate) mod any_step;
pub(crate) mod fake_api;
pub(crate) mod fuzz;
