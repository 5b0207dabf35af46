//! A user changes the spec after admission, and no webhook refuses it.

use serde_json::json;

use super::super::admitted::compare;
use super::phases::in_phase;
use super::*;

/// Changes the template.
fn change(it: &mut Cluster) {
    it.view.admitted = Comparison::Changed(vec!["spec.components[0].template".into()]);
}

fn change_back(it: &mut Cluster) {
    it.view.admitted = Comparison::Same;
}

fn assert_told(it: &Cluster, case: &str) {
    let (status, reason, message) = it.condition("ComponentsValid");
    assert_eq!((status, reason), ("False", "Refused"), "{case}");
    assert!(
        message.contains("spec.components[0].template") && message.contains("Change it back"),
        "{message}"
    );
}

fn fails(it: &mut Cluster) {
    it.says(0, ComponentState::Failed { message: String::new() });
}

#[test]
fn a_workload_that_runs_goes_on_and_nothing_is_destroyed() {
    let mut it = Cluster::two_pods().running();
    let deeds = it.deeds.clone();
    // The other component was removed from the spec.
    let other = it.found(1).clone();
    it.view.strays.push(other);
    change(&mut it);
    it.run_for(7_200);
    assert_told(&it, "running");
    assert_eq!((it.phase(), it.code(), &it.deeds), (Phase::Running, "Healthy", &deeds));
    it.view.strays.clear();
    change_back(&mut it);
    it.settle();
    assert_eq!(it.condition("ComponentsValid"), ("True", "Valid", ""));
    it.set_pods(PodPhase::Succeeded);
    it.settle();
    assert_eq!((it.phase(), it.deeds), (Phase::Succeeded, deeds));
}

#[test]
fn success_and_failure_are_told_as_ever() {
    let mut it = Cluster::job().running();
    change(&mut it);
    it.settle();
    it.says(0, ComponentState::Succeeded);
    it.set_pods(PodPhase::Succeeded);
    it.settle();
    assert_eq!(it.phase(), Phase::Succeeded);
    assert!(!it.holds("QuotaReserved"));
    assert_told(&it, "what was said before the end stays");
}

/// The deletion is done, and the creation waits for as long as the admission grace period.
#[test]
fn a_reset_creates_nothing_until_it_is_changed_back() {
    for back_after in [Some(0), Some(89), Some(149), None] {
        let mut it = Cluster::job().running();
        change(&mut it);
        it.settle();
        fails(&mut it);
        it.settle();
        let created = it.deeds.iter().filter(|it| it.starts_with("create")).count();
        assert_eq!((it.phase(), it.holds("ResourcesDeployed")), (Phase::Resetting, false));
        it.run_for(back_after.unwrap_or(149));
        assert_told(&it, "resetting");
        assert_eq!(it.phase(), Phase::Resetting, "{back_after:?}");
        assert!(it.holds("QuotaReserved"));
        if back_after == Some(149) {
            assert_eq!(it.code(), "Changed");
        }
        if back_after.is_none() {
            it.run_for(2);
            assert_eq!(it.phase(), Phase::Failed);
            assert!(
                !it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"),
                "quota is not held for ever"
            );
            assert_eq!((it.condition("Unhealthy").0, it.condition("Unhealthy").1), ("True", "Refused"));
            assert_eq!(it.view.status.resets.last().unwrap().cause, "Refused");
            assert!(it.events.last().unwrap().contains("spec.components[0].template"), "{:?}", it.events);
            let now = it.deeds.iter().filter(|it| it.starts_with("create")).count();
            assert_eq!(now, created, "{:?}", it.deeds);
        } else {
            change_back(&mut it);
            it.run_for(100);
            it.set_pods(PodPhase::Running);
            it.settle();
            assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"), "{back_after:?}");
            assert_eq!(it.condition("ComponentsValid").0, "True");
        }
    }
}

#[test]
fn one_that_waits_stays_suspended_and_fails_if_it_is_to_run() {
    let mut it = in_phase(&Phase::Suspended);
    change(&mut it);
    it.run_for(86_400);
    assert_told(&it, "suspended");
    assert_eq!((it.phase(), it.code()), (Phase::Suspended, "SuspendedAndRefused"));
    let mut back = it.clone();
    it.view.suspend = false;
    it.settle();
    assert_eq!((it.phase(), it.deeds.len()), (Phase::Failed, 0), "{:?}", it.deeds);
    assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"));
    change_back(&mut back);
    back.view.suspend = false;
    back.run_for(3);
    assert_eq!(back.condition("ComponentsValid").0, "True");
    assert!(!back.view.pods.is_empty());
}

/// It was changed when half of it was created.
#[test]
fn the_other_half_is_not_created() {
    let mut it = Cluster::two_pods();
    it.view.suspend = false;
    while it.phase() != Phase::Resuming {
        it.carry_out(&it.judge(), usize::MAX);
    }
    it.carry_out(&it.judge(), 1);
    assert_eq!(it.view.pods.len(), 1);
    change(&mut it);
    it.run_for(50);
    assert_told(&it, "resuming");
    assert_eq!((it.phase(), it.code(), it.view.pods.len()), (Phase::Resuming, "Changed", 1));
    let mut back = it.clone();
    it.run_for(12);
    assert_eq!((it.phase(), it.view.pods.len()), (Phase::Failed, 0));
    assert!(!it.holds("QuotaReserved"));
    change_back(&mut back);
    back.settle();
    assert_eq!(back.view.pods.len(), 2);
}

/// It was changed right after all of it was created: the workload runs.
#[test]
fn what_is_created_already_runs() {
    let mut it = in_phase(&Phase::Resuming);
    change(&mut it);
    it.set_pods(PodPhase::Running);
    it.run_for(10);
    assert_eq!((it.phase(), it.code()), (Phase::Running, "Healthy"));
    assert_told(&it, "running");
}

#[test]
fn suspending_and_deleting_win_over_a_change_in_any_phase() {
    for phase in Phase::ALL {
        for deleted in [false, true] {
            let mut it = in_phase(&phase);
            it.stuck_objects = false;
            change(&mut it);
            it.settle();
            it.view.suspend |= !deleted;
            it.view.deleting |= deleted;
            it.settle();
            for component in &mut it.view.components {
                if matches!(&component.seen, Seen::Found(found) if found.is_deleting()) {
                    component.seen = Seen::Absent { last: None };
                }
            }
            it.settle();
            assert!(it.view.pods.is_empty(), "{phase}, deleted {deleted}");
            assert!(it.gone || !it.holds("QuotaReserved"), "{phase}, deleted {deleted}");
        }
    }
}

/// The record is part of the first write, and is written once.
#[test]
fn what_is_admitted_is_written_down_once() {
    let object = json!({"spec": {"components": [{"template": {"kind": "Job"}}]}});
    let new = compare(&object, &AppWrapperStatus::default());
    let Comparison::New(admitted) = new.clone() else { panic!("{new:?}") };
    for phase in Phase::ALL {
        let mut it = in_phase(&phase);
        it.view.admitted = new.clone();
        let writes = it.writes;
        it.settle();
        let keeps = match phase {
            Phase::Empty | Phase::Suspended | Phase::Resuming | Phase::Running | Phase::Resetting => true,
            Phase::Suspending | Phase::Succeeded | Phase::Failed | Phase::Terminating | Phase::Unknown(_) => {
                false
            }
        };
        assert_eq!(it.view.status.admitted, keeps.then(|| admitted.clone()), "{phase}");
        assert_eq!(it.writes - writes, usize::from(keeps), "{phase}: nothing more is written for it");
    }
    // What the rules refuse was not admitted, so it may still be corrected.
    let mut it = in_phase(&Phase::Suspended);
    (it.view.admitted, it.view.refused) = (new.clone(), Some("no".into()));
    it.settle();
    assert_eq!(it.view.status.admitted, None);
    it.view.refused = None;
    it.settle();
    assert!(it.view.status.admitted.is_some());
}

/// The definition of AppWrappers is older, and the API server drops unknown fields.
#[test]
fn a_record_that_is_dropped_is_not_written_again_and_again() {
    let object = json!({"spec": {"components": []}});
    let new = compare(&object, &AppWrapperStatus::default());
    let mut it = in_phase(&Phase::Running);
    it.view.admitted = new;
    it.view.memory.record_is_dropped = true;
    let writes = it.writes;
    it.run_for(100);
    assert_eq!((it.writes, it.code()), (writes, "Healthy"));
}
