//! The API server's clock, seen from here.
//!
//! Behind one address there may be several API servers, and the clock of one of them may be wrong. Nothing in an answer
//! says which server it came from. So answers that agree with each other are taken to tell one clock, and of several
//! clocks the earliest counts: whichever is the right one, nothing is done before its time.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::moments::after;

/// An HTTP `Date` is cut to whole seconds: the true time is up to this much later.
const DATE_RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// Two clocks drift apart by at most one part in this many (500 ppm, the limit to which NTP slews a clock).
const DRIFT_DIVISOR: i32 = 2_000;

/// Clocks that differ by no more are one: those of API servers that are kept in step do. Of two such clocks the earlier
/// counts as well, as far as their answers tell them apart.
const IN_STEP: SignedDuration = SignedDuration::from_secs(1);

/// A clock that no answer has told for so long, while answers told another one, is not there any more: it was set, or its
/// server is gone. Every watch is opened again within 75 seconds, so by then each server that matters has answered
/// several times.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// For so long after clocks began to disagree, or after another one became the earliest, nothing is done that cannot be taken
/// back. By then every watch was opened again, so that every server that matters has had a say, and the Lease of every living
/// kubelet, which lasts 40 seconds, was renewed by the time that counts from now on.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_secs(90);

/// If the first answer agrees with our own clock by so much, two clocks that know nothing of each other say the same.
const AGREES_WITH_OURS: SignedDuration = SignedDuration::from_secs(5);

/// More clocks than any cluster has API servers. Of more, the latest ones are left out: they do not count.
const MOST_CLOCKS: usize = 8;

/// The known bounds of the lead of the API server's clock over ours.
///
/// Deletion timestamps are the API server's, so a deadline has passed only when it has passed on *its* clock. Every
/// response narrows down the difference: its `Date` was written somewhere between our sending and our receiving.
/// [`Self::now`] is the earliest time that the server's clock can show, so acting on it is never early.
///
/// `local` must come from a clock that does not jump: the wall clock as it was at start, plus a monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerClock {
    /// The clocks that answers told lately, each at least [`IN_STEP`] from the others when it was first told.
    clocks: Vec<Clock>,
    /// Until when, by our clock, nothing is done that cannot be taken back.
    settled_at: Option<Timestamp>,
}

/// A clock, minus ours, is at least one bound and at most the other, each as learned at some local time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clock {
    at_least: Bound,
    at_most: Bound,
    /// When, by our clock, an answer last told it.
    told: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    offset: SignedDuration,
    learned: Timestamp,
}

impl Bound {
    /// The bound has become wider by this much since it was learned.
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

    /// True if a fresh answer may come from this clock, or from one that is in step with it.
    fn may_be(&self, fresh: &Self) -> bool {
        let local = fresh.told;
        fresh.at_least.offset <= self.at_most.at_most(local).saturating_add(IN_STEP)
            && fresh.at_most.offset >= self.at_least.at_least(local).saturating_sub(IN_STEP)
    }

    /// Learns from a fresh answer that may come from it.
    fn learn(&mut self, fresh: &Self) {
        let local = fresh.told;
        self.told = local;
        // A clock in step with this one, but later: it is not the one that counts.
        if fresh.at_least.offset > self.at_most.at_most(local) {
            return;
        }
        // A clock in step with this one, but earlier.
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

    /// The local time from which on it has reached `server`, if nothing more is learned until then.
    fn local_when(&self, server: Timestamp) -> Timestamp {
        let guess = server.checked_sub(self.at_least.offset).unwrap_or(Timestamp::MAX);
        // The slack still to come is the drift over the wait, and the drift over that drift; twice covers both.
        let slack = self.at_least.slack(guess).saturating_mul(2);
        guess.checked_add(slack).unwrap_or(Timestamp::MAX)
    }
}

/// A change of the clock that counts, by a response: irreversible steps wait for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    /// The first response tells a clock that is so far ahead of ours.
    FarFromOurs(SignedDuration),
    /// A response tells a clock that is so far ahead of the earliest that was known.
    Disputed(SignedDuration),
    /// The earliest clock was not told any more, and another one counts, so far ahead of it.
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
    /// Learns from a response: when its request was sent, when it was received, and the `Date` in it.
    pub fn learn(&mut self, sent: Timestamp, received: Timestamp, date: Timestamp) -> Option<ClockChange> {
        let fresh = Clock::told_by(sent, received, date);
        let mut fitting = self.clocks.iter_mut().filter(|clock| clock.may_be(&fresh));
        let change = match (fitting.next(), fitting.next()) {
            // An answer that may come from either tells nothing.
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

    /// A clock that was not told before.
    fn meet(&mut self, fresh: Clock) -> Option<ClockChange> {
        let ahead = fresh.at_least.offset;
        let change = match self.earliest(fresh.told) {
            None => (!fresh.agrees_with_ours()).then_some(ClockChange::FarFromOurs(ahead)),
            Some(earliest) => {
                let ahead = ahead.saturating_sub(earliest.at_least.at_least(fresh.told));
                // Where clocks disagree anyway, only another earliest one is news.
                (self.clocks.len() == 1 || ahead.is_negative()).then_some(ClockChange::Disputed(ahead))
            }
        };
        self.clocks.push(fresh);
        self.clocks.sort_by_key(|clock| clock.at_least.offset);
        self.clocks.truncate(MOST_CLOCKS);
        change
    }

    /// Forgets clocks that answers have not told for long, while they told another one.
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

    /// The local time from which on [`Self::now`] has reached `server`, if nothing more is learned until then.
    pub fn local_when(&self, server: Timestamp) -> Option<Timestamp> {
        self.clocks.iter().map(|clock| clock.local_when(server)).max()
    }

    /// The lead of the server's clock over ours, at least and at most. Of several clocks the earliest counts.
    pub fn offset(&self, local: Timestamp) -> Option<(SignedDuration, SignedDuration)> {
        let earliest = self.earliest(local)?;
        Some((earliest.at_least.at_least(local), earliest.at_most.at_most(local)))
    }

    /// The number of different clocks answers told lately.
    pub fn clocks(&self) -> usize {
        self.clocks.len()
    }

    /// For how much longer nothing should be done that cannot be taken back, because it is not certain which clock counts.
    pub fn settles_in(&self, local: Timestamp) -> Option<SignedDuration> {
        let left = self.settled_at?.duration_since(local);
        left.is_positive().then_some(left)
    }
}

#[cfg(test)]
mod tests;
