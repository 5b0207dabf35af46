//! The pods of nodes that are replaced: released when Node and NodeClaim are gone, and never before, whatever fails.
//! And the brake's rate, which all policies share.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use salvor_api::config::Configuration;
use salvor_apiserver::{ChangeKind, Effect, Fault, Faults};
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::json;
use tokio::time::sleep;

use super::world::{BEAT, World};
use crate::stage::{Happening, configuration};
use crate::troubles::{Salvor, TROUBLES, Trouble, assert_none, at_every_write};

fn settings(brake: &str) -> Configuration {
    configuration(&format!(
        "controllers: [repair, eviction]
brake: {{{brake}}}
leaderElection: {{leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}}"
    ))
}

/// Two of four nodes become unhealthy, each with pods.
async fn begin() -> World {
    let world = World::new(4, 1).await;
    for (pod, node) in [("a", "node-1"), ("b", "node-1"), ("c", "node-2"), ("d", "node-3")] {
        world.stage.pod(pod, node, json!({})).await;
    }
    for node in ["node-1", "node-2"] {
        world.sick(node).await;
        sleep(Duration::from_secs(7)).await;
    }
    world
}

/// Pods that were marked or deleted while their Node or its NodeClaim existed.
fn forced_too_early(history: &[Happening]) -> Vec<String> {
    let mut there: BTreeSet<(String, String)> = BTreeSet::new();
    let mut wrong = Vec::new();
    for Happening { at, change, resource, object } in history {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match (resource.as_str(), change) {
            ("nodes" | "nodeclaims", ChangeKind::Removed) => {
                there.remove(&(resource.clone(), name));
            }
            ("nodes" | "nodeclaims", _) => {
                there.insert((resource.clone(), name));
            }
            ("pods", change) => {
                let is_forced = *change == ChangeKind::Removed
                    || object["status"]["phase"] == "Failed"
                    || !object["metadata"]["deletionTimestamp"].is_null();
                let node = object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
                for kind in ["nodes", "nodeclaims"] {
                    if is_forced && there.contains(&(kind.to_owned(), node.clone())) {
                        wrong.push(format!("at {at}: {name} is forced, and {node} is among the {kind}"));
                    }
                }
            }
            _ => {}
        }
    }
    wrong
}

async fn pods(world: &World) -> Vec<String> {
    let pods = world.stage.pods().list(&ListParams::default()).await.unwrap().items;
    pods.into_iter().filter_map(|pod| pod.metadata.name).collect()
}

async fn play(line: Line, trouble: Trouble) -> (Vec<String>, u32) {
    let mut world = begin().await;
    let stage = world.stage.clone();
    let mut salvor = Salvor::start(&stage, settings(""), line, trouble, Duration::from_secs(290));
    let over = world.until_over(&mut salvor).await;
    let mut wrong = world.problems();
    wrong.extend(forced_too_early(&stage.happenings()));
    let left = pods(&world).await;
    if !over || !left.contains(&"d".to_owned()) {
        wrong.push(format!("it came to no end, or to a wrong one: {left:?}"));
    }
    let lives = salvor.stop().await.1;
    // A restarted process leaves the pods to Pod GC, which is not played here.
    if lives == 1 && trouble == Trouble::None && left.len() > 1 {
        wrong.push(format!("{left:?} are left"));
    }
    (wrong, lives)
}

#[test]
fn pods_are_freed_when_node_and_machine_are_gone_and_never_before() {
    let (wrong, _) = in_virtual_time(play(Line::default(), Trouble::None));
    assert_none(&wrong);
}

#[test]
fn a_crash_at_every_write_forces_no_pod_of_a_machine_that_may_run() {
    assert_none(&at_every_write(15, |line| play(line, Trouble::None)));
}

#[test]
fn no_trouble_forces_a_pod_of_a_machine_that_may_run() {
    let mut wrong = Vec::new();
    for trouble in TROUBLES {
        let (found, _) = in_virtual_time(play(Line::default(), trouble));
        wrong.extend(found.into_iter().map(|it| format!("{trouble:?}: {it}")));
    }
    assert_none(&wrong);
}

/// A cache from which nodes and NodeClaims have vanished, or have not come back to, proves nothing: both are read live.
async fn unseen(watch: &str, effect: Effect) -> Vec<String> {
    let mut world = begin().await;
    let faults = Faults::default();
    let process = Process::start(&world.stage.cluster, "salvor", &settings(""), Line::default(), &faults);
    for beat in 0..200 {
        sleep(BEAT).await;
        world.beat().await;
        if beat == 50 {
            faults.add(Fault::new(effect).method(Method::GET).path(watch));
            faults.cut_watches();
        }
        if beat == 130 {
            faults.clear();
            faults.cut_watches();
        }
    }
    drop(process);
    forced_too_early(&world.stage.happenings())
}

#[test]
fn a_watch_that_is_not_heard_forces_no_pod() {
    let mut wrong = Vec::new();
    for watch in ["/nodes?", "/nodeclaims?", "/noderepairpolicies?", "/pods?"] {
        for effect in [Effect::Unavailable, Effect::Unanswered { carried_out: false }, Effect::Stale(40)] {
            let found = in_virtual_time(unseen(watch, effect));
            wrong.extend(found.into_iter().map(|it| format!("{watch} {effect:?}: {it}")));
        }
    }
    assert_none(&wrong);
}

/// When the deletion of each NodeClaim began.
fn deletions(history: &[Happening]) -> Vec<Timestamp> {
    let mut seen = BTreeSet::new();
    let is_first = |happening: &&Happening| {
        let metadata = &happening.object["metadata"];
        happening.resource == "nodeclaims"
            && !metadata["deletionTimestamp"].is_null()
            && seen.insert(metadata["uid"].as_str().unwrap_or_default().to_owned())
    };
    history.iter().filter(is_first).map(|happening| happening.at).collect()
}

/// One node per minute, although two policies have budgets for all at once.
#[test]
fn the_brakes_rate_holds_across_policies() {
    in_virtual_time(async {
        let mut world = World::new(6, 6).await;
        let stage = world.stage.clone();
        for node in ["node-3", "node-4", "node-5"] {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"group": "b"}}}));
            stage.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
        }
        let selector = json!({"matchLabels": null, "matchExpressions": [
            {"key": "karpenter.sh/nodepool", "operator": "Exists"}, {"key": "group", "operator": "DoesNotExist"},
        ]});
        let patch = Patch::Merge(json!({"spec": {"nodeSelector": selector}}));
        world.policies.patch("gpu", &PatchParams::default(), &patch).await.unwrap();
        let other = json!({
            "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "b"},
            "spec": {
                "nodeSelector": {"matchLabels": {"group": "b"}},
                "policies": [{"conditionType": "BadNode", "conditionStatus": "False", "toleration": "5m"}],
                "unhealthyLimit": "100%", "budgets": [{"nodes": "100%"}],
            },
        });
        let other = serde_json::from_value(other).unwrap();
        world.policies.create(&PostParams::default(), &other).await.unwrap();
        let brake = "maxNodesPerMinute: 1, maxUnreachablePercent: 0";
        let mut salvor =
            Salvor::start(&stage, settings(brake), Line::default(), Trouble::None, Duration::ZERO);
        for node in ["node-0", "node-1", "node-3", "node-4"] {
            world.sick(node).await;
        }
        assert!(world.until_over(&mut salvor).await, "{}", world.policy());
        let times = deletions(&stage.happenings());
        assert_eq!(times.len(), 4, "{times:?}");
        for pair in times.windows(2) {
            assert!(pair[1].duration_since(pair[0]).as_secs() >= 59, "{times:?}");
        }
        let told = |happening: &Happening| {
            let conditions = happening.object["status"]["conditions"].as_array();
            happening.resource == "nodes"
                && conditions.into_iter().flatten().any(|it| {
                    it["reason"] == "Blocked"
                        && it["message"].as_str().is_some_and(|it| it.contains("MaxNodesPerMinute"))
                })
        };
        assert!(stage.happenings().iter().any(told), "who is held says so");
        salvor.stop().await;
    });
}
