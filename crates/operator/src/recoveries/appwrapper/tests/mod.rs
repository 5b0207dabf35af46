//! The view: which changes it applies, which it ignores as outdated, and what a second look finds.

use salvor_api::config::parse;
use salvor_recovery::{
    Reason, Verdict,
    appwrapper::{AppWrapperStatus, Comparison, admitted::compare},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    client::{
        discovery::{Kind, Served},
        recent_reads::ReadAge,
    },
    engine::recovery::{Known as KnownAlready, LiveRecheck, Refused, View},
    execute::{Failure, Refusal, Written},
    metrics::Metrics,
    testing::fake_api::{Answer, FakeApi},
    time::Time,
    watch_set::watch::Project,
    webhooks::Keyring,
};

mod authors;
mod bounds;
mod changed;
mod many;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn recovery() -> AppWrappers {
    recovery_of("Job.batch, Pod")
}

fn recovery_of(kinds: &str) -> AppWrappers {
    let settings =
        format!("webhooks: {{enabled: false}}\nappwrapper: {{wrappedKindsWithoutWebhooks: [{kinds}]}}\n");
    recovery_with(&settings, &Keyring::default())
}

fn recovery_with(settings: &str, keyring: &Keyring) -> AppWrappers {
    let file = format!(
        "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\ncontrollers: [appwrapper]\n{settings}"
    );
    let configuration = parse(&file).unwrap();
    let policy = Arc::new(AppWrapperPolicy::new(&configuration));
    let rules = Arc::new(Rules::new(&configuration, keyring));
    AppWrappers::new(policy, rules, Metrics::new(&Time::system()).own(AppWrapperMetrics::register))
}

fn job_kind() -> Kind {
    Kind { group: "batch".into(), version: "v1".into(), kind: "Job".into() }
}

/// Marks the AppWrapper as admitted in its current form.
fn admit(mut object: Value) -> Value {
    let Comparison::New(admitted) = compare(&object, &AppWrapperStatus::default()) else {
        panic!("{object}")
    };
    object["status"]["admitted"] = json!(admitted);
    object
}

/// An AppWrapper of one Job, about to create it.
fn resuming(revision: u64) -> Value {
    let deployed = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Resuming", "message": "",
               "lastTransitionTime": "2027-01-15T08:00:00Z"})
    };
    admit(json!({
        "metadata": {
            "namespace": "ns", "name": "w", "uid": "w-uid", "resourceVersion": revision.to_string(),
            "creationTimestamp": "2027-01-15T07:59:59Z", "finalizers": ["a.example/b", "workload.codeflare.dev/finalizer"],
        },
        "spec": {"suspend": false, "components": [{"template": {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
        }}]},
        "status": {
            "phase": "Resuming",
            "conditions": [deployed("QuotaReserved"), deployed("ResourcesDeployed")],
            "componentStatus": [{"name": "", "kind": "", "apiVersion": "",
                                 "podSets": [{"path": "template.spec.template", "replicas": 1}]}],
        },
    }))
}

fn job(uid: &str, revision: u64, owner: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "namespace": "ns", "name": "j", "uid": uid, "resourceVersion": revision.to_string(),
            "creationTimestamp": "2027-01-15T08:00:00Z",
            "ownerReferences": [{"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": "w",
                                 "uid": owner, "controller": true}],
        },
    })
}

fn app(recovery: &AppWrappers, object: &Value) -> App {
    App::parse(&object.to_string(), &recovery.rules).unwrap().0
}

fn seen(object: &Value) -> FoundComponent {
    wire::found(&job_kind(), "", object).unwrap()
}

fn kind_news(news: OfKind<FoundComponent>) -> News {
    News::Component((&job_kind()).into(), news)
}

fn listed(all: &[Value], revision: &str) -> News {
    let all = all.iter().map(seen).collect();
    kind_news(OfKind::Change(Change::Reset { all, revision: revision.into(), asked: 0 }))
}

/// A fully listed recovery: one AppWrapper, and no Jobs.
fn with(object: &Value) -> (AppWrappers, AppWrapperRef) {
    knowing(recovery(), object)
}

/// As `with`, for a recovery that may wrap other kinds too.
fn knowing(mut recovery: AppWrappers, object: &Value) -> (AppWrappers, AppWrapperRef) {
    let all = vec![app(&recovery, object)];
    recovery.on_change(News::App(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    recovery.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    recovery.on_change(News::Node(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    recovery.on_change(kind_news(OfKind::Served(Served::at("/apis/batch/v1", "jobs"))), now());
    recovery.on_change(listed(&[], "1"), now());
    let subject = recovery.subjects().remove(0);
    (recovery, subject)
}

fn asked(recovery: &AppWrappers, subject: &AppWrapperRef) -> (&'static str, Vec<Step>) {
    let verdict = recovery.judge(subject, now()).unwrap().verdict;
    let code = verdict.why().code();
    match verdict {
        Verdict::Act { actions, .. } => (code, actions),
        Verdict::Wait { .. } | Verdict::Ignore(_) | Verdict::Blocked { .. } => (code, Vec::new()),
    }
}

fn names(steps: &[Step]) -> Vec<&'static str> {
    steps.iter().map(salvor_recovery::Step::name).collect()
}

fn create(recovery: &AppWrappers, subject: &AppWrapperRef) -> Step {
    let (code, mut steps) = asked(recovery, subject);
    assert_eq!((code, names(&steps)), ("Creating", vec!["CreateComponent"]));
    steps.remove(0)
}

#[test]
fn nothing_is_judged_before_everything_is_listed() {
    let mut recovery = recovery();
    let subject = app(&recovery, &resuming(5)).appwrapper;
    let all = vec![app(&recovery, &resuming(5))];
    recovery.on_change(News::App(Change::Reset { all, revision: "1".into(), asked: 0 }), now());
    assert!(recovery.judge(&subject, now()).is_none());
    recovery.on_change(News::Pod(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    assert!(recovery.judge(&subject, now()).is_none(), "the nodes are not known");
    recovery.on_change(News::Node(Change::Reset { all: Vec::new(), revision: "1".into(), asked: 0 }), now());
    // Its kind is not listed yet: the Job may exist.
    assert_eq!(asked(&recovery, &subject), ("CreationFailed", Vec::new()));
    recovery.on_change(kind_news(OfKind::Served(Served::at("/apis/batch/v1", "jobs"))), now());
    let woken = recovery.on_change(listed(&[], "1"), now());
    assert_eq!(woken, std::slice::from_ref(&subject));
    create(&recovery, &subject);
}

#[test]
fn a_created_component_is_known_by_the_answer_and_does_not_come_back_after_its_end() {
    let (mut recovery, subject) = with(&resuming(5));
    let step = create(&recovery, &subject);
    let answer = Written::Object(job("j1", 9, "w-uid").to_string());
    assert_eq!(recovery.done(&subject, &step, &answer, now()), View::Synced);
    assert!(!names(&asked(&recovery, &subject).1).contains(&"CreateComponent"));
    // A list from before the creation does not prove that it is gone; a later one does.
    recovery.on_change(listed(&[], "8"), now());
    assert!(!names(&asked(&recovery, &subject).1).contains(&"CreateComponent"));
    recovery.on_change(listed(&[], "10"), now());

    // The watch reports its deletion before the answer arrives.
    let (mut recovery, subject) = with(&resuming(5));
    let step = create(&recovery, &subject);
    recovery.on_change(kind_news(OfKind::Change(Change::Applied(seen(&job("j1", 9, "w-uid"))))), now());
    recovery.on_change(kind_news(OfKind::Change(Change::Gone("j1".into()))), now());
    recovery.done(&subject, &step, &answer, now());
    let known = &recovery.apps[&subject.uid];
    let snapshot = recovery.snapshot(known);
    assert!(matches!(&snapshot.components[0].1, Seen::Absent { last: Some(_) }), "{:?}", snapshot.components);
}

/// The API server restarts, and the next list lacks the Job. It may have succeeded and been removed by its TTL: only a
/// deletion that the watch reports is a user's deletion.
#[tokio::test]
async fn a_component_that_a_list_lacks_is_reset_and_one_that_the_watch_saw_go_was_deleted_by_a_user() {
    let mut running = resuming(5);
    running["status"]["phase"] = "Running".into();
    let gap = listed(&[], "20");
    for (news, expected) in
        [(gap, "Reset"), (kind_news(OfKind::Change(Change::Gone("j1".into()))), "GivenUp")]
    {
        let (mut recovery, subject) = with(&running);
        recovery.on_change(kind_news(OfKind::Change(Change::Applied(seen(&job("j1", 9, "w-uid"))))), now());
        recovery.on_change(news, now());
        assert_eq!(asked(&recovery, &subject).0, expected);
        let looked = look(&recovery, &subject, &api(running.clone(), Vec::new(), None)).await.unwrap();
        assert_eq!(looked.0, expected, "the second look knows no more");
    }
}

/// Pods of earlier waves have succeeded, and the one that should run now does not.
#[test]
fn a_pod_of_a_later_wave_of_a_job_is_awaited() {
    let pod = |name: &str, phase: &str| {
        let wire = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "labels": {MEMBER_LABEL: "w"},
                         "creationTimestamp": "2027-01-15T08:00:00Z",
                         "ownerReferences": [{"kind": "Job", "name": "j", "uid": "j1", "controller": true}]},
            "status": {"phase": phase, "containerStatuses": [
                {"state": {"terminated": {"exitCode": 0, "finishedAt": "2027-01-15T07:00:00Z"}}},
            ]},
        }));
        SeenPod::new(wire.unwrap(), &AppWrapperPolicy::default()).unwrap()
    };
    let mut running = resuming(5);
    running["status"]["phase"] = "Running".into();
    let (mut recovery, subject) = with(&running);
    let mut waves = job("j1", 9, "w-uid");
    waves["spec"] = json!({"completions": 4, "parallelism": 1});
    waves["status"] = json!({"succeeded": 1});
    recovery.on_change(kind_news(OfKind::Change(Change::Applied(seen(&waves)))), now());
    for (name, phase, expected) in
        [("a", "Succeeded", "AwaitingPods"), ("b", "Pending", "AwaitingPods"), ("b", "Running", "Healthy")]
    {
        recovery.on_change(News::Pod(Change::Applied(pod(name, phase))), now());
        assert_eq!(asked(&recovery, &subject).0, expected, "{name} {phase}");
    }
}

#[test]
fn an_object_of_somebody_else_under_the_name_is_never_taken_for_the_component() {
    let (mut recovery, subject) = with(&resuming(5));
    let step = create(&recovery, &subject);
    // Owned by an AppWrapper of the same name that is gone by now.
    let answer = Written::Object(job("j1", 9, "another-uid").to_string());
    recovery.done(&subject, &step, &answer, now());
    let (code, steps) = asked(&recovery, &subject);
    assert_eq!(code, "GivenUp");
    let Step::PatchStatus { status, .. } = &steps[0] else { panic!("{steps:?}") };
    assert_eq!(status.phase.as_str(), "Failed");
    assert!(status.resets[0].message.contains("is not owned by this AppWrapper"), "{status:?}");
}

#[test]
fn a_refused_creation_is_tried_again_unless_it_never_helps() {
    for (code, expected) in [(403, "CreationFailed"), (500, "CreationFailed"), (422, "GivenUp")] {
        let (mut recovery, subject) = with(&resuming(5));
        let step = create(&recovery, &subject);
        let refusal = Refusal { code, ..Refusal::saying("no") };
        assert!(matches!(recovery.refused(&subject, &step, &refusal, now()), Refused::Judged(None)));
        assert_eq!(asked(&recovery, &subject).0, expected, "{code}");
    }
}

/// Without an answer, the component may or may not have been created. This is a transient failure, and the rules see
/// it.
#[test]
fn a_creation_without_an_answer_is_remembered() {
    let (mut recovery, subject) = with(&resuming(5));
    let step = create(&recovery, &subject);
    let unanswered = Failure::Unanswered(std::time::Duration::from_secs(10));
    // It may have been applied: that is checked after a second, and not by sending it again at once.
    for failure in [&unanswered, &unanswered, &Failure::Gone] {
        let end = Ended {
            done: &[],
            is_current: true,
            refused: None,
            failed: Some((&step, failure)),
            worked: false,
            took: std::time::Duration::ZERO,
        };
        assert!(recovery.ended(&subject, end, now()).decide_again);
        let known = &recovery.apps[&subject.uid].memory.creation[&0];
        assert!(!known.fatal, "{known:?}");
        assert_eq!(asked(&recovery, &subject).0, "CreationFailed");
    }
    assert_eq!(recovery.apps[&subject.uid].memory.creation[&0].attempts, 3);
    let (mut recovery, subject) = with(&resuming(5));
    assert!(matches!(recovery.failed(&subject, &step, &Failure::NotLeading, now()), Refused::Waits));
    create(&recovery, &subject);
}

/// Leases are read only for lost nodes with pods, also where a lost node alone is no cause for a reset.
#[test]
fn leases_are_read_of_lost_nodes_with_pods() {
    for wanted in [false, true] {
        let (mut recovery, _) = with(&resuming(5));
        recovery.policy =
            Arc::new(AppWrapperPolicy { unreachable_nodes: wanted, ..(*recovery.policy).clone() });
        let node = |name: &str, ready: &str| {
            let wire = serde_json::from_value(json!({
                "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }));
            SeenNode::new(&wire.unwrap(), &recovery.policy)
        };
        let nodes = [node("lost", "Unknown"), node("empty", "Unknown"), node("well", "True")];
        let pod = |name: &str, node: &str| {
            let wire = serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "labels": {MEMBER_LABEL: "w"},
                             "creationTimestamp": "2027-01-15T08:00:00Z"},
                "spec": {"nodeName": node},
                "status": {"phase": "Running"},
            }));
            SeenPod::new(wire.unwrap(), &AppWrapperPolicy::default()).unwrap()
        };
        let pods = [pod("a", "lost"), pod("b", "well")];
        for node in nodes {
            recovery.on_change(News::Node(Change::Applied(node)), now());
        }
        for pod in pods {
            recovery.on_change(News::Pod(Change::Applied(pod)), now());
        }
        let read: Vec<NodeName> = recovery.leases.now().into_iter().collect();
        assert_eq!(read, ["lost"]);
        // It has no Lease: reading it again reveals nothing new, and its AppWrapper is requeued.
        let woken = recovery.on_change(News::Lease { node: "lost".into(), lease: None }, now());
        assert_eq!((woken.len(), recovery.leases.now().len()), (1, 0));
    }
}

#[test]
fn finalizers_of_others_stay() {
    let (recovery, _) = with(&resuming(5));
    let app = app(&recovery, &resuming(5));
    assert!(app.has_finalizer);
    assert_eq!(app.other_finalizers, ["a.example/b"]);
}

#[test]
fn a_status_that_cannot_be_read_is_not_that_of_a_new_appwrapper() {
    let mut object = resuming(5);
    object["status"]["conditions"] = json!([{"type": 7}]);
    let (recovery, subject) = with(&object);
    assert_eq!(asked(&recovery, &subject), ("UnknownPhase", Vec::new()));
}

#[test]
fn an_appwrapper_of_another_controller_is_not_even_kept() {
    let recovery = recovery();
    let ours = OurAppWrappers(recovery.rules.clone());
    for (managed_by, kept) in [
        (json!(null), true),
        (json!("workload.codeflare.dev/appwrapper-controller"), true),
        (json!("kueue.x-k8s.io/multikueue"), false),
        (json!(""), false),
    ] {
        let mut object = resuming(5);
        object["spec"]["managedBy"] = managed_by.clone();
        let wire = serde_json::from_value(object).unwrap();
        assert_eq!(ours.keep(wire).is_some(), kept, "{managed_by}");
    }
}

#[test]
fn only_wrapped_kinds_are_watched_and_each_once_in_whatever_version() {
    let mut recovery = recovery();
    for number in 0..200 {
        let mut object = resuming(5);
        object["metadata"]["uid"] = format!("u{number}").into();
        object["metadata"]["name"] = format!("w{number}").into();
        object["spec"]["components"][0]["template"]["apiVersion"] = format!("batch/v{number}").into();
        let mut secret = object["spec"]["components"][0].clone();
        secret["template"]["apiVersion"] = "v1".into();
        secret["template"]["kind"] = "Secret".into();
        object["spec"]["components"].as_array_mut().unwrap().push(secret);
        let app = app(&recovery, &admit(object));
        recovery.on_change(News::App(Change::Applied(app)), now());
    }
    assert_eq!(recovery.kinds.feeds().len(), 1, "all versions share one watch");
    let mut object = resuming(5);
    object["metadata"]["uid"] = "pod".into();
    object["spec"]["components"][0]["template"] = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let pod = app(&recovery, &admit(object));
    recovery.on_change(News::App(Change::Applied(pod)), now());
    assert_eq!(recovery.kinds.feeds().len(), 2, "there is room for other kinds");
    recovery.on_change(News::App(Change::Gone("pod".into())), now());
    let secret = Kind { group: String::new(), version: "v1".into(), kind: "Secret".into() };
    assert!(recovery.kinds.get(&secret).is_none());
    for number in 0..200 {
        recovery.on_change(News::App(Change::Gone(format!("u{number}").into())), now());
    }
    assert_eq!(recovery.kinds.feeds().len(), 0, "kinds that are not served are not watched for nobody");
}

/// Serves one AppWrapper and these Jobs; the list contains only those with the label.
fn api(object: Value, labelled: Vec<Value>, by_name: Option<Value>) -> FakeApi {
    FakeApi::new(move |asked| match asked.path.as_str() {
        "/apis/workload.codeflare.dev/v1beta2/namespaces/ns/appwrappers/w" => {
            Answer::Json(200, object.clone())
        }
        "/apis/batch/v1/namespaces/ns/jobs" => {
            assert!(asked.query.contains("labelSelector=workload.codeflare.dev%2Fappwrapper%3Dw"));
            Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": labelled}))
        }
        "/apis/batch/v1/namespaces/ns/jobs/j" => match &by_name {
            Some(job) => Answer::Json(200, job.clone()),
            None => Answer::Refused(404, "not found"),
        },
        "/api/v1/namespaces/ns/pods" => {
            Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": []}))
        }
        other => panic!("{other}"),
    })
}

async fn look(recovery: &AppWrappers, subject: &AppWrapperRef, api: &FakeApi) -> Option<(String, Vec<Step>)> {
    let recheck = recovery.recheck(subject, now());
    let decision = recheck.ask(&api.client, KnownAlready::Nothing, now(), &mut ReadAge::default()).await;
    let verdict = decision.unwrap()?.verdict;
    Some((verdict.why().code().to_owned(), verdict.actions().to_vec()))
}

#[tokio::test]
async fn nothing_is_created_for_one_that_is_gone_suspended_or_another_one() {
    let (recovery, subject) = with(&resuming(5));
    let found = look(&recovery, &subject, &api(resuming(6), Vec::new(), None)).await.unwrap();
    assert_eq!((found.0.as_str(), names(&found.1)), ("Creating", vec!["CreateComponent"]));
    let Step::CreateComponent { body: Some(body), .. } = &found.1[0] else { panic!("{found:?}") };
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "w-uid");
    let pod = &body["spec"]["template"]["metadata"]["labels"];
    assert_eq!(pod["workload.codeflare.dev/appwrapper"], "w");

    let mut suspended = resuming(6);
    suspended["spec"]["suspend"] = true.into();
    let found = look(&recovery, &subject, &api(suspended, Vec::new(), None)).await.unwrap();
    assert_eq!((found.0.as_str(), names(&found.1)[0]), ("Suspending", "PatchAppWrapperStatus"));

    let mut another = resuming(6);
    another["metadata"]["uid"] = "another".into();
    assert!(look(&recovery, &subject, &api(another, Vec::new(), None)).await.is_none());
}

#[tokio::test]
async fn a_component_whose_label_was_taken_off_is_found_by_its_name_and_deleted() {
    let mut object = resuming(5);
    object["status"]["phase"] = "Suspending".into();
    object["spec"]["suspend"] = true.into();
    let (recovery, subject) = with(&object);
    // The watch does not show it, so everything seems to be gone.
    assert_eq!(asked(&recovery, &subject).0, "Deleted");
    let api = api(object, Vec::new(), Some(job("j1", 9, "w-uid")));
    let found = look(&recovery, &subject, &api).await.unwrap();
    assert_eq!(found.0, "Deleting");
    // The view keeps what the look found.
    let (code, steps) = asked(&recovery, &subject);
    assert_eq!((code, names(&steps)), ("Deleting", vec!["PatchAppWrapperStatus", "DeleteComponent"]));
}

#[test]
fn what_was_gone_in_an_attempt_that_is_over_is_not_missed_in_the_next() {
    let (mut recovery, subject) = with(&resuming(5));
    let step = create(&recovery, &subject);
    recovery.done(&subject, &step, &Written::Object(job("j1", 9, "w-uid").to_string()), now());
    // Suspended, and resumed within the same second; the watch is late.
    let mut suspended = resuming(10);
    suspended["status"]["phase"] = "Suspended".into();
    suspended["status"]["conditions"] = json!([]);
    for object in [suspended, resuming(11)] {
        let app = app(&recovery, &object);
        recovery.on_change(News::App(Change::Applied(app)), now());
    }
    recovery.on_change(kind_news(OfKind::Change(Change::Gone("j1".into()))), now());
    create(&recovery, &subject);
}

/// A pod whose containers were reported as terminated, on a node that is not marked unreachable yet. The Lease, read live, shows
/// whether the kubelet was cut off meanwhile.
#[tokio::test]
async fn the_word_of_a_kubelet_counts_if_its_lease_is_renewed_when_it_is_read_live() {
    let mut object = resuming(5);
    object["spec"]["suspend"] = true.into();
    object["status"]["phase"] = "Suspending".into();
    let begun = json!({"type": "DeletingResources", "status": "True", "reason": "DeletionInitiated", "message": "",
                       "lastTransitionTime": "2027-01-15T07:00:00Z"});
    object["status"]["conditions"].as_array_mut().unwrap().push(begun);
    object["metadata"]["creationTimestamp"] = "2027-01-15T06:00:00Z".into();
    let pod = json!({
        "metadata": {"namespace": "ns", "name": "db-0", "uid": "db-0", "resourceVersion": "1", "labels": {MEMBER_LABEL: "w"},
                     "creationTimestamp": "2027-01-15T06:00:00Z", "deletionTimestamp": "2027-01-15T07:00:30Z",
                     "deletionGracePeriodSeconds": 30,
                     "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]},
    });
    let node = json!({
        "metadata": {"name": "n1", "uid": "n1", "resourceVersion": "1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let (mut recovery, subject) = with(&object);
    let seen = SeenNode::new(&serde_json::from_value(node.clone()).unwrap(), &recovery.policy);
    recovery.on_change(News::Node(Change::Applied(seen)), now());
    let seen = SeenPod::new(serde_json::from_value(pod.clone()).unwrap(), &recovery.policy).unwrap();
    recovery.on_change(News::Pod(Change::Applied(seen)), now());
    // Twice: what one look has read of the Lease does not speak for the kubelet later.
    for (renewed, expected) in
        [("2027-01-15T07:59:30.000000Z", vec!["DeletePod"]), ("2027-01-15T07:59:15.000000Z", Vec::new())]
    {
        assert_eq!(names(&asked(&recovery, &subject).1), ["DeletePod"]);
        let (object, pod, node) = (object.clone(), pod.clone(), node.clone());
        let api = FakeApi::new(move |asked| match asked.path.as_str() {
            "/apis/workload.codeflare.dev/v1beta2/namespaces/ns/appwrappers/w" => {
                Answer::Json(200, object.clone())
            }
            "/apis/batch/v1/namespaces/ns/jobs" => {
                Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": []}))
            }
            "/api/v1/namespaces/ns/pods" => {
                Answer::Json(200, json!({"metadata": {"resourceVersion": "20"}, "items": [pod]}))
            }
            "/api/v1/nodes/n1" => Answer::Json(200, node.clone()),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1" => {
                let metadata = json!({"name": "n1", "resourceVersion": "20"});
                let spec = json!({"renewTime": renewed, "leaseDurationSeconds": 40});
                Answer::Json(200, json!({"metadata": metadata, "spec": spec}))
            }
            _ => Answer::Refused(404, "not found"),
        });
        recovery.heartbeats.forget(&"n1".into());
        let found = look(&recovery, &subject, &api).await.unwrap();
        assert_eq!(names(&found.1), expected, "renewed at {renewed}");
    }
}
