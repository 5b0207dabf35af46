use salvor_operator::watch::Project;
use salvor_recovery::{Step as _, appwrapper::AppWrapperPolicy, eviction::Step};
use serde_json::{Value, json};

use super::*;
use crate::objects::{AllAppWrappers, AllNodes, AllPods, AppWrapper};

fn second(n: i64) -> Timestamp {
    Timestamp::from_second(n).unwrap()
}

fn node(name: &str, lost: bool) -> Change<Node> {
    let taints = if lost { json!([{ "key": "node.kubernetes.io/unreachable" }]) } else { json!([]) };
    let ready = if lost { "Unknown" } else { "True" };
    let wire = serde_json::from_value(json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1",
            "labels": { "topology.kubernetes.io/zone": "b" } },
        "spec": { "taints": taints },
        "status": { "conditions": [{ "type": "Ready", "status": ready }] },
    }));
    Change::Applied(AllNodes.keep(wire.unwrap()).unwrap())
}

fn pod(uid: &str, index: u32, node: &str, phase: &str, deleted: bool) -> Change<Pod> {
    let wire = serde_json::from_value(json!({
        "metadata": { "name": format!("train-{index}"), "namespace": "default", "uid": uid, "resourceVersion": "1",
            "labels": { "batch.kubernetes.io/job-completion-index": index.to_string() },
            "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
            "ownerReferences": [{ "kind": "Job", "name": "train", "uid": "job", "controller": true }] },
        "spec": { "nodeName": node },
        "status": { "phase": phase },
    }));
    Change::Applied(AllPods.keep(wire.unwrap()).unwrap())
}

fn wrapper(status: &Value, annotations: &Value) -> Change<AppWrapper> {
    let wire = serde_json::from_value(json!({
        "metadata": { "name": "simulation", "namespace": "default", "uid": "w1", "resourceVersion": "1",
            "annotations": annotations },
        "spec": { "components": [] },
        "status": status,
    }));
    Change::Applied(AllAppWrappers(AppWrapperPolicy::default()).keep(wire.unwrap()).unwrap())
}

fn delta(world: &World, since: Option<u64>) -> Value {
    serde_json::from_str(&world.delta(since, second(100))).unwrap()
}

fn texts(world: &World) -> Vec<String> {
    world.moments().map(Moment::text).collect()
}

fn state_of(world: &World, uid: &str) -> Value {
    let all = delta(world, None);
    let pods = all["pods"].as_array().unwrap();
    pods.iter().find(|p| p["uid"] == uid).unwrap()["state"].clone()
}

#[test]
fn a_lost_node_makes_its_pods_silent_then_stuck_until_their_work_is_back() {
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    world.hear_nodes(node("n2", false), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", false), second(0));
    assert_eq!(state_of(&world, "p1"), "running");

    world.hear_nodes(node("n1", true), second(10));
    assert_eq!(state_of(&world, "p1"), "silent");
    world.hear_pods(pod("p1", 0, "n1", "Running", true), second(40));
    assert_eq!(state_of(&world, "p1"), "stuck");

    world.hear_pods(pod("p1", 0, "n1", "Failed", true), second(50));
    world.hear_pods(pod("p2", 0, "n2", "Pending", false), second(51));
    world.hear_pods(pod("p2", 0, "n2", "Running", false), second(53));
    world.hear_pods(Change::Gone("p1".into()), second(54));
    world.hear_nodes(node("n1", false), second(90));
    assert_eq!(
        texts(&world),
        [
            "Node n1 is unreachable",
            "train-0 is stuck Terminating: its node is unreachable",
            "train-0 is Running again, 43 s after its node became unreachable",
            "Node n1 is reachable again",
        ]
    );
    assert_eq!(delta(&world, None)["recovered"], 1);
}

#[test]
fn a_node_that_comes_back_in_time_has_lost_nothing() {
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", false), second(0));
    world.hear_nodes(node("n1", true), second(10));
    world.hear_nodes(node("n1", false), second(20));
    // Another pod for the same index, for whatever reason, replaces nothing that was lost.
    world.hear_pods(pod("p2", 0, "n1", "Running", false), second(30));
    assert_eq!(texts(&world), ["Node n1 is unreachable", "Node n1 is reachable again"]);
}

#[test]
fn work_that_is_replaced_after_its_node_came_back_was_away_all_the_same() {
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", false), second(0));
    world.hear_nodes(node("n1", true), second(10));
    world.hear_pods(pod("p1", 0, "n1", "Running", true), second(40));
    world.hear_nodes(node("n1", false), second(90));
    world.hear_pods(Change::Gone("p1".into()), second(91));
    world.hear_pods(pod("p2", 0, "n1", "Running", false), second(92));
    assert!(
        texts(&world)
            .contains(&"train-0 is Running again, 82 s after its node became unreachable".to_owned())
    );
}

#[test]
fn what_is_over_stays_over_whatever_a_late_kubelet_says() {
    let mut world = World::default();
    world.hear_nodes(node("n1", true), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", true), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Failed", true), second(1));
    world.hear_pods(pod("p1", 0, "n1", "Running", true), second(2));
    assert_eq!(state_of(&world, "p1"), "failed");
}

#[test]
fn what_was_lost_before_the_page_was_opened_is_no_news() {
    let mut world = World::default();
    world.hear_nodes(node("n1", true), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", true), second(0));
    assert!(texts(&world).is_empty());
    assert_eq!(state_of(&world, "p1"), "stuck");
}

#[test]
fn a_browser_is_told_differences_only() {
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", false), second(0));
    world.hear_pods(pod("p2", 1, "n1", "Running", false), second(0));
    let seen = world.version();
    assert_eq!(delta(&world, Some(seen)).get("pods"), None);

    world.hear_pods(pod("p2", 1, "n1", "Succeeded", false), second(1));
    world.hear_pods(Change::Gone("p1".into()), second(1));
    let news = delta(&world, Some(seen));
    assert_eq!(news["pods"].as_array().unwrap().len(), 1);
    assert_eq!(news["gonePods"], json!(["p1"]));
    assert_eq!(news.get("reset"), None);
    // A version from another life of the server is not known here.
    assert_eq!(delta(&world, Some(world.version() + 1))["reset"], true);
}

#[test]
fn a_browser_that_missed_too_much_begins_anew() {
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    let seen = world.version();
    for n in 0..=GONE_KEPT {
        let uid = format!("p{n}");
        world.hear_pods(pod(&uid, 0, "n1", "Running", false), second(0));
        world.hear_pods(Change::Gone(uid.into()), second(0));
    }
    assert_eq!(delta(&world, Some(seen))["reset"], true);
    assert_eq!(delta(&world, Some(world.version() - 4)).get("reset"), None);
}

#[test]
fn a_relist_drops_what_is_not_there_any_more() {
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    world.hear_pods(pod("p1", 0, "n1", "Running", false), second(0));
    let seen = world.version();
    world.hear_nodes(Change::Reset { all: Vec::new(), revision: "".into(), asked: 0 }, second(1));
    world.hear_pods(Change::Reset { all: Vec::new(), revision: "".into(), asked: 0 }, second(1));
    let news = delta(&world, Some(seen));
    assert_eq!((&news["goneNodes"], &news["gonePods"]), (&json!(["n1"]), &json!(["p1"])));
}

fn judged(subject: &str, message: &str) -> Notice {
    let report = Report {
        verdict: "Wait",
        reason: "GraceRunning",
        message: message.into(),
        what_would_change_it: String::new(),
        until: None,
        blocked_by: None,
        findings: Vec::new(),
        actions: Vec::new(),
    };
    Notice::Judged { recovery: "zombie", subject: subject.into(), report }
}

#[test]
fn verdicts_are_told_when_they_change_and_when_they_end() {
    let mut world = World::default();
    world.hear_operator(judged("pod default/a", "soon"), second(0));
    let seen = world.version();
    world.hear_operator(judged("pod default/a", "soon"), second(1));
    assert_eq!(delta(&world, Some(seen)).get("verdicts"), None);
    world.hear_operator(judged("pod default/a", "now"), second(2));
    assert_eq!(delta(&world, Some(seen))["verdicts"][0]["message"], "now");
    let forgotten = Notice::Forgotten { recovery: "zombie", subject: "pod default/a".into() };
    world.hear_operator(forgotten, second(3));
    assert_eq!(delta(&world, Some(seen))["goneVerdicts"], json!([["pod default/a", "zombie"]]));
}

#[test]
fn a_pause_is_shown_until_it_is_over() {
    let mut world = World::default();
    assert_eq!(delta(&world, None)["paused"], json!(null));
    let said = "paused by jane since 2026-11-16T03:00:00Z: network work";
    // Every recovery says it.
    for _ in 0..3 {
        world.hear_operator(Notice::Paused(Some(said.to_owned())), second(0));
    }
    let news = delta(&world, None);
    assert_eq!(news["paused"], said);
    assert_eq!(news["moments"].as_array().unwrap().len(), 1);
    world.hear_operator(Notice::Paused(None), second(1));
    assert_eq!(delta(&world, None)["paused"], json!(null));
}

#[test]
fn a_replica_that_ceases_to_lead_shows_no_verdicts() {
    let mut world = World::default();
    world.hear_operator(Notice::Leads(true), second(0));
    world.hear_operator(judged("pod default/a", "soon"), second(0));
    let seen = world.version();
    world.hear_operator(Notice::Leads(false), second(1));
    let news = delta(&world, Some(seen));
    assert_eq!(news["leads"], false);
    assert_eq!(news["goneVerdicts"].as_array().unwrap().len(), 1);
}

#[test]
fn every_deed_of_an_eviction_is_in_the_timeline() {
    let pod = salvor_recovery::objects::PodRef {
        uid: "p1".into(),
        namespace: "default".into(),
        name: "web".into(),
    };
    let node = salvor_recovery::objects::NodeRef { uid: "n1".into(), name: "node-1".into() };
    let evict = Step::EvictPod { pod, resource_version: "1".into() };
    let end = Step::EndEviction { node, resource_version: "1".into(), progress: None, asked: None };
    let mut world = World::default();
    for (at, step) in [evict, end].into_iter().enumerate() {
        let (headline, object) = (step.headline(), step.object().to_ref());
        let did = Notice::Did { recovery: "eviction", subject: String::new(), headline, object };
        world.hear_operator(did, second(at as i64));
    }
    assert_eq!(texts(&world), ["Salvor evicted: default/web", "Salvor untainted: node-1"]);
}

#[test]
fn an_app_wrapper_is_told_from_its_first_trouble_until_it_runs_again() {
    let mut world = World::default();
    let lost = "Workload contains pods on unreachable Nodes: n1";
    let unhealthy = json!([{ "type": "Unhealthy", "status": "True", "reason": "NodeLost", "message": lost }]);
    let reset = json!([{ "phase": "Resetting", "cause": "NodeLost", "message": format!("NodeLost: {lost}"), "counted": true }]);
    world.hear_wrappers(wrapper(&json!({}), &json!({})), second(0));
    let shown = delta(&world, None)["appWrappers"][0].clone();
    assert_eq!(
        (&shown["phase"], &shown["retries"], &shown["retryLimit"]),
        (&json!(""), &json!(0), &json!(3))
    );
    world.hear_wrappers(wrapper(&json!({ "phase": "Running" }), &json!({})), second(1));
    world.hear_wrappers(
        wrapper(&json!({ "phase": "Running", "conditions": unhealthy }), &json!({})),
        second(10),
    );
    let status = |phase: &str| json!({ "phase": phase, "resettingCount": 1, "resets": reset });
    world.hear_wrappers(wrapper(&status("Resetting"), &json!({})), second(70));
    world.hear_wrappers(wrapper(&status("Resuming"), &json!({})), second(110));
    let before = world.version();
    world.hear_wrappers(wrapper(&status("Running"), &json!({})), second(112));
    assert_eq!(
        texts(&world),
        [
            format!("AppWrapper simulation is unhealthy: {lost}"),
            "AppWrapper simulation is Running again, 42 s after it was reset".to_owned(),
        ]
    );
    let shown = delta(&world, Some(before))["appWrappers"][0].clone();
    assert_eq!(shown["phase"], "Running");
    assert_eq!(
        (&shown["retries"], &shown["resets"], &shown["since"]),
        (&json!(1), &json!(1), &json!(112_000))
    );
    assert_eq!(shown["lastReset"], format!("NodeLost: {lost}"));
    let known = world.version();
    world.hear_wrappers(wrapper(&status("Running"), &json!({})), second(113));
    assert_eq!(delta(&world, Some(known))["appWrappers"], Value::Null, "nothing has changed");

    let known = world.version();
    world.hear_wrappers(Change::Gone("w1".into()), second(120));
    assert_eq!(delta(&world, Some(known))["goneAppWrappers"], json!(["w1"]));
}

#[test]
fn an_app_wrapper_s_own_retry_limit_is_shown_as_its_controller_reads_it() {
    let limit = |text: &str| {
        let mut world = World::default();
        let key = "workload.codeflare.dev.appwrapper/retryLimit";
        world.hear_wrappers(wrapper(&json!({ "phase": "Odd" }), &json!({ key: text })), second(0));
        let shown = delta(&world, None)["appWrappers"][0].clone();
        assert_eq!(shown["phase"], "Odd", "a phase that nobody knows is shown as it is");
        shown["retryLimit"].clone()
    };
    assert_eq!((limit("7"), limit("-1"), limit("many")), (json!(7), json!(0), json!(3)));
}

#[test]
fn a_cluster_that_serves_no_app_wrappers_any_more_has_none() {
    let mut world = World::default();
    world.forget_wrappers();
    assert_eq!(world.version(), 0, "nobody is told of nothing");
    world.hear_wrappers(wrapper(&json!({ "phase": "Resetting" }), &json!({})), second(0));
    let known = world.version();
    world.forget_wrappers();
    assert_eq!(delta(&world, Some(known))["goneAppWrappers"], json!(["w1"]));
    assert_eq!(delta(&world, None)["appWrappers"], Value::Null);
}

#[test]
fn work_of_an_app_wrapper_comes_back_in_another_job_of_the_same_name() {
    let member = |uid: &str, job: &str, node: &str| {
        let wire = serde_json::from_value(json!({
            "metadata": { "name": "simulation-0", "namespace": "default", "uid": uid, "resourceVersion": "1",
                "labels": { "batch.kubernetes.io/job-completion-index": "0",
                    "workload.codeflare.dev/appwrapper": "simulation" },
                "ownerReferences": [{ "kind": "Job", "name": "simulation", "uid": job, "controller": true }] },
            "spec": { "nodeName": node },
            "status": { "phase": "Running" },
        }));
        Change::Applied(AllPods.keep(wire.unwrap()).unwrap())
    };
    let mut world = World::default();
    world.hear_nodes(node("n1", false), second(0));
    world.hear_nodes(node("n2", false), second(0));
    world.hear_pods(member("p1", "job-1", "n1"), second(0));
    world.hear_nodes(node("n1", true), second(10));
    world.hear_pods(member("p2", "job-2", "n2"), second(50));
    assert_eq!(texts(&world)[1], "simulation-0 is Running again, 40 s after its node became unreachable");
}
