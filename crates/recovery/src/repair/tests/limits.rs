//! Limits on the number of nodes under repair.

use super::*;

/// A pool of `total` nodes. The first `bad` ones have been sick for long enough.
pub(super) fn pool(policy: Policy, total: usize, bad: usize) -> World {
    let name = |number: usize| format!("n{number:02}");
    let nodes =
        (0..total).map(|number| if number < bad { sick(&name(number), 0) } else { node(&name(number)) });
    let mut world = World::new(policy, nodes);
    world.pods = (0..total).map(|number| (name(number).into(), 1)).collect();
    world
}

#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
pub(super) fn with(spec: Value) -> Policy {
    let mut whole =
        json!({"policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}]});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let policy = policy_of(whole);
    assert!(policy.defects.is_empty(), "{:?}", policy.defects);
    policy
}

/// Karpenter's cases 12 to 14, and the tables of Cluster API with a limit that is rounded up.
#[test]
fn the_breaker_opens_above_its_limit() {
    let cases = [
        (json!({}), 10, 2, true, "the default is 20%"),
        (json!({}), 10, 3, false, "12: more than 20%"),
        (json!({}), 3, 1, true, "14: rounded up"),
        (json!({}), 1, 1, true, "a single node"),
        (json!({"unhealthyLimit": "40%"}), 5, 2, true, "40% of 5"),
        (json!({"unhealthyLimit": "40%"}), 5, 3, false, "more than 40% of 5"),
        (json!({"unhealthyLimit": "60%"}), 7, 5, true, "60% of 7 rounded up"),
        (json!({"unhealthyLimit": "60%"}), 7, 6, false, "more"),
        (json!({"unhealthyLimit": 2}), 4, 2, true, "2 of 4"),
        (json!({"unhealthyLimit": 2}), 4, 3, false, "3 of 4"),
        (json!({"unhealthyLimit": "2"}), 4, 2, true, "a number in a string"),
        (json!({"unhealthyLimit": 0}), 4, 1, false, "nothing"),
        (json!({"unhealthyLimit": "100%"}), 4, 4, true, "everything"),
    ];
    for (spec, total, bad, repaired, case) in cases {
        let mut world = pool(with(spec), total, bad);
        let picked = world.reserve(at(60));
        assert_eq!(!picked.is_empty(), repaired, "{case}");
        if !repaired {
            assert_eq!(world.reason(0, at(60)), "TooManyUnhealthy", "{case}");
        }
    }
}

/// The cases of Cluster API's `isAllowedRemediation` and `getMaxUnhealthy`: no limit, an unreadable limit, a number and
/// a percentage, each with fewer, as many and more unhealthy nodes. The answers differ in two ways on purpose: a
/// percentage is rounded up here, so that a small pool is not blocked forever, and the default is 20% instead of "no
/// limit".
#[test]
fn the_table_of_cluster_api() {
    struct Row(Option<Value>, usize, usize, bool, bool);
    let rows = [
        // Columns: setting, nodes, unhealthy, whether Cluster API repairs, whether Salvor repairs.
        Row(None, 3, 0, true, true),
        Row(None, 3, 1, true, true),
        Row(None, 3, 3, true, false),
        Row(Some(json!("abcdef")), 3, 1, false, false),
        Row(Some(json!("[3-5]")), 9, 4, true, false),
        Row(Some(json!(2)), 5, 1, true, true),
        Row(Some(json!(2)), 5, 2, true, true),
        Row(Some(json!(2)), 5, 3, false, false),
        Row(Some(json!("2")), 5, 2, true, true),
        Row(Some(json!(0)), 5, 1, false, false),
        Row(Some(json!("50%")), 10, 4, true, true),
        Row(Some(json!("50%")), 10, 5, true, true),
        Row(Some(json!("50%")), 10, 6, false, false),
        Row(Some(json!("40%")), 5, 2, true, true),
        Row(Some(json!("40%")), 5, 3, false, false),
        Row(Some(json!("60%")), 7, 4, true, true),
        Row(Some(json!("60%")), 7, 5, false, true),
        Row(Some(json!("60%")), 7, 6, false, false),
        Row(Some(json!("20%")), 3, 1, false, true),
        Row(Some(json!("0%")), 3, 1, false, false),
        Row(Some(json!("100%")), 3, 3, true, true),
    ];
    for Row(setting, nodes, unhealthy, theirs, ours) in rows {
        let mut spec = json!({
            "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}],
            "budgets": [{"nodes": "100%"}],
        });
        if let Some(setting) = &setting {
            spec["unhealthyLimit"] = setting.clone();
        }
        let case = format!("{unhealthy} of {nodes} with {setting:?}");
        let policy = policy_of(spec);
        let is_readable = policy.defects.is_empty();
        let limit = policy.unhealthy_limit;
        let mut world = pool(policy, nodes, unhealthy);
        if unhealthy == 0 {
            assert!(world.survey(at(60)).held_as_a_whole(&world.policy).is_none(), "{case}");
            continue;
        }
        let repairs = is_readable && !world.reserve(at(60)).is_empty();
        assert_eq!(repairs, ours, "{case}");
        let reason = world.reason(0, at(60));
        match (is_readable, ours) {
            (false, _) => assert_eq!(reason, "InvalidPolicy", "{case}"),
            (true, false) => assert_eq!(reason, "TooManyUnhealthy", "{case}"),
            (true, true) => assert_eq!(reason, "Sick", "{case}"),
        }
        // Every difference is one of the intended ones.
        if theirs != ours {
            let rounded =
                matches!(limit, Amount::Percent(percent) if nodes * usize::from(percent) % 100 != 0);
            assert!(setting.is_none() || rounded || !is_readable, "{case}");
        }
    }
}

/// Weak points 1 and 3 of Karpenter's breaker: nodes within their toleration, booting nodes and nodes being deleted do
/// not count.
#[test]
fn only_nodes_past_their_toleration_open_the_breaker() {
    let mut world = pool(with(json!({})), 4, 1);
    world.nodes[1].0.conditions.push(condition("BadNode", Status::False, at(50)));
    assert_eq!(world.reserve(at(60)), ["n00"], "one inside its toleration");
    let mut world = pool(with(json!({})), 4, 2);
    world.owner(1).deleting = Some(at(60));
    assert_eq!(world.reserve(at(60)), ["n00"], "one that is stuck terminating");
    let mut world = pool(with(json!({})), 5, 1);
    for index in 1..5 {
        let (node, _) = &mut world.nodes[index];
        node.labels = labels(&[("pool", "a")]);
        node.created = Some(at(0));
        node.conditions =
            vec![condition("Ready", Status::False, at(0)), condition("BadNode", Status::False, at(0))];
        world.owner(index).initialized = Some(false);
    }
    let survey = world.survey(at(60));
    assert_eq!((survey.base, survey.unhealthy, survey.limit), (1, 1, 1), "a wave of nodes that boot");
}

#[test]
fn the_budget_limits_how_many_are_under_repair_at_once() {
    let cases = [
        (json!({}), 10, 2, 1),
        (json!({"budgets": [{"nodes": "10%"}]}), 30, 6, 3),
        (json!({"budgets": [{"nodes": "1%"}]}), 30, 6, 1),
        (json!({"budgets": [{"nodes": 2}]}), 30, 6, 2),
        (json!({"budgets": [{"nodes": 0}]}), 30, 6, 0),
        (json!({"budgets": [{"nodes": "0%"}]}), 30, 6, 0),
        (json!({"budgets": [{"nodes": "100%"}, {"nodes": 4}]}), 30, 6, 4),
    ];
    for (spec, total, bad, allowed) in cases {
        let mut world = pool(with(spec.clone()), total, bad);
        for index in 0..bad {
            world.pods.insert(format!("n{index:02}").into(), 1);
        }
        assert_eq!(world.reserve(at(60)).len(), allowed, "{spec}");
        assert_eq!(world.reserve(at(61)).len(), 0, "{spec}: all places are taken");
        assert_eq!(world.reason(bad - 1, at(61)), "BudgetExhausted", "{spec}");
    }
}

/// A percentage budget includes the nodes under repair in its base, even when only their NodeClaims are left.
#[test]
fn a_repair_under_way_does_not_make_the_budget_smaller() {
    let everything = || with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}]}));
    let mut world = pool(everything(), 2, 1);
    assert_eq!(world.reserve(at(60)), ["n00"]);
    world.owner(0).deleting = Some(at(60));
    world.nodes[1].0 = sick("n01", 0);
    assert_eq!(world.reserve(at(61)), ["n01"]);

    let half = with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": "50%"}]}));
    let mut world = pool(half, 3, 1);
    assert_eq!(world.reserve(at(60)), ["n00"]);
    let (gone, _) = world.nodes.remove(0);
    world.left_alone.push(gone.node.uid);
    world.nodes[0].0 = sick("n01", 0);
    assert_eq!(world.reserve(at(61)), ["n01"]);
    world.nodes[1].0 = sick("n02", 0);
    assert_eq!(world.reserve(at(61)).len(), 0, "both places are taken");
}

#[test]
fn a_window_opens_a_budget() {
    // The tests start on Friday, 15 January 2027, at 08:00.
    let spec = json!({"budgets": [
        {"nodes": 0, "schedule": "30 8 * * 1-5", "duration": "1h"},
        {"nodes": 3},
    ]});
    let policy = with(spec);
    assert_eq!(allowance(&policy.budgets, 100, at(0)), (3, Some(at(30))));
    assert_eq!(allowance(&policy.budgets, 100, at(30)), (0, Some(at(90))));
    assert_eq!(allowance(&policy.budgets, 100, at(90)).0, 3);
    let only = with(json!({"budgets": [{"nodes": "50%", "schedule": "30 8 * * 1-5", "duration": "1h"}]}));
    assert_eq!(allowance(&only.budgets, 100, at(0)).0, 10, "outside of all windows the default holds");
    assert_eq!(allowance(&only.budgets, 100, at(40)).0, 50);
}

#[test]
fn a_place_is_free_when_the_node_and_its_owner_are_gone() {
    let mut world = one_at_a_time();
    assert_eq!(world.reserve(at(60)), ["n00"]);
    world.owner(0).deleting = Some(at(60));
    assert_eq!(world.reserve(at(61)), Vec::<String>::new());
    world.nodes.remove(0);
    assert_eq!(world.reserve(at(62)), ["n01"]);
    assert_eq!(world.policy.status.repaired, 1);
    assert_eq!(world.policy.status.repairs.len(), 1);
}

#[test]
fn a_repair_that_is_stuck_holds_nobody_up_for_ever() {
    let mut world = one_at_a_time();
    world.reserve(at(60));
    world.owner(0).deleting = Some(at(60));
    assert_eq!(world.reserve(at(74)), Vec::<String>::new());
    assert_eq!(world.survey(at(74)).changes_at, Some(at(75)));
    assert_eq!(world.reserve(at(75)), ["n01"]);
    world.owner(0).termination = Some(at(60).to_string());
    let decision = world.judge(0, at(76));
    assert!(
        matches!(decision.verdict.why(), NodeWhy::RepairUnderWay { stuck: true, .. }),
        "{:?}",
        decision.verdict
    );
}

/// The brake blocks a repair for a while. Whether the repair is stuck depends on how long it runs, not on how long it
/// was blocked.
#[test]
fn a_repair_that_was_held_is_not_stuck_when_it_begins() {
    let mut world = one_at_a_time();
    assert_eq!(world.reserve(at(60)), ["n00"]);
    world.owner(0).deleting = Some(at(73));
    assert_eq!(world.reserve(at(87)), Vec::<String>::new());
    assert_eq!(world.survey(at(87)).changes_at, Some(at(88)));
    assert_eq!(world.reserve(at(88)), ["n01"]);
}

/// The brake blocks a repair for longer than a repair may take. If other nodes got turns in addition, all would begin
/// when the brake releases.
#[test]
fn a_turn_that_was_not_used_goes_to_another_node() {
    let mut world = one_at_a_time();
    assert_eq!(world.reserve(at(60)), ["n00"]);
    assert_eq!(world.survey(at(60)).changes_at, Some(at(75)));
    assert_eq!(world.reserve(at(75)), Vec::<String>::new(), "a write of its repair may be on its way");
    assert!(world.survey(at(75)).idle.contains("uid-n00"));
    assert_eq!(world.deeds(0, at(75)), NOTHING);
    assert_eq!(world.reason(0, at(75)), "NotReserved");
    world.idle.insert("uid-n00".into(), at(75));
    assert_eq!(world.reserve(at(76)), ["n01"]);
    assert_eq!(world.policy.status.repairs.len(), 1);
    assert_eq!(world.hold(0, at(76)).unwrap().code(), "BudgetExhausted");
    // A node that is alone gets the next turn too.
    world.nodes.truncate(1);
    world.gone = true;
    world.reserve(at(77));
    world.gone = false;
    world.policy.status.repairs.clear();
    assert_eq!(world.reserve(at(78)), ["n00"]);
    world.idle.insert("uid-n00".into(), at(93));
    assert_eq!(world.reserve(at(94)), ["n00"]);
    assert_eq!(world.policy.status.repairs[0].since, at(94));
}

#[test]
fn what_was_prepared_is_taken_back_before_a_turn_goes_to_another_node() {
    let mut world = one_at_a_time();
    world.reserve(at(60));
    (world.owner(0).termination, world.owner(0).termination_before) =
        (Some(at(60).to_string()), Some(String::new()));
    world.idle.insert("uid-n00".into(), at(75));
    assert_eq!(world.reserve(at(76)), Vec::<String>::new());
    assert_eq!(world.deeds(0, at(76)), ["TakeBackTermination"]);
    (world.owner(0).termination, world.owner(0).termination_before) = (None, None);
    assert_eq!(world.reserve(at(76)), ["n01"]);
}

/// Four nodes, two of them due, the first one first, and a budget of one.
fn one_at_a_time() -> World {
    let mut world = pool(with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": 1}]})), 4, 2);
    world.pods = BTreeMap::from([("n00".into(), 0), ("n01".into(), 5)]);
    world
}

#[test]
fn a_node_that_recovers_before_its_repair_begins_keeps_its_place_for_a_minute() {
    let mut world = one_at_a_time();
    assert_eq!(world.reserve(at(60)), ["n00"]);
    world.nodes[0].0.conditions.truncate(1);
    assert_eq!(world.reserve(at(61)), Vec::<String>::new(), "a write of its repair may be on its way");
    assert!(world.survey(at(61)).idle.contains("uid-n00"));
    world.idle.insert("uid-n00".into(), at(61));
    assert_eq!(world.reserve(at(62)), ["n01"]);
    assert_eq!(world.policy.status.repaired, 0, "nothing was repaired");
}

#[test]
fn a_node_that_is_selected_no_more_gives_its_place_back() {
    let mut world = pool(with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": 1}]})), 4, 2);
    assert_eq!(world.reserve(at(60)), ["n00"]);
    world.nodes.remove(0);
    world.left_alone.push("uid-n00".into());
    assert_eq!(world.reserve(at(61)), Vec::<String>::new());
    world.idle.insert("uid-n00".into(), at(61));
    assert_eq!(world.reserve(at(62)), ["n01"]);
    assert_eq!(world.policy.status.repaired, 0);
}

#[test]
fn whose_deadline_comes_first_is_first_and_then_who_has_fewer_pods() {
    let limits = json!({"unhealthyLimit": "100%", "budgets": [{"nodes": 1}]});
    let mut world = World::new(with(limits.clone()), [sick("a", 2), sick("b", 1), sick("c", 3)]);
    assert_eq!(world.reserve(at(60)), ["b"]);
    let mut world = World::new(with(limits), [sick("a", 0), sick("b", 0), sick("c", 0)]);
    let survey = world.survey(at(60));
    assert_eq!(survey.to_count.len(), 3, "their pods are counted first");
    assert_eq!(world.reserve(at(60)), Vec::<String>::new());
    world.pods = BTreeMap::from([("a".into(), 7), ("b".into(), 2), ("c".into(), u32::MAX)]);
    assert_eq!(world.reserve(at(60)), ["b"]);
}

#[test]
fn the_sickness_of_a_zone_is_one_cause() {
    let zones = |bad_in_c: usize, zones: &[&str]| {
        let mut all = Vec::new();
        for zone in zones {
            for number in 0..4 {
                let name = format!("{zone}{number}");
                let is_bad = *zone == "c" && number < bad_in_c;
                let mut it = if is_bad { sick(&name, 0) } else { node(&name) };
                it.zone = (*zone).into();
                all.push(it);
            }
        }
        World::new(with(json!({"unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}]})), all)
    };
    let mut world = zones(4, &["a", "b", "c"]);
    assert_eq!(world.reserve(at(60)), Vec::<String>::new());
    assert_eq!(world.reason(8, at(60)), "ZoneOutage");
    assert_eq!(
        zones(4, &["a", "b", "c"]).survey(at(20)).zones.len(),
        1,
        "it counts from the beginning, not from the deadline"
    );
    assert_eq!(zones(3, &["a", "b", "c"]).survey(at(60)).zones.len(), 1, "3 of 4");
    assert_eq!(zones(2, &["a", "b", "c"]).reserve(at(60)).len(), 2, "two may be chance");
    assert_eq!(zones(4, &["c"]).reserve(at(60)).len(), 4, "there is no other zone: that is the breaker's");
    let mut off = zones(4, &["a", "b", "c"]);
    off.settings.zone_sick_percent = None;
    assert_eq!(off.reserve(at(60)).len(), 4);
    // A sick node of another zone is repaired meanwhile.
    let mut world = zones(4, &["a", "b", "c"]);
    world.nodes[0].0.conditions.push(condition("BadNode", Status::False, at(0)));
    assert_eq!(world.reserve(at(60)), ["a0"]);
}

#[test]
fn machines_that_do_not_come_up_hold_further_repairs() {
    let mut world = pool(with(json!({})), 10, 1);
    world.launches.insert("a".to_owned(), LaunchTrouble { what: "x".to_owned(), until: Some(at(70)) });
    assert_eq!(world.reserve(at(60)), Vec::<String>::new());
    assert_eq!(world.reason(0, at(60)), "LaunchFailures");
    assert_eq!(world.survey(at(60)).changes_at, Some(at(70)));
    world.launches = BTreeMap::from([("b".to_owned(), LaunchTrouble { what: "x".to_owned(), until: None })]);
    assert_eq!(world.reserve(at(60)), ["n00"], "another pool's");
}

#[test]
fn a_pause_and_other_recoveries_hold() {
    let mut world = pool(with(json!({"paused": true})), 10, 1);
    assert_eq!(world.reserve(at(60)), Vec::<String>::new());
    assert_eq!(world.reason(0, at(60)), "Paused");
    let mut world = pool(with(json!({})), 10, 1);
    world.nodes[0].0.other_actor = Some(crate::one_actor::NodeActor::Eviction);
    assert_eq!(world.reserve(at(60)), Vec::<String>::new());
    assert_eq!(world.reason(0, at(60)), "AnotherRecovery");
}

#[test]
fn a_repair_that_the_server_refused_waits_until_its_pause_is_over() {
    let world = pool(with(json!({})), 10, 1);
    let refusal = Refusal { words: "403".into(), until: at(61) };
    let survey = world.survey(at(60));
    let member = Member { refused: Some(&refusal), ..world.member(0) };
    let diagnosis = diagnose(member.node, member.backend.owner(), &world.policy, &world.settings, at(60));
    let sick = diagnosis.sick.unwrap();
    let asked = Asked { member: &member, sick: &sick, action: Action::Replace, repair: None };
    let is_held = |now| matches!(survey.hold(&world.policy, &asked, now), Some(Hold::BackendFailed { .. }));
    assert!(is_held(at(60)) && is_held(seconds(61 * 60 - 1)) && !is_held(at(61)));
}

#[test]
fn a_limit_that_trips_after_the_turn_was_given_still_holds() {
    let mut world = pool(with(json!({})), 10, 2);
    world.pods = BTreeMap::from([("n00".into(), 0), ("n01".into(), 5)]);
    assert_eq!(world.reserve(at(60)), ["n00"]);
    world.nodes[2].0.conditions.push(condition("BadNode", Status::False, at(0)));
    assert_eq!(world.deeds(0, at(60)), NOTHING);
    assert_eq!(world.reason(0, at(60)), "TooManyUnhealthy");
}

/// Two of four nodes are sick at once, and 20% of four is one. They stay blocked for 20 minutes after their toleration,
/// and are then replaced one after the other.
#[test]
fn too_many_sick_nodes_are_repaired_one_at_a_time_in_the_end() {
    let mut world = pool(with(json!({"budgets": [{"nodes": "100%"}]})), 4, 2);
    world.pods = BTreeMap::from([("n00".into(), 0), ("n01".into(), 5)]);
    world.remember(at(1));
    assert_eq!(world.reserve(at(30)), Vec::<String>::new());
    assert_eq!(world.hold(0, at(30)).unwrap().until(), Some(at(50)));
    assert_eq!(world.survey(at(31)).changes_at, Some(at(50)));
    assert_eq!(world.reserve(seconds(50 * 60 - 1)), Vec::<String>::new());
    assert_eq!(world.reserve(at(50)), ["n00"]);
    assert_eq!(world.deeds(0, at(50)), TIGHTEN, "and it is not held by its own turn");
    assert_eq!(world.reserve(at(50)), Vec::<String>::new(), "one at a time");
    let hold = world.hold(1, at(50)).unwrap();
    assert_eq!((hold.code(), hold.until()), ("TooManyUnhealthy", None));
    assert!(hold.to_string().contains("one at a time"), "{hold}");
    world.nodes.remove(0);
    assert_eq!(world.reserve(at(51)), ["n01"]);
    for never in [json!({"unhealthyLimit": 0}), json!({"unhealthyLimit": "0%"})] {
        let mut world = pool(with(never), 4, 1);
        world.remember(at(1));
        assert_eq!(world.reserve(at(10_000)), Vec::<String>::new(), "nothing is nothing");
    }
    let mut off = pool(with(json!({})), 4, 2);
    (off.settings.outage_timeout, off.settings.pool_sick_percent) = (None, None);
    off.remember(at(1));
    assert_eq!(off.reserve(at(10_000)), Vec::<String>::new());
}

/// A node that may not or cannot be repaired does not block a small pool: it counts neither against the limit nor
/// against the budget.
#[test]
fn a_node_that_is_given_up_holds_up_nobody() {
    let reboots = json!({"policies": [{
        "conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m", "action": "Reboot",
    }], "budgets": [{"nodes": 1}]});
    let two_of_four = |spec: Value| {
        let mut world = pool(policy_of(spec), 4, 2);
        world.pods = BTreeMap::from([("n00".into(), 0), ("n01".into(), 5)]);
        world
    };
    let one = |spec: &Value| {
        let mut spec = spec.clone();
        spec["policies"][0]["action"] = json!("Replace");
        spec
    };
    let mut vetoed = two_of_four(one(&reboots));
    marks(&mut vetoed.nodes[0].0).do_not_repair = Some("".into());
    assert_eq!(vetoed.survey(at(60)).unhealthy, 1);
    assert_eq!(vetoed.reserve(at(60)), ["n01"]);

    let mut exhausted = two_of_four(reboots.clone());
    exhausted.nodes[1].0.conditions.truncate(1);
    assert_eq!(exhausted.deeds(0, at(30)), ["RequestReboot"]);
    let decision = exhausted.judge(0, at(30));
    let Step::RequestReboot { progress, .. } = &decision.verdict.actions()[0] else { panic!() };
    exhausted.nodes[0].0.progress = Some(Box::new(progress.clone()));
    exhausted.nodes[1].0.conditions.push(condition("BadNode", Status::False, at(0)));
    assert_eq!(exhausted.reserve(at(39)), Vec::<String>::new(), "it has its time");
    assert_eq!(exhausted.reason(0, at(41)), "LadderExhausted");
    let survey = exhausted.survey(at(41));
    assert_eq!((survey.unhealthy, survey.used, survey.given_up), (1, 0, 1));
    exhausted.owner(0).deleting = Some(at(41));
    assert_eq!(exhausted.survey(at(41)).used, 1, "another controller replaces it");
    exhausted.owner(0).deleting = None;
    assert_eq!(exhausted.reserve(at(41)), ["n01"]);
    let status = &exhausted.policy.status;
    assert_eq!((status.blocked, status.repairing, status.repairs.len()), (1, 1, 2));

    let mut drained = two_of_four(one(&reboots));
    drained.nodes[0].1 = Backend::Node;
    drained.nodes[1].0.conditions.truncate(1);
    drained.reserve(at(60));
    let decision = drained.judge(0, at(60));
    let Step::Cordon { progress, .. } = &decision.verdict.actions()[0] else { panic!() };
    let (node, _) = &mut drained.nodes[0];
    (node.unschedulable, node.progress) = (true, Some(Box::new(progress.clone())));
    drained.left = left(1);
    drained.nodes[1].0.conditions.push(condition("BadNode", Status::False, at(0)));
    assert_eq!(drained.reserve(seconds(60 * 60 + 9)), Vec::<String>::new(), "it is being drained");
    assert_eq!(drained.survey(seconds(60 * 60 + 9)).changes_at, Some(seconds(60 * 60 + 10)));
    assert_eq!(drained.reserve(seconds(60 * 60 + 10)), ["n01"]);
    assert_eq!(drained.hold(0, at(61)).unwrap().code(), "MachineMayRun");
}

/// Otherwise another node would get its turn besides, and both would be under repair when the veto is lifted.
#[test]
fn a_repair_that_is_vetoed_keeps_the_turn_that_it_has() {
    let mut world = one_at_a_time();
    assert_eq!(world.reserve(at(60)), ["n00"]);
    marks(&mut world.nodes[0].0).do_not_repair = Some("".into());
    let survey = world.survey(at(61));
    assert_eq!((survey.used, survey.given_up, survey.picks.len()), (1, 0, 0));
}

#[test]
fn a_list_of_repairs_that_cannot_be_read_counts_as_full() {
    let mut world = pool(with(json!({"budgets": [{"nodes": "100%"}]})), 10, 1);
    world.policy.status = PolicyStatus::read_annotation(Some("{{"));
    assert_eq!(world.survey(at(60)).picks.len(), 0);
    let budget = world.survey(at(60)).budget_hold().unwrap();
    assert!(budget.to_string().contains("cannot be read"));
}

/// The clock of an API server is an hour behind for a while. What is written then stays valid afterwards.
#[test]
fn a_repair_that_begins_by_a_clock_before_its_policy_was_made_is_no_damage() {
    let mut world = pool(with(json!({})), 10, 1);
    world.policy.created = at(3600);
    assert_eq!(world.reserve(at(60)), ["n00"]);
    let status = world.policy.status.clone().of_object(world.policy.created);
    assert_eq!((status.damaged, status.repairs.len()), (false, 1));
    // A made-up repair is rejected.
    world.policy.status.repairs[0].since = at(60);
    assert!(world.policy.status.of_object(world.policy.created).damaged);
}
