//! The actions of a repair: graceful termination, reboot, or one after the other.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use salvor_testkit::{Site, on_both, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::node_condition;
use crate::stage::{BAD, Stage, TERMINATION, seconds};

const REQUESTED: &str = "salvor.dev/reboot-requested";
const DONE: &str = "salvor.dev/reboot-done";

/// A graceful termination has a deadline, which is never later than an existing one.
async fn a_graceful_end_has_a_deadline(site: Site) {
    let stage = Stage::with(site, "gentle", Manner::Ends).await;
    stage.karpenter.hang();
    let mut tight = stage.launch("tight");
    // Sooner than the policy's own deadline, and far enough in the future for a slow machine.
    let soon = Timestamp::from_second((Timestamp::now() + Duration::from_mins(10)).as_second()).unwrap();
    tight.claim_annotations = json!({TERMINATION: soon.to_string()});
    let (loose, tight) = (stage.make(stage.launch("loose")).await, stage.make(tight).await);
    stage.policy("30m", json!({"termination": "Graceful", "gracePeriod": "20m"})).await;
    let began = Timestamp::now().to_string();
    // The second becomes sick while the first is being repaired: the budget allows both.
    for node in [&loose, &tight] {
        stage.sicken(node).await;
        stage.is_terminated(node).await;
    }
    let left = seconds(&began, &stage.claim_of(&loose).await.termination().unwrap());
    assert!((1199..1500).contains(&left), "{left} seconds");
    assert_eq!(stage.claim_of(&tight).await.termination().unwrap().parse::<Timestamp>().unwrap(), soon);
    stage.karpenter.go_on();
    stage.is_gone(&loose).await;
    stage.is_gone(&tight).await;
}

fn ladder(rungs: Value) -> Value {
    let mut rule = json!({"conditionType": BAD, "conditionStatus": "False", "toleration": "30m"});
    rule["ladder"] = rungs;
    json!({"policies": [rule]})
}

async fn reboot_is_requested(stage: &Stage, node: &str) -> String {
    let asked = |node: &Node| {
        node.annotations().contains_key(REQUESTED)
            && node_condition(node, "NodeReboot")
                .is_some_and(|c| c.status == "True" && c.reason == "RebootRequested")
    };
    let found = wait::for_object(&stage.nodes, node, "its reboot is requested", asked).await;
    found.annotations()[REQUESTED].clone()
}

/// Plays the agent: the machine has booted.
async fn boots(stage: &Stage, node: &str, boot_id: &str) {
    let info = json!({
        "machineID": "", "systemUUID": "", "bootID": boot_id, "kernelVersion": "", "osImage": "",
        "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
    });
    let patch = Patch::Merge(json!({"status": {"nodeInfo": info}}));
    stage.nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}

/// A reboot is requested, done by an agent, observed, and sufficient.
async fn a_reboot_may_be_enough(site: Site) {
    let stage = Stage::new(site, "reboot").await;
    let nodes = stage.healthy(2).await;
    boots(&stage, &nodes[0], "first").await;
    let action =
        json!([{"conditionType": BAD, "conditionStatus": "False", "toleration": "3s", "action": "Reboot"}]);
    stage.policy("30m", json!({"policies": action})).await;
    stage
        .stays(&nodes, async {
            stage.sicken(&nodes[0]).await;
            reboot_is_requested(&stage, &nodes[0]).await;
            stage.says(&nodes[0], "Rebooting").await;
            stage.event("Node", &nodes[0], "NodeRebootRequested").await;
            boots(&stage, &nodes[0], "second").await;
            stage.heal(&nodes[0]).await;
            let over =
                |node: &Node| node_condition(node, "NodeReboot").is_some_and(|c| c.reason == "Rebooted");
            wait::for_object(&stage.nodes, &nodes[0], "its reboot is over", over).await;
            stage.says(&nodes[0], "Repaired").await;
            stage.event("Node", &nodes[0], "NodeRepaired").await;
            // The next repair is as usual: the reboot was a repair like any other.
            stage.heal(&nodes[1]).await;
        })
        .await;
}

/// An agent may report a reboot without a new boot ID. A node that is still sick is then replaced.
async fn what_a_reboot_does_not_cure_is_replaced(site: Site) {
    let stage = Stage::new(site, "ladder").await;
    let nodes = stage.healthy(3).await;
    let rungs = json!([{"action": "Reboot", "attempts": 1, "timeout": "3s"}, {"action": "Replace"}]);
    stage.policy("30m", ladder(rungs)).await;
    // One is not rebooted. The other is rebooted and stays sick.
    stage.sicken(&nodes[0]).await;
    stage.sicken(&nodes[1]).await;
    let value = reboot_is_requested(&stage, &nodes[1]).await;
    stage.annotate(&nodes[1], json!({DONE: value})).await;
    stage.is_gone(&nodes[0]).await;
    stage.is_gone(&nodes[1]).await;
    stage.has_nodes(3).await;
}

/// A reboot that another program requested, or an agent's answer to another request, does not count.
async fn an_old_word_of_a_reboot_does_not_count(site: Site) {
    let stage = Stage::new(site, "oldword").await;
    let nodes = stage.healthy(1).await;
    boots(&stage, &nodes[0], "first").await;
    stage.annotate(&nodes[0], json!({DONE: "2020-01-01T00:00:00Z"})).await;
    let rungs = json!([{"action": "Reboot", "attempts": 1, "timeout": "1h"}, {"action": "Replace"}]);
    stage.policy("30m", ladder(rungs)).await;
    stage
        .stays(&nodes, async {
            stage.sicken(&nodes[0]).await;
            let value = reboot_is_requested(&stage, &nodes[0]).await;
            assert!(value.parse::<Timestamp>().is_ok(), "{value}");
            stage.says(&nodes[0], "Rebooting").await;
            // It has booted and is still sick: it must not be rebooted again.
            boots(&stage, &nodes[0], "second").await;
            let over =
                |node: &Node| node_condition(node, "NodeReboot").is_some_and(|c| c.reason == "Rebooted");
            wait::for_object(&stage.nodes, &nodes[0], "its reboot is not asked for any more", over).await;
        })
        .await;
}

on_both!(
    a_graceful_end_has_a_deadline,
    a_reboot_may_be_enough,
    what_a_reboot_does_not_cure_is_replaced,
    an_old_word_of_a_reboot_does_not_count,
);
