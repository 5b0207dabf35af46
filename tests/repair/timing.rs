//! Clocks that agents reset, and nodes that never become Ready.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use salvor_testkit::{Site, on_both, wait};
use serde_json::json;

use crate::karpenter::Manner;
use crate::stage::{BAD, HOUR, Stage};

const PROGRESS: &str = "repair.salvor.dev/progress";

/// Plays an agent that rewrites its condition again and again, each time with a new transition time.
async fn rewrite(stage: &Stage, node: &str, statuses: &[&str]) {
    loop {
        for status in statuses {
            stage.set(node, BAD, status, Duration::ZERO).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// The agent never lets the toleration of Karpenter's rule pass. Salvor's toleration passes anyway.
async fn an_agent_that_rewrites_the_transition_does_not_stop_the_clock(site: Site) {
    let stage = Stage::new(site, "rewrites").await;
    let nodes = stage.healthy(2).await;
    stage.karpenter.hang();
    stage.policy("3s", json!({})).await;
    tokio::select! {
        () = rewrite(&stage, &nodes[0], &["False"]) => {}
        () = stage.is_terminated(&nodes[0]) => {}
    }
    stage.karpenter.go_on();
    stage.is_gone(&nodes[0]).await;
}

/// A node that is healthy only for a moment between two sick states is not healthy.
async fn a_node_that_flaps_is_repaired(site: Site) {
    let stage = Stage::new(site, "flaps").await;
    let nodes = stage.healthy(2).await;
    stage.karpenter.hang();
    stage.policy("3s", json!({})).await;
    tokio::select! {
        () = rewrite(&stage, &nodes[0], &["False", "False", "False", "False", "True"]) => {}
        () = stage.is_terminated(&nodes[0]) => {}
    }
    stage.karpenter.go_on();
    stage.is_gone(&nodes[0]).await;
}

/// The clock is in the node's annotation: it survives a restart of Salvor, and of an agent in the meantime.
async fn the_clock_survives_our_restart(site: Site) {
    let stage = Stage::unattended(site, "survives", Manner::Replaces).await;
    let nodes = stage.healthy(2).await;
    stage.policy("1h5s", json!({})).await;
    stage.set(&nodes[0], BAD, "False", HOUR).await;
    let salvor = stage.attend("", &[]);
    let noted = |node: &k8s_openapi::api::core::v1::Node| node.annotations().contains_key(PROGRESS);
    wait::for_object(&stage.nodes, &nodes[0], "its progress is noted", noted).await;
    salvor.program.kill().await;
    // By Karpenter's rule it has an hour from here.
    stage.set(&nodes[0], BAD, "False", Duration::ZERO).await;
    let _salvor = stage.attend("", &[]);
    stage.is_gone(&nodes[0]).await;
    stage.has_nodes(2).await;
}

/// Invalid content of Salvor's annotation can neither start a repair nor crash Salvor.
async fn garbage_in_our_annotation_starts_nothing(site: Site) {
    let stage = Stage::new(site, "garbage").await;
    let nodes = stage.healthy(6).await;
    stage.policy("1h", json!({})).await;
    let ancient = json!({
        "BadNode": {"since": "1970-01-01T00:00:00Z"}, "BadNode=False": "1970-01-01T00:00:00Z",
        "conditions": {"BadNode": "1970-01-01T00:00:00Z"}, "attempts": -1,
    });
    let values = ["", "{", "[]", "null", &ancient.to_string()];
    for (node, value) in nodes.iter().zip(values) {
        stage.annotate(node, json!({PROGRESS: value})).await;
    }
    let canary = &nodes[5];
    stage
        .stays(&nodes[..5], async {
            stage.sicken(canary).await;
            stage.is_gone(canary).await;
        })
        .await;
}

/// A tool truncates Salvor's annotation on a sick node. It is unknown what was tried on that node, so the node reports
/// this and is not repaired until the annotation is fixed.
async fn a_sick_node_whose_annotation_nobody_can_read_is_held(site: Site) {
    let stage = Stage::new(site, "unreadable").await;
    let nodes = stage.healthy(4).await;
    stage.policy("30m", json!({})).await;
    let (held, canary) = (&nodes[0], &nodes[1]);
    stage.set(held, BAD, "False", Duration::ZERO).await;
    stage.says(held, "Waiting").await;
    let garbage = r#"{"sick":{"BadNode=Fal"#;
    stage.annotate(held, json!({PROGRESS: garbage})).await;
    let said = stage.says(held, "AnnotationUnreadable").await.message;
    assert!(said.contains(PROGRESS) && said.contains("EOF"), "{said}");
    stage
        .stays(std::slice::from_ref(held), async {
            stage.sicken(held).await;
            stage.sicken(canary).await;
            stage.is_gone(canary).await;
        })
        .await;
    let node = stage.nodes.get(held).await.unwrap();
    assert_eq!(node.annotations()[PROGRESS], garbage, "it is left for whoever wants to know");
    // Removed: its condition counts again, which is an hour old.
    stage.annotate(held, json!({PROGRESS: null})).await;
    stage.is_gone(held).await;
}

/// Registered and never Ready. A node that was Ready once is not covered by the startup rule.
async fn a_node_that_never_gets_ready_is_replaced(site: Site) {
    let stage = Stage::new(site, "startup").await;
    let was_ready = stage.make(stage.launch("was-ready")).await;
    let mut never = stage.launch("never");
    never.ready = false;
    stage.policy("1h", json!({"startupTimeout": "3s"})).await;
    stage
        .stays(std::slice::from_ref(&was_ready), async {
            stage.set(&was_ready, "Ready", "False", Duration::ZERO).await;
            let never = stage.make(never).await;
            let waiting = stage.says(&never, "Waiting").await;
            assert!(waiting.message.contains(&stage.pool), "{waiting:?}");
            stage.is_gone(&never).await;
        })
        .await;
}

/// A wave of slowly starting nodes is neither sick nor does it block a repair (weak point 1).
async fn a_wave_of_starting_nodes_freezes_nothing(site: Site) {
    let stage = Stage::new(site, "wave").await;
    let nodes = stage.healthy(4).await;
    let mut starting = Vec::new();
    for number in 0..6 {
        let mut one = stage.launch(&format!("starting-{number}"));
        one.ready = false;
        starting.push(stage.make(one).await);
    }
    let sick = |kind: &str, status: &str| json!({"conditionType": kind, "conditionStatus": status, "toleration": "30m"});
    let policies = json!([sick("Ready", "False"), sick(BAD, "False")]);
    stage.policy("30m", json!({"policies": policies, "unhealthyLimit": 1, "startupTimeout": "1h"})).await;
    stage
        .stays(&starting, async {
            stage.sicken(&nodes[0]).await;
            stage.is_gone(&nodes[0]).await;
        })
        .await;
}

/// API times have no fractions: the deadline itself counts as passed, not a second later.
async fn a_toleration_of_zero_is_over_at_once(site: Site) {
    let stage = Stage::new(site, "zero").await;
    let nodes = stage.healthy(1).await;
    stage.policy("0s", json!({})).await;
    stage.set_at(&nodes[0], BAD, "False", Timestamp::now()).await;
    stage.is_gone(&nodes[0]).await;
}

on_both!(
    an_agent_that_rewrites_the_transition_does_not_stop_the_clock,
    a_node_that_flaps_is_repaired,
    the_clock_survives_our_restart,
    garbage_in_our_annotation_starts_nothing,
    a_sick_node_whose_annotation_nobody_can_read_is_held,
    a_node_that_never_gets_ready_is_replaced,
    a_wave_of_starting_nodes_freezes_nothing,
    a_toleration_of_zero_is_over_at_once,
);
