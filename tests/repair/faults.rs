//! Stale watches, and an API server that refuses or does not answer.

use std::time::Duration;

use http::Method;
use kube::api::{Patch, PatchParams};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Salvor, Site, on_both, recorder::ChangeKind, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::limits::most_at_once;
use crate::stage::{BAD, CONFIGURATION, HOUR, Stage, claim_name, start};

const NEVER: Duration = Duration::from_secs(3600);

async fn behind_faults(stage: &Stage) -> (FaultyServer, Salvor) {
    let server = FaultyServer::before(&stage.admin()).await;
    let salvor = start(server.admin(), CONFIGURATION, &[]);
    salvor.until_answer("/readyz", " 200 ").await;
    (server, salvor)
}

/// The watch event that a node recovered does not arrive. Salvor reads the node again before it terminates it.
async fn a_node_is_looked_at_before_it_is_ended(site: Site) {
    let stage = Stage::unattended(site, "looked", Manner::Replaces).await;
    let nodes = stage.healthy(2).await;
    stage.policy("6s", json!({})).await;
    let (server, salvor) = behind_faults(&stage).await;
    stage.set(&nodes[0], BAD, "False", Duration::ZERO).await;
    stage.says(&nodes[0], "Waiting").await;
    // Watches of nodes are silent from here on. All others work.
    server.faults().add(Fault::new(Effect::Lag(NEVER)).path("/api/v1/nodes?"));
    server.faults().cut_watches();
    stage.heal(&nodes[0]).await;
    stage
        .stays(&nodes, async {
            // By the stale state it is due.
            let spared = wait::patience().until(async {
                while salvor.count(&["write skipped: live objects differ", &nodes[0]]) == 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            assert!(spared.await.is_some(), "{}", salvor.program.output());
        })
        .await;
    server.faults().clear();
    server.faults().cut_watches();
    stage.sicken(&nodes[1]).await;
    stage.is_gone(&nodes[1]).await;
    assert!(stage.claim_of_opt(&nodes[0]).await.is_some_and(|claim| !claim.is_deleting()));
    drop(salvor);
}

/// The watch event of a veto does not arrive either.
async fn a_veto_is_looked_for_before_a_node_is_ended(site: Site) {
    let stage = Stage::unattended(site, "vetoes", Manner::Replaces).await;
    let mut vetoed = stage.launch("vetoed");
    vetoed.annotations = json!({"salvor.dev/do-not-repair": "true"});
    let vetoed = stage.make(vetoed).await;
    let canary = stage.make(stage.launch("canary")).await;
    stage.policy("30m", json!({})).await;
    let (server, salvor) = behind_faults(&stage).await;
    // Claims and policies lag. Nodes do not.
    server.faults().add(Fault::new(Effect::Lag(Duration::from_secs(2))).path("/apis/"));
    server.faults().cut_watches();
    stage
        .stays(std::slice::from_ref(&vetoed), async {
            stage.sicken(&vetoed).await;
            stage.sicken(&canary).await;
            stage.is_gone(&canary).await;
        })
        .await;
    drop(salvor);
}

/// Answers to writes are lost, conflicts are frequent, and the API server is busy. The budget holds, and all nodes are
/// repaired.
async fn a_server_in_trouble_costs_time_only(site: Site) {
    let stage = Stage::unattended(site, "trouble", Manner::Replaces).await;
    let nodes = stage.healthy(9).await;
    let record = stage.record().await;
    stage.policy("30m", json!({"budgets": [{"nodes": 1}]})).await;
    let (server, salvor) = behind_faults(&stage).await;
    let writes = [Method::PATCH, Method::PUT, Method::DELETE];
    for (number, effect) in [Effect::AnswerLost, Effect::Conflict, Effect::InternalError, Effect::RequestLost]
        .into_iter()
        .enumerate()
    {
        for method in &writes {
            for path in ["/nodes/", "/nodeclaims/", "/noderepairpolicies/"] {
                server.faults().add(Fault::new(effect).method(method.clone()).path(path).times(1));
            }
        }
        stage.sicken(&nodes[number]).await;
        stage.is_gone(&nodes[number]).await;
    }
    stage.has_nodes(9).await;
    drop(salvor);
    let changes = record.changes().await;
    assert_eq!(most_at_once(&changes), 1);
    let gone = changes.iter().filter(|change| change.kind == ChangeKind::Deleted).count();
    assert_eq!(gone, 4);
}

/// Karpenter's API refuses every deletion, as with a webhook or a quota: this gives an error with the name, and no
/// retry storm.
async fn a_refused_deletion_is_told_and_not_repeated_at_once(site: Site) {
    let stage = Stage::unattended(site, "refuses", Manner::Replaces).await;
    let nodes = stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    let (server, salvor) = behind_faults(&stage).await;
    server.faults().add(Fault::new(Effect::InternalError).method(Method::DELETE).path("/nodeclaims/"));
    let mark = stage.plane().accounting().mark().await;
    stage.sicken(&nodes[0]).await;
    stage.is_blocked_by(&nodes[0], "BackendFailed").await;
    let table = stage.plane().accounting().since(&mark).await;
    let ours = table.count(|request| request.verb.is_write() && request.user_agent.starts_with("faulty"));
    assert!(ours < 60, "{table}");
    drop((salvor, server));
}

/// Karpenter's API does not answer, as with a webhook that hangs. The node reports this with the name of the request.
async fn a_backend_that_never_answers_is_told(site: Site) {
    let stage = Stage::unattended(site, "silent", Manner::Replaces).await;
    let nodes = stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    let (server, salvor) = behind_faults(&stage).await;
    let hangs = Fault::new(Effect::Unanswered { carried_out: false });
    server.faults().add(hangs.method(Method::DELETE).path("/nodeclaims/"));
    stage.sicken(&nodes[0]).await;
    stage.is_blocked_by(&nodes[0], "BackendFailed").await;
    let claim = format!("{}-claim", nodes[0]);
    stage.event("NodeClaim", &claim, "NodeRepairBlocked").await;
    stage.event("NodePool", &stage.pool, "NodeRepairBlocked").await;
    // It answers again, and the repair continues.
    server.faults().clear();
    stage.is_gone(&nodes[0]).await;
    drop((salvor, server));
}

/// A condition with an invalid time, and other odd objects, do not affect other nodes.
async fn odd_objects_hurt_nobody_else(site: Site) {
    let stage = Stage::new(site, "odd").await;
    let nodes = stage.healthy(4).await;
    stage.policy("30m", json!({})).await;
    let conditions = |list: Value| Patch::Merge(json!({"status": {"conditions": list}}));
    let now = PatchParams::default();
    // No conditions at all, one without a transition time, and two hundred of them.
    stage.nodes.patch_status(&nodes[0], &now, &conditions(json!([]))).await.unwrap();
    let timeless = json!([{"type": BAD, "status": "True"}, {"type": "Ready", "status": "True"}]);
    stage.nodes.patch_status(&nodes[1], &now, &conditions(timeless)).await.unwrap();
    let many: Vec<Value> = (0..200)
        .map(|n| json!({"type": format!("Odd{n}"), "status": "False", "message": "m".repeat(100)}))
        .collect();
    stage.nodes.patch_status(&nodes[2], &now, &conditions(json!(many))).await.unwrap();
    stage
        .stays(&nodes[..3], async {
            stage.sicken(&nodes[3]).await;
            stage.is_gone(&nodes[3]).await;
        })
        .await;
    stage.set(&nodes[2], BAD, "False", HOUR).await;
    stage.is_gone(&nodes[2]).await;
    assert_eq!(claim_name(&nodes[0]), stage.claim_of(&nodes[0]).await.metadata.name.unwrap());
}

on_both!(
    a_node_is_looked_at_before_it_is_ended,
    a_veto_is_looked_for_before_a_node_is_ended,
    a_server_in_trouble_costs_time_only,
    a_refused_deletion_is_told_and_not_repeated_at_once,
    a_backend_that_never_answers_is_told,
    odd_objects_hurt_nobody_else,
);
