//! What is decided.

use std::{fmt, sync::Arc};

use salvor_recovery::{
    ids::Uid,
    objects::{JobRef, PodRef},
};

/// The object of a decision: a Job that exists or existed, or a pod without an owner that still has our finalizer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    Job(Arc<JobRef>),
    Pod { namespace: String, name: String, uid: Uid },
}

impl Subject {
    /// A pod without an owner is a subject of its own.
    pub(super) fn pod(pod: &PodRef) -> Self {
        let PodRef { namespace, name, uid } = pod.clone();
        Self::Pod { namespace, name, uid }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => write!(f, "job {job}"),
            Self::Pod { namespace, name, .. } => write!(f, "pod {namespace}/{name}"),
        }
    }
}
