//! Sums of times that cannot fail, and times as Kubernetes keeps them.

use jiff::{SignedDuration, Timestamp};

/// A missing event is still recorded for this long after our own write.
///
/// An event has a name of its own, so the API server refuses a second one, but only until it forgets the first: after an
/// hour by default. Well within that, telling once more is harmless; after it, somebody would read the old news as new.
pub(crate) const ANNOUNCE_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// The clocks of those who write times, and of those who read them, may differ by this much.
pub(crate) const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

/// A deadline so far away that time cannot express it is never reached.
pub(crate) fn after(start: Timestamp, wait: SignedDuration) -> Timestamp {
    start.checked_add(wait).unwrap_or(if wait.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// Kubernetes keeps times to the second.
pub(crate) fn to_the_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
