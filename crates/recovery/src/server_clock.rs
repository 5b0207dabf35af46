//! The API server's clock, seen from here.

use jiff::{SignedDuration, Timestamp};

/// An HTTP `Date` is cut to whole seconds: the true time is up to this much later.
const DATE_RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// Two clocks drift apart by at most one part in this many (500 ppm, the limit to which NTP slews a clock).
const DRIFT_DIVISOR: i32 = 2_000;

/// What is known about how far the API server's clock is ahead of ours.
///
/// Deletion timestamps are the API server's, so a deadline has passed only when it has passed on *its* clock. Every
/// response narrows down the difference: its `Date` was written somewhere between our sending and our receiving.
/// [`Self::now`] is the earliest time that the server's clock can show, so acting on it is never early.
///
/// `local` must come from a clock that does not jump: the wall clock as it was at start, plus a monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerClock(Option<Bounds>);

/// The server's clock minus ours is at least one bound and at most the other, each as learned at some local time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bounds {
    at_least: Bound,
    at_most: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    offset: SignedDuration,
    learned: Timestamp,
}

impl Bound {
    /// How much wider the bound has become since it was learned.
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

impl ServerClock {
    /// Learns from a response: when its request was sent, when it was received, and the `Date` in it.
    pub fn learn(&mut self, sent: Timestamp, received: Timestamp, date: Timestamp) {
        let bound = |offset| Bound { offset, learned: received };
        let fresh = Bounds {
            at_least: bound(date.duration_since(received)),
            at_most: bound(date.duration_since(sent).saturating_add(DATE_RESOLUTION)),
        };
        let Some(known) = &mut self.0 else {
            self.0 = Some(fresh);
            return;
        };
        if fresh.at_least.offset > known.at_least.at_least(received) {
            known.at_least = fresh.at_least;
        }
        if fresh.at_most.offset < known.at_most.at_most(received) {
            known.at_most = fresh.at_most;
        }
        // One of the clocks was set: what was known before is about another clock.
        if known.at_least.at_least(received) > known.at_most.at_most(received) {
            *known = fresh;
        }
    }

    /// The earliest time that the server's clock can show now; none before the first response.
    pub fn now(&self, local: Timestamp) -> Option<Timestamp> {
        let bounds = self.0.as_ref()?;
        Some(local.checked_add(bounds.at_least.at_least(local)).unwrap_or(Timestamp::MIN))
    }

    /// The local time from which on [`Self::now`] has reached `server`, if nothing more is learned until then.
    pub fn local_when(&self, server: Timestamp) -> Option<Timestamp> {
        let bounds = self.0.as_ref()?;
        let guess = server.checked_sub(bounds.at_least.offset).unwrap_or(Timestamp::MAX);
        // The slack still to come is the drift over the wait, and the drift over that drift; twice covers both.
        let slack = bounds.at_least.slack(guess).saturating_mul(2);
        Some(guess.checked_add(slack).unwrap_or(Timestamp::MAX))
    }

    /// How far the server's clock is ahead of ours, at least and at most.
    pub fn offset(&self, local: Timestamp) -> Option<(SignedDuration, SignedDuration)> {
        let bounds = self.0.as_ref()?;
        Some((bounds.at_least.at_least(local), bounds.at_most.at_most(local)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
    }

    fn cut_to_seconds(time: Timestamp) -> Timestamp {
        Timestamp::from_second(time.as_second()).unwrap()
    }

    #[test]
    fn knows_nothing_before_the_first_response() {
        let clock = ServerClock::default();
        assert_eq!(clock.now(at(0)), None);
        assert_eq!(clock.local_when(at(0)), None);
        assert_eq!(clock.offset(at(0)), None);
    }

    #[test]
    fn one_response_bounds_the_difference_by_its_round_trip_and_a_second() {
        let mut clock = ServerClock::default();
        clock.learn(at(100), at(300), at(5_000));
        assert_eq!(clock.now(at(300)), Some(at(5_000)));
        let (least, most) = clock.offset(at(300)).unwrap();
        assert_eq!((least.as_millis(), most.as_millis()), (4_700, 5_900));
    }

    #[test]
    fn further_responses_narrow_it_down() {
        let mut clock = ServerClock::default();
        for millis in (0..60_000).step_by(970) {
            let server = at(millis + 10_000 + 5);
            clock.learn(at(millis), at(millis + 10), cut_to_seconds(server));
        }
        let (least, most) = clock.offset(at(60_000)).unwrap();
        assert!(least <= SignedDuration::from_secs(10) && most >= SignedDuration::from_secs(10));
        assert!(least > SignedDuration::from_millis(9_900) && most < SignedDuration::from_millis(10_100));
    }

    #[test]
    fn a_clock_that_was_set_is_believed_at_once() {
        let mut clock = ServerClock::default();
        clock.learn(at(0), at(10), at(0));
        clock.learn(at(1_000), at(1_010), at(-3_600_000));
        assert_eq!(clock.now(at(1_010)), Some(at(-3_600_000)));
        clock.learn(at(2_000), at(2_010), at(3_600_000));
        assert_eq!(clock.now(at(2_010)), Some(at(3_600_000)));
    }

    #[test]
    fn the_ends_of_time_do_not_panic() {
        let mut clock = ServerClock::default();
        clock.learn(Timestamp::MIN, Timestamp::MIN, Timestamp::MAX);
        let _ = (clock.now(Timestamp::MAX), clock.local_when(Timestamp::MIN), clock.offset(Timestamp::MAX));
        clock.learn(Timestamp::MAX, Timestamp::MAX, Timestamp::MIN);
        let _ = (clock.now(Timestamp::MIN), clock.local_when(Timestamp::MAX), clock.offset(Timestamp::MIN));
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(256))]

        /// The server's clock is off by `offset` and drifts within the limit; whatever is learned, we are never early.
        #[test]
        fn is_never_ahead_of_the_server(
            offset in -10_000_000i64..10_000_000,
            drift_ppm in -400i64..400,
            responses in proptest::collection::vec((0i64..60_000, 0i64..2_000, 0i64..2_000), 1..50),
            later in 0i64..600_000,
        ) {
            let drift = |local: i64| SignedDuration::from_nanos(local * drift_ppm);
            let server = |local: i64| at(local + offset).checked_add(drift(local)).unwrap();
            let mut clock = ServerClock::default();
            let mut local = 0;
            for (pause, there, back) in responses {
                local += pause;
                let date = cut_to_seconds(server(local + there));
                clock.learn(at(local), at(local + there + back), date);
                local += there + back;
                prop_assert!(clock.now(at(local)).unwrap() <= server(local));
            }
            prop_assert!(clock.now(at(local + later)).unwrap() <= server(local + later));

            let deadline = server(local + later);
            let wake = clock.local_when(deadline).unwrap();
            prop_assert!(clock.now(wake).unwrap() >= deadline);
        }
    }
}
