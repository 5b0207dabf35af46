//! AppWrappers that are too large, kinds that are not served, and unanswered writes.

use std::time::Duration;

use jiff::SignedDuration;

use super::*;
use crate::watch_set::feeds::KindLost;

/// An AppWrapper with `count` components, none of them created yet.
fn of_components(count: usize) -> Value {
    let mut object = resuming(5);
    object["status"] = Value::Null;
    let component = object["spec"]["components"][0].clone();
    object["spec"]["components"] = vec![component; count].into();
    object["metadata"]["managedFields"] = json!([{"manager": "somebody"}]);
    object
}

/// Its components are not kept, and its status says why. One that was deployed before there were bounds is still
/// managed.
#[test]
fn of_what_breaks_a_bound_no_component_is_read() {
    let recovery = recovery();
    let read = app(&recovery, &of_components(128));
    assert!(read.parts.len() == 128 && !read.refused.unwrap_or_default().contains("128 components"));
    let (recovery, subject) = knowing(recovery, &of_components(129));
    let read = app(&recovery, &of_components(129));
    assert!(read.parts.is_empty());
    assert!(read.refused.unwrap().contains("must have at most 128 components"));
    let (code, steps) = asked(&recovery, &subject);
    assert_eq!((code, names(&steps)), ("GivenUp", vec!["PatchAppWrapperStatus", "EmitEvent"]));
    let mut large = of_components(1);
    large["spec"]["components"][0]["template"]["metadata"]["annotations"] = json!({"a": "x".repeat(600_000)});
    assert!(app(&recovery, &large).parts.is_empty());
    let mut deployed = of_components(129);
    deployed["status"] = resuming(5)["status"].clone();
    deployed["status"]["admitted"] = Value::Null;
    deployed["status"]["componentStatus"] = json!([]);
    assert_eq!(app(&recovery, &deployed).parts.len(), 129);
}

#[test]
fn an_object_is_written_in_the_version_in_which_it_is_served() {
    let mut object = resuming(5);
    object["status"]["phase"] = "Suspending".into();
    object["spec"]["suspend"] = true.into();
    let (mut recovery, subject) = with(&object);
    recovery.on_change(kind_news(OfKind::Served(Served::at("/apis/batch/v2", "jobs"))), now());
    recovery.on_change(listed(&[job("j1", 9, "w-uid")], "9"), now());
    let (code, mut steps) = asked(&recovery, &subject);
    assert_eq!((code, names(&steps)), ("Deleting", vec!["PatchAppWrapperStatus", "DeleteComponent"]));
    let delete = steps.remove(1);
    let Step::DeleteComponent { object, .. } = &delete else { panic!("{delete:?}") };
    assert_eq!(object.kind.version, "v2");
    let mut going = job("j1", 10, "w-uid");
    going["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
    going["metadata"]["finalizers"] = json!(["a.example/b"]);
    let answer = Written::Object(going.to_string());
    assert_eq!(recovery.done(&subject, &delete, &answer, now()), View::Synced);
    assert!(!names(&asked(&recovery, &subject).1).contains(&"DeleteComponent"), "the answer is taken in");
}

#[test]
fn a_kind_that_is_not_served_is_unknown_until_that_is_certain() {
    let (mut recovery, subject) = with(&resuming(5));
    let lost = |recovery: &mut AppWrappers, how| {
        recovery.on_change(kind_news(OfKind::Lost(how)), now());
        let known = &recovery.apps[&subject.uid];
        let seen = recovery.snapshot(known).components.remove(0).1;
        (
            matches!(seen, Seen::Unknown(_)),
            seen == Seen::NoSuchKind,
            recovery.memory(known).unserved.get(&0).copied(),
        )
    };
    assert_eq!(lost(&mut recovery, KindLost::Unserved), (true, false, Some(now())));
    assert_eq!(asked(&recovery, &subject), ("CreationFailed", Vec::new()));
    assert_eq!(lost(&mut recovery, KindLost::NotServed), (false, true, Some(now())));
    assert_eq!(asked(&recovery, &subject), ("CreationFailed", Vec::new()));
    assert_eq!(lost(&mut recovery, KindLost::Failed("forbidden".into())), (true, false, None));
    recovery.on_change(kind_news(OfKind::Served(Served::at("/apis/batch/v1", "jobs"))), now());
    recovery.on_change(listed(&[], "9"), now());
    create(&recovery, &subject);
}

/// After an unanswered creation, the look before the next one finds the created object.
#[tokio::test]
async fn a_creation_that_was_not_answered_is_looked_for_before_it_is_sent_again() {
    let (mut recovery, subject) = with(&resuming(5));
    let step = create(&recovery, &subject);
    assert!(recovery.recheck(&subject, now()).only_creates);
    recovery.failed(&subject, &step, &Failure::Unanswered(Duration::from_secs(10)), now());
    assert_eq!(asked(&recovery, &subject), ("CreationFailed", Vec::new()), "a second passes first");
    let recheck = recovery.recheck(&subject, now());
    assert!(!recheck.only_creates);
    let api = FakeApi::new(|asked| match asked.path.as_str() {
        "/apis/workload.codeflare.dev/v1beta2/namespaces/ns/appwrappers/w" => Answer::Json(200, resuming(5)),
        "/apis/batch/v1/namespaces/ns/jobs/j" => Answer::Json(200, job("j1", 9, "w-uid")),
        _ => Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": []})),
    });
    let later = now() + SignedDuration::from_secs(1);
    let found = recheck.ask(&api.client, KnownAlready::Nothing, later, &mut ReadAge::default()).await;
    let verdict = found.unwrap().unwrap().verdict;
    assert!(!names(verdict.actions()).contains(&"CreateComponent"), "{verdict:?}");
}

/// What it makes in a version that is not served, or has made in one that is served no more, is what is read.
#[test]
fn a_component_is_found_whatever_version_it_names() {
    let mut object = resuming(5);
    object["spec"]["components"][0]["template"]["apiVersion"] = "batch/v7".into();
    let (mut recovery, subject) = with(&admit(object));
    recovery.on_change(listed(&[job("j1", 9, "w-uid")], "9"), now());
    let snapshot = recovery.snapshot(&recovery.apps[&subject.uid]);
    assert!(matches!(snapshot.components[0].1, Seen::Found(_)), "{:?}", snapshot.components);
}
