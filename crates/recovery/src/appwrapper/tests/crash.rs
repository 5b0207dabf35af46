//! A crash between any two writes, and objects that were created and not recorded.

use super::phases::in_phase;
use super::*;

/// A restart loses everything that only the process knew.
fn restart(it: &mut Cluster) {
    it.view.memory = Memory::default();
    for component in &mut it.view.components {
        if let Seen::Absent { last } = &mut component.seen {
            *last = None;
        }
    }
}

/// A life with a reset: the outcome is the same whichever step is the last before a crash.
fn life(crash_after: usize) -> (Cluster, usize) {
    let mut it = Cluster::of(&[(job(), 2), (deployment(), 1)]);
    it.view.suspend = false;
    let mut steps = 0;
    let mut play = |it: &mut Cluster| {
        for _ in 0..200 {
            let decision = it.judge();
            let all = decision.verdict.actions().len();
            if it.gone || all == 0 {
                match decision.verdict.wake_at() {
                    Some(until) if !it.gone && it.phase() != Phase::Running => it.now = until,
                    _ => return,
                }
            }
            if (steps..steps + all).contains(&crash_after) {
                it.carry_out(&decision, crash_after - steps);
                restart(it);
                steps = usize::MAX / 2;
            } else {
                it.carry_out(&decision, all);
                steps += all;
            }
        }
        panic!("no rest");
    };
    play(&mut it);
    it.set_pods(PodPhase::Running);
    play(&mut it);
    it.says(0, ComponentState::Failed { message: String::new() });
    play(&mut it);
    it.set_pods(PodPhase::Running);
    play(&mut it);
    it.view.suspend = true;
    play(&mut it);
    it.view.deleting = true;
    play(&mut it);
    (it, steps)
}

#[test]
fn a_crash_between_any_two_writes_ends_the_same() {
    let (whole, steps) = life(usize::MAX);
    assert!(steps > 15 && whole.gone);
    let creations = |it: &Cluster| it.deeds.iter().filter(|it| it.starts_with("create")).count();
    for crash_after in 0..steps {
        let (it, _) = life(crash_after);
        assert!(it.gone, "crash after {crash_after}");
        assert_eq!(it.phases, whole.phases, "crash after {crash_after}");
        assert_eq!(it.view.status.resetting_count, 1, "crash after {crash_after}");
        assert_eq!(creations(&it), creations(&whole), "crash after {crash_after}");
        let resets = it.events.iter().filter(|it| it.starts_with("Unhealthy")).count();
        assert_eq!(resets, 1, "crash after {crash_after}: {:?}", it.events);
    }
}

#[test]
fn a_component_that_was_created_and_not_recorded_is_found_again() {
    let mut it = Cluster::of(&[(job(), 1), (job(), 1)]);
    it.view.suspend = false;
    while it.code() != "Creating" {
        it.carry_out(&it.judge(), 9);
    }
    it.carry_out(&it.judge(), 1);
    restart(&mut it);
    let decision = it.judge();
    let left: Vec<_> = decision.verdict.actions().iter().map(ToString::to_string).collect();
    assert_eq!(left, ["create component 1 of appwrapper ns/aw: job ns/c1"]);
    it.settle();
    it.run_for(2);
    assert_eq!(it.phase(), Phase::Running);
}

#[test]
fn a_status_without_its_component_makes_it() {
    let mut it = in_phase(&Phase::Resuming);
    it.view.components[0].seen = Seen::Absent { last: None };
    it.view.pods.clear();
    it.deeds.clear();
    it.settle();
    assert_eq!(it.deeds, ["create c0"]);
}

#[test]
fn the_name_that_another_controller_recorded_is_used() {
    let mut it = in_phase(&Phase::Resuming);
    it.view.status.component_status[0].name = "job-x7k2p".into();
    it.view.components[0].seen = Seen::Absent { last: None };
    assert_eq!(it.view.name_of(0), Some("job-x7k2p"));
    it.view.status.component_status[0].conditions[0].status = "False".into();
    assert_eq!(it.view.name_of(0), Some("c0"), "a name that was deleted is not used again");
}

#[test]
fn an_object_that_another_controller_made_and_did_not_record_is_adopted() {
    let mut it = in_phase(&Phase::Resuming);
    it.view.status.component_status[0].name = String::new();
    it.view.components[0].seen = Seen::Absent { last: None };
    it.view.strays.push(cluster::object("s", job(), "job-abcde", at(0), ComponentState::Active));
    let decision = it.judge();
    assert_eq!(decision.verdict.why().code(), "Adopting");
    it.carry_out(&decision, 9);
    assert_eq!(it.view.name_of(0), Some("job-abcde"));
}

#[test]
fn what_exists_twice_is_deleted_once() {
    for phase in [Phase::Resuming, Phase::Running] {
        let mut it = in_phase(&phase);
        it.view.strays.push(cluster::object("double", job(), "job-abcde", at(0), ComponentState::Active));
        it.deeds.clear();
        it.settle();
        assert_eq!(it.deeds, ["Graceful delete double"], "{phase}");
        assert!(it.view.own_component(0).is_some());
    }
}

#[test]
fn a_creation_that_takes_effect_too_late_is_undone() {
    for phase in [Phase::Suspended, Phase::Failed, Phase::Resetting] {
        let mut it = in_phase(&phase);
        if phase == Phase::Failed {
            it.view.suspend = true;
            it.settle();
        }
        assert!(!it.holds("ResourcesDeployed"));
        let late = cluster::object("late", job(), "c0", it.now, ComponentState::Active);
        it.view.components[0].seen = Seen::Found(Box::new(late));
        it.deeds.clear();
        it.settle();
        assert_eq!(it.deeds, ["Graceful delete late"], "{phase}");
    }
}

#[test]
fn a_write_that_was_judged_on_an_older_state_is_refused() {
    let mut it = in_phase(&Phase::Running);
    it.says(0, ComponentState::Failed { message: String::new() });
    let decision = it.judge();
    it.view.suspend = true;
    it.carry_out(&it.judge(), 9);
    it.carry_out(&decision, 9);
    assert_eq!(it.phase(), Phase::Suspending);
    // Another AppWrapper took its name.
    let mut it = in_phase(&Phase::Running);
    it.says(0, ComponentState::Failed { message: String::new() });
    let decision = it.judge();
    it.view.appwrapper.uid = "another".into();
    it.carry_out(&decision, 9);
    assert_eq!(it.phase(), Phase::Running);
}

#[test]
fn a_new_appwrapper_of_an_old_name_is_not_fooled_by_old_objects() {
    let mut it = Cluster::job();
    it.view.created = at(100);
    it.now = at(100);
    let mut old = cluster::object("old", job(), "c0", at(0), ComponentState::Succeeded);
    old.owner_uid = Some("old-uid".into());
    it.view.components[0].seen = Seen::Found(Box::new(old));
    it.view.pods = vec![cluster::pod("p", 0, PodPhase::Succeeded, at(1)); 2];
    it.view.suspend = false;
    it.settle();
    assert_eq!(it.phase(), Phase::Failed, "the name is taken, and nothing of it is deleted");
    assert_eq!(it.view.pods.len(), 2);
    assert!(it.deeds.is_empty());
}

#[test]
fn the_event_of_a_reset_is_made_up_for_after_a_crash_but_not_hours_later() {
    let mut it = in_phase(&Phase::Running);
    it.says(0, ComponentState::Failed { message: String::new() });
    it.carry_out(&it.judge(), 1);
    restart(&mut it);
    let later = it.clone();
    it.settle();
    assert_eq!(it.events.len(), 1);
    let mut it = later;
    it.after(3600);
    it.settle();
    assert_eq!(it.events.len(), 0);
}
