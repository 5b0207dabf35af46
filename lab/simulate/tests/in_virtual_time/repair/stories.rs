//! Stories without crashes.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use salvor_simulate::{Line, in_virtual_time};
use serde_json::json;

use super::world::{BEAT, By, World, settings, with_settings};
use crate::troubles::{Salvor, Trouble};

async fn run(world: &mut World, salvor: &mut Salvor<'_>, minutes: u64) {
    for _ in 0..minutes * 60 / BEAT.as_secs() {
        salvor.live(BEAT).await;
        world.beat().await;
    }
}

fn start<'a>(stage: &'a crate::stage::Stage) -> Salvor<'a> {
    Salvor::start(stage, settings(), Line::default(), Trouble::None, Duration::ZERO)
}

#[test]
fn sick_nodes_are_replaced_one_after_the_other() {
    in_virtual_time(async {
        let mut world = World::new(6, 1).await;
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        for node in ["node-1", "node-3", "node-4"] {
            world.sick(node).await;
        }
        assert!(world.until_over(&mut salvor).await, "{}", world.policy());
        let audit = world.audit();
        assert_eq!(audit.wrong, Vec::<String>::new());
        assert_eq!((audit.deleted.len(), audit.most), (3, 1));
        let status = world.policy()["status"].clone();
        assert_eq!(status["repaired"], 3, "{status}");
        assert_eq!((&status["nodes"], &status["healthy"]), (&json!(6), &json!(6)), "{status}");
        salvor.stop().await;
    });
}

#[test]
fn a_nodepool_with_a_block_spec_repair_needs_no_policy() {
    in_virtual_time(async {
        let mut world = World::with(By::Pool, 6, 1).await;
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        for node in ["node-1", "node-3"] {
            world.sick(node).await;
        }
        assert!(world.until_over(&mut salvor).await, "{}", world.policy());
        let audit = world.audit();
        assert_eq!(audit.wrong, Vec::<String>::new());
        assert_eq!((audit.deleted.len(), audit.most), (2, 1));
        assert_eq!(world.policy()["status"]["repaired"], 2);
        salvor.stop().await;
    });
}

/// A reboot is requested once, is withdrawn when the node has booted, and cures it; another node gets worse and is
/// replaced.
#[test]
fn a_ladder_reboots_first_and_then_replaces() {
    in_virtual_time(async {
        let mut world = World::new(6, 3).await;
        let ladder = json!({"spec": {"policies": [{
            "conditionType": "BadNode", "conditionStatus": "False", "toleration": "5m",
            "ladder": [{"action": "Reboot", "timeout": "10m"}, {"action": "Replace"}],
        }]}});
        world.policies.patch("gpu", &PatchParams::default(), &Patch::Merge(ladder)).await.unwrap();
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        world.sick("node-0").await;
        world.sick("node-1").await;
        run(&mut world, &mut salvor, 6).await;
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        let boot = json!({"status": {"nodeInfo": {"bootID": "second"}}});
        for node in ["node-0", "node-1"] {
            let asked = world.stage.nodes().get(node).await.unwrap();
            assert!(
                asked.metadata.annotations.unwrap().contains_key("salvor.dev/reboot-requested"),
                "{node}"
            );
            let patch = Patch::Strategic(boot.clone());
            world.stage.nodes().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
        }
        world.well("node-0").await;
        run(&mut world, &mut salvor, 1).await;
        for node in ["node-0", "node-1"] {
            let node = world.stage.nodes().get(node).await.unwrap();
            let conditions = node.status.unwrap().conditions.unwrap();
            let asked = conditions.iter().find(|it| it.type_ == "NodeReboot").unwrap();
            assert_eq!((asked.status.as_str(), asked.reason.as_deref()), ("False", Some("Rebooted")));
        }
        assert!(world.until_over(&mut salvor).await, "{}", world.policy());
        let audit = world.audit();
        assert_eq!((audit.deleted, audit.wrong), (vec!["node-1".to_owned()], Vec::new()));
        assert_eq!(world.policy()["status"]["repaired"], 2);
        salvor.stop().await;
    });
}

/// An agent writes a new lastTransitionTime every minute, and restarts now and then.
#[test]
fn an_agent_that_rewrites_the_transition_puts_nothing_off() {
    in_virtual_time(async {
        let mut world = World::new(6, 1).await;
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        world.sick("node-2").await;
        for minute in 0..10 {
            run(&mut world, &mut salvor, 1).await;
            if minute == 2 {
                world.well("node-2").await;
                salvor.live(Duration::from_secs(20)).await;
            }
            if minute < 8 && world.stage.nodes().get_opt("node-2").await.unwrap().is_some() {
                world.sick("node-2").await;
            }
        }
        assert_eq!(world.audit().deleted, ["node-2"]);
        salvor.stop().await;
    });
}

#[test]
fn a_node_that_recovers_in_time_is_left_alone() {
    in_virtual_time(async {
        let mut world = World::new(4, 1).await;
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        world.sick("node-0").await;
        run(&mut world, &mut salvor, 4).await;
        world.well("node-0").await;
        // Its recovery is remembered for half an hour.
        run(&mut world, &mut salvor, 32).await;
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        let node = world.stage.nodes().get("node-0").await.unwrap();
        let conditions = node.status.unwrap().conditions.unwrap();
        let ours = conditions.iter().find(|it| it.type_ == "SalvorRepair").unwrap();
        assert_eq!((ours.status.as_str(), ours.reason.as_deref()), ("False", Some("Recovered")));
        let annotations = node.metadata.annotations.unwrap_or_default();
        assert!(!annotations.contains_key("repair.salvor.dev/progress"), "{annotations:?}");
        salvor.stop().await;
    });
}

#[test]
fn blocked_nodes_are_woken_when_the_block_is_lifted() {
    in_virtual_time(async {
        let mut world = World::new(6, 3).await;
        let limit = json!({"spec": {"unhealthyLimit": 1}});
        world.policies.patch("gpu", &PatchParams::default(), &Patch::Merge(limit)).await.unwrap();
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        world.sick("node-0").await;
        world.sick("node-1").await;
        run(&mut world, &mut salvor, 20).await;
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        let status = world.policy()["status"].clone();
        assert_eq!(status["conditions"][1]["reason"], "TooManyUnhealthy", "{status}");
        // A sibling recovers: the brake settles for three minutes, and then the other one does not wait for a poll.
        world.well("node-1").await;
        salvor.live(Duration::from_secs(178)).await;
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        let held = world.stage.nodes().get("node-0").await.unwrap().status.unwrap().conditions.unwrap();
        let held = held.into_iter().find(|it| it.type_ == "SalvorRepair").unwrap().message.unwrap();
        assert!(held.contains("unless more heal"), "{held}");
        salvor.live(Duration::from_secs(4)).await;
        assert_eq!(world.audit().deleted, ["node-0"]);
        salvor.stop().await;
    });
}

#[test]
fn a_stuck_machine_holds_nobody_up_for_ever() {
    in_virtual_time(async {
        let mut world = World::new(6, 1).await;
        world.karpenter_is_down = true;
        let stage = world.stage.clone();
        let configuration = with_settings("stuckAfter: 10m");
        let mut salvor = Salvor::start(&stage, configuration, Line::default(), Trouble::None, Duration::ZERO);
        world.sick("node-0").await;
        salvor.live(BEAT).await;
        world.sick("node-1").await;
        run(&mut world, &mut salvor, 14).await;
        assert_eq!(world.audit().deleted, ["node-0"], "{}", world.policy()["status"]);
        run(&mut world, &mut salvor, 3).await;
        assert_eq!(world.audit().deleted, ["node-0", "node-1"]);
        salvor.stop().await;
    });
}

/// For an hour most nodes are unreachable, and the brake blocks the repair that has its turn. If unused turns were
/// given to others besides it, all would begin when the brake releases.
#[test]
fn a_long_outage_gives_no_more_turns_than_the_budget() {
    in_virtual_time(async {
        let mut world = World::new(6, 1).await;
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        let lost = ["node-2", "node-3", "node-4", "node-5"];
        for node in lost {
            unreachable(&world, node, true).await;
        }
        for node in ["node-0", "node-1", "node-2"] {
            world.sick(node).await;
        }
        run(&mut world, &mut salvor, 60).await;
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        let status = world.policy()["status"].clone();
        assert_eq!(status["repairs"].as_array().map(Vec::len), Some(1), "{status}");
        for node in lost {
            unreachable(&world, node, false).await;
        }
        world.karpenter_is_down = true;
        run(&mut world, &mut salvor, 12).await;
        assert_eq!(world.audit().deleted.len(), 1, "{}", world.policy()["status"]);
        world.karpenter_is_down = false;
        assert!(world.until_over(&mut salvor).await, "{}", world.policy());
        let audit = world.audit();
        assert_eq!(audit.wrong, Vec::<String>::new());
        assert_eq!((audit.deleted.len(), audit.most), (3, 1));
        salvor.stop().await;
    });
}

/// The control plane loses a node, or it sends heartbeats again.
async fn unreachable(world: &World, node: &str, is: bool) {
    world.condition(node, "Ready", if is { "Unknown" } else { "True" }).await;
    let taint = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"});
    let taints = if is { json!([taint]) } else { json!(null) };
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    world.stage.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Nothing selects the nodes: nothing is ever written to them.
#[test]
fn without_a_policy_nothing_happens() {
    in_virtual_time(async {
        let mut world = World::new(3, 1).await;
        world.policies.delete("gpu", &Default::default()).await.unwrap();
        let stage = world.stage.clone();
        let mut salvor = start(&stage);
        world.sick("node-0").await;
        let before = world.stage.nodes().get("node-0").await.unwrap().metadata.resource_version;
        run(&mut world, &mut salvor, 60).await;
        assert_eq!(world.stage.nodes().get("node-0").await.unwrap().metadata.resource_version, before);
        assert_eq!(world.audit().deleted, Vec::<String>::new());
        salvor.stop().await;
    });
}
