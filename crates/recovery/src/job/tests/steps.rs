//! Longer scenarios: the order of steps, and their cost.

use super::super::Step;
use crate::step::Step as _;
use serde_json::json;

use super::world::{World, at};
use crate::event::EventType;
use crate::job::{JobCondition, JobWhy, PodView, Selected, Tracking, Unreadable, decide_leftovers};
use crate::objects::PodPhase;
use crate::{Reason, Verdict};

#[test]
fn a_job_of_one_pod_takes_two_writes_to_start_and_two_to_end() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 1}));
    world.settle();
    assert_eq!(world.writes, ["CreatePod", "PatchJobStatus"]);
    assert_eq!(world.counts(), "A1 R0 S0 F0 T0");
    assert_eq!(world.job.status.start_time, Some(at(0)));
    world.writes.clear();
    world.end(0, PodPhase::Succeeded);
    world.settle();
    assert_eq!(world.writes, ["PatchJobStatus", "RemoveFinalizer"]);
    assert_eq!(world.counts(), "A0 R0 S1 F0 T0");
    assert_eq!(world.conditions(), "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)");
    assert_eq!(world.job.status.completion_time, Some(at(0)));
    assert!(matches!(world.judge().verdict, Verdict::Ignore(JobWhy::Finished { .. })));
}

/// TestJobPodReplacementPolicy, both policies, both modes.
#[test]
fn pods_are_deleted_and_then_fail() {
    for mode in ["Indexed", "NonIndexed"] {
        for (policy, after_delete, after_failing) in [
            (json!(null), "A2 R0 S0 F2 T2", "A2 R0 S0 F2 T0"),
            (json!("TerminatingOrFailed"), "A2 R0 S0 F2 T2", "A2 R0 S0 F2 T0"),
            (json!("Failed"), "A0 R0 S0 F0 T2", "A2 R0 S0 F2 T0"),
        ] {
            let spec = json!({"parallelism": 2, "completions": 2, "completionMode": mode, "podReplacementPolicy": policy});
            let mut world = World::new(spec);
            world.policy.backoff_base = jiff::SignedDuration::ZERO;
            world.blocks_new_pods = true;
            world.settle();
            assert_eq!(world.counts(), "A2 R0 S0 F0 T0");
            world.delete(0);
            world.delete(1);
            world.later(2);
            assert_eq!(world.counts(), after_delete, "{mode} {policy}");
            world.end(0, PodPhase::Failed);
            world.end(1, PodPhase::Failed);
            world.later(2).later(2);
            assert_eq!(world.counts(), after_failing, "{mode} {policy}");
            assert_eq!(world.count("CreatePod"), 4, "{mode} {policy}");
        }
    }
}

/// A terminating pod that counted as failed stays failed, even if it then succeeds.
#[test]
fn a_terminating_pod_that_ends_well_counts_by_the_policy() {
    for (policy, counts) in [("TerminatingOrFailed", "A1 R0 S0 F1 T0"), ("Failed", "A0 R0 S1 F0 T0")] {
        let mut world =
            World::new(json!({"parallelism": 1, "completions": 1, "podReplacementPolicy": policy}));
        world.policy.backoff_base = jiff::SignedDuration::ZERO;
        world.blocks_new_pods = true;
        world.settle();
        world.delete(0);
        world.later(2);
        world.end(0, PodPhase::Succeeded);
        world.later(2).later(2);
        assert_eq!(world.counts(), counts, "{policy}");
    }
}

/// The last pod of a work queue is deleted: it counts as the policy says, although that ends the Job with success.
#[test]
fn a_pod_that_was_ending_when_the_goal_was_reached_counts_by_the_policy() {
    for (policy, counts) in [("TerminatingOrFailed", "A0 R0 S1 F1 T1"), ("Failed", "A0 R0 S1 F0 T1")] {
        let mut world = World::new(json!({"parallelism": 2, "podReplacementPolicy": policy}));
        world.blocks_new_pods = true;
        world.settle();
        world.end(0, PodPhase::Succeeded);
        world.later(2);
        world.delete(1);
        world.later(2);
        assert_eq!(world.counts(), counts, "{policy}");
        assert_eq!(world.conditions(), "SuccessCriteriaMet(CompletionsReached)");
    }
}

/// The disable and re-enable case of the seed document.
#[test]
fn the_gate_goes_off_and_on_again() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 4, "podReplacementPolicy": "Failed"}));
    world.policy.backoff_base = jiff::SignedDuration::ZERO;
    world.blocks_new_pods = true;
    world.settle();
    world.policy.replacement_policy = false;
    world.memory = crate::job::Memory::default();
    world.delete(0);
    world.settle().later(2);
    assert_eq!(
        world.counts(),
        "A2 R0 S0 F1 T-",
        "terminating counts as failed, is replaced, and is not tracked"
    );
    world.policy.replacement_policy = true;
    world.memory = crate::job::Memory::default();
    world.end(0, PodPhase::Succeeded);
    world.settle().later(2);
    assert_eq!(world.counts(), "A2 R0 S0 F1 T0", "what counted as failed still does");
    world.delete(1);
    world.later(2);
    assert_eq!(world.counts(), "A1 R0 S0 F1 T1", "not replaced before it has ended");
    world.end(1, PodPhase::Failed);
    world.later(2).later(2);
    assert_eq!(world.counts(), "A2 R0 S0 F2 T0");
}

/// Once the end of a Job is decided, the ends of its pods share a status write; the end of the Job is written at once.
#[test]
fn pods_that_die_after_the_fate_is_settled_share_a_status_write() {
    let success = json!({"rules": [{"succeededCount": 1}]});
    for (first, success_policy, end) in [
        (PodPhase::Failed, json!(null), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)"),
        (PodPhase::Succeeded, success, "SuccessCriteriaMet(SuccessPolicy) Complete(SuccessPolicy)"),
    ] {
        let mut world = World::new(json!({
            "parallelism": 30, "completions": 30, "completionMode": "Indexed", "backoffLimit": 0,
            "successPolicy": success_policy,
        }));
        world.blocks_new_pods = true;
        world.settle().later(2);
        world.end(0, first);
        world.settle();
        assert!(world.pods.iter().all(|pod| !pod.is_tracked()), "finalizers go at once: {end}");
        assert!(world.counts().ends_with("T29"), "{end}: {}", world.counts());
        let millisecond = jiff::SignedDuration::from_millis(1);
        let die = |world: &mut World, pods: std::ops::Range<usize>| {
            world.writes.clear();
            for position in pods {
                world.now = world.now.checked_add(millisecond).unwrap();
                world.end(position, PodPhase::Failed);
                world.settle();
            }
            world.count("PatchJobStatus")
        };
        assert_eq!(die(&mut world, 1..20), 0, "{end}");
        assert_eq!(world.judge().verdict.wake_at(), Some(at(3)), "{end}");
        assert_eq!(world.later(1).count("PatchJobStatus"), 1, "{end}");
        assert!(world.counts().ends_with("T10"), "{end}: {}", world.counts());
        assert_eq!(die(&mut world, 20..30), 1, "only the one that ends it: {end}");
        assert_eq!(world.conditions(), end);
    }
}

/// The condition that announces the failure has a reason, and the final event repeats it.
#[test]
fn the_end_is_told_with_the_reason_that_somebody_gave() {
    for (reason, told) in [("Mine", "Mine"), ("BackoffLimitExceeded", "BackoffLimitExceeded"), ("", "Failed")]
    {
        let mut world = World::new(json!({"parallelism": 1, "completions": 1}));
        world.job.status.start_time = Some(at(-10));
        let target = JobCondition {
            kind: "FailureTarget".into(),
            status: "True".into(),
            reason: reason.into(),
            message: "because".into(),
            last_probe_time: None,
            last_transition_time: Some(at(-5)),
        };
        world.job.status.conditions.push(target);
        let decision = world.judge();
        let notes = decision.verdict.actions().iter().filter_map(|action| match action {
            Step::Mention(note) => Some((&*note.reason, note.message.as_str(), note.kind)),
            _ => None,
        });
        assert_eq!(notes.collect::<Vec<_>>(), [(told, "because", EventType::Warning)]);
    }
}

/// TestDelayTerminalPhaseCondition, first case.
#[test]
fn a_job_has_failed_only_when_its_last_pod_has_ended() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "backoffLimit": 0}));
    world.blocks_new_pods = true;
    world.settle();
    world.end(0, PodPhase::Failed);
    world.later(2);
    assert_eq!(world.counts(), "A0 R0 S0 F2 T1");
    assert_eq!(world.conditions(), "FailureTarget(BackoffLimitExceeded)");
    let Verdict::Ignore(why) = world.judge().verdict else { panic!() };
    assert!(why.to_string().contains("waits for these pods to end: pod j-"), "{why}");
    world.end(1, PodPhase::Succeeded);
    world.later(2);
    assert_eq!(world.counts(), "A0 R0 S0 F2 T0");
    assert_eq!(world.conditions(), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)");
}

/// TestDelayTerminalPhaseCondition, second case.
#[test]
fn an_elastic_job_scaled_down_is_complete_only_when_the_surplus_has_ended() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}));
    world.blocks_new_pods = true;
    world.settle();
    let zero = world.active_at(0);
    world.end(zero, PodPhase::Succeeded);
    world.later(2);
    world.job.spec.parallelism = Some(1);
    world.job.spec.completions = Some(1);
    world.settle().later(2);
    assert_eq!(world.counts(), "A0 R0 S1 F0 T1");
    assert_eq!(world.job.status.completed_indexes, "0");
    assert_eq!(world.conditions(), "SuccessCriteriaMet(CompletionsReached)");
    world.unblock();
    world.later(2);
    assert_eq!(world.conditions(), "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)");
}

#[test]
fn an_elastic_job_scaled_down_and_up_runs_the_dropped_indexes_again() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"}));
    world.settle();
    let two = world.active_at(2);
    world.end(two, PodPhase::Succeeded);
    world.later(2);
    assert_eq!(world.job.status.completed_indexes, "2");
    (world.job.spec.parallelism, world.job.spec.completions) = (Some(2), Some(2));
    world.later(2);
    assert_eq!(
        (world.job.status.completed_indexes.as_str(), world.counts().as_str()),
        ("", "A2 R0 S0 F0 T0")
    );
    (world.job.spec.parallelism, world.job.spec.completions) = (Some(4), Some(4));
    world.later(2);
    assert_eq!(world.active_indexes(), "0-3");
}

#[test]
fn suspend_and_resume() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 4}));
    world.settle();
    world.job.spec.suspend = true;
    world.later(5);
    assert_eq!(world.counts(), "A0 R0 S0 F0 T0");
    assert_eq!(world.conditions(), "Suspended(JobSuspended)");
    assert_eq!(world.job.status.start_time, None);
    world.job.spec.suspend = false;
    world.later(5).later(2);
    assert_eq!((world.counts().as_str(), world.conditions().as_str()), ("A2 R0 S0 F0 T0", ""));
    assert_eq!(world.job.status.start_time, Some(at(10)));
    let suspended = world.job.status.conditions.iter().find(|c| c.kind == "Suspended").unwrap();
    assert_eq!((suspended.status.as_str(), suspended.reason.as_str()), ("False", "JobResumed"));
}

/// The bug of the built-in controller in 1.37.1: its last write is refused because the start time is gone.
#[test]
fn a_suspended_job_that_reaches_its_end_has_a_start_time() {
    let mut world = World::new(
        json!({"parallelism": 1, "completions": 1, "podReplacementPolicy": "Failed", "backoffLimit": 0}),
    );
    world.blocks_new_pods = true;
    for (phase, end) in [
        (PodPhase::Succeeded, "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)"),
        (PodPhase::Failed, "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)"),
    ] {
        let mut world = world.clone();
        world.settle();
        world.delete(0);
        world.later(2);
        world.job.spec.suspend = true;
        world.later(2);
        assert_eq!(world.job.status.start_time, None);
        world.end(0, phase);
        world.later(2);
        assert_eq!(world.conditions(), format!("Suspended(JobSuspended) {end}"));
        assert_eq!(world.job.status.start_time, Some(at(0)), "when its oldest pod was made");
    }
    world.settle();
}

#[test]
fn backoff_doubles_from_the_moment_a_pod_ended_and_a_success_forgives() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 3}));
    world.settle();
    for wait in [10, 20, 40] {
        let last = world.pods.len() - 1;
        world.end(last, PodPhase::Failed);
        let until = world.now.checked_add(jiff::SignedDuration::from_secs(wait)).unwrap();
        world.later(2);
        assert_eq!(world.judge().verdict.why(), &JobWhy::BackingOff { until });
        assert_eq!(world.judge().verdict.wake_at(), Some(until));
        assert_eq!(world.judge_from_outside(), world.judge(), "after {wait}s");
        let mut cleaned = world.clone();
        cleaned.pods.drain(..last);
        assert_eq!(cleaned.judge_from_outside(), world.judge(), "after {wait}s, of the last pod alone");
        world.later(wait - 3);
        assert_eq!(world.open().len(), 0, "after {wait}s all but one");
        world.later(1).later(2);
        assert_eq!(world.open().len(), 1, "after {wait}s");
    }
    let last = world.pods.len() - 1;
    world.end(last, PodPhase::Succeeded);
    world.later(2);
    assert_eq!(world.open().len(), 1, "no wait after a success");
    let last = world.pods.len() - 1;
    world.now = world.now.checked_add(jiff::SignedDuration::from_secs(1)).unwrap();
    world.end(last, PodPhase::Failed);
    world.settle();
    let until = world.now.checked_add(jiff::SignedDuration::from_secs(10)).unwrap();
    assert_eq!(world.judge().verdict.why(), &JobWhy::BackingOff { until }, "and the first wait again");
    assert_eq!(world.judge_from_outside().verdict.why(), &JobWhy::BackingOff { until });
}

/// A pod that was not needed any more has not failed, however it ended.
#[test]
fn who_comes_by_knows_failures_from_pods_that_were_let_go() {
    for (policy, deleted) in [("Failed", false), ("Failed", true), ("TerminatingOrFailed", true)] {
        let spec = json!({
            "parallelism": 3, "completions": 3, "completionMode": "Indexed", "podReplacementPolicy": policy,
        });
        let mut world = World::new(spec);
        world.blocks_new_pods = true;
        world.settle().later(5);
        if deleted {
            world.delete(1);
        }
        if policy == "Failed" {
            world.end(1, PodPhase::Failed);
        }
        world.later(2);
        assert!(!world.pods[1].is_tracked(), "{policy} {deleted}");
        assert_eq!(world.judge_from_outside(), world.judge(), "{policy} {deleted}");
        assert_eq!(world.judge().verdict.why(), &JobWhy::BackingOff { until: at(15) }, "{policy} {deleted}");
    }
    let mut suspended = World::new(json!({"parallelism": 1, "completions": 1}));
    suspended.blocks_new_pods = true;
    suspended.settle();
    suspended.job.spec.suspend = true;
    suspended.settle();
    suspended.end(0, PodPhase::Failed);
    suspended.job.spec.suspend = false;
    let verdict = suspended.judge_from_outside().verdict;
    assert_eq!(verdict.why().code(), "NeedsPods", "{verdict:?}");
}

#[test]
fn a_failure_that_was_deleted_and_gone_still_delays_the_next_pod() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 1}));
    world.settle();
    world.delete(0);
    world.later(2);
    assert_eq!((world.pods.len(), world.counts().as_str()), (0, "A0 R0 S0 F1 T0"));
    assert_eq!(world.judge().verdict.wake_at(), Some(at(10)));
    world.later(8).later(2);
    assert_eq!(world.counts(), "A1 R0 S0 F1 T0");
}

#[test]
fn a_deadline_ends_a_job_but_not_while_it_is_suspended() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 1, "activeDeadlineSeconds": 30}));
    world.settle();
    assert_eq!(world.judge().verdict.wake_at(), Some(at(30)));
    world.later(29);
    assert_eq!(world.conditions(), "");
    let mut suspended = world.clone();
    suspended.job.spec.suspend = true;
    suspended.later(3600);
    assert_eq!(suspended.conditions(), "Suspended(JobSuspended)");
    world.later(1).later(2);
    assert_eq!(world.conditions(), "FailureTarget(DeadlineExceeded) Failed(DeadlineExceeded)");
    assert_eq!(world.counts(), "A0 R0 S0 F1 T0");
}

#[test]
fn restarts_in_place_count_against_the_limit() {
    let template = json!({"spec": {"restartPolicy": "OnFailure", "containers": []}});
    for (limit, restarts, fails) in [(0, 0, false), (0, 1, true), (2, 1, false), (2, 2, true), (1, 3, true)] {
        let mut world =
            World::new(json!({"parallelism": 1, "backoffLimit": limit, "template": template})).with("a");
        world.pod(0).restarts = restarts;
        world.settle();
        assert_eq!(!world.conditions().is_empty(), fails, "limit {limit}, {restarts} restarts");
    }
}

#[test]
fn many_ended_pods_are_written_down_in_portions() {
    let mut world = World::new(json!({"parallelism": 10, "completions": 100})).with(&"s ".repeat(25));
    world.policy.max_uncounted_pods = 10;
    world.settle();
    for _ in 0..6 {
        world.later(2);
    }
    assert_eq!(world.counts(), "A10 R0 S25 F0 T0");
    assert!(world.listed.values().all(|n| *n == 1), "{:?}", world.listed);
}

#[test]
fn counters_wait_for_each_other_and_conditions_do_not() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 3})).with("a a a");
    world.settle();
    world.end(0, PodPhase::Succeeded);
    world.settle();
    assert_eq!(world.judge().verdict.wake_at(), Some(at(1)), "the status was written at 0");
    world.end(1, PodPhase::Succeeded);
    world.end(2, PodPhase::Succeeded);
    world.settle();
    assert_eq!(world.conditions(), "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)");
    assert_eq!(
        world.count("PatchJobStatus"),
        2,
        "the one that was written down is counted with the last ones"
    );
}

#[test]
fn pods_are_made_in_growing_groups() {
    let world = World::new(json!({"parallelism": 100, "completions": 100}));
    assert_eq!(sizes(&world), [1, 2, 4, 8, 16, 32, 37]);
    let mut world = World::new(json!({"parallelism": 20, "completions": 20})).with("a a a a");
    assert_eq!(sizes(&world), [4, 8, 4], "four have shown that they are let in");
    world.memory.creation_paused_until = Some(at(-1));
    assert_eq!(sizes(&world), [1, 2, 4, 8, 1], "and then one was refused");
}

/// The author of a template also sets the number of pods: together they must fit into memory.
#[test]
fn of_large_pods_few_are_made_in_one_round() {
    let template = |bytes: usize| {
        let env = json!([{"name": "A", "value": "x".repeat(bytes)}]);
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work", "env": env}]}})
    };
    for (bytes, expected) in [(700_000, vec![1, 1]), (3_000_000, vec![1]), (1000, vec![1, 2, 3])] {
        let mut world = World::new(json!({"parallelism": 6, "completions": 6, "template": template(bytes)}));
        assert_eq!(sizes(&world), expected, "{bytes}");
        world.settle();
        assert_eq!(world.open().len(), 6, "{bytes}: the others come in the next rounds");
    }
}

/// The sizes of the groups of concurrent steps, in order.
fn sizes(world: &World) -> Vec<usize> {
    world.judge().verdict.actions().iter().map(|a| a.steps().len()).collect()
}

/// The writes of one decision, as name and number.
fn look(world: &mut World) -> Vec<(&'static str, usize)> {
    world.writes.clear();
    for action in world.judge().verdict.actions() {
        world.carry_out(action);
    }
    let groups = world.writes.chunk_by(|one, other| one == other);
    groups.map(|group| (group[0], group.len())).collect()
}

#[test]
fn a_job_of_many_pods_tells_of_its_start_after_the_first_of_them() {
    let mut world = World::new(json!({"parallelism": 25, "completions": 25, "suspend": true}));
    world.settle();
    assert_eq!(world.conditions(), "Suspended(JobSuspended)");
    world.job.spec.suspend = false;
    world.policy.max_pods_at_once = 10;
    assert_eq!(look(&mut world), [("CreatePod", 10)]);
    assert_eq!(look(&mut world), [("PatchJobStatus", 1)], "that it goes on, and since when");
    assert_eq!((world.counts().as_str(), world.conditions().as_str()), ("A10 R0 S0 F0 T0", ""));
    assert_eq!(world.job.status.start_time, Some(at(0)));
    assert_eq!(look(&mut world), [("CreatePod", 10)]);
    assert_eq!(look(&mut world), [("CreatePod", 5)], "counters that were written just now can wait");
    world.later(1);
    assert_eq!(world.counts(), "A25 R0 S0 F0 T0");
}

/// At every decision, all pods of the previous decision have ended.
#[test]
fn a_job_whose_pods_end_as_fast_as_they_are_made_is_counted_all_the_same() {
    for mode in ["NonIndexed", "Indexed"] {
        let mut world = World::new(json!({"parallelism": 10, "completions": 1000, "completionMode": mode}));
        let mut status_writes = 0;
        for tenth in 1..=50 {
            world.now = world.now.checked_add(jiff::SignedDuration::from_millis(100)).unwrap();
            let writes = look(&mut world);
            status_writes += writes.iter().filter(|(name, _)| *name == "PatchJobStatus").count();
            for position in world.open() {
                world.end(position, PodPhase::Succeeded);
            }
            let behind = world.pods.iter().filter(|pod| pod.is_tracked()).count();
            assert!(behind <= 120, "{mode}, look {tenth}: {behind} pods wait to be counted");
        }
        assert!(
            world.job.status.start_time.is_some() && world.job.status.succeeded >= 200,
            "{}",
            world.counts()
        );
        assert!(status_writes <= 12, "{mode}: {status_writes} in five seconds");
    }
}

#[test]
fn a_refused_pod_is_not_asked_for_again_at_once_and_the_status_goes_on() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 3})).with("a");
    world.memory.creation_paused_until = Some(at(5));
    world.settle();
    assert_eq!((world.count("CreatePod"), world.counts().as_str()), (0, "A1 R0 S0 F0 T0"));
    assert_eq!(world.judge().verdict.wake_at(), Some(at(5)));
    world.later(5);
    assert_eq!(world.count("CreatePod"), 2);
}

#[test]
fn a_view_that_has_not_seen_our_pods_asks_for_the_same_names() {
    let world = World::new(json!({"parallelism": 3, "completions": 9, "completionMode": "Indexed"}));
    let names = |world: &World| -> Vec<String> {
        let steps = world.judge().verdict.actions().to_vec().into_iter().flat_map(|a| a.steps().to_vec());
        steps.filter_map(|a| if let Step::CreatePod { name, .. } = a { Some(name) } else { None }).collect()
    };
    let first = names(&world);
    assert_eq!(first.len(), 3);
    assert_eq!(names(&world.clone()), first);
    let mut settled = world.clone();
    settled.settle();
    settled.end(0, PodPhase::Failed);
    settled.later(60);
    assert_eq!(settled.pods.len(), 4);
    assert_ne!(settled.pods[3].pod.name, settled.pods[0].pod.name, "a name in use is not used again");
    let mut taken = world.clone();
    taken.memory.taken_names.insert(first[0].clone());
    assert_ne!(names(&taken)[0], first[0], "nor one that somebody else has");
}

/// Searching every name from the first number on would take minutes.
#[test]
fn many_pods_are_given_names_as_quickly_as_few() {
    let mut world = World::new(json!({"parallelism": 50_000, "completions": 50_000}));
    world.policy.max_pods_at_once = usize::MAX;
    let decision = world.judge();
    let names = decision.verdict.actions().iter().flat_map(Step::steps).map(|step| match step {
        Step::CreatePod { name, .. } => name.as_str(),
        other => panic!("{other}"),
    });
    assert_eq!(names.collect::<std::collections::BTreeSet<_>>().len(), 50_000);
}

#[test]
fn a_pod_is_made_as_users_know_it() {
    let mut world = World::new(json!({
        "parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 2,
        "template": {
            "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}, "finalizers": ["example.com/hold"]},
            "spec": {
                "initContainers": [{"name": "init"}],
                "containers": [{"name": "one", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]}, {"name": "two"}],
            },
        },
    }));
    world.settle();
    let pod = &world.created[1];
    let metadata = &pod["metadata"];
    let name = metadata["name"].as_str().unwrap();
    assert!(name.starts_with("j-1-") && name.len() == 9, "{name}");
    assert_eq!(metadata["labels"], json!({"app": "x", "batch.kubernetes.io/job-completion-index": "1"}));
    assert_eq!(
        metadata["annotations"],
        json!({"a": "b", "batch.kubernetes.io/job-completion-index": "1", "batch.kubernetes.io/job-index-failure-count": "0"})
    );
    assert_eq!(metadata["finalizers"], json!(["example.com/hold", "job.salvor.dev/tracking"]));
    let owner = &metadata["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("job-uid"), &json!(true)));
    assert_eq!(pod["spec"]["hostname"], "j-1");
    let index = json!([{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {
        "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]);
    assert_eq!(
        pod["spec"]["containers"][0]["env"],
        json!([{"name": "JOB_COMPLETION_INDEX", "value": "mine"}])
    );
    assert_eq!(pod["spec"]["containers"][1]["env"], index);
    assert_eq!(pod["spec"]["initContainers"][0]["env"], index);
}

#[test]
fn a_long_name_leaves_room_for_the_index_and_the_end() {
    for (mode, length, prefix) in [
        ("Indexed", 55, format!("{}-0-", "n".repeat(55))),
        ("Indexed", 56, format!("{}-0-", "n".repeat(55))),
        ("Indexed", 63, format!("{}-0-", "n".repeat(55))),
        ("NonIndexed", 57, format!("{}-", "n".repeat(57))),
        ("NonIndexed", 63, "n".repeat(58)),
    ] {
        let mut world = World::new(json!({"parallelism": 1, "completions": 1, "completionMode": mode}));
        std::sync::Arc::make_mut(&mut world.job.job).name = "n".repeat(length);
        world.settle();
        let name = world.created[0]["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with(&prefix) && name.len() == prefix.len() + 5, "{mode} {length}: {name}");
    }
    let mut world = World::new(json!({"parallelism": 101, "completions": 101, "completionMode": "Indexed"}));
    std::sync::Arc::make_mut(&mut world.job.job).name = "n".repeat(63);
    world.settle();
    let name = world.created[100]["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with(&format!("{}-100-", "n".repeat(53))) && name.len() == 63, "{name}");
}

fn labelled_mine() -> Selected {
    Selected::Unasked([("mine", "yes")].into_iter().collect())
}

#[test]
fn pods_come_and_go_with_the_selector() {
    let mut world =
        World::new(json!({"parallelism": 2, "completions": 2, "selector": {"matchLabels": {"mine": "yes"}}}));
    let give = |labelled: bool, world: &mut World| {
        world.add("a", None);
        let mut pod = world.pods.pop().unwrap();
        pod.pod.uid = format!("{}{}", pod.pod.uid, if labelled { "-in" } else { "-out" }).into();
        pod.tracking = (!labelled).then_some(Tracking::Ours);
        if labelled {
            pod.selected = labelled_mine();
        }
        pod
    };
    let found = give(true, &mut world);
    let lost = give(false, &mut world);
    world.strays.push(found);
    world.pods.push(lost);
    world.writes.clear();
    let decision = world.judge();
    assert_eq!(decision.verdict.why().code(), "Claiming");
    for action in decision.verdict.actions() {
        world.carry_out(action);
    }
    assert_eq!(world.writes, ["ReleasePod", "AdoptPod"]);
    assert_eq!((world.pods.len(), world.pods[0].is_tracked()), (1, true));
    assert!(!world.strays[0].is_tracked());
}

#[test]
fn a_job_that_is_being_deleted_takes_no_pod_in_and_lets_none_out() {
    let mut world = World::new(json!({"parallelism": 1, "selector": {"matchLabels": {"mine": "yes"}}}));
    world.add("a", None);
    let mut stray = world.pod(0).clone();
    stray.selected = labelled_mine();
    world.strays.push(stray);
    world.job.deleting = true;
    world.settle();
    assert_eq!(world.writes, ["PatchJobStatus", "RemoveFinalizer"], "its pod goes with it");
}

#[test]
fn a_pod_keeps_the_finalizer_that_it_is_adopted_with() {
    let mut world =
        World::new(json!({"parallelism": 2, "selector": {"matchLabels": {"mine": "yes"}}})).with("a a");
    let given = [Some(Tracking::BuiltIn), None];
    for (pod, tracking) in world.pods.iter_mut().zip(given) {
        pod.selected = labelled_mine();
        pod.tracking = tracking;
    }
    world.strays = std::mem::take(&mut world.pods);
    let decision = world.judge();
    let adopted = decision.verdict.actions()[0].steps().iter().map(|step| match step {
        Step::AdoptPod { finalizer, .. } => *finalizer,
        other => panic!("{other}"),
    });
    let expected = [Tracking::BuiltIn, Tracking::Ours].map(Tracking::finalizer);
    assert_eq!(adopted.collect::<Vec<_>>(), expected);
}

#[test]
fn pods_of_a_job_that_is_gone_are_let_go_after_a_second_look() {
    let mut world = World::new(json!({})).with("a f s");
    world.pod(2).tracking = Some(Tracking::BuiltIn);
    for (anothers, let_go) in [(false, 3), (true, 2)] {
        let tracked = world.pods.iter().filter_map(PodView::tracked);
        let decision = decide_leftovers(tracked, anothers, &world.policy);
        let actions = decision.verdict.actions();
        assert_eq!(
            actions[0].steps().len(),
            let_go,
            "another controller may track by the built-in finalizer"
        );
        assert!(actions[0].needs_a_second_look());
    }
}

#[test]
fn only_who_stands_in_for_the_built_in_controller_goes_by_its_finalizer() {
    const OURS: &str = "job.salvor.dev/tracking";
    const BUILT_IN: &str = "batch.kubernetes.io/job-tracking";
    for (finalizers, beside_it, in_its_place) in [
        (vec![OURS], Some(OURS), Some(OURS)),
        (vec![BUILT_IN], None, Some(BUILT_IN)),
        (vec![BUILT_IN, OURS], Some(OURS), Some(OURS)),
        (vec!["example.com/hold"], None, None),
    ] {
        let finalizers: Vec<String> = finalizers.into_iter().map(Into::into).collect();
        let tracked_by = |stands_in| Tracking::of(&finalizers, stands_in).map(Tracking::finalizer);
        assert_eq!((tracked_by(false), tracked_by(true)), (beside_it, in_its_place), "{finalizers:?}");
    }
}

#[test]
fn pods_that_the_built_in_controller_made_are_counted_and_let_go() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 4})).with("s f a a");
    world.policy.unmanaged_jobs = true;
    world.job.spec.managed_by = None;
    world.pods.iter_mut().for_each(|pod| pod.tracking = Some(Tracking::BuiltIn));
    world.later(2).later(2);
    assert_eq!((world.counts().as_str(), world.count("CreatePod")), ("A3 R0 S1 F1 T0", 1));
    let tracking: Vec<_> = world.pods.iter().map(|pod| pod.tracking).collect();
    let (built_in, ours) = (Some(Tracking::BuiltIn), Some(Tracking::Ours));
    assert_eq!(tracking, [None, None, built_in, built_in, ours]);
}

#[test]
fn a_finished_job_lives_for_its_time() {
    let mut world =
        World::new(json!({"parallelism": 1, "completions": 1, "ttlSecondsAfterFinished": 30})).with("s");
    world.settle();
    assert!(matches!(world.judge().verdict, Verdict::Ignore(_)), "Kubernetes does it");
    world.policy.delete_finished = true;
    assert_eq!(world.judge().verdict.wake_at(), Some(at(30)));
    world.later(30);
    assert!(world.job.deleting);
}

#[test]
fn jobs_of_others_are_left_alone() {
    let mut world = World::new(json!({"parallelism": 1}));
    for (managed_by, unmanaged, ours) in [
        (Some("salvor.dev/job-controller"), false, true),
        (Some("kubernetes.io/job-controller"), true, true),
        (Some("kubernetes.io/job-controller"), false, false),
        (Some("example.com/x"), true, false),
        (None, false, false),
        (None, true, true),
    ] {
        world.job.spec.managed_by = managed_by.map(Into::into);
        world.policy.unmanaged_jobs = unmanaged;
        assert_eq!(!world.judge().verdict.actions().is_empty(), ours, "{managed_by:?} {unmanaged}");
    }
}

/// Each of these was once dropped, and with it the record of finished work.
#[test]
fn a_job_of_which_something_cannot_be_read_is_held_until_it_is_put_right() {
    let garbage = [
        (json!({"completedIndexes": "0-x,2"}), "status.completedIndexes", "0-x,2"),
        (json!({"completedIndexes": "0,,2"}), "status.completedIndexes", "0,,2"),
        (json!({"failedIndexes": "1-0"}), "status.failedIndexes", "1-0"),
        (json!({"failed": -1}), "status.failed", "-1"),
        (json!({"succeeded": -2}), "status.succeeded", "-2"),
        (
            json!({"uncountedTerminatedPods": {"failed": ["a"], "succeeded": ["a"]}}),
            "status.uncountedTerminatedPods",
            "a",
        ),
        (json!({"uncountedTerminatedPods": {"failed": [""]}}), "status.uncountedTerminatedPods", ""),
    ];
    for (garbage, field, value) in garbage {
        let mut world = World::new(json!({
            "parallelism": 2, "completions": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 2,
        }))
        .with("s0 s2 a3");
        world.settle().later(2);
        assert_eq!(
            (world.job.status.completed_indexes.as_str(), world.active_indexes().as_str()),
            ("0,2", "1,3")
        );
        let right = world.job.status.clone();
        let mut status = serde_json::to_value(&right).unwrap();
        for (key, value) in garbage.as_object().unwrap() {
            status[key] = value.clone();
        }
        world.job.status = serde_json::from_value(status).unwrap();
        world.touch_job();
        world.writes.clear();
        let three = world.active_at(3);
        world.end(three, PodPhase::Succeeded);
        world.later(100);
        assert_eq!(world.writes, [""; 0], "{garbage}");
        let Verdict::Ignore(JobWhy::UnreadableStatus(why)) = world.judge().verdict else {
            panic!("{garbage}")
        };
        assert_eq!((why.field.as_str(), why.value.as_str()), (field, value));
        assert_eq!(world.judge_from_outside(), world.judge());
        let told: Vec<_> = world.told.iter().filter(|(reason, _)| reason == "UnreadableStatus").collect();
        assert_eq!(told.len(), 1, "{:?}", world.told);
        assert!(told[0].1.contains(&format!("{field} is {value:?}")), "{told:?}");
        world.job.status = right;
        world.touch_job();
        world.later(2).later(2);
        assert_eq!(world.job.status.completed_indexes, "0,2,3", "{garbage}");
        assert_eq!(
            (world.count("CreatePod"), world.active_indexes().as_str()),
            (0, "1"),
            "no work is done again"
        );
    }
}

#[test]
fn annotations_that_cannot_be_read_hold_a_job_too() {
    let spec =
        json!({"parallelism": 1, "completions": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 2});
    let mut world = World::new(spec);
    world.settle();
    let mut garbled = world.clone();
    garbled.job.used_names = Some("{".into());
    assert_eq!(garbled.judge_from_outside().verdict.why().code(), "UnreadableStatus");
    garbled.job.used_names = None;
    garbled.settle();
    assert_eq!(garbled.writes.last(), Some(&"PatchJobStatus"), "{:?}", garbled.writes);
    let unreadable = Unreadable::new("an annotation of the pod", "three", "a number is right");
    world.pod(0).unreadable = Some(Box::new(unreadable.clone()));
    world.end(0, PodPhase::Failed);
    world.later(100);
    assert_eq!(world.judge().verdict, Verdict::Ignore(JobWhy::UnreadableStatus(unreadable)));
    world.pod(0).unreadable = None;
    world.pod(0).earlier_failures.counted = 1;
    world.later(100);
    assert_eq!(
        world.created[1]["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"],
        "2"
    );
}

/// Unreadable data of a Job that is being deleted does not block its pods.
#[test]
fn a_job_that_is_held_can_be_deleted() {
    let mut world =
        World::new(json!({"parallelism": 2, "completionMode": "Indexed", "completions": 2})).with("a0 s1");
    world.job.status.completed_indexes = "x".into();
    world.job.deleting = true;
    world.settle();
    assert_eq!(world.writes, ["RemoveFinalizer", "RemoveFinalizer"]);
}

#[test]
fn an_unknown_mode_is_told_once() {
    let mut world = World::new(json!({"parallelism": 1, "completionMode": "Random"}));
    world.settle();
    let told = (
        "UnknownCompletionMode".to_owned(),
        "Skipped Job sync because completion mode is unknown".to_owned(),
    );
    assert_eq!(world.told, [told]);
    assert_eq!(world.writes, [""; 0]);
    assert_eq!(world.judge().verdict.name(), "Ignore");
    assert_eq!(world.judge_from_outside(), world.judge());
}

/// All in one second.
#[test]
fn every_suspension_and_resumption_is_told_by_a_name_of_its_own() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 1}));
    let mut names = std::collections::BTreeSet::new();
    let mut told = Vec::new();
    for suspend in [true, false, true, false] {
        world.job.spec.suspend = suspend;
        world.touch_job();
        while let Verdict::Act { actions, .. } = world.judge().verdict {
            for action in &actions {
                if let Step::Mention(note) = action
                    && ["Suspended", "Resumed"].contains(&&*note.reason)
                {
                    assert!(names.insert(note.name.clone()), "{} is taken", note.name);
                    told.push(note.reason.clone());
                }
                world.carry_out(action);
            }
        }
    }
    assert_eq!(told, ["Suspended", "Resumed", "Suspended", "Resumed"]);
}

#[test]
fn a_pod_that_cannot_be_deleted_holds_up_only_deletions() {
    let mut world = World::new(json!({"parallelism": 1, "completions": 5})).with("a a s");
    world.memory.deletion_paused_until = Some(at(5));
    world.settle();
    assert_eq!(
        (world.count("DeletePod"), world.counts().as_str()),
        (0, "A2 R0 S1 F0 T0"),
        "{:?}",
        world.writes
    );
    assert_eq!(world.judge().verdict.why(), &JobWhy::DeletionRefused { until: at(5) });
    assert_eq!(world.judge().verdict.wake_at(), Some(at(5)));
    world.later(5);
    assert_eq!(world.count("DeletePod"), 1);
}

/// However long a Job fails.
#[test]
fn what_is_remembered_of_failures_is_bounded() {
    let mut world = World::new(json!({"parallelism": 1, "backoffLimit": 100_000}));
    for number in 0..1500 {
        world.add("f", None);
        let mut pod = world.pods.pop().unwrap();
        pod.pod.uid = number.to_string().into();
        pod.finished = Some(at(number));
        world.memory.backoff.failed(&pod);
    }
    assert_eq!(world.memory.backoff.over_at(&world.policy), Some(at(1499 + 600)));
}
