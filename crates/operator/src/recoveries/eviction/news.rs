//! The messages that the watches and reads of this recovery send it.

use salvor_recovery::{
    eviction::{AttachmentView, PodView},
    gate::Copies,
    ids::{NodeName, Uid},
};

use super::wire::SeenNode;
use crate::{client::live::NodeLease, watch_set::watch::Change};

#[derive(Debug)]
pub(crate) enum News {
    Node(Change<SeenNode>),
    Attachment(Change<(Uid, AttachmentView)>),
    Pod { node: NodeName, number: u64, change: Box<Change<PodView>> },
    Lease { node: NodeName, lease: Option<NodeLease> },
    Work { pod: WorkKey, copies: Copies },
}

/// A pod whose claims and Job are read: its node, the number of the watch of that node's pods, and its UID.
pub(crate) type WorkKey = (NodeName, u64, Uid);
