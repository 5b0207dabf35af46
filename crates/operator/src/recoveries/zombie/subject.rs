//! What is decided: a terminating pod, and a node that is lost.

use std::{fmt, sync::Arc};

use salvor_recovery::{
    ids::NodeName,
    objects::PodRef,
    zombie::{NodeWhy, PodWhy},
};

use crate::engine::recovery::NodeOrPod;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// Shared, because the engine keeps it in several places, and there may be thousands.
    Pod(Arc<PodRef>),
    Node {
        name: NodeName,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {}/{}", pod.namespace, pod.name),
            Self::Node { name } => write!(f, "node {name}"),
        }
    }
}

impl Subject {
    pub(super) fn pod(pod: &PodRef) -> Self {
        Self::Pod(Arc::new(pod.clone()))
    }
}

pub(crate) type Why = NodeOrPod<NodeWhy, PodWhy>;
