//! The objects that the repair recovery decides about, and the reasons.

use std::{fmt, sync::Arc};

use salvor_recovery::{
    Reason,
    ids::NodeName,
    objects::PodRef,
    repair::{NodeWhy, PodWhy, Policy, PolicyWhy},
};

/// The policy or NodePool that applies to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Policy(Arc<str>),
    /// A NodePool with a block `spec.repair`.
    Pool(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Node(NodeName),
    Policy(Key),
    /// A pod of a node that is drained, or was replaced. Boxed: there are few, and a node must not take up the space of
    /// one.
    Pod(Box<PodSubject>),
}

/// A pod, and the node that it is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodSubject {
    pub(super) node: NodeName,
    pub(super) pod: PodRef,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Policy(Key::Policy(name)) => write!(f, "noderepairpolicy {name}"),
            Self::Policy(Key::Pool(name)) => write!(f, "nodepool {name}"),
            Self::Pod(subject) => write!(f, "pod {}", subject.pod),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Why {
    Node(NodeWhy),
    Policy(PolicyWhy),
    Pod(PodWhy),
}

impl Why {
    fn reason(&self) -> &dyn Reason {
        match self {
            Self::Node(why) => why,
            Self::Policy(why) => why,
            Self::Pod(why) => why,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.reason(), f)
    }
}

impl Reason for Why {
    fn code(&self) -> &'static str {
        self.reason().code()
    }

    fn what_would_change_it(&self) -> String {
        self.reason().what_would_change_it()
    }
}

pub(super) fn key_of(policy: &Policy) -> Key {
    let name = policy.object.name.as_str().into();
    if policy.is_pool() { Key::Pool(name) } else { Key::Policy(name) }
}
