//! The rules for one node.

use super::*;

#[test]
fn a_node_is_repaired_when_its_condition_is_tolerated_no_more() {
    let cases: &[(&str, Status, i64, bool, &str)] = &[
        ("BadNode", Status::False, 60, true, "1: unhealthy"),
        ("FakeHealthyNode", Status::False, 60, false, "2: a type that no policy names"),
        ("BadNode", Status::True, 60, false, "3: a status that no policy names"),
        ("BadNode", Status::False, 20, false, "4: the toleration runs"),
        ("BadNode", Status::False, 30, true, "exactly at the deadline"),
        ("BadNode", Status::Unknown, 60, false, "another status"),
    ];
    for (kind, status, minutes, repaired, case) in cases {
        let mut bad = node("n");
        bad.conditions.push(condition(kind, *status, at(0)));
        let mut world = World::new(policy(), [bad]);
        let expected: &[&str] = if *repaired { &TIGHTEN } else { &NOTHING };
        assert_eq!(world.deeds(0, at(*minutes)), expected, "{case}");
    }
    let mut world = World::new(policy(), [sick("n", 0)]);
    assert_eq!(world.deeds(0, seconds(30 * 60 - 1)), NOTHING, "a second before");
}

#[test]
fn the_termination_time_is_set_and_only_ever_tightened() {
    let cases: &[(Option<i64>, Option<i64>, &str)] = &[
        (None, Some(60), "5: set to now"),
        (Some(60 + 120), Some(60), "6: the pool's grace period is not respected"),
        (Some(57), None, "7: a past one is kept"),
        (Some(60), None, "now is kept"),
    ];
    for (set, expected, case) in cases {
        let mut world = World::new(policy(), [sick("n", 0)]);
        world.owner(0).termination = set.map(|minutes| at(minutes).to_string());
        world.reserve(at(60));
        let decision = world.judge(0, at(60));
        match (&decision.verdict.actions()[0], expected) {
            (Step::TightenTermination { at: time, resource_version, claim, .. }, Some(minutes)) => {
                assert_eq!(*time, at(*minutes), "{case}");
                assert_eq!((resource_version.as_str(), claim.uid.as_str()), ("3", "claim-n"));
            }
            (Step::DeleteOwner { resource_version, .. }, None) => assert_eq!(resource_version, "3", "{case}"),
            (other, _) => panic!("{case}: {other}"),
        }
    }
    let mut world = World::new(policy(), [sick("n", 0)]);
    world.owner(0).termination = Some("tomorrow".to_owned());
    assert_eq!(world.deeds(0, at(60)), TIGHTEN, "what cannot be read is overwritten");
}

#[test]
fn a_graceful_termination_has_its_time() {
    let spec = json!({
        "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}],
        "termination": "Graceful", "gracePeriod": "10m",
    });
    let mut world = World::new(policy_of(spec), [sick("n", 0)]);
    world.reserve(at(60));
    let decision = world.judge(0, at(60));
    let Step::TightenTermination { at: time, .. } = &decision.verdict.actions()[0] else { panic!() };
    assert_eq!(*time, at(70));
    world.owner(0).termination = Some(time.to_string());
    assert_eq!(world.deeds(0, at(61)), DELETE, "it is not moved on");
}

#[test]
fn the_earliest_deadline_wins() {
    let spec = json!({"policies": [
        {"conditionType": "Slow", "conditionStatus": "False", "toleration": "60m"},
        {"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"},
    ]});
    let mut both = sick("n", 0);
    both.conditions.push(condition("Slow", Status::False, at(0)));
    let world = World::new(policy_of(spec), [both]);
    let decision = world.judge(0, at(27));
    let NodeWhy::TolerationRunning { sick } = decision.verdict.why() else { panic!() };
    assert_eq!((sick.key.as_str(), sick.deadline), ("BadNode=False", at(30)), "8 and 9");
}

#[test]
fn a_node_that_is_being_deleted_is_hastened_and_not_deleted_twice() {
    let mut world = World::new(policy(), [sick("n", 0)]);
    world.owner(0).deleting = Some(at(60));
    world.owner(0).termination = Some(at(1000).to_string());
    assert_eq!(world.deeds(0, at(60)), TIGHTEN);
    world.owner(0).termination = Some(at(60).to_string());
    assert_eq!(world.deeds(0, at(60)), NOTHING);
    assert_eq!(world.reason(0, at(60)), "RepairUnderWay");
    let mut world = World::new(policy(), [node("n")]);
    world.owner(0).deleting = Some(at(60));
    assert_eq!(world.reason(0, at(60)), "BeingDeleted", "a healthy one is none of our business");
}

#[test]
fn the_toleration_is_the_policys_then_the_default_then_the_providers() {
    let ready =
        |minutes| json!([{"conditionType": "Ready", "conditionStatus": "False", "toleration": minutes}]);
    let named = json!([{"conditionType": "Ready", "conditionStatus": "False"}]);
    let cases = [
        (
            json!({"policies": ready("45m"), "defaultTolerationDuration": "20m"}),
            "kwok://x",
            Some((45, Source::Policy)),
        ),
        (
            json!({"policies": named, "defaultTolerationDuration": "20m"}),
            "kwok://x",
            Some((20, Source::Default)),
        ),
        (json!({"policies": named}), "kwok://x", Some((10, Source::Provider))),
        (json!({"policies": named}), "aws:///x", Some((30, Source::Provider))),
        (json!({"policies": named}), "other://x", None),
        (json!({}), "kwok://x", Some((10, Source::Provider))),
        (json!({"defaultTolerationDuration": "20m"}), "kwok://x", Some((20, Source::Default))),
        (json!({"defaultTolerationDuration": "20m"}), "other://x", None),
    ];
    for (spec, provider, expected) in cases {
        let policy = policy_of(spec.clone());
        let condition = condition("Ready", Status::False, at(0));
        let provider = Provider::of(salvor_api::config::RepairProvider::Auto, provider);
        let found = resolve(&condition, &policy, provider).and_then(|it| it.toleration);
        let expected = expected.map(|(minutes, from)| (SignedDuration::from_mins(minutes), from));
        assert_eq!(found, expected, "{spec} {provider}");
    }
}

/// The example from the project's seed, with its times.
#[test]
fn a_nodepool_may_name_whatever_is_known_to_be_sick() {
    let repair = json!({
        "defaultTolerationDuration": "30m",
        "policies": [{"conditionType": "Ready", "toleration": "45m"}, {"conditionType": "NetworkUnavailable", "toleration": "10m"}],
    });
    let mut head = head("default", at(-1000));
    head.object.kind = NODE_POOL.clone();
    let pool = Policy::read_pool(head, &repair);
    assert!(pool.defects.is_empty() && pool.is_pool());
    assert_eq!(pool.name(), "nodepool/default");
    assert!(pool.selector.matches(&labels(&[("karpenter.sh/nodepool", "default")])));
    let minutes = |kind: &str, status, provider: Provider| {
        let found = resolve(&condition(kind, status, at(0)), &pool, provider);
        found.and_then(|it| it.toleration).map(|(toleration, _)| toleration.as_mins())
    };
    assert_eq!(minutes("Ready", Status::False, Provider::Aws), Some(45));
    assert_eq!(minutes("Ready", Status::Unknown, Provider::Aws), Some(45));
    assert_eq!(minutes("AcceleratedHardwareReady", Status::False, Provider::Aws), Some(30), "its default");
    assert_eq!(minutes("Ready", Status::True, Provider::Aws), None);
    // Nodes whose provider is unknown, or names nothing, still get what the pool names, and nothing else.
    for provider in [Provider::Aws, Provider::Oci, Provider::Unknown] {
        assert_eq!(minutes("Ready", Status::Unknown, provider), Some(45));
        assert_eq!(minutes("NetworkUnavailable", Status::True, provider), Some(10));
        assert_eq!(minutes("NetworkUnavailable", Status::False, provider), None);
        assert_eq!(minutes("DiskPressure", Status::True, provider), None, "nobody names it");
    }
}

#[test]
fn a_reason_may_decide() {
    let spec = json!({"policies": [
        {"conditionType": "Gpu", "conditionStatus": "False", "reasonPattern": "^Xid(13|31)$", "toleration": "5m", "action": "Reboot"},
        {"conditionType": "Gpu", "conditionStatus": "False", "reasonPattern": "^Ignored", "toleration": "5m", "action": "None"},
        {"conditionType": "Gpu", "conditionStatus": "False", "toleration": "10m"},
    ]});
    let policy = policy_of(spec);
    let found = |reason: &str| {
        let mut condition = condition("Gpu", Status::False, at(0));
        condition.reason = reason.into();
        let found = resolve(&condition, &policy, Provider::Unknown).unwrap();
        (found.toleration.unwrap().0.as_mins(), found.ladder.first().map(|rung| rung.action))
    };
    assert_eq!(found("Xid13"), (5, Some(Action::Reboot)));
    assert_eq!(found("Xid79"), (10, Some(Action::Replace)));
    assert_eq!(found("IgnoredOne"), (5, None));
}

#[test]
fn vetoes_hold_and_expire() {
    let cases = [
        (Some(""), None, true),
        (Some("true"), None, true),
        (Some("false"), None, false),
        (Some("until Monday"), None, true),
        (Some("2027-01-15T09:00:00Z"), None, true),
        (Some("2020-01-01T00:00:00Z"), None, false),
        (None, Some("true"), true),
        (None, Some(""), true),
        (None, Some("false"), false),
    ];
    // The tests start at 2027-01-15T08:00:00Z.
    for (ours, karpenters, vetoed) in cases {
        let mut bad = sick("n", -60);
        marks(&mut bad).do_not_repair = ours.map(Into::into);
        marks(&mut bad).karpenter_do_not_repair = karpenters.map(Into::into);
        let mut world = World::new(policy(), [bad]);
        let expected: &[&str] = if vetoed { &NOTHING } else { &TIGHTEN };
        assert_eq!(world.deeds(0, at(0)), expected, "{ours:?} {karpenters:?}");
        if ours == Some("2027-01-15T09:00:00Z") {
            assert_eq!(world.deeds(0, at(60)), TIGHTEN, "it has expired");
        }
    }
    let mut world = World::new(policy(), [sick("n", -60)]);
    world.owner(0).veto = Some("cluster.x-k8s.io/skip-remediation");
    assert_eq!(world.deeds(0, at(0)), NOTHING);
    assert_eq!(world.reason(0, at(0)), "Vetoed");
    let mut world = World::new(policy(), [sick("n", -60)]);
    world.owner(0).karpenter_do_not_repair = Some("true".to_owned());
    assert_eq!(world.deeds(0, at(0)), NOTHING, "on the NodeClaim");
    let mut world = World::new(policy(), [sick("n", -60)]);
    let object = ObjectRef { kind: NODE_POOL.clone(), ..claim(&world.nodes[0].0).object };
    world.pool = Some(PoolView { object, do_not_repair: Some(String::new()), karpenter_do_not_repair: None });
    assert_eq!(world.deeds(0, at(0)), NOTHING, "on the NodePool");
}

#[test]
fn nothing_that_karpenter_ignores_is_heeded() {
    // 10 and 11: a NodePool's disruption budgets and do-not-disrupt concern voluntary disruption, and are not even
    // read.
    let mut world = World::new(policy(), [sick("n", 0)]);
    assert_eq!(world.deeds(0, at(60)), TIGHTEN);
}

#[test]
fn a_node_that_never_became_ready_has_a_startup_timeout() {
    let spec = json!({"startupTimeout": "15m"});
    let starting = |ready: Option<(Status, i64)>, initialized: &str| {
        let mut it = node("n");
        it.created = Some(at(0));
        it.labels = labels(&[("pool", "a"), ("karpenter.sh/initialized", initialized)]);
        it.conditions =
            ready.into_iter().map(|(status, since)| condition("Ready", status, at(since))).collect();
        it
    };
    let just = |since: i64| {
        let mut it = starting(None, "");
        it.conditions = vec![condition("Ready", Status::False, seconds(since))];
        it
    };
    let cases = [
        (starting(None, ""), Some(false), true, "no condition at all"),
        (starting(Some((Status::False, 0)), ""), None, true, "as registered"),
        (starting(Some((Status::False, 5)), ""), None, false, "was Ready before"),
        (just(3), None, false, "was Ready for a moment"),
        (just(-30), None, false, "sick for longer than it exists"),
        (just(-4), None, true, "as registered, by a kubelet whose clock is behind"),
        (starting(Some((Status::True, 5)), ""), None, false, "Ready, and Karpenter says nothing"),
        (starting(Some((Status::True, 5)), ""), Some(false), true, "Ready, and not initialized"),
        (starting(Some((Status::True, 5)), "true"), Some(false), false, "initialized by its label"),
        (starting(None, ""), Some(true), false, "initialized by its NodeClaim"),
    ];
    for (node, initialized, repaired, case) in cases {
        let mut world = World::new(policy_of(spec.clone()), [node]);
        world.owner(0).initialized = initialized;
        assert_eq!(world.deeds(0, seconds(15 * 60 - 1)), NOTHING, "{case}");
        let expected: &[&str] = if repaired { &TIGHTEN } else { &NOTHING };
        assert_eq!(world.deeds(0, at(15)), expected, "{case}");
    }
}

/// The kubelet died before the node was ever Ready. The condition changes, and it is still the same start.
#[test]
fn a_start_that_fails_in_two_steps_is_one_start() {
    let spec = json!({
        "startupTimeout": "15m",
        "policies": [
            {"conditionType": "Ready", "conditionStatus": "False", "toleration": "60m"},
            {"conditionType": "Ready", "conditionStatus": "Unknown", "toleration": "60m"},
        ],
    });
    let mut starting = node("n");
    starting.created = Some(at(0));
    starting.labels = labels(&[("pool", "a")]);
    starting.conditions = vec![condition("Ready", Status::False, at(0))];
    let mut world = World::new(policy_of(spec), [starting]);
    world.owner(0).initialized = None;
    world.remember(at(0));
    world.nodes[0].0.conditions = vec![condition("Ready", Status::Unknown, at(1))];
    world.remember(at(1));
    assert_eq!(world.deeds(0, at(14)), NOTHING);
    assert_eq!(world.deeds(0, at(15)), TIGHTEN);
}

#[test]
fn backends_have_each_their_own_way() {
    let spec =
        json!({"policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}]});
    let mut world = World::new(policy_of(spec.clone()), [sick("n", 0)]);
    let machine = OwnerView { pool: "ns/md".into(), ..claim(&world.nodes[0].0) };
    world.nodes[0].1 = Backend::Machine(machine);
    assert_eq!(world.deeds(0, at(60)), ["RemediateMachine"]);
    world.owner(0).remediated = true;
    assert_eq!(world.deeds(0, at(60)), NOTHING);
    assert_eq!(world.reason(0, at(60)), "RepairUnderWay");
    world.settings.cluster_api = salvor_api::config::ClusterApiRepair::Delete;
    assert_eq!(world.deeds(0, at(60)), DELETE);
    let mut blocked = World::new(policy_of(spec), [sick("n", 0)]);
    blocked.nodes[0].1 = Backend::Missing("several NodeClaims have its providerID".to_owned());
    assert_eq!(blocked.deeds(0, at(60)), NOTHING);
    assert_eq!(blocked.reason(0, at(60)), "NoBackend");
}

#[test]
fn a_ladder_is_climbed_rung_by_rung() {
    let spec = json!({"policies": [{
        "conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m",
        "ladder": [{"action": "Reboot", "attempts": 2, "timeout": "10m"}, {"action": "Replace"}],
    }]});
    let mut world = World::new(policy_of(spec), [sick("n", 0)]);
    for (minute, attempt) in [(30, 1), (40, 2)] {
        world.reserve(at(minute));
        let decision = world.judge(0, at(minute));
        let Step::RequestReboot { progress, at: time, .. } = &decision.verdict.actions()[0] else {
            panic!("{:?}", decision.verdict)
        };
        assert_eq!((*time, progress.tried.as_ref().unwrap().attempt), (at(minute), attempt));
        world.nodes[0].0.progress = Some(Box::new(progress.clone()));
        assert_eq!(world.deeds(0, at(minute + 9)), NOTHING, "each attempt has its time");
        assert_eq!(world.reason(0, at(minute + 9)), "RepairUnderWay");
    }
    assert_eq!(world.deeds(0, at(50)), TIGHTEN);
}

/// An agent that starts after the boot must not see the request again.
#[test]
fn a_request_for_a_reboot_is_taken_back_when_the_node_has_booted() {
    use salvor_api::names::repair::REBOOT_CONDITION;
    let spec = json!({"policies": [{
        "conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m",
        "ladder": [{"action": "Reboot", "timeout": "10m"}, {"action": "Replace"}],
    }]});
    let mut world = World::new(policy_of(spec), [sick("n", 0)]);
    world.reserve(at(30));
    let decision = world.judge(0, at(30));
    let Step::RequestReboot { progress, .. } = &decision.verdict.actions()[0] else { panic!("{decision:?}") };
    world.nodes[0].0.progress = Some(Box::new(progress.clone()));
    for (asks, boot, is_taken_back) in
        [(Status::True, "boot-1", false), (Status::True, "boot-2", true), (Status::False, "boot-2", false)]
    {
        let node = &mut world.nodes[0].0;
        node.conditions.retain(|it| &*it.kind != REBOOT_CONDITION);
        node.conditions.push(condition(REBOOT_CONDITION, asks, at(30)));
        node.boot_id = boot.into();
        let verdict = world.judge(0, at(31)).verdict;
        let Some(Step::Report { rebooted, .. }) = verdict.actions().first() else { panic!("{verdict:?}") };
        assert_eq!(rebooted.is_some(), is_taken_back, "{asks:?} {boot}");
    }
}

/// The clock of an API server is an hour behind for a while. What is written then stays valid afterwards.
#[test]
fn a_reboot_by_a_clock_before_its_node_was_made_is_no_damage() {
    let spec = json!({"policies": [
        {"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m", "action": "Reboot"},
    ]});
    let mut world = World::new(policy_of(spec), [sick("n", 0)]);
    world.nodes[0].0.created = Some(at(60));
    world.reserve(at(30));
    let decision = world.judge(0, at(30));
    let Step::RequestReboot { progress, .. } = &decision.verdict.actions()[0] else {
        panic!("{:?}", decision.verdict)
    };
    let text = serde_json::to_string(progress).unwrap();
    assert_eq!(Progress::read_of(&text, Some(at(60))), Ok(progress.clone()));
}

#[test]
fn a_ladder_without_a_last_resort_ends() {
    let spec = json!({"policies": [
        {"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m", "action": "Reboot"},
    ]});
    let mut world = World::new(policy_of(spec), [sick("n", 0)]);
    assert_eq!(world.deeds(0, at(30)), ["RequestReboot"]);
    let tried = Tried {
        condition: "BadNode=False".to_owned(),
        action: Action::Reboot,
        rung: 0,
        attempt: 1,
        at: at(30),
        boot_id: String::new(),
    };
    let mut progress = Progress { tried: Some(tried), ..Progress::default() };
    progress.sick.insert("BadNode=False".to_owned(), Clock::new(at(0)));
    world.nodes[0].0.progress = Some(Box::new(progress));
    assert_eq!(world.deeds(0, at(45)), NOTHING);
    assert_eq!(world.reason(0, at(45)), "LadderExhausted");
    // The node becomes healthy: its repair is over.
    world.nodes[0].0.conditions.truncate(1);
    world.nodes[0].0.progress = None;
    let survey = world.survey(at(50));
    assert_eq!(survey.over.len(), 1);
}

/// Another writer damages the memory of a node that was just rebooted. The node is neither rebooted again nor replaced.
#[test]
fn a_memory_that_cannot_be_read_holds_the_node_and_is_told_once() {
    let ladder = json!({"policies": [{
        "conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m",
        "ladder": [{"action": "Reboot", "timeout": "10m"}, {"action": "Replace"}],
    }], "unhealthyLimit": "100%", "budgets": [{"nodes": 2}]});
    let mut world = World::new(policy_of(ladder), [sick("n", 0), sick("other", 0)]);
    assert_eq!(world.deeds(0, at(30)), ["RequestReboot"]);
    marks(&mut world.nodes[0].0).damage = Some("it is not a JSON object".into());
    let decision = world.judge(0, at(31));
    let [Step::Tell { condition, .. }, Step::Mention(note)] = decision.verdict.actions() else {
        panic!("{:?}", decision.verdict)
    };
    assert_eq!((condition.reason, condition.holds), ("AnnotationUnreadable", false));
    for said in [&condition.message, &note.message] {
        assert!(said.contains("repair.salvor.dev/progress") && said.contains("not a JSON object"), "{said}");
    }
    let reason = "AnnotationUnreadable";
    let mut told = self::condition("SalvorRepair", Status::False, at(31));
    told.reason = reason.into();
    world.nodes[0].0.conditions.push(told);
    assert_eq!(world.survey(at(31)).used, 2, "its repair is not over, and its place is not free");
    assert_eq!(world.survey(at(31)).over, []);
    for minute in [32, 45, 600] {
        assert_eq!(world.deeds(0, at(minute)), NOTHING);
        let verdict = world.judge(0, at(minute)).verdict;
        assert!(matches!(&verdict, Verdict::Ignore(why) if why.code() == reason), "{verdict:?}");
    }
    // On a healthy node the damage does not matter, unless the node is cordoned.
    world.nodes[0].0.conditions.retain(|condition| &*condition.kind != "BadNode");
    world.nodes[0].0.unschedulable = true;
    assert_eq!(world.reason(0, at(46)), reason);
    world.nodes[0].0.unschedulable = false;
    let decision = world.judge(0, at(46));
    assert!(
        matches!(decision.verdict.actions(), [Step::Report { progress: None, .. }]),
        "{:?}",
        decision.verdict
    );
}

#[test]
fn a_repair_that_has_begun_and_is_held_counts_by_what_holds_it() {
    let mut world = World::new(policy(), [sick("n", 0)]);
    world.reserve(at(60));
    let mut counted = |told: &str| {
        world.nodes[0].0.progress = Some(Box::new(Progress { told: told.to_owned(), ..Progress::default() }));
        world.survey(at(60)).begun_and_held
    };
    assert_eq!(counted("Blocked MaxNodesPerMinute"), ["MaxNodesPerMinute"]);
    assert!(counted("Repairing").is_empty());
}

#[test]
fn what_a_node_tells_is_told_once() {
    let mut world = World::new(policy(), [sick("n", 0)]);
    let decision = world.judge(0, at(5));
    let [Step::Report { condition: Some(condition), progress: Some(progress), .. }] =
        decision.verdict.actions()
    else {
        panic!("{:?}", decision.verdict)
    };
    assert_eq!((condition.reason, condition.holds), ("Waiting", false));
    assert!(condition.message.contains("2027-01-15T08:30:00Z"), "{}", condition.message);
    // The condition as the API shows it then.
    let mut told = self::condition("SalvorRepair", Status::False, at(5));
    told.reason = "Waiting".into();
    world.nodes[0].0.conditions.push(told);
    world.nodes[0].0.progress = Some(Box::new(progress.clone()));
    let decision = world.judge(0, at(6));
    assert!(
        matches!(decision.verdict, Verdict::Wait { until, .. } if until == at(30)),
        "{:?}",
        decision.verdict
    );
    // An agent that rewrites the transition changes nothing.
    world.nodes[0].0.conditions[1].since = Some(at(6));
    let decision = world.judge(0, at(7));
    assert!(
        matches!(decision.verdict, Verdict::Wait { until, .. } if until == at(30)),
        "{:?}",
        decision.verdict
    );
    // Healthy just before the deadline: the clock runs for another minute, and is then reset.
    world.nodes[0].0.conditions[1].status = Status::True;
    let decision = world.judge(0, at(29));
    let [Step::Report { condition: None, progress: Some(progress), .. }] = decision.verdict.actions() else {
        panic!("{:?}", decision.verdict)
    };
    world.nodes[0].0.progress = Some(Box::new(progress.clone()));
    let decision = world.judge(0, seconds(29 * 60 + 59));
    assert!(
        matches!(decision.verdict, Verdict::Wait { until, .. } if until == at(30)),
        "{:?}",
        decision.verdict
    );
    let decision = world.judge(0, at(30));
    let [Step::Report { condition: Some(condition), progress: Some(progress), .. }] =
        decision.verdict.actions()
    else {
        panic!("{:?}", decision.verdict)
    };
    assert_eq!(condition.reason, "Recovered");
    // The healing is remembered for a while, and then forgotten.
    assert!(progress.is_empty() && progress.healed.is_some(), "{progress:?}");
    world.nodes[0].0.progress = Some(Box::new(progress.clone()));
    world.nodes[0].0.conditions[2].reason = "Recovered".into();
    let verdict = world.judge(0, at(31)).verdict;
    assert!(
        matches!(verdict, Verdict::Wait { until, why: NodeWhy::Healthy } if until == at(59)),
        "{verdict:?}"
    );
    let decision = world.judge(0, at(59));
    let [Step::Report { condition: None, progress: None, .. }] = decision.verdict.actions() else {
        panic!("{:?}", decision.verdict)
    };
    world.nodes[0].0.progress = None;
    assert!(matches!(world.judge(0, at(60)).verdict, Verdict::Ignore(NodeWhy::Healthy)));
}

#[test]
fn nobody_is_touched_who_was_not_written_down() {
    let world = World::new(policy(), [sick("n", 0)]);
    assert_eq!(world.reason(0, at(60)), "NotReserved");
    let survey = Survey::default();
    let scene = Scene {
        member: world.member(0),
        policy: None,
        survey: Some(&survey),
        place: Place::None,
        braked: None,
        kept: None,
    };
    let decision = decide_node(&scene, &settings(), at(60));
    assert_eq!(decision.verdict, Verdict::Ignore(NodeWhy::NotSelected));
}

#[test]
fn labels_are_asked_for_as_they_were_written_however_they_are_kept() {
    let all: Labels = [("a", "1"), ("kubernetes.io/hostname", "host"), ("z", "")].into_iter().collect();
    for name in ["host", "host.example.com"] {
        let kept = NodeLabels::new(&all, &name.into(), |others| {
            assert_eq!(others, [("a", "1"), ("z", "")].into_iter().collect(), "without its own");
            Arc::new(others)
        });
        let found = ["a", "kubernetes.io/hostname", "z", "b"].map(|key| kept.get(key));
        assert_eq!(found, [Some("1"), Some("host"), Some(""), None]);
    }
    let empty: Labels = [("kubernetes.io/hostname", "")].into_iter().collect();
    let kept = NodeLabels::new(&empty, &"n".into(), Arc::new);
    assert_eq!(kept.get("kubernetes.io/hostname"), Some(""), "there, and empty");
    assert_eq!(NodeLabels::default().get("kubernetes.io/hostname"), None);
}

#[test]
fn what_we_write_on_a_node_makes_no_other_node_of_it() {
    let before = sick("a", 0);
    let mut told = NodeView { resource_version: "2".into(), ..before.clone() };
    told.progress = Some(Box::new(Progress { told: "Waiting".into(), ..Progress::default() }));
    told.conditions.insert(0, condition("SalvorRepair", Status::False, at(1)));
    told.conditions.push(condition("NodeReboot", Status::True, at(1)));
    assert!(before.is_same_but_for_us(&told) && told.is_same_but_for_us(&before));
    let changes: [fn(&mut NodeView); 8] = [
        |node| marks(node).deleting = Some(at(60)),
        |node| node.unschedulable = true,
        |node| marks(node).damage = Some("it is not a JSON object".into()),
        |node| node.boot_id = "boot-2".into(),
        |node| node.zone = "b".into(),
        |node| marks(node).do_not_repair = Some("".into()),
        |node| node.labels = labels(&[("pool", "b")]),
        |node| node.conditions[1].since = Some(at(2)),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut other = told.clone();
        change(&mut other);
        assert!(!before.is_same_but_for_us(&other), "change {number}");
    }
}
