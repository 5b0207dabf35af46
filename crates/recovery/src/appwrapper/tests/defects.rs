//! Defects of CodeFlare's controller that affect its users, each shown to be fixed.

use serde_json::json;

use super::super::components::Waves;
use super::*;

#[test]
fn grace_follows_admission_and_warmup() {
    let mut it = Cluster::job().annotate(&[
        ("admissionGracePeriodDuration", "9s"),
        ("warmupGracePeriodDuration", "9s"),
        ("failureGracePeriodDuration", "9s"),
    ]);
    it.view.suspend = false;
    it.run_for(17);
    assert_eq!(it.phase(), Phase::Running, "upstream resets at 9s");
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Resetting);
}

#[test]
fn a_pod_lost_in_mid_run_has_its_time_again() {
    let mut it = Cluster::job().running();
    it.run_for(3600);
    it.view.pods.remove(0);
    it.settle();
    assert_eq!(it.condition("PodsReady").0, "False");
    it.run_for(59);
    assert_eq!(it.code(), "AwaitingPods", "upstream resets at once");
    it.add_pod(0, PodPhase::Pending);
    it.run_for(200);
    assert_eq!(it.code(), "AwaitingPods", "it exists, so it has the warmup grace");
    it.set_pods(PodPhase::Running);
    it.run_for(600);
    assert_eq!((it.code(), it.view.status.resetting_count), ("Healthy", 0));
}

#[test]
fn a_job_that_fails_is_noticed_while_the_grace_of_a_failed_pod_runs() {
    let mut it = Cluster::job().running();
    it.set_pod(0, PodPhase::Failed);
    it.run_for(5);
    assert_eq!(it.code(), "Unhealthy");
    it.says(0, ComponentState::Failed { message: String::new() });
    it.settle();
    assert_eq!(it.phase(), Phase::Resetting);
    assert_eq!(it.view.status.resets[0].cause, "FailedComponent");
}

#[test]
fn the_pause_counts_from_the_end_of_the_deletion() {
    let mut it = Cluster::job().annotate(&[("retryPausePeriodDuration", "7s")]).running();
    it.stuck_objects = true;
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(100);
    assert_eq!(it.code(), "Deleting");
    it.view.components[0].seen = Seen::Absent { last: None };
    it.stuck_objects = false;
    it.run_for(6);
    assert_eq!((it.phase(), it.code()), (Phase::Resetting, "Pausing"));
    assert!(!it.holds("ResourcesDeployed") && it.holds("QuotaReserved"), "quota is kept in the pause");
    let message = "Resources deleted for resetting AppWrapper";
    assert_eq!(it.condition("ResourcesDeployed"), ("False", "Resetting", message));
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Resuming);
    assert_eq!(it.condition("ResourcesDeployed"), ("True", "Resuming", "Reset complete; resuming"));
}

#[test]
fn each_of_several_failures_in_a_row_has_its_grace_and_its_pause() {
    let mut it = Cluster::job().running();
    let mut resets = Vec::new();
    for round in 1..=3 {
        // The new pods fail before they were ever seen healthy.
        it.set_pods(PodPhase::Failed);
        it.settle();
        let failed = it.now;
        it.run_for(59);
        assert_eq!(it.phase(), Phase::Running, "round {round}");
        it.run_for(1);
        assert_eq!(it.phase(), Phase::Resetting, "round {round}");
        resets.push(it.now.duration_since(failed));
        it.run_for(89);
        assert_eq!(it.code(), "Pausing", "round {round}");
        it.run_for(3);
        assert_eq!(it.phase(), Phase::Running, "round {round}");
    }
    assert_eq!(resets, [secs(60); 3]);
}

#[test]
fn repeated_creation_failures_have_their_pause_each_time() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.create_error = Some(false);
    for round in 1..=3 {
        it.run_for(60);
        assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, round));
        it.run_for(89);
        assert_eq!(it.phase(), Phase::Resetting, "round {round}");
        it.run_for(1);
        assert_eq!(it.phase(), Phase::Resuming, "round {round}");
    }
    it.run_for(60);
    assert_eq!(it.phase(), Phase::Failed);
}

#[test]
fn deletion_on_failure_counts_once_and_from_the_failure() {
    let mut it = Cluster::job()
        .annotate(&[("deletionOnFailureGracePeriodDuration", "15s"), ("retryLimit", "1")])
        .running();
    // After an earlier reset, DeletingResources has been False for long.
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(92);
    assert_eq!(it.phase(), Phase::Running);
    it.set_pods(PodPhase::Running);
    it.run_for(500);
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(14);
    assert_eq!((it.phase(), it.code()), (Phase::Failed, "KeptAfterFailure"));
    assert!(it.holds("ResourcesDeployed") && it.holds("QuotaReserved"));
    it.run_for(1);
    assert!(!it.holds("ResourcesDeployed") && !it.holds("QuotaReserved"), "upstream waits twice");
}

#[test]
fn deletion_on_failure_does_not_disable_force() {
    let mut it = Cluster::job()
        .annotate(&[
            ("deletionOnFailureGracePeriodDuration", "15s"),
            ("retryLimit", "0"),
            ("forcefulDeletionGracePeriodDuration", "20s"),
        ])
        .running();
    it.stuck_pods = true;
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(15);
    assert_eq!(it.condition("DeletingResources"), ("True", "DeletionInitiated", ""));
    it.run_for(19);
    assert_eq!(it.view.pods.len(), 2);
    it.run_for(1);
    assert!(it.view.pods.is_empty());
    assert!(!it.holds("QuotaReserved"));
}

#[test]
fn success_ttl_counts_from_the_success() {
    let mut it = Cluster::job().annotate(&[("successTTLDuration", "8s")]).running();
    it.run_for(3600);
    it.set_pods(PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    it.run_for(7);
    assert_eq!((it.phase(), it.view.pods.len()), (Phase::Succeeded, 2), "upstream deletes at once");
    it.run_for(1);
    assert!(it.view.pods.is_empty() && !it.gone);
    let message = "Time to live after success of 8s expired";
    assert_eq!(it.condition("ResourcesDeployed"), ("False", "Succeeded", message));
    assert_eq!(it.code(), "Ended");
}

#[test]
fn a_job_between_two_waves_is_not_done() {
    let mut it = Cluster::job().running();
    it.set_pods(PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Running);
    assert!(it.holds("QuotaReserved"));
    let next = it.add_pod(0, PodPhase::Running);
    it.settle();
    it.set_pod(next, PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

/// A Job with four pods, one after another.
fn in_waves(succeeded: usize) -> Option<Waves> {
    let spec = json!({"spec": {"completions": 4, "parallelism": 1}, "status": {"succeeded": succeeded}});
    Waves::read(&job(), &spec)
}

#[test]
fn a_pod_of_a_later_wave_that_never_runs_is_a_cause() {
    let mut it = Cluster::of(&[(job(), 1)]).running();
    it.found(0).waves = in_waves(0);
    it.run_for(3_600);
    it.set_pod(0, PodPhase::Succeeded);
    let next = it.add_pod(0, PodPhase::Pending);
    it.found(0).waves = in_waves(1);
    it.settle();
    assert_eq!((it.condition("PodsReady").0, it.code()), ("False", "AwaitingPods"));
    it.run_for(300);
    assert_eq!(it.condition("Unhealthy").1, "InsufficientPodsReady");
    it.run_for(61);
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Resetting, 1));

    // The next pod is never created.
    let mut it = Cluster::of(&[(job(), 1)]).running();
    it.set_pod(0, PodPhase::Succeeded);
    it.found(0).waves = in_waves(1);
    it.run_for(119);
    assert_eq!((it.phase(), it.condition("Unhealthy").1), (Phase::Running, "InsufficientPodsReady"));
    it.run_for(2);
    assert_eq!(it.phase(), Phase::Resetting, "pod {next} of the other one");
}

#[test]
fn waves_that_follow_one_another_cost_no_writes() {
    let mut it = Cluster::of(&[(job(), 1)]).running();
    it.found(0).waves = in_waves(0);
    let before = it.writes;
    for wave in 0..3 {
        it.run_for(60);
        it.set_pod(wave, PodPhase::Succeeded);
        it.view.pods[wave].ended = Some(it.now);
        it.run_for(2);
        assert_eq!(it.code(), "AwaitingPods", "the Job has not counted it yet, and has no new pod");
        it.found(0).waves = in_waves(wave + 1);
        let next = it.add_pod(0, PodPhase::Pending);
        it.run_for(2);
        it.set_pod(next, PodPhase::Running);
        it.settle();
        assert_eq!((it.code(), it.writes), ("Healthy", before), "wave {wave}");
    }
    it.set_pod(3, PodPhase::Succeeded);
    it.view.pods[3].ended = Some(it.now);
    it.settle();
    assert_eq!(
        (it.code(), it.writes),
        ("Healthy", before),
        "nothing more is to run, and the Job is about to say so"
    );
    // A clock that is ahead does not delay the condition.
    it.found(0).waves = in_waves(1);
    it.view.pods.truncate(1);
    it.view.pods[0].ended = Some(crate::moments::after(it.now, secs(3_600)));
    it.settle();
    assert_eq!(it.condition("PodsReady").0, "False");
}

#[test]
fn a_failed_pod_that_was_replaced_neither_resets_nor_blocks_success() {
    let mut it = Cluster::job().running();
    it.set_pod(0, PodPhase::Failed);
    it.run_for(10);
    assert_eq!(it.code(), "Unhealthy");
    let replacement = it.add_pod(0, PodPhase::Running);
    it.run_for(3600);
    assert_eq!((it.code(), it.view.status.resetting_count), ("Healthy", 0));
    it.set_pod(1, PodPhase::Succeeded);
    it.set_pod(replacement, PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

#[test]
fn a_component_that_its_own_ttl_deletes_after_success_is_not_missing() {
    let mut it = Cluster::of(&[(job(), 1), (job(), 1)]).running();
    it.set_pod(0, PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    it.settle();
    it.lose(0);
    // The same for a process that starts later.
    it.view.components[0].seen = Seen::Absent { last: None };
    it.run_for(3600);
    assert_eq!(it.code(), "Healthy");
    it.set_pods(PodPhase::Succeeded);
    it.says(1, ComponentState::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

#[test]
fn a_job_with_a_ttl_of_zero_that_is_gone_when_we_look_has_succeeded() {
    let mut it = Cluster::job().running();
    it.says(0, ComponentState::Succeeded);
    it.lose(0);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

#[test]
fn a_job_that_ends_and_is_deleted_in_its_first_second_is_not_run_twice() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.settle();
    assert_eq!((it.phase(), it.code()), (Phase::Resuming, "JustCreated"));
    it.says(0, ComponentState::Succeeded);
    it.lose(0);
    it.run_for(5);
    assert_eq!(it.phase(), Phase::Succeeded);
    assert_eq!(it.deeds, ["create c0"]);
}

#[test]
fn what_was_seen_of_an_earlier_attempt_does_not_stand_for_a_new_one() {
    let mut it = Cluster::job().running();
    it.run_for(100);
    it.says(0, ComponentState::Failed { message: String::new() });
    let old = it.found(0).clone();
    it.settle();
    it.view.components[0].seen = Seen::Absent { last: Some(Last { object: Box::new(old), end: End::Told }) };
    it.run_for(95);
    assert_eq!((it.phase(), it.deeds.iter().filter(|it| *it == "create c0").count()), (Phase::Running, 2));
}

#[test]
fn a_job_that_its_own_ttl_deletes_after_failure_has_failed_and_was_not_deleted_by_a_user() {
    let mut it = Cluster::job().running();
    it.says(0, ComponentState::Failed { message: "BackoffLimitExceeded".into() });
    it.lose(0);
    it.settle();
    assert_eq!(it.phase(), Phase::Resetting);
    assert_eq!(it.view.status.resets[0].cause, "FailedComponent");
}

#[test]
fn pods_that_are_cleaned_up_on_success_are_not_missed() {
    let mut it = Cluster::of(&[(kind("kubeflow.org", "v1", "PyTorchJob"), 3)]).running();
    it.view.pods.clear();
    it.says(0, ComponentState::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

#[test]
fn a_jobset_that_is_completed_while_some_pods_end_is_not_reset() {
    let mut it = Cluster::of(&[(kind("jobset.x-k8s.io", "v1alpha2", "JobSet"), 3)]).running();
    it.set_pod(0, PodPhase::Succeeded);
    it.view.pods.iter_mut().skip(1).for_each(|pod| {
        pod.deletion = Some(Deletion { timestamp: at(99), grace_seconds: Some(30) });
    });
    it.says(0, ComponentState::Succeeded);
    it.run_for(600);
    assert_eq!((it.code(), it.holds("QuotaReserved")), ("Finishing", true), "pods still run: quota is kept");
    it.view.pods.truncate(1);
    it.settle();
    assert_eq!((it.phase(), it.deeds.len()), (Phase::Succeeded, 1), "the JobSet stays: {:?}", it.deeds);
    assert_eq!(it.condition("DeletingResources").0, "False");
    it.run_for(3_600);
    assert_eq!(it.code(), "KeptAfterSuccess");
}

/// A RayJob keeps its cluster, a JobSet its other Jobs. No controller ends these pods, so Salvor ends them before quota
/// is freed.
#[test]
fn pods_that_nobody_ends_after_success_are_ended_and_then_quota_is_free() {
    let service = || (kind("", "v1", "Service"), 0);
    let rayjob = || (kind("ray.io", "v1", "RayJob"), 2);
    for (kinds, origin_known) in
        [(vec![rayjob(), (job(), 1), service()], true), (vec![rayjob(), service()], false)]
    {
        let mut it = Cluster::of(&kinds).running();
        if !origin_known {
            it.view.pods.iter_mut().for_each(|pod| pod.component = None);
        }
        it.says(0, ComponentState::Succeeded);
        if kinds.len() == 3 {
            it.says(1, ComponentState::Succeeded);
            it.set_pod(2, PodPhase::Succeeded);
        }
        it.run_for(59);
        assert_eq!((it.code(), it.holds("DeletingResources")), ("Finishing", false));
        it.stuck_pods = true;
        it.run_for(2);
        assert_eq!(
            (it.code(), it.phase()),
            ("Finishing", Phase::Running),
            "its own controllers had their time"
        );
        let message = "All components are done; 2 pods have not ended";
        assert_eq!(it.condition("DeletingResources"), ("True", "DeletionInitiated", message));
        assert!(it.holds("QuotaReserved") && it.view.own_component(0).is_none());
        it.run_for(598);
        assert!(it.holds("QuotaReserved"), "pods are there until force is due");
        // Pods that were not deleted yet are deleted, with their own grace period.
        it.run_for(if origin_known { 3 } else { 33 });
        assert_eq!((it.phase(), it.holds("QuotaReserved")), (Phase::Succeeded, false));
        let deleted = it.deeds.iter().filter(|it| it.contains("delete object")).count();
        assert_eq!(deleted, 1, "the Job and the Service are kept for their time to live: {:?}", it.deeds);
        it.run_for(3_600);
        assert_eq!((it.code(), it.events.len()), ("KeptAfterSuccess", 0));
    }
}

/// Pods of a kind that does not report its end may still work, even if the expected number has succeeded.
#[test]
fn a_kind_without_a_word_is_not_done_while_a_pod_of_it_runs() {
    let mut it = Cluster::of(&[(kind("example.com", "v1", "Training"), 1)]).running();
    let more = it.add_pod(0, PodPhase::Running);
    it.set_pod(0, PodPhase::Succeeded);
    it.run_for(7_200);
    assert_eq!((it.phase(), it.code(), it.deeds.len()), (Phase::Running, "Healthy", 1));
    it.set_pod(more, PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

/// A user or another controller set it. Force is used only after a deletion had its full time.
#[test]
fn a_running_one_that_says_it_is_being_deleted_is_put_right() {
    let mut it = Cluster::job().running();
    it.view.status.set_deleting(it.now);
    it.run_for(5_000);
    assert_eq!((it.code(), it.condition("DeletingResources").0), ("Healthy", "False"));
}

#[test]
fn a_kind_without_a_word_succeeds_by_its_pods() {
    let mut it =
        Cluster::of(&[(kind("example.com", "v1", "Training"), 2), (kind("", "v1", "Service"), 0)]).running();
    it.set_pod(0, PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Running);
    it.set_pod(1, PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
}

#[test]
fn pods_of_one_component_do_not_stand_for_another() {
    let mut it = Cluster::of(&[(job(), 2), (kind("example.com", "v1", "Training"), 2)]).running();
    it.view.pods.retain(|pod| pod.component == Some(0));
    it.set_pods(PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    it.settle();
    assert_eq!((it.phase(), it.code()), (Phase::Running, "AwaitingPods"));
}

#[test]
fn a_node_lost_under_a_bare_pod_is_no_end() {
    let mut it = Cluster::of(&[(bare_pod(), 1)]).running();
    it.view.nodes.get_mut("n1").unwrap().unreachable = true;
    it.found(0).disruption = Some("DeletionByTaintManager".into());
    it.lose(0);
    it.run_for(95);
    it.set_pods(PodPhase::Running);
    it.settle();
    assert_eq!((it.phase(), it.view.status.resetting_count), (Phase::Running, 0));
}

#[test]
fn a_missing_component_is_judged_once_more_on_what_is_read_live() {
    // The cache does not have the Job yet; the second look does.
    let mut it = Cluster::job().running();
    let seen = it.view.components[0].seen.clone();
    it.view.components[0].seen = Seen::Absent { last: None };
    let first = it.judge();
    assert!(first.verdict.actions()[0].needs_a_second_look());
    it.view.components[0].seen = seen;
    let second = it.judge();
    assert!(second.verdict.actions().is_empty());
}

#[test]
fn a_second_look_a_moment_later_means_the_same() {
    let mut it = Cluster::job().running();
    it.says(0, ComponentState::Failed { message: "one".into() });
    let first = it.judge();
    it.after(3);
    it.says(0, ComponentState::Failed { message: "two".into() });
    let second = it.judge();
    assert_ne!(first.verdict.actions()[0], second.verdict.actions()[0]);
    assert!(first.verdict.actions()[0].means_the_same(&second.verdict.actions()[0]));
    it.view.suspend = true;
    assert!(!first.verdict.actions()[0].means_the_same(&it.judge().verdict.actions()[0]));
}

#[test]
fn grace_periods_are_never_cut_short_by_rounding() {
    let mut it = Cluster::job().running();
    it.now = it.now.checked_add(SignedDuration::from_millis(700)).unwrap();
    it.set_pod(0, PodPhase::Failed);
    let noticed = it.now;
    it.settle();
    let until = it.judge().verdict.wake_at().unwrap();
    let waited = until.duration_since(noticed);
    assert!(waited >= secs(60) && waited < secs(61), "{waited:?}");
}
