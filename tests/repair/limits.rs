//! Limits: the breaker, budgets, zones, and replacements that do not register.

use k8s_openapi::jiff::{Timestamp, tz::TimeZone};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use salvor_testkit::{Site, on_both, recorder::Change, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::{NodeClaim, NodeRepairPolicy};
use crate::stage::{HOUR, Stage, claim_name, start};

/// Creates nodes, the first of which are sick. There is no policy yet, so all are observed at once.
async fn pool(stage: &Stage, count: usize, sick: usize) -> Vec<String> {
    let nodes = stage.healthy(count).await;
    for node in &nodes[..sick] {
        stage.sicken(node).await;
    }
    nodes
}

/// 12: three of ten are more than 20 percent. Blocked repairs continue as soon as the block is lifted, not five minutes
/// later.
async fn too_many_sick_nodes_stop_repair_until_one_gets_well(site: Site) {
    let stage = Stage::new(site, "breaker").await;
    let nodes = pool(&stage, 10, 3).await;
    let limits = json!({"unhealthyLimit": "20%"});
    stage
        .stays(&nodes, async {
            stage.policy("30m", limits).await;
            for node in &nodes[..3] {
                let blocked = stage.is_blocked_by(node, "TooManyUnhealthy").await;
                assert_eq!(blocked.status, "False", "{blocked:?}");
            }
            stage.policy_says("RepairAllowed", "False", "TooManyUnhealthy").await;
            // Counts follow the condition within seconds.
            wait::for_object(
                &stage.policies,
                &stage.pool,
                "it blocks 3 of 10",
                |policy: &NodeRepairPolicy| policy.status["nodes"] == 10 && policy.status["blocked"] == 3,
            )
            .await;
            stage.event("Node", &nodes[0], "NodeRepairBlocked").await;
        })
        .await;
    stage.heal(&nodes[2]).await;
    stage.is_gone(&nodes[0]).await;
    stage.is_gone(&nodes[1]).await;
    stage.policy_says("RepairAllowed", "True", "Allowed").await;
    assert!(!stage.claim_of(&nodes[2]).await.is_deleting());
}

/// Two of four are more than 20 percent. They are blocked for `repair.outageTimeout` and then replaced one after the
/// other. A vetoed node blocks neither.
async fn two_of_four_are_replaced_in_the_end(site: Site) {
    let stage = Stage::unattended(site, "twooffour", Manner::Replaces).await;
    let nodes = pool(&stage, 4, 2).await;
    let record = stage.record().await;
    let _salvor = stage.attend("repair: {outageTimeout: 4s}\n", &[]);
    stage.policy("30m", json!({"unhealthyLimit": "20%"})).await;
    stage.is_blocked_by(&nodes[0], "TooManyUnhealthy").await;
    stage.is_gone(&nodes[0]).await;
    stage.is_gone(&nodes[1]).await;
    stage.has_nodes(4).await;
    assert_eq!(most_at_once(&record.changes().await), 1);

    stage.annotate(&nodes[2], json!({"salvor.dev/do-not-repair": ""})).await;
    stage.sicken(&nodes[2]).await;
    stage.says(&nodes[2], "Vetoed").await;
    stage.sicken(&nodes[3]).await;
    stage.is_gone(&nodes[3]).await;
    assert!(!stage.claim_of(&nodes[2]).await.is_deleting());
}

/// 13: the same for nodes without a NodePool. The limit concerns the nodes that the policy selects.
async fn the_limit_is_about_what_the_policy_selects(site: Site) {
    let stage = Stage::new(site, "nopool").await;
    let mut nodes = Vec::new();
    for number in 0..10 {
        let mut one = stage.launch(&format!("n{number}"));
        one.of_pool = false;
        one.zone = format!("zone-{}", ["a", "b", "c"][number % 3]);
        nodes.push(stage.make(one).await);
    }
    for node in &nodes[..3] {
        stage.sicken(node).await;
    }
    stage
        .stays(&nodes, async {
            stage.policy("30m", json!({"unhealthyLimit": 2})).await;
            for node in &nodes[..3] {
                stage.is_blocked_by(node, "TooManyUnhealthy").await;
            }
        })
        .await;
    // Exactly the limit is not more than the limit.
    stage.heal(&nodes[2]).await;
    stage.is_gone(&nodes[0]).await;
    stage.is_gone(&nodes[1]).await;
}

/// Weak point 1: a sibling within its toleration does not count.
async fn who_is_inside_a_toleration_does_not_count(site: Site) {
    let stage = Stage::new(site, "inside").await;
    let nodes = stage.healthy(4).await;
    stage.set(&nodes[1], crate::stage::BAD, "False", HOUR / 4).await;
    stage.sicken(&nodes[0]).await;
    stage
        .stays(&nodes[1..], async {
            stage.policy("30m", json!({"unhealthyLimit": "20%"})).await;
            stage.is_gone(&nodes[0]).await;
        })
        .await;
}

/// Weak point 3: a node whose termination hangs does not count against the limit.
async fn a_stuck_node_does_not_use_up_the_limit(site: Site) {
    let stage = Stage::new(site, "stuck").await;
    stage.karpenter.hang();
    let nodes = stage.healthy(5).await;
    stage.policy("30m", json!({"unhealthyLimit": "20%", "budgets": [{"nodes": 2}]})).await;
    stage.sicken(&nodes[0]).await;
    stage.is_terminated(&nodes[0]).await;
    stage.sicken(&nodes[1]).await;
    stage.is_terminated(&nodes[1]).await;
    stage.karpenter.go_on();
    stage.has_nodes(5).await;
}

/// The largest number of NodeClaims that were being deleted at the same time.
pub(crate) fn most_at_once(changes: &[Change]) -> usize {
    let mut ending = std::collections::BTreeSet::new();
    let mut most = 0;
    for change in changes {
        let deleted = change.kind == salvor_testkit::recorder::ChangeKind::Deleted;
        if change.object["metadata"]["deletionTimestamp"] != Value::Null && !deleted {
            ending.insert(change.uid.clone());
        }
        if deleted {
            ending.remove(&change.uid);
        }
        most = most.max(ending.len());
    }
    most
}

/// Two sick nodes and a budget of one: one after the other, even if everything happens at the same moment.
async fn a_budget_is_kept(site: Site) {
    let stage = Stage::new(site, "budget").await;
    stage.karpenter.hang();
    let nodes = pool(&stage, 8, 3).await;
    let record = stage.record().await;
    // The default budget is 10 percent, and at least one node.
    stage.policy("30m", json!({"budgets": null})).await;
    let one_ends = |claims: &[NodeClaim]| claims.iter().any(NodeClaim::is_deleting);
    let mine = crate::karpenter::of_pool(&stage.pool);
    let claims = wait::for_list(&stage.claims, &mine, "one is deleted", one_ends).await;
    let ending = claims.iter().find(|claim| claim.is_deleting()).unwrap().name_any();
    for node in nodes[..3].iter().filter(|node| claim_name(node) != ending) {
        stage.is_blocked_by(node, "BudgetExhausted").await;
    }
    stage.karpenter.go_on();
    for node in &nodes[..3] {
        stage.is_gone(node).await;
    }
    stage.has_nodes(8).await;
    assert_eq!(most_at_once(&record.changes().await), 1);
}

/// A budget of zero blocks during its hours, and does not at other times.
async fn a_budget_has_hours(site: Site) {
    let stage = Stage::new(site, "hours").await;
    let nodes = pool(&stage, 4, 1).await;
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    // Its hours begin in half a week.
    let day = (i64::from(now.weekday().to_sunday_zero_offset()) + 3) % 7;
    let other_day = format!("0 0 * * {day}");
    let always = json!([{"nodes": "0", "schedule": "* * * * *", "duration": "24h"}]);
    stage
        .stays(&nodes, async {
            stage.policy("30m", json!({"budgets": always})).await;
            stage.is_blocked_by(&nodes[0], "BudgetExhausted").await;
        })
        .await;
    let elsewhen = json!([{"nodes": "0", "schedule": other_day, "duration": "1h"}, {"nodes": 1}]);
    stage.change_policy(json!({"budgets": elsewhen})).await;
    stage.is_gone(&nodes[0]).await;
}

/// A zone that is sick as a whole has one cause, which new nodes would not fix.
async fn a_zone_that_is_sick_as_a_whole_is_held(site: Site) {
    let stage = Stage::new(site, "zone").await;
    let mut nodes = Vec::new();
    for number in 0..6 {
        let mut one = stage.launch(&format!("n{number}"));
        one.zone = if number < 3 { "zone-a" } else { "zone-b" }.to_owned();
        nodes.push(stage.make(one).await);
    }
    for node in &nodes[..4] {
        stage.sicken(node).await;
    }
    stage
        .stays(&nodes[..3], async {
            stage.policy("30m", json!({})).await;
            // One sick node of another zone is repaired as usual.
            stage.is_gone(&nodes[3]).await;
            for node in &nodes[..3] {
                stage.is_blocked_by(node, "ZoneOutage").await;
            }
        })
        .await;
    stage.heal(&nodes[1]).await;
    stage.heal(&nodes[2]).await;
    stage.is_gone(&nodes[0]).await;
}

/// No node is terminated while earlier replacements do not register.
async fn replacements_that_do_not_come_hold_repairs(site: Site) {
    let stage = Stage::unattended(site, "launches", Manner::LaunchFails).await;
    let nodes = stage.healthy(6).await;
    let _salvor = stage.attend("repair: {launchTimeout: 2s}\n", &[]);
    stage.policy("30m", json!({})).await;
    stage.sicken(&nodes[0]).await;
    stage.is_gone(&nodes[0]).await;
    let failed = format!("{}-new-0-claim", stage.pool);
    wait::for_object(&stage.claims, &failed, "it is launched", |_| true).await;
    stage.policy_says("RepairAllowed", "False", "LaunchFailures").await;
    stage
        .stays(&nodes[1..], async {
            stage.sicken(&nodes[1]).await;
            stage.is_blocked_by(&nodes[1], "LaunchFailures").await;
        })
        .await;
    // Karpenter gives up the launch.
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    stage.claims.patch(&failed, &PatchParams::default(), &free).await.unwrap();
    stage.claims.delete(&failed, &DeleteParams::default()).await.unwrap();
    stage.is_gone(&nodes[1]).await;
}

/// The brake counts nodes of all policies together, and each node once. A blocked node reports it, and until when.
async fn the_brakes_rate_is_one_for_all_policies(site: Site) {
    let first = Stage::unattended(site, "rate", Manner::Replaces).await;
    let second = first.beside("rate-too", Manner::Replaces).await;
    let mut sick = Vec::new();
    for stage in [&first, &second] {
        let nodes = pool(stage, 3, 1).await;
        stage.policy("30m", json!({})).await;
        sick.push(nodes[0].clone());
    }
    let brake = "controllers: [repair]\n\
         brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 1, maxUnreachablePercent: 0}\n";
    let _salvor = start(&first.admin(), brake, &[]);
    // The first one is replaced at once.
    let (ended, held, node) = tokio::select! {
        () = first.is_terminated(&sick[0]) => (&first, &second, &sick[1]),
        () = second.is_terminated(&sick[1]) => (&second, &first, &sick[0]),
    };
    held.stays(std::slice::from_ref(node), async {
        let told = held.is_blocked_by(node, "MaxNodesPerMinute").await;
        assert!(told.message.contains("may begin at"), "{told:?}");
        held.event("Node", node, "NodeRepairBlocked").await;
        ended.has_nodes(3).await;
    })
    .await;
}

on_both!(
    the_brakes_rate_is_one_for_all_policies,
    too_many_sick_nodes_stop_repair_until_one_gets_well,
    two_of_four_are_replaced_in_the_end,
    the_limit_is_about_what_the_policy_selects,
    who_is_inside_a_toleration_does_not_count,
    a_stuck_node_does_not_use_up_the_limit,
    a_budget_is_kept,
    a_budget_has_hours,
    a_zone_that_is_sick_as_a_whole_is_held,
    replacements_that_do_not_come_hold_repairs,
);
