//! The alert rules and the dashboard in `deploy/`, against promtool and against the metrics of a real run.

// A test whose setup fails has failed.
#![allow(clippy::unwrap_used)]

mod files;
mod played;
