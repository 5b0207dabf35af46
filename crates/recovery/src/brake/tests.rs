//! The brake as tables and as properties.

use crate::eviction::Step;
use crate::verdict::Decision;
use jiff::SignedDuration;
use proptest::prelude::*;
use salvor_api::GoDuration;

use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
}

fn brake(max_pods_per_minute: u32, max_unreachable_percent: u8) -> Brake {
    Brake::new(
        BrakeLimits { max_pods_per_minute, max_unreachable_percent, ..BrakeLimits::default() },
        BrakeState::default(),
    )
}

fn counts(unreachable: u32, total: u32) -> NodeCounts {
    NodeCounts { unreachable, total }
}

#[test]
fn holds_only_above_the_share_and_above_two_nodes() {
    let cases = [
        (50, counts(0, 0), false),
        (50, counts(2, 2), false),
        (50, counts(2, 3), false),
        (50, counts(3, 6), false),
        (50, counts(3, 5), true),
        (50, counts(501, 1000), true),
        (50, counts(500, 1000), false),
        (100, counts(10, 10), false),
        (1, counts(3, 1000), false),
        (1, counts(11, 1000), true),
        (0, counts(10, 10), false),
        (50, counts(u32::MAX, u32::MAX), true),
    ];
    for (percent, nodes, held) in cases {
        let mut brake = brake(1000, percent);
        brake.observe(at(0), nodes);
        assert_eq!(brake.check(at(1), 1).is_err(), held, "{percent}% {nodes:?}");
    }
}

#[test]
fn says_once_that_it_takes_hold_and_once_that_it_lets_go() {
    let mut brake = brake(1000, 50);
    assert_eq!(brake.observe(at(0), counts(2, 5)), None);
    let engaged = Engaged { since: at(1), nodes: counts(3, 5) };
    assert_eq!(brake.observe(at(1), counts(3, 5)), Some(Transition::Engaged(engaged)));
    assert_eq!(brake.observe(at(2), counts(4, 5)), None);
    let held = brake.check(at(3), 1).unwrap_err();
    assert_eq!(held.code(), "MaxUnreachablePercent");
    assert_eq!(held.until(), None);
    assert_eq!(
        held.to_string(),
        "4 of 5 nodes are unreachable, more than brake.maxUnreachablePercent=50 allows, since 2027-01-15T08:00:00.001Z"
    );
    let before = Engaged { since: at(1), nodes: counts(4, 5) };
    let settling = Transition::Settling { after: before, nodes: counts(1, 5), until: at(50_004) };
    assert_eq!(brake.observe(at(4), counts(1, 5)), Some(settling));
    assert_eq!(brake.observe(at(5), counts(1, 5)), None);
    assert_eq!(brake.changes_at(at(5)), Some(at(50_004)));
    assert_eq!(brake.observe(at(50_004), counts(1, 5)), Some(Transition::Released(before)));
    assert_eq!(brake.observe(at(50_005), counts(1, 5)), None);
    assert_eq!(brake.check(at(50_006), 1), Ok(()));
}

#[test]
fn a_restart_in_the_middle_changes_nothing() {
    let mut first = brake(2, 50);
    first.admit(at(0), 2).unwrap();
    first.observe(at(10), counts(3, 5));
    let kept = serde_json::to_string(first.state()).unwrap();
    let mut second = Brake::new(first.limits.clone(), serde_json::from_str(&kept).unwrap());
    assert_eq!(second.check(at(20), 0), first.check(at(20), 0));
    assert_eq!(second.observe(at(30), counts(3, 5)), None, "the event would be sent again");
    second.observe(at(40), counts(0, 5));
    assert!(matches!(second.check(at(50), 1), Err(Held::Settling { .. })));
    assert!(matches!(second.check(at(50_040), 1), Err(Held::MaxPodsPerMinute { .. })));
}

#[test]
fn the_budget_is_spent_and_comes_back() {
    let mut brake = brake(3, 50);
    assert_eq!(brake.admit(at(0), 2), Ok(()));
    assert_eq!(brake.admit(at(30_000), 1), Ok(()));
    let held = brake.admit(at(30_001), 1).unwrap_err();
    assert_eq!(held, Held::MaxPodsPerMinute { max_pods_per_minute: 3, until: at(61_000) });
    assert_eq!(brake.check(at(60_999), 1).unwrap_err().until(), Some(at(61_000)));
    assert_eq!(brake.admit(at(61_000), 2), Ok(()));
    assert_eq!(brake.check(at(61_001), 1).unwrap_err().until(), Some(at(91_000)));
    assert_eq!(brake.check(at(61_001), 3).unwrap_err().until(), Some(at(122_000)));
}

/// An admission that is carried out late counts from then: otherwise two budgets are spent in one minute.
#[test]
fn what_is_carried_out_late_counts_from_then() {
    let decision = || start_in("a");
    let steps = decision().verdict.actions().to_vec();
    let limits = BrakeLimits { max_nodes_per_minute: 1, ..BrakeLimits::default() };
    let mut brake = Brake::new(limits, BrakeState::default());
    let passes =
        |brake: &Brake, now| !brake.review(now, decision(), Outage::default()).verdict.actions().is_empty();
    let _ = brake.pass(at(0), decision(), Outage::default());
    assert!(!brake.carried_out(at(0), at(900), &steps), "in the same second nothing changes");
    assert!(brake.carried_out(at(0), at(40_000), &steps));
    assert!(!passes(&brake, at(61_000)) && !passes(&brake, at(100_999)));
    assert!(passes(&brake, at(101_000)), "it counts once, and not for longer than a minute");
    // A write that ends after its admission has expired counts from its end, too.
    assert!(brake.carried_out(at(0), at(200_000), &steps));
    assert!(!passes(&brake, at(260_999)) && passes(&brake, at(261_000)));
    let mut unlimited = Brake::new(BrakeLimits::default(), BrakeState::default());
    unlimited.limits.max_nodes_per_minute = 0;
    assert!(!unlimited.carried_out(at(0), at(40_000), &steps), "without a limit nothing is remembered");
}

/// The configuration changes while admitted pods still count.
#[test]
fn a_limit_that_is_lowered_or_taken_away_holds_no_more_than_it_says() {
    let mut before = brake(5, 50);
    before.admit(at(0), 5).unwrap();
    let with_limit = |limit| {
        let mut brake = brake(limit, 50);
        brake.restore(at(1_000), before.state().clone());
        brake
    };
    assert!(with_limit(6).check(at(1_000), 2).is_err());
    assert_eq!(with_limit(0).check(at(1_000), 2), Ok(()));
    assert!(with_limit(1).check(at(1_000), 1).is_err());
    assert_eq!(with_limit(1).check(at(1_000), 0), Ok(()), "what was let through is carried out");
}

#[test]
fn no_limit_means_no_limit() {
    let mut brake = brake(0, 0);
    brake.observe(at(0), counts(10, 10));
    for _ in 0..3 {
        assert_eq!(brake.admit(at(1), u32::MAX), Ok(()));
    }
    assert_eq!(brake.state(), &BrakeState::default());
}

#[test]
fn more_than_the_whole_budget_passes_alone() {
    let mut brake = brake(3, 50);
    assert_eq!(brake.admit(at(0), 5), Ok(()));
    assert!(brake.admit(at(1), 1).is_err());
    assert!(brake.check(at(60_000), 5).is_err());
    assert_eq!(brake.admit(at(61_000), 5), Ok(()));
}

#[test]
fn a_clock_that_was_ahead_cannot_hold_for_longer_than_a_minute() {
    let mut brake = brake(1, 50);
    brake.admit(at(3_600_000_000), 1).unwrap();
    let until = brake.check(at(0), 1).unwrap_err().until().unwrap();
    assert_eq!(until, at(61_000));
    let mut state = BrakeState::default();
    state.admitted.0.extend([(i64::MAX, u32::MAX), (i64::MIN, u32::MAX)]);
    let mut brake = Brake::new(BrakeLimits::default(), state);
    assert!(brake.admit(at(0), 1).is_err());
    assert_eq!(brake.admit(at(61_000), 1), Ok(()), "not even if somebody wrote the end of time there");
}

#[test]
fn what_is_not_a_brakes_memory_is_refused() {
    let garbage = [
        "",
        "garbage",
        "null",
        "[]",
        "{}",
        "{\"admitted\":[]}",
        "{\"admitted\":{\"1800000000\":-5}}",
        "{\"admitted\":{\"soon\":5}}",
        "{\"admitted\":{\"1800000000\":5000000000}}",
        "{\"admitted\":{},\"engaged\":true}",
        "{\"admitted\":{},\"settling\":{}}",
        "{\"admitted\":{}} {}",
    ];
    for text in garbage {
        assert!(BrakeState::read(text).is_err(), "{text}");
    }
    let kept = serde_json::to_string(&BrakeState::default()).unwrap();
    assert_eq!(BrakeState::read(&kept), Ok(BrakeState::default()));
    // State that an earlier or a later version wrote can be read.
    let earlier = "{\"admitted\":{},\"admittedNodes\":{},\"engaged\":null}";
    assert_eq!(BrakeState::read(earlier), Ok(BrakeState::default()));
    assert_eq!(BrakeState::read("{\"admitted\":{},\"someday\":1}"), Ok(BrakeState::default()));
}

/// A Lease that is too large cannot be renewed: a manual edit there must not end a leader's term.
#[test]
fn what_is_kept_does_not_grow_by_what_somebody_wrote() {
    let long = "é".repeat(100_000);
    let error = BrakeState::read(&format!("{{\"admitted\":\"{long}\"}}")).unwrap_err();
    assert!(error.len() <= 200, "{} bytes", error.len());
    let admitted: String = (0..20_000).map(|n| format!("\"{}\":1,", 9_000_000_000u64 + n)).collect();
    let share =
        "{\"engaged\":{\"since\":\"2027-01-15T08:00:00Z\",\"nodes\":{\"unreachable\":3,\"total\":3}}}";
    let kept = format!(
        "{{\"admitted\":{{{}}},\"zones\":{{\"{long}\":{share}}},\"lost\":{{\"since\":\"2027-01-15T08:00:00Z\",\"why\":\"{long}\"}}}}",
        admitted.trim_end_matches(',')
    );
    let mut brake = brake(5, 50);
    brake.restore(at(0), BrakeState::read(&kept).unwrap());
    let kept = serde_json::to_string(&brake.state_to_save()).unwrap();
    assert!(kept.len() < 1_000, "{} bytes", kept.len());
}

#[test]
fn a_lost_memory_counts_as_a_whole_budget_spent() {
    let mut brake = brake(5, 50);
    brake.assume_spent(at(0), "it is garbage");
    let held = brake.admit(at(0), 0).unwrap_err();
    assert_eq!((held.code(), held.until()), ("BrakeMemoryLost", Some(at(61_000))));
    assert_eq!(
        held.to_string(),
        "Salvor does not know what was recovered lately (it is garbage), so the whole budget counts as spent. It waits until \
         2027-01-15T08:01:01Z"
    );
    // A crash in the middle does not end it.
    let kept = serde_json::to_string(&brake.state_to_save()).unwrap();
    let mut next = self::brake(5, 50);
    next.restore(at(30_000), BrakeState::read(&kept).unwrap());
    assert_eq!(next.check(at(60_999), 0).unwrap_err().until(), Some(at(61_000)));
    assert_eq!(next.admit(at(61_000), 5), Ok(()));
    assert_eq!(next.lost(at(61_000)), None);
    assert!(!serde_json::to_string(&next.state_to_save()).unwrap().contains("garbage"), "and is forgotten");
}

/// Times in the future and huge counts, from a manual edit: the block ends after a window or a settle period.
#[test]
fn an_absurd_memory_holds_no_longer_than_a_true_one() {
    let ever = "9999-01-01T00:00:00Z";
    let engaged = format!("{{\"since\":\"{ever}\",\"nodes\":{{\"unreachable\":4000000000,\"total\":0}}}}");
    let settling = format!(
        "{{\"after\":{engaged},\"lost\":4000000000,\"fell\":\"{ever}\",\"lowest\":0,\"lowestSince\":\"{ever}\",\
         \"pods\":4000000000,\"nodes\":4000000000,\"told\":true}}"
    );
    let admitted =
        "{\"9000000000000000000\":4000000000,\"-9000000000000000000\":4000000000,\"253402207200\":1}";
    let kept = |engaged: &str, settling: &str| {
        format!(
            "{{\"admitted\":{admitted},\"admittedNodes\":{admitted},\"engaged\":{engaged},\"settling\":{settling},\
             \"zones\":{{\"a\":{{\"engaged\":null,\"settling\":{settling}}}}},\
             \"lost\":{{\"since\":\"{ever}\",\"why\":\"\"}}}}"
        )
    };
    for text in [kept(&engaged, "null"), kept("null", &settling)] {
        let mut brake = brake(5, 50);
        brake.restore(at(0), BrakeState::read(&text).unwrap());
        assert!(brake.check(at(0), 1).is_err());
        let counted = Tally { cluster: Some(counts(1, 6)), ..zones(&[("a", 1, 6)]) };
        brake.observe(at(1_000), counted);
        assert_eq!(brake.admit(at(110_000), 5), Ok(()));
        let judged = brake.pass(at(175_000), start_in("a"), Outage::Holds);
        assert_eq!(judged.verdict.actions().len(), 1);
    }
}

/// Nodes that were lost together come back together: 4 of 6, two seconds apart.
#[test]
fn it_does_not_let_go_while_nodes_come_back() {
    let mut brake = brake(1000, 50);
    brake.observe(at(0), counts(4, 6));
    let mut until = None;
    for (second, lost) in [(100, 3), (102, 2), (104, 1), (106, 0)] {
        brake.observe(at(second * 1000), counts(lost, 6));
        let held = brake.check(at(second * 1000), 1).unwrap_err();
        assert_eq!(held.code(), "Settling");
        assert!(held.until() > until, "the wait begins anew");
        until = held.until();
    }
    assert_eq!(until, Some(at(156_000)));
    assert_eq!(
        brake.check(at(106_000), 0).unwrap_err().to_string(),
        "too many nodes were unreachable a moment ago, and 0 still are. Salvor waits until 2027-01-15T08:02:36Z, and longer if \
         more of them become Ready (brake.settlePeriod)"
    );
    assert_eq!(brake.check(at(156_000), 1), Ok(()));
}

#[test]
fn it_lets_through_little_at_first_and_then_twice_as_much_in_each_step() {
    let mut brake = brake(1000, 50);
    brake.observe(at(0), counts(4, 6));
    brake.observe(at(0), counts(3, 6));
    let mut passed = Vec::new();
    for step in 0..9 {
        let now = at(50_000 + step * 5_000);
        let mut pods = 0;
        while brake.admit(now, 1).is_ok() {
            pods += 1;
        }
        let held = brake.check(now, 1).unwrap_err();
        assert_eq!((held.code(), held.until()), ("Gradual", Some(at(55_000 + step * 5_000))));
        assert_eq!(brake.check(now, 0), Ok(()), "what was let through before may be finished");
        passed.push(pods);
    }
    assert_eq!(passed, [1, 2, 4, 8, 16, 32, 64, 128, 256]);
    assert!(matches!(brake.check(at(100_000), 1000), Err(Held::MaxPodsPerMinute { .. })), "as always");
    assert_eq!(brake.admit(at(100_000), 400), Ok(()));
    // An action that cannot be split waits until the budget has room for all of it.
    let mut whole = self::brake(1000, 50);
    whole.observe(at(0), counts(4, 6));
    whole.observe(at(0), counts(3, 6));
    assert_eq!(whole.check(at(50_000), 110).unwrap_err().until(), Some(at(80_000)));
    assert_eq!(whole.check(at(50_000), 5_000).unwrap_err().until(), Some(at(100_000)));
    assert_eq!(whole.check(at(100_000), 5_000), Ok(()));
}

#[test]
fn when_more_nodes_come_back_it_settles_again_and_begins_with_little() {
    let mut brake = brake(1000, 50);
    brake.observe(at(0), counts(40, 60));
    brake.observe(at(0), counts(30, 60));
    brake.admit(at(60_000), 7).unwrap();
    brake.observe(at(61_000), counts(29, 60));
    assert_eq!(brake.check(at(61_000), 0).unwrap_err().until(), Some(at(111_000)));
    assert_eq!(brake.check(at(111_000), 2).unwrap_err().until(), Some(at(116_000)), "little at first");
    brake.observe(at(111_000), counts(31, 60));
    assert_eq!(brake.check(at(111_000), 0).unwrap_err().code(), "MaxUnreachablePercent", "too many again");
}

#[test]
fn an_incident_that_is_over_is_not_taken_up_again_by_a_node_that_comes_back_later() {
    let mut brake = brake(1000, 50);
    brake.observe(at(0), counts(40, 60));
    brake.observe(at(0), counts(30, 60));
    brake.observe(at(3_600_000), counts(29, 60));
    assert_eq!(brake.check(at(3_600_000), 1000), Ok(()));
    assert_eq!(brake.state(), &BrakeState::default(), "and nothing of it is kept");
}

#[test]
fn no_settling_where_there_is_no_limit_or_no_wait_is_wished() {
    let limits = |max_unreachable_percent, settle_seconds: u32| BrakeLimits {
        max_unreachable_percent,
        settle_period: GoDuration::from_secs(settle_seconds),
        ..BrakeLimits::default()
    };
    let mut at_once = Brake::new(limits(50, 0), BrakeState::default());
    at_once.observe(at(0), counts(4, 6));
    assert!(matches!(at_once.observe(at(1), counts(3, 6)), Some(Transition::Released(_))));
    assert_eq!(at_once.check(at(1), 1000), Ok(()));
    // The same with a configuration that changed at a restart while the brake held.
    let mut held = brake(1000, 50);
    held.observe(at(0), counts(4, 6));
    let mut unlimited = Brake::new(limits(0, 50), held.state().clone());
    assert!(matches!(unlimited.observe(at(1), counts(4, 6)), Some(Transition::Released(_))));
    assert_eq!(unlimited.check(at(1), 1000), Ok(()));
    held.observe(at(1), counts(3, 6));
    let at_once = Brake::new(limits(50, 0), held.state().clone());
    assert_eq!(at_once.check(at(2), 1000), Ok(()));
}

/// A decision that begins the eviction of a node in a zone.
fn start_in(zone: &str) -> Decision<(), Step> {
    let node = crate::objects::NodeRef { name: "n".into(), uid: "u".into() };
    let progress = crate::eviction::Progress {
        started: at(0),
        request: String::new(),
        released: None,
        finished: None,
        returned: None,
        boot_id: None,
        stopped: None,
    };
    let (resource_version, zone) = ("1".into(), zone.into());
    let start = Step::StartEviction { node, resource_version, taint: None, progress, zone };
    let verdict = crate::verdict::Verdict::Act { actions: vec![start], why: () };
    Decision { verdict, findings: Vec::new() }
}

fn zones(counts: &[(&str, u32, u32)]) -> Tally {
    let zones = counts.iter().map(|(zone, unreachable, total)| {
        ((*zone).to_owned(), NodeCounts { unreachable: *unreachable, total: *total })
    });
    Tally { zones: Some(zones.collect()), ..Tally::default() }
}

#[test]
fn a_zone_whose_nodes_come_back_is_let_go_in_the_same_way() {
    let mut brake = brake(1000, 50);
    let held = |brake: &Brake, second: i64, zone: &str| match brake
        .review(at(second * 1000), start_in(zone), Outage::Holds)
        .verdict
    {
        crate::verdict::Verdict::Blocked { by, .. } => {
            format!("{} {:?}", by.code(), by.until().map(|until| until.as_second() - at(0).as_second()))
        }
        _ => String::new(),
    };
    brake.observe(at(0), zones(&[("a", 6, 6), ("b", 1, 20)]));
    assert_eq!(held(&brake, 0, "a"), "ZoneDown None");
    assert_eq!(held(&brake, 0, "b"), "");
    brake.observe(at(10_000), zones(&[("a", 3, 6), ("b", 1, 20)]));
    assert_eq!(held(&brake, 10, "a"), "Settling Some(60)");
    assert_eq!(held(&brake, 10, "b"), "");
    brake.observe(at(12_000), zones(&[("a", 2, 6), ("b", 1, 20)]));
    assert_eq!(held(&brake, 12, "a"), "Settling Some(62)");
    let kept = serde_json::to_string(brake.state()).unwrap();
    let mut next = self::brake(1000, 50);
    next.restore(at(13_000), serde_json::from_str(&kept).unwrap());
    assert_eq!(held(&next, 13, "a"), "Settling Some(62)", "also after a restart");
    for begun in [1, 2, 4] {
        let now = 62 + 5 * i64::from(begun / 2);
        for _ in 0..begun {
            assert_eq!(held(&brake, now, "a"), "");
            let _ = brake.pass(at(now * 1000), start_in("a"), Outage::Holds);
        }
        assert!(held(&brake, now, "a").starts_with("Gradual"), "{}", held(&brake, now, "a"));
        assert_eq!(held(&brake, now, "b"), "");
    }
    brake.observe(at(200_000), zones(&[("b", 1, 20)]));
    assert!(brake.state().zones.is_empty(), "{:?}", brake.state());
}

/// A person in front of the rack knows that node better than the brake. Budgets still count.
#[test]
fn a_persons_word_passes_an_outage_but_no_budget() {
    let limits = BrakeLimits { max_nodes_per_minute: 2, ..BrakeLimits::default() };
    let mut brake = Brake::new(limits, BrakeState::default());
    brake.observe(at(0), Tally { cluster: Some(counts(6, 10)), ..zones(&[("a", 6, 6)]) });
    let begins = |decision: Decision<(), Step>| !decision.verdict.actions().is_empty();
    assert!(!begins(brake.review(at(1), start_in("a"), Outage::Holds)));
    assert!(begins(brake.review(at(1), start_in("a"), Outage::Ignored)));
    assert!(begins(brake.pass_again(at(1), start_in("a"), Outage::Ignored)));
    assert!(!begins(brake.pass_again(at(1), start_in("a"), Outage::Holds)));
    let begun = (0..5).filter(|_| begins(brake.pass(at(1), start_in("a"), Outage::Ignored))).count();
    assert_eq!(begun, 2);
    brake.assume_spent(at(1), "lost");
    assert!(!begins(brake.review(at(1), start_in("a"), Outage::Ignored)));
}

#[test]
fn what_is_kept_of_very_many_zones_fits_an_annotation() {
    let mut brake = brake(1000, 50);
    let names: Vec<String> = (0..5_000).map(|number| format!("{}{number}", "z".repeat(120))).collect();
    let all: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 3, 3)).collect();
    brake.observe(at(0), zones(&all));
    brake.observe(at(1), zones(&all.iter().map(|(name, ..)| (*name, 0, 3)).collect::<Vec<_>>()));
    assert_eq!(brake.state().zones.len(), 5_000, "while it runs, none is forgotten");
    let kept = serde_json::to_string(&brake.state_to_save()).unwrap();
    assert!(kept.len() < 64 * 1024, "{} bytes", kept.len());
}

proptest! {
    #![proptest_config(crate::fuzz::cases(256))]

    #[test]
    fn no_minute_sees_more_than_the_budget(
        limit in 1u32..20,
        steps in proptest::collection::vec((0i64..20_000, 1u32..4), 1..200),
    ) {
        let mut brake = brake(limit, 50);
        let mut now = 0;
        let mut admitted: Vec<(i64, u32)> = Vec::new();
        for (pause, pods) in steps {
            now += pause;
            match brake.admit(at(now), pods) {
                Ok(()) => admitted.push((now, pods)),
                Err(held) => {
                    let until = held.until().unwrap();
                    prop_assert!(until > at(now));
                    prop_assert_eq!(brake.check(until, pods), Ok(()));
                    let just_before = until.checked_sub(SignedDuration::from_nanos(1)).unwrap();
                    prop_assert!(brake.check(just_before, pods).is_err());
                }
            }
            let in_last_minute = admitted.iter().filter(|(time, _)| now - time < 60_000);
            let sum: u32 = in_last_minute.clone().map(|(_, pods)| pods).sum();
            prop_assert!(sum <= limit || in_last_minute.count() == 1);
            prop_assert!(brake.state().admitted.0.len() <= 62);
        }
    }

    /// However nodes come and go: nothing passes while too many are lost, nor for a settle period after their number fell,
    /// unless it only goes up and down for ten of them. And in the end everything passes. A restart changes nothing.
    #[test]
    fn it_lets_go_never_too_early_and_always_in_the_end(
        steps in proptest::collection::vec((0i64..120_000, 0u32..11), 1..60),
        restarts in proptest::collection::vec(proptest::bool::ANY, 60),
    ) {
        const PERIOD: i64 = 50_000;
        let mut brake = brake(0, 50);
        let (mut now, mut before) = (0, 0);
        // When it last blocked, when the number last fell since, and the lowest number since.
        let (mut held, mut fell, mut lowest) = (None, -1_000_000_000, (u32::MAX, -1_000_000_000));
        for ((pause, lost), restart) in steps.into_iter().zip(restarts) {
            // Also checked in between: at the last moment before the next count.
            for moment in [now + pause / 2, now + pause - 1] {
                let passes = moment >= now && brake.check(at(moment), 0).is_ok();
                let fell_lately = moment - fell < PERIOD && moment - lowest.1 < 10 * PERIOD;
                prop_assert!(!(passes && held.is_some() && (before > 5 || fell_lately)), "at {moment}");
            }
            now += pause;
            let released = held.is_some() && brake.check(at(now), u32::MAX).is_ok();
            brake.observe(at(now), counts(lost, 10));
            if restart {
                let kept = serde_json::to_string(&brake.state_to_save()).unwrap();
                brake = self::brake(0, 50);
                brake.restore(at(now), serde_json::from_str(&kept).unwrap());
            }
            if lost > 5 {
                held = Some(now);
            } else if released {
                held = None;
            } else if before > 5 {
                (fell, lowest) = (now, (lost, now));
            } else if held.is_some() {
                if lost < before {
                    fell = now;
                }
                if lost < lowest.0 {
                    lowest = (lost, now);
                }
            }
            before = lost;
        }
        brake.observe(at(now), counts(before.min(5), 10));
        let end = at(now + PERIOD + 50_000);
        prop_assert_eq!(brake.check(end, u32::MAX), Ok(()), "with no more news it is let go");
        // A node that flaps forever does not keep the brake engaged.
        brake.observe(at(now), counts(6, 10));
        for second in 0..1_000 {
            brake.observe(at(now + second * 1_000), counts(4 + u32::from(second % 2 == 0), 10));
        }
        prop_assert_eq!(brake.check(at(now + 1_000_000), u32::MAX), Ok(()));
    }

    /// In the n-th step after it settled no more than 2^n - 1 have passed, and what must wait is told until when exactly.
    #[test]
    fn the_first_steps_are_small(
        tries in proptest::collection::vec((0i64..4_000, 1u32..4), 1..100),
    ) {
        let mut brake = brake(0, 50);
        brake.observe(at(0), counts(4, 6));
        brake.observe(at(0), counts(3, 6));
        let (mut now, mut passed) = (50_000, 0u64);
        for (pause, pods) in tries {
            now += pause;
            match brake.admit(at(now), pods) {
                Ok(()) => passed += u64::from(pods),
                Err(held) => {
                    let until = held.until().unwrap();
                    prop_assert_eq!(brake.check(until, pods), Ok(()));
                    let just_before = until.checked_sub(SignedDuration::from_nanos(1)).unwrap();
                    prop_assert!(brake.check(just_before, pods).is_err());
                }
            }
            let step = (now - 50_000) / 5_000;
            prop_assert!(step >= 10 || passed < 2 << step, "{passed} in step {step}");
        }
    }
}
