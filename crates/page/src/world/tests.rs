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
    world.on_nodes(node("n1", false), second(0));
    world.on_nodes(node("n2", false), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", false), second(0));
    assert_eq!(state_of(&world, "p1"), "running");

    world.on_nodes(node("n1", true), second(10));
    assert_eq!(state_of(&world, "p1"), "silent");
    world.on_pods(pod("p1", 0, "n1", "Running", true), second(40));
    assert_eq!(state_of(&world, "p1"), "stuck");

    world.on_pods(pod("p1", 0, "n1", "Failed", true), second(50));
    world.on_pods(pod("p2", 0, "n2", "Pending", false), second(51));
    world.on_pods(pod("p2", 0, "n2", "Running", false), second(53));
    world.on_pods(Change::Gone("p1".into()), second(54));
    world.on_nodes(node("n1", false), second(90));
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
    world.on_nodes(node("n1", false), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", false), second(0));
    world.on_nodes(node("n1", true), second(10));
    world.on_nodes(node("n1", false), second(20));
    // A new pod for the same index does not replace a pod that was never lost.
    world.on_pods(pod("p2", 0, "n1", "Running", false), second(30));
    assert_eq!(texts(&world), ["Node n1 is unreachable", "Node n1 is reachable again"]);
}

#[test]
fn work_that_is_replaced_after_its_node_came_back_was_away_all_the_same() {
    let mut world = World::default();
    world.on_nodes(node("n1", false), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", false), second(0));
    world.on_nodes(node("n1", true), second(10));
    world.on_pods(pod("p1", 0, "n1", "Running", true), second(40));
    world.on_nodes(node("n1", false), second(90));
    world.on_pods(Change::Gone("p1".into()), second(91));
    world.on_pods(pod("p2", 0, "n1", "Running", false), second(92));
    assert!(
        texts(&world)
            .contains(&"train-0 is Running again, 82 s after its node became unreachable".to_owned())
    );
}

#[test]
fn what_is_over_stays_over_whatever_a_late_kubelet_says() {
    let mut world = World::default();
    world.on_nodes(node("n1", true), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", true), second(0));
    world.on_pods(pod("p1", 0, "n1", "Failed", true), second(1));
    world.on_pods(pod("p1", 0, "n1", "Running", true), second(2));
    assert_eq!(state_of(&world, "p1"), "failed");
}

#[test]
fn what_was_lost_before_the_page_was_opened_is_no_news() {
    let mut world = World::default();
    world.on_nodes(node("n1", true), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", true), second(0));
    assert!(texts(&world).is_empty());
    assert_eq!(state_of(&world, "p1"), "stuck");
}

#[test]
fn a_browser_is_told_differences_only() {
    let mut world = World::default();
    world.on_nodes(node("n1", false), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", false), second(0));
    world.on_pods(pod("p2", 1, "n1", "Running", false), second(0));
    let seen = world.version();
    assert_eq!(delta(&world, Some(seen)).get("pods"), None);

    world.on_pods(pod("p2", 1, "n1", "Succeeded", false), second(1));
    world.on_pods(Change::Gone("p1".into()), second(1));
    let news = delta(&world, Some(seen));
    assert_eq!(news["pods"].as_array().unwrap().len(), 1);
    assert_eq!(news["gonePods"], json!(["p1"]));
    assert_eq!(news.get("reset"), None);
    // A version of an earlier server process is unknown here.
    assert_eq!(delta(&world, Some(world.version() + 1))["reset"], true);
}

#[test]
fn a_browser_that_missed_too_much_begins_anew() {
    let mut world = World::default();
    world.on_nodes(node("n1", false), second(0));
    let seen = world.version();
    for n in 0..=GONE_KEPT {
        let uid = format!("p{n}");
        world.on_pods(pod(&uid, 0, "n1", "Running", false), second(0));
        world.on_pods(Change::Gone(uid.into()), second(0));
    }
    assert_eq!(delta(&world, Some(seen))["reset"], true);
    assert_eq!(delta(&world, Some(world.version() - 4)).get("reset"), None);
}

#[test]
fn a_relist_drops_what_is_not_there_any_more() {
    let mut world = World::default();
    world.on_nodes(node("n1", false), second(0));
    world.on_pods(pod("p1", 0, "n1", "Running", false), second(0));
    let seen = world.version();
    world.on_nodes(Change::Reset { all: Vec::new(), revision: "".into(), asked: 0 }, second(1));
    world.on_pods(Change::Reset { all: Vec::new(), revision: "".into(), asked: 0 }, second(1));
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
    world.on_notice(judged("pod default/a", "soon"), second(0));
    let seen = world.version();
    world.on_notice(judged("pod default/a", "soon"), second(1));
    assert_eq!(delta(&world, Some(seen)).get("verdicts"), None);
    world.on_notice(judged("pod default/a", "now"), second(2));
    assert_eq!(delta(&world, Some(seen))["verdicts"][0]["message"], "now");
    let forgotten = Notice::Forgotten { recovery: "zombie", subject: "pod default/a".into() };
    world.on_notice(forgotten, second(3));
    assert_eq!(delta(&world, Some(seen))["goneVerdicts"], json!([["pod default/a", "zombie"]]));
}

#[test]
fn a_pause_is_shown_until_it_is_over() {
    let mut world = World::default();
    assert_eq!(delta(&world, None)["paused"], json!(null));
    let said = "paused by jane since 2026-11-16T03:00:00Z: network work";
    // Every recovery reports the pause.
    for _ in 0..3 {
        world.on_notice(Notice::Paused(Some(said.to_owned())), second(0));
    }
    let news = delta(&world, None);
    assert_eq!(news["paused"], said);
    assert_eq!(news["moments"].as_array().unwrap().len(), 1);
    world.on_notice(Notice::Paused(None), second(1));
    assert_eq!(delta(&world, None)["paused"], json!(null));
}

#[test]
fn a_replica_that_ceases_to_lead_shows_no_verdicts() {
    let mut world = World::default();
    world.on_notice(Notice::Leads(true), second(0));
    world.on_notice(judged("pod default/a", "soon"), second(0));
    let seen = world.version();
    world.on_notice(Notice::Leads(false), second(1));
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
        world.on_notice(did, second(at as i64));
    }
    assert_eq!(texts(&world), ["Salvor evicted: default/web", "Salvor untainted: node-1"]);
}

#[test]
fn an_app_wrapper_is_told_from_its_first_trouble_until_it_runs_again() {
    let mut world = World::default();
    let lost = "Workload contains pods on unreachable Nodes: n1";
    let unhealthy = json!([{ "type": "Unhealthy", "status": "True", "reason": "NodeLost", "message": lost }]);
    let reset = json!([{ "phase": "Resetting", "cause": "NodeLost", "message": format!("NodeLost: {lost}"), "counted": true }]);
    world.on_wrappers(wrapper(&json!({}), &json!({})), second(0));
    let shown = delta(&world, None)["appWrappers"][0].clone();
    assert_eq!(
        (&shown["phase"], &shown["retries"], &shown["retryLimit"]),
        (&json!(""), &json!(0), &json!(3))
    );
    world.on_wrappers(wrapper(&json!({ "phase": "Running" }), &json!({})), second(1));
    world.on_wrappers(
        wrapper(&json!({ "phase": "Running", "conditions": unhealthy }), &json!({})),
        second(10),
    );
    let status = |phase: &str| json!({ "phase": phase, "resettingCount": 1, "resets": reset });
    world.on_wrappers(wrapper(&status("Resetting"), &json!({})), second(70));
    world.on_wrappers(wrapper(&status("Resuming"), &json!({})), second(110));
    let before = world.version();
    world.on_wrappers(wrapper(&status("Running"), &json!({})), second(112));
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
    world.on_wrappers(wrapper(&status("Running"), &json!({})), second(113));
    assert_eq!(delta(&world, Some(known))["appWrappers"], Value::Null, "nothing has changed");

    let known = world.version();
    world.on_wrappers(Change::Gone("w1".into()), second(120));
    assert_eq!(delta(&world, Some(known))["goneAppWrappers"], json!(["w1"]));
}

#[test]
fn an_app_wrapper_s_own_retry_limit_is_shown_as_its_controller_reads_it() {
    let limit = |text: &str| {
        let mut world = World::default();
        let key = "workload.codeflare.dev.appwrapper/retryLimit";
        world.on_wrappers(wrapper(&json!({ "phase": "Odd" }), &json!({ key: text })), second(0));
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
    world.on_wrappers(wrapper(&json!({ "phase": "Resetting" }), &json!({})), second(0));
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
    world.on_nodes(node("n1", false), second(0));
    world.on_nodes(node("n2", false), second(0));
    world.on_pods(member("p1", "job-1", "n1"), second(0));
    world.on_nodes(node("n1", true), second(10));
    world.on_pods(member("p2", "job-2", "n2"), second(50));
    assert_eq!(texts(&world)[1], "simulation-0 is Running again, 40 s after its node became unreachable");
}

/// A node of pool gpu with this state of its repair. All except gpu-3 and gpu-4 are older than the repair.
fn repaired_node(name: &str, uid: &str, ready: &str, repair: Option<(&str, &str)>) -> Change<Node> {
    let created = if name >= "gpu-3" { "1970-01-01T00:01:20Z" } else { "1970-01-01T00:00:00Z" };
    let mut conditions = vec![json!({ "type": "Ready", "status": ready })];
    conditions.extend(repair.map(|(reason, message)| {
        json!({ "type": "SalvorRepair", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "1970-01-01T00:01:10Z" })
    }));
    let wire = serde_json::from_value(json!({
        "metadata": { "name": name, "uid": uid, "resourceVersion": "1", "creationTimestamp": created,
            "labels": { "karpenter.sh/nodepool": "gpu" } },
        "status": { "conditions": conditions },
    }));
    Change::Applied(AllNodes.keep(wire.unwrap()).unwrap())
}

#[test]
fn a_sick_node_is_told_from_its_first_wait_until_its_work_is_on_another() {
    let mut world = World::default();
    let sick = |reason: &'static str| {
        let message = match reason {
            "Blocked" => "policy gpu: BudgetExhausted: 1 nodes are under repair",
            _ => "policy gpu: Broken=True since 10, until 70",
        };
        repaired_node("gpu-1", "u1", "True", Some((reason, message)))
    };
    world.on_nodes(repaired_node("gpu-1", "u1", "True", None), second(0));
    world.on_nodes(repaired_node("gpu-2", "u2", "True", None), second(0));
    world.on_pods(pod("p1", 0, "gpu-1", "Running", false), second(0));
    world.on_nodes(sick("Waiting"), second(10));
    let shown = delta(&world, Some(0))["nodes"][0]["repair"].clone();
    let message = "policy gpu: Broken=True since 10, until 70";
    assert_eq!(shown, json!({ "state": "Waiting", "message": message, "since": 70_000 }));
    world.on_nodes(sick("Waiting"), second(20));
    world.on_nodes(sick("Blocked"), second(70));
    // The pod is deleted before the node reports that it is being replaced.
    world.on_pods(pod("p1", 0, "gpu-1", "Running", true), second(71));
    world.on_nodes(sick("Repairing"), second(72));
    let seen = world.version() - 1;
    world.on_pods(pod("p1", 0, "gpu-1", "Failed", true), second(74));
    world.on_pods(Change::Gone("p1".into()), second(75));
    world.on_nodes(Change::Gone("u1".into()), second(80));
    assert_eq!(delta(&world, Some(seen))["replacements"][0]["by"], json!(null));
    // It registers first and becomes Ready later. Another node that becomes Ready in between is not a replacement.
    world.on_nodes(repaired_node("gpu-3", "u3", "False", None), second(100));
    world.on_nodes(repaired_node("gpu-2", "u2", "False", None), second(101));
    world.on_nodes(repaired_node("gpu-2", "u2", "True", None), second(102));
    world.on_nodes(repaired_node("gpu-3", "u3", "True", None), second(110));
    world.on_nodes(repaired_node("gpu-4", "u4", "True", None), second(111));
    world.on_pods(pod("p2", 0, "gpu-3", "Running", false), second(112));
    assert_eq!(
        texts(&world),
        [
            "Node gpu-1 is sick: Broken=True since 10, until 70",
            "Node gpu-1 is not repaired: BudgetExhausted: 1 nodes are under repair",
            "Node gpu-1 is gone",
            "Node gpu-3 replaces node gpu-1, 40 s after its repair began",
            "train-0 is Running again, 42 s after the repair of its node began",
        ]
    );
    let news = delta(&world, Some(seen));
    let expected = json!([{ "node": "gpu-1", "by": "gpu-3", "began": 70_000, "at": 110_000 }]);
    assert_eq!((&news["replacements"], &news["recovered"]), (&expected, &json!(1)));
}

/// Karpenter launches a node as soon as a pod is pending, while the old machine is still terminating.
#[test]
fn the_new_node_may_come_before_the_old_one_goes() {
    let mut world = World::default();
    let node = |reason: &'static str| repaired_node("gpu-1", "u1", "True", Some((reason, "policy gpu: it")));
    world.on_nodes(node("Waiting"), second(0));
    world.on_nodes(node("Repairing"), second(70));
    world.on_nodes(repaired_node("gpu-2", "u2", "True", None), second(80));
    world.on_nodes(repaired_node("gpu-3", "u3", "True", None), second(90));
    world.on_nodes(Change::Gone("u1".into()), second(95));
    assert_eq!(
        texts(&world),
        ["Node gpu-3 replaces node gpu-1, 20 s after its repair began", "Node gpu-1 is gone"]
    );
}

#[test]
fn a_node_that_is_healthy_before_its_repair_keeps_its_work() {
    let mut world = World::default();
    let node = |reason: &'static str| repaired_node("gpu-1", "u1", "True", Some((reason, "policy gpu: it")));
    world.on_pods(pod("p1", 0, "gpu-1", "Running", false), second(0));
    for (at, reason) in
        ["Waiting", "Repairing", "Recovered", "Waiting", "Rebooting", "Repaired"].into_iter().enumerate()
    {
        world.on_nodes(node(reason), second(10 * at as i64));
    }
    // A new pod for the same index does not replace a pod that was never lost.
    world.on_pods(pod("p2", 0, "gpu-1", "Running", false), second(100));
    // A node that disappears without a repair has no replacement.
    world.on_nodes(Change::Gone("u1".into()), second(110));
    world.on_nodes(repaired_node("gpu-3", "u3", "True", None), second(120));
    assert_eq!(
        texts(&world),
        [
            "Node gpu-1 is healthy again by itself",
            "Node gpu-1 is sick: it",
            "Node gpu-1 is healthy again after a repair",
        ],
        "the first look is no news"
    );
    assert_eq!(delta(&world, None)["recovered"], 0);
}

#[test]
fn what_is_missing_is_told_when_it_changes_and_never_at_length() {
    use salvor_recovery::expected::ExpectedBack;
    use salvor_why::{Code, Group, NotSeen, Object, Overview, RootCause, Waiting};

    use super::missing::Missing;

    let overview = |count: usize| {
        let workload = |n: usize| Waiting {
            kind: "Job".into(),
            namespace: Some("default".into()),
            name: format!("job-{n:03}"),
            missing: "1 of 2 pods".into(),
        };
        let group = |n: usize| Group {
            root_cause: RootCause {
                code: Code::NodeLost,
                object: Object::of("Node", "", &format!("node-{n}")),
                message: "x".repeat(5_000),
                since: None,
                until: None,
                expected_back: ExpectedBack::default(),
            },
            pods: count,
            workloads: (0..count).map(workload).collect(),
            remedies: Vec::new(),
        };
        let not_seen = (0..count).map(|n| NotSeen { what: format!("kind-{n}"), why: "y".repeat(5_000) });
        Some(Missing::of(Overview { groups: (0..count).map(group).collect(), not_seen: not_seen.collect() }))
    };
    let mut world = World::default();
    assert_eq!(delta(&world, None)["missing"], json!(null), "nobody has looked yet");
    world.on_missing(overview(0));
    assert_eq!(delta(&world, None)["missing"]["causes"], json!([]), "nothing is missing");
    world.on_missing(overview(1));
    let seen = world.version();
    let shown = delta(&world, None)["missing"].clone();
    assert_eq!(shown["causes"][0]["code"], "NodeLost");
    assert_eq!(shown["causes"][0]["object"]["name"], "node-0");
    assert_eq!(shown["causes"][0]["workloads"][0]["missing"], "1 of 2 pods");
    world.on_missing(overview(1));
    assert_eq!((world.version(), delta(&world, Some(seen))["missing"].clone()), (seen, json!(null)));
    world.on_missing(overview(1_000));
    let shown = delta(&world, Some(seen))["missing"].clone();
    assert_eq!((&shown["moreCauses"], &shown["causes"][0]["moreWorkloads"]), (&json!(994), &json!(996)));
    assert!(shown.to_string().len() < 6_000, "{}", shown.to_string().len());
    world.on_missing(Some(Missing::unknown("pods cannot be read")));
    assert_eq!(delta(&world, Some(seen))["missing"]["problem"], "pods cannot be read");
}
