//! Derives the memory limit of a replica from its enabled recoveries.

use salvor_api::config::Configuration;
use salvor_operator::recoveries;

/// The program itself, the lists it reads at startup, and room for objects of the maximum size that the API allows. An
/// idle replica uses 10 MB, and one that reads 200 pods of 1.2 MB uses 44 MB (docs/explanation/limits.md).
pub(super) const BASE: u32 = 96;

/// The memory limit in mebibytes. Half of it is requested.
pub(super) fn limit(configuration: &Configuration) -> u32 {
    let enabled = recoveries().filter(|entry| entry.off(configuration).is_none());
    BASE + enabled.map(|entry| entry.memory).sum::<u32>()
}
