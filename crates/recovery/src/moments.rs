//! Time arithmetic that cannot fail, and times as Kubernetes stores them.

use jiff::{SignedDuration, Timestamp};
use salvor_api::GoDuration;

/// A missing event is still recorded for this long after our own write.
///
/// An event has a name of its own, so the API server refuses a duplicate, but only until it drops the first one: after
/// an hour by default. Well within that, recording it again is harmless; afterwards it would look like something that
/// just happened.
pub(crate) const ANNOUNCE_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// The clocks of writers and readers of times may differ by this much.
pub(crate) const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

/// A deadline too far away to express is never reached.
pub(crate) fn after(start: Timestamp, wait: SignedDuration) -> Timestamp {
    start.checked_add(wait).unwrap_or(if wait.is_negative() { Timestamp::MIN } else { Timestamp::MAX })
}

/// Kubernetes stores times to the second.
pub(crate) fn to_the_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The first whole second that is not before `time`.
pub(crate) fn up_to_the_second(time: Timestamp) -> Timestamp {
    let floor = to_the_second(time);
    if floor == time { time } else { after(floor, SignedDuration::from_secs(1)) }
}

/// A duration in Go's format.
pub(crate) fn in_go(duration: SignedDuration) -> GoDuration {
    GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}
