//! The messages that the watches and reads of this recovery send it.

use salvor_recovery::{
    appwrapper::FoundComponent,
    gate::Copies,
    ids::{NodeName, Uid},
};

use super::wire::{App, SeenNode, SeenPod};
use crate::{
    client::{discovery::GroupKind, live::NodeLease},
    watch_set::{feeds::OfKind, watch::Change},
};

#[derive(Debug)]
pub(crate) enum News {
    App(Change<App>),
    Pod(Change<SeenPod>),
    Node(Change<SeenNode>),
    Component(GroupKind, OfKind<FoundComponent>),
    Lease { node: NodeName, lease: Option<NodeLease> },
    Work { pod: WorkKey, copies: Copies },
}

/// A pod whose claims and Job are read: the UIDs of its AppWrapper and its own.
pub(crate) type WorkKey = (Uid, Uid);
