//! Reads, plays and compares transcripts.

pub(crate) mod compare;
pub(crate) mod differences;
pub(crate) mod generator;
pub(crate) mod player;
pub(crate) mod transcript;
pub(crate) mod webhook;

/// The time for the embedded cluster, so that both sides agree on what is in the past and what is in the future.
#[expect(clippy::disallowed_methods, reason = "the real server has no other clock")]
pub(crate) fn wall_clock() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
