//! What is reported where: conditions, events, counts, metrics and `salvor explain`.

use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt, api::ListParams};
use salvor_testkit::{Site, on_both, recorder::ChangeKind, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::NodeRepairPolicy;
use crate::policies::repair_of;
use crate::stage::{BAD, HOUR, Stage, claim_name};

/// Each event is on the object that it concerns. Upstream puts all of them on the Node.
async fn events_are_on_their_objects(site: Site) {
    let stage = Stage::new(site, "events").await;
    let nodes = stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    let node = stage.nodes.get(&nodes[0]).await.unwrap();
    let claim = stage.claim_of(&nodes[0]).await;
    let pool = stage.pools.get(&stage.pool).await.unwrap();
    stage.sicken(&nodes[0]).await;
    stage.is_gone(&nodes[0]).await;
    for (kind, name, uid) in [
        ("Node", nodes[0].clone(), node.uid()),
        ("NodeClaim", claim.name_any(), claim.uid()),
        ("NodePool", stage.pool.clone(), pool.uid()),
    ] {
        let event = stage.event(kind, &name, "NodeRepairStarted").await;
        let about = event.regarding.clone().unwrap();
        // Kubelets write the node's name as UID into events about Nodes. Salvor's events may have either.
        assert!(about.uid == uid || kind == "Node", "{about:?}");
        assert_eq!(event.type_.as_deref(), Some("Normal"));
        assert!(event.note.as_deref().unwrap_or_default().contains(BAD), "{:?}", event.note);
    }
    stage.event("NodeRepairPolicy", &stage.pool, "NodeRepaired").await;
    stage.event("NodePool", &stage.pool, "NodeRepaired").await;
    // Recorded once for one repair.
    let events: Api<Event> = Api::all(stage.client.clone());
    let all = events.list(&ListParams::default()).await.unwrap();
    let started = all.iter().filter(|event| {
        event.reason.as_deref() == Some("NodeRepairStarted")
            && event.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(&nodes[0])
    });
    assert_eq!(started.count(), 1);
}

/// The counts of a policy, and its repairs in progress.
async fn a_policy_counts_its_nodes(site: Site) {
    let stage = Stage::new(site, "counts").await;
    stage.karpenter.hang();
    let nodes = stage.healthy(6).await;
    let policy = stage.policy("30m", json!({"budgets": [{"nodes": 1}]})).await;
    stage.set(&nodes[0], BAD, "False", HOUR / 4).await;
    stage.sicken(&nodes[1]).await;
    stage.is_terminated(&nodes[1]).await;
    stage.sicken(&nodes[2]).await;
    let counted = wait::for_object(&stage.policies, &stage.pool, "it has counted", |p: &NodeRepairPolicy| {
        p.status["waiting"] == 1 && p.status["repairing"] == 1 && p.status["blocked"] == 1
    })
    .await;
    assert_eq!(counted.status["healthy"], 3, "{}", counted.status);
    assert_eq!(counted.status["observedGeneration"].as_i64(), policy.metadata.generation);
    let repair = &counted.status["repairs"][0];
    assert_eq!((&repair["node"], &repair["action"]), (&json!(nodes[1]), &json!("Replace")), "{repair}");
    stage.karpenter.go_on();
    stage.is_gone(&nodes[2]).await;
    wait::for_object(&stage.policies, &stage.pool, "both are repaired", |p: &NodeRepairPolicy| {
        p.status["repaired"] == 2 && p.status["repairing"] == 0
    })
    .await;
}

async fn metric(stage: &Stage, name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = stage.salvor().get("/metrics").await;
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label.as_str())));
    line.and_then(|line| line.rsplit(' ').next()).map_or(0.0, |value| value.parse().unwrap())
}

async fn until_metric(stage: &Stage, name: &str, labels: &[(&str, &str)], value: f64) {
    let reached = wait::patience().until(async {
        while (metric(stage, name, labels).await - value).abs() > f64::EPSILON {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    if reached.await.is_none() {
        panic!("{name} {labels:?} is never {value}:\n{}", stage.salvor().get("/metrics").await);
    }
}

/// 15, and what upstream has no metric for: waiting nodes, and what blocks nodes.
async fn metrics_tell_all_states(site: Site) {
    let stage = Stage::new(site, "metrics").await;
    stage.karpenter.hang();
    let nodes = stage.healthy(6).await;
    stage.policy("30m", json!({"budgets": [{"nodes": 1}]})).await;
    let policy = ("policy", stage.pool.as_str());
    stage.set(&nodes[0], BAD, "False", HOUR / 4).await;
    stage.sicken(&nodes[1]).await;
    stage.is_terminated(&nodes[1]).await;
    stage.sicken(&nodes[2]).await;
    for (state, count) in [("waiting", 1.0), ("repairing", 1.0), ("blocked", 1.0), ("healthy", 3.0)] {
        until_metric(&stage, "salvor_repair_nodes{", &[policy, ("state", state)], count).await;
    }
    until_metric(&stage, "salvor_repair_blocked_nodes{", &[policy, ("cause", "BudgetExhausted")], 1.0).await;
    let started = [policy, ("action", "Replace"), ("condition", "BadNode=False")];
    until_metric(&stage, "salvor_repair_started_total{", &started, 1.0).await;
    stage.karpenter.go_on();
    until_metric(&stage, "salvor_repair_repaired_total{", &[policy, ("action", "Replace")], 2.0).await;
    until_metric(&stage, "salvor_repair_blocked_nodes{", &[policy, ("cause", "BudgetExhausted")], 0.0).await;
    assert!(metric(&stage, "salvor_repair_seconds_count", &[]).await >= 2.0);
}

/// `salvor explain node` shows the same as the condition, before anything happens.
async fn explain_tells_the_deadline(site: Site) {
    let stage = Stage::new(site, "explain").await;
    let nodes = stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    stage.set(&nodes[0], BAD, "False", HOUR / 4).await;
    stage.says(&nodes[0], "Waiting").await;
    let told = stage.explain(&nodes[0]).await;
    assert!(told.to_string().contains("TolerationRunning"), "{told}");
    let repair = repair_of(&told);
    assert_eq!(repair["policy"], stage.pool.as_str(), "{repair}");
    let all = repair["conditions"].as_array().unwrap();
    let bad = all.iter().find(|c| c["type"] == BAD).unwrap_or_else(|| panic!("{repair}"));
    assert_eq!((&bad["from"], &bad["actions"][0]), (&json!("policy"), &json!("Replace")), "{bad}");
    let deadline = bad["deadline"].as_str().unwrap();
    let waiting = stage.says(&nodes[0], "Waiting").await;
    assert!(waiting.message.contains(deadline), "{deadline}: {waiting:?}");
    let text = stage.explain_as("text", &nodes[0]).await;
    assert!(text.contains(BAD) && text.contains(deadline), "{text}");
    let well = stage.explain(&nodes[1]).await.to_string();
    assert!(well.contains("Healthy"), "{well}");
}

/// One condition, and not a write for every heartbeat.
async fn a_node_is_not_written_to_for_nothing(site: Site) {
    let stage = Stage::unattended(site, "quiet", Manner::Replaces).await;
    let nodes = stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    let salvor = stage.attend("", &[]);
    stage.set(&nodes[0], BAD, "False", HOUR / 4).await;
    stage.says(&nodes[0], "Waiting").await;
    let waits = |p: &NodeRepairPolicy| p.status["waiting"] == 1;
    wait::for_object(&stage.policies, &stage.pool, "it has counted", waits).await;
    let mark = stage.plane().accounting().mark().await;
    for _ in 0..20 {
        stage.set(&nodes[0], "DiskPressure", "False", HOUR / 4).await;
        stage.set(&nodes[1], "DiskPressure", "False", HOUR / 4).await;
    }
    stage.sicken(&nodes[2]).await;
    stage.is_gone(&nodes[2]).await;
    drop(salvor);
    let table = stage.plane().accounting().since(&mark).await;
    let writes = table.count(|r| {
        r.user_agent.starts_with("salvor/") && r.verb.is_write() && !r.resource.starts_with("leases")
    });
    assert!(writes <= 25, "{writes} writes:\n{table}");
}

/// A dry run reports what it would do and does nothing.
async fn a_dry_run_writes_nothing(site: Site) {
    let stage = Stage::unattended(site, "dry", Manner::Replaces).await;
    let nodes = stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    stage.sicken(&nodes[0]).await;
    let record = stage.record().await;
    let mark = stage.plane().accounting().mark().await;
    let salvor = stage.attend("dryRun: true\n", &[]);
    salvor.says(&nodes[0]).await;
    let text = salvor.explain("node", &nodes[0]).await;
    assert!(text.contains(BAD), "{text}");
    drop(salvor);
    assert!(record.changes().await.iter().all(|change| change.kind == ChangeKind::Existed));
    let table = stage.plane().accounting().since(&mark).await;
    let written = table.count(|r| {
        r.user_agent.starts_with("salvor/")
            && r.verb.is_write()
            && !r.resource.contains("reviews")
            && !r.resource.starts_with("leases")
    });
    assert_eq!(written, 0, "{table}");
    assert_eq!(
        stage.claim_of(&nodes[0]).await.metadata.deletion_timestamp,
        None,
        "{}",
        claim_name(&nodes[0])
    );
    assert_eq!(stage.policies.get(&stage.pool).await.unwrap().status, Value::Null);
}

on_both!(
    events_are_on_their_objects,
    a_policy_counts_its_nodes,
    metrics_tell_all_states,
    explain_tells_the_deadline,
    a_node_is_not_written_to_for_nothing,
    a_dry_run_writes_nothing,
);
