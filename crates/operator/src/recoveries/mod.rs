//! The registry of recoveries. No code outside of this folder depends on a specific recovery: the operator starts those
//! listed here, `salvor manifests` grants their permissions, `salvor explain` asks them, and so on.
//!
//! Each recovery has an `entry.rs` in its folder. `docs/develop/architecture.md` says how to add one.

use salvor_api::Controller;

pub(crate) mod appwrapper;
pub(crate) mod eviction;
pub(crate) mod job;
mod recovery_entry;
pub(crate) mod repair;
pub(crate) mod rights;
#[cfg(test)]
mod tests;
pub(crate) mod webhooks;
pub(crate) mod work;
pub(crate) mod zombie;

pub use recovery_entry::{Off, RecoveryEntry};
pub(crate) use recovery_entry::{Start, Webhooks};

pub(crate) fn entry(controller: Controller) -> &'static RecoveryEntry {
    match controller {
        Controller::Zombie => &zombie::ENTRY,
        Controller::Job => &job::ENTRY,
        Controller::Eviction => &eviction::ENTRY,
        Controller::AppWrapper => &appwrapper::ENTRY,
        Controller::Repair => &repair::ENTRY,
    }
}

pub fn recoveries() -> impl Iterator<Item = &'static RecoveryEntry> {
    Controller::ALL.iter().map(|controller| entry(*controller))
}
