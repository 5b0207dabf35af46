//! Replacements that do not help stop by themselves.

use super::limits::{pool, with};
use super::*;

const NOBODY: [String; 0] = [];

/// Ten nodes of a policy that repairs one at a time. The first ones are sick since the given minutes.
fn world(sick_since: &[i64]) -> World {
    let policy = with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": 1}]}));
    let mut world = pool(policy, 10, 0);
    for (index, since) in sick_since.iter().enumerate() {
        world.nodes[index].0.conditions.push(condition("BadNode", Status::False, at(*since)));
    }
    world.remember(at(0));
    world
}

/// Replaces the node by one that registers at minute `now` and is ready then.
fn replace(world: &mut World, name: &str, with: &str, now: i64) {
    world.nodes.retain(|(node, _)| node.node.name != *name);
    let mut new = node(with);
    new.created = Some(at(now));
    new.conditions = vec![condition("Ready", Status::True, at(now))];
    let backend = Backend::Claim(claim(&new));
    world.pods.insert(with.into(), 1);
    world.nodes.push((new, backend));
}

fn index(world: &World, name: &str) -> usize {
    world.nodes.iter().position(|(node, _)| node.node.name == *name).unwrap()
}

/// The replacement gets the condition that it should cure.
fn ails(world: &mut World, name: &str, now: i64) {
    let index = index(world, name);
    world.turns(index, Status::False, at(now));
}

#[test]
fn replacements_that_are_sick_too_hold_further_ones() {
    let mut world = world(&[0, 5, 6]);
    assert_eq!(world.reserve(at(30)), ["n00"]);
    let kept = world.policy.status.replacements.clone();
    assert_eq!(kept.len(), 1, "written down by the write that begins it");
    assert_eq!((kept[0].pool.as_str(), kept[0].condition.as_str()), ("a", "BadNode"));
    replace(&mut world, "n00", "new", 33);
    ails(&mut world, "new", 34);
    // It is within its toleration, and counts as a witness all the same.
    assert_eq!(world.reserve(at(35)), NOBODY);
    let hold = world.hold(index(&world, "n01"), at(35)).unwrap();
    assert_eq!((hold.code(), hold.until()), ("RepairsDoNotHelp", Some(at(60))));
    assert!(hold.to_string().contains("1 new nodes of pool a have BadNode"), "{hold}");
    assert_eq!(world.policy.status.conditions[1].reason, "RepairsDoNotHelp");
    assert_eq!(
        world.survey(at(36)).changes_at.unwrap().min(at(60)),
        world.survey(at(36)).changes_at.unwrap()
    );
    assert_eq!(world.reserve(seconds(60 * 60 - 1)), NOBODY);
    let mut off = world;
    off.settings.retry_after = None;
    assert_eq!(off.reserve(at(35)), ["n01"]);
}

/// One node is tried again after half an hour, an hour, and so on up to eight hours.
#[test]
fn one_node_is_tried_again_less_and_less_often() {
    let mut world = world(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut tries = Vec::new();
    for minute in 30..60 * 40 {
        let now = at(minute);
        let picked = world.reserve(now);
        world.remember(now);
        assert!(picked.len() <= 1, "{picked:?}");
        if let [name] = picked.as_slice() {
            tries.push(minute);
            let node = index(&world, name);
            assert_eq!(world.deeds(node, now), TIGHTEN, "the one that is tried is not held");
            let new = format!("new{minute}");
            replace(&mut world, name, &new, minute + 1);
            ails(&mut world, &new, minute + 1);
        }
    }
    let waits: Vec<i64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [30, 60, 120, 240, 480, 480, 480], "{tries:?}");
}

#[test]
fn a_replacement_that_stays_well_ends_it() {
    let mut world = world(&[0, 1, 2, 3, 4, 5]);
    for (minute, name) in [(30, "n00"), (31, "n01")] {
        assert_eq!(world.reserve(at(minute)), [name]);
        replace(&mut world, name, &format!("new-{name}"), minute + 1);
    }
    ails(&mut world, "new-n00", 32);
    ails(&mut world, "new-n01", 32);
    assert_eq!(world.reserve(at(32)), NOBODY);
    assert_eq!(world.reserve(at(61)), ["n02"]);
    replace(&mut world, "n02", "good", 62);
    world.remember(at(62));
    assert_eq!(world.reserve(at(62)), NOBODY, "nobody knows yet");
    assert_eq!(
        world.survey(at(63)).changes_at,
        Some(at(65)),
        "it is asked when it has been well for long enough"
    );
    assert_eq!(world.reserve(seconds(65 * 60 - 1)), NOBODY);
    assert_eq!(world.reserve(at(65)), ["n03"], "also if older ones are sick");
    assert_eq!(world.policy.status.replacements[0].retries, 0);
}

/// Nodes that are sick after a replacement may heal, be deleted, or be vetoed by a person.
#[test]
fn witnesses_that_are_gone_say_nothing() {
    let held = || {
        let mut world = world(&[0, 5]);
        world.reserve(at(30));
        replace(&mut world, "n00", "new", 33);
        ails(&mut world, "new", 34);
        assert_eq!(world.reserve(at(36)), NOBODY);
        world
    };
    let mut healed = held();
    let new = index(&healed, "new");
    healed.turns(new, Status::True, at(40));
    assert_eq!(healed.reserve(at(42)), NOBODY, "it may be a moment");
    healed.remember(at(42));
    assert_eq!(healed.reserve(at(43)), ["n01"]);
    let mut gone = held();
    gone.nodes.pop();
    assert_eq!(gone.reserve(at(36)), ["n01"]);
    let mut kept = held();
    marks(&mut kept.nodes[new].0).do_not_repair = Some("".into());
    assert_eq!(kept.reserve(at(36)), ["n01"]);
    let mut scaled = held();
    for name in ["more", "and-more"] {
        replace(&mut scaled, "nobody", name, 33);
    }
    assert_eq!(scaled.reserve(at(37)), ["n01"], "most new nodes are well");
}

/// After a retry no other node gets a turn before the outcome is known, even if the sick new node is the one that was
/// retried.
#[test]
fn the_outcome_of_a_try_is_waited_for() {
    let mut world = world(&[0]);
    world.reserve(at(30));
    replace(&mut world, "n00", "new", 31);
    ails(&mut world, "new", 31);
    ails(&mut world, "n01", 50);
    assert_eq!(world.reserve(at(61)), ["new"], "its deadline is the first");
    world.nodes.pop();
    assert_eq!(world.reserve(at(89)), NOBODY, "no replacement has come");
    assert_eq!(world.hold(index(&world, "n01"), at(89)).unwrap().until(), Some(at(91)));
    assert_eq!(world.reserve(at(91)), ["n01"], "and none is waited for for ever");
}

#[test]
fn other_pools_other_conditions_and_reboots_are_not_held() {
    let two = json!({"unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}], "policies": [
        {"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"},
        {"conditionType": "Gpu", "conditionStatus": "False", "toleration": "30m"},
        {"conditionType": "Soft", "conditionStatus": "False", "toleration": "30m", "action": "Reboot"},
    ]});
    let mut world = pool(policy_of(two), 6, 1);
    world.remember(at(0));
    assert_eq!(world.reserve(at(30)), ["n00"]);
    replace(&mut world, "n00", "new", 31);
    ails(&mut world, "new", 31);
    world.nodes[0].0.conditions.push(condition("Gpu", Status::False, at(0)));
    world.nodes[1].0.conditions.push(condition("Soft", Status::False, at(0)));
    world.nodes[2].0.conditions.push(condition("BadNode", Status::False, at(0)));
    world.owner(2).pool = "b".into();
    world.nodes[3].0.conditions.push(condition("BadNode", Status::False, at(0)));
    assert_eq!(world.reserve(at(32)), ["n01", "n02", "n03"]);
    assert_eq!(world.reason(3, at(32)), "RepairsDoNotHelp");
}

/// Turns given before the sick replacement appeared are withdrawn, unless something was already done.
#[test]
fn turns_that_have_not_begun_are_taken_back() {
    let policy = with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": 3}]}));
    let mut world = pool(policy, 10, 3);
    world.remember(at(0));
    assert_eq!(world.reserve(at(30)).len(), 3);
    replace(&mut world, "n00", "new", 31);
    ails(&mut world, "new", 31);
    let (first, second) = (index(&world, "n01"), index(&world, "n02"));
    world.owner(first).termination = Some(at(30).to_string());
    world.owner(first).termination_before = Some(String::new());
    assert_eq!(world.deeds(first, at(32)), DELETE, "it has begun");
    assert_eq!(world.deeds(second, at(32)), NOTHING);
    assert_eq!(world.reason(second, at(32)), "RepairsDoNotHelp");
    assert!(world.survey(at(32)).idle.contains("uid-n02"));
    world.idle.insert("uid-n02".into(), at(32));
    world.reserve(at(33));
    assert!(world.policy.status.repair_of(&"uid-n02".into()).is_none(), "its place is free");
}

/// A node that was well for a while counts as cured. A sickness from before the node was created, and a node created in
/// the same second, are not conclusive.
#[test]
fn only_a_new_node_that_is_sick_soon_is_a_witness() {
    for (created, since, witness) in [
        (33, 34, true),
        (33, 32, true),
        (33, 31, false),
        (33, 63, true),
        (33, 64, false),
        (33, -27, false),
        (30, 31, false),
        (20, 31, false),
    ] {
        let mut world = world(&[0, 5]);
        world.reserve(at(30));
        replace(&mut world, "n00", "new", created);
        let new = index(&world, "new");
        world.nodes[new].0.conditions.push(condition("BadNode", Status::False, at(since)));
        let now = at(since.max(40));
        world.remember(now);
        let found = world.survey(now).relapses.len();
        assert_eq!(found, usize::from(witness), "created at {created}, sick since {since}");
    }
}

#[test]
fn a_pool_of_one_node_is_tried_again() {
    let mut world = world(&[]);
    world.nodes.truncate(1);
    world.turns(0, Status::False, at(0));
    assert_eq!(world.reserve(at(30)), ["n00"]);
    replace(&mut world, "n00", "new", 31);
    ails(&mut world, "new", 31);
    assert_eq!(world.reserve(seconds(61 * 60 - 1)), NOBODY);
    assert_eq!(world.reserve(at(61)), ["new"], "past its toleration, and half an hour after the last one");
    replace(&mut world, "new", "newer", 62);
    ails(&mut world, "newer", 62);
    assert_eq!(world.hold(0, at(93)).unwrap().until(), Some(at(121)));
}

/// A booting node is not Ready. That is not the condition that the replacement should cure, until it lasts too long.
#[test]
fn a_node_that_boots_is_no_witness() {
    let ready = json!({"unhealthyLimit": "100%", "budgets": [{"nodes": 1}], "policies": [
        {"conditionType": "Ready", "conditionStatus": "False", "toleration": "30m"},
    ]});
    let mut world = pool(policy_of(ready), 3, 0);
    for index in 0..2 {
        world.nodes[index].0.conditions = vec![condition("Ready", Status::False, at(0))];
    }
    world.remember(at(0));
    assert_eq!(world.reserve(at(30)), ["n00"]);
    replace(&mut world, "n00", "new", 31);
    let new = index(&world, "new");
    world.nodes[new].0.labels = labels(&[("pool", "a"), ("karpenter.sh/nodepool", "a")]);
    world.nodes[new].0.conditions = vec![condition("Ready", Status::False, at(31))];
    world.owner(new).initialized = Some(false);
    world.remember(at(31));
    assert!(world.survey(at(40)).relapses.is_empty());
    assert_eq!(world.survey(at(61)).relapses.len(), 1);
}

/// A list written by another writer, or a clock that jumped, neither stops repairs forever nor breaks anything.
#[test]
fn garbage_in_the_memory_holds_nobody_for_ever() {
    let far = "9999-01-01T00:00:00Z";
    let ago = at(20);
    let garbage = json!([
        "x", 5, null, {"pool": "a"}, {"pool": "a", "condition": "BadNode", "first": "yesterday", "last": far},
        {"pool": "a", "condition": "BadNode", "first": far, "last": far, "retries": u32::MAX},
        {"pool": "a", "condition": "BadNode", "first": ago, "last": ago},
        {"pool": "b", "condition": "BadNode", "first": "1970-01-01T00:00:00Z", "last": "1970-01-01T00:00:00Z"},
    ]);
    let status = PolicyStatus::read(Some(&json!({ "replacements": garbage })));
    assert!(!status.damaged);
    assert_eq!(status.replacements.len(), 3);
    for odd in [json!(null), json!("x"), json!({"a": 1}), json!(7)] {
        let status = PolicyStatus::read(Some(&json!({ "replacements": odd })));
        assert!(!status.damaged && status.replacements.is_empty());
    }
    let mut world = world(&[0]);
    world.policy.status.replacements = status.replacements;
    ails(&mut world, "n05", 29);
    world.nodes[5].0.created = Some(at(25));
    let survey = world.survey(at(30));
    assert_eq!(survey.replacements.len(), 1, "{:?}", survey.replacements);
    assert_eq!(survey.replacements[0].last, at(30), "what lies ahead is from now");
    world.reserve(at(30));
    assert_eq!(world.policy.status.replacements, survey.replacements, "and is written so");
    assert!(world.hold(0, at(31)).is_none_or(|hold| hold.until().unwrap() <= at(30 + 480)));
    let many = (0..1_000).map(|number| Replacements {
        pool: format!("pool-{number:04}"),
        condition: "BadNode".to_owned(),
        first: at(number % 30),
        last: at(number % 30),
        retries: 0,
    });
    world.policy.status.replacements = many.collect();
    assert_eq!(world.survey(at(31)).replacements.len(), 100);
    assert!(world.survey(at(31)).replacements.iter().all(|row| row.last >= at(26)), "the last ones are kept");
}

#[test]
fn what_is_long_ago_is_forgotten() {
    let mut world = world(&[0]);
    world.reserve(at(30));
    assert_eq!(world.survey(at(30 + 16 * 60 - 1)).replacements.len(), 1);
    assert_eq!(world.survey(at(30 + 16 * 60)).replacements.len(), 0);
}

#[test]
fn a_nodepool_keeps_its_memory_in_its_annotation() {
    let row = Replacements {
        pool: "gpu".to_owned(),
        condition: "Ready".to_owned(),
        first: at(0),
        last: at(5),
        retries: 2,
    };
    let status = PolicyStatus { replacements: vec![row], ..PolicyStatus::default() };
    let text = status.annotation().unwrap();
    assert_eq!(PolicyStatus::read_annotation(Some(&text)).replacements, status.replacements);
    assert!(!PolicyStatus::read_annotation(Some(r#"{"replacements": 5}"#)).damaged);
}

/// A policy that is invalid for a moment keeps its list.
#[test]
fn a_policy_that_cannot_be_read_keeps_its_memory() {
    let mut world = world(&[0]);
    world.reserve(at(30));
    let kept = world.policy.status.replacements.clone();
    let mut bad = policy_of(json!({"unhealthyLimit": "x"}));
    bad.status = world.policy.status.clone();
    let scene = PolicyScene { policy: &bad, survey: None, overlap: None, written: None, pool_of: &|_| None };
    let decision = decide_policy(&scene, at(31));
    let Some(Step::WritePolicy { status, .. }) = decision.verdict.actions().first() else { panic!() };
    assert_eq!(status.replacements, kept);
}
