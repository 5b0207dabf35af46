//! The messages that the watches and reads of this recovery send it.

use salvor_recovery::{
    gate::Copies,
    ids::{NodeName, Uid},
    repair::{NodeView, PodView, Policy},
};

use super::{store::owners::SeenOwner, wire::SeenPool};
use crate::{
    client::live::NodeLease,
    watch_set::{feeds::OfKind, watch::Change},
};

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "policies are few")]
pub(crate) enum News {
    Node(Change<Box<NodeView>>),
    Policy(OfKind<Policy>),
    Pool(OfKind<SeenPool>),
    Claim(OfKind<SeenOwner>),
    /// A change of a Machine, with the index of its API version in `MACHINE_VERSIONS`.
    Machine(usize, OfKind<SeenOwner>),
    /// From the watch of a node's pods with this number.
    Pod {
        node: NodeName,
        number: u64,
        change: Change<PodView>,
    },
    /// The claims and the Job of a pod were read.
    Work {
        pod: WorkKey,
        copies: Copies,
    },
    /// The Lease of a node was read.
    Lease {
        node: NodeName,
        lease: Option<NodeLease>,
    },
    /// The pods of a node were counted, as far as possible.
    Pods {
        node: NodeName,
        pods: u32,
    },
}

/// A pod whose claims and Job are read: its node, the number of the watch of that node's pods, and its UID.
pub(crate) type WorkKey = (NodeName, u64, Uid);
