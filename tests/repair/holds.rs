//! Needless replacements: blocks that settle, and repairs that do not help.

use salvor_testkit::{Site, on_both, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::{NodeRepairPolicy, node_condition};
use crate::stage::{HOUR, Stage};

/// Records on a sick node that it has been observed as sick for an hour.
async fn has_been_seen(stage: &Stage, node: &str) {
    let since = k8s_openapi::jiff::Timestamp::now() - HOUR;
    let since = k8s_openapi::jiff::Timestamp::from_second(since.as_second()).unwrap();
    let progress = json!({"sick": {"BadNode=False": {"since": since}}}).to_string();
    stage.annotate(node, json!({"repair.salvor.dev/progress": progress})).await;
}

/// Three of ten have been sick for long, and one recovers: perhaps the others will too. They report until when they are
/// blocked, and are repaired then.
async fn a_hold_settles_before_it_ends(site: Site) {
    let stage = Stage::unattended(site, "settles", Manner::Replaces).await;
    let nodes = stage.healthy(10).await;
    for node in &nodes[..3] {
        stage.sicken(node).await;
        has_been_seen(&stage, node).await;
    }
    let _salvor = stage.attend("repair: {settleAfter: 15s, outageTimeout: 24h}\n", &[]);
    stage
        .stays(&nodes, async {
            stage.policy("30m", json!({"unhealthyLimit": "20%"})).await;
            for node in &nodes[..3] {
                stage.is_blocked_by(node, "TooManyUnhealthy").await;
            }
            stage.heal(&nodes[2]).await;
            for node in &nodes[..2] {
                let held = stage.is_blocked_by(node, "unless more heal").await;
                assert!(held.message.contains("held until"), "{held:?}");
            }
        })
        .await;
    stage.is_gone(&nodes[0]).await;
    stage.is_gone(&nodes[1]).await;
    stage.policy_says("RepairAllowed", "True", "Allowed").await;
}

/// A pool that is sick as a whole has one cause, even if the policy has many other healthy nodes.
async fn a_pool_that_is_sick_as_a_whole_is_held(site: Site) {
    let stage = Stage::new(site, "image").await;
    let edge = stage.beside("edge", Manner::Replaces).await;
    let mut nodes = Vec::new();
    for number in 0..3 {
        let mut one = edge.launch(&format!("n{number}"));
        one.zone = format!("zone-{}", ["a", "b", "c"][number]);
        one.labels = json!({"repair.test/group": stage.pool});
        nodes.push(edge.make(one).await);
    }
    for number in 0..17 {
        let mut one = stage.launch(&format!("m{number}"));
        one.zone = format!("zone-{}", ["a", "b", "c"][number % 3]);
        one.labels = json!({"repair.test/group": stage.pool});
        nodes.push(stage.make(one).await);
    }
    for node in &nodes[..4] {
        stage.sicken(node).await;
    }
    let selector = json!({"matchLabels": {"repair.test/group": stage.pool}});
    edge.stays(&nodes[..3], async {
        stage.policy("30m", json!({"nodeSelector": selector, "unhealthyLimit": "20%"})).await;
        // One sick node of another pool is repaired as usual.
        stage.is_gone(&nodes[3]).await;
        for node in &nodes[..3] {
            let held = stage.is_blocked_by(node, "PoolOutage").await;
            assert!(held.message.contains("held until"), "{held:?}");
        }
        stage.policy_says("RepairAllowed", "False", "PoolOutage").await;
    })
    .await;
}

/// The new node is sick as well, so the next one is not replaced until a person excludes the new one.
async fn replacements_that_are_sick_too_stop_repair(site: Site) {
    let stage = Stage::with(site, "vain", Manner::ReplacesInVain).await;
    let nodes = stage.healthy(6).await;
    stage.policy("30m", json!({})).await;
    stage.sicken(&nodes[0]).await;
    stage.is_gone(&nodes[0]).await;
    let new = format!("{}-new-0", stage.pool);
    wait::for_object(&stage.nodes, &new, "it is sick", |node| node_condition(node, "SalvorRepair").is_some())
        .await;
    let policy = stage.policy_says("RepairAllowed", "False", "RepairsDoNotHelp").await;
    let kept = &policy.status["replacements"][0];
    assert_eq!((&kept["pool"], &kept["condition"]), (&json!(stage.pool), &json!("BadNode")), "{kept}");
    stage
        .stays(&nodes[1..], async {
            stage.sicken(&nodes[1]).await;
            let held = stage.is_blocked_by(&nodes[1], "RepairsDoNotHelp").await;
            assert!(held.message.contains("one node is tried again at"), "{held:?}");
            stage.event("Node", &nodes[1], "NodeRepairBlocked").await;
            let told = stage.explain(&nodes[1]).await.to_string();
            assert!(told.contains("RepairsDoNotHelp"), "{told}");
        })
        .await;
    stage.annotate(&new, json!({"salvor.dev/do-not-repair": ""})).await;
    stage.is_gone(&nodes[1]).await;
}

/// Two processes that both believe they lead, and a restart of both, try one node at a time. Each attempt is in the
/// status, protected by its resourceVersion.
async fn two_leaders_try_one_node_at_a_time(site: Site) {
    let stage = Stage::unattended(site, "tries", Manner::ReplacesInVain).await;
    let nodes = stage.healthy(8).await;
    let record = stage.record().await;
    stage.policy("30m", json!({})).await;
    // All nodes become sick, which does not count as an outage of their zone here.
    let often = "repair: {retryAfter: 3s, zoneSickPercent: 0}\n";
    let start = || [stage.attend(often, &[]), stage.attend(often, &[])];
    let both = start();
    stage.sicken(&nodes[0]).await;
    stage.is_gone(&nodes[0]).await;
    stage.policy_says("RepairAllowed", "False", "RepairsDoNotHelp").await;
    for node in &nodes[1..] {
        stage.sicken(node).await;
    }
    let tries = |policy: &NodeRepairPolicy| policy.status["replacements"][0]["retries"].as_u64().unwrap_or(0);
    wait::for_object(&stage.policies, &stage.pool, "one is tried again", |it| tries(it) >= 1).await;
    drop(both);
    let both = start();
    wait::for_object(&stage.policies, &stage.pool, "another one is", |it| tries(it) >= 2).await;
    drop(both);
    let policy = stage.policies.get(&stage.pool).await.unwrap();
    let changes = record.changes().await;
    let mut deleted: Vec<&str> = changes
        .iter()
        .filter(|change| change.object["metadata"]["deletionTimestamp"] != Value::Null)
        .map(|change| change.name.as_str())
        .collect();
    deleted.sort_unstable();
    deleted.dedup();
    // The last one may have been decided, but not started.
    let (deleted, tries) = (deleted.len() as u64, tries(&policy));
    assert!(deleted <= 1 + tries && tries <= deleted, "{deleted} deleted, {}", policy.status);
}

on_both!(
    a_hold_settles_before_it_ends,
    a_pool_that_is_sick_as_a_whole_is_held,
    replacements_that_are_sick_too_stop_repair,
    two_leaders_try_one_node_at_a_time,
);
