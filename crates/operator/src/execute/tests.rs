//! The request for each action, and the reading of each answer.

use http::Method;
use jiff::Timestamp;
use kube::core::Status;
use salvor_recovery::Step;
use salvor_recovery::event::{Condition, EventNote, EventType};
use salvor_recovery::job::{self, CreationReason};
use salvor_recovery::objects::{JobRef, NodeRef, ObjectRef, PodPhase, PodRef, Taint};
use salvor_recovery::step::Changed;
use salvor_recovery::zombie;
use salvor_recovery::{
    eviction::{self, Progress},
    gate::Claim,
};
use serde_json::json;

use super::event_queue::{EVENT_RETRIES, MAX_QUEUED_EVENTS};
use super::*;
use crate::testing::any_step::AnyStep;
use crate::testing::fake_api::{Answer, FakeApi};

struct Bench {
    api: FakeApi,
    executor: Executor,
    metrics: Metrics,
    leadership: Leadership,
    term: Term,
    lead: Box<dyn Fn(Option<Duration>)>,
}

impl Bench {
    /// Leads for an hour.
    fn new(answer: impl Fn(&crate::testing::fake_api::Asked) -> Answer + Send + Sync + 'static) -> Self {
        let api = FakeApi::new(answer);
        let time = Time::system();
        let metrics = Metrics::new(&time);
        let (leadership, lead) = Leadership::scripted();
        lead(Some(Duration::from_secs(3600)));
        let (client, term) = (api.client.clone(), leadership.term().unwrap());
        let us = "us".to_owned();
        let executor = Executor::new(client, time, leadership.clone(), metrics.clone(), us, 2, false);
        Self { api, executor, metrics, leadership, term, lead: Box::new(lead) }
    }

    /// Decided in the first term, and looked at just now.
    fn basis(&self) -> Basis {
        Basis { term: self.term, looked: Some(Instant::now()) }
    }

    async fn perform(&self, step: &impl Step) -> Result<Written, Failure> {
        perform(&self.executor, Lane::Recovery, step, self.basis()).await
    }
}

/// Permit, reads, write, as an attempt does it.
async fn perform(
    executor: &Executor,
    lane: Lane,
    step: &impl Step,
    basis: Basis,
) -> Result<Written, Failure> {
    let permit = executor.permit(lane, basis.term).await?;
    let read = permit.read(step.name(), &step.reads()).await?;
    let write = step.write(&read).map_err(|_: Changed| Failure::Stale)?;
    permit.write(&write, basis).await
}

fn pod() -> PodRef {
    PodRef { namespace: "ns".into(), name: "druid-0".into(), uid: "u1".into() }
}

fn since() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

fn patch() -> AnyStep {
    let condition =
        Condition { kind: "Dead", reason: "Lost", message: "gone".into(), last_transition_time: since() };
    zombie::Step::PatchPodStatus {
        pod: pod(),
        resource_version: "7".into(),
        phase: Some(PodPhase::Failed),
        conditions: vec![condition],
        ended: None,
    }
    .into()
}

fn delete() -> AnyStep {
    zombie::Step::ForceDeletePod { pod: pod(), resource_version: "8".into() }.into()
}

fn note(message: String) -> EventNote {
    EventNote {
        name: "note.1".into(),
        regarding: (&pod()).into(),
        kind: EventType::Warning,
        reason: "Why".into(),
        action: "What",
        reporting_controller: "who",
        message,
    }
}

fn event(message: String) -> AnyStep {
    zombie::Step::EmitEvent(note(message)).into()
}

fn node() -> NodeRef {
    NodeRef { name: "n1".into(), uid: "u2".into() }
}

fn taint() -> Taint {
    Taint { key: "out".into(), value: "down".into(), effect: "NoExecute".into() }
}

fn taint_node() -> AnyStep {
    zombie::Step::TaintNode {
        node: node(),
        resource_version: "9".into(),
        taint: taint(),
        mark: "salvor.dev/mark",
        since: since(),
        boot: Some("boot-1".into()),
    }
    .into()
}

fn live_node(uid: &str, revision: &str) -> Value {
    json!({
        "metadata": {"name": "n1", "uid": uid, "resourceVersion": revision},
        "spec": {"taints": [
            {"key": "other", "effect": "NoSchedule"},
            {"key": "out", "value": "down", "effect": "NoExecute"},
            {"key": "out", "value": "down", "effect": "NoSchedule"},
        ]},
    })
}

#[tokio::test(start_paused = true)]
async fn every_refusal_means_what_it_says() {
    let uid = "Pod \"druid-0\" is invalid: metadata.uid: Invalid value: \"u1\": field is immutable";
    let other = "Pod \"druid-0\" is invalid: status.conditions: Invalid value";
    let terminating = "namespace ns is being terminated";
    let cases = [
        (patch(), 200, "", "ok"),
        (patch(), 409, "changed", "conflict"),
        (patch(), 422, uid, "conflict"),
        // The pod's name contains these three letters too.
        (patch(), 422, other, "error"),
        (patch(), 404, "no such pod", "gone"),
        (patch(), 403, "no rights", "forbidden"),
        (patch(), 429, "slow down", "throttled"),
        (patch(), 500, "broken", "error"),
        (patch(), 503, "away", "error"),
        (delete(), 200, "", "ok"),
        (delete(), 404, "no such pod", "ok"),
        (delete(), 409, "another uid", "conflict"),
        (delete(), 403, "no rights", "forbidden"),
        (event("x".into()), 201, "", "ok"),
        (event("x".into()), 409, "already exists", "ok"),
        (event("x".into()), 403, terminating, "ok"),
        // The message alone proves nothing: a quota may have any name.
        (event("x".into()), 403, "quota \"being terminated\" exceeded", "forbidden"),
        (event("x".into()), 403, "no rights", "forbidden"),
        (event("x".into()), 404, "no such namespace", "gone"),
    ];
    for (action, code, message, expected) in cases {
        let cause = match message {
            _ if message == uid => json!({"reason": "FieldValueInvalid", "field": "metadata.uid"}),
            _ if message == other => json!({"reason": "FieldValueInvalid", "field": "status.conditions"}),
            _ if message == terminating => json!({"reason": "NamespaceTerminating"}),
            _ => json!({}),
        };
        let status = json!({
            "kind": "Status", "status": "Failure", "code": code, "message": message,
            "reason": if code == 409 { "AlreadyExists" } else { "Other" }, "details": {"causes": [cause]},
        });
        let bench = Bench::new(move |_| Answer::Json(code, status.clone()));
        let result = bench.perform(&action).await;
        let got = result.as_ref().map_or_else(Failure::code, |_| "ok");
        assert_eq!(got, expected, "{} answered {code} {message:?}", action.name());
        if let Err(Failure::Forbidden { verb, resource, message: said }) = &result {
            let named = match action.name() {
                "PatchPodStatus" => ("patch", "pods/status"),
                "ForceDeletePod" => ("delete", "pods"),
                _ => ("create", "events"),
            };
            assert_eq!((*verb, resource.as_str(), said.as_str()), (named.0, named.1, message));
        }
        let counted =
            format!("salvor_writes_total{{action=\"{}\",result=\"{expected}\"}} 1\n", action.name());
        assert!(bench.metrics.render().contains(&counted), "{counted}");
        assert_eq!(bench.api.asked().len(), 1, "nothing is repeated behind anybody's back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_patched_and_deleted_only_if_it_is_the_one_that_was_judged() {
    let bench = Bench::new(|_| Answer::ok());
    let answer = bench.perform(&patch()).await.unwrap();
    assert!(matches!(answer, Written::Object(_)), "the look before the delete rests on it");
    bench.perform(&delete()).await.unwrap();
    let [patched, deleted] = &bench.api.asked()[..] else { panic!("two requests") };
    assert_eq!(
        (&patched.method, patched.path.as_str()),
        (&Method::PATCH, "/api/v1/namespaces/ns/pods/druid-0/status")
    );
    assert_eq!(patched.content_type, "application/strategic-merge-patch+json");
    assert_eq!(patched.query, "fieldManager=salvor");
    let condition = json!({
        "type": "Dead", "status": "True", "reason": "Lost", "message": "gone",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    });
    let body = json!({
        "metadata": {"uid": "u1", "resourceVersion": "7"},
        "status": {"phase": "Failed", "conditions": [condition]},
    });
    assert_eq!(patched.body, body);
    assert_eq!(
        (&deleted.method, deleted.path.as_str()),
        (&Method::DELETE, "/api/v1/namespaces/ns/pods/druid-0")
    );
    assert_eq!(
        deleted.body,
        json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u1", "resourceVersion": "8"}})
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_has_its_own_name_and_a_note_that_fits() {
    let bench = Bench::new(|_| Answer::ok());
    bench.perform(&event("ä".repeat(600))).await.unwrap();
    let asked = &bench.api.asked()[0];
    assert_eq!(asked.path, "/api/v1/namespaces/ns/events");
    assert_eq!(asked.body["metadata"], json!({"name": "note.1", "namespace": "ns"}));
    assert_eq!(asked.body["message"].as_str().unwrap(), "ä".repeat(512));
    assert_eq!(asked.body["involvedObject"]["uid"], "u1");
    assert_eq!(asked.body["type"], "Warning");
    assert_eq!(asked.body["reportingInstance"], "us");
}

/// As Kubernetes' own controllers do: `kubectl describe` sorts by one and prints the other.
#[tokio::test(start_paused = true)]
async fn every_event_has_a_source_and_times_whatever_it_is_about() {
    let job = JobRef { namespace: "ns".into(), name: "j".into(), uid: "u3".into() };
    let lease = ObjectRef::lease("ns", "salvor");
    let note = note("Created pod: j-x".into());
    for (subject, namespace, involved) in [
        (
            (&job).into(),
            "ns",
            json!({"apiVersion": "batch/v1", "kind": "Job", "namespace": "ns", "name": "j", "uid": "u3"}),
        ),
        (
            note.regarding.clone(),
            "ns",
            json!({"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "druid-0", "uid": "u1"}),
        ),
        // A node's name serves as its UID here, and `kubectl describe node` searches for that.
        ((&node()).into(), "default", json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"})),
        (
            lease,
            "ns",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": "ns", "name": "salvor"}),
        ),
    ] {
        let bench = Bench::new(|_| Answer::Refused(409, "already exists"));
        let note = EventNote { regarding: subject, reporting_controller: "job-controller", ..note.clone() };
        bench.perform(&zombie::Step::EmitEvent(note)).await.unwrap();
        let asked = &bench.api.asked()[0];
        assert_eq!(asked.path, format!("/api/v1/namespaces/{namespace}/events"));
        let mut body = asked.body.clone();
        let at: Timestamp = body["firstTimestamp"].as_str().unwrap().parse().unwrap();
        assert_eq!(
            (body["lastTimestamp"].clone(), at.subsec_nanosecond()),
            (body["firstTimestamp"].clone(), 0)
        );
        for time in ["firstTimestamp", "lastTimestamp"] {
            body.as_object_mut().unwrap().remove(time);
        }
        let expected = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "note.1", "namespace": namespace},
            "involvedObject": involved, "type": "Warning", "reason": "Why", "action": "What",
            "message": "Created pod: j-x", "count": 1, "source": {"component": "job-controller"},
            "reportingComponent": "job-controller", "reportingInstance": "us",
        });
        assert_eq!(body, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn taints_of_others_stay_and_a_node_that_changed_is_left_alone() {
    let bench = Bench::new(|_| Answer::Json(200, live_node("u2", "9")));
    bench.perform(&taint_node()).await.unwrap();
    let untaint = zombie::Step::UntaintNode {
        node: node(),
        resource_version: "9".into(),
        taint: taint(),
        mark: "salvor.dev/mark",
    };
    bench.perform(&untaint).await.unwrap();
    let asked = bench.api.asked();
    let guard = |mark: Value, boot: Value| {
        let annotations = json!({"salvor.dev/mark": mark, "zombie.salvor.dev/out-of-service-boot": boot});
        json!({"uid": "u2", "resourceVersion": "9", "annotations": annotations})
    };
    let stay = [
        json!({"key": "other", "effect": "NoSchedule"}),
        json!({"key": "out", "value": "down", "effect": "NoSchedule"}),
    ];
    let added =
        json!({"key": "out", "value": "down", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
    let tainted = json!({"metadata": guard(json!("2026-01-02T03:04:05Z"), json!("boot-1")), "spec": {"taints": [stay[0], stay[1], added]}});
    assert_eq!(asked[1].body, tainted);
    assert_eq!(asked[1].content_type, "application/merge-patch+json");
    assert_eq!(asked[3].body, json!({"metadata": guard(Value::Null, Value::Null), "spec": {"taints": stay}}));

    for (uid, revision) in [("u3", "9"), ("u2", "10")] {
        let bench = Bench::new(move |_| Answer::Json(200, live_node(uid, revision)));
        assert!(matches!(bench.perform(&taint_node()).await, Err(Failure::Stale)));
        assert_eq!(bench.api.count(&Method::PATCH), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_server_asks_for_is_everybodys_and_nobody_sleeps_through_it() {
    let cases = [(Some("30"), 30), (None, 1), (Some("0"), 1), (Some("soon"), 1), (Some("86400"), 300)];
    for (header, seconds) in cases {
        let pause = Duration::from_secs(seconds);
        let bench =
            Bench::new(
                move |asked| {
                    if asked.method == Method::PATCH { Answer::Throttled(header) } else { Answer::ok() }
                },
            );
        let began = Instant::now();
        let first = bench.perform(&patch()).await;
        assert!(matches!(first, Err(Failure::Throttled(p)) if p == pause), "{header:?}: {first:?}");
        let second = bench.perform(&delete()).await;
        assert!(matches!(second, Err(Failure::Throttled(p)) if p == pause), "{header:?}: {second:?}");
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(bench.api.asked().len(), 1, "the second was not sent");
        tokio::time::sleep(pause).await;
        bench.perform(&delete()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_pause_does_not_end_a_longer_one() {
    let bench = Bench::new(|asked| match asked.method {
        Method::PATCH => Answer::Throttled(Some("60")),
        _ => Answer::Throttled(Some("1")).late(Duration::from_secs(1)),
    });
    let (patch, delete) = (patch(), delete());
    let (first, second) = tokio::join!(bench.perform(&patch), bench.perform(&delete));
    assert!(first.is_err() && second.is_err());
    let third = bench.perform(&patch).await;
    assert!(matches!(third, Err(Failure::Throttled(left)) if left == Duration::from_secs(59)), "{third:?}");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_sends_nothing() {
    let bench = Bench::new(|_| Answer::Json(200, live_node("u2", "9")));
    (bench.lead)(None);
    for action in [patch(), delete(), event("x".into()), taint_node()] {
        assert!(matches!(bench.perform(&action).await, Err(Failure::NotLeading)));
    }
    (bench.lead)(Some(Duration::from_secs(5)));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(matches!(bench.perform(&delete()).await, Err(Failure::NotLeading)), "it ended by itself");
    assert!(bench.api.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn leadership_lost_between_a_read_and_its_write_stops_the_write() {
    let bench = Bench::new(|_| Answer::Json(200, live_node("u2", "9")).late(Duration::from_secs(2)));
    let action = taint_node();
    let (result, ()) = tokio::join!(bench.perform(&action), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (bench.lead)(None);
    });
    assert!(matches!(result, Err(Failure::NotLeading)), "{result:?}");
    assert_eq!(bench.api.count(&Method::PATCH), 0);
}

#[tokio::test(start_paused = true)]
async fn no_write_outlives_its_time_or_the_lease() {
    for (leads, limit) in [(3600, WRITE_TIMEOUT), (3, Duration::from_secs(3))] {
        let bench = Bench::new(|_| Answer::Never);
        (bench.lead)(Some(Duration::from_secs(leads)));
        let began = Instant::now();
        let result = bench.perform(&delete()).await;
        assert!(matches!(result, Err(Failure::Unanswered(l)) if l == limit), "{result:?}");
        assert_eq!(began.elapsed(), limit);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_writes_at_once_than_allowed() {
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(1)));
    let began = Instant::now();
    let action = event("x".into());
    let basis = Basis { term: bench.term, looked: None };
    let one = |_| perform(&bench.executor, Lane::Recovery, &action, basis);
    let all = futures::future::join_all((0..6).map(one)).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(began.elapsed(), Duration::from_secs(3), "two at a time");
}

fn progress() -> Progress {
    let progress = r#"{"started":"2026-01-02T03:04:05Z","request":"salvor.dev/force-eviction:NoSchedule"}"#;
    Progress::from_annotation(progress).unwrap()
}

fn eviction_taint(effect: &str) -> Value {
    json!({"key": "salvor.dev/force-eviction", "value": "INC-1", "effect": effect})
}

#[tokio::test(start_paused = true)]
async fn an_eviction_begins_and_ends_in_one_guarded_write_each() {
    let node_with = |taints: Value| json!({"metadata": {"name": "n1", "uid": "u2", "resourceVersion": "9"}, "spec": {"taints": taints}});
    let other = json!({"key": "other", "effect": "NoSchedule"});
    let before = node_with(json!([other, eviction_taint("NoSchedule")]));
    let bench = Bench::new(move |_| Answer::Json(200, before.clone()));
    let taint =
        Taint { key: "salvor.dev/force-eviction".into(), value: "INC-1".into(), effect: "NoExecute".into() };
    let start = eviction::Step::StartEviction {
        node: node(),
        resource_version: "9".into(),
        taint: Some(taint),
        progress: progress(),
        zone: String::new(),
    };
    bench.perform(&start).await.unwrap();
    let asked = bench.api.asked();
    assert_eq!((asked[0].method.as_str(), asked[1].method.as_str(), asked.len()), ("GET", "PATCH", 2));
    let mut added = eviction_taint("NoExecute");
    added["timeAdded"] = "2026-01-02T03:04:05Z".into();
    assert_eq!(
        asked[1].body,
        json!({
            "metadata": {
                "uid": "u2", "resourceVersion": "9",
                "annotations": {"eviction.salvor.dev/progress": serde_json::to_string(&progress()).unwrap()},
            },
            "spec": {"taints": [other, eviction_taint("NoSchedule"), added]},
        })
    );

    let tainted = node_with(json!([eviction_taint("NoSchedule"), other, eviction_taint("NoExecute")]));
    let bench = Bench::new(move |_| Answer::Json(200, tainted.clone()));
    let end = |revision: &str| eviction::Step::EndEviction {
        node: node(),
        resource_version: revision.into(),
        progress: None,
        asked: None,
    };
    bench.perform(&end("9")).await.unwrap();
    let body = &bench.api.asked()[1].body;
    assert_eq!(body["spec"]["taints"], json!([other]), "the taints of others stay");
    assert_eq!(
        body["metadata"]["annotations"],
        json!({
            "eviction.salvor.dev/progress": null, "eviction.salvor.dev/asked": null,
            "salvor.dev/despite-zone-outage": null,
        })
    );
    let stale = bench.perform(&end("8")).await;
    assert!(matches!(stale, Err(Failure::Stale)), "{stale:?}");
}

fn release(listed: &[&str], attached: &[&str], keep: &[&str]) -> AnyStep {
    let name = |handle: &str| format!("kubernetes.io/csi/disk^{handle}");
    let keep: Vec<Claim> =
        keep.iter().map(|name| Claim { namespace: "ns".into(), name: (*name).into() }).collect();
    let released = salvor_recovery::eviction::Released::keeping(&keep, since());
    eviction::Step::ReleaseVolumes {
        node: node(),
        resource_version: "9".into(),
        in_use: ["a", "b", "other"].map(name).to_vec(),
        attached: attached
            .iter()
            .map(|volume| salvor_recovery::eviction::AttachmentView {
                name: format!("csi-{volume}"),
                node: "n1".into(),
                driver: "disk".into(),
                volume: Some((*volume).into()),
            })
            .collect(),
        attached_names: listed.iter().map(|handle| name(handle)).collect(),
        keep,
        progress: Progress { released: Some(released), ..progress() },
    }
    .into()
}

#[tokio::test(start_paused = true)]
async fn only_attached_volumes_are_let_go_and_none_that_a_pod_that_stays_has_claimed() {
    let answer = |asked: &crate::testing::fake_api::Asked| match asked.path.as_str() {
        "/api/v1/persistentvolumes/pv-nfs" => {
            Answer::Json(200, json!({"spec": {"nfs": {}, "claimRef": {"namespace": "ns", "name": "nfs"}}}))
        }
        path if path.starts_with("/api/v1/persistentvolumes/pv-") => {
            let handle = path.rsplit('-').next().unwrap();
            let csi = json!({"driver": "disk", "volumeHandle": handle});
            Answer::Json(200, json!({"spec": {"csi": csi, "claimRef": {"namespace": "ns", "name": handle}}}))
        }
        "/api/v1/nodes/n1/status" => Answer::ok(),
        _ => Answer::Refused(404, "no such volume"),
    };
    // The volumes in use, the volumes recorded as kept, and the number of volumes that are looked up.
    type Case<'a> = (&'a str, AnyStep, &'a [&'a str], &'a [&'a str], usize);
    let cases: [Case<'_>; 11] = [
        ("nothing is known of any", release(&[], &[], &[]), &["a", "b", "other"], &[], 0),
        ("attached", release(&[], &["pv-b"], &[]), &["a", "other"], &[], 1),
        ("attached by the node's word", release(&["a", "c"], &[], &[]), &["b", "other"], &[], 0),
        ("both", release(&["a"], &["pv-b"], &[]), &["other"], &[], 1),
        (
            "claimed by a pod that stays",
            release(&["a", "b"], &["pv-a", "pv-b"], &["a"]),
            &["a", "other"],
            &["pv-a"],
            2,
        ),
        (
            "a pod that stays has a volume that nobody attaches",
            release(&["b"], &["pv-b"], &["nfs"]),
            &["a", "other"],
            &[],
            1,
        ),
        (
            "a pod that stays has claims that do not exist",
            release(&[], &["pv-b"], &["x", "y"]),
            &["a", "other"],
            &[],
            1,
        ),
        ("as many names as attached volumes", release(&[], &["lost", "pv-b", "pv-a"], &[]), &[], &[], 0),
        ("there are more names than that", release(&[], &["lost", "pv-b"], &[]), &["a", "other"], &[], 2),
        (
            "as many, but a pod stays that has a volume: what is not known stays",
            release(&["a", "b", "other"], &["lost", "pv-b", "pv-a"], &["a"]),
            &["a", "other"],
            &["pv-a"],
            3,
        ),
        ("of an in-tree kind", release(&[], &["pv-nfs", "pv-b"], &[]), &["a", "other"], &[], 2),
    ];
    for (case, action, left, kept, reads) in cases {
        let bench = Bench::new(answer);
        bench.perform(&action).await.unwrap();
        let patch = bench.api.asked().pop().unwrap();
        assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
        assert_eq!(patch.body["metadata"]["resourceVersion"], "9");
        let left: Vec<String> =
            left.iter().map(|handle| format!("kubernetes.io/csi/disk^{handle}")).collect();
        assert_eq!(patch.body["status"], json!({ "volumesInUse": left }), "{case}");
        let text = patch.body["metadata"]["annotations"]["eviction.salvor.dev/progress"].as_str().unwrap();
        assert_eq!(Progress::from_annotation(text).unwrap().released.unwrap().volumes, kept, "{case}");
        assert_eq!(bench.api.count(&Method::GET), reads, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_read_to_let_volumes_go_does_not_grow_with_what_pods_claim() {
    let many: Vec<String> = (0..5000).map(|claim| format!("{claim:04}")).collect();
    let keep: Vec<&str> = many.iter().map(String::as_str).collect();
    let bench = Bench::new(|_| Answer::ok());
    bench.perform(&release(&[], &["pv-a"], &keep)).await.unwrap();
    assert_eq!(bench.api.count(&Method::GET), 1);
    let patch = bench.api.asked().pop().unwrap();
    assert!(patch.body.to_string().len() < 1000, "{}", patch.body);
}

#[tokio::test(start_paused = true)]
async fn a_graceful_eviction_names_the_revision_that_was_judged() {
    let pod = PodRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() };
    let evict = eviction::Step::EvictPod { pod, resource_version: "7".into() };
    let bench = Bench::new(|_| Answer::ok());
    bench.perform(&evict).await.unwrap();
    let asked = bench.api.asked();
    assert_eq!(
        (asked[0].method.as_str(), asked[0].path.as_str()),
        ("DELETE", "/api/v1/namespaces/ns/pods/p")
    );
    assert_eq!(
        asked[0].body,
        json!({"preconditions": {"uid": "u", "resourceVersion": "7"}}),
        "with its own grace"
    );
    let changed = Bench::new(|_| Answer::Refused(409, "it has changed"));
    assert!(matches!(changed.perform(&evict).await, Err(Failure::Stale)));
    let gone = Bench::new(|_| Answer::Refused(404, "gone"));
    assert!(gone.perform(&evict).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_a_reader_is_asked_for_holds_for_all() {
    let bench = Bench::new(|_| Answer::Throttled(Some("7")));
    let error = live::get(&bench.api.client, "/api/v1/nodes/n1").await.unwrap_err();
    let failure = bench.executor.failed_to_read(error, Lane::Recovery);
    assert!(matches!(failure, Failure::Throttled(pause) if pause == Duration::from_secs(7)), "{failure}");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(matches!(bench.perform(&delete()).await, Err(Failure::Throttled(_))));
    assert_eq!(bench.api.asked().len(), 1, "nothing was sent meanwhile");
    assert!(bench.executor.pause(Lane::Tenants).is_some(), "all wait for what recoveries are asked for");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(bench.executor.pause(Lane::Tenants).is_none());
}

#[test]
fn a_webhook_that_is_not_there_is_a_refusal_of_the_pod_and_of_nothing_else() {
    let failed = |code| Failure::Api(kube::Error::Api(Status::failure("words", "").with_code(code).boxed()));
    let job = std::sync::Arc::new(JobRef { namespace: "ns".into(), name: "j".into(), uid: "u".into() });
    let create = job::Step::CreatePod {
        job,
        name: "j-0".into(),
        body: String::new(),
        reason: CreationReason::New,
        told: true,
    };
    for (code, of_pod, of_others) in [(403, true, true), (422, true, true), (500, true, false)] {
        assert_eq!(failed(code).refusal_of(&create).is_some(), of_pod, "{code}");
        assert_eq!(failed(code).refusal_of(&delete()).is_some(), of_others, "{code}");
    }
    assert_eq!(Failure::Unanswered(WRITE_TIMEOUT).refusal_of(&create), None, "it may be there");
}

#[tokio::test(start_paused = true)]
async fn what_is_told_in_passing_is_told_again_unless_it_is_refused() {
    let note = note("x".into());
    let again = 1 + EVENT_RETRIES.len();
    type Case = (&'static str, fn() -> Answer, usize);
    let cases: [Case; 4] = [
        ("done", Answer::ok, 1),
        ("forbidden", || Answer::Refused(403, "no"), 1),
        ("failed", || Answer::Refused(500, "not now"), again),
        ("not answered", || Answer::Never, again),
    ];
    for (case, answer, told) in cases {
        let bench = Bench::new(move |_| answer());
        bench.executor.record_in_background(note.clone(), bench.term);
        tokio::time::sleep(Duration::from_secs(2000)).await;
        assert_eq!(bench.api.count(&Method::POST), told, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_told_in_passing_holds_no_work_up_and_is_left_out_when_it_is_too_much() {
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(1)));
    let note = note("x".into());
    for _ in 0..MAX_QUEUED_EVENTS + 50 {
        bench.executor.record_in_background(note.clone(), bench.term);
    }
    let began = Instant::now();
    bench.perform(&delete()).await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(2), "it waited for {:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert_eq!(bench.api.count(&Method::POST), MAX_QUEUED_EVENTS);
}

fn create(name: &str) -> AnyStep {
    job::Step::CreatePod {
        job: std::sync::Arc::new(JobRef { namespace: "ns".into(), name: "j".into(), uid: "u".into() }),
        name: name.into(),
        body: "{}".into(),
        reason: CreationReason::New,
        told: true,
    }
    .into()
}

#[tokio::test(start_paused = true)]
async fn nothing_leaves_on_a_look_that_is_a_second_old_or_on_none() {
    let bench = Bench::new(|_| Answer::Json(200, live_node("u2", "9")));
    let term = bench.term;
    for action in [patch(), delete(), taint_node(), create("j-0")] {
        let looked = Some(Instant::now());
        tokio::time::sleep(READ_VALID_FOR).await;
        for looked in [looked, None] {
            let result = perform(&bench.executor, Lane::Recovery, &action, Basis { term, looked }).await;
            assert!(matches!(result, Err(Failure::LookTooOld)), "{}: {result:?}", action.name());
        }
    }
    assert_eq!(bench.api.asked().len(), bench.api.count(&Method::GET), "only reads");
    let looked = Some(Instant::now());
    tokio::time::sleep(READ_VALID_FOR - Duration::from_millis(1)).await;
    perform(&bench.executor, Lane::Recovery, &delete(), Basis { term, looked }).await.unwrap();
    // An event needs no look.
    perform(&bench.executor, Lane::Recovery, &event("x".into()), Basis { term, looked: None }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_write_has_to_read_makes_its_look_old_too() {
    let bench = Bench::new(|_| Answer::Json(200, live_node("u2", "9")).late(READ_VALID_FOR));
    let result = bench.perform(&taint_node()).await;
    assert!(matches!(result, Err(Failure::LookTooOld)), "{result:?}");
    assert_eq!(bench.api.count(&Method::PATCH), 0);
    // With the read before the look, the write is in time.
    let permit = bench.executor.permit(Lane::Recovery, bench.term).await.unwrap();
    let step = taint_node();
    let read = permit.read(step.name(), &step.reads()).await.unwrap();
    permit.write(&step.write(&read).unwrap(), bench.basis()).await.unwrap();
}

/// Four tenants' Jobs of a thousand pods each, on a slow server.
#[tokio::test(start_paused = true)]
async fn jobs_and_their_events_never_hold_up_a_recovery() {
    let bench = Bench::new(|asked| match asked.path.as_str() {
        "/api/v1/namespaces/ns/pods" => Answer::Never,
        path if path.ends_with("/events") => Answer::Never,
        _ => Answer::ok(),
    });
    let note = note("x".into());
    for number in 0..4000 {
        let (executor, term) = (bench.executor.clone(), bench.term);
        tokio::spawn(async move {
            let basis = Basis { term, looked: Some(Instant::now()) };
            let _ = perform(&executor, Lane::Tenants, &create(&format!("j-{number}")), basis).await;
        });
        bench.executor.record_in_background(note.clone(), term);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = Instant::now();
    for action in [patch(), delete()] {
        bench.perform(&action).await.unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_was_judged_in_one_term_is_not_written_in_the_next() {
    let bench = Bench::new(|_| Answer::ok());
    // Another replica may have led in between.
    (bench.lead)(None);
    (bench.lead)(Some(Duration::from_secs(3600)));
    assert!(matches!(bench.perform(&delete()).await, Err(Failure::NotLeading)));
    bench.executor.record_in_background(note("x".into()), bench.term);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(bench.api.asked().is_empty());
    let term = bench.leadership.term().unwrap();
    let basis = Basis { term, looked: Some(Instant::now()) };
    perform(&bench.executor, Lane::Recovery, &delete(), basis).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_a_server_that_has_too_much_to_do_holds_everybody() {
    let webhook = "admission webhook \"quota.example.com\" denied the request: slow down";
    let plain = "Too many requests, please try again later.";
    let limit = "limit reached on type Namespace for key ns";
    // The step, whether the answer is a Status, its message, and whether every lane waits.
    let cases = [
        (create("j-0"), true, webhook, false),
        (create("j-0"), true, limit, false),
        (create("j-0"), false, plain, true),
        (event("x".into()), true, limit, false),
        (event("x".into()), false, plain, true),
        (patch(), true, webhook, false),
        (delete(), true, webhook, false),
        (patch(), true, plain, true),
        (delete(), false, plain, true),
    ];
    for (action, is_status, message, everybody) in cases {
        let reason = if is_status { "TooManyRequests" } else { "" };
        let answer = move |_: &crate::testing::fake_api::Asked| {
            if is_status {
                let details = json!({"retryAfterSeconds": 300});
                let status = json!({
                    "kind": "Status", "status": "Failure", "code": 429, "reason": reason,
                    "message": message, "details": details,
                });
                Answer::Json(429, status)
            } else {
                Answer::Json(429, Value::String(message.into()))
            }
        };
        let bench = Bench::new(answer);
        let result = bench.perform(&action).await;
        let said = format!("{} {message:?} {result:?}", action.name());
        assert_eq!(matches!(result, Err(Failure::Throttled(_))), everybody, "{said}");
        assert_eq!(bench.executor.pause(Lane::Events).is_some(), everybody, "{said}");
        if let Err(failure) = result {
            let of_pod = (action.name() == "CreatePod") && !everybody;
            assert_eq!(failure.refusal_of(&action).is_some(), of_pod, "{said}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_server_asks_of_jobs_and_events_it_does_not_ask_of_recoveries() {
    let bench = Bench::new(|asked| match asked.method {
        Method::POST => Answer::Json(429, Value::String("Too many requests, please try again later.".into())),
        _ => Answer::ok(),
    });
    for (lane, action) in [(Lane::Tenants, create("j-0")), (Lane::Events, event("x".into()))] {
        let result = perform(&bench.executor, lane, &action, bench.basis()).await;
        assert!(matches!(result, Err(Failure::Throttled(_))), "{result:?}");
        assert!(bench.executor.pause(lane).is_some());
        assert!(bench.executor.pause(Lane::Recovery).is_none());
        bench.perform(&delete()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_writes_nothing_whoever_asks_for_it() {
    let bench = Bench::new(|_| Answer::Json(200, live_node("u2", "9")));
    let time = Time::system();
    let (client, metrics) = (bench.api.client.clone(), bench.metrics.clone());
    let executor = Executor::new(client, time, bench.leadership.clone(), metrics, "us".into(), 2, true);
    for action in [patch(), delete(), taint_node(), create("j-0"), event("x".into())] {
        let result = perform(&executor, Lane::Recovery, &action, bench.basis()).await;
        assert!(matches!(result, Err(Failure::DryRun)), "{}: {result:?}", action.name());
    }
    assert_eq!(bench.api.asked().len(), bench.api.count(&Method::GET));
}
