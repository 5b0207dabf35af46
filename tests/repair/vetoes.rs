//! Nodes whose repair is vetoed.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
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
    // The veto ends as soon as the annotation is removed.
    for (node, (key, _)) in nodes.iter().zip(ever) {
        stage.annotate(node, json!({key: Value::Null})).await;
        stage.is_gone(node).await;
    }
}

/// On a NodeClaim it protects one node, on a NodePool all nodes of the pool.
async fn an_annotation_of_the_owner_keeps_nodes(site: Site) {
    let stage = Stage::new(site, "owners").await;
    let mut kept = stage.launch("kept");
    kept.claim_annotations = json!({OURS: "true"});
    kept.zone = "zone-c".to_owned();
    let kept = stage.make(kept).await;
    let mut free = stage.launch("free");
    free.of_pool = false;
    // Three sick nodes in one zone would count as an outage of the zone.
    free.zone = "zone-b".to_owned();
    let free = stage.make(free).await;
    let nodes = stage.healthy(2).await;
    let on_pool = |value: Value| Patch::Merge(json!({"metadata": {"annotations": {OURS: value}}}));
    stage.pools.patch(&stage.pool, &PatchParams::default(), &on_pool(json!("true"))).await.unwrap();
    stage.policy("30m", json!({})).await;
    let all = [kept.clone(), nodes[0].clone(), nodes[1].clone()];
    stage
        .stays(&all, async {
            for node in [&kept, &nodes[0], &free] {
                stage.sicken(node).await;
            }
            stage.says(&kept, "Vetoed").await;
            stage.says(&nodes[0], "Vetoed").await;
            stage.is_gone(&free).await;
        })
        .await;
    // The pool is no longer vetoed. The NodeClaim is.
    stage
        .stays(&all[..1], async {
            stage.pools.patch(&stage.pool, &PatchParams::default(), &on_pool(Value::Null)).await.unwrap();
            stage.is_gone(&nodes[0]).await;
        })
        .await;
}

async fn a_veto_can_expire(site: Site) {
    let stage = Stage::new(site, "expires").await;
    let nodes = stage.healthy(2).await;
    let second = |at: Timestamp| Timestamp::from_second(at.as_second()).unwrap();
    let later = second(Timestamp::now() + Duration::from_secs(3600));
    let past = Timestamp::now() - Duration::from_secs(60);
    stage.annotate(&nodes[0], json!({OURS: later.to_string()})).await;
    stage.annotate(&nodes[1], json!({OURS: past.to_string()})).await;
    stage.policy("30m", json!({})).await;
    stage
        .stays(&nodes[..1], async {
            stage.sicken(&nodes[0]).await;
            stage.sicken(&nodes[1]).await;
            let vetoed = stage.says(&nodes[0], "Vetoed").await;
            assert!(vetoed.message.contains(&later.to_string()), "it says until when: {vetoed:?}");
            stage.is_gone(&nodes[1]).await;
        })
        .await;
    let soon = second(Timestamp::now() + Duration::from_secs(3));
    stage.annotate(&nodes[0], json!({OURS: soon.to_string()})).await;
    stage.is_gone(&nodes[0]).await;
    assert!(Timestamp::now() >= soon, "it was kept until {soon}");
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

on_both!(
    an_annotation_keeps_a_node,
    an_annotation_of_the_owner_keeps_nodes,
    a_veto_can_expire,
    a_paused_policy_repairs_nothing,
);
