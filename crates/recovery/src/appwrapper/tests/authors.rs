//! The author of an AppWrapper is not known, or may not create its components.

use super::phases::in_phase;
use super::*;

fn refuse(it: &mut Cluster) {
    it.view.authorship = Authorship::Refused("who wrote it is not known".into());
}

fn created(it: &Cluster) -> usize {
    it.deeds.iter().filter(|it| it.starts_with("create")).count()
}

/// Its components are the next thing to be created.
fn about_to_create() -> Cluster {
    let mut it = in_phase(&Phase::Suspended);
    it.view.suspend = false;
    while it.phase() != Phase::Resuming {
        let decision = it.judge();
        it.carry_out(&decision, 1);
    }
    it
}

#[test]
fn nothing_is_created_for_one_that_is_refused() {
    for phase in [Phase::Empty, Phase::Suspended, Phase::Resuming, Phase::Resetting] {
        let mut it = in_phase(&phase);
        // In a reset everything is already deleted when the creation is due.
        if phase == Phase::Resuming {
            it = about_to_create();
        }
        let before = created(&it);
        refuse(&mut it);
        it.view.suspend = false;
        it.run_for(86_400);
        assert_eq!((it.phase(), created(&it)), (Phase::Failed, before), "{phase}: {:?}", it.deeds);
        assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"), "{phase}");
        let (status, reason, message) = it.condition("Unhealthy");
        assert_eq!((status, reason), ("True", "Refused"), "{phase}");
        assert!(message.contains("who wrote it is not known"), "{message}");
        assert_eq!(it.condition("ComponentsValid").1, "Refused", "{phase}");
    }
    let mut it = in_phase(&Phase::Suspended);
    refuse(&mut it);
    it.run_for(86_400);
    assert_eq!((it.phase(), it.code()), (Phase::Suspended, "SuspendedAndRefused"));
    it.view.authorship = Authorship::Fine;
    it.view.suspend = false;
    it.run_for(10);
    assert_eq!(created(&it), 1, "{:?}", it.deeds);
}

/// AppWrappers that ran before stamps existed continue. So does one whose components exist and whose status does not
/// show it yet.
#[test]
fn what_is_created_already_is_not_destroyed() {
    let mut it = Cluster::job().running();
    let deeds = it.deeds.clone();
    refuse(&mut it);
    it.run_for(7_200);
    assert_eq!((it.phase(), &it.deeds), (Phase::Running, &deeds));
    it.view.status.phase = Phase::Resuming;
    it.run_for(60);
    assert_eq!((it.phase(), &it.deeds), (Phase::Running, &deeds));
}

#[test]
fn reviews_that_are_not_answered_are_waited_for_and_told() {
    let mut it = about_to_create();
    it.policy.admission_grace = secs(3600);
    let retry_at = after(it.now, secs(600));
    it.view.authorship = Authorship::Unanswered { message: "no answer".into(), retry_at };
    it.run_for(599);
    assert_eq!((it.phase(), it.code(), created(&it)), (Phase::Resuming, "AuthorUnknown", 0));
    assert_eq!(it.condition("ComponentsValid"), ("Unknown", "AuthorUnknown", "no answer"));
    // When the retry is due, the second look before the creation asks.
    it.after(1);
    let decision = it.judge();
    let steps = decision.verdict.actions();
    assert!(matches!(steps, [Step::CreateComponent { .. }]), "{steps:?}");
    it.view.authorship = Authorship::Fine;
    it.settle();
    assert_eq!((created(&it), it.condition("ComponentsValid")), (1, ("True", "Valid", "")));
}

/// Nothing is answered, however often it is asked: quota must not be held for ever.
#[test]
fn an_author_who_stays_unknown_ends_with_the_admission_grace() {
    let unanswered = Authorship::Unanswered { message: "no answer".into(), retry_at: at(86_400) };
    for authorship in [unanswered, Authorship::NoKeys] {
        let mut it = about_to_create();
        it.policy.admission_grace = secs(30);
        it.view.annotations = annotated(&[("retryLimit", "1")]);
        it.view.authorship = authorship;
        let began = it.now;
        it.run_for(3600);
        assert_eq!((it.phase(), created(&it)), (Phase::Failed, 0), "{:?}", it.deeds);
        let times: Vec<i64> =
            it.view.status.resets.iter().map(|it| it.time.unwrap().duration_since(began).as_secs()).collect();
        assert!(times.len() == 2 && (29..=31).contains(&times[0]), "{times:?}");
        assert!(!it.holds("QuotaReserved") && !it.holds("ResourcesDeployed"));
        let (status, reason, message) = it.condition("Unhealthy");
        assert_eq!((status, reason), ("True", "CreateFailed"));
        assert!(message.contains("it is not known what their author may create: "), "{message}");
    }
}

#[test]
fn keys_that_are_not_read_yet_are_waited_for_in_silence() {
    for phase in [Phase::Suspended, Phase::Empty] {
        let mut it = in_phase(&phase);
        it.policy.admission_grace = secs(3600);
        it.view.suspend = false;
        it.view.authorship = Authorship::NoKeys;
        it.run_for(600);
        assert_eq!((it.phase(), it.code(), created(&it)), (Phase::Resuming, "AuthorUnknown", 0));
        assert!(it.view.status.condition("ComponentsValid").is_none(), "{phase}");
        it.view.authorship = Authorship::Fine;
        it.run_for(10);
        assert_eq!(created(&it), 1, "{phase}: {:?}", it.deeds);
    }
}

/// A suspended AppWrapper that is refused says so, also where the keys are read after it was first judged.
#[test]
fn a_suspended_one_is_judged_again_when_the_keys_may_be_read() {
    let mut it = in_phase(&Phase::Suspended);
    it.view.authorship = Authorship::NoKeys;
    let decision = it.judge();
    assert!(matches!(decision.verdict, Verdict::Wait { .. }), "{decision:?}");
    refuse(&mut it);
    it.run_for(60);
    assert_eq!(it.condition("ComponentsValid").1, "Refused");
    // Another leader has not read them yet: what is known stays.
    it.view.authorship = Authorship::NoKeys;
    it.run_for(60);
    assert_eq!(it.condition("ComponentsValid").1, "Refused");
}
