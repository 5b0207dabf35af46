//! Pod failure policies, success policies and limits per index.

use salvor_api::config::DisruptedPods;
use serde_json::{Value, json};

use super::world::World;
use crate::Verdict;
use crate::job::{IndexFailures, JobWhy};
use crate::objects::PodPhase;

fn failure_policy(rules: Value, more: Value) -> World {
    let mut spec = json!({"parallelism": 1, "completions": 1, "podFailurePolicy": {"rules": rules}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut world = World::new(spec);
    world.policy.backoff_base = jiff::SignedDuration::ZERO;
    world
}

fn codes(action: &str, operator: &str, values: &[i32]) -> Value {
    json!({"action": action, "onExitCodes": {"operator": operator, "values": values}})
}

fn fail_with(world: &mut World, position: usize, code: i32) {
    world.pod(position).exit_codes = vec![("main".into(), code)];
    world.end(position, PodPhase::Failed);
}

#[test]
fn exit_codes_end_ignore_and_count() {
    let rules = json!([
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        codes("Count", "In", &[10]),
        codes("FailJob", "In", &[5, 6, 7, -1_073_741_510]),
    ]);
    for (code, disrupted, counts, conditions) in [
        (5, false, "A0 R0 S0 F1 T0", "FailureTarget(PodFailurePolicy) Failed(PodFailurePolicy)"),
        (-1_073_741_510, false, "A0 R0 S0 F1 T0", "FailureTarget(PodFailurePolicy) Failed(PodFailurePolicy)"),
        (5, true, "A1 R0 S0 F0 T0", ""),
        (10, false, "A1 R0 S0 F1 T0", ""),
        (11, false, "A1 R0 S0 F1 T0", ""),
    ] {
        let mut world = failure_policy(rules.clone(), json!({}));
        world.settle();
        if disrupted {
            world.pod(0).conditions = vec![("DisruptionTarget".into(), "True".into())];
        }
        fail_with(&mut world, 0, code);
        world.later(2).later(2);
        assert_eq!(world.counts(), counts, "{code} {disrupted}");
        assert_eq!(world.conditions(), conditions, "{code} {disrupted}");
        assert!(!world.pods[0].is_tracked(), "a finished pod loses the finalizer");
    }
}

#[test]
fn the_message_names_what_matched_and_survives_the_pod() {
    let mut world = failure_policy(
        json!([codes("FailJob", "NotIn", &[1, 2])]),
        json!({"parallelism": 2, "completions": 2}),
    );
    world.blocks_new_pods = true;
    world.settle();
    fail_with(&mut world, 0, 5);
    world.later(2);
    let name = world.pods[0].pod.name.clone();
    let message =
        format!("Container main for pod ns/{name} failed with exit code 5 matching FailJob rule at index 0");
    assert_eq!(world.job.status.conditions[0].message, message);
    assert_eq!(
        (world.counts().as_str(), world.conditions().as_str()),
        ("A0 R0 S0 F2 T1", "FailureTarget(PodFailurePolicy)")
    );
    world.pods.remove(0);
    world.unblock();
    world.later(2);
    assert_eq!(world.conditions(), "FailureTarget(PodFailurePolicy) Failed(PodFailurePolicy)");
    assert!(world.job.status.conditions.iter().all(|c| c.message == message));
}

#[test]
fn only_the_named_container_is_asked() {
    let rule = json!([{"action": "FailJob", "onExitCodes": {"containerName": "side", "operator": "In", "values": [5]}}]);
    for (container, fails) in [("main", false), ("side", true)] {
        let mut world = failure_policy(rule.clone(), json!({}));
        world.settle();
        world.pod(0).exit_codes = vec![(container.into(), 5)];
        world.end(0, PodPhase::Failed);
        world.settle();
        assert_eq!(!world.conditions().is_empty(), fails, "{container}");
    }
}

#[test]
fn under_a_failure_policy_a_terminating_pod_has_not_failed_even_with_the_gate_off() {
    for gate in [true, false] {
        let mut world = failure_policy(json!([codes("Count", "In", &[1])]), json!({"backoffLimit": 0}));
        world.policy.replacement_policy = gate;
        world.blocks_new_pods = true;
        world.settle();
        world.delete(0);
        world.later(2);
        assert_eq!(world.conditions(), "", "gate {gate}");
        assert_eq!(world.counts(), if gate { "A0 R0 S0 F0 T1" } else { "A0 R0 S0 F0 T-" });
    }
}

#[test]
fn a_terminating_pod_that_the_policy_ignores_does_not_count_when_the_job_fails() {
    let rules = json!([
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
        codes("FailJob", "In", &[5]),
    ]);
    for (condition, counts) in [("DisruptionTarget", "A0 R0 S0 F1 T1"), ("Ready", "A0 R0 S0 F2 T1")] {
        let mut world = failure_policy(rules.clone(), json!({"parallelism": 2, "completions": 2}));
        world.blocks_new_pods = true;
        world.settle();
        world.pod(1).conditions = vec![(condition.into(), "True".into())];
        world.delete(1);
        fail_with(&mut world, 0, 5);
        world.later(2).later(2);
        assert_eq!(world.counts(), counts, "{condition}");
        assert!(!world.pods[1].is_tracked(), "{condition}");
    }
}

#[test]
fn an_ignored_failure_delays_the_next_pod() {
    let mut world = failure_policy(
        json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]),
        json!({}),
    );
    world.policy.backoff_base = jiff::SignedDuration::from_secs(10);
    world.policy.disrupted_pods = DisruptedPods::Count;
    world.settle();
    world.pod(0).conditions = vec![("DisruptionTarget".into(), "True".into())];
    world.end(0, PodPhase::Failed);
    world.later(2);
    assert_eq!(world.counts(), "A0 R0 S0 F0 T0");
    world.later(8).later(2);
    assert_eq!(world.counts(), "A1 R0 S0 F0 T0");
}

/// Eight pods of a Job with a limit of 6 fail at once because their node is lost.
#[test]
fn disrupted_pods_neither_count_nor_delay_unless_the_administrator_or_a_rule_says_so() {
    let count_rule = json!([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}]);
    let lost = |mut world: World, setting| {
        world.policy.backoff_base = jiff::SignedDuration::from_secs(10);
        world.policy.disrupted_pods = setting;
        world.settle();
        for position in 0..8 {
            world.pod(position).conditions = vec![("DisruptionTarget".into(), "True".into())];
            world.end(position, PodPhase::Failed);
        }
        world.later(2).later(2);
        (world.counts(), world.conditions())
    };
    let nine = json!({"parallelism": 9, "completions": 9, "podReplacementPolicy": "Failed"});
    let plain = || World::new(nine.clone());
    assert_eq!(lost(plain(), DisruptedPods::Ignore), ("A9 R0 S0 F0 T0".into(), String::new()));
    assert!(lost(plain(), DisruptedPods::Count).1.contains("BackoffLimitExceeded"));
    let counts = failure_policy(count_rule, json!({"parallelism": 9, "completions": 9}));
    assert!(
        lost(counts, DisruptedPods::Ignore).1.contains("BackoffLimitExceeded"),
        "its own rule goes first"
    );
    let by_index = json!({"completionMode": "Indexed", "backoffLimitPerIndex": 0, "podReplacementPolicy": "Failed",
        "parallelism": 9, "completions": 9});
    assert_eq!(lost(World::new(by_index), DisruptedPods::Ignore), ("A9 R0 S0 F0 T0".into(), String::new()));
}

/// A failure in the status stays, whatever the setting becomes.
#[test]
fn what_was_counted_stays_counted_when_the_setting_changes() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "podReplacementPolicy": "Failed"}));
    world.policy.disrupted_pods = DisruptedPods::Count;
    world.settle();
    world.pod(0).conditions = vec![("DisruptionTarget".into(), "True".into())];
    world.end(0, PodPhase::Failed);
    world.later(2).later(2);
    assert_eq!(world.job.status.failed, 1);
    world.policy.disrupted_pods = DisruptedPods::Ignore;
    world.later(60).later(60);
    assert_eq!(world.job.status.failed, 1, "{}", world.counts());
}

fn success_policy(rules: Value, completions: i32, more: Value) -> World {
    let mut spec = json!({
        "parallelism": completions, "completions": completions, "completionMode": "Indexed",
        "successPolicy": {"rules": rules},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut world = World::new(spec);
    world.settle();
    world
}

#[test]
fn a_success_policy_ends_a_job_early_and_well() {
    for (rules, succeeded, met) in [
        (json!([{"succeededIndexes": "1"}]), vec![1], true),
        (json!([{"succeededIndexes": "1"}]), vec![0], false),
        (json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), vec![0, 2], true),
        (json!([{"succeededIndexes": "0-2", "succeededCount": 2}]), vec![0, 3], false),
        (json!([{"succeededCount": 1}]), vec![3], true),
        (json!([{"succeededIndexes": "0-3"}]), vec![0, 1, 2], false),
        (json!([{"succeededIndexes": "2-9"}]), vec![2, 3], true),
        (json!([{"succeededCount": 0}]), vec![], false),
        (json!([{"succeededCount": 0}]), vec![3], true),
        (json!([{"succeededIndexes": "0", "succeededCount": 0}]), vec![], false),
        (json!([{"succeededIndexes": ""}]), vec![3], false),
        (json!([{"succeededIndexes": "", "succeededCount": 0}, {"succeededCount": 1}]), vec![], false),
    ] {
        let mut world = success_policy(rules.clone(), 4, json!({}));
        world.blocked = world.pods.iter().map(|p| p.pod.uid.clone()).collect();
        for index in &succeeded {
            let position = world.active_at(*index);
            world.end(position, PodPhase::Succeeded);
        }
        world.later(2);
        let expected = if met { "SuccessCriteriaMet(SuccessPolicy)" } else { "" };
        assert_eq!(world.conditions(), expected, "{rules} {succeeded:?}");
        if met {
            let left = 4 - succeeded.len();
            assert_eq!(world.counts(), format!("A0 R0 S{} F0 T{left}", succeeded.len()));
            world.unblock();
            world.later(2);
            assert_eq!(world.conditions(), "SuccessCriteriaMet(SuccessPolicy) Complete(SuccessPolicy)");
        }
    }
}

#[test]
fn failure_comes_before_success_and_what_is_written_stands() {
    let mut both = success_policy(json!([{"succeededCount": 1}]), 2, json!({"backoffLimit": 0}));
    let mut decided = both.clone();
    both.end(0, PodPhase::Succeeded);
    both.end(1, PodPhase::Failed);
    both.later(2);
    assert_eq!(both.conditions(), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)");

    decided.blocked = decided.pods.iter().map(|p| p.pod.uid.clone()).collect();
    decided.end(0, PodPhase::Succeeded);
    decided.later(2);
    decided.end(1, PodPhase::Failed);
    decided.later(2);
    assert_eq!(decided.conditions(), "SuccessCriteriaMet(SuccessPolicy) Complete(SuccessPolicy)");
}

fn per_index(limit: i32, completions: i32, more: Value) -> World {
    let mut spec = json!({
        "parallelism": completions, "completions": completions, "completionMode": "Indexed", "backoffLimitPerIndex": limit,
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut world = World::new(spec);
    world.policy.backoff_base = jiff::SignedDuration::ZERO;
    world.settle();
    world
}

#[test]
fn each_index_has_its_own_limit() {
    let mut world = per_index(1, 2, json!({}));
    let zero = world.active_at(0);
    world.end(zero, PodPhase::Failed);
    world.later(2).later(2);
    assert_eq!(
        (world.counts().as_str(), world.job.status.failed_indexes.as_deref()),
        ("A2 R0 S0 F1 T0", Some(""))
    );
    let again = world.active_at(0);
    assert_eq!(world.pods[again].earlier_failures, IndexFailures { counted: 1, ignored: 0 });
    world.end(again, PodPhase::Failed);
    world.later(2).later(2);
    assert_eq!(
        (world.counts().as_str(), world.job.status.failed_indexes.as_deref()),
        ("A1 R0 S0 F2 T0", Some("0"))
    );
    let running = JobWhy::Running { active: 1, succeeded: 0 };
    assert_eq!(world.judge().verdict, Verdict::Ignore(running), "the place of index 0 stays empty");
    let one = world.active_at(1);
    world.end(one, PodPhase::Succeeded);
    world.later(2).later(2);
    assert_eq!(world.counts(), "A0 R0 S1 F2 T0");
    assert_eq!(world.conditions(), "FailureTarget(FailedIndexes) Failed(FailedIndexes)");
}

#[test]
fn a_failed_pod_keeps_its_finalizer_until_its_index_has_another() {
    let mut world = per_index(2, 1, json!({}));
    world.policy.backoff_base = jiff::SignedDuration::from_secs(10);
    world.end(0, PodPhase::Failed);
    world.later(2).later(2);
    assert!(world.pods[0].is_tracked());
    assert_eq!(world.counts(), "A0 R0 S0 F0 T0");
    world.later(6).later(2);
    assert!(!world.pods[0].is_tracked());
    assert_eq!(world.counts(), "A1 R0 S0 F1 T0");
    let last = world.active_at(0);
    world.end(last, PodPhase::Failed);
    world.later(19);
    assert_eq!(world.open().len(), 0, "twice as long after the second");
    world.later(1).later(2);
    assert_eq!(world.counts(), "A1 R0 S0 F2 T0");
}

#[test]
fn too_many_failed_indexes_end_the_job() {
    let mut world = per_index(0, 4, json!({"maxFailedIndexes": 1}));
    for index in [0, 2] {
        let position = world.active_at(index);
        world.end(position, PodPhase::Failed);
        world.later(2).later(2);
    }
    assert_eq!(
        world.conditions(),
        "FailureTarget(MaxFailedIndexesExceeded) Failed(MaxFailedIndexesExceeded)"
    );
    assert_eq!(
        (world.counts().as_str(), world.job.status.failed_indexes.as_deref()),
        ("A0 R0 S0 F4 T0", Some("0,2"))
    );
}

#[test]
fn a_rule_fails_an_index_at_once_and_ignored_failures_do_not_use_up_its_limit() {
    let rules = json!({"podFailurePolicy": {"rules": [codes("FailIndex", "In", &[13]), codes("Ignore", "In", &[7])]}});
    let mut world = per_index(1, 2, rules);
    let zero = world.active_at(0);
    fail_with(&mut world, zero, 13);
    let one = world.active_at(1);
    fail_with(&mut world, one, 7);
    world.later(2).later(2);
    assert_eq!(world.job.status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(world.counts(), "A1 R0 S0 F1 T0");
    let again = world.active_at(1);
    assert_eq!(world.pods[again].earlier_failures, IndexFailures { counted: 0, ignored: 1 });
}

#[test]
fn a_job_with_both_limits_ends_by_the_one_that_is_met() {
    let mut world = per_index(2, 3, json!({"backoffLimit": 1}));
    for index in [0, 1] {
        let position = world.active_at(index);
        world.end(position, PodPhase::Failed);
    }
    world.later(2).later(2);
    assert_eq!(world.conditions(), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)");
    assert_eq!(world.counts(), "A0 R0 S0 F3 T0");
}
