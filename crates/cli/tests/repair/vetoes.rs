//! Nodes that somebody wants to be left alone.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use salvor_testkit::{Site, on_both};
use serde_json::{Value, json};

use crate::stage::Stage;

const OURS: &str = "salvor.dev/do-not-repair";
const KARPENTERS: &str = "karpenter.sh/do-not-repair";

async fn an_annotation_keeps_a_node(site: Site) {
    let stage = Stage::new(site, "veto").await;
    let nodes = stage.healthy(5).await;
    let ever = [(OURS, "true"), (OURS, ""), (KARPENTERS, "true"), (OURS, "until I say so")];
    for (node, (key, value)) in nodes.iter().zip(ever) {
        stage.annotate(node, json!({key: value})).await;
    }
    stage.policy("30m", json!({})).await;
    stage
        .stays(&nodes[..4], async {
            for node in &nodes {
                stage.sicken(node).await;
            }
            for node in &nodes[..4] {
                let vetoed = stage.says(node, "Vetoed").await;
                assert_eq!(vetoed.status, "False", "{vetoed:?}");
            }
            stage.is_gone(&nodes[4]).await;
        })
        .await;
    // Taken off, it is over at once.
    for (node, (key, _)) in nodes.iter().zip(ever) {
        stage.annotate(node, json!({key: Value::Null})).await;
        stage.is_gone(node).await;
    }
}

async fn a_veto_can_expire(site: Site) {
    let stage = Stage::new(site, "expires").await;
    let nodes = stage.healthy(2).await;
    let until = Timestamp::from_second((Timestamp::now() + Duration::from_secs(6)).as_second()).unwrap();
    let past = Timestamp::now() - Duration::from_secs(60);
    stage.annotate(&nodes[0], json!({OURS: until.to_string()})).await;
    stage.annotate(&nodes[1], json!({OURS: past.to_string()})).await;
    stage.policy("30m", json!({})).await;
    stage
        .stays(&nodes[..1], async {
            stage.sicken(&nodes[0]).await;
            stage.sicken(&nodes[1]).await;
            let vetoed = stage.says(&nodes[0], "Vetoed").await;
            assert!(vetoed.message.contains(&until.to_string()), "it says until when: {vetoed:?}");
            stage.is_gone(&nodes[1]).await;
        })
        .await;
    stage.is_gone(&nodes[0]).await;
    assert!(Timestamp::now() >= until);
}

async fn a_paused_policy_repairs_nothing(site: Site) {
    let stage = Stage::new(site, "paused").await;
    let nodes = stage.healthy(2).await;
    stage.sicken(&nodes[0]).await;
    stage
        .stays(&nodes, async {
            stage.policy("30m", json!({"paused": true})).await;
            stage.is_blocked_by(&nodes[0], "Paused").await;
            stage.policy_says("RepairAllowed", "False", "Paused").await;
        })
        .await;
    stage.change_policy(json!({"paused": false})).await;
    stage.is_gone(&nodes[0]).await;
}

on_both!(an_annotation_keeps_a_node, a_veto_can_expire, a_paused_policy_repairs_nothing);
