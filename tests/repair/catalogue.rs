//! The cases of Karpenter's own tests, and those that they lack.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{
    Site,
    accounting::{Request, Verb},
    on_both,
    recorder::ChangeKind,
    wait,
};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::NodeClaim;
use crate::stage::{BAD, HOUR, Stage, TERMINATION, claim_name, seconds};

/// 1, 5 and 14: one of three is more than 20 percent, but not when rounded up.
async fn a_sick_node_is_replaced_forcefully(site: Site) {
    let stage = Stage::new(site, "sick").await;
    let nodes = stage.healthy(3).await;
    let record = stage.record().await;
    stage.policy("30m", json!({"unhealthyLimit": "20%", "budgets": null})).await;
    stage
        .stays(&nodes[1..], async {
            stage.sicken(&nodes[0]).await;
            stage.is_gone(&nodes[0]).await;
            stage.has_nodes(3).await;
        })
        .await;
    let changes = record.changes().await;
    let of_it = changes.iter().filter(|change| change.name == claim_name(&nodes[0]));
    let deleting: Vec<_> =
        of_it.filter(|change| change.object["metadata"]["deletionTimestamp"].is_string()).collect();
    let at = deleting[0].object["metadata"]["deletionTimestamp"].as_str().unwrap();
    let ends = deleting[0].object["metadata"]["annotations"][TERMINATION].as_str().unwrap();
    assert!((0..30).contains(&seconds(ends, at)), "it ends at once: {ends}, deleted at {at}");
}

/// 2 and 3: another condition, and the condition with another status.
async fn only_what_the_policy_names_is_sick(site: Site) {
    let stage = Stage::new(site, "named").await;
    let nodes = stage.healthy(4).await;
    stage.policy("30m", json!({})).await;
    stage
        .stays(&nodes[..3], async {
            stage.set(&nodes[0], "FakeHealthyNode", "False", HOUR).await;
            stage.set(&nodes[1], BAD, "True", HOUR).await;
            stage.set(&nodes[2], BAD, "Unknown", HOUR).await;
            stage.sicken(&nodes[3]).await;
            stage.is_gone(&nodes[3]).await;
        })
        .await;
    // A default applies only to conditions that a policy or the provider names.
    stage.change_policy(json!({"defaultTolerationDuration": "1s"})).await;
    let canary = stage.make(stage.launch("canary")).await;
    stage
        .stays(&nodes[..3], async {
            stage.sicken(&canary).await;
            stage.is_gone(&canary).await;
        })
        .await;
}

/// 4 and 9, and the status in the meantime.
async fn a_toleration_is_waited_for(site: Site) {
    let stage = Stage::new(site, "waits").await;
    let nodes = stage.healthy(2).await;
    let record = stage.record().await;
    stage.policy("6s", json!({})).await;
    let since = Timestamp::now();
    // Watches from before: on a slow machine the wait may be over before a later read.
    let (waiting, ()) =
        tokio::join!(stage.says(&nodes[0], "Waiting"), stage.set_at(&nodes[0], BAD, "False", since));
    assert_eq!(waiting.status, "False", "{waiting:?}");
    assert!(waiting.message.contains(BAD) && waiting.message.contains(&stage.pool), "{waiting:?}");
    stage.is_gone(&nodes[0]).await;
    let deleted = record.changes().await.into_iter().find_map(|change| {
        let at = change.object["metadata"]["deletionTimestamp"].as_str()?;
        (change.name == claim_name(&nodes[0])).then(|| at.to_owned())
    });
    let waited = seconds(&since.to_string(), &deleted.unwrap());
    assert!(waited >= 6, "it was repaired after {waited} seconds");
}

/// 8: the earliest deadline counts, not the first condition and not the shortest toleration.
async fn the_earliest_deadline_counts(site: Site) {
    let stage = Stage::new(site, "earliest").await;
    let nodes = stage.healthy(2).await;
    let sick = |kind: &str, toleration: &str| json!({"conditionType": kind, "conditionStatus": "False", "toleration": toleration});
    stage.policy("2h", json!({"policies": [sick("Slow", "2h"), sick("Quick", "1h")]})).await;
    stage.set(&nodes[0], "Quick", "False", HOUR / 2).await;
    stage.set(&nodes[0], "Slow", "False", HOUR).await;
    let waiting = stage.says(&nodes[0], "Waiting").await;
    assert!(waiting.message.contains("Quick"), "{waiting:?}");
    // Half an hour for one, a second for the other, although its toleration is longer.
    stage.set(&nodes[1], "Quick", "False", HOUR / 2).await;
    stage.set(&nodes[1], "Slow", "False", HOUR * 2).await;
    stage.is_gone(&nodes[1]).await;
    stage.has_nodes(2).await;
}

/// 6, 7, and an invalid annotation: a termination time is only ever tightened.
async fn the_time_of_termination_is_only_tightened(site: Site) {
    let stage = Stage::with(site, "tighten", Manner::Ends).await;
    stage.karpenter.hang();
    let at = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap().to_string();
    let now = Timestamp::now();
    let (later, before) = (at(now + HOUR * 2), at(now - HOUR));
    let mut nodes = Vec::new();
    for (name, value) in [("later", later.as_str()), ("before", before.as_str()), ("garbage", "soon")] {
        let mut one = stage.launch(name);
        one.claim_annotations = json!({TERMINATION: value});
        nodes.push(stage.make(one).await);
    }
    stage.policy("30m", json!({})).await;
    for node in &nodes {
        stage.sicken(node).await;
    }
    for node in &nodes {
        stage.is_terminated(node).await;
    }
    let ends = async |node: &str| stage.claim_of(node).await.termination().unwrap();
    assert!(seconds(&at(now), &ends(&nodes[0]).await) < 3600, "tightened to now");
    assert_eq!(ends(&nodes[1]).await, before, "kept");
    assert!(ends(&nodes[2]).await.parse::<Timestamp>().is_ok(), "what cannot be read is replaced");
    stage.karpenter.go_on();
    for node in &nodes {
        stage.is_gone(node).await;
    }
}

/// The graceful termination of a sick node takes too long, so it is terminated now. It is not deleted a second time.
async fn the_end_of_a_node_that_is_going_already_is_hastened(site: Site) {
    let stage = Stage::new(site, "going").await;
    stage.karpenter.hang();
    let mut gentle = stage.launch("gentle");
    let until = Timestamp::now() + HOUR;
    gentle.claim_annotations = json!({TERMINATION: until.to_string()});
    let gentle = stage.make(gentle).await;
    stage.healthy(2).await;
    stage.claims.delete(&claim_name(&gentle), &DeleteParams::default()).await.unwrap();
    let record = stage.record().await;
    stage.policy("30m", json!({})).await;
    stage.sicken(&gentle).await;
    let hastened = |claim: &NodeClaim| {
        claim.termination().is_some_and(|at| at.parse::<Timestamp>().is_ok_and(|at| at < until - HOUR / 2))
    };
    wait::for_object(&stage.claims, &claim_name(&gentle), "its end is hastened", hastened).await;
    stage.karpenter.go_on();
    stage.is_gone(&gentle).await;
    let changes = record.changes().await;
    let mut deletions: Vec<_> = changes
        .iter()
        .filter(|change| change.name == claim_name(&gentle))
        .map(|change| change.object["metadata"]["deletionTimestamp"].clone())
        .collect();
    deletions.dedup();
    assert_eq!(deletions.len(), 1, "{deletions:?}");
}

/// 10 and 11: neither a budget of the NodePool nor `do-not-disrupt` applies to sick nodes.
async fn budgets_of_karpenter_and_do_not_disrupt_are_not_about_repair(site: Site) {
    let stage = Stage::new(site, "disrupt").await;
    let nodes = stage.healthy(1).await;
    let budget = json!([{"nodes": "0"}]);
    stage.change_pool(json!({"disruption": {"consolidateAfter": "Never", "budgets": budget}})).await;
    stage.annotate(&nodes[0], json!({"karpenter.sh/do-not-disrupt": "true"})).await;
    stage.policy("30m", json!({})).await;
    stage.sicken(&nodes[0]).await;
    stage.is_gone(&nodes[0]).await;
}

/// Two NodeClaims for one node, a node without a providerID, and one whose NodePool does not exist.
async fn what_cannot_be_told_apart_is_not_ended(site: Site) {
    let stage = Stage::new(site, "doubt").await;
    let twice = stage.make(stage.launch("twice")).await;
    let mut other = stage.launch("other");
    other.provider_id = format!("kwok://{twice}");
    let claim = stage.claims.create(&PostParams::default(), &other.claim()).await.unwrap();
    let status = json!({"status": {"providerID": other.provider_id, "nodeName": twice}});
    let patch = Patch::Merge(status);
    stage.claims.patch_status(&claim.name_any(), &PatchParams::default(), &patch).await.unwrap();
    let canary = stage.make(stage.launch("canary")).await;
    stage.policy("30m", json!({})).await;
    stage.pools.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
    stage
        .stays(std::slice::from_ref(&twice), async {
            stage.sicken(&twice).await;
            stage.is_blocked_by(&twice, "NoBackend").await;
            // Terminating a node does not need the object of its pool.
            stage.sicken(&canary).await;
            stage.is_gone(&canary).await;
        })
        .await;
    assert!(!stage.claims.get(&claim.name_any()).await.unwrap().is_deleting());
    // One of the two is deleted, so the other is unambiguous.
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    stage.claims.patch(&claim.name_any(), &PatchParams::default(), &free).await.unwrap();
    stage.claims.delete(&claim.name_any(), &DeleteParams::default()).await.unwrap();
    stage.is_gone(&twice).await;
}

/// A node with Karpenter's label but without a providerID: its machine is unknown.
async fn a_node_of_karpenter_without_provider_id_is_not_ended(site: Site) {
    let stage = Stage::new(site, "noid").await;
    let mut nameless = stage.launch("nameless");
    nameless.provider_id = String::new();
    let nameless = stage.make(nameless).await;
    let canary = stage.make(stage.launch("canary")).await;
    stage.policy("30m", json!({})).await;
    stage
        .stays(std::slice::from_ref(&nameless), async {
            stage.sicken(&nameless).await;
            stage.is_blocked_by(&nameless, "NoBackend").await;
            stage.sicken(&canary).await;
            stage.is_gone(&canary).await;
        })
        .await;
    assert!(stage.nodes.get(&nameless).await.unwrap().metadata.deletion_timestamp.is_none());
}

/// A node that recovers before its deadline stays, even if the change comes at the last moment.
async fn who_gets_well_in_time_stays(site: Site) {
    let stage = Stage::new(site, "well").await;
    let nodes = stage.healthy(3).await;
    stage.policy("4s", json!({})).await;
    stage
        .stays(&nodes[..2], async {
            stage.set(&nodes[0], BAD, "False", Duration::ZERO).await;
            stage.says(&nodes[0], "Waiting").await;
            stage.set(&nodes[0], BAD, "True", Duration::ZERO).await;
            // Sick later than the first one, so whatever is due for the first one is due before.
            stage.set(&nodes[2], BAD, "False", Duration::ZERO).await;
            stage.is_gone(&nodes[2]).await;
        })
        .await;
    let told = stage.says(&nodes[0], "Recovered").await;
    assert_eq!(told.status, "False");
}

/// A time in the future, from a node with a wrong clock, neither starts a repair now nor postpones it forever.
async fn a_transition_in_the_future_is_not_believed(site: Site) {
    let stage = Stage::new(site, "future").await;
    let nodes = stage.healthy(2).await;
    stage.policy("3s", json!({})).await;
    let record = stage.record().await;
    let began = Timestamp::now();
    stage.set_at(&nodes[0], BAD, "False", Timestamp::now() + HOUR * 24).await;
    stage.is_gone(&nodes[0]).await;
    let deleted = record.changes().await.into_iter().find_map(|change| {
        let at = change.object["metadata"]["deletionTimestamp"].as_str()?;
        (change.name == claim_name(&nodes[0])).then(|| at.to_owned())
    });
    let waited = seconds(&began.to_string(), &deleted.unwrap());
    assert!(waited >= 3, "it was repaired after {waited} seconds");
}

/// A NodeClaim is deleted once, with its UID and resourceVersion as preconditions.
async fn each_node_claim_is_deleted_once(site: Site) {
    let stage = Stage::unattended(site, "once", Manner::Replaces).await;
    let nodes = stage.healthy(6).await;
    stage.policy("30m", json!({})).await;
    let accounting = stage.plane().accounting();
    let mark = accounting.mark().await;
    for node in &nodes[..3] {
        stage.sicken(node).await;
    }
    let salvor = stage.attend("", &[]);
    for node in &nodes[..3] {
        stage.is_gone(node).await;
    }
    stage.has_nodes(6).await;
    drop(salvor);
    let table = accounting.since(&mark).await;
    let ours = |request: &Request| request.verb == Verb::Delete && request.user_agent.starts_with("salvor/");
    assert_eq!(table.count(ours), 3, "{table}");
}

/// A Node that was replaced under its name is another node, and healthy.
async fn another_node_of_the_same_name_is_not_ended(site: Site) {
    let stage = Stage::new(site, "again").await;
    let canary = stage.make(stage.launch("canary")).await;
    let node = stage.make(stage.launch("n")).await;
    stage.policy("4s", json!({})).await;
    stage.set(&node, BAD, "False", Duration::ZERO).await;
    stage.says(&node, "Waiting").await;
    let record = stage.record().await;
    // Karpenter terminates it, and its successor gets its name.
    stage.claims.delete(&claim_name(&node), &DeleteParams::default()).await.unwrap();
    stage.is_gone(&node).await;
    let mut successor = stage.launch("n");
    successor.provider_id = format!("kwok://{node}-again");
    stage.make(successor).await;
    stage.set(&canary, BAD, "False", Duration::ZERO).await;
    stage.is_gone(&canary).await;
    let uid = stage.claim_of(&node).await.uid().unwrap();
    let changes = record.changes().await;
    let ended = changes.iter().filter(|c| c.uid == uid);
    assert!(
        ended.clone().all(
            |c| c.kind != ChangeKind::Deleted && c.object["metadata"]["deletionTimestamp"] == Value::Null
        )
    );
    wait::for_object(&stage.nodes, &node, "it is there", |node| node.metadata.deletion_timestamp.is_none())
        .await;
}

on_both!(
    a_sick_node_is_replaced_forcefully,
    only_what_the_policy_names_is_sick,
    a_toleration_is_waited_for,
    the_earliest_deadline_counts,
    the_time_of_termination_is_only_tightened,
    the_end_of_a_node_that_is_going_already_is_hastened,
    budgets_of_karpenter_and_do_not_disrupt_are_not_about_repair,
    what_cannot_be_told_apart_is_not_ended,
    a_node_of_karpenter_without_provider_id_is_not_ended,
    who_gets_well_in_time_stays,
    a_transition_in_the_future_is_not_believed,
    each_node_claim_is_deleted_once,
    another_node_of_the_same_name_is_not_ended,
);
