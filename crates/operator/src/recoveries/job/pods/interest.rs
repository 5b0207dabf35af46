//! Which of all the pods in a cluster may matter to our Jobs. Shared with the watch of pods, so that the others are
//! dropped as they are read, and a list of pods never holds them all.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use salvor_api::{LabelSelector, Labels};
use salvor_recovery::{
    ids::Uid,
    job::{Selected, Stray},
};
use tokio::sync::Notify;

use crate::recoveries::job::{
    pods::selectors::{Selectors, made_for},
    wire::SeenPod,
};

/// Longer labels are not kept as a whole: any user who may create pods could fill our memory with them.
const LONGEST_LABELS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Runs,
    Finished,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The selectors of the Jobs that may adopt pods.
    pub(crate) selectors: Selectors,
    /// All our Jobs, by UID.
    pub(crate) jobs: BTreeMap<Uid, Progress>,
    /// True once the Jobs are listed.
    listed: bool,
}

/// Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interest(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    listed: Notify,
}

impl Interest {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that our Jobs are listed. Returns whether they were before.
    pub(crate) fn jobs_are_listed(&self) -> bool {
        let before = std::mem::replace(&mut self.state().listed, true);
        self.0.listed.notify_waiters();
        before
    }

    pub(crate) async fn until_jobs_are_listed(&self) {
        loop {
            let listed = self.0.listed.notified();
            if self.state().listed {
                return;
            }
            listed.await;
        }
    }
}

impl State {
    /// True if pods may have been read with this state.
    pub(crate) fn is_used(&self) -> bool {
        self.listed
    }

    /// The kept form of a pod; `None` if it belongs to a Job and cannot matter in its present state.
    pub(crate) fn sift(&self, seen: SeenPod) -> Option<SeenPod> {
        match seen {
            SeenPod::OfJob { owner, mut pod } => {
                match (self.jobs.get(&owner.uid), self.selectors.get(&owner.uid)) {
                    (Some(Progress::Finished), _) if !pod.is_tracked() => return None,
                    (_, Some(selector)) => pod.selected.ask(selector),
                    // A Job that is being deleted, is finished or has no selector releases no pod.
                    (Some(_), None) => pod.selected = Selected::Yes,
                    // There are many pods of Jobs that we do not manage. Ours have the finalizer, or appear after their
                    // Job.
                    (None, None) if self.listed && !pod.is_tracked() => return None,
                    (None, None) => {
                        if matches!(&pod.selected, Selected::Unasked(labels) if length(labels) > LONGEST_LABELS)
                        {
                            pod.selected = Selected::Yes;
                        }
                    }
                }
                Some(SeenPod::OfJob { owner, pod })
            }
            SeenPod::Stray(mut stray) => {
                let claimant =
                    stray.adoptable.then(|| self.selectors.claimant(&stray.pod.namespace, &stray.labels));
                let claimant = claimant.flatten();
                if claimant.is_none() && !may_matter(&stray) {
                    let revision = stray.resource_version.revision();
                    return Some(SeenPod::Bare { uid: stray.pod.uid, revision });
                }
                if length(&stray.labels) > LONGEST_LABELS {
                    let selector = claimant.and_then(|job| self.selectors.get(&job.uid));
                    stray.labels = needed(&stray.labels, selector);
                }
                Some(SeenPod::Stray(stray))
            }
            bare @ SeenPod::Bare { .. } => Some(bare),
        }
    }
}

/// True if a pod that no Job claims is kept: it has our finalizer, or its labels name a Job that may not be known yet.
pub(crate) fn may_matter(stray: &Stray) -> bool {
    stray.tracking.is_some() || (stray.adoptable && made_for(&stray.labels).is_some())
}

fn length(labels: &Labels) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// The labels that selectors need.
fn needed(labels: &Labels, selector: Option<&LabelSelector>) -> Labels {
    let named = |key: &str| {
        selector.is_some_and(|selector| {
            selector.match_labels.contains_key(key)
                || selector.match_expressions.iter().any(|requirement| requirement.key == key)
        })
    };
    labels
        .iter()
        .filter(|(key, value)| named(key) || made_for(&[(key, value)].into_iter().collect()).is_some())
        .collect()
}
