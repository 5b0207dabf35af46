//! Which Leases are read, what a second look finds, and what it costs.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use http::Method;
use salvor_api::config::{Configuration, parse};
use salvor_recovery::{Reason, Verdict, event::EventNote, ids::NodeName};
use serde_json::{Value, json};

use super::{wire::PodWire, *};
use crate::{
    client::recent_reads::ReadAge,
    engine::recovery::{Known, LiveRecheck},
    testing::fake_api::{Answer, Asked, FakeApi},
    watch_set::{nodes::NodeWire, watch::Project},
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn configuration(rest: &str) -> Configuration {
    let header = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    parse(&format!("{header}featureGates: {{FailureRecoveryPolicy: true}}\n{rest}")).unwrap()
}

fn zombies(rest: &str) -> Zombies {
    Zombies::new(Arc::new(ZombiePolicy::new(&configuration(rest))))
}

fn node(uid: &str, ready: &str, tainted: bool) -> Value {
    let taint = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"});
    json!({
        "metadata": {"name": "a", "uid": uid, "resourceVersion": "1", "labels": {"pool": "metal"}},
        "spec": {"taints": if tainted { json!([taint]) } else { json!([]) }},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn of_node(node: Value) -> News {
    News::Node(Change::Applied(SeenNode::from(&serde_json::from_value::<NodeWire>(node).unwrap())))
}

fn pod(name: &str, wait: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1",
            "deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30,
            "annotations": {
                "kueue.x-k8s.io/safe-to-forcefully-terminate": "true",
                "salvor.dev/termination-grace-after": wait,
            },
        },
        "spec": {"nodeName": "a"},
        "status": {"phase": "Running"},
    })
}

fn of_pod(pod: Value) -> News {
    let pod = serde_json::from_value::<PodWire>(pod).unwrap().view();
    News::Pod(Change::Applied(SeenPod::Consenting(Box::new(pod))))
}

fn of_lease(renewed: Option<i64>) -> News {
    let lasts = jiff::SignedDuration::from_secs(40);
    News::Lease { node: "a".into(), lease: renewed.map(|renewed| NodeLease::new(at(renewed), lasts)) }
}

/// A lost node with one pod that was due a minute after time 0.
fn lost() -> Zombies {
    let mut zombies = zombies("");
    zombies.on_change(of_node(node("1", "Unknown", true)), at(0));
    zombies.on_change(of_pod(pod("p", "1m")), at(0));
    zombies
}

fn subject(zombies: &Zombies) -> Subject {
    zombies.pods.values().next().map(|pod| Subject::pod(&pod.pod)).unwrap()
}

fn said(decision: &Decision<Why, Step>) -> String {
    let verdict = &decision.verdict;
    let until = verdict.wake_at().map(|until| format!(" until {}", until.as_second() - at(0).as_second()));
    format!("{} {}{}", verdict.name(), verdict.why().code(), until.unwrap_or_default())
}

fn judged(zombies: &Zombies, now: i64) -> String {
    said(&zombies.judge(&subject(zombies), at(now)).unwrap())
}

fn wanted(zombies: &Zombies) -> Vec<NodeName> {
    zombies.leases.now().into_iter().collect()
}

#[test]
fn the_lease_of_a_lost_node_is_read_as_long_as_it_may_tell_something_about_its_pods() {
    let mut zombies = zombies("");
    zombies.on_change(of_node(node("1", "True", false)), at(0));
    zombies.on_change(of_pod(pod("p", "1m")), at(0));
    assert_eq!(wanted(&zombies), [""; 0], "nobody doubts that it lives");
    zombies.on_change(of_node(node("1", "Unknown", true)), at(1));
    assert_eq!(wanted(&zombies), ["a"]);
    zombies.on_change(of_lease(Some(-20)), at(2));
    assert_eq!(wanted(&zombies), ["a"], "it counts until 22");
    zombies.on_change(of_lease(Some(-20)), at(21));
    assert_eq!(wanted(&zombies), ["a"]);
    zombies.on_change(of_lease(Some(-20)), at(22));
    assert_eq!(wanted(&zombies), [""; 0], "silent: before a write it is read anyway");
    // A second look saw the Lease renewed, so the Lease is read again with the next change.
    let lasts = jiff::SignedDuration::from_secs(40);
    let node_a = zombies.nodes["a"].node.clone();
    zombies.heartbeats.note(&node_a, Some(NodeLease::new(at(30), lasts)), at(30));
    zombies.on_change(of_pod(pod("q", "1m")), at(31));
    assert_eq!(wanted(&zombies), ["a"]);
    zombies.on_change(of_node(node("1", "True", false)), at(40));
    assert_eq!(wanted(&zombies), [""; 0]);
    assert_eq!(zombies.heartbeats.of(&node_a), Heartbeat::UNREAD, "the next incident is another");
}

/// A pod that runs, with this annotation beside its consent.
fn evicted_after(after: &str) -> Value {
    let mut pod = pod("p", "1m");
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.remove("deletionTimestamp");
    metadata.remove("deletionGracePeriodSeconds");
    metadata["annotations"]["salvor.dev/evict-after"] = after.into();
    pod
}

#[test]
fn the_lease_is_read_as_soon_as_the_node_is_not_ready() {
    let mut zombies = zombies("");
    zombies.on_change(of_node(node("1", "True", false)), at(0));
    zombies.on_change(of_pod(evicted_after("0s")), at(0));
    assert_eq!(wanted(&zombies), [""; 0]);
    zombies.on_change(of_node(node("1", "Unknown", false)), at(1));
    assert_eq!(wanted(&zombies), ["a"], "the taint comes later");
    zombies.on_change(of_lease(Some(-50)), at(2));
    zombies.on_change(of_lease(Some(-50)), at(22));
    zombies.on_change(of_node(node("1", "Unknown", true)), at(23));
    assert_eq!(judged(&zombies, 23), "Act Zombie", "nothing is left to wait for");
    zombies.on_change(of_node(node("1", "True", true)), at(24));
    assert_eq!(judged(&zombies, 24), "Ignore NodeReady");
}

#[test]
fn of_pods_that_run_only_those_that_may_be_given_up_are_kept() {
    let keeps = |settings: &str, pod: Value| {
        let projection = PodsInQuestion(Arc::new(ZombiePolicy::new(&configuration(settings))));
        projection.keep(serde_json::from_value(pod).unwrap()).is_some()
    };
    let all = "failureRecoveryPolicy: {annotatedPods: {evictAfter: 1m}}";
    let with = |pod: &Value, pointer: &str, value: Value| {
        let mut pod = pod.clone();
        *pod.pointer_mut(pointer).unwrap() = value;
        pod
    };
    let asks = evicted_after("30s");
    let consent = "/metadata/annotations/kueue.x-k8s.io~1safe-to-forcefully-terminate";
    let mut silent = asks.clone();
    silent["metadata"]["annotations"].as_object_mut().unwrap().remove("salvor.dev/evict-after");
    for (case, pod, by_default, by_setting) in [
        ("it may be given up", asks.clone(), true, true),
        ("its value is to be reported", evicted_after("soon"), true, true),
        ("it says nothing", silent, false, true),
        ("it does not consent", with(&asks, consent, "false".into()), false, false),
        ("it has ended", with(&asks, "/status/phase", "Succeeded".into()), false, false),
        ("it is being deleted", pod("p", "1m"), true, true),
    ] {
        assert_eq!(keeps("", pod.clone()), by_default, "{case}");
        assert_eq!(keeps(all, pod), by_setting, "{case}");
    }
}

#[test]
fn an_unreadable_evict_after_is_told_once() {
    let mut zombies = zombies("");
    zombies.on_change(of_node(node("1", "True", false)), at(0));
    zombies.on_change(of_pod(evicted_after("soon")), at(0));
    let of = subject(&zombies);
    let decision = zombies.judge(&of, at(1)).unwrap();
    assert_eq!(said(&decision), "Act UnreadableEvictAfter");
    for step in decision.verdict.actions() {
        assert_eq!(zombies.done(&of, step, &Written::Nothing, at(1)), View::Synced);
    }
    assert_eq!(judged(&zombies, 2), "Ignore NotTerminating");
    zombies.on_change(of_pod(evicted_after("soon")), at(3));
    assert_eq!(judged(&zombies, 4), "Ignore NotTerminating", "told before");
    zombies.on_change(of_pod(evicted_after("later")), at(5));
    assert_eq!(judged(&zombies, 6), "Act UnreadableEvictAfter", "another value is another mistake");
}

#[test]
fn a_node_that_goes_is_not_read_and_one_that_a_rule_is_about_is_read_without_pods() {
    let rule = "failureRecoveryPolicy: {rules: [{taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: metal}}, unreachableNodeTimeout: 10m}}]}";
    let mut zombies = zombies(rule);
    zombies.on_change(of_node(node("1", "Unknown", true)), at(0));
    assert_eq!(wanted(&zombies), ["a"]);
    zombies.on_change(News::Node(Change::Gone("1".into())), at(1));
    assert_eq!(wanted(&zombies), [""; 0]);
    zombies.on_change(of_node(node("2", "Unknown", true)), at(2));
    assert_eq!(wanted(&zombies), ["a"]);
    let none = Change::Reset { all: Vec::new(), revision: "9".into(), asked: 0 };
    zombies.on_change(News::Node(none), at(3));
    assert_eq!(wanted(&zombies), [""; 0]);
    let mut without = self::zombies("");
    without.on_change(of_node(node("1", "Unknown", true)), at(0));
    assert_eq!(wanted(&without), [""; 0], "nobody asks");
}

#[test]
fn pods_are_woken_when_their_nodes_readiness_or_its_kubelets_life_changes() {
    let mut zombies = lost();
    let woken = |zombies: &mut Zombies, news, now| zombies.on_change(news, at(now)).len();
    assert_eq!(woken(&mut zombies, of_lease(Some(-600)), 1), 2, "it was not known: the pod and its node");
    assert_eq!(woken(&mut zombies, of_lease(Some(-600)), 11), 0);
    assert_eq!(woken(&mut zombies, of_lease(Some(-600)), 21), 0, "a wait ends by itself");
    assert_eq!(judged(&zombies, 60), "Act Zombie");
    assert_eq!(woken(&mut zombies, of_lease(Some(-590)), 61), 2, "it lives");
    assert_eq!(judged(&zombies, 61), "Wait KubeletAlive until 101");
    assert_eq!(woken(&mut zombies, of_node(node("1", "True", true)), 62), 2);
    assert_eq!(judged(&zombies, 62), "Ignore NodeReady");
    assert_eq!(woken(&mut zombies, of_node(node("1", "True", true)), 63), 1, "nothing that concerns the pod");
}

#[test]
fn an_unreadable_wait_is_told_once_and_again_for_another_value_and_never_in_a_dry_run() {
    let mut zombies = lost();
    zombies.on_change(of_pod(pod("p", "soon")), at(1));
    let told = |zombies: &Zombies| -> EventNote {
        let decision = zombies.judge(&subject(zombies), at(2)).unwrap();
        let [Step::Mention(note)] = decision.verdict.actions() else { panic!("{decision:?}") };
        note.clone()
    };
    let first = told(&zombies);
    let step = Step::Mention(first.clone());
    assert_eq!(zombies.done(&subject(&zombies), &step, &Written::Nothing, at(2)), View::Synced);
    assert_eq!(judged(&zombies, 3), "Wait GraceRunning until 60");
    zombies.on_change(of_pod(pod("p", "soon")), at(4));
    assert_eq!(judged(&zombies, 5), "Wait GraceRunning until 60", "told before");
    zombies.on_change(of_pod(pod("p", "later")), at(6));
    assert_ne!(told(&zombies).name, first.name);
    zombies.on_change(of_pod(pod("p", "30s")), at(7));
    assert_eq!(judged(&zombies, 8), "Wait GraceRunning until 30");

    let mut dry = self::zombies("dryRun: true");
    dry.on_change(of_node(node("1", "Unknown", true)), at(0));
    dry.on_change(of_pod(pod("p", "soon")), at(0));
    assert_eq!(judged(&dry, 1), "Wait GraceRunning until 60");
}

/// A server with one node, whose Lease the closure answers.
fn server(
    ready: &'static str,
    tainted: bool,
    lease: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> FakeApi {
    FakeApi::behind(
        || Duration::from_millis(50),
        move |asked| match asked.path.as_str() {
            "/api/v1/nodes/a" => Answer::Json(200, node("1", ready, tainted)),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a" => lease(asked),
            _ => Answer::Refused(404, "there is none"),
        },
    )
}

fn lease(renewed: i64) -> Answer {
    Answer::Json(200, json!({"spec": {"renewTime": at(renewed).to_string(), "leaseDurationSeconds": 40}}))
}

async fn look(zombies: &Zombies, api: &FakeApi, now: i64) -> kube::Result<String> {
    // A look is valid for a second; each of these is a new one.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let recheck = zombies.recheck(&subject(zombies), at(now));
    let decision = recheck.ask(&api.client, Known::Guarded, at(now), &mut ReadAge::default()).await?;
    Ok(decision.map_or("gone".into(), |decision| said(&decision)))
}

#[tokio::test(start_paused = true)]
async fn the_second_look_finds_the_node_back_although_its_taint_and_our_view_are_old() {
    let mut zombies = lost();
    zombies.on_change(of_lease(Some(-600)), at(1));
    assert_eq!(judged(&zombies, 60), "Act Zombie", "by the view");
    let ready = server("True", true, |_| lease(59));
    assert_eq!(look(&zombies, &ready, 60).await.unwrap(), "Ignore NodeReady");
    let renewing = server("Unknown", true, |_| lease(59));
    assert_eq!(look(&zombies, &renewing, 62).await.unwrap(), "Wait KubeletAlive until 100");
    let untainted = server("Unknown", false, |_| lease(-600));
    assert_eq!(look(&zombies, &untainted, 64).await.unwrap(), "Ignore NodeReachable");
}

#[tokio::test(start_paused = true)]
async fn no_answer_about_the_lease_is_no_silence() {
    let zombies = lost();
    for refusal in [403, 429, 500, 503] {
        let api = server("Unknown", true, move |_| Answer::Refused(refusal, "no"));
        let kube::Error::Api(status) = look(&zombies, &api, 60).await.unwrap_err() else {
            panic!("{refusal}")
        };
        assert_eq!(status.code, refusal);
    }
    let in_between = server("Unknown", true, |_| Answer::Json(404, json!("no such backend")));
    assert!(look(&zombies, &in_between, 60).await.is_err(), "that is not the API server's word");
    let garbage = server("Unknown", true, |_| Answer::Json(200, json!({"spec": {"renewTime": "yesterday"}})));
    assert!(look(&zombies, &garbage, 60).await.is_err());
    let never = server("Unknown", true, |_| Answer::Never);
    let asked = tokio::time::timeout(Duration::from_secs(60), look(&zombies, &never, 60)).await;
    assert!(asked.is_err(), "the engine gives up on it");
    let none = server("Unknown", true, |_| Answer::Refused(404, "there is none"));
    assert_eq!(
        look(&zombies, &none, 60).await.unwrap(),
        "Act Zombie",
        "a node without a Lease is judged by its Ready"
    );
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_whose_clock_is_an_hour_off_is_known_by_its_lease_moving() {
    let zombies = lost();
    let renewed = Arc::new(AtomicI64::new(-3_600));
    let api = {
        let renewed = renewed.clone();
        server("Unknown", true, move |_| lease(renewed.load(Ordering::SeqCst)))
    };
    assert_eq!(look(&zombies, &api, 60).await.unwrap(), "Wait KubeletAlive until 80", "never seen before");
    renewed.fetch_add(10, Ordering::SeqCst);
    assert_eq!(look(&zombies, &api, 80).await.unwrap(), "Wait KubeletAlive until 120", "it moves");
    assert_eq!(judged(&zombies, 81), "Wait KubeletAlive until 120", "what a look saw is not forgotten");
    assert_eq!(look(&zombies, &api, 120).await.unwrap(), "Act Zombie", "silent since");

    // Its clock is ahead, and it is dead: there is no wait until its clock's time comes.
    let zombies = lost();
    renewed.store(3_600, Ordering::SeqCst);
    assert_eq!(look(&zombies, &api, 60).await.unwrap(), "Wait KubeletAlive until 100");
    assert_eq!(look(&zombies, &api, 100).await.unwrap(), "Act Zombie");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_made_anew_is_looked_at_anew() {
    let mut zombies = lost();
    zombies.on_change(of_lease(Some(-600)), at(1));
    zombies.on_change(of_lease(Some(-600)), at(21));
    // A new Node, with the Lease of its own kubelet; the view still has the old one.
    let uid = Arc::new(Mutex::new("1"));
    let api = {
        let uid = uid.clone();
        FakeApi::new(move |asked| match asked.path.as_str() {
            "/api/v1/nodes/a" => Answer::Json(200, node(*uid.lock().unwrap(), "Unknown", true)),
            path if path.ends_with("/leases/a") => lease(-500),
            _ => Answer::Refused(404, "there is none"),
        })
    };
    *uid.lock().unwrap() = "2";
    assert_eq!(
        look(&zombies, &api, 60).await.unwrap(),
        "Wait KubeletAlive until 80",
        "seen for the first time"
    );
    assert_eq!(look(&zombies, &api, 80).await.unwrap(), "Act Zombie");
}

#[tokio::test(start_paused = true)]
async fn a_storm_on_one_node_costs_a_read_of_it_and_of_its_lease() {
    let mut zombies = zombies("");
    zombies.on_change(of_node(node("1", "Unknown", true)), at(0));
    for number in 0..64 {
        zombies.on_change(of_pod(pod(&format!("p{number}"), "1m")), at(0));
    }
    zombies.on_change(of_lease(Some(-600)), at(1));
    let api = server("Unknown", true, |_| lease(-600));
    let rechecks: Vec<Recheck> =
        zombies.pods.values().map(|pod| zombies.recheck(&Subject::pod(&pod.pod), at(60))).collect();
    let mut sights: Vec<ReadAge> = rechecks.iter().map(|_| ReadAge::default()).collect();
    let asked = rechecks.iter().zip(&mut sights);
    let decisions = join_all(asked.map(|(i, sight)| i.ask(&api.client, Known::Guarded, at(60), sight))).await;
    assert!(decisions.into_iter().all(|judged| said(&judged.unwrap().unwrap()) == "Act Zombie"));
    assert_eq!(api.count(&Method::GET), 2, "{:?}", api.asked());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_keeps_no_lease_is_known_by_its_heartbeat() {
    let beating = |ready_heartbeat: i64, ready: &str| {
        let mut node = node("1", ready, true);
        node["status"]["conditions"][0]["lastHeartbeatTime"] = json!(at(ready_heartbeat).to_string());
        node
    };
    let mut zombies = lost();
    zombies.on_change(of_node(beating(-600, "Unknown")), at(1));
    zombies.on_change(of_lease(None), at(2));
    assert_eq!(wanted(&zombies), ["a"], "watched for half of what it counts");
    zombies.on_change(of_lease(None), at(22));
    assert_eq!((wanted(&zombies), judged(&zombies, 60).as_str()), (Vec::new(), "Act Zombie"));

    let mut missed = lost();
    let mut unknown = beating(-600, "Unknown");
    unknown["status"]["conditions"][0]["lastTransitionTime"] = json!(at(-560).to_string());
    missed.on_change(of_node(unknown), at(1));
    missed.on_change(of_lease(None), at(2));
    assert_eq!(wanted(&missed), Vec::<&str>::new(), "the control plane has watched it for ten minutes");

    let api = FakeApi::new(move |asked| match asked.path.as_str() {
        // It reports that it is not ready, while its taint is still the old one.
        "/api/v1/nodes/a" => Answer::Json(200, beating(55, "False")),
        _ => Answer::Refused(404, "there is none"),
    });
    assert_eq!(look(&zombies, &api, 60).await.unwrap(), "Wait KubeletAlive until 100");
}

/// A node that we tainted out-of-service.
fn out_of_service(ready: &str) -> Value {
    let mut node = node("1", ready, false);
    node["metadata"]["annotations"] =
        json!({"zombie.salvor.dev/out-of-service-since": "2027-01-15T07:00:00Z"});
    node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    node
}

#[tokio::test(start_paused = true)]
async fn our_taint_comes_off_a_ready_node_whose_lease_moves_whatever_its_clock_or_that_has_none() {
    let mut zombies = zombies("");
    zombies.on_change(of_node(out_of_service("True")), at(0));
    let of_a = Subject::Node { name: "a".into() };
    let renewed = Arc::new(AtomicI64::new(-3_600));
    let answer = |lease_of: Arc<AtomicI64>| {
        FakeApi::new(move |asked| match asked.path.as_str() {
            "/api/v1/nodes/a" => Answer::Json(200, out_of_service("True")),
            path if path.ends_with("/leases/a") && lease_of.load(Ordering::SeqCst) != 0 => {
                lease(lease_of.load(Ordering::SeqCst))
            }
            _ => Answer::Refused(404, "there is none"),
        })
    };
    let api = answer(renewed.clone());
    assert_eq!(said(&zombies.judge(&of_a, at(0)).unwrap()), "Act BackInService", "read before it is done");
    let look = async |now| {
        let judged = zombies
            .recheck(&of_a, at(now))
            .ask(&api.client, Known::Nothing, at(now), &mut ReadAge::default())
            .await
            .unwrap()
            .unwrap();
        (said(&judged), matches!(judged.verdict, Verdict::Act { .. }))
    };
    assert_eq!(look(1).await, ("Ignore OutOfService".into(), false), "an hour behind, seen once");
    assert_eq!(look(3).await, ("Ignore OutOfService".into(), false), "not renewed yet");
    renewed.fetch_add(10, Ordering::SeqCst);
    assert_eq!(look(9).await, ("Act BackInService".into(), true), "it moves");
    let without = answer(Arc::new(AtomicI64::new(0)));
    let fresh = self::zombies("");
    let judged = fresh
        .recheck(&of_a, at(9))
        .ask(&without.client, Known::Nothing, at(9), &mut ReadAge::default())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(said(&judged), "Act BackInService", "no Lease: its Ready is all there is");
}
