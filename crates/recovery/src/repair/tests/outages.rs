//! Sickness with a common cause, and how long it blocks repairs.

use super::limits::{pool, with};
use super::*;

const NOBODY: [String; 0] = [];

/// Four nodes in each zone. The first `sick_in_c` nodes of zone c are seen sick since minute 0.
fn zones(policy: Policy, names: &[&str], sick_in_c: usize) -> World {
    let mut all = Vec::new();
    for zone in names {
        for number in 0..4 {
            let name = format!("{zone}{number}");
            let is_sick = *zone == "c" && number < sick_in_c;
            let mut it = if is_sick { sick(&name, 0) } else { node(&name) };
            it.zone = (*zone).into();
            all.push(it);
        }
    }
    let mut world = World::new(policy, all);
    world.pods = world.nodes.iter().map(|(node, _)| (node.node.name.clone(), 1)).collect();
    world.remember(at(0));
    world
}

fn wide() -> Policy {
    with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}]}))
}

/// The block ends when no node has healed for three minutes. It says so, and is rechecked then.
#[test]
fn the_breaker_settles() {
    let mut world = pool(with(json!({})), 10, 3);
    world.settings.outage_timeout = None;
    world.remember(at(0));
    assert_eq!(world.reserve(at(60)), NOBODY);
    assert_eq!(world.hold(0, at(60)).unwrap().until(), None);
    world.turns(2, Status::True, at(60));
    let hold = world.hold(0, at(60)).unwrap();
    assert_eq!((hold.code(), hold.until()), ("TooManyUnhealthy", Some(at(63))));
    assert!(hold.to_string().contains("held until 2027-01-15T09:03:00Z unless more heal"), "{hold}");
    assert_eq!(world.survey(at(62)).changes_at, Some(at(63)));
    world.remember(at(62));
    assert_eq!(world.reserve(seconds(63 * 60 - 1)), NOBODY);
    assert_eq!(world.reserve(at(63)), ["n00"]);
    assert_eq!(world.policy.status.conditions[1].reason, "BudgetExhausted");
}

/// While nodes heal one after the other, the others are left alone, however long that takes.
#[test]
fn a_zone_that_heals_node_by_node_is_held_to_the_end() {
    let mut world = zones(wide(), &["a", "b", "c"], 4);
    world.settings.outage_timeout = None;
    for (minute, node) in [(50, 8), (52, 9), (54, 10)] {
        world.turns(node, Status::True, at(minute));
        for later in 0..2 {
            world.remember(at(minute + later));
            assert_eq!(world.reserve(at(minute + later)), NOBODY, "minute {}", minute + later);
        }
    }
    let hold = world.hold(11, at(56)).unwrap();
    assert_eq!((hold.code(), hold.until()), ("ZoneOutage", Some(at(57))));
    // The last node does not heal.
    assert_eq!(world.reserve(at(57)), ["c3"]);
}

/// A sickness that began an hour ago and was seen for ten seconds settles for ten seconds.
#[test]
fn a_hold_settles_no_longer_than_it_was_seen() {
    let mut world = pool(with(json!({})), 10, 3);
    world.remember(at(60));
    world.turns(2, Status::True, seconds(60 * 60 + 10));
    assert_eq!(world.hold(0, seconds(60 * 60 + 11)).unwrap().until(), Some(seconds(60 * 60 + 20)));
    assert_eq!(world.reserve(seconds(60 * 60 + 20)), ["n00"]);
}

/// A flapping agent makes its node exceed its toleration now and then. A node that is sick again has not healed, so
/// others get their turn.
#[test]
fn one_flapping_node_freezes_nobody() {
    let mut world = pool(with(json!({})), 5, 2);
    world.remember(at(0));
    assert_eq!(world.reserve(at(30)), NOBODY);
    world.turns(0, Status::True, at(31));
    world.remember(at(32));
    assert_eq!(world.reserve(at(32)), NOBODY, "it may be passing");
    world.turns(0, Status::False, at(33));
    assert_eq!(world.reserve(at(33)), ["n01"]);
}

#[test]
fn nodes_that_have_booted_did_not_heal() {
    let mut world = zones(wide(), &["a", "b", "c"], 1);
    for index in 9..12 {
        let (node, _) = &mut world.nodes[index];
        node.labels = labels(&[("pool", "a")]);
        node.created = Some(at(0));
        node.conditions =
            vec![condition("BadNode", Status::False, at(0)), condition("Ready", Status::False, at(0))];
        world.owner(index).initialized = Some(false);
    }
    world.remember(at(0));
    for index in 9..12 {
        world.owner(index).initialized = Some(true);
        let (node, _) = &mut world.nodes[index];
        node.conditions = vec![condition("Ready", Status::True, at(30))];
    }
    world.remember(at(30));
    assert_eq!(world.reserve(at(30)), ["c0"]);
}

/// The nodes of a pool share an image and agents. Nodes within their toleration count, as they do in a zone.
#[test]
fn the_sickness_of_a_pool_is_one_cause() {
    let of_pool = |name: &str, pool: &str, since: Option<i64>| {
        let mut it = since.map_or_else(|| node(name), |since| sick(name, since));
        it.labels =
            labels(&[("pool", "a"), ("karpenter.sh/nodepool", pool), ("karpenter.sh/initialized", "true")]);
        it
    };
    let world = |policy: Policy, sick: &[i64]| {
        let mut all: Vec<NodeView> =
            (0..20).map(|number| of_pool(&format!("m{number:02}"), "main", None)).collect();
        all.extend((0..4).map(|number| of_pool(&format!("e{number}"), "edge", sick.get(number).copied())));
        let mut world = World::new(policy, all);
        for index in 20..24 {
            world.owner(index).pool = "edge".into();
        }
        for index in 0..20 {
            world.owner(index).pool = "main".into();
        }
        world.pods = world.nodes.iter().map(|(node, _)| (node.node.name.clone(), 1)).collect();
        world.remember(at(0));
        world
    };
    let mut bad_image = world(with(json!({})), &[0, 0, 0, 0]);
    assert_eq!(bad_image.reserve(at(30)), NOBODY);
    let hold = bad_image.hold(20, at(30)).unwrap();
    assert_eq!((hold.code(), hold.until()), ("PoolOutage", Some(at(50))));
    assert!(hold.to_string().starts_with("4 of 4 nodes of pool edge are sick by BadNode"), "{hold}");
    assert_eq!(bad_image.policy.status.conditions[1].reason, "PoolOutage");
    assert_eq!(world(with(json!({})), &[0, 25, 25]).reserve(at(30)), NOBODY, "inside their toleration");
    assert_eq!(world(with(json!({})), &[0, 0]).reserve(at(30)), ["e0", "e1"], "two may be chance");
    let everything = json!({"unhealthyLimit": "100%"});
    assert!(!world(with(everything), &[0, 0, 0, 0]).reserve(at(30)).is_empty(), "the policy allows it");
    let mut off = world(with(json!({})), &[0, 0, 0, 0]);
    off.settings.pool_sick_percent = None;
    assert!(!off.reserve(at(30)).is_empty());
    // Another condition on a node of that pool has another cause.
    let mut other = world(
        with(json!({"policies": [
            {"conditionType": "BadNode", "conditionStatus": "False", "toleration": "2h"},
            {"conditionType": "Gpu", "conditionStatus": "False", "toleration": "30m"},
        ]})),
        &[0, 0, 0, 0],
    );
    other.nodes[20].0.conditions.push(condition("Gpu", Status::False, at(0)));
    assert_eq!(other.reserve(at(30)), ["e0"]);
}

/// All nodes are in one zone: that zone is the whole policy, which has its own limit.
#[test]
fn a_zone_without_another_one_is_the_policy() {
    let mut all = zones(wide(), &["c"], 4);
    assert_eq!(all.reserve(at(30)).len(), 4, "unhealthyLimit allows it");
    let mut world = zones(with(json!({})), &["c"], 3);
    world.settings.pool_sick_percent = None;
    for index in 1..3 {
        world.turns(index, Status::False, at(25));
        world.nodes[index].0.progress = None;
    }
    assert_eq!(world.reserve(at(30)), NOBODY, "one is due, and two more are sick");
    assert_eq!(world.reason(0, at(30)), "ZoneOutage");
}

/// A zone that stays down does not recover by itself: after 20 minutes its nodes are replaced, one at a time.
#[test]
fn a_zone_that_stays_dark_is_repaired_one_node_at_a_time() {
    let mut world = zones(wide(), &["a", "b", "c"], 4);
    assert_eq!(world.reserve(at(30)), NOBODY);
    assert_eq!(world.hold(8, at(30)).unwrap().until(), Some(at(50)));
    assert_eq!(world.survey(at(31)).changes_at, Some(at(50)));
    assert_eq!(world.reserve(seconds(50 * 60 - 1)), NOBODY);
    assert_eq!(world.reserve(at(50)), ["c0"]);
    assert_eq!(world.deeds(8, at(50)), TIGHTEN, "and it is not held by its own turn");
    assert_eq!(world.reserve(at(50)), NOBODY, "one at a time");
    let hold = world.hold(9, at(50)).unwrap();
    assert_eq!((hold.code(), hold.until()), ("ZoneOutage", None));
    assert!(hold.to_string().contains("one at a time"), "{hold}");
    world.nodes.remove(8);
    assert_eq!(world.reserve(at(51)), ["c1"]);
    world.nodes.remove(8);
    assert_eq!(world.reserve(at(52)), ["c2", "c3"], "two of a zone may be chance");
    let mut off = zones(wide(), &["a", "b", "c"], 4);
    off.settings.outage_timeout = None;
    assert_eq!(off.reserve(at(10_000)), NOBODY);
    // The sickness was not seen before, so the timeout starts when it is first seen.
    let mut unseen = zones(wide(), &["a", "b", "c"], 4);
    unseen.nodes.iter_mut().for_each(|(node, _)| node.progress = None);
    unseen.remember(at(600));
    assert_eq!(unseen.reserve(at(601)), NOBODY);
    assert_eq!(unseen.reserve(at(620)), ["c0"]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// However the agents of others flap, a node that is broken for good has its turn 20 minutes after its toleration at the latest.
    #[test]
    fn no_flapping_holds_a_broken_node_for_ever(
        flaps in proptest::collection::vec((1_usize..8, 1_i64..20), 1..60),
    ) {
        let mut world = zones(with(json!({"budgets": [{"nodes": 1}]})), &["a", "b", "c"], 1);
        world.nodes[8].0.conditions.push(condition("BadNode", Status::False, at(0)));
        let mut minute = 0;
        let mut flaps = flaps.into_iter().cycle();
        while minute <= 51 {
            let (index, minutes) = flaps.next().unwrap();
            // Never for as long as tolerated, by Salvor's own clock of the condition.
            world.turns(index, Status::False, at(minute));
            world.turns(index, Status::True, at(minute + minutes.min(3)));
            minute += minutes.max(4);
            world.remember(at(minute));
            if world.reserve(at(minute)) == ["c0"] {
                return Ok(());
            }
        }
        proptest::prop_assert!(world.reserve(at(minute)) == ["c0"], "{:?}", world.hold(8, at(minute)));
    }
}
