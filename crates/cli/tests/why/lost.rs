//! Pods on lost nodes, with Salvor and without: the test plays the control plane.

use salvor_testkit::{Salvor, Site};
use serde_json::{Value, json};

use crate::stage::{SALVOR, Stage, running};

const DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";
const SETTINGS: &str = "
leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}
brake: {maxUnreachablePercent: 100}
failureRecoveryPolicy:
  annotatedPods: {forcefulTerminationGracePeriod: 2s, minimumForcefulTerminationGracePeriod: 1s}
";
const GATE: &str = "--feature-gates=FailureRecoveryPolicy=true";

fn consenting(wait: &str) -> Value {
    json!({"metadata": {"annotations": {DELETE: "true", "salvor.dev/termination-grace-after": wait}}})
}

fn codes(answer: &Value) -> Vec<&str> {
    answer["rootCauses"].as_array().unwrap().iter().filter_map(|cause| cause["code"].as_str()).collect()
}

async fn a_pod_on_a_lost_node_is_told_by_whoever_may_act(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::new(&plane.admin(), plane.kubectl(), "default");
    stage.node("lost", "Unknown").await;
    stage.pod("alive", "lost", json!({}), json!({"phase": "Running"})).await;
    stage.pod("stuck", "lost", json!({}), running()).await;
    stage.delete_pod("stuck").await;

    // Nobody may act: there is no Salvor.
    let answer = stage.until("pod/stuck", "NodeLost").await;
    assert_eq!(answer["rootCauses"][0]["object"], json!({"kind": "Node", "namespace": null, "name": "lost"}));
    stage.until("pod/alive", "NodeLost").await;
    stage.until("node/lost", "NodeLost").await;

    // With Salvor, and its gate off: consent is asked before what is on.
    let start = |arguments: &[&str]| Salvor::start(SALVOR, &plane.admin(), SETTINGS, arguments, &[]);
    let off = start(&["--controllers=zombie"]);
    off.says("\"leading\"").await;
    stage.until("pod/stuck", "NotOptedIn").await;
    stage.until("pod/alive", "NodeLost").await;
    stage.pod("consents", "lost", consenting("1h"), running()).await;
    stage.delete_pod("consents").await;
    stage.until("pod/consents", "RecoveryOff").await;
    off.program.kill().await;
    // Who leads is asked before what is on.
    stage.until("pod/consents", "NobodyLeads").await;
    stage.until("pod/stuck", "NotOptedIn").await;

    let on = start(&["--controllers=zombie", GATE]);
    on.says("\"leading\"").await;
    let waits = stage.until("pod/consents", "GraceRunning").await;
    assert!(waits["rootCauses"][0]["until"].is_string(), "{waits:#}");

    // All that waits for the node, worst first.
    let (code, said) = stage.run(&["why", "--all", "-A", "-o", "json"]).await;
    assert_eq!(code, 0, "{said}");
    let all: Value = serde_json::from_str(&said).unwrap();
    let groups: Vec<&str> = all["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|group| group["rootCause"]["code"].as_str())
        .collect();
    assert_eq!(groups, ["NodeLost", "NotOptedIn", "GraceRunning"], "{all:#}");
    let asked = stage.why("node/lost").await;
    assert_eq!(codes(&asked), ["NotOptedIn", "GraceRunning"], "{asked:#}");

    // Consent is a command.
    let answer = stage.until("pod/stuck", "NotOptedIn").await;
    stage.carry_out(&answer).await;
    stage.until_well("pod/stuck").await;

    // A pause is told, and ends by a command.
    assert_eq!(stage.run(&["pause", "--reason=test"]).await.0, 0);
    stage.pod("paused", "lost", consenting("1s"), running()).await;
    stage.delete_pod("paused").await;
    let answer = stage.until("pod/paused", "BrakeHolds").await;
    stage.carry_out(&answer).await;
    stage.until_well("pod/paused").await;

    // A file answers "what if", and a person reads one screen.
    let (code, said) = stage.run(&["why", "pod/consents"]).await;
    assert!(code == 0 && said.contains("Judged by what runs in the cluster"), "{said}");
    assert!(said.lines().count() < 40, "{said}");
}

salvor_testkit::on_both!(a_pod_on_a_lost_node_is_told_by_whoever_may_act);
