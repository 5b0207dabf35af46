//! What happens to each pod on a node that is being evicted.

use jiff::Timestamp;

use super::views::PodView;

/// What happens to a pod on an unreachable node that is being evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodEnding {
    /// The pod has ended and is deleted; at most finalizers keep the object.
    Gone,
    /// The pod must be evicted now.
    Leaves,
    /// The pod must be evicted then.
    LeavesAt(Timestamp),
    /// The pod must be evicted, but not before there is proof that the machine is off.
    NeedsProof,
    /// The pod stays: it tolerates the eviction, is a static pod, or came after the node was Ready again.
    Stays,
}

impl PodEnding {
    /// True if the eviction cannot finish before this pod has gone, and the pod cannot go now.
    pub(super) fn is_waited_for(self) -> bool {
        matches!(self, Self::LeavesAt(_) | Self::NeedsProof)
    }
}

pub(super) fn count(endings: &[(&PodView, PodEnding)], is: impl Fn(PodEnding) -> bool) -> usize {
    endings.iter().filter(|(_, ending)| is(*ending)).count()
}
