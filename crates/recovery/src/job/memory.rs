//! What is remembered of a Job between two decisions.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::backoff::BackoffRecord;
use super::names::UsedNames;

/// What is remembered of a Job between two decisions. The counts do not need it: losing it only makes Salvor wait a
/// little less or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Failures since the last success.
    pub backoff: BackoffRecord,
    pub status_written: Option<Timestamp>,
    /// True if pods were created since then.
    pub made_pods: bool,
    /// Until when no pod is created, after the API refused one.
    pub creation_paused_until: Option<Timestamp>,
    /// Until when no pod is deleted, after the API refused to delete one.
    pub deletion_paused_until: Option<Timestamp>,
    /// Names that foreign pods have.
    pub taken_names: BTreeSet<String>,
    /// Names of its pods that were seen, also of pods that disappeared before their name was recorded.
    pub names: UsedNames,
    /// The last event that said why nothing is done, so that it is not repeated at every decision.
    pub told: Option<String>,
}
