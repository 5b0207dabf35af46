//! The surveys that decisions share, each as long as it is valid.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use salvor_recovery::{ids::Uid, repair::Survey};

use crate::recoveries::repair::subjects::Key;

/// The survey of a policy, and how long it is valid.
#[derive(Debug)]
pub(crate) struct Surveyed {
    pub(crate) generation: u64,
    pub(crate) at: Timestamp,
    pub(crate) survey: Arc<Survey>,
    /// True if the nodes that are due by it were requeued since.
    pub(crate) woken: bool,
}

/// What decisions cache.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    pub(crate) surveys: BTreeMap<Key, Surveyed>,
    /// Since when repairs, by the UID of their node, are no longer needed.
    pub(crate) idle: BTreeMap<Uid, Timestamp>,
    /// The number of surveys computed.
    #[cfg(test)]
    pub(crate) made: u64,
}

impl Cache {
    /// The survey of a policy, if it is still valid.
    pub(crate) fn known(&self, key: &Key, generation: u64, now: Timestamp) -> Option<Arc<Survey>> {
        let known = self.surveys.get(key).filter(|known| {
            let is_over = known.survey.changes_at.is_some_and(|at| at <= now);
            known.generation == generation && known.at <= now && !is_over
        });
        known.map(|known| known.survey.clone())
    }

    /// The last survey of a policy, unless the nodes that are due by it were requeued since.
    pub(crate) fn wake(&mut self, key: &Key) -> Option<Arc<Survey>> {
        let known = self.surveys.get_mut(key)?;
        (!std::mem::replace(&mut known.woken, true)).then(|| known.survey.clone())
    }
}
