//! The pods of Jobs, and the pods that a Job may adopt: which of them are kept, and which subjects a change requeues.

pub(super) mod absence;
pub(super) mod by_owner;
pub(super) mod interest;
pub(super) mod lookup;
pub(super) mod selectors;
pub(super) mod strays;

use std::{collections::BTreeSet, sync::Arc};

use salvor_recovery::{
    ids::{ResourceVersion, Uid},
    job::{PodView, Stray, remember},
    objects::JobRef,
};

use self::{
    absence::{Absence, Gone, Heard},
    by_owner::Kept,
    interest::may_matter,
    strays::Strays,
};
use super::{
    Jobs,
    subject::Subject,
    wire::{SeenPod, read_pod},
};
use crate::{
    client::revision::{Revision, Told},
    execute::Written,
};

/// True if a pod has terminated but still has our finalizer, so its count is not final yet.
fn is_owed(pod: &PodView) -> bool {
    pod.is_tracked() && pod.phase.is_terminal()
}

impl Jobs {
    /// Applies a pod unless a later state or its deletion is known.
    pub(super) fn take_pod(&mut self, seen: SeenPod, heard: Heard) -> Vec<Subject> {
        let (uid, revision) = (seen.uid(), seen.revision());
        match self.gone.of.get(uid) {
            Some(absence) if !absence.is_over(revision, heard) => return Vec::new(),
            Some(_) => drop(self.gone.of.remove(uid)),
            None => {}
        }
        let known = self.pods.get(uid).map(|(_, pod)| pod.resource_version());
        let known =
            known.or_else(|| self.strays.get(uid).map(Kept::resource_version)).map(ResourceVersion::revision);
        let told = match &seen {
            // The list may have been read before the Job was known that claims the pod now.
            SeenPod::Bare { .. } => Told::Alone,
            SeenPod::OfJob { .. } | SeenPod::Stray(_) => heard.told(),
        };
        if known.is_some_and(|known| !told.replaces(revision, known)) {
            return Vec::new();
        }
        match seen {
            SeenPod::OfJob { owner, pod } => self.take_pod_of(owner, *pod),
            SeenPod::Stray(stray) => {
                let uid = stray.pod.uid.clone();
                let mut woken: Vec<Subject> = self.remove_pod(&uid).into_iter().collect();
                let was_ours = !woken.is_empty();
                woken.extend(self.place(*stray));
                // The watch may still deliver states in which it belonged to a Job.
                if was_ours && self.strays.get(&uid).is_none() {
                    self.gone.insert(&uid, Absence::OfNoUse(revision));
                }
                woken
            }
            SeenPod::Bare { uid, revision } => {
                self.lookups.passed_over(&uid, revision);
                self.forget_pod(&uid, Absence::OfNoUse(revision)).into_iter().collect()
            }
        }
    }

    fn take_pod_of(&mut self, job: Arc<JobRef>, mut pod: PodView) -> Vec<Subject> {
        let uid = pod.pod.uid.clone();
        let mut woken = Vec::new();
        self.strays.remove(&uid);
        let mut was_owed = false;
        if let Some((before, known)) = self.pods.get(&uid) {
            was_owed = is_owed(known);
            if *before != job {
                woken.extend(self.remove_pod(&uid));
                was_owed = false;
            }
        }
        // There are many pods of Jobs that we do not manage. Ours have the finalizer, or appear after their Job.
        if self.jobs_listed && !pod.is_tracked() && !self.jobs.contains_key(&job.uid) {
            woken.extend(self.remove_pod(&uid));
            return woken;
        }
        if let Some(known) = self.jobs.get_mut(&job.uid) {
            if known.view.status.finished().is_some() && !pod.is_tracked() {
                let revision = pod.resource_version.revision();
                woken.extend(self.forget_pod(&uid, Absence::OfNoUse(revision)));
                return woken;
            }
            remember(&mut known.memory, &known.view, &pod, &self.policy);
        }
        if let Some(selector) = self.interest.state().selectors.get(&job.uid) {
            pod.selected.ask(selector);
        }
        woken.push(Subject::Job(job.clone()));
        match (was_owed, is_owed(&pod)) {
            (false, true) => self.metrics.ended_pod_tracked("add"),
            (true, false) => self.metrics.ended_pod_tracked("delete"),
            _ => {}
        }
        self.pods.insert(job, pod);
        woken
    }

    /// Groups a pod that no Job controls under its claimant, or drops it.
    fn place(&mut self, stray: Stray) -> Vec<Subject> {
        self.strays.remove(&stray.pod.uid);
        let claimant = if stray.adoptable {
            self.interest.state().selectors.claimant(&stray.pod.namespace, &stray.labels)
        } else {
            None
        };
        let woken = match &claimant {
            Some(job) => vec![Subject::Job(job.clone())],
            // If no Job adopts it, its finalizer is removed.
            None if stray.tracking.is_some() => vec![Subject::pod(&stray.pod)],
            None => Vec::new(),
        };
        if claimant.is_some() || may_matter(&stray) {
            self.strays.insert(claimant, stray);
        } else {
            self.lookups.passed_over(&stray.pod.uid, stray.resource_version.revision());
        }
        woken
    }

    /// Regroups the pods whose labels name this Job, which is known now.
    pub(super) fn place_those_made_for(&mut self, job: &Uid) {
        for stray in self.strays.made_for(job) {
            self.place(stray);
        }
    }

    /// A Job no longer adopts pods: other Jobs may, or their finalizer is removed.
    pub(super) fn place_those_of(&mut self, job: &Arc<JobRef>) -> Vec<Subject> {
        let strays = self.strays.of(job).to_vec();
        strays.into_iter().flat_map(|stray| self.place(stray)).collect()
    }

    /// Drops a pod and returns the subject to requeue.
    pub(super) fn remove_pod(&mut self, uid: &Uid) -> Option<Subject> {
        let (job, pod) = self.pods.remove(uid)?;
        if is_owed(&pod) {
            self.metrics.ended_pod_tracked("delete");
        }
        Some(Subject::Job(job))
    }

    /// The watch reports that a pod is gone or irrelevant.
    pub(super) fn pod_is_gone(&mut self, uid: &Uid) -> Option<Subject> {
        self.lookups.gone(uid);
        if let Some(absence) = self.gone.of.get_mut(uid) {
            *absence = Absence::Watched;
        }
        self.forget_pod(uid, Absence::Watched)
    }

    fn forget_pod(&mut self, uid: &Uid, why: Absence) -> Option<Subject> {
        // Pods that were never ours come and go by the thousand.
        if self.pods.get(uid).is_none() && self.strays.get(uid).is_none() {
            return None;
        }
        self.strays.remove(uid);
        let woken = self.remove_pod(uid);
        self.gone.insert(uid, why);
        woken
    }

    /// Of a finished Job, only pods that still have our finalizer matter.
    pub(super) fn forget_free_pods(&mut self, job: &Arc<JobRef>) {
        let free = self.pods.at(job).iter().filter(|pod| !pod.is_tracked());
        let free: Vec<(Uid, Revision)> =
            free.map(|pod| (pod.pod.uid.clone(), pod.resource_version.revision())).collect();
        for (uid, revision) in free {
            self.forget_pod(&uid, Absence::OfNoUse(revision));
        }
    }

    pub(super) fn pod_answered(&mut self, uid: &Uid, answer: &Written) {
        match answer {
            Written::Nothing => {
                self.forget_pod(uid, Absence::Answered);
            }
            Written::Object(text) => {
                if let Ok(seen) = read_pod(text, self.policy.unmanaged_jobs) {
                    self.pod_watch.saw(seen.revision());
                    self.take_pod(seen, Heard::Answer);
                }
            }
        }
    }

    /// Revisions went backwards: everything known about pods is void.
    pub(super) fn forget_all_pods(&mut self) {
        self.gone = Gone::default();
        let known: Vec<Uid> = self.pods.all().map(|pod| pod.pod.uid.clone()).collect();
        for uid in known {
            self.remove_pod(&uid);
        }
        self.strays = Strays::default();
    }

    /// Drops the pods that a list at this revision lacks. A pod that we created after it was read is not in it.
    pub(super) fn forget_absent(&mut self, present: &BTreeSet<Uid>, revision: Revision) {
        fn absent<'a, T: Kept + 'a>(
            all: impl Iterator<Item = &'a T>,
            present: &BTreeSet<Uid>,
            revision: Revision,
        ) -> Vec<Uid> {
            let is_absent = |thing: &&T| {
                !present.contains(thing.uid()) && !thing.resource_version().revision().is_after(revision)
            };
            all.filter(is_absent).map(|thing| thing.uid().clone()).collect()
        }
        for uid in absent(self.pods.all(), present, revision) {
            self.remove_pod(&uid);
        }
        for uid in absent(self.strays.all(), present, revision) {
            self.strays.remove(&uid);
        }
    }
}
