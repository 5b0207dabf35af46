//! A user changes what was admitted, and no webhook refuses it.

use super::*;

/// A running AppWrapper of one Job.
fn running(revision: u64) -> Value {
    let mut object = resuming(revision);
    object["status"]["phase"] = "Running".into();
    object["status"]["componentStatus"][0] = json!({
        "name": "j", "kind": "Job", "apiVersion": "batch/v1",
        "podSets": [{"path": "template.spec.template", "replicas": 0}],
        "conditions": [{"type": "ResourcesDeployed", "status": "True", "reason": "ComponentCreatedSuccessfully", "message": "",
                        "lastTransitionTime": "2027-01-15T08:00:00Z"}],
    });
    object
}

type Edit = fn(&mut Value);

/// Each change with the field that the condition names.
const CHANGES: [(&str, Edit); 6] = [
    ("spec.components[0].template", |it| {
        it["spec"]["components"][0]["template"]["spec"]["parallelism"] = 7.into();
    }),
    ("spec.components[0].template", |it| {
        it["spec"]["components"][0]["template"]["metadata"]["name"] = "other".into();
    }),
    ("spec.components[0].template", |it| {
        it["spec"]["components"][0]["template"] =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j"}});
    }),
    ("spec.components[0].template", |it| it["spec"]["components"][0] = "garbage".into()),
    ("spec.components: ", |it| it["spec"]["components"] = json!([])),
    ("spec.components: ", |it| {
        let more = it["spec"]["components"][0].clone();
        it["spec"]["components"].as_array_mut().unwrap().push(more);
    }),
];

/// Asserts that the only step is to write the condition.
fn assert_only_told(recovery: &AppWrappers, subject: &AppWrapperRef, field: &str) {
    let (_, steps) = asked(recovery, subject);
    let [Step::PatchStatus { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(status.phase, Phase::Running);
    let condition = status.condition("ComponentsValid").unwrap();
    assert!(condition.is_false() && condition.message.contains(field), "{condition:?}");
}

/// Changed while the operator runs, or while it does not.
#[test]
fn the_component_that_was_created_is_watched_on_and_nothing_else_is_done() {
    for (field, change) in CHANGES {
        for restarted in [false, true] {
            let mut object = running(5);
            let (mut recovery, subject) = with(&object);
            recovery
                .on_change(kind_news(OfKind::Change(Change::Applied(seen(&job("j1", 9, "w-uid"))))), now());
            assert_eq!(asked(&recovery, &subject).0, "Healthy");
            change(&mut object);
            object["metadata"]["resourceVersion"] = "12".into();
            if restarted {
                recovery = with(&object).0;
                recovery.on_change(
                    kind_news(OfKind::Change(Change::Applied(seen(&job("j1", 9, "w-uid"))))),
                    now(),
                );
            } else {
                let app = app(&recovery, &object);
                recovery.on_change(News::App(Change::Applied(app)), now());
            }
            assert_only_told(&recovery, &subject, field);
            assert!(recovery.kinds.get(&job_kind()).is_some());
        }
    }
}

/// The watch does not show the change yet when a component is about to be created.
#[tokio::test]
async fn a_change_that_only_the_second_look_sees_creates_nothing() {
    for (field, change) in CHANGES {
        let (recovery, subject) = with(&resuming(5));
        create(&recovery, &subject);
        let mut changed = resuming(6);
        change(&mut changed);
        let (code, steps) = look(&recovery, &subject, &api(changed, Vec::new(), None)).await.unwrap();
        assert!(!names(&steps).contains(&"CreateComponent"), "{field}: {code} {steps:?}");
    }
}

/// The CustomResourceDefinition of AppWrappers is CodeFlare's, and the API server drops the record.
#[test]
fn a_record_that_the_api_server_drops_is_written_once() {
    let mut object = running(5);
    object["status"].as_object_mut().unwrap().remove("admitted");
    let (mut recovery, subject) = with(&object);
    recovery.on_change(kind_news(OfKind::Change(Change::Applied(seen(&job("j1", 9, "w-uid"))))), now());
    let (_, steps) = asked(&recovery, &subject);
    let Step::PatchStatus { status, .. } = &steps[0] else { panic!("{steps:?}") };
    assert!(status.admitted.is_some());
    let mut written = json!(status);
    for kept in [true, false] {
        let mut answer = object.clone();
        answer["metadata"]["resourceVersion"] = if kept { "12" } else { "13" }.into();
        if !kept {
            written.as_object_mut().unwrap().remove("admitted");
        }
        answer["status"] = written.clone();
        recovery.done(&subject, &steps[0], &Written::Object(answer.to_string()), now());
        assert_eq!(asked(&recovery, &subject), ("Healthy", Vec::new()), "kept: {kept}");
    }
}

/// The record is removed: it is written again, unless the created objects show that the spec has changed.
#[test]
fn a_record_that_is_taken_away_is_written_anew_if_nothing_contradicts() {
    let mut object = running(5);
    let record = object["status"].as_object_mut().unwrap().remove("admitted").unwrap();
    let (mut recovery, subject) = with(&object);
    recovery.on_change(kind_news(OfKind::Change(Change::Applied(seen(&job("j1", 9, "w-uid"))))), now());
    let (_, steps) = asked(&recovery, &subject);
    let [Step::PatchStatus { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(json!(status)["admitted"], record);

    object["spec"]["components"][0]["template"]["metadata"]["name"] = "other".into();
    object["metadata"]["resourceVersion"] = "12".into();
    let app = app(&recovery, &object);
    recovery.on_change(News::App(Change::Applied(app)), now());
    assert_only_told(&recovery, &subject, "spec.components[0].template");
}
