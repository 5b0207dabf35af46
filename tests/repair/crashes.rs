//! Crashes at every write, two leaders, and objects that are replaced between a decision and its write. The record of
//! all deletions shows that the budget holds.

use kube::api::{DeleteParams, Patch, PatchParams};
use salvor_testkit::{Hold, Site, on_both, recorder::Change};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::limits::most_at_once;
use crate::stage::{Stage, claim_name};

/// The names of the deleted NodeClaims.
fn deleted(changes: &[Change]) -> Vec<String> {
    let mut names: Vec<String> = changes
        .iter()
        .filter(|change| change.object["metadata"]["deletionTimestamp"] != Value::Null)
        .map(|change| change.name.clone())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Salvor exits right before or right after each of its first writes. Another process continues from there.
async fn ended_at_each_write(site: Site) {
    let first = Stage::unattended(site, "ends", Manner::Replaces).await;
    for number in 1..=6 {
        for moment in ["before", "after"] {
            let stage = first.beside(&format!("{moment}{number}"), Manner::Replaces).await;
            let nodes = stage.healthy(4).await;
            let record = stage.record().await;
            for node in &nodes[..2] {
                stage.sicken(node).await;
            }
            stage.policy("30m", json!({"budgets": [{"nodes": 1}]})).await;
            let at = format!("{moment}:{number}");
            let dying = stage.attend("", &[("SALVOR_TEST_CRASH", &at)]);
            let done = async {
                stage.is_gone(&nodes[0]).await;
                stage.is_gone(&nodes[1]).await;
            };
            tokio::select! {
                _ = dying.program.exit_code() => {}
                () = done => {}
            }
            drop(dying);
            let salvor = stage.attend("", &[]);
            stage.is_gone(&nodes[0]).await;
            stage.is_gone(&nodes[1]).await;
            stage.has_nodes(4).await;
            drop(salvor);
            let changes = record.changes().await;
            assert_eq!(most_at_once(&changes), 1, "{at}");
            assert_eq!(deleted(&changes), [claim_name(&nodes[0]), claim_name(&nodes[1])], "{at}");
            // Cleans up for the next round.
            stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
        }
    }
}

/// Two processes that both believe they lead keep one budget: it is in the policy's status, protected by its
/// resourceVersion.
async fn two_leaders_keep_one_budget(site: Site) {
    let stage = Stage::unattended(site, "leaders", Manner::Replaces).await;
    let nodes = stage.healthy(10).await;
    let record = stage.record().await;
    stage.policy("30m", json!({"budgets": [{"nodes": 1}]})).await;
    let both = [stage.attend("", &[]), stage.attend("", &[])];
    for salvor in &both {
        salvor.until_answer("/readyz", " 200 ").await;
    }
    for node in &nodes[..5] {
        stage.sicken(node).await;
    }
    for node in &nodes[..5] {
        stage.is_gone(node).await;
    }
    stage.has_nodes(10).await;
    drop(both);
    let changes = record.changes().await;
    assert_eq!(most_at_once(&changes), 1);
    assert_eq!(deleted(&changes).len(), 5);
}

/// A NodeClaim and its node are replaced under their names right before a write. The new ones are not touched.
async fn replaced_before_each_write(site: Site) {
    let first = Stage::unattended(site, "holds", Manner::Ends).await;
    for number in 1..=5 {
        let stage = first.beside(&format!("hold{number}"), Manner::Ends).await;
        let node = stage.make(stage.launch("n")).await;
        stage.sicken(&node).await;
        stage.policy("30m", json!({})).await;
        let hold = Hold::before_write(number);
        let salvor = stage.attend("", &[hold.variable()]);
        tokio::select! {
            () = hold.reached() => {}
            // It needs fewer writes than that.
            () = stage.is_gone(&node) => break,
        }
        // Deletes whatever is left of it by now.
        let claim = claim_name(&node);
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = stage.claims.patch(&claim, &PatchParams::default(), &free).await;
        let _ = stage.claims.delete(&claim, &DeleteParams::default()).await;
        let _ = stage.nodes.delete(&node, &DeleteParams::default()).await;
        stage.is_gone(&node).await;
        let mut successor = stage.launch("n");
        successor.provider_id = format!("kwok://{node}-again");
        stage.make(successor).await;
        let record = stage.record().await;
        hold.let_go();
        // Salvor still works.
        let canary = stage.make(stage.launch("canary")).await;
        stage.sicken(&canary).await;
        stage.is_gone(&canary).await;
        drop(salvor);
        assert_eq!(deleted(&record.changes().await), [claim_name(&canary)], "write {number}");
        let node = stage.nodes.get(&node).await.unwrap();
        assert!(node.metadata.deletion_timestamp.is_none(), "write {number}");
        stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
    }
}

/// The node recovers between the decision and the write that terminates it.
async fn well_again_before_each_write(site: Site) {
    let first = Stage::unattended(site, "heals", Manner::Ends).await;
    for number in 1..=5 {
        let stage = first.beside(&format!("heal{number}"), Manner::Ends).await;
        let node = stage.make(stage.launch("n")).await;
        stage.sicken(&node).await;
        stage.policy("30m", json!({})).await;
        let hold = Hold::before_write(number);
        let salvor = stage.attend("", &[hold.variable()]);
        tokio::select! {
            () = hold.reached() => {}
            () = stage.is_gone(&node) => break,
        }
        // Once its NodeClaim is marked or deleted, the repair cannot and need not be undone.
        let claim = stage.claim_of_opt(&node).await;
        let begun = claim.is_none_or(|claim| claim.is_deleting() || claim.termination().is_some());
        stage.heal(&node).await;
        hold.let_go();
        if begun {
            stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
            break;
        }
        let canary = stage.make(stage.launch("canary")).await;
        stage
            .stays(std::slice::from_ref(&node), async {
                stage.sicken(&canary).await;
                stage.is_gone(&canary).await;
            })
            .await;
        drop(salvor);
        stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
    }
}

/// A leader that was suspended while another repaired does not repeat the repair.
async fn a_leader_that_stood_still_changes_nothing(site: Site) {
    let stage = Stage::unattended(site, "still", Manner::Replaces).await;
    let nodes = stage.healthy(6).await;
    let record = stage.record().await;
    stage.policy("30m", json!({"budgets": [{"nodes": 1}]})).await;
    let election = "leaderElection: {leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 500ms}\n";
    let old = stage.attend(election, &[]);
    old.until_answer("/readyz", " 200 ").await;
    stage.sicken(&nodes[0]).await;
    stage.is_gone(&nodes[0]).await;
    old.program.signal("STOP");
    let new = stage.attend(election, &[]);
    stage.sicken(&nodes[1]).await;
    stage.sicken(&nodes[2]).await;
    stage.is_gone(&nodes[1]).await;
    stage.is_gone(&nodes[2]).await;
    old.program.signal("CONT");
    stage.sicken(&nodes[3]).await;
    stage.is_gone(&nodes[3]).await;
    stage.has_nodes(6).await;
    drop((old, new));
    let changes = record.changes().await;
    assert_eq!(most_at_once(&changes), 1);
    assert_eq!(deleted(&changes).len(), 4);
}

on_both!(
    ended_at_each_write,
    two_leaders_keep_one_budget,
    replaced_before_each_write,
    well_again_before_each_write,
    a_leader_that_stood_still_changes_nothing,
);
