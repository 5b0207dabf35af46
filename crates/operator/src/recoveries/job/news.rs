//! The messages that the watches and lookups of this recovery send it.

use salvor_recovery::{
    ids::Uid,
    job::{JobView, Stray},
};

use super::wire::SeenPod;
use crate::{client::revision::Revision, watch_set::watch::Change};

#[derive(Debug)]
pub(crate) enum News {
    Job(Change<SeenJob>),
    Pod(Change<SeenPod>),
    /// Part of a list. The last part comes as a `Change`.
    SomeJobs(Part<SeenJob>),
    SomePods(Part<SeenPod>),
    /// Pods that existed before a Job whose selector matches them.
    Found {
        wanted: Wanted,
        strays: Vec<Stray>,
    },
}

/// A Job that we manage, or one with another `managedBy`.
#[derive(Debug)]
pub(crate) enum SeenJob {
    Ours(Box<JobView>),
    Others { uid: Uid, controller: &'static str },
}

impl SeenJob {
    pub(super) fn uid(&self) -> &Uid {
        match self {
            Self::Ours(view) => &view.job.uid,
            Self::Others { uid, .. } => uid,
        }
    }
}

/// Part of a list; more parts follow.
#[derive(Debug)]
pub(crate) struct Part<T> {
    pub(super) all: Vec<T>,
    pub(super) revision: Revision,
    pub(super) new_history: bool,
}

/// The pods in a namespace that a selector matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    pub(super) namespace: String,
    /// The label selector, encoded as a query parameter.
    pub(super) selector: String,
}
