//! The rules as tables, after the tests of the built-in controller, and as properties, on a small simulation that
//! carries out the decisions like an API server.

// Tables read better without a reference before every piece of JSON.
#![allow(clippy::needless_pass_by_value)]

mod builtin;
mod names;
mod policies;
mod properties;
mod status_rules;
mod steps;
mod waits;
mod world;
