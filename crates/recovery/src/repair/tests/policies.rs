//! Reading specs, reporting errors in them, and the status of policies.

use super::*;

#[test]
fn a_bad_spec_says_what_would_be_right() {
    let cases = [
        (json!({"nodeSelector": null}), "spec.nodeSelector must be set"),
        (json!({"nodeSelector": {}}), "spec.nodeSelector is empty"),
        (
            json!({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.nodeSelector: ",
        ),
        (json!({"policies": [{"conditionType": "Ready"}]}), "spec.policies[0].conditionStatus must be set"),
        (
            json!({"policies": [{"conditionType": "Ready", "conditionStatus": "Maybe"}]}),
            "spec.policies[0].conditionStatus is \"Maybe\": write \"True\", \"False\" or \"Unknown\"",
        ),
        (
            json!({"policies": [{"conditionType": "Ready", "conditionStatus": "False", "toleration": "5"}]}),
            "spec.policies[0].toleration: \"5\" lacks a unit",
        ),
        (
            json!({"policies": [{"conditionType": "Ready", "conditionStatus": "False", "reasonPattern": "("}]}),
            "spec.policies[0].reasonPattern is \"(\", which is no regular expression",
        ),
        (
            json!({"policies": [{"conditionType": "Ready", "conditionStatus": "False", "reasonPattern": "(a{1000}){1000}"}]}),
            "which is no regular expression",
        ),
        (
            json!({"policies": [{"conditionType": "Ready", "conditionStatus": "False", "action": "Reboot", "ladder": [{"action": "Replace"}]}]}),
            "has action and ladder",
        ),
        (
            json!({"policies": [{"conditionType": "Ready", "conditionStatus": "False", "ladder": [{"action": "Reboot", "attempts": 0}]}]}),
            "spec.policies[0].ladder[0].attempts is 0: write a number from 1 to 10",
        ),
        (json!({"unhealthyLimit": "a lot"}), "spec.unhealthyLimit: \"a lot\" is no amount of nodes"),
        (
            json!({"budgets": [{"nodes": 1, "schedule": "at noon", "duration": "1h"}]}),
            "spec.budgets[0].schedule: \"at noon\" is no schedule",
        ),
        (
            json!({"budgets": [{"nodes": 1, "schedule": "@daily"}]}),
            "spec.budgets[0].duration must be set beside schedule",
        ),
        (json!({"budgets": [{}]}), "spec.budgets[0].nodes must be set"),
        (
            json!({"termination": "Forceful", "gracePeriod": "5m"}),
            "spec.gracePeriod needs spec.termination: Graceful",
        ),
        (json!({"startupTimeout": "-5m"}), "spec.startupTimeout is -5m0s: it must not be negative"),
    ];
    for (spec, expected) in cases {
        let policy = policy_of(spec.clone());
        assert!(policy.defects.iter().any(|it| it.contains(expected)), "{spec}: {:?}", policy.defects);
    }
}

#[test]
fn the_contract_of_the_issue_is_read() {
    let policy = policy_of(json!({
        "nodeSelector": {"matchLabels": {"karpenter.sh/nodepool": "gpu"}},
        "paused": false,
        "policies": [
            {"conditionType": "Ready", "conditionStatus": "False", "toleration": "10m"},
            {"conditionType": "AcceleratedHardwareReady", "conditionStatus": "False", "toleration": "5m"},
        ],
        "defaultTolerationDuration": "30m",
        "termination": "Forceful",
        "unhealthyLimit": "20%",
        "budgets": [{"nodes": "10%", "schedule": "0 8 * * 1-5", "duration": "10h"}],
        "startupTimeout": "15m",
    }));
    assert!(policy.defects.is_empty(), "{:?}", policy.defects);
    assert_eq!(policy.entries.len(), 2);
    assert_eq!(policy.budgets.len(), 1);
    assert_eq!(policy.unhealthy_limit, Amount::Percent(20));
}

#[test]
fn the_status_tells_counts_conditions_and_repairs() {
    let mut world = World::new(
        policy_of(json!({
            "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "30m"}],
            "unhealthyLimit": "100%", "budgets": [{"nodes": 1}],
        })),
        [sick("a", 0), sick("b", 1), sick("c", 50), node("d")],
    );
    world.reserve(at(60));
    let status = world.policy.status.clone();
    assert_eq!(
        (status.nodes, status.healthy, status.waiting, status.blocked, status.repairing),
        (4, 1, 1, 1, 1)
    );
    assert_eq!(status.repairs[0].node, "a");
    assert_eq!(status.repairs[0].condition, "BadNode=False");
    let told = |kind: &str| {
        let it = status.conditions.iter().find(|it| it.kind == kind).unwrap();
        (it.status.as_str(), it.reason.as_str())
    };
    assert_eq!(told("Ready"), ("True", "Valid"));
    assert_eq!(told("RepairAllowed"), ("False", "BudgetExhausted"));
    assert_eq!(told("Overlaps"), ("False", "NoOverlap"));
    // Once the status is written, there is nothing more to write.
    let survey = world.survey(at(60));
    let scene = PolicyScene {
        policy: &world.policy,
        survey: Some(&survey),
        overlap: None,
        written: None,
        pool_of: &|_| None,
    };
    let verdict = decide_policy(&scene, at(60)).verdict;
    assert!(matches!(verdict, Verdict::Wait { why: PolicyWhy::Settled, .. }), "{verdict:?}");
    let overlap = Some((2, "older".to_owned()));
    let scene = PolicyScene {
        policy: &world.policy,
        survey: Some(&survey),
        overlap,
        written: Some(at(60)),
        pool_of: &|_| None,
    };
    let verdict = decide_policy(&scene, at(60)).verdict;
    let Some(Step::WritePolicy { status, begins: false, .. }) = verdict.actions().first() else {
        panic!("{verdict:?}")
    };
    assert_eq!(status.conditions[2].reason, "OlderPolicyCounts");
}

#[test]
fn a_bad_policy_says_so_in_its_status() {
    let policy = policy_of(json!({"unhealthyLimit": "x"}));
    let scene =
        PolicyScene { policy: &policy, survey: None, overlap: None, written: None, pool_of: &|_| None };
    let verdict = decide_policy(&scene, at(0)).verdict;
    let [Step::WritePolicy { status, .. }, Step::Mention(note)] = verdict.actions() else {
        panic!("{verdict:?}")
    };
    assert_eq!(
        (status.conditions[0].status.as_str(), status.conditions[0].reason.as_str()),
        ("False", "InvalidSpec")
    );
    assert!(status.conditions[0].message.contains("spec.unhealthyLimit"));
    assert_eq!(note.reason, "InvalidNodeRepairPolicy");
}

/// A NodePool has no condition for the error, so an annotation and an event report it.
#[test]
fn a_bad_block_of_a_nodepool_is_told_once() {
    let cases = [
        (
            json!({"policies": [{"conditionType": "Ready", "toleration": "soon"}]}),
            "spec.repair.policies[0].toleration",
        ),
        (
            json!({"policies": [{"conditionType": "Ready", "toleration": "5m", "conditionStatus": "Sick"}]}),
            "spec.repair.policies[0].conditionStatus is \"Sick\": write \"True\", \"False\" or \"Unknown\"",
        ),
        (json!({"policies": {"Ready": "5m"}}), "spec.repair.policies is {\"Ready\":\"5m\"}: write a list"),
        (
            json!({"policies": [{"conditionType": "Shaky", "toleration": "5m"}]}),
            "spec.repair.policies[0].conditionType is \"Shaky\"",
        ),
    ];
    for (repair, expected) in cases {
        let mut head = head("default", at(-1000));
        head.object.kind = NODE_POOL.clone();
        let mut pool = Policy::read_pool(head, &repair);
        let judged = |pool: &Policy| {
            let scene =
                PolicyScene { policy: pool, survey: None, overlap: None, written: None, pool_of: &|_| None };
            decide_policy(&scene, at(0)).verdict
        };
        let verdict = judged(&pool);
        let [Step::WritePolicy { status, .. }, Step::Mention(note)] = verdict.actions() else {
            panic!("{verdict:?}")
        };
        assert!(note.message.contains(expected), "{}", note.message);
        let written = status.annotation().unwrap();
        pool.status = PolicyStatus::read_annotation(Some(&written));
        assert!(written.contains("spec.repair.policies"), "{written}");
        assert!(judged(&pool).actions().is_empty(), "it is told once");
        pool.defects.clear();
        pool.idle_parts.clear();
        let verdict = judged(&pool);
        let [Step::WritePolicy { status, .. }] = verdict.actions() else { panic!("{verdict:?}") };
        assert_eq!(status.annotation(), None, "corrected");
    }
}

#[test]
fn counts_alone_are_not_written_all_the_time() {
    let mut world = World::new(policy(), [node("a"), node("b")]);
    world.reserve(at(0));
    world.nodes.pop();
    let survey = world.survey(at(1));
    let scene = |written| PolicyScene {
        policy: &world.policy,
        survey: Some(&survey),
        overlap: None,
        written,
        pool_of: &|_| None,
    };
    let verdict = decide_policy(&scene(Some(at(1))), at(1)).verdict;
    assert!(matches!(verdict, Verdict::Wait { why: PolicyWhy::Counts, .. }), "{verdict:?}");
    let verdict = decide_policy(&scene(Some(at(0))), at(1)).verdict;
    assert!(matches!(verdict, Verdict::Act { .. }), "{verdict:?}");
}

#[test]
fn a_policy_selects_by_its_labels_and_an_empty_selector_selects_nothing() {
    let (ours, others) = (labels(&[("pool", "a")]), labels(&[("pool", "b")]));
    assert!(policy().selects(&ours) && !policy().selects(&others));
    let empty = policy_of(json!({"nodeSelector": {}}));
    assert!(!empty.selects(&ours) && !empty.selects(&others));
}
