//! Liveness of a node's kubelet, defined once for all recoveries.
//!
//! A kubelet shows life by renewing its Lease. The renew time comes from the kubelet's own clock, which may be hours
//! off. So a renew time that *moves* shows life whatever its value, and one that does not move for longer than the
//! Lease lasts shows none. A Lease that could not be read does not mean silence: it is [`Lease::Unread`]. For a kubelet
//! without a Lease, the heartbeat of the node's `Ready` condition takes its place, as in Kubernetes' node lifecycle
//! controller.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::moments::after;
use crate::objects::Ready;

/// How long a heartbeat counts: as long as a Lease does by default.
const HEARTBEAT_LASTS: SignedDuration = SignedDuration::from_secs(40);

/// The clocks of a kubelet and of the API server agree if they differ by less than this at a renewal: less than the
/// time between two renewals.
const CLOCKS_AGREE: SignedDuration = SignedDuration::from_secs(5);

/// The fields of a node's Lease that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// When it was last renewed, by the kubelet's clock.
    pub renewed: Timestamp,
    pub lasts: SignedDuration,
    /// When the API server stored that renewal, by its own clock; none if it does not say so.
    pub stored: Option<Timestamp>,
    /// Since when the renew time is known not to have moved, as the control plane reports.
    pub still_since: Option<Timestamp>,
}

impl NodeLease {
    pub fn new(renewed: Timestamp, lasts: SignedDuration) -> Self {
        Self { renewed, lasts, stored: None, still_since: None }
    }

    /// Adds that the control plane lost the node at `lost`. If that was just now, and the clocks of kubelet and API
    /// server agree on the last renewal, the renew time is known not to have moved since, and need not be watched
    /// first. Later it must be: the API server may have been down, or restored, and kubelets may only now get through.
    #[must_use]
    pub fn lost_at(self, lost: Option<Timestamp>, now: Timestamp) -> Self {
        let agrees = |stored: &Timestamp| {
            let late = stored.duration_since(self.renewed);
            (-CLOCKS_AGREE..=CLOCKS_AGREE).contains(&late)
        };
        let is_recent = lost.is_some_and(|lost| {
            let ago = now.duration_since(lost);
            (-CLOCKS_AGREE..self.lasts / 2).contains(&ago)
        });
        Self { still_since: self.stored.filter(|stored| is_recent && agrees(stored)), ..self }
    }

    /// Uses the heartbeat of the node's `Ready` condition in place of a missing Lease. A kubelet that writes a
    /// heartbeat also writes `Ready`, so a node that became Unknown at `lost`, and still is, has had no heartbeat
    /// since.
    pub fn of_heartbeat(at: Timestamp, lost: Option<Timestamp>) -> Self {
        Self { renewed: at, lasts: HEARTBEAT_LASTS, stored: None, still_since: lost }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The Lease was not read yet.
    Unread,
    None,
    Renewed {
        /// The renew time that the kubelet wrote, by its own clock.
        written: Timestamp,
        /// The last sign of life, by the server's clock: when we saw the renew time change, or, if we did not, the
        /// renew time itself, but never a time in the future.
        heard: Timestamp,
        /// How long that sign of life counts.
        lasts: SignedDuration,
        /// True if we saw a renewal since we began to watch.
        moves: bool,
    },
}

impl Lease {
    /// The Lease after one more read. A renew time that changes shows that the kubelet is alive, whatever its clock
    /// says.
    #[must_use]
    pub fn then(self, read: Option<NodeLease>, now: Timestamp) -> Self {
        let Some(NodeLease { renewed: written, lasts, .. }) = read else {
            // A living kubelet recreates a deleted Lease at its next renewal. Until then the old one counts.
            return if self.is_fresh(now) { self } else { Self::None };
        };
        let (heard, moves) = match self {
            // The kubelet wrote this time before now, even if its clock is ahead of the server's.
            Self::Unread => (written.min(now), false),
            // A time in the future came from a clock that has been corrected since.
            Self::Renewed { written: before, heard, moves, .. } if before == written => {
                (heard.min(now), moves)
            }
            Self::Renewed { .. } | Self::None => (now, true),
        };
        Self::Renewed { written, heard, lasts, moves }
    }

    /// True if the kubelet renewed the Lease while we watched, or recently enough: it renews four times per Lease
    /// duration, and two renewals may fail.
    pub(crate) fn is_kept_up(self, now: Timestamp) -> bool {
        match self {
            Self::Renewed { heard, lasts, moves, .. } => moves || now < after(heard, lasts / 2),
            Self::Unread | Self::None => false,
        }
    }

    /// True if the kubelet showed life since it wrote this renew time. Without a Lease this is unknown, and counts as
    /// true.
    pub(crate) fn was_renewed_since(self, time: Timestamp) -> bool {
        match self {
            Self::Renewed { written, moves, .. } => moves || written != time,
            Self::None => true,
            Self::Unread => false,
        }
    }

    /// Until when the Lease shows that the kubelet is alive.
    pub(crate) fn fresh_until(self) -> Option<Timestamp> {
        match self {
            Self::Renewed { heard, lasts, .. } => Some(after(heard, lasts)),
            Self::Unread | Self::None => None,
        }
    }

    /// True if the Lease shows that the kubelet is alive.
    pub fn is_fresh(self, now: Timestamp) -> bool {
        self.fresh_until().is_some_and(|until| now < until)
    }

    /// True if a node with this Lease is back: its kubelet reports Ready and renews the Lease.
    ///
    /// A node with neither Lease nor heartbeat is back when it is Ready: only its kubelet sets that, and the control
    /// plane has no better signal either.
    pub fn is_back(self, ready: Ready, now: Timestamp) -> bool {
        ready == Ready::True && (self.is_fresh(now) || self == Self::None)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread => f.write_str("Lease not read yet"),
            Self::None => f.write_str("no Lease"),
            Self::Renewed { heard, .. } => write!(f, "Lease renewed at {heard}"),
        }
    }
}

/// A Lease, and since when it is watched: for recoveries that have no confirmation that the machine is off.
///
/// On the first read a Lease may look old only because the kubelet's clock is behind. A kubelet renews it four times
/// per duration, so a renew time that has not moved for half a duration is really old, even if two renewals failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub lease: Lease,
    /// Since when the renew time is known not to have moved, or is watched.
    since: Timestamp,
}

impl Heartbeat {
    pub const UNREAD: Self = Self { lease: Lease::Unread, since: Timestamp::MAX };

    #[must_use]
    pub fn then(self, read: Option<NodeLease>, now: Timestamp) -> Self {
        let still_since = read.and_then(|read| read.still_since).unwrap_or(now);
        Self { lease: self.lease.then(read, now), since: self.since.min(still_since).min(now) }
    }

    /// The heartbeat after a single read, for callers that do not watch: the kubelet's clock is trusted.
    pub fn at_a_glance(read: Option<NodeLease>, now: Timestamp) -> Self {
        Self { lease: Lease::Unread.then(read, now), since: Timestamp::MIN }
    }

    /// When the kubelet counts as silent unless the Lease is renewed first. None without a Lease.
    pub fn silent_from(self) -> Option<Timestamp> {
        match self.lease {
            Lease::Renewed { heard, lasts, .. } => {
                Some(after(heard, lasts).max(after(self.since, lasts / 2)))
            }
            Lease::Unread | Lease::None => None,
        }
    }

    /// Until when the kubelet is alive, or may be, as far as the Lease shows. None for a time that came from a wrong
    /// clock: the Lease is read again before anything is done.
    pub fn alive_until(self, now: Timestamp) -> Option<Timestamp> {
        self.silent_from().filter(|until| now < *until && !self.is_of_a_wrong_clock(now))
    }

    /// When the kubelet last renewed its Lease, by the server's clock.
    pub fn heard(self) -> Option<Timestamp> {
        match self.lease {
            Lease::Renewed { heard, .. } => Some(heard),
            Lease::Unread | Lease::None => None,
        }
    }

    /// True if another read of the Lease would add nothing, unless the kubelet comes back.
    pub fn is_settled(self, now: Timestamp) -> bool {
        self.lease != Lease::Unread && self.alive_until(now).is_none() && !self.is_of_a_wrong_clock(now)
    }

    /// True if the recorded times are in the future.
    fn is_of_a_wrong_clock(self, now: Timestamp) -> bool {
        match self.lease {
            Lease::Renewed { heard, .. } => heard > now || self.since > now,
            Lease::Unread | Lease::None => false,
        }
    }
}

impl fmt::Display for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lease::Renewed { written, heard, .. } = self.lease else { return self.lease.fmt(f) };
        if written == heard {
            write!(f, "Lease renewed at {written}")?;
        } else {
            write!(f, "Lease renewed at {written} by the kubelet's clock, that is at {heard}")?;
        }
        match self.silent_from() {
            Some(until) => write!(f, ", which counts until {until}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: SignedDuration = SignedDuration::from_secs(40);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn read(renewed: i64) -> Option<NodeLease> {
        Some(NodeLease::new(at(renewed), LASTS))
    }

    /// Folds reads, each a time and the renew time in the Lease.
    fn heartbeat(reads: &[(i64, Option<i64>)]) -> Heartbeat {
        let one = |heartbeat: Heartbeat, (now, renewed): &(i64, Option<i64>)| {
            heartbeat.then(renewed.and_then(read), at(*now))
        };
        reads.iter().fold(Heartbeat::UNREAD, one)
    }

    /// One API server was two hours ahead when the Lease was first read. Salvor does not wait two hours for that, and
    /// the kubelet still gets its full time.
    #[test]
    fn what_was_seen_by_a_wrong_clock_is_read_again() {
        let ahead = heartbeat(&[(7_200, Some(0))]);
        assert_eq!((ahead.alive_until(at(10)), ahead.is_settled(at(10))), (None, false));
        let again = ahead.then(read(0), at(50));
        assert_eq!(again.alive_until(at(50)), Some(at(70)), "it is watched for half a duration");
        assert!(again.is_settled(at(70)));
        let moved = heartbeat(&[(7_200, Some(0)), (7_210, Some(10)), (20, Some(10))]);
        assert_eq!(moved.alive_until(at(20)), Some(at(60)), "it was renewed no later than now");
    }

    #[test]
    fn a_kubelet_is_silent_when_its_lease_has_not_moved_for_long_enough() {
        let hour = 3_600;
        type Case<'a> = (&'a str, &'a [(i64, Option<i64>)], Option<i64>);
        let cases: &[Case<'_>] = &[
            ("never read", &[], None),
            ("no Lease", &[(0, None)], None),
            ("renewed just now", &[(0, Some(0))], Some(40)),
            ("renewed half a minute ago", &[(0, Some(-30))], Some(20)),
            ("old at first sight: watched for two renewals", &[(0, Some(-600))], Some(20)),
            ("old, and watched since", &[(0, Some(-600)), (15, Some(-600))], Some(20)),
            ("an hour ahead, and dead", &[(0, Some(hour)), (30, Some(hour))], Some(40)),
            ("an hour behind, and alive", &[(0, Some(-hour)), (9, Some(-hour + 9))], Some(49)),
            ("an hour behind, and dead since", &[(0, Some(-hour)), (9, Some(8)), (60, Some(8))], Some(49)),
            ("set back: it lived to be so", &[(0, Some(5)), (10, Some(-hour))], Some(50)),
            ("deleted while it counts", &[(0, Some(0)), (10, None)], Some(40)),
            ("deleted, and counts no more", &[(0, Some(0)), (41, None)], None),
            ("deleted and made anew", &[(0, Some(0)), (10, None), (12, Some(12))], Some(52)),
            ("made at last", &[(0, None), (10, Some(-hour))], Some(50)),
        ];
        for (case, reads, expected) in cases {
            assert_eq!(heartbeat(reads).silent_from(), expected.map(at), "{case}");
        }
    }

    /// The control plane has watched the heartbeat of a node that it reports as Unknown: a heartbeat would have made it
    /// Ready.
    #[test]
    fn a_heartbeat_that_the_control_plane_misses_is_not_watched_anew() {
        let ready_heartbeat =
            |at_: i64, lost: Option<i64>| Some(NodeLease::of_heartbeat(at(at_), lost.map(at)));
        for (case, read, expected) in [
            ("missed for ten minutes", ready_heartbeat(-700, Some(-600)), -580),
            ("missed just now: watched for two heartbeats", ready_heartbeat(-700, Some(0)), 20),
            ("missed since a time that is yet to come", ready_heartbeat(-700, Some(3_600)), 20),
            ("called Unknown with a heartbeat that counts", ready_heartbeat(-5, Some(-600)), 35),
            ("not missed", ready_heartbeat(-700, None), 20),
        ] {
            assert_eq!(Heartbeat::UNREAD.then(read, at(0)).silent_from(), Some(at(expected)), "{case}");
        }
        let back = Heartbeat::UNREAD
            .then(ready_heartbeat(-700, Some(-600)), at(0))
            .then(ready_heartbeat(-690, None), at(10));
        assert_eq!(back.silent_from(), Some(at(50)), "a heartbeat came");
    }

    /// Two clocks that agree tell at once what else only half a duration of watching does. A clock that is behind does
    /// not.
    #[test]
    fn a_renewal_that_two_clocks_agree_on_is_not_watched_first() {
        let read = |renewed, stored: Option<i64>| NodeLease {
            stored: stored.map(at),
            ..NodeLease::new(at(renewed), LASTS)
        };
        for (case, renewed, stored, lost, expected) in [
            ("both say 50s ago", -50, Some(-50), Some(0), -10),
            ("to the second", -50, Some(-49), Some(-3), -10),
            ("both say just now", -1, Some(-1), Some(0), 39),
            ("lost by a clock that is ahead a little", -50, Some(-50), Some(4), -10),
            ("lost by a clock that is far ahead", -50, Some(-50), Some(3_600), 20),
            ("not lost", -50, Some(-50), None, 20),
            ("lost long ago: the API server may have been away", -500, Some(-500), Some(-450), 20),
            ("no record", -50, None, Some(0), 20),
            ("the kubelet's clock is an hour behind", -3_650, Some(-50), Some(0), 20),
            ("the API server's clock is an hour behind", -50, Some(-3_650), Some(0), 20),
            ("stored before it was written", -50, Some(-56), Some(0), 20),
        ] {
            let lease = read(renewed, stored).lost_at(lost.map(at), at(0));
            let silent_from = Heartbeat::UNREAD.then(Some(lease), at(0)).silent_from();
            assert_eq!(silent_from, Some(at(expected)), "{case}");
        }
        let lease = |seconds| Some(read(seconds, Some(seconds)).lost_at(Some(at(0)), at(0)));
        let back = Heartbeat::UNREAD.then(lease(-50), at(0)).then(lease(5), at(6));
        assert_eq!(back.silent_from(), Some(at(46)), "it is alive");
    }

    #[test]
    fn a_glance_believes_the_clock() {
        assert_eq!(Heartbeat::at_a_glance(read(-600), at(0)).silent_from(), Some(at(-560)));
        assert_eq!(Heartbeat::at_a_glance(read(3_600), at(0)).silent_from(), Some(at(40)));
        assert_eq!(Heartbeat::at_a_glance(None, at(0)).silent_from(), None);
    }

    #[test]
    fn a_node_is_back_when_it_is_ready_and_renews_its_lease_or_has_none() {
        let behind = Lease::Unread.then(read(-600), at(0));
        let moved = behind.then(read(-590), at(10));
        for (case, lease, ready, expected) in [
            ("no Lease", Lease::None, Ready::True, true),
            ("no Lease, not Ready", Lease::None, Ready::Unknown, false),
            ("unread", Lease::Unread, Ready::True, false),
            ("not seen to move", behind, Ready::True, false),
            ("moves, ten minutes behind", moved, Ready::True, true),
            ("moves, not Ready", moved, Ready::False, false),
        ] {
            assert_eq!(lease.is_back(ready, at(12)), expected, "{case}");
        }
        assert!(!moved.is_back(Ready::True, at(50)), "silent since");
    }

    #[test]
    fn a_lease_is_read_until_nothing_new_can_be_told() {
        assert!(!Heartbeat::UNREAD.is_settled(at(0)));
        assert!(heartbeat(&[(0, None)]).is_settled(at(0)));
        assert!(!heartbeat(&[(0, Some(-600))]).is_settled(at(19)));
        assert!(heartbeat(&[(0, Some(-600))]).is_settled(at(20)));
    }

    #[test]
    fn the_ends_of_time_do_not_panic() {
        let ends = [Timestamp::MIN, Timestamp::MAX];
        for (renewed, now) in ends.into_iter().flat_map(|one| ends.map(|other| (one, other))) {
            let lease =
                Some(NodeLease { still_since: Some(now), ..NodeLease::new(renewed, SignedDuration::MAX) });
            let heartbeat = Heartbeat::UNREAD.then(lease, now).then(lease, now);
            let _ = (heartbeat.silent_from(), heartbeat.alive_until(now), heartbeat.to_string());
        }
    }
}
