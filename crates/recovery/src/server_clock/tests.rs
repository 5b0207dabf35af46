//! Bounds of the server's clock from its responses, as tables and as properties.

use proptest::prelude::*;

use super::*;

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

const HOUR: i64 = 3_600_000;
const MINUTE: i64 = 60_000;

/// A clock that learned from responses at these local times, each with the server's offset, all in milliseconds.
fn taught(answers: &[(i64, i64)]) -> ServerClock {
    let mut clock = ServerClock::default();
    for (local, offset) in answers {
        clock.learn(at(*local), at(local + 10), cut_to_seconds(at(local + offset)));
    }
    clock
}

/// By how many seconds the clock that counts is ahead of ours.
fn ahead(clock: &ServerClock, local: i64) -> i64 {
    (clock.now(at(local)).unwrap().duration_since(at(local)).as_millis() as i64).div_euclid(1_000)
}

/// For how many more seconds nothing irreversible is done.
fn unsettled(clock: &ServerClock, local: i64) -> i64 {
    clock.settles_in(at(local)).map_or(0, |left| left.as_secs())
}

#[test]
fn one_wrong_date_ends_no_wait() {
    let mut clock = taught(&[(0, 0), (1_000, 0)]);
    assert_eq!((clock.clocks(), unsettled(&clock, 1_010)), (1, 0), "it agrees with ours from the beginning");
    let change = clock.learn(at(2_000), at(2_010), at(2_000 + 2 * HOUR)).unwrap();
    assert_eq!(
        change.to_string(),
        "the API server told a time that is 7200 s ahead of what it told before: the earlier one counts; nothing that cannot \
         be taken back is done for 90 s"
    );
    assert_eq!((ahead(&clock, 2_010), clock.clocks(), unsettled(&clock, 2_010)), (-1, 2, 90));
    assert_eq!(unsettled(&clock, 92_010), 0, "and then work goes on");
}

/// One API server answers every renewal of the Lease and is two hours ahead; another answers a watch once a minute.
#[test]
fn of_two_servers_that_disagree_for_ever_the_earlier_counts_for_ever() {
    for wrong in [2 * HOUR, -2 * HOUR] {
        let mut clock = ServerClock::default();
        for second in 0..7_200 {
            let (local, offset) = (second * 1_000, if second % 75 == 20 { 0 } else { wrong });
            clock.learn(at(local), at(local + 10), cut_to_seconds(at(local + offset)));
            if second < 20 {
                assert!(unsettled(&clock, local + 10) > 0, "the first answers may be the wrong ones");
                continue;
            }
            assert_eq!(ahead(&clock, local + 10), wrong.min(0) / 1_000 - 1, "after {second} s");
            assert_eq!(unsettled(&clock, local + 10), (110 - second).max(0), "after {second} s");
        }
    }
}

#[test]
fn a_clock_that_was_set_is_adopted_in_bounded_time() {
    for set in [HOUR, -HOUR, 1_500, -1_500] {
        let before: Vec<_> = (0..60).map(|n| (n * 2_000, 0)).collect();
        let after: Vec<_> = (60..400).map(|n| (n * 2_000, set)).collect();
        let mut clock = taught(&before);
        let (mut adopted, mut held) = (None, 0);
        for (local, offset) in after {
            clock.learn(at(local), at(local + 10), cut_to_seconds(at(local + offset)));
            let now = clock.now(at(local + 10)).unwrap();
            assert!(now <= at(local + 10 + offset.max(0)), "never ahead of both");
            held += i64::from(unsettled(&clock, local + 10) > 0) * 2;
            let off = now.duration_since(at(local + offset)).abs();
            if off < SignedDuration::from_millis(1_100) && adopted.is_none() {
                adopted = Some(local - 120_000);
            }
        }
        let adopted = adopted.unwrap_or(i64::MAX);
        assert!(adopted <= if set > 0 { 6 * MINUTE } else { 0 }, "set by {set} ms: after {adopted} ms");
        assert!(held <= 190, "set by {set} ms: irreversible steps were held for {held} s");
        assert_eq!(clock.clocks(), 1);
    }
}

/// API servers in step, however many, cause no change.
#[test]
fn clocks_that_are_in_step_are_one() {
    let mut clock = ServerClock::default();
    for n in 0..3_600 {
        let (local, offset) = (n * 970, [0, 300, 80, -200][usize::try_from(n % 4).unwrap()]);
        clock.learn(at(local), at(local + 10), cut_to_seconds(at(local + offset)));
        assert_eq!((clock.clocks(), unsettled(&clock, local + 10)), (1, 0));
        let ahead = clock.now(at(local + 10)).unwrap().duration_since(at(local + 10));
        assert!(ahead <= SignedDuration::from_millis(300), "{ahead}");
        assert!(ahead >= SignedDuration::from_millis(-1_300), "{ahead}");
    }
}

#[test]
fn while_nobody_answers_nothing_is_forgotten() {
    let mut clock = taught(&[(0, 0), (1_000, 2 * HOUR)]);
    assert_eq!(clock.clocks(), 2);
    assert_eq!(ahead(&clock, 12 * HOUR), -22, "only the drift is allowed for");
    // The first server to respond again does not decide alone.
    clock.learn(at(12 * HOUR), at(12 * HOUR + 10), at(14 * HOUR));
    assert_eq!(unsettled(&clock, 12 * HOUR + 10), 90);
}

#[test]
fn a_server_that_makes_times_up_neither_shortens_a_wait_nor_takes_memory() {
    let mut clock = taught(&[(0, 0)]);
    let mut held = 0;
    for n in 1..3_000i64 {
        let nonsense = (n * 7_919 % 10_007) * 10_000;
        clock.learn(at(n * 1_000), at(n * 1_000 + 10), at(n * 1_000 + nonsense));
        if n % 60 == 0 {
            clock.learn(at(n * 1_000 + 20), at(n * 1_000 + 30), at(n * 1_000));
        }
        assert!(clock.clocks() <= MOST_CLOCKS);
        assert!(clock.now(at(n * 1_000 + 30)).unwrap() <= at(n * 1_000 + 30));
        held += i64::from(unsettled(&clock, n * 1_000) > 0);
    }
    assert!(held < 200, "and work goes on: held for {held} s");
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

    /// Some servers lie, ahead or behind, in any order and from the first answer on. As long as the honest one answers
    /// now and then, nothing is early.
    #[test]
    fn is_never_ahead_of_an_honest_server_among_liars(
        offset in -10_000_000i64..10_000_000,
        lies in proptest::collection::vec(prop_oneof![-10_000_000i64..-10_000, 10_000i64..10_000_000], 1..4),
        responses in proptest::collection::vec((0i64..20_000, 0i64..500, 0i64..500, 0usize..8), 1..200),
        later in 0i64..60_000,
    ) {
        let server = |local: i64| at(local + offset);
        let mut clock = ServerClock::default();
        let (mut local, mut honest) = (0, None);
        for (pause, there, back, who) in responses {
            local += pause;
            // The correct server responds in time.
            let lie = lies.get(who).filter(|_| honest.is_none_or(|at| local - at < 240_000));
            let date = cut_to_seconds(at(local + there + offset + lie.copied().unwrap_or(0)));
            clock.learn(at(local), at(local + there + back), date);
            local += there + back;
            if lie.is_none() {
                honest = Some(local);
            }
            if honest.is_some() {
                prop_assert!(clock.now(at(local)).unwrap() <= server(local));
                let deadline = server(local + later);
                let wake = clock.local_when(deadline).unwrap();
                prop_assert!(clock.now(wake).unwrap() >= deadline);
            }
        }
    }

    /// Whatever was learned before: when all servers agree, they are believed in bounded time, and nothing is held any more.
    #[test]
    fn is_soon_right_when_all_agree(
        before in proptest::collection::vec((0i64..20_000, -10_000_000i64..10_000_000), 0..50),
        offset in -10_000_000i64..10_000_000,
    ) {
        let mut clock = ServerClock::default();
        let mut local = 0;
        for (pause, wrong) in before {
            local += pause;
            clock.learn(at(local), at(local + 10), cut_to_seconds(at(local + wrong)));
        }
        for _ in 0..120 {
            local += 7_000;
            clock.learn(at(local), at(local + 10), cut_to_seconds(at(local + offset)));
        }
        let late = at(local + offset).duration_since(clock.now(at(local)).unwrap());
        prop_assert!(late <= SignedDuration::from_millis(2_500), "{late}");
        prop_assert!(late >= SignedDuration::ZERO);
        prop_assert_eq!(clock.settles_in(at(local)), None);
    }
}
