//! What is decided: a node whose eviction is requested, and each of its pods.

use std::{fmt, sync::Arc};

use salvor_recovery::{
    eviction::{NodeWhy, PodWhy},
    ids::{NodeName, Uid},
    objects::PodRef,
};

use crate::engine::recovery::NodeOrPod;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    Node {
        name: NodeName,
    },
    /// Shared, because the engine keeps it in several places, and there may be thousands.
    Pod(Arc<PodSubject>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PodSubject {
    pub(super) node: NodeName,
    pub(super) uid: Uid,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { name } => write!(f, "node {name}"),
            Self::Pod(pod) => write!(f, "pod {}/{}", pod.namespace, pod.name),
        }
    }
}

impl Subject {
    pub(super) fn node(name: &NodeName) -> Self {
        Self::Node { name: name.clone() }
    }

    pub(super) fn pod(node: &NodeName, pod: &PodRef) -> Self {
        Self::Pod(Arc::new(PodSubject {
            node: node.clone(),
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
        }))
    }
}

pub(crate) type Why = NodeOrPod<NodeWhy, PodWhy>;
