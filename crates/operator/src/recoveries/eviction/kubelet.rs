//! What a node's Lease and its heartbeat say of its kubelet, given what was known before.

use jiff::Timestamp;
use salvor_recovery::eviction::{Lease, NodeView};

use crate::client::live::NodeLease;

/// The Lease after one more read.
pub(super) fn seen(before: Lease, read: Option<NodeLease>, now: Timestamp) -> Lease {
    before.then(read, now)
}

/// The heartbeat in a node's `Ready` condition after one more read.
pub(super) fn beat(before: Lease, read: Lease, now: Timestamp) -> Lease {
    let read = match read {
        Lease::Renewed { written, lasts, .. } => Some(NodeLease::new(written, lasts)),
        Lease::Unread | Lease::None => None,
    };
    seen(before, read, now)
}

/// Adds the state of a node's kubelet, given what was known before.
pub(super) fn observe(
    view: &mut NodeView,
    before: Option<&NodeView>,
    lease: Option<NodeLease>,
    now: Timestamp,
) {
    let (of_lease, of_heartbeat) =
        before.map_or((Lease::Unread, Lease::Unread), |before| (before.lease, before.ready_heartbeat));
    view.lease = seen(of_lease, lease, now);
    view.ready_heartbeat = beat(of_heartbeat, view.ready_heartbeat, now);
}
