//! Suspension and deletion in every phase, and AppWrappers that must not be touched.

use super::*;

/// An AppWrapper in each phase, with its pods if it has some.
pub(super) fn in_phase(phase: &Phase) -> Cluster {
    let delay = [("deletionOnFailureGracePeriodDuration", "1h"), ("retryPausePeriodDuration", "1h")];
    let running = || Cluster::job().annotate(&delay).running();
    match phase {
        Phase::Empty => Cluster::job(),
        Phase::Suspended => {
            let mut it = Cluster::job();
            it.settle();
            it
        }
        Phase::Resuming => {
            let mut it = Cluster::job();
            it.view.suspend = false;
            it.settle();
            it
        }
        Phase::Running => running(),
        Phase::Resetting => {
            let mut it = running();
            it.says(0, ComponentState::Failed { message: String::new() });
            it.settle();
            it
        }
        Phase::Suspending => {
            let mut it = running();
            it.stuck_objects = true;
            it.view.suspend = true;
            it.settle();
            it
        }
        Phase::Succeeded => {
            let mut it = running();
            it.set_pods(PodPhase::Succeeded);
            it.says(0, ComponentState::Succeeded);
            it.settle();
            it
        }
        Phase::Failed => {
            let mut it = running();
            it.policy.retry_limit = 0;
            it.says(0, ComponentState::Failed { message: String::new() });
            it.settle();
            it
        }
        Phase::Terminating => {
            let mut it = running();
            it.stuck_objects = true;
            it.view.deleting = true;
            it.settle();
            it
        }
        Phase::Unknown(_) => unreachable!(),
    }
}

/// Removes whatever kept deleted objects.
fn unstick(it: &mut Cluster) {
    it.stuck_objects = false;
    for component in &mut it.view.components {
        if matches!(&component.seen, Seen::Found(found) if found.is_deleting()) {
            component.seen = Seen::Absent { last: None };
        }
    }
}

#[test]
fn each_phase_is_reached() {
    for phase in Phase::ALL {
        assert_eq!(in_phase(&phase).phase(), phase);
    }
}

#[test]
fn suspend_in_any_phase_leaves_nothing() {
    for phase in Phase::ALL {
        let mut it = in_phase(&phase);
        it.view.suspend = true;
        it.settle();
        unstick(&mut it);
        it.settle();
        let ended = match phase {
            Phase::Succeeded | Phase::Failed => phase.clone(),
            Phase::Terminating => {
                assert!(it.gone);
                continue;
            }
            Phase::Empty
            | Phase::Suspended
            | Phase::Resuming
            | Phase::Running
            | Phase::Resetting
            | Phase::Suspending
            | Phase::Unknown(_) => Phase::Suspended,
        };
        assert_eq!(it.phase(), ended, "suspended in {phase}");
        assert!(it.view.pods.is_empty(), "suspended in {phase}");
        assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"), "suspended in {phase}");
    }
}

#[test]
fn deletion_in_any_phase_leaves_nothing() {
    for phase in Phase::ALL {
        let mut it = in_phase(&phase);
        it.view.deleting = true;
        it.settle();
        unstick(&mut it);
        let last = it.settle();
        let never_resumed = [Phase::Empty, Phase::Suspended].contains(&phase);
        assert_eq!(it.gone, !never_resumed, "deleted in {phase}: {last:?}");
        if never_resumed {
            assert_eq!(it.code(), "BeingDeleted", "the API server removes it");
        }
        assert!(it.view.pods.is_empty(), "deleted in {phase}");
    }
}

#[test]
fn suspend_and_resume_before_anybody_looked_ends_in_running_again() {
    let mut it = in_phase(&Phase::Suspending);
    it.view.suspend = false;
    unstick(&mut it);
    it.settle();
    it.run_for(2);
    assert!(it.phases.contains(&Phase::Suspended), "what was begun is brought to its end: {:?}", it.phases);
    assert_eq!(it.phase(), Phase::Running);
}

#[test]
fn suspending_a_failed_one_ends_the_time_for_looking_at_it() {
    let mut it = in_phase(&Phase::Failed);
    let key = "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration";
    let message = format!("{key} has value 1h0m0s");
    assert_eq!(it.condition("DeletingResources"), ("False", "DeletionPaused", message.as_str()));
    it.view.suspend = true;
    it.settle();
    let message = "Kueue forced resource deletion by suspending AppWrapper";
    assert_eq!(it.condition("ResourcesDeployed"), ("False", "Failed", message));
    assert_eq!(it.phase(), Phase::Failed);
}

#[test]
fn what_others_manage_is_not_touched_in_any_phase_even_when_deleted() {
    for phase in Phase::ALL {
        for deleting in [false, true] {
            let mut it = in_phase(&phase);
            it.view.managed_by = Some("kueue.x-k8s.io/multikueue".into());
            it.view.deleting = deleting;
            it.view.suspend = !it.view.suspend;
            assert!(matches!(it.judge().verdict, Verdict::Ignore(AppWrapperWhy::NotOurs { .. })), "{phase}");
        }
    }
    let mut it = Cluster::job();
    it.view.managed_by = Some("workload.codeflare.dev/appwrapper-controller".into());
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
}

#[test]
fn nothing_is_judged_before_all_pods_are_known() {
    for phase in Phase::ALL {
        let mut it = in_phase(&phase);
        it.view.pods_known = false;
        assert!(matches!(it.judge().verdict, Verdict::Ignore(AppWrapperWhy::PodsUnknown)), "{phase}");
    }
}

#[test]
fn a_phase_that_nobody_knows_is_left_alone() {
    let mut it = in_phase(&Phase::Running);
    it.view.status.phase = Phase::Unknown("Dreaming".into());
    assert_eq!(it.code(), "UnknownPhase");
    it.view.status.phase = Phase::Terminating;
    assert_eq!(it.code(), "UnknownPhase");
}

#[test]
fn conditions_of_a_start_are_those_that_kueue_reads() {
    let mut it = Cluster::job();
    it.settle();
    it.view.suspend = false;
    it.carry_out(&it.judge(), 9);
    it.carry_out(&it.judge(), 9);
    for (kind, status) in [
        ("QuotaReserved", "True"),
        ("ResourcesDeployed", "True"),
        ("PodsReady", "False"),
        ("Unhealthy", "False"),
    ] {
        assert_eq!(it.condition(kind), (status, "Resuming", "Suspend is false"), "{kind}");
    }
    let component = &it.view.status.component_status[0];
    let known = (component.name.as_str(), component.kind.as_str(), component.api_version.as_str());
    assert_eq!(known, ("c0", "Job", "batch/v1"));
    assert_eq!(component.pod_sets[0].replicas, Some(2));
}

#[test]
fn the_status_is_written_as_others_read_it() {
    let mut it = Cluster::job();
    it.settle();
    let wire = serde_json::to_value(&it.view.status).unwrap();
    let pod_sets = serde_json::json!([{"path": "template", "replicas": 2}]);
    let component = serde_json::json!({"name": "", "kind": "", "apiVersion": "", "podSets": pod_sets});
    assert_eq!(wire, serde_json::json!({"phase": "Suspended", "componentStatus": [component]}));
    let mut it = in_phase(&Phase::Resetting);
    it.run_for(1);
    let wire = serde_json::to_value(&it.view.status).unwrap();
    assert_eq!(wire["resettingCount"], 1);
    assert_eq!(wire["resets"][0]["cause"], "FailedComponent");
    assert_eq!(wire["resets"][0]["phase"], "Resetting");
    assert_eq!(wire["conditions"][0]["lastTransitionTime"], "2027-01-15T08:00:00Z");
}

#[test]
fn foreign_conditions_are_kept() {
    let mut it = in_phase(&Phase::Running);
    it.view.status.conditions.push(Condition {
        kind: "Foreign".into(),
        status: "True".into(),
        reason: "R".into(),
        message: "m".into(),
        last_transition_time: at(-5),
        observed_generation: Some(7),
    });
    let before = it.view.status.condition("Foreign").cloned();
    it.view.suspend = true;
    it.settle();
    assert_eq!(it.view.status.condition("Foreign").cloned(), before);
}

/// Kueue and the rules of later phases read these conditions.
#[test]
fn conditions_that_somebody_took_from_a_running_one_are_written_again() {
    let mut it = in_phase(&Phase::Running);
    let holds = |it: &Cluster| ["QuotaReserved", "ResourcesDeployed", "PodsReady"].map(|kind| it.holds(kind));
    assert_eq!(holds(&it), [true; 3]);
    let before = it.writes;
    it.view.status.conditions.clear();
    it.settle();
    assert_eq!((it.phase(), holds(&it), it.writes - before), (Phase::Running, [true; 3], 1));
    assert!(it.deeds.iter().all(|it| !it.starts_with("delete")), "{:?}", it.deeds);
    // Everything after that happens as usual.
    it.view.status.conditions.clear();
    it.view.suspend = true;
    it.settle();
    assert_eq!((it.phase(), it.holds("QuotaReserved")), (Phase::Suspended, false));
}

#[test]
fn what_the_webhook_would_refuse_is_refused_with_a_condition_and_nothing_is_created() {
    for phase in [Phase::Empty, Phase::Suspended, Phase::Resuming] {
        let mut it = in_phase(&phase);
        it.deeds.clear();
        it.view.suspend = false;
        it.view.refused = Some("spec.components[0]: kind Secret is not allowed".into());
        it.settle();
        assert_eq!(it.phase(), Phase::Failed, "{phase}");
        let message = "spec.components[0]: kind Secret is not allowed";
        assert_eq!(it.condition("Unhealthy"), ("True", "Refused", message));
        assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"));
        assert!(it.deeds.iter().all(|it| !it.starts_with("create")), "{:?}", it.deeds);
        assert_eq!(it.events, [format!("Unhealthy: Refused: {message}")]);
    }
}

/// The administrator removed a kind from the configuration. AppWrappers that wait in a queue report that, and are not
/// lost.
#[test]
fn what_is_refused_while_it_waits_is_told_so_and_may_run_when_the_configuration_is_put_right() {
    for phase in [Phase::Empty, Phase::Suspended] {
        let mut it = in_phase(&phase);
        let message = "spec.components[0]: kind Job is not allowed";
        it.view.refused = Some(message.into());
        it.run_for(100_000);
        assert_eq!((it.phase(), it.code()), (Phase::Suspended, "SuspendedAndRefused"), "{phase}");
        assert_eq!(it.condition("ComponentsValid"), ("False", "Refused", message));
        assert!(it.events.is_empty() && it.view.status.resets.is_empty());
        it.view.refused = None;
        it.view.suspend = false;
        it.run_for(2);
        assert_eq!((it.phase(), it.condition("ComponentsValid")), (Phase::Running, ("True", "Valid", "")));
    }
}

/// Whatever is refused, and however long the message: the status stays small.
#[test]
fn the_status_of_what_is_refused_is_small() {
    for suspend in [true, false] {
        let mut it = Cluster::of(&vec![(job(), 1); 128]);
        it.view.suspend = suspend;
        it.view.refused = Some("\u{1}\"ä".repeat(10_000));
        it.view.annotations = annotated(&[("retryLimit", &"\u{1}\"ä".repeat(10_000))]);
        it.run_for(100);
        assert_eq!(it.phase(), if suspend { Phase::Suspended } else { Phase::Failed });
        let status = serde_json::to_string(&it.view.status).unwrap();
        assert!(status.len() <= 8 * 1024, "{} bytes", status.len());
        assert_eq!(it.condition("ComponentsValid").0, "False");
        // Once nothing forbids it, Kueue reads its PodSets.
        it.view.refused = None;
        it.settle();
        assert_eq!(it.view.status.component_status.len(), if suspend { 128 } else { 0 });
    }
}

#[test]
fn writes_from_new_to_succeeded_are_few() {
    let mut it = Cluster::job();
    it.view.suspend = false;
    it.settle();
    it.set_pods(PodPhase::Running);
    it.settle();
    assert!(it.holds("PodsReady"));
    assert_eq!(it.writes, 4, "finalizer, Resuming, the Job, Running with PodsReady");
    it.set_pods(PodPhase::Succeeded);
    it.says(0, ComponentState::Succeeded);
    it.settle();
    assert_eq!((it.phase(), it.writes), (Phase::Succeeded, 5));
}

#[test]
fn pods_that_come_and_go_within_what_is_expected_cost_no_writes() {
    let mut it = Cluster::of(&[(deployment(), 2)]).running();
    let before = it.writes;
    it.add_pod(0, PodPhase::Pending);
    it.settle();
    it.set_pod(2, PodPhase::Running);
    it.settle();
    assert_eq!(it.writes, before);
}
