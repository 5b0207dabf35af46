//! Each rule of the recovery, observed from outside.

use futures::future::join_all;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
    events::v1::Event,
    rbac::v1::PolicyRule,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use salvor_testkit::{Hold, Part, Recorder, Salvor, Site, proxy::Mode, wait};
use serde_json::{Value, json};

use crate::stage::{AT_ONCE, DELETE, SALVOR, Stage, TERMINATE, conditions, phase};

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn labelled(value: &str) -> Value {
    json!({"metadata": {"labels": {"salvor": value}}})
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

/// Salvor's condition on a pod, if it is there exactly once.
fn mark(pod: &Pod) -> Option<(String, String)> {
    let ours: Vec<_> = conditions(pod).into_iter().filter(|c| c.0 == "KueueFailureRecovery").collect();
    assert!(ours.len() <= 1, "more than one mark: {ours:?}");
    ours.into_iter().next().map(|(_, _, reason, message)| (reason, message))
}

async fn a_zombie_fails_with_its_conditions_and_one_event_in_two_writes(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node-a").await;
    let mark_of_time = stage.plane.accounting().mark().await;
    let salvor = stage.salvor(AT_ONCE).await;
    let pod = stage.terminating("zombie", "node-a", labelled("fail")).await;
    let failed = stage.until_failed("zombie").await;
    let all = conditions(&failed);
    assert!(all.iter().any(|c| c.0 == "Ready"), "conditions of others are kept: {all:?}");
    assert!(all.iter().any(|c| c.0 == "DisruptionTarget" && c.1 == "True"), "{all:?}");
    let (reason, message) = mark(&failed).unwrap();
    assert_eq!(reason, "KueueForcefullyTerminated");
    assert_eq!(
        message,
        "Pod forcefully terminated after 1s grace period due to unreachable node `node-a` \
         (triggered by `failureRecoveryPolicy.rules[0]`)"
    );
    salvor.says("record the Warning event").await;
    let events = stage.events_about(&pod).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].note.as_deref(), Some(message.as_str()));
    assert_eq!(events[0].type_.as_deref(), Some("Warning"));
    assert_eq!(events[0].reporting_controller.as_deref(), Some("pod-termination-controller"));
    stage.until_all_is_judged("node-a").await;
    salvor.says("record the Warning event KueueForcefullyTerminated on pod default/probe").await;
    let table = stage.plane.accounting().since(&mark_of_time).await;
    let writes = table.count(|r| r.user_agent.starts_with("salvor/") && r.verb.is_write());
    assert_eq!(writes, 4, "two for the zombie, two for the probe:\n{table}");
    let metrics = salvor.get("/metrics").await;
    assert!(metrics.contains("salvor_writes_total{action=\"PatchPodStatus\",result=\"ok\"} 2"), "{metrics}");
    assert!(salvor.get("/readyz").await.contains("200 OK"));
}

async fn both_annotations_work_after_a_minute_and_nothing_else_does(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("lost").await;
    stage.node("healthy").await;
    stage.node("sick").await;
    stage.taint("sick", "node.kubernetes.io/not-ready").await;
    let salvor = stage.salvor("").await;
    for (name, node, extra) in [
        ("false", "lost", annotated(TERMINATE, "false")),
        ("capital", "lost", annotated(DELETE, "True")),
        ("plain", "lost", json!({})),
        ("healthy", "healthy", annotated(DELETE, "true")),
        ("not-ready", "sick", annotated(DELETE, "true")),
        ("nowhere", "no-such-node", annotated(DELETE, "true")),
    ] {
        stage.terminating(name, node, extra).await;
    }
    stage.pod("alive", "lost", annotated(DELETE, "true")).await;
    let succeeded = stage.pod("succeeded", "lost", annotated(DELETE, "true")).await;
    let success = Patch::Strategic(json!({"status": {"phase": "Succeeded"}}));
    let held = Patch::Merge(json!({"metadata": {"finalizers": ["test.salvor.dev/hold"]}}));
    stage.pods().patch("succeeded", &PatchParams::default(), &held).await.unwrap();
    stage.pods().delete("succeeded", &DeleteParams::default()).await.unwrap();
    stage.pods().patch_status("succeeded", &PatchParams::default(), &success).await.unwrap();
    let deleted = stage.terminating("deleted", "lost", annotated(DELETE, "true")).await;
    let mut both = annotated(DELETE, "true");
    both["metadata"]["annotations"][TERMINATE] = "true".into();
    stage.terminating("both", "lost", both).await;
    let extra = json!({"metadata": {"annotations": {TERMINATE: "true"}}, "spec": {"terminationGracePeriodSeconds": 2}});
    stage.terminating("terminated", "lost", extra).await;

    let recovered = async {
        let failed = stage.until_failed("terminated").await;
        let (reason, message) = mark(&failed).unwrap();
        assert_eq!(reason, "KueueForcefullyTerminated");
        let marked = failed.status.as_ref().unwrap().conditions.iter().flatten();
        let marked =
            marked.filter(|c| c.type_ == "KueueFailureRecovery").find_map(|c| c.last_transition_time.clone());
        let waited = marked.unwrap().0.duration_since(failed.metadata.deletion_timestamp.as_ref().unwrap().0);
        assert!(waited.as_secs() >= 60, "never early: {waited:?}");
        assert_eq!(
            message,
            format!(
                "Pod forcefully terminated after 62s grace period due to unreachable node `lost` \
                 (triggered by `{TERMINATE} annotation`)"
            )
        );
        wait::for_absence(&stage.pods(), "deleted").await;
        wait::for_absence(&stage.pods(), "both").await;
        let kept = wait::for_object(&stage.pods(), "succeeded", "it is force deleted", |p| {
            p.metadata.deletion_grace_period_seconds == Some(0)
        })
        .await;
        assert_eq!(phase(&kept), "Succeeded", "the phase of a terminal pod is kept");
    };
    let untouched = ["false", "capital", "plain", "healthy", "not-ready", "nowhere", "alive"];
    wait::never(
        &stage.pods(),
        &ListParams::default(),
        "a pod without consent or reason is touched",
        |p| untouched.contains(&p.name_any().as_str()) && phase(p) != "Running",
        recovered,
    )
    .await;
    for name in untouched {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
    salvor.says("record the Warning event KueueForcefullyDeleted on pod default/succeeded").await;
    assert_eq!(stage.events_about(&deleted).await[0].reason.as_deref(), Some("KueueForcefullyDeleted"));
    assert_eq!(stage.events_about(&succeeded).await.len(), 1);
}

async fn a_node_lost_late_a_label_added_late_and_a_late_start_are_picked_up_and_a_healed_node_is_left_alone(
    site: Site,
) {
    let stage = Stage::new(site).await;
    stage.node("late").await;
    stage.lost_node("lost").await;
    let held = json!({"metadata": {"labels": {"salvor": "fail"}, "finalizers": ["test.salvor.dev/hold"]}});
    stage.terminating("before", "lost", held.clone()).await;
    let salvor = stage.salvor(AT_ONCE).await;
    stage.until_failed("before").await;

    stage.terminating("node-late", "late", held.clone()).await;
    stage
        .terminating("label-late", "lost", json!({"metadata": {"finalizers": ["test.salvor.dev/hold"]}}))
        .await;
    stage.until_all_is_judged("lost").await;
    for name in ["node-late", "label-late"] {
        assert_eq!(phase(&stage.pods().get(name).await.unwrap()), "Running", "{name}");
    }
    let label = Patch::Merge(labelled("fail"));
    stage.pods().patch("label-late", &PatchParams::default(), &label).await.unwrap();
    stage.until_failed("label-late").await;
    stage.taint("late", UNREACHABLE).await;
    stage.until_failed("node-late").await;

    // Tainted when it was deleted, healed before it was due.
    stage.lost_node("blip").await;
    let slow =
        json!({"metadata": {"labels": {"salvor": "fail"}}, "spec": {"terminationGracePeriodSeconds": 12}});
    stage.terminating("spared", "blip", slow).await;
    stage.set_taints("blip", json!([])).await;
    let later =
        json!({"metadata": {"labels": {"salvor": "fail"}}, "spec": {"terminationGracePeriodSeconds": 13}});
    stage.terminating("after", "lost", later).await;
    stage.until_failed("after").await;
    assert_eq!(phase(&stage.pods().get("spared").await.unwrap()), "Running");
    assert!(!salvor.program.has_ended());
}

async fn a_pod_held_by_a_finalizer_is_deleted_once_and_never_comes_due_again(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let salvor = stage.salvor(AT_ONCE).await;
    let extra = json!({"metadata": {"labels": {"salvor": "delete"}, "finalizers": ["test.salvor.dev/hold"]}});
    let recorder = Recorder::start(&stage.pods(), &ListParams::default()).await;
    let pod = stage.terminating("held", "node", extra).await;
    wait::for_object(&stage.pods(), "held", "it is force deleted", |p| {
        phase(p) == "Failed" && p.metadata.deletion_grace_period_seconds == Some(0)
    })
    .await;
    stage.until_all_is_judged("node").await;
    let touched = Patch::Merge(json!({"metadata": {"annotations": {"touched": "again"}}}));
    stage.pods().patch("held", &PatchParams::default(), &touched).await.unwrap();
    stage.until_all_is_judged("node").await;
    let left = stage.pods().get("held").await.unwrap();
    assert_eq!(mark(&left).unwrap().0, "KueueForcefullyDeleted");
    assert_eq!(stage.events_about(&pod).await.len(), 1);
    assert_eq!(salvor.count(&["delete pod default/held"]), 1);

    // First the status, then the delete; never the other way round.
    let changes = recorder.changes().await;
    let of_held = changes.iter().filter(|c| c.name == "held");
    let failed_at = of_held.clone().position(|c| c.object["status"]["phase"] == "Failed").unwrap();
    let deleted_at =
        of_held.clone().position(|c| c.object["metadata"]["deletionGracePeriodSeconds"] == 0).unwrap();
    assert!(failed_at < deleted_at, "phase at change {failed_at}, delete at {deleted_at}");
}

/// Starts `salvor run`, creates a zombie to be deleted, and waits until the patch (1), the event (2) or the delete (3)
/// is about to be sent.
async fn about_to_write(stage: &Stage, number: usize, name: &str) -> (Salvor, Hold, Pod) {
    let hold = Hold::before_write(number);
    let arguments = ["--leader-elect=false"];
    let salvor = stage.salvor_as(&stage.plane.admin(), AT_ONCE, &arguments, &[hold.variable()]).await;
    let pod = stage.terminating(name, "node", labelled("delete")).await;
    let reached = wait::patience().until(hold.reached()).await;
    assert!(reached.is_some(), "write {number} never came: {}", salvor.program.output());
    (salvor, hold, pod)
}

async fn a_new_pod_of_the_same_name_is_never_touched(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    for write in 1..=3 {
        let (salvor, hold, first) = about_to_write(&stage, write, "twin").await;
        stage.pods().delete("twin", &DeleteParams::default().grace_period(0)).await.unwrap();
        wait::for_absence(&stage.pods(), "twin").await;
        let second = stage.pod("twin", "node", labelled("delete")).await;
        assert_ne!(first.uid(), second.uid());
        hold.let_go();
        stage.until_all_is_judged("node").await;
        let twin = stage.pods().get("twin").await.unwrap();
        assert_eq!(twin.uid(), second.uid(), "write {write}: {}", salvor.program.output());
        assert_eq!((phase(&twin), mark(&twin)), ("Running", None), "write {write}");
        assert_eq!(stage.events_about(&second).await.len(), 0, "write {write}");
        drop(salvor);
        stage.remove_all_pods().await;
    }
}

/// Another client writes between the decision and each write of Salvor.
async fn conflicts_with_another_writer_end_in_one_mark(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    for write in 1..=3 {
        let (salvor, hold, pod) = about_to_write(&stage, write, "contended").await;
        let noise = Patch::Merge(json!({"metadata": {"annotations": {"noise": "yes"}}}));
        stage.pods().patch("contended", &PatchParams::default(), &noise).await.unwrap();
        hold.let_go();
        wait::for_absence(&stage.pods(), "contended").await;
        stage.until_all_is_judged("node").await;
        assert_eq!(stage.events_about(&pod).await.len(), 1, "write {write}: {}", salvor.program.output());
        let conflict = r#"salvor_writes_total{action="PatchPodStatus",result="conflict"}"#;
        assert_eq!(salvor.get("/metrics").await.contains(conflict), write == 1, "write {write}");
        drop(salvor);
        stage.remove_all_pods().await;
    }
}

fn rule(groups: &str, resource: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![groups.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|&v| v.to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// All rights that zombie recovery without node rules needs, as (group, resource, verb).
///
/// `get` on pods is for the second look at a pod that an earlier process left half done. It comes after `delete`,
/// because a missing `delete` leaves such a pod.
const NEEDED: [(&str, &str, &str); 10] = [
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods", "delete"),
    ("", "pods", "get"),
    ("", "pods/status", "patch"),
    ("", "nodes", "get"),
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("coordination.k8s.io", "leases", "get"),
    ("", "events", "create"),
];

/// Only on a real control plane: the embedded one has no RBAC.
#[tokio::test]
async fn the_rights_are_exactly_sufficient_and_a_missing_one_is_named() {
    let stage = Stage::new(Site::Real).await;
    stage.lost_node("node").await;
    let admin = stage.plane.admin();
    let one_right = |(group, resource, verb): (&str, &str, &str)| rule(group, resource, &[verb]);
    let all = NEEDED.map(one_right).to_vec();
    let enough = admin.service_account("default", "enough", all).await.unwrap();
    let arguments = ["--leader-elect=false"];
    let salvor = stage.salvor_as(&enough, AT_ONCE, &arguments, &[]).await;
    stage.terminating("ok-fail", "node", labelled("fail")).await;
    stage.terminating("ok-delete", "node", labelled("delete")).await;
    stage.until_failed("ok-fail").await;
    wait::for_absence(&stage.pods(), "ok-delete").await;
    assert_eq!(salvor.count(&["not allowed"]), 0, "{}", salvor.program.output());
    drop(salvor);

    let mut zombies = Vec::new();
    for (i, (_, resource, verb)) in NEEDED.iter().enumerate() {
        let rules: Vec<_> =
            NEEDED.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, r)| one_right(*r)).collect();
        let account = admin.service_account("default", &format!("lacks-{i}"), rules).await.unwrap();
        let name = format!("zombie-{i}");
        let held =
            json!({"metadata": {"labels": {"salvor": "delete"}, "finalizers": ["test.salvor.dev/hold"]}});
        zombies.push(stage.terminating(&name, "node", held).await);
        let salvor = stage.salvor_as(&account, AT_ONCE, &arguments, &[]).await;
        salvor.says(&format!("cannot {verb} resource \\\"{resource}\\\"")).await;
    }
    let _full = stage.salvor(AT_ONCE).await;
    assert_each_recovered_once(&stage, &zombies).await;
}

async fn a_dry_run_writes_nothing_and_says_what_it_would_have_done(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    let before = stage.plane.accounting().mark().await;
    let salvor = stage.salvor(&format!("dryRun: true\n{AT_ONCE}")).await;
    stage.terminating("zombie", "node", labelled("delete")).await;
    salvor.says("dry run: write skipped").await;
    salvor.says("delete pod default/zombie with no grace").await;
    assert_eq!(phase(&stage.pods().get("zombie").await.unwrap()), "Running");
    let table = stage.plane.accounting().since(&before).await;
    assert_eq!(table.count(|r| r.user_agent.starts_with("salvor/") && r.verb.is_write()), 0, "{table}");
}

async fn the_brake_holds_when_most_nodes_are_lost_says_so_once_and_lets_go(site: Site) {
    let stage = Stage::new(site).await;
    for i in 0..3 {
        stage.lost_node(&format!("lost-{i}")).await;
    }
    stage.node("fine").await;
    let configuration = format!("{AT_ONCE}\nbrake: {{settlePeriod: 1s}}\n");
    let salvor = stage.salvor_as(&stage.plane.admin(), &configuration, &[], &[]).await;
    salvor.says("\"leading\"").await;
    let pod = stage.terminating("zombie", "lost-0", labelled("fail")).await;
    salvor.says("3 of 4 nodes are unreachable at once").await;
    let events: Api<Event> = Api::namespaced(stage.client.clone(), "salvor-system");
    wait::for_list(&events, &ListParams::default(), "the brake's event", |all| {
        all.iter().any(|e| e.reason.as_deref() == Some("BrakeEngaged"))
    })
    .await;
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "salvor-system");
    wait::for_object(&leases, "salvor", "the lease remembers the brake", |l| {
        l.annotations().get("salvor.dev/brake").is_some_and(|b| b.contains("engaged") && b.contains("since"))
    })
    .await;
    // By the most conservative reading of the clock it may not be due yet.
    let held = wait::patience().until(async {
        loop {
            let explained = explain(&stage, "pod", "default/zombie").await;
            if explained.contains("BLOCKED") {
                return explained;
            }
        }
    });
    let explained = held.await.unwrap();
    assert!(explained.contains("3 of 4 nodes"), "{explained}");
    assert!(salvor.get("/metrics").await.contains("salvor_brake_engaged 1"));

    // A new leader continues after this one was killed, and records no event twice.
    salvor.program.kill().await;
    let second = stage.salvor_as(&stage.plane.admin(), &configuration, &[], &[]).await;
    second.says("\"leading\"").await;
    second.shows("salvor_held_total{recovery=\"zombie\",by=\"MaxUnreachablePercent\"} 1").await;
    assert_eq!(phase(&stage.pods().get("zombie").await.unwrap()), "Running");
    stage.set_taints("lost-2", json!([])).await;
    stage.until_failed("zombie").await;
    let told = events.list(&ListParams::default()).await.unwrap();
    let engaged = told.iter().filter(|e| e.reason.as_deref() == Some("BrakeEngaged")).count();
    assert_eq!(engaged, 1, "{told:?}");
    assert!(mark(&stage.pods().get(&pod.name_any()).await.unwrap()).is_some());
}

async fn a_node_lost_for_long_is_declared_out_of_service_and_taken_back(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    stage.boots("node", "first").await;
    let config = "
failureRecoveryPolicy:
  rules:
  - taintNodeOutOfService:
      nodeSelector: {matchLabels: {pool: batch}}
      unreachableNodeTimeout: 1s
";
    let salvor = stage.salvor(config).await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"pool": "batch"}}}));
    stage.nodes().patch("node", &PatchParams::default(), &label).await.unwrap();
    let has = |n: &Node| {
        let taints = n.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        taints.iter().any(|t| t.key == "node.kubernetes.io/out-of-service" && t.effect == "NoExecute")
    };
    let tainted = wait::for_object(&stage.nodes(), "node", "it is out of service", has).await;
    assert_eq!(tainted.spec.unwrap().taints.unwrap().len(), 3, "the taints of others are kept");
    salvor.says("record the").await;

    // Only its kubelet calls it Ready, and there is no Lease to contradict. But it was only partitioned: its volumes
    // were detached by force, and its old containers may still use them.
    stage.ready("node", "True").await;
    salvor.says("record the Warning event NodeNotRebooted on node node").await;
    assert!(has(&stage.nodes().get("node").await.unwrap()));
    let explained = explain(&stage, "node", "node").await;
    assert!(explained.contains("NotRebooted") && explained.contains("Reboot the machine"), "{explained}");
    stage.boots("node", "second").await;
    let back = wait::for_object(&stage.nodes(), "node", "it is back in service", |n| !has(n)).await;
    assert_eq!(back.spec.unwrap().taints.unwrap().len(), 2);
}

async fn explain(stage: &Stage, kind: &str, name: &str) -> String {
    let kubeconfig = stage.write("explain-kubeconfig", &stage.plane.admin().kubeconfig());
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    let config = stage.write("explain.yaml", &format!("{head}{AT_ONCE}"));
    let program = salvor_testkit::Program::start(
        std::path::Path::new(SALVOR),
        [
            "explain".to_owned(),
            kind.to_owned(),
            name.to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", config.display()),
            "--feature-gates=FailureRecoveryPolicy=true".to_owned(),
        ],
        &[],
    );
    assert_eq!(program.exit_code().await, Some(0), "{}", program.output());
    program.output()
}

async fn explain_shows_each_rule_with_what_was_seen(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    stage.terminating("zombie", "node", annotated(TERMINATE, "true")).await;
    let waiting = explain(&stage, "pod", "default/zombie").await;
    assert!(
        waiting.contains("WAIT until") && waiting.contains(TERMINATE) && waiting.contains("node"),
        "{waiting}"
    );
    stage.pod("alive", "node", json!({})).await;
    let ignored = explain(&stage, "pod", "default/alive").await;
    assert!(ignored.contains("IGNORE") && ignored.contains("being deleted"), "{ignored}");
    stage.terminating("done", "node", labelled("fail")).await;
    let quick = stage.salvor(AT_ONCE).await;
    stage.until_failed("done").await;
    quick.says("record the Warning event").await;
    let done = explain(&stage, "pod", "default/done").await;
    assert!(done.contains("KueueForcefullyTerminated"), "{done}");
}

/// A storm of zombies, which become due when the test says so.
async fn storm(stage: &Stage, count: usize) -> Vec<Pod> {
    stage.node("storm").await;
    let names: Vec<String> = (0..count).map(|i| format!("zombie-{i:03}")).collect();
    let pods = join_all(names.iter().map(|name| {
        let held =
            json!({"metadata": {"labels": {"salvor": "delete"}, "finalizers": ["test.salvor.dev/hold"]}});
        stage.terminating(name, "storm", held)
    }))
    .await;
    stage.taint("storm", UNREACHABLE).await;
    pods
}

/// Checks that every pod of a storm was recovered once: one mark, one event, deleted.
async fn assert_each_recovered_once(stage: &Stage, pods: &[Pod]) {
    let selection = ListParams::default().labels("salvor=delete");
    let all = wait::for_list(&stage.pods(), &selection, "every zombie is recovered", |all: &[Pod]| {
        all.iter().all(|p| phase(p) == "Failed" && p.metadata.deletion_grace_period_seconds == Some(0))
    })
    .await;
    assert_eq!(all.len(), pods.len());
    assert!(all.iter().all(|p| mark(p).is_some_and(|(reason, _)| reason == "KueueForcefullyDeleted")));
    let events: Api<Event> = Api::default_namespaced(stage.client.clone());
    wait::for_list(&events, &ListParams::default(), "one event each", |all: &[Event]| {
        let of = |p: &Pod| {
            all.iter().filter(|e| e.regarding.as_ref().and_then(|r| r.uid.clone()) == p.uid()).count()
        };
        pods.iter().all(|p| of(p) == 1)
    })
    .await;
}

async fn when_the_leader_is_killed_in_a_storm_the_follower_finishes_it(site: Site) {
    let stage = Stage::new(site).await;
    let admin = stage.plane.admin();
    let first = stage.salvor_as(&admin, AT_ONCE, &[], &[]).await;
    first.says("\"leading\"").await;
    let second = stage.salvor_as(&admin, AT_ONCE, &[], &[]).await;
    second.says("holds it").await;
    let pods = storm(&stage, 60).await;
    first.says("with no grace").await;
    first.program.kill().await;
    assert_each_recovered_once(&stage, &pods).await;
    // However much was left, the leader records what happened.
    second.says("\"write succeeded\"").await;
}

async fn a_leader_that_sleeps_past_its_lease_writes_nothing_more(site: Site) {
    let stage = Stage::new(site).await;
    let admin = stage.plane.admin();
    let config =
        format!("leaderElection: {{leaseDuration: 6s, renewDeadline: 4s, retryPeriod: 1s}}\n{AT_ONCE}");
    let first = stage.salvor_as(&admin, &config, &[], &[]).await;
    first.says("\"leading\"").await;
    // It has timers for pods that become due while it is suspended.
    let pods = storm(&stage, 20).await;
    stage.set_taints("storm", json!([])).await;
    // It must not be suspended with a write that is already in flight.
    stage.lost_node("other").await;
    let probe = stage.until_all_is_judged("other").await;
    first.says(&format!("record the Warning event KueueForcefullyTerminated on pod default/{probe}")).await;
    first.program.signal("STOP");
    stage.taint("storm", UNREACHABLE).await;
    // However long this takes, the first one may not lead again.
    let for_long =
        format!("leaderElection: {{leaseDuration: 10m, renewDeadline: 4s, retryPeriod: 1s}}\n{AT_ONCE}");
    let second = stage.salvor_as(&admin, &for_long, &[], &[]).await;
    second.says("holds it").await;
    second.says("\"leading\"").await;
    // The second one is suspended too, before it could do everything. So there is work left that the first one must not
    // do.
    second.program.signal("STOP");
    let left = json!({"metadata": {"labels": {"salvor": "delete"}, "finalizers": ["test.salvor.dev/hold"]}});
    let late = stage.terminating("late", "storm", left).await;
    let due = stage.pods().get("late").await.unwrap().metadata.deletion_timestamp.unwrap().0;
    while k8s_openapi::jiff::Timestamp::now() < due + std::time::Duration::from_secs(2) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let before = stage.plane.accounting().mark().await;
    first.program.signal("CONT");
    first.says("\"not leading\"").await;
    let table = stage.plane.accounting().since(&before).await;
    let is_ours = |agent: &str| agent.starts_with("salvor/");
    let written = table.count(|r| is_ours(&r.user_agent) && r.verb.is_write() && r.resource != "leases");
    assert_eq!(written, 0, "{table}");
    assert_eq!(phase(&stage.pods().get("late").await.unwrap()), "Running");
    second.program.signal("CONT");
    let all: Vec<Pod> = pods.into_iter().chain([late]).collect();
    assert_each_recovered_once(&stage, &all).await;
}

/// Only on a real control plane: the embedded one dies with the test.
#[tokio::test]
async fn a_crashed_api_server_in_a_storm_is_survived() {
    let stage = Stage::new(Site::Real).await;
    let salvor = stage.salvor(AT_ONCE).await;
    let pods = storm(&stage, 60).await;
    salvor.says("\"write succeeded\"").await;
    stage.plane.real().crash(Part::ApiServer).await.unwrap();
    stage.plane.real().restart(Part::ApiServer).await.unwrap();
    assert_each_recovered_once(&stage, &pods).await;
}

async fn told_to_stop_it_gives_the_lease_back_and_exits_with_0(site: Site) {
    let stage = Stage::new(site).await;
    let salvor = stage.salvor_as(&stage.plane.admin(), AT_ONCE, &[], &[]).await;
    salvor.says("\"leading\"").await;
    salvor.program.signal("TERM");
    assert_eq!(salvor.program.exit_code().await, Some(0), "{}", salvor.program.output());
    let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "salvor-system");
    let lease = leases.get("salvor").await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some(""));
}

/// Ends the process before and after every write of a recovery. A second process must reach the same result, and the
/// server must have seen every write succeed once.
async fn a_crash_between_any_two_writes_leads_to_the_same_end(site: Site) {
    let stage = Stage::new(site).await;
    stage.lost_node("node").await;
    // Patch and event, and the delete if there is one.
    for (label, writes, reason) in
        [("fail", 2, "KueueForcefullyTerminated"), ("delete", 3, "KueueForcefullyDeleted")]
    {
        for (write, when) in (1..=writes).flat_map(|n| [(n, "before"), (n, "after")]) {
            let name = format!("{label}-{when}-{write}");
            let crash = format!("{when}:{write}");
            let held =
                json!({"metadata": {"labels": {"salvor": label}, "finalizers": ["test.salvor.dev/hold"]}});
            let mark_of_time = stage.plane.accounting().mark().await;
            let first = stage
                .salvor_as(
                    &stage.plane.admin(),
                    AT_ONCE,
                    &["--leader-elect=false"],
                    &[("SALVOR_TEST_CRASH", &crash)],
                )
                .await;
            let pod = stage.terminating(&name, "node", held).await;
            assert_eq!(first.program.exit_code().await, Some(86), "{crash}: {}", first.program.output());
            let second = stage.salvor(AT_ONCE).await;
            let left = wait::for_object(&stage.pods(), &name, "it is recovered", |p| {
                phase(p) == "Failed"
                    && (label == "fail" || p.metadata.deletion_grace_period_seconds == Some(0))
            })
            .await;
            assert_eq!(mark(&left).unwrap().0, reason, "{crash}");
            let events: Api<Event> = Api::default_namespaced(stage.client.clone());
            wait::for_list(&events, &ListParams::default(), "its event", |all: &[Event]| {
                all.iter().any(|e| e.regarding.as_ref().and_then(|r| r.uid.clone()) == pod.uid())
            })
            .await;
            let probe = stage.until_all_is_judged("node").await;
            second
                .says(&format!("record the Warning event KueueForcefullyTerminated on pod default/{probe}"))
                .await;
            assert_eq!(stage.events_about(&pod).await.len(), 1, "{crash}: {}", second.program.output());
            let table = stage.plane.accounting().since(&mark_of_time).await;
            let succeeded = |verb: &str| {
                table.count(|r| {
                    r.user_agent.starts_with("salvor/")
                        && r.verb.is_write()
                        && (200..300).contains(&r.code)
                        && r.verb.to_string() == verb
                })
            };
            // One of each for the pod, and a patch and an event for the probe.
            assert_eq!(succeeded("patch"), 2, "{crash}:\n{table}");
            assert_eq!(succeeded("delete"), u64::from(label == "delete"), "{crash}:\n{table}");
            // The next process would record their events again, which would shift its crash point.
            stage.remove_all_pods().await;
        }
    }
}

/// A quiet API server sends something every minute, so the shortest sensible limits are just above that.
async fn a_half_open_connection_makes_it_unready_and_nothing_is_done_on_an_old_view(site: Site) {
    let plane = site.api_server().await;
    let proxy = plane.proxy().await.unwrap();
    let stage = Stage::on(plane);
    stage.lost_node("node").await;
    let config = format!("staleness: {{readyLimit: 66s, irreversibleActionLimit: 65s}}\n{AT_ONCE}");
    let salvor = stage.salvor_as(proxy.admin(), &config, &["--leader-elect=false"], &[]).await;
    stage.until_all_is_judged("node").await;
    let slow =
        json!({"metadata": {"labels": {"salvor": "fail"}}, "spec": {"terminationGracePeriodSeconds": 30}});
    stage.terminating("zombie", "node", slow).await;
    // Decided after the zombie, so its timer is set before the connection goes dead.
    stage.until_all_is_judged("node").await;
    proxy.set(Mode::Blackhole).await;
    // The pod becomes due while the cache is not stale yet, but the second look gets no answer.
    salvor.says("no answer within").await;
    salvor.says("writes blocked: watch stale").await;
    salvor.until_answer("/readyz", "503").await;
    assert_eq!(phase(&stage.pods().get("zombie").await.unwrap()), "Running");
    proxy.set(Mode::Pass).await;
    stage.until_failed("zombie").await;
    salvor.until_answer("/readyz", "200 OK").await;
}

salvor_testkit::on_both!(
    a_zombie_fails_with_its_conditions_and_one_event_in_two_writes,
    both_annotations_work_after_a_minute_and_nothing_else_does,
    a_node_lost_late_a_label_added_late_and_a_late_start_are_picked_up_and_a_healed_node_is_left_alone,
    a_pod_held_by_a_finalizer_is_deleted_once_and_never_comes_due_again,
    a_new_pod_of_the_same_name_is_never_touched,
    conflicts_with_another_writer_end_in_one_mark,
    a_dry_run_writes_nothing_and_says_what_it_would_have_done,
    the_brake_holds_when_most_nodes_are_lost_says_so_once_and_lets_go,
    a_node_lost_for_long_is_declared_out_of_service_and_taken_back,
    explain_shows_each_rule_with_what_was_seen,
    when_the_leader_is_killed_in_a_storm_the_follower_finishes_it,
    a_leader_that_sleeps_past_its_lease_writes_nothing_more,
    told_to_stop_it_gives_the_lease_back_and_exits_with_0,
    a_crash_between_any_two_writes_leads_to_the_same_end,
    a_half_open_connection_makes_it_unready_and_nothing_is_done_on_an_old_view,
);
