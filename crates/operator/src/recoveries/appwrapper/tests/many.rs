//! A second look at hundreds of components is valid for a second like any other, so it must finish within that.

use std::time::Duration;

use super::*;
use crate::client::recent_reads::READ_VALID_FOR;

const SERVICES: usize = 127;
/// Duration of every request, as on an overloaded machine.
const SLOW: Duration = Duration::from_millis(300);

fn service_kind() -> Kind {
    Kind { group: String::new(), version: "v1".into(), kind: "Service".into() }
}

fn service(number: usize, labelled: bool) -> Value {
    let labels = if labelled { json!({MEMBER_LABEL: "w"}) } else { json!({}) };
    json!({
        "metadata": {
            "namespace": "ns", "name": format!("s{number}"), "uid": format!("uid-{number}"), "resourceVersion": "9",
            "labels": labels, "creationTimestamp": "2027-01-15T08:00:00Z",
            "ownerReferences": [{"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": "w",
                                 "uid": "w-uid", "controller": true}],
        },
    })
}

/// One Job and hundreds of Services, all being deleted.
fn suspending() -> Value {
    let mut object = resuming(5);
    object["status"]["phase"] = "Suspending".into();
    object["spec"]["suspend"] = true.into();
    for number in 0..SERVICES {
        let template =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{number}")}});
        object["spec"]["components"].as_array_mut().unwrap().push(json!({"template": template}));
        let status =
            json!({"name": format!("s{number}"), "kind": "Service", "apiVersion": "v1", "podSets": []});
        object["status"]["componentStatus"].as_array_mut().unwrap().push(status);
    }
    admit(object)
}

/// The API with these Services; every request is slow.
fn slow_api(object: Value, services: Vec<Value>) -> FakeApi {
    FakeApi::new(move |asked| {
        let list = |items: &[Value]| {
            Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": items}))
        };
        let answer = match asked.path.as_str() {
            "/apis/workload.codeflare.dev/v1beta2/namespaces/ns/appwrappers/w" => {
                Answer::Json(200, object.clone())
            }
            "/api/v1/namespaces/ns/services" => {
                assert!(!asked.query.contains("labelSelector"), "{}", asked.query);
                let limit = asked.query.split('&').find_map(|it| it.strip_prefix("limit=")).unwrap();
                assert!(limit.parse::<usize>().unwrap() >= SERVICES, "they come in one page: {limit}");
                list(&services)
            }
            "/apis/batch/v1/namespaces/ns/jobs" | "/api/v1/namespaces/ns/pods" => list(&[]),
            "/apis/batch/v1/namespaces/ns/jobs/j" => Answer::Refused(404, "not found"),
            other => panic!("{other}"),
        };
        answer.late(SLOW)
    })
}

fn recovery_with(object: &Value) -> (AppWrappers, AppWrapperRef) {
    let (mut recovery, subject) = knowing(recovery_of("Job.batch, Pod, Service"), object);
    let services = |news| News::Component((&service_kind()).into(), news);
    recovery.on_change(services(OfKind::Served(Served::at("/api/v1", "services"))), now());
    let none = Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 };
    recovery.on_change(services(OfKind::Change(none)), now());
    (recovery, subject)
}

#[tokio::test(start_paused = true)]
async fn a_look_at_hundreds_of_components_is_over_within_its_second_also_on_a_slow_server() {
    let (recovery, subject) = recovery_with(&suspending());
    assert_eq!(asked(&recovery, &subject).0, "Deleted");
    let others: Vec<Value> = (1000..1100).map(|number| service(number, false)).collect();
    let api = slow_api(suspending(), others);
    let began = tokio::time::Instant::now();
    let (code, steps) = look(&recovery, &subject, &api).await.unwrap();
    assert_eq!((code.as_str(), names(&steps)), ("Deleted", vec!["PatchAppWrapperStatus"]));
    assert!(began.elapsed() < READ_VALID_FOR, "{:?}", began.elapsed());
    // The AppWrapper, three lists, and the Job by its name.
    assert_eq!(api.asked().len(), 5);
}

/// One is left, with or without its label. The view keeps what the look has found without its label.
#[tokio::test(start_paused = true)]
async fn one_of_hundreds_that_is_left_is_found() {
    for labelled in [true, false] {
        let (recovery, subject) = recovery_with(&suspending());
        let api = slow_api(suspending(), vec![service(77, labelled)]);
        let (code, steps) = look(&recovery, &subject, &api).await.unwrap();
        assert_eq!(
            (code.as_str(), names(&steps)),
            ("Deleting", vec!["PatchAppWrapperStatus", "DeleteComponent"])
        );
        assert_eq!(asked(&recovery, &subject).0, if labelled { "Deleted" } else { "Deleting" }, "{labelled}");
    }
}

/// An object with the name of a component that cannot be decoded is not absent.
#[tokio::test(start_paused = true)]
async fn one_that_nobody_can_read_is_not_taken_for_absent() {
    let (recovery, subject) = recovery_with(&suspending());
    let mut broken = service(77, false);
    broken["metadata"]["ownerReferences"] = json!("garbage");
    let api = slow_api(suspending(), vec![broken]);
    let recheck = recovery.recheck(&subject, now());
    let asked = recheck.ask(&api.client, KnownAlready::Nothing, now(), &mut ReadAge::default()).await;
    assert!(asked.is_err(), "{asked:?}");
}
