//! Which change requeues which subject, and the evaluation of Leases.

use std::time::Duration;

use futures::future::join_all;
use jiff::SignedDuration;
use salvor_api::config::Configuration;
use salvor_recovery::{Reason, Step as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{wire::PodWire, *};
use crate::{
    client::recent_reads::ReadAge,
    engine::recovery::{Known, LiveRecheck, Refused, View},
    execute::{self, Written},
    testing::fake_api::{Answer, FakeApi},
    watch_set::{nodes::NodeWire, watch::Moment},
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn evictions() -> Evictions {
    let policy = Arc::new(EvictionPolicy::new(&Configuration::default()));
    Evictions::new(policy, EvictionMetrics::default())
}

fn node(revision: &str, taints: &[&str], progress: Option<&str>) -> Value {
    let taints: Vec<Value> =
        taints.iter().map(|effect| json!({"key": "salvor.dev/force-eviction", "effect": effect})).collect();
    json!({
        "metadata": {
            "name": "a", "uid": "node-uid", "resourceVersion": revision,
            "annotations": progress.map_or(json!({}), |p| json!({"eviction.salvor.dev/progress": p})),
        },
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    })
}

const STARTED: &str =
    r#"{"started":"2026-01-02T03:04:05Z","request":"salvor.dev/force-eviction:NoSchedule"}"#;

fn news(evictions: &Evictions, node: Value) -> News {
    News::Node(Change::Applied(seen_node(evictions, node)))
}

fn seen_node(evictions: &Evictions, node: Value) -> SeenNode {
    let wire: NodeWire = serde_json::from_value(node).unwrap();
    SeenNode::new(&wire, &Arc::new(CountedNode::from(&wire)), &evictions.policy)
}

fn pod() -> PodView {
    let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "pod-uid", "resourceVersion": "1"}});
    serde_json::from_value::<PodWire>(pod)
        .unwrap()
        .view(EvictionPolicy::new(&Configuration::default()).gate())
}

fn names(woken: &[Subject]) -> Vec<String> {
    let mut names: Vec<String> = woken.iter().map(ToString::to_string).collect();
    names.sort();
    names
}

/// A node whose eviction is requested, with one pod.
fn asked_for() -> Evictions {
    let mut evictions = evictions();
    let request = news(&evictions, node("1", &["NoSchedule"], None));
    evictions.on_change(request, at(0));
    let all = Change::Reset { all: vec![pod()], revision: "1".into(), asked: 0 };
    evictions.on_change(News::Pod { node: "a".into(), number: 1, change: Box::new(all) }, at(0));
    evictions
}

#[test]
fn the_answer_to_our_own_write_is_seen_at_once_and_wakes_the_pods_when_the_watch_brings_it() {
    let mut evictions = asked_for();
    let begun = node("5", &["NoSchedule", "NoExecute"], Some(STARTED));
    let step = Step::EmitEvent(salvor_recovery::event::EventNote {
        name: "told".into(),
        regarding: (&evictions.nodes["a"].view.node).into(),
        kind: salvor_recovery::event::EventType::Normal,
        reason: "x".into(),
        action: "x",
        reporting_controller: "x",
        message: String::new(),
    });
    let subject = Subject::node(&"a".into());
    assert_eq!(evictions.done(&subject, &step, &Written::Nothing, at(1)), View::Synced);
    let report = Step::EvictPod { pod: pod().pod, resource_version: "1".into() };
    let written = Written::Object(begun.to_string());
    assert_eq!(evictions.done(&subject, &report, &written, at(1)), View::Synced);
    assert!(evictions.nodes["a"].view.progress.is_some());
    assert!(evictions.nodes["a"].view.told.contains("told"), "what was told stays told");
    let echo = news(&evictions, begun);
    assert_eq!(names(&evictions.on_change(echo, at(1))), ["node a", "pod ns/p"]);
    // An event of the watch from before the write arrives late.
    let late = news(&evictions, node("3", &["NoSchedule"], None));
    assert_eq!(names(&evictions.on_change(late, at(1))), ["node a"]);
    assert!(evictions.nodes["a"].view.progress.is_some());
}

/// A backup was restored: revisions restart, and everything known is void.
#[test]
fn after_revisions_went_backwards_only_what_the_new_list_shows_is_known() {
    for (moment, believed) in [(Moment::new_history("20"), true), ("99".into(), true), ("20".into(), false)] {
        let mut evictions = asked_for();
        let begun = news(&evictions, node("90", &["NoSchedule", "NoExecute"], Some(STARTED)));
        evictions.on_change(begun, at(1));
        let new_history = moment.new_history;
        let all = vec![seen_node(&evictions, node("10", &["NoSchedule"], None))];
        let list = News::Node(Change::Reset { all, revision: moment, asked: 0 });
        assert!(names(&evictions.on_change(list, at(2))).contains(&"pod ns/p".to_owned()));
        assert_eq!(evictions.nodes["a"].view.progress.is_none(), believed);
        assert_eq!(evictions.nodes["a"].pods.is_empty(), new_history, "they are read anew too");
        if believed {
            let later = news(&evictions, node("21", &["NoSchedule", "NoExecute"], Some(STARTED)));
            evictions.on_change(later, at(3));
            assert!(evictions.nodes["a"].view.progress.is_some(), "what happens now is news");
        }
    }
}

#[test]
fn an_answer_that_comes_after_the_node_is_gone_does_not_bring_it_back() {
    let mut evictions = asked_for();
    let uid = evictions.nodes["a"].view.node.uid.clone();
    evictions.on_change(News::Node(Change::Gone(uid)), at(1));
    let answer = Written::Object(node("5", &["NoSchedule", "NoExecute"], Some(STARTED)).to_string());
    evictions.done(
        &Subject::node(&"a".into()),
        &Step::EvictPod { pod: pod().pod, resource_version: "1".into() },
        &answer,
        at(1),
    );
    assert!(evictions.nodes.is_empty() && evictions.counted.is_empty());
}

#[test]
fn a_node_that_nobody_asks_about_is_forgotten_with_its_pods_and_looked_at_anew_when_somebody_does() {
    let mut evictions = asked_for();
    let over = news(&evictions, node("7", &[], None));
    assert_eq!(names(&evictions.on_change(over, at(1))), ["node a", "pod ns/p"]);
    assert!(evictions.judge(&Subject::node(&"a".into()), at(1)).is_none());
    assert!(evictions.wanted_leases.now().is_empty() && evictions.works.now().is_empty());
    assert!(evictions.watched.is_empty());
    let again = news(&evictions, node("8", &["NoSchedule"], None));
    evictions.on_change(again, at(2));
    assert_eq!(evictions.watched["a"], 2, "another look than the first");
    // A late message of the first watch does not belong to this one.
    let late = News::Pod { node: "a".into(), number: 1, change: Box::new(Change::Applied(pod())) };
    assert_eq!(names(&evictions.on_change(late, at(2))), Vec::<String>::new());
    assert!(evictions.nodes["a"].pods.is_empty() && !evictions.nodes["a"].pods_listed);
}

#[test]
fn a_lease_that_moves_shows_life_whatever_its_clock() {
    let lasts = SignedDuration::from_secs(40);
    let read = |renewed| Some(NodeLease::new(at(renewed), lasts));
    let first = seen(Lease::Unread, read(-600), at(0));
    assert_eq!(first, Lease::Renewed { written: at(-600), heard: at(-600), lasts, moves: false });
    assert!(!first.is_fresh(at(0)));
    assert_eq!(seen(first, read(-600), at(10)), first);
    // Ten minutes behind, but alive.
    let second = seen(first, read(-590), at(10));
    assert_eq!(second, Lease::Renewed { written: at(-590), heard: at(10), lasts, moves: true });
    assert!(second.is_fresh(at(49)) && !second.is_fresh(at(50)));
    assert_eq!(seen(second, read(-590), at(60)), second, "silent since");
    assert_eq!(seen(second, None, at(60)), Lease::None);
    let appears = seen(Lease::None, read(0), at(5));
    assert_eq!(appears, Lease::Renewed { written: at(0), heard: at(5), lasts, moves: true });
    // Half an hour ahead: dead or alive, its last sign of life is not in the future.
    let ahead = seen(Lease::Unread, read(1800), at(0));
    assert_eq!(seen(ahead, read(1800), at(40)), ahead);
    assert!(ahead.is_fresh(at(39)) && !ahead.is_fresh(at(40)));
    let set_right = seen(ahead, read(10), at(10));
    assert!(set_right.is_fresh(at(49)), "a clock that is set back has been alive to be so");
}

#[test]
fn a_changed_zone_wakes_the_requests_in_it() {
    let mut evictions = asked_for();
    let other = |unreachable: bool| {
        let key = if unreachable { "node.kubernetes.io/unreachable" } else { "x" };
        json!({
            "metadata": {"name": "b", "uid": "b-uid", "resourceVersion": "2"},
            "spec": {"taints": [{"key": key, "effect": "NoExecute"}]},
        })
    };
    let lost = news(&evictions, other(true));
    assert_eq!(names(&evictions.on_change(lost, at(0))), ["node a", "node b"]);
    let same = news(&evictions, other(true));
    assert_eq!(names(&evictions.on_change(same, at(0))), ["node b"]);
    assert_eq!(evictions.count("", at(0)), NodeCounts { unreachable: 1, total: 2 });
}

#[test]
fn a_request_that_comes_after_a_stop_is_woken_by_its_zone_too() {
    let stopped = r#"{"started":"2026-01-02T03:04:05Z","request":"example.com/off:NoSchedule","stopped":"2026-01-02T03:05:05Z"}"#;
    let mut evictions = evictions();
    let again = news(&evictions, node("1", &["NoSchedule"], Some(stopped)));
    evictions.on_change(again, at(0));
    let moves = |zone: &str, revision: &str| {
        json!({"metadata": {
            "name": "b", "uid": "b-uid", "resourceVersion": revision,
            "labels": {"topology.kubernetes.io/zone": zone},
        }})
    };
    let comes = news(&evictions, moves("", "2"));
    assert_eq!(names(&evictions.on_change(comes, at(0))), ["node a", "node b"]);
    let goes = news(&evictions, moves("elsewhere", "3"));
    assert_eq!(names(&evictions.on_change(goes, at(0))), ["node a", "node b"]);
}

#[test]
fn the_lease_of_a_finished_one_is_read_once_after_a_restart_and_again_when_somebody_asks() {
    let finished = r#"{"started":"2026-01-02T03:04:05Z","request":"salvor.dev/force-eviction:NoSchedule","finished":"2026-01-02T03:05:05Z"}"#;
    let mut evictions = evictions();
    let wanted = |evictions: &Evictions| !evictions.wanted_leases.now().is_empty();
    let found = news(&evictions, node("1", &["NoSchedule", "NoExecute"], Some(finished)));
    evictions.on_change(found, at(0));
    assert!(wanted(&evictions), "a pod that comes late must not wait for it");
    let lease = NodeLease::new(at(-600), SignedDuration::from_secs(40));
    evictions.on_change(News::Lease { node: "a".into(), lease: Some(lease) }, at(0));
    assert!(!wanted(&evictions));
    let again = news(&evictions, node("2", &["NoSchedule"], Some(finished)));
    evictions.on_change(again, at(1));
    assert!(wanted(&evictions), "our taint was taken off, and the request stands");
}

/// A server with the node of [`begun`], with this delay before every answer.
fn server(round_trip: Duration) -> FakeApi {
    FakeApi::behind(
        move || round_trip,
        |asked| match asked.path.as_str() {
            "/api/v1/nodes/a" => Answer::Json(200, node("5", &["NoSchedule", "NoExecute"], Some(STARTED))),
            "/api/v1/pods" => Answer::Json(200, json!({"metadata": {"resourceVersion": "9"}, "items": []})),
            _ => Answer::Refused(404, "there is none"),
        },
    )
}

/// A node whose eviction has begun, with one pod.
fn begun() -> Evictions {
    let mut evictions = asked_for();
    let begun = news(&evictions, node("5", &["NoSchedule", "NoExecute"], Some(STARTED)));
    evictions.on_change(begun, at(0));
    evictions.on_change(News::Lease { node: "a".into(), lease: None }, at(0));
    evictions
}

#[tokio::test(start_paused = true)]
async fn a_second_look_at_a_node_and_its_pods_is_one_round_trip() {
    let round_trip = Duration::from_millis(100);
    let (evictions, api) = (begun(), server(round_trip));
    let before = Instant::now();
    let recheck = evictions.recheck(&Subject::node(&"a".into()), at(1));
    let decision =
        recheck.ask(&api.client, Known::Nothing, at(1), &mut ReadAge::default()).await.unwrap().unwrap();
    assert_eq!(decision.verdict.why().code(), "AttachmentsUnread", "no pod is left there");
    // Timers have a precision of a millisecond.
    assert!(before.elapsed() < round_trip * 3 / 2, "{:?}", before.elapsed());
    assert_eq!(api.asked().len(), 3, "node, Lease and pods");
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_share_one_look_at_it() {
    let round_trip = Duration::from_millis(100);
    let (evictions, api) = (begun(), server(round_trip));
    let before = Instant::now();
    let rechecks = (0..32).map(|_| evictions.recheck(&Subject::pod(&"a".into(), &pod().pod), at(1)));
    let asked =
        rechecks.map(|recheck| {
            let client = &api.client;
            async move {
                recheck.ask(client, Known::Guarded, at(1), &mut ReadAge::default()).await.unwrap().unwrap()
            }
        });
    let decisions = join_all(asked).await;
    assert!(decisions.iter().all(|decision| decision.verdict.actions().len() == 3));
    assert!(before.elapsed() < round_trip * 3 / 2, "{:?}", before.elapsed());
    assert_eq!(api.asked().len(), 2, "node and Lease, once for all");
}

fn uncertain() -> Evictions {
    let file = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\neviction: {triggers: [{key: example.com/lost}]}\n";
    let policy = Arc::new(EvictionPolicy::new(&salvor_api::config::parse(file).unwrap()));
    Evictions::new(policy, EvictionMetrics::default())
}

/// Begun because of a taint that proves nothing.
fn unproven(revision: &str) -> Value {
    let mut node = node(
        revision,
        &["NoExecute"],
        Some(r#"{"started":"2026-01-02T03:04:05Z","request":"example.com/lost:NoSchedule"}"#),
    );
    let taints = node["spec"]["taints"].as_array_mut().unwrap();
    taints[0]["value"] = "lost".into();
    taints.push(json!({"key": "example.com/lost", "effect": "NoSchedule"}));
    node
}

fn claiming(volumes: &Value) -> PodView {
    let metadata = json!({"namespace": "ns", "name": "p", "uid": "pod-uid", "resourceVersion": "1"});
    let pod = json!({"metadata": metadata, "spec": {"volumes": volumes}, "status": {"phase": "Running"}});
    serde_json::from_value::<PodWire>(pod)
        .unwrap()
        .view(EvictionPolicy::new(&Configuration::default()).gate())
}

fn claim(name: &str) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": name}})
}

#[test]
fn what_a_pod_says_itself_of_its_volumes() {
    let many: Vec<Value> = (0..17).map(|i| claim(&i.to_string())).collect();
    let own = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}});
    let cases = [
        (json!([]), Copies::Allowed),
        (json!([{"name": "x", "emptyDir": {}}, {"name": "y", "nfs": {}}]), Copies::Allowed),
        (json!([own]), Copies::Allowed),
        (json!([own, claim("data")]), Copies::Unread),
        (
            json!([claim("a"), {"name": "disk", "gcePersistentDisk": {"pdName": "x"}}]),
            Copies::Forbidden("volume disk is a disk for one node".into()),
        ),
        (json!(many), Copies::Forbidden("it has 17 claims, more than are read".into())),
    ];
    for (volumes, expected) in cases {
        assert_eq!(claiming(&volumes).work.copies, expected, "{volumes}");
    }
    let pod = claiming(&json!([own, claim("data")]));
    let names: Vec<String> = pod.all_claims().map(ToString::to_string).collect();
    assert_eq!(names, ["ns/data", "ns/p-scratch"]);
}

#[test]
fn claims_are_read_only_where_they_decide_and_until_that_is_known() {
    let mut evictions = uncertain();
    let wanted = |evictions: &Evictions| evictions.works.now().len();
    let tell = |evictions: &mut Evictions, change| {
        evictions.on_change(News::Pod { node: "a".into(), number: 1, change: Box::new(change) }, at(0))
    };
    let asked = json!({
        "metadata": {"name": "a", "uid": "node-uid", "resourceVersion": "1"},
        "spec": {"taints": [{"key": "example.com/lost", "effect": "NoSchedule"}]},
    });
    let asked = news(&evictions, asked);
    evictions.on_change(asked, at(0));
    let all = Change::Reset { all: vec![claiming(&json!([claim("data")]))], revision: "1".into(), asked: 0 };
    tell(&mut evictions, all);
    assert_eq!(wanted(&evictions), 0, "not before it has begun");
    let begun = news(&evictions, unproven("2"));
    evictions.on_change(begun, at(0));
    assert_eq!(wanted(&evictions), 1);
    let found = |copies| News::Work { pod: ("a".into(), 1, "pod-uid".into()), copies };
    let woken = evictions.on_change(found(Copies::Unreadable("no".into())), at(1));
    assert_eq!(names(&woken), ["node a", "pod ns/p"]);
    assert_eq!(wanted(&evictions), 1, "again, later");
    assert_eq!(
        names(&evictions.on_change(found(Copies::Unreadable("no".into())), at(1))),
        Vec::<String>::new()
    );
    evictions.on_change(found(Copies::Allowed), at(2));
    assert_eq!(wanted(&evictions), 0);
    tell(&mut evictions, Change::Applied(claiming(&json!([claim("data")]))));
    assert_eq!(evictions.nodes["a"].pods["pod-uid"].work.copies, Copies::Allowed, "its claims do not change");
    // A late answer to an earlier watch does not belong to this one.
    let late = News::Work { pod: ("a".into(), 7, "pod-uid".into()), copies: Copies::Unread };
    assert_eq!(names(&evictions.on_change(late, at(2))), Vec::<String>::new());
    // A user's request is proof: claims are not read.
    let mut evictions = begun_with(claiming(&json!([claim("data")])));
    assert_eq!(wanted(&evictions), 0);
    let returned = r#"{"started":"2026-01-02T03:04:05Z","request":"salvor.dev/force-eviction:NoSchedule","returned":"2026-01-02T03:05:05Z"}"#;
    let back = news(&evictions, node("6", &["NoSchedule", "NoExecute"], Some(returned)));
    evictions.on_change(back, at(3));
    assert_eq!(wanted(&evictions), 1, "until the kubelet was heard of");
}

fn begun_with(pod: PodView) -> Evictions {
    let mut evictions = evictions();
    let begun = news(&evictions, node("5", &["NoSchedule", "NoExecute"], Some(STARTED)));
    evictions.on_change(begun, at(0));
    let all = Change::Reset { all: vec![pod], revision: "1".into(), asked: 0 };
    evictions.on_change(News::Pod { node: "a".into(), number: 1, change: Box::new(all) }, at(0));
    evictions.on_change(News::Lease { node: "a".into(), lease: None }, at(0));
    evictions
}

/// The claim is deleted and created again for one node only, between the decision and the second look.
#[tokio::test(start_paused = true)]
async fn a_second_look_reads_claims_too() {
    for (modes, act) in [(json!(["ReadWriteMany"]), true), (json!(["ReadWriteOnce"]), false)] {
        let mut evictions = uncertain();
        let begun = news(&evictions, unproven("5"));
        evictions.on_change(begun, at(0));
        let pod = claiming(&json!([claim("data")]));
        let subject = Subject::pod(&"a".into(), &pod.pod);
        let all = Change::Reset { all: vec![pod], revision: "1".into(), asked: 0 };
        evictions.on_change(News::Pod { node: "a".into(), number: 1, change: Box::new(all) }, at(0));
        evictions.on_change(News::Lease { node: "a".into(), lease: None }, at(0));
        evictions
            .on_change(News::Work { pod: ("a".into(), 1, "pod-uid".into()), copies: Copies::Allowed }, at(0));
        assert_eq!(evictions.judge(&subject, at(1)).unwrap().verdict.name(), "Act");
        let api = FakeApi::new(move |asked| match asked.path.as_str() {
            "/api/v1/nodes/a" => Answer::Json(200, unproven("5")),
            "/api/v1/namespaces/ns/persistentvolumeclaims/data" => Answer::Json(
                200,
                json!({
                    "metadata": {"name": "data", "uid": "c", "resourceVersion": "1"}, "spec": {"accessModes": modes},
                }),
            ),
            _ => Answer::Refused(404, "there is none"),
        });
        let recheck = evictions.recheck(&subject, at(1));
        let decision =
            recheck.ask(&api.client, Known::Guarded, at(1), &mut ReadAge::default()).await.unwrap().unwrap();
        assert_eq!(decision.verdict.name() == "Act", act, "{:?}", decision.verdict.why());
    }
}

/// Another machine registers under the name, with a copy of everything that was on the first Node.
#[tokio::test(start_paused = true)]
async fn a_second_look_at_a_pod_knows_its_node_from_another_of_that_name() {
    let evictions = begun();
    let api = FakeApi::new(|asked| match asked.path.as_str() {
        "/api/v1/nodes/a" => {
            let mut other = node("9", &["NoSchedule", "NoExecute"], Some(STARTED));
            other["metadata"]["uid"] = "another".into();
            Answer::Json(200, other)
        }
        _ => Answer::Refused(404, "there is none"),
    });
    let recheck = evictions.recheck(&Subject::pod(&"a".into(), &pod().pod), at(1));
    let decision =
        recheck.ask(&api.client, Known::Guarded, at(1), &mut ReadAge::default()).await.unwrap().unwrap();
    assert_eq!(decision.verdict.why().code(), "NodeNotEvicted");
}

#[test]
fn a_refused_start_is_remembered_until_the_server_takes_it() {
    let mut evictions = asked_for();
    evictions.on_change(News::Lease { node: "a".into(), lease: None }, at(0));
    let subject = Subject::node(&"a".into());
    let actions = |evictions: &Evictions, now| -> Vec<Step> {
        evictions.judge(&subject, at(now)).unwrap().verdict.actions().to_vec()
    };
    let start = actions(&evictions, 0).remove(0);
    assert_eq!(start.name(), "StartEviction");
    let words = format!("metadata.annotations: Too long{}", "é".repeat(1000));
    assert!(matches!(
        evictions.refused(&subject, &start, &execute::Refusal::saying(&words), at(0)),
        Refused::Judged(None)
    ));
    let said = actions(&evictions, 1);
    let [Step::ReportEviction { condition, .. }, event @ Step::EmitEvent(note)] = said.as_slice() else {
        panic!("{said:?}")
    };
    assert!(
        condition.message.contains("Too long") && condition.message.len() < 1000,
        "{}",
        condition.message
    );
    assert_eq!((condition.reason, note.reason.as_ref()), ("WriteRefused", "WriteRefused"));
    // A refused event is different: the whole node backs off.
    assert!(matches!(
        evictions.refused(&subject, event, &execute::Refusal::saying("no"), at(1)),
        Refused::Waits
    ));
    evictions.done(&subject, event, &Written::Nothing, at(1));
    let mut reported = node("2", &["NoSchedule"], None);
    reported["status"]["conditions"] =
        json!([{"type": "ForceEviction", "status": "False", "reason": "WriteRefused"}]);
    evictions.done(&subject, &said[0], &Written::Object(reported.to_string()), at(1));
    assert_eq!(evictions.judge(&subject, at(2)).unwrap().verdict.wake_at(), Some(at(60)));
    assert_eq!(actions(&evictions, 60)[0].name(), "StartEviction", "tried again");
    let begun = node("3", &["NoSchedule", "NoExecute"], Some(STARTED));
    evictions.done(&subject, &start, &Written::Object(begun.to_string()), at(60));
    assert_eq!(evictions.nodes["a"].view.refused, []);
}

#[test]
fn a_node_whose_annotation_cannot_be_read_or_whose_condition_complains_is_looked_at_without_any_taint() {
    let evictions = evictions();
    let keep = |node: Value| seen_node(&evictions, node).view;
    assert!(keep(node("1", &[], None)).is_none());
    let damaged = keep(node("1", &[], Some("yesterday"))).unwrap();
    assert_eq!(damaged.damage.unwrap().annotation, "eviction.salvor.dev/progress");
    for (reason, kept) in [("WriteRefused", true), ("AnnotationUnreadable", true), ("Finished", false)] {
        let mut complains = node("1", &[], None);
        complains["status"]["conditions"] =
            json!([{"type": "ForceEviction", "status": "False", "reason": reason}]);
        assert_eq!(keep(complains).is_some(), kept, "{reason}");
    }
}

#[test]
fn a_heartbeat_that_moves_shows_life_where_there_is_no_lease() {
    let mut evictions = asked_for();
    let beating = |revision: &str,
                   ready: &str,
                   ready_heartbeat: Option<Timestamp>,
                   changed: Option<Timestamp>| {
        let mut node = node(revision, &["NoSchedule"], None);
        node["status"]["conditions"] = json!([{"type": "Ready", "status": ready, "lastHeartbeatTime": ready_heartbeat, "lastTransitionTime": changed}]);
        node
    };
    let mut see = |now: i64, node: Value| {
        let news = news(&evictions, node);
        evictions.on_change(news, at(now));
        evictions.nodes["a"].view.ready_heartbeat
    };
    assert_eq!(
        see(0, beating("2", "Unknown", None, Some(at(0)))),
        Lease::None,
        "nobody but a kubelet counts"
    );
    // Ten minutes behind, by its own clock.
    let first = see(10, beating("3", "True", Some(at(-590)), Some(at(-590))));
    assert!(first.is_fresh(at(49)), "it appeared");
    let lost = see(100, beating("4", "Unknown", Some(at(-590)), Some(at(100))));
    assert_eq!(lost, first, "others call it lost and leave its heartbeat");
    let back = see(200, beating("5", "True", Some(at(-400)), Some(at(-400))));
    assert!(back.is_fresh(at(239)) && !back.is_fresh(at(240)));
    assert!(
        see(300, beating("6", "False", None, Some(at(-300)))).is_fresh(at(339)),
        "or what it says changes"
    );
}
