//! Deletion: with grace, then by force, and what holds it.

use super::*;

fn stuck_pods() -> Cluster {
    let mut it = Cluster::job().running();
    it.stuck_pods = true;
    it.view.suspend = true;
    it.settle();
    it
}

#[test]
fn quota_is_kept_until_the_last_pod_is_gone() {
    let mut it = stuck_pods();
    assert_eq!(it.phase(), Phase::Suspending);
    assert!(matches!(it.view.components[0].seen, Seen::Absent { .. }), "the Job is gone, its pods are not");
    it.view.pods.pop();
    it.run_for(300);
    assert!(it.holds("QuotaReserved") && it.holds("ResourcesDeployed"));
    it.view.pods.clear();
    it.settle();
    assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"));
    assert_eq!(it.condition("DeletingResources"), ("False", "DeletionComplete", ""));
    let component = &it.view.status.component_status[0].conditions[0];
    assert_eq!((component.status.as_str(), component.reason.as_str()), ("False", "CompononetDeleted"));
}

#[test]
fn force_comes_after_its_grace_and_not_before() {
    let mut it = stuck_pods();
    let begun = it.view.status.condition("DeletingResources").unwrap().last_transition_time;
    assert_eq!(it.judge().verdict.wake_at(), Some(crate::moments::after(begun, secs(600))));
    it.run_for(599);
    assert_eq!(it.view.pods.len(), 2);
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Suspended);
    assert_eq!(it.deeds.iter().filter(|it| it.starts_with("force delete pod")).count(), 2);
}

#[test]
fn the_clock_of_force_goes_on_when_a_reset_is_suspended() {
    let mut it = Cluster::job().running();
    it.stuck_pods = true;
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(300);
    assert_eq!(it.phase(), Phase::Resetting);
    it.view.suspend = true;
    it.run_for(299);
    assert_eq!((it.phase(), it.view.pods.len()), (Phase::Suspending, 2));
    it.run_for(1);
    assert_eq!(it.phase(), Phase::Suspended);
}

#[test]
fn a_later_deletion_has_a_clock_of_its_own() {
    let mut it = Cluster::job().running();
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(92);
    it.set_pods(PodPhase::Running);
    it.run_for(5000);
    it.stuck_pods = true;
    it.says(0, ComponentState::Failed { message: String::new() });
    it.run_for(599);
    assert_eq!(it.view.pods.len(), 2);
    it.run_for(1);
    assert!(it.view.pods.is_empty());
}

#[test]
fn finalizers_hold_it_and_are_named() {
    let mut it = Cluster::job().running();
    it.stuck_objects = true;
    it.found(0).finalizers = vec!["example.com/keep".into()];
    it.view.suspend = true;
    it.run_for(3600);
    assert!(it.holds("QuotaReserved"), "nobody removes finalizers, and what exists is not called gone");
    let judgement = it.judge();
    assert!(matches!(judgement.verdict, Verdict::Ignore(AppWrapperWhy::Deleting { forced: true, .. })));
    let text = judgement.verdict.why().to_string();
    assert!(text.contains("Job c0") && text.contains("example.com/keep"), "{text}");
    let deletes = it.deeds.iter().filter(|it| it.contains("delete")).count();
    assert_eq!(deletes, 1, "with a grace of 0 another delete changes nothing: {:?}", it.deeds);
}

#[test]
fn a_pod_that_holds_it_is_named_with_its_node() {
    let mut it = stuck_pods();
    it.view.pods[0].finalizers = vec!["batch.kubernetes.io/job-tracking".into()];
    let text = it.judge().verdict.why().to_string();
    assert!(text.contains("on node n1") && text.contains("job-tracking"), "{text}");
    it.settle();
}

#[test]
fn what_is_not_ours_is_neither_deleted_nor_waited_for() {
    let mut it = Cluster::job().running();
    // Somebody else's object under the component's name, and a pod of an AppWrapper of the same name that is gone.
    it.found(0).owner_uid = Some("other".into());
    it.view.pods = vec![cluster::pod("old", 9, PodPhase::Running, at(-100))];
    it.view.suspend = true;
    it.settle();
    assert_eq!(it.phase(), Phase::Suspended);
    assert!(it.deeds.iter().all(|it| !it.contains("delete")), "{:?}", it.deeds);
}

#[test]
fn a_kind_that_is_not_served_any_more_does_not_hold_the_deletion() {
    let mut it = Cluster::job().running();
    it.view.deleting = true;
    it.view.components[0].seen = Seen::NoSuchKind;
    it.view.pods.clear();
    it.settle();
    assert!(it.gone);
}

#[test]
fn a_kind_that_cannot_be_read_holds_the_deletion() {
    let mut it = Cluster::job().running();
    it.view.deleting = true;
    it.view.components[0].seen = Seen::Unknown("forbidden".into());
    it.view.pods.clear();
    it.run_for(3600);
    assert!(!it.gone && it.holds("ResourcesDeployed"));
    assert!(it.judge().verdict.why().to_string().contains("forbidden"));
}

#[test]
fn deletion_of_a_running_one_goes_through_terminating() {
    let mut it = Cluster::job().running();
    it.view.deleting = true;
    it.settle();
    assert!(it.gone);
    assert_eq!(it.phases.last(), Some(&Phase::Terminating));
    assert_eq!(it.condition("ResourcesDeployed"), ("False", "Terminating", "Resources successfully deleted"));
    assert_eq!(it.condition("QuotaReserved"), ("False", "Terminating", "No resources deployed"));
}

#[test]
fn deletion_waits_for_no_delay() {
    for phase in [Phase::Failed, Phase::Succeeded, Phase::Resetting] {
        let mut it = phases::in_phase(&phase);
        it.view.deleting = true;
        it.settle();
        assert!(it.gone, "{phase}");
    }
}

/// One judgement asks for all deletions, and none waits for another.
#[test]
fn twenty_components_are_deleted_in_one_go() {
    let mut it = Cluster::of(&vec![(job(), 1); 20]).running();
    it.view.suspend = true;
    let suspends = it.judge();
    it.carry_out(&suspends, usize::MAX);
    let deletes = it.judge();
    let [one] = deletes.verdict.actions() else { panic!("{:?}", deletes.verdict) };
    assert_eq!(one.steps().len(), 20);
    assert!(!one.changes_what_was_judged(), "one look serves all");
}

#[test]
fn a_thousand_pods_are_forced_in_portions() {
    let mut it = Cluster::of(&[(job(), 1000)]).running();
    it.stuck_pods = true;
    it.view.deleting = true;
    it.settle();
    it.after(600);
    assert_eq!(it.judge().verdict.actions()[0].steps().len(), 50);
    it.settle();
    assert!(it.gone);
}
