//! Which differences count as a change, and which do not.

use serde_json::json;

use super::*;
use crate::appwrapper::AppWrapperStatus;

fn object() -> Value {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    json!({
        "metadata": {"name": "w", "labels": {names::USER_LABEL: "me", names::QUEUE_LABEL: "q"}},
        "spec": {"suspend": false, "components": [
            {"template": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
                          "spec": {"parallelism": 2, "template": {"spec": pod}}},
             "podSets": [{"path": "template.spec.template", "replicas": 2}]},
            {"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": pod}},
        ]},
    })
}

/// The status after the object was admitted and created, read back from JSON.
fn status_of(object: &Value, with_record: bool) -> AppWrapperStatus {
    let wire = json!({
        "phase": "Running",
        "conditions": [{"type": "ResourcesDeployed", "status": "True", "reason": "Resuming", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "componentStatus": [
            {"name": "j", "kind": "Job", "apiVersion": "batch/v1", "podSets": []},
            {"name": "p-x7k2p", "kind": "Pod", "apiVersion": "v1", "podSets": []},
        ],
        "admitted": if with_record { json!(Admitted::of(object)) } else { Value::Null },
    });
    serde_json::from_value(wire).unwrap()
}

fn changed(change: impl FnOnce(&mut Value)) -> Comparison {
    let before = object();
    let mut after = before.clone();
    change(&mut after);
    compare(&after, &status_of(&before, true))
}

#[test]
fn what_the_webhook_refuses_to_change_is_noticed() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &[&str]); 10] = [
        (
            "another image",
            |it| it["spec"]["components"][1]["template"]["spec"]["containers"][0]["image"] = "other".into(),
            &["spec.components[1].template"],
        ),
        (
            "another kind",
            |it| it["spec"]["components"][0]["template"]["kind"] = "CronJob".into(),
            &["spec.components[0].template"],
        ),
        (
            "one component more",
            |it| {
                let more = it["spec"]["components"][1].clone();
                it["spec"]["components"].as_array_mut().unwrap().push(more);
            },
            &["spec.components"],
        ),
        (
            "one component less",
            |it| drop(it["spec"]["components"].as_array_mut().unwrap().pop()),
            &["spec.components"],
        ),
        ("no components", |it| it["spec"] = Value::Null, &["spec.components"]),
        (
            "another order",
            |it| it["spec"]["components"].as_array_mut().unwrap().reverse(),
            &[
                "spec.components[0].template",
                "spec.components[0].podSets",
                "spec.components[1].template",
                "spec.components[1].podSets",
            ],
        ),
        (
            "other replicas",
            |it| it["spec"]["components"][0]["podSets"][0]["replicas"] = 3.into(),
            &["spec.components[0].podSets"],
        ),
        (
            "no PodSets",
            |it| it["spec"]["components"][0]["podSets"] = json!([]),
            &["spec.components[0].podSets"],
        ),
        (
            "PodSets that nobody can read",
            |it| it["spec"]["components"][1]["podSets"] = "all".into(),
            &["spec.components[1].podSets"],
        ),
        (
            "other users",
            |it| it["metadata"]["labels"] = json!({names::USER_ID_LABEL: "7"}),
            &[
                "metadata.labels[workload.codeflare.dev/user]",
                "metadata.labels[workload.codeflare.dev/userid]",
            ],
        ),
    ];
    for (case, change, fields) in cases {
        let fields: Vec<String> = fields.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(changed(change), Comparison::Changed(fields), "{case}");
    }
}

#[test]
fn what_the_webhook_allows_and_what_means_the_same_is_no_change() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 8] = [
        ("suspend", |it| it["spec"]["suspend"] = true.into()),
        ("podSetInfos", |it| {
            it["spec"]["components"][0]["podSetInfos"] = json!([{"labels": {"a": "b"}}]);
        }),
        ("annotations of a component", |it| {
            it["spec"]["components"][0]["annotations"] = json!({"a": "b"});
        }),
        ("annotations of a PodSet", |it| {
            it["spec"]["components"][0]["podSets"][0]["annotations"] = json!({"a": "b"});
        }),
        ("the queue", |it| it["metadata"]["labels"][names::QUEUE_LABEL] = "other".into()),
        ("annotations", |it| it["metadata"]["annotations"] = json!({"a": "b"})),
        ("a field that is null", |it| {
            it["spec"]["components"][0]["template"]["metadata"]["creationTimestamp"] = Value::Null;
        }),
        ("a number with a fraction of 0", |it| {
            it["spec"]["components"][0]["template"]["spec"]["parallelism"] = json!(2.0);
        }),
    ];
    for (case, change) in cases {
        assert_eq!(changed(change), Comparison::Same, "{case}");
    }
    let replicas = |value: Value| {
        Admitted::of(
            &json!({"spec": {"components": [{"podSets": [{"path": "template", "replicas": value}]}]}}),
        )
    };
    assert_eq!(replicas(Value::Null), replicas(json!(1)), "1 is the default");
}

#[test]
fn a_record_that_nobody_can_read_is_written_anew() {
    let object = object();
    let good = json!(Admitted::of(&object));
    let mut cases = vec![
        json!(null),
        json!(7),
        json!("garbage"),
        json!([]),
        json!({}),
        json!({"version": 1, "components": 3}),
    ];
    for (place, value) in [
        ("/version", json!(2)),
        ("/version", json!(-1)),
        ("/user", json!("me")),
        ("/user", json!("A".repeat(32))),
        ("/components/0/template", json!("")),
        ("/components/0/template", json!("x".repeat(100_000))),
        ("/components/0/podSets", json!(7)),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap() = value;
        cases.push(bad);
    }
    for bad in cases {
        let mut status = json!(status_of(&object, true));
        status["admitted"] = bad.clone();
        let status: AppWrapperStatus = serde_json::from_value(status).unwrap();
        assert_eq!(status.phase.as_str(), "Running", "the rest is read all the same");
        assert_eq!(compare(&object, &status), Comparison::New(Admitted::of(&object)), "{bad:.80}");
    }
    let mut forged = status_of(&object, true);
    forged.admitted.as_mut().unwrap().components[1].template = "0".repeat(32);
    assert_eq!(compare(&object, &forged), Comparison::Changed(vec!["spec.components[1].template".into()]));
}

/// A name, a change of the object, and the field that is reported.
type Case = (&'static str, fn(&mut Value), &'static str);

/// The record was removed, or another controller wrote the status: the created components still show some changes.
#[test]
fn without_a_record_what_was_created_tells() {
    let before = object();
    let status = status_of(&before, false);
    assert_eq!(compare(&before, &status), Comparison::New(Admitted::of(&before)));
    let cases: [Case; 4] = [
        (
            "a kind",
            |it| it["spec"]["components"][0]["template"]["kind"] = "Pod".into(),
            "spec.components[0].template",
        ),
        (
            "a name",
            |it| it["spec"]["components"][0]["template"]["metadata"]["name"] = "k".into(),
            "spec.components[0].template",
        ),
        ("a list", |it| drop(it["spec"]["components"].as_array_mut().unwrap().pop()), "spec.components"),
        ("no template", |it| it["spec"]["components"][1] = json!({}), "spec.components[1].template"),
    ];
    for (case, change, field) in cases {
        let mut after = before.clone();
        change(&mut after);
        assert_eq!(compare(&after, &status), Comparison::Changed(vec![field.into()]), "{case}");
        // Nothing is deployed, so nothing is lost.
        let mut suspended = status.clone();
        suspended.conditions.clear();
        assert!(matches!(compare(&after, &suspended), Comparison::New(_)), "{case}");
        // The status does not say what was created.
        let mut unwritten = status.clone();
        unwritten.component_status.clear();
        assert!(matches!(compare(&after, &unwritten), Comparison::New(_)), "{case}");
    }
}

#[test]
fn a_message_names_the_field_and_what_to_do_and_is_short() {
    let message = Comparison::Changed(vec!["spec.components[3].template".into()]).refusal().unwrap();
    assert!(
        message.starts_with("spec.components[3].template: Forbidden: attempt to change immutable field"),
        "{message}"
    );
    assert!(message.contains("Change it back"), "{message}");
    let many = (0..500).map(|it| format!("spec.components[{it}].template")).collect();
    let message = Comparison::Changed(many).refusal().unwrap();
    assert!(message.contains("and 495 fields more") && message.len() < 800, "{message}");
    assert_eq!((Comparison::Same.refusal(), Comparison::New(Admitted::default()).refusal()), (None, None));
}

/// Every version of Salvor must compute these digests: AppWrappers outlive a version.
#[test]
fn digests_never_change() {
    for (value, expected) in [
        (json!(null), "1b16b1df538ba12dc3f97edbb85caa70"),
        (
            json!({"a": [1, 2.5, "x", true, null], "b": null, "c": {"": -3}}),
            "dac63d61133aa4b8db6b2a336cf717ed",
        ),
    ] {
        assert_eq!(digest(&value), expected, "{value}");
    }
    assert_eq!(digest(&json!({"a": 1, "b": 2})), digest(&json!({"b": 2, "a": 1})));
    assert_ne!(digest(&json!(["ab", "c"])), digest(&json!(["a", "bc"])));
    assert_ne!(digest(&json!("1")), digest(&json!(1)));
    assert_ne!(digest(&json!([])), digest(&json!({})));
}

/// A spec of more than a megabyte, deep and wide.
#[test]
fn a_huge_spec_has_a_short_record() {
    let mut object = object();
    let wide: serde_json::Map<String, Value> =
        (0..20_000).map(|it| (format!("k{it}"), json!("v".repeat(50)))).collect();
    object["spec"]["components"][0]["template"]["metadata"]["annotations"] = Value::Object(wide);
    let deep = (0..120).fold(json!(1), |inner, _| json!([inner]));
    object["spec"]["components"][0]["template"]["spec"]["deep"] = deep;
    let before = Admitted::of(&object);
    assert!(json!(before).to_string().len() < 400, "{before:?}");
    object["spec"]["components"][0]["template"]["metadata"]["annotations"]["k19999"] = "w".into();
    assert_eq!(before.changes(&Admitted::of(&object)), ["spec.components[0].template"]);
}
