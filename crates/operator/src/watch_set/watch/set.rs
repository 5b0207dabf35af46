//! The watches of a recovery, or of a whole operator, as one set for freshness, readiness and metrics.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::WatchHealth;

/// Watches may come and go. Clones share the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchSet(Arc<Mutex<Vec<Arc<WatchHealth>>>>);

impl WatchSet {
    /// Adds a watch, unless it is in the set already.
    pub(crate) fn add(&self, health: &Arc<WatchHealth>) {
        let mut all = self.watches();
        if !all.iter().any(|known| Arc::ptr_eq(known, health)) {
            all.push(health.clone());
        }
    }

    pub(crate) fn remove(&self, health: &Arc<WatchHealth>) {
        self.watches().retain(|known| !Arc::ptr_eq(known, health));
    }

    pub(crate) fn all(&self) -> Vec<Arc<WatchHealth>> {
        self.watches().clone()
    }

    /// True if revisions went backwards: the state behind a decision may no longer exist, so not even harmless steps
    /// run.
    pub(crate) fn is_outdated(&self) -> bool {
        self.watches().iter().any(|watch| watch.is_outdated())
    }

    /// True if the view of any watch is older than this, or was never complete.
    pub(crate) fn is_stale(&self, freshness: Duration) -> bool {
        self.watches().iter().any(|watch| !watch.is_synced() || watch.staleness() > freshness)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.watches().iter().map(|watch| watch.epoch()).max().unwrap_or(0)
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Arc<WatchHealth>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Vec<Arc<WatchHealth>>> for WatchSet {
    fn from(all: Vec<Arc<WatchHealth>>) -> Self {
        Self(Arc::new(Mutex::new(all)))
    }
}
