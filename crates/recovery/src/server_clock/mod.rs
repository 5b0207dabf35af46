//! An estimate of the API server's clock.
//!
//! Several API servers may serve one address, and the clock of one of them may be wrong. A response does not say which
//! server sent it. Responses that agree with each other therefore count as one clock, and of several clocks the
//! earliest counts: whichever is right, Salvor does nothing before its time.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::moments::after;

/// An HTTP `Date` is truncated to whole seconds: the true time is up to this much later.
const DATE_RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// Two clocks drift apart by at most one part in this many (500 ppm, the limit at which NTP slews a clock).
const DRIFT_DIVISOR: i32 = 2_000;

/// Clocks that differ by no more than this count as one. Synchronized API servers differ by less. Of two such clocks
/// the earlier still counts, as far as their responses differ at all.
const IN_STEP: SignedDuration = SignedDuration::from_secs(1);

/// A clock that no response has shown for this long, while responses showed another one, is dropped: it was set, or its
/// server is gone. Every watch is reopened within 75 seconds, so every relevant server has responded several times by
/// then.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// After clocks begin to disagree, or another clock becomes the earliest, Salvor does nothing irreversible for this
/// long. By then every watch was reopened, so every relevant server has responded, and every living kubelet has renewed
/// its Lease (which lasts 40 seconds) under the clock that now counts.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_secs(90);

/// If the first response is this close to our own clock, two independent clocks agree.
const AGREES_WITH_OURS: SignedDuration = SignedDuration::from_secs(5);

/// More clocks than any cluster has API servers. Beyond this number the latest clocks are dropped: they do not count.
const MOST_CLOCKS: usize = 8;

/// The known bounds of the API server's clock minus ours.
///
/// Deletion timestamps come from the API server, so a deadline has passed only when it has passed on *its* clock. Every
/// response narrows the difference: its `Date` was written between our sending and our receiving. [`Self::now`] is the
/// earliest time that the server's clock can show, so acting on it is never early.
///
/// `local` must come from a clock that does not jump: the wall clock at startup plus a monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerClock {
    /// The clocks that recent responses showed, each at least [`IN_STEP`] from the others when first seen.
    clocks: Vec<Clock>,
    /// Until this time, by our clock, Salvor does nothing irreversible.
    settled_at: Option<Timestamp>,
}

/// Bounds of one clock minus ours, each with the local time at which it was learned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clock {
    at_least: Bound,
    at_most: Bound,
    /// When, by our clock, a response last showed this clock.
    told: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    offset: SignedDuration,
    learned: Timestamp,
}

impl Bound {
    /// A bound widens with drift since it was learned.
    fn slack(self, local: Timestamp) -> SignedDuration {
        local.duration_since(self.learned).abs() / DRIFT_DIVISOR
    }

    fn at_least(self, local: Timestamp) -> SignedDuration {
        self.offset.saturating_sub(self.slack(local))
    }

    fn at_most(self, local: Timestamp) -> SignedDuration {
        self.offset.saturating_add(self.slack(local))
    }
}

impl Clock {
    /// The bounds from a single response.
    fn told_by(sent: Timestamp, received: Timestamp, date: Timestamp) -> Self {
        let bound = |offset| Bound { offset, learned: received };
        Self {
            at_least: bound(date.duration_since(received)),
            at_most: bound(date.duration_since(sent).saturating_add(DATE_RESOLUTION)),
            told: received,
        }
    }

    /// True if a new response may come from this clock, or from one in step with it.
    fn may_be(&self, fresh: &Self) -> bool {
        let local = fresh.told;
        fresh.at_least.offset <= self.at_most.at_most(local).saturating_add(IN_STEP)
            && fresh.at_most.offset >= self.at_least.at_least(local).saturating_sub(IN_STEP)
    }

    fn learn(&mut self, fresh: &Self) {
        let local = fresh.told;
        self.told = local;
        // In step with this clock, but later: not the one that counts.
        if fresh.at_least.offset > self.at_most.at_most(local) {
            return;
        }
        // In step with this clock, but earlier.
        if fresh.at_most.offset < self.at_least.at_least(local) {
            *self = fresh.clone();
            return;
        }
        if fresh.at_least.offset > self.at_least.at_least(local) {
            self.at_least = fresh.at_least;
        }
        if fresh.at_most.offset < self.at_most.at_most(local) {
            self.at_most = fresh.at_most;
        }
    }

    fn agrees_with_ours(&self) -> bool {
        self.at_least.offset <= AGREES_WITH_OURS && self.at_most.offset >= -AGREES_WITH_OURS
    }

    /// The local time at which this clock has certainly reached `server`, if no further response narrows it.
    fn local_when(&self, server: Timestamp) -> Timestamp {
        let guess = server.checked_sub(self.at_least.offset).unwrap_or(Timestamp::MAX);
        // The remaining slack is the drift over the wait plus the drift over that drift; twice covers both.
        let slack = self.at_least.slack(guess).saturating_mul(2);
        guess.checked_add(slack).unwrap_or(Timestamp::MAX)
    }
}

/// A response changed the clock that counts: irreversible steps pause for `SETTLES_WITHIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    /// The first response shows a clock this far ahead of ours.
    FarFromOurs(SignedDuration),
    /// A response shows a clock this far ahead of the earliest known one.
    Disputed(SignedDuration),
    /// The earliest clock was dropped, and the clock that now counts is this far ahead of it.
    Adopted(SignedDuration),
}

impl fmt::Display for ClockChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |ahead: &SignedDuration| {
            let side = if ahead.is_negative() { "behind" } else { "ahead of" };
            (ahead.abs().as_secs(), side)
        };
        match self {
            Self::FarFromOurs(ahead) => {
                let (seconds, side) = by(ahead);
                write!(f, "the API server's clock is {seconds} s {side} ours")?;
            }
            Self::Disputed(ahead) => {
                let (seconds, side) = by(ahead);
                write!(
                    f,
                    "the API server told a time that is {seconds} s {side} what it told before: the earlier one counts"
                )?;
            }
            Self::Adopted(ahead) => {
                let (seconds, side) = by(ahead);
                write!(
                    f,
                    "the API server's clock is {seconds} s {side} what it was, for {} min",
                    FORGOTTEN_AFTER.as_mins()
                )?;
            }
        }
        write!(f, "; nothing that cannot be taken back is done for {} s", SETTLES_WITHIN.as_secs())
    }
}

impl ServerClock {
    /// Learns from a response: the times of sending and receiving by our clock, and its `Date`.
    pub fn learn(&mut self, sent: Timestamp, received: Timestamp, date: Timestamp) -> Option<ClockChange> {
        let fresh = Clock::told_by(sent, received, date);
        let mut fitting = self.clocks.iter_mut().filter(|clock| clock.may_be(&fresh));
        let change = match (fitting.next(), fitting.next()) {
            // The response may come from either clock, so it narrows neither.
            (Some(_), Some(_)) => return None,
            (Some(clock), None) => {
                clock.learn(&fresh);
                None
            }
            (None, _) => self.meet(fresh),
        };
        let change = change.or(self.forget(received));
        if change.is_some() {
            self.settled_at = Some(after(received, SETTLES_WITHIN));
        }
        change
    }

    /// Adds a clock not seen before.
    fn meet(&mut self, fresh: Clock) -> Option<ClockChange> {
        let ahead = fresh.at_least.offset;
        let change = match self.earliest(fresh.told) {
            None => (!fresh.agrees_with_ours()).then_some(ClockChange::FarFromOurs(ahead)),
            Some(earliest) => {
                let ahead = ahead.saturating_sub(earliest.at_least.at_least(fresh.told));
                // If clocks already disagree, only a new earliest clock is a change.
                (self.clocks.len() == 1 || ahead.is_negative()).then_some(ClockChange::Disputed(ahead))
            }
        };
        self.clocks.push(fresh);
        self.clocks.sort_by_key(|clock| clock.at_least.offset);
        self.clocks.truncate(MOST_CLOCKS);
        change
    }

    /// Drops clocks that no recent response has shown.
    fn forget(&mut self, local: Timestamp) -> Option<ClockChange> {
        let before = self.now(local);
        self.clocks.retain(|clock| local.duration_since(clock.told) <= FORGOTTEN_AFTER);
        let ahead = self.now(local)?.duration_since(before?);
        ahead.is_positive().then_some(ClockChange::Adopted(ahead))
    }

    fn earliest(&self, local: Timestamp) -> Option<&Clock> {
        self.clocks.iter().min_by_key(|clock| clock.at_least.at_least(local))
    }

    /// The earliest time that the server's clock can show now; none before the first response.
    pub fn now(&self, local: Timestamp) -> Option<Timestamp> {
        let earliest = self.earliest(local)?;
        Some(local.checked_add(earliest.at_least.at_least(local)).unwrap_or(Timestamp::MIN))
    }

    /// The local time at which [`Self::now`] has reached `server`, if no further response narrows it.
    pub fn local_when(&self, server: Timestamp) -> Option<Timestamp> {
        self.clocks.iter().map(|clock| clock.local_when(server)).max()
    }

    /// The bounds of the server's clock minus ours. Of several clocks the earliest counts.
    pub fn offset(&self, local: Timestamp) -> Option<(SignedDuration, SignedDuration)> {
        let earliest = self.earliest(local)?;
        Some((earliest.at_least.at_least(local), earliest.at_most.at_most(local)))
    }

    /// The number of different clocks that recent responses showed.
    pub fn clocks(&self) -> usize {
        self.clocks.len()
    }

    /// For how much longer irreversible steps wait because it is uncertain which clock counts.
    pub fn settles_in(&self, local: Timestamp) -> Option<SignedDuration> {
        let left = self.settled_at?.duration_since(local);
        left.is_positive().then_some(left)
    }
}

#[cfg(test)]
mod tests;
