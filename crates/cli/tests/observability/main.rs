//! The alert rules and the dashboard in `deploy/`, against promtool and against the metrics of a real run.

// A test that cannot set its stage has failed.
#![allow(clippy::unwrap_used)]

mod files;
mod played;
