//! Pods that no Job controls, and that a Job may adopt.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use salvor_recovery::{ids::Uid, job::Stray, objects::JobRef};

use crate::recoveries::job::pods::{by_owner::ByOwner, selectors::made_for};

/// Pods that no Job controls, grouped by the Job that may adopt them, or `None`.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    rows: ByOwner<Option<Arc<JobRef>>, Stray>,
    /// UIDs of pods whose labels name the Job that they were created for, by the UID of that Job.
    made_for: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl Strays {
    pub(crate) fn get(&self, uid: &Uid) -> Option<&Stray> {
        self.rows.get(uid).map(|(_, stray)| stray)
    }

    pub(crate) fn of(&self, job: &Arc<JobRef>) -> &[Stray] {
        self.rows.at(&Some(job.clone()))
    }

    pub(crate) fn insert(&mut self, claimant: Option<Arc<JobRef>>, stray: Stray) {
        if let Some(job) = made_for(&stray.labels) {
            self.made_for.entry(job.into()).or_default().insert(stray.pod.uid.clone());
        }
        self.rows.insert(claimant, stray);
    }

    pub(crate) fn remove(&mut self, uid: &Uid) -> Option<Stray> {
        let (_, stray) = self.rows.remove(uid)?;
        if let Some(job) = made_for(&stray.labels)
            && let Some(uids) = self.made_for.get_mut(job)
        {
            uids.remove(uid);
            if uids.is_empty() {
                self.made_for.remove(job);
            }
        }
        Some(stray)
    }

    pub(crate) fn made_for(&self, job: &Uid) -> Vec<Stray> {
        let uids = self.made_for.get(job).into_iter().flatten();
        uids.filter_map(|uid| self.get(uid)).cloned().collect()
    }

    /// Those that still have our finalizer, and that no Job adopts.
    pub(crate) fn to_let_go(&self) -> impl Iterator<Item = &Stray> {
        self.rows.at(&None).iter().filter(|stray| stray.tracking.is_some())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Stray> {
        self.rows.all()
    }
}
