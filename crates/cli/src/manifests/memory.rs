//! The memory of a replica, from what it runs.

use salvor_api::config::Configuration;
use salvor_operator::recoveries;

/// The program itself, the lists that it reads at its start, and room for objects of tenants that are as large as the API allows:
/// one that runs nothing takes 10 MB, and one that reads 200 pods of 1.2 MB takes 44 MB (docs/guarantees.md).
pub(super) const BASE: u32 = 96;

/// The limit of a replica with this configuration, in mebibytes. Half of it is requested.
pub(super) fn limit(configuration: &Configuration) -> u32 {
    let enabled = recoveries().filter(|entry| entry.off(configuration).is_none());
    BASE + enabled.map(|entry| entry.memory).sum::<u32>()
}
