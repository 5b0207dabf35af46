//! Liveness of a node's kubelet: the one definition that all recoveries share.
//!
//! A kubelet shows life by renewing its Lease. The time in the Lease is the kubelet's own, and its clock may be hours off: so
//! a time that *moves* shows life whatever it says, and a time that does not move shows none for longer than the Lease lasts. No
//! answer to the question is no silence: it is [`Lease::Unread`]. For a kubelet that keeps no Lease, the heartbeat of its node's
//! `Ready` condition stands in for it, as for Kubernetes' own node lifecycle controller.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::moments::after;
use crate::objects::Ready;

/// A heartbeat counts for this long: as long as a Lease does by default.
const HEARTBEAT_LASTS: SignedDuration = SignedDuration::from_secs(40);

/// The fields of a node's Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// When it was last renewed, by the kubelet's clock.
    pub renewed: Timestamp,
    /// The duration of the Lease, as the Lease says.
    pub lasts: SignedDuration,
    /// Since when it is known not to have moved, by somebody who watched it before us.
    pub still_since: Option<Timestamp>,
}

impl NodeLease {
    /// A Lease that was read just now.
    pub fn new(renewed: Timestamp, lasts: SignedDuration) -> Self {
        Self { renewed, lasts, still_since: None }
    }

    /// The replacement for a missing Lease: the heartbeat of the node's `Ready` condition. A kubelet that writes a heartbeat
    /// writes `Ready` too: so a node that was called Unknown at `lost`, and still is, has had no heartbeat since.
    pub fn of_heartbeat(at: Timestamp, lost: Option<Timestamp>) -> Self {
        Self { renewed: at, lasts: HEARTBEAT_LASTS, still_since: lost }
    }
}

/// The state of a node's Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The Lease was not read yet.
    Unread,
    /// There is none.
    None,
    /// The Lease was renewed.
    Renewed {
        /// The time that the kubelet wrote, by its own clock.
        written: Timestamp,
        /// When the kubelet was last heard of, by the server's clock: when we saw that time change, or, if we did not, that time
        /// itself, but not one that is yet to come.
        heard: Timestamp,
        /// For how long that counts.
        lasts: SignedDuration,
        /// True if we saw it being renewed since we began to look.
        moves: bool,
    },
}

impl Lease {
    /// The Lease after one more read. A time that changes shows that the kubelet is alive, whatever its clock.
    #[must_use]
    pub fn then(self, read: Option<NodeLease>, now: Timestamp) -> Self {
        let Some(NodeLease { renewed: written, lasts, still_since: _ }) = read else {
            // A kubelet that lives makes a Lease that was deleted anew when it next renews it. Until then the old one counts.
            return if self.is_fresh(now) { self } else { Self::None };
        };
        let (heard, moves) = match self {
            // A kubelet whose clock is ahead of the server's wrote that time before now all the same.
            Self::Unread => (written.min(now), false),
            // A time that is yet to come was seen by a clock that has been put right since.
            Self::Renewed { written: before, heard, moves, .. } if before == written => {
                (heard.min(now), moves)
            }
            Self::Renewed { .. } | Self::None => (now, true),
        };
        Self::Renewed { written, heard, lasts, moves }
    }

    /// True if the kubelet has renewed it while we looked, or not longer ago than it may take: it does so four times in
    /// the Lease's duration, and two of them may fail.
    pub(crate) fn is_kept_up(self, now: Timestamp) -> bool {
        match self {
            Self::Renewed { heard, lasts, moves, .. } => moves || now < after(heard, lasts / 2),
            Self::Unread | Self::None => false,
        }
    }

    /// True if the kubelet was heard of since it had written this time into the Lease. Without a Lease nobody can tell.
    pub(crate) fn was_renewed_since(self, time: Timestamp) -> bool {
        match self {
            Self::Renewed { written, moves, .. } => moves || written != time,
            Self::None => true,
            Self::Unread => false,
        }
    }

    /// Until when it shows that the kubelet lives.
    pub(crate) fn fresh_until(self) -> Option<Timestamp> {
        match self {
            Self::Renewed { heard, lasts, .. } => Some(after(heard, lasts)),
            Self::Unread | Self::None => None,
        }
    }

    /// True if it shows that the kubelet lives.
    pub fn is_fresh(self, now: Timestamp) -> bool {
        self.fresh_until().is_some_and(|until| now < until)
    }

    /// True if a node with this Lease is there again: its kubelet calls it Ready and renews the Lease.
    ///
    /// A node that has neither Lease nor heartbeat is there when it is Ready: nobody but its kubelet says so, and the control
    /// plane has no more to go by either.
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

/// A Lease, and since when it is watched: for recoveries in which nobody vouches that the machine is off.
///
/// At first sight a Lease may be old only by the clock of a kubelet that lives. A kubelet renews it four times in its
/// duration, so a time that has not moved for half a duration, of which two renewals may have failed, is really old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// The Lease.
    pub lease: Lease,
    /// Since when it is watched.
    since: Timestamp,
}

impl Pulse {
    /// Nobody has read the Lease yet.
    pub const UNREAD: Self = Self { lease: Lease::Unread, since: Timestamp::MAX };

    /// The pulse after the Lease was read once more.
    #[must_use]
    pub fn then(self, read: Option<NodeLease>, now: Timestamp) -> Self {
        let still_since = read.and_then(|read| read.still_since).unwrap_or(now);
        Self { lease: self.lease.then(read, now), since: self.since.min(still_since).min(now) }
    }

    /// The pulse for somebody who only glances at it: the kubelet's clock is believed.
    pub fn at_a_glance(read: Option<NodeLease>, now: Timestamp) -> Self {
        Self { lease: Lease::Unread.then(read, now), since: Timestamp::MIN }
    }

    /// From when on the kubelet is silent, if the Lease is not renewed by then. None if no Lease says anything about it.
    pub fn silent_from(self) -> Option<Timestamp> {
        match self.lease {
            Lease::Renewed { heard, lasts, .. } => {
                Some(after(heard, lasts).max(after(self.since, lasts / 2)))
            }
            Lease::Unread | Lease::None => None,
        }
    }

    /// Until when the kubelet lives, or may, as far as the Lease tells. What was seen by a wrong clock tells nothing: before
    /// anything is done the Lease is read again.
    pub fn alive_until(self, now: Timestamp) -> Option<Timestamp> {
        self.silent_from().filter(|until| now < *until && !self.is_of_a_wrong_clock(now))
    }

    /// When the kubelet was last heard of, by its Lease.
    pub fn heard(self) -> Option<Timestamp> {
        match self.lease {
            Lease::Renewed { heard, .. } => Some(heard),
            Lease::Unread | Lease::None => None,
        }
    }

    /// True if reading the Lease again would tell nothing new, unless the kubelet comes back.
    pub fn is_settled(self, now: Timestamp) -> bool {
        self.lease != Lease::Unread && self.alive_until(now).is_none() && !self.is_of_a_wrong_clock(now)
    }

    /// True if it was seen at a time that is yet to come.
    fn is_of_a_wrong_clock(self, now: Timestamp) -> bool {
        match self.lease {
            Lease::Renewed { heard, .. } => heard > now || self.since > now,
            Lease::Unread | Lease::None => false,
        }
    }
}

impl fmt::Display for Pulse {
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

    /// The pulse after these reads, each at a time and with the time in the Lease.
    fn pulse(reads: &[(i64, Option<i64>)]) -> Pulse {
        let one =
            |pulse: Pulse, (now, renewed): &(i64, Option<i64>)| pulse.then(renewed.and_then(read), at(*now));
        reads.iter().fold(Pulse::UNREAD, one)
    }

    /// One API server was two hours ahead when the Lease was first read. Nobody waits for two hours because of it, and the
    /// kubelet has its time all the same.
    #[test]
    fn what_was_seen_by_a_wrong_clock_is_read_again() {
        let ahead = pulse(&[(7_200, Some(0))]);
        assert_eq!((ahead.alive_until(at(10)), ahead.is_settled(at(10))), (None, false));
        let again = ahead.then(read(0), at(50));
        assert_eq!(again.alive_until(at(50)), Some(at(70)), "it is watched for half a duration");
        assert!(again.is_settled(at(70)));
        let moved = pulse(&[(7_200, Some(0)), (7_210, Some(10)), (20, Some(10))]);
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
            assert_eq!(pulse(reads).silent_from(), expected.map(at), "{case}");
        }
    }

    /// The control plane has watched the heartbeat of a node that it calls Unknown: a heartbeat would have made it Ready.
    #[test]
    fn a_heartbeat_that_the_control_plane_misses_is_not_watched_anew() {
        let heartbeat = |at_: i64, lost: Option<i64>| Some(NodeLease::of_heartbeat(at(at_), lost.map(at)));
        for (case, read, expected) in [
            ("missed for ten minutes", heartbeat(-700, Some(-600)), -580),
            ("missed just now: watched for two heartbeats", heartbeat(-700, Some(0)), 20),
            ("missed since a time that is yet to come", heartbeat(-700, Some(3_600)), 20),
            ("called Unknown with a heartbeat that counts", heartbeat(-5, Some(-600)), 35),
            ("not missed", heartbeat(-700, None), 20),
        ] {
            assert_eq!(Pulse::UNREAD.then(read, at(0)).silent_from(), Some(at(expected)), "{case}");
        }
        let back = Pulse::UNREAD.then(heartbeat(-700, Some(-600)), at(0)).then(heartbeat(-690, None), at(10));
        assert_eq!(back.silent_from(), Some(at(50)), "a heartbeat came");
    }

    #[test]
    fn a_glance_believes_the_clock() {
        assert_eq!(Pulse::at_a_glance(read(-600), at(0)).silent_from(), Some(at(-560)));
        assert_eq!(Pulse::at_a_glance(read(3_600), at(0)).silent_from(), Some(at(40)));
        assert_eq!(Pulse::at_a_glance(None, at(0)).silent_from(), None);
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
        assert!(!Pulse::UNREAD.is_settled(at(0)));
        assert!(pulse(&[(0, None)]).is_settled(at(0)));
        assert!(!pulse(&[(0, Some(-600))]).is_settled(at(19)));
        assert!(pulse(&[(0, Some(-600))]).is_settled(at(20)));
    }

    #[test]
    fn the_ends_of_time_do_not_panic() {
        let ends = [Timestamp::MIN, Timestamp::MAX];
        for (renewed, now) in ends.into_iter().flat_map(|one| ends.map(|other| (one, other))) {
            let lease =
                Some(NodeLease { still_since: Some(now), ..NodeLease::new(renewed, SignedDuration::MAX) });
            let pulse = Pulse::UNREAD.then(lease, now).then(lease, now);
            let _ = (pulse.silent_from(), pulse.alive_until(now), pulse.to_string());
        }
    }
}
