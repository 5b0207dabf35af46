//! Which policy applies to which node, and what a policy may contain.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Site, on_both, wait};
use serde_json::{Value, json};

use crate::karpenter::Manner;
use crate::objects::{NodeRepairPolicy, Object, node_condition};
use crate::stage::{BAD, HOUR, Stage};

/// The older policy applies. The younger one reports this, and applies when the older one is deleted.
async fn of_two_policies_the_older_one_counts(site: Site) {
    let stage = Stage::new(site, "two").await;
    let nodes = stage.healthy(2).await;
    let older = format!("{}-older", stage.pool);
    let made = stage.create_policy(&older, stage.policy_spec("2h", json!({}))).await;
    // Creation times have no fractions, and the clock of the cluster may be a moment behind.
    let second = made.metadata.creation_timestamp.unwrap().0.as_second();
    while Timestamp::now().as_second() <= second + 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.policy("30m", json!({})).await;
    stage
        .stays(&nodes, async {
            stage.sicken(&nodes[0]).await;
            let waiting = stage.says(&nodes[0], "Waiting").await;
            assert!(waiting.message.contains(&older), "{waiting:?}");
            let younger = stage.policy_says("Overlaps", "True", "OlderPolicyCounts").await;
            let said = younger.condition("Overlaps").unwrap();
            assert!(said.message.contains(&older), "{said:?}");
        })
        .await;
    stage.policies.delete(&older, &DeleteParams::default()).await.unwrap();
    stage.is_gone(&nodes[0]).await;
    stage.policy_says("Overlaps", "False", "NoOverlap").await;
}

/// Without a policy there is no repair, nor with a policy that selects other nodes.
async fn a_node_that_no_policy_selects_is_left_alone(site: Site) {
    let stage = Stage::new(site, "none").await;
    let nodes = stage.healthy(2).await;
    stage.sicken(&nodes[0]).await;
    stage.set(&nodes[0], "Ready", "False", HOUR * 24).await;
    let mut chosen = stage.launch("chosen");
    chosen.labels = json!({"chosen": "yes"});
    let chosen = stage.make(chosen).await;
    stage
        .stays(&nodes, async {
            let selector = json!({"matchExpressions": [
                {"key": "chosen", "operator": "Exists"},
                {"key": crate::karpenter::MEMBER, "operator": "In", "values": [stage.pool]},
            ]});
            stage.policy("30m", json!({"nodeSelector": selector})).await;
            stage.sicken(&chosen).await;
            stage.is_gone(&chosen).await;
        })
        .await;
    assert!(
        crate::objects::node_condition(&stage.nodes.get(&nodes[0]).await.unwrap(), "SalvorRepair").is_none()
    );
}

/// The API server refuses invalid policies.
async fn a_policy_that_makes_no_sense_is_refused(site: Site) {
    let stage = Stage::new(site, "refused").await;
    let rule = |more: Value| {
        let mut rule = json!({"conditionType": BAD, "conditionStatus": "False", "toleration": "1h"});
        for (key, value) in more.as_object().unwrap() {
            rule[key] = value.clone();
        }
        json!({"policies": [rule]})
    };
    let ladder = json!([{"action": "Replace"}]);
    for (number, (field, more)) in [
        ("nodeSelector", json!({"nodeSelector": null})),
        ("toleration", rule(json!({"toleration": "soon"}))),
        ("toleration", rule(json!({"toleration": "-5m"}))),
        ("conditionStatus", rule(json!({"conditionStatus": "Sick"}))),
        ("action", rule(json!({"action": "Pray"}))),
        ("ladder", rule(json!({"action": "Reboot", "ladder": ladder}))),
        ("termination", json!({"termination": "Sudden"})),
        ("gracePeriod", json!({"termination": "Forceful", "gracePeriod": "5m"})),
        ("unhealthyLimit", json!({"unhealthyLimit": "many"})),
        ("unhealthyLimit", json!({"unhealthyLimit": -1})),
        ("nodes", json!({"budgets": [{"nodes": "120 %"}]})),
        ("schedule", json!({"budgets": [{"nodes": 1, "schedule": "0 8 * * 1-5"}]})),
        ("startupTimeout", json!({"startupTimeout": "never"})),
    ]
    .into_iter()
    .enumerate()
    {
        let spec = stage.policy_spec("1h", more);
        let policy: NodeRepairPolicy = Object::named(&format!("{}-{number}", stage.pool), spec.clone());
        let refused = stage.policies.create(&PostParams::default(), &policy).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("it is accepted: {spec}") };
        assert_eq!(status.code, 422, "{status:?}");
        assert!(status.message.contains(field), "{field}: {}", status.message);
    }
}

/// Salvor checks what the API server cannot, reports it in the policy's status, and ignores the policy's nodes.
async fn a_policy_that_cannot_be_read_repairs_nothing(site: Site) {
    let stage = Stage::new(site, "invalid").await;
    let nodes = stage.healthy(2).await;
    let pattern = |text: &str| json!([{"conditionType": BAD, "conditionStatus": "False", "toleration": "30m", "reasonPattern": text}]);
    stage.sicken(&nodes[0]).await;
    stage
        .stays(&nodes, async {
            stage.policy("30m", json!({"policies": pattern("(")})).await;
            let policy = stage.policy_says("Ready", "False", "InvalidSpec").await;
            let said = policy.condition("Ready").unwrap().message;
            assert!(said.contains("reasonPattern"), "{said}");
            stage.event("NodeRepairPolicy", &stage.pool, "InvalidNodeRepairPolicy").await;
        })
        .await;
    stage.change_policy(json!({"policies": pattern("Test.*")})).await;
    stage.is_gone(&nodes[0]).await;
    stage.policy_says("Ready", "True", "Valid").await;
}

/// A typo in the older policy does not hand its nodes to another policy.
async fn a_broken_policy_keeps_its_nodes(site: Site) {
    let stage = Stage::new(site, "broken").await;
    let nodes = stage.healthy(2).await;
    let rule = |pattern: &str| json!([{"conditionType": BAD, "conditionStatus": "False", "toleration": "2h", "reasonPattern": pattern}]);
    stage.policy("2h", json!({"policies": rule("(")})).await;
    stage.policy_says("Ready", "False", "InvalidSpec").await;
    let younger = format!("{}-younger", stage.pool);
    // Between two policies of the same second the name decides, which is the order here.
    stage.create_policy(&younger, stage.policy_spec("30m", json!({}))).await;
    stage
        .stays(&nodes, async {
            stage.sicken(&nodes[0]).await;
            let told = |policy: &NodeRepairPolicy| {
                policy.condition("Overlaps").is_some_and(|condition| condition.status == "True")
            };
            wait::for_object(&stage.policies, &younger, "it says that another one counts", told).await;
        })
        .await;
    stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
    stage.is_gone(&nodes[0]).await;
}

/// One condition with several reasons, each with its own action.
async fn a_reason_chooses(site: Site) {
    let stage = Stage::new(site, "reason").await;
    let nodes = stage.healthy(3).await;
    let rule = |pattern: &str, toleration: &str, action: &str| json!({"conditionType": BAD, "conditionStatus": "False", "toleration": toleration, "reasonPattern": pattern, "action": action});
    let policies = json!([rule("^NvidiaXID(13|31)$", "1s", "None"), rule("^NvidiaXID79", "30m", "Replace")]);
    stage.policy("30m", json!({"policies": policies})).await;
    let since = Timestamp::now() - HOUR;
    stage
        .stays(&nodes[..2], async {
            stage.set_condition(&nodes[0], BAD, "False", "NvidiaXID13", since).await;
            stage.set_condition(&nodes[1], BAD, "False", "Unheard", since).await;
            stage.set_condition(&nodes[2], BAD, "False", "NvidiaXID79", since).await;
            stage.is_gone(&nodes[2]).await;
        })
        .await;
    // The reason changes to a worse one.
    stage.set_condition(&nodes[0], BAD, "False", "NvidiaXID79", since).await;
    stage.is_gone(&nodes[0]).await;
}

/// The seed's three steps: the policy for the condition, the policy's default, the provider's default.
async fn tolerations_are_found_in_three_steps(site: Site) {
    let stage = Stage::new(site, "steps").await;
    let mut nodes = Vec::new();
    for number in 0..4 {
        let mut one = stage.launch(&format!("n{number}"));
        one.provider_id = format!("aws:///zone-a/i-{}", one.name);
        one.zone = format!("zone-{}", ["a", "b", "c", "d"][number]);
        nodes.push(stage.make(one).await);
    }
    // One condition has its own entry. The others are not mentioned.
    let policies = json!([{"conditionType": "StorageReady", "conditionStatus": "False", "toleration": "2h"}]);
    stage.policy("30m", json!({"policies": policies})).await;
    let minutes = |count: u32| Duration::from_secs(60) * count;
    // AWS: AcceleratedHardwareReady 10 minutes, KernelReady 30.
    stage.set(&nodes[0], "AcceleratedHardwareReady", "False", minutes(11)).await;
    stage.is_gone(&nodes[0]).await;
    stage
        .stays(&nodes[1..], async {
            stage.set(&nodes[1], "KernelReady", "False", minutes(11)).await;
            stage.set(&nodes[2], "StorageReady", "False", minutes(100)).await;
            stage.set(&nodes[3], "NoSuchThing", "False", minutes(100)).await;
            stage.says(&nodes[1], "Waiting").await;
            stage.says(&nodes[2], "Waiting").await;
        })
        .await;
    let from = async |node: &str| {
        let told = stage.explain(node).await;
        let told = repair_of(&told);
        let sick = told["conditions"].as_array().unwrap().iter().find(|c| c["deadline"].is_string());
        sick.unwrap()["from"].clone()
    };
    assert_eq!(from(&nodes[1]).await, "provider");
    assert_eq!(from(&nodes[2]).await, "policy");
    // The default applies to what the provider names. It applies neither to conditions with an entry nor to unknown
    // ones.
    stage
        .stays(&nodes[2..], async {
            stage.change_policy(json!({"defaultTolerationDuration": "5m"})).await;
            stage.is_gone(&nodes[1]).await;
        })
        .await;
}

/// The part of an explanation that concerns the repair, wherever it is.
pub(crate) fn repair_of(explanation: &Value) -> Value {
    fn find(value: &Value) -> Option<&Value> {
        match value {
            Value::Object(fields) => match fields.get("repair") {
                Some(found) if found.is_object() => Some(found),
                _ => fields.values().find_map(find),
            },
            Value::Array(items) => items.iter().find_map(find),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    }
    find(explanation).unwrap_or_else(|| panic!("nothing of a repair: {explanation}")).clone()
}

/// The action None switches off a condition of the provider.
async fn an_action_of_none_does_nothing(site: Site) {
    let stage = Stage::new(site, "nothing").await;
    let nodes = stage.healthy(2).await;
    let off = |status: &str| json!({"conditionType": "Ready", "conditionStatus": status, "action": "None"});
    let sick = json!({"conditionType": BAD, "conditionStatus": "False", "toleration": "30m"});
    stage.policy("30m", json!({"policies": [off("False"), off("Unknown"), sick]})).await;
    stage
        .stays(&nodes[..1], async {
            stage.set(&nodes[0], "Ready", "False", HOUR).await;
            stage.sicken(&nodes[1]).await;
            stage.is_gone(&nodes[1]).await;
        })
        .await;
}

/// The seed's block in a NodePool, without a NodeRepairPolicy.
async fn a_node_pool_may_say_it_itself(site: Site) {
    let stage = Stage::new(site, "poolsays").await;
    // Two of six are what the limit of 20 percent allows.
    let nodes = stage.healthy(6).await;
    for node in &nodes[..2] {
        stage.set(node, "Ready", "Unknown", Duration::from_secs(120)).await;
    }
    // A condition that no provider names has no sick status.
    stage.set(&nodes[2], BAD, "False", HOUR).await;
    let repair = json!({"policies": [
        {"conditionType": "Ready", "toleration": "1m"}, {"conditionType": BAD, "toleration": "1m"},
    ]});
    stage
        .stays(&nodes[2..], async {
            stage.change_pool(json!({"repair": repair})).await;
            stage.is_gone(&nodes[0]).await;
            stage.is_gone(&nodes[1]).await;
        })
        .await;
    stage.event("NodePool", &stage.pool, "NodeRepairStarted").await;
    let ignored = stage.event("NodePool", &stage.pool, "InvalidNodeRepairPolicy").await;
    assert!(format!("{ignored:?}").contains("spec.repair.policies[1].conditionType"), "{ignored:?}");
    // Without the block the repair stops. With only a default, it applies to everything that the provider names.
    stage.change_pool(json!({"repair": Value::Null})).await;
    let fresh = stage.make(stage.launch("fresh")).await;
    stage.set(&fresh, "Ready", "False", Duration::from_secs(120)).await;
    stage
        .stays(&nodes[2..], async {
            stage.change_pool(json!({"repair": {"defaultTolerationDuration": "1m"}})).await;
            stage.is_gone(&fresh).await;
        })
        .await;
}

/// `kubectl get nrp` shows the essentials.
async fn a_policy_has_columns(site: Site) {
    let stage = Stage::new(site, "columns").await;
    stage.healthy(3).await;
    stage.policy("30m", json!({})).await;
    wait::for_object(&stage.policies, &stage.pool, "it has counted", |policy: &NodeRepairPolicy| {
        policy.status["nodes"] == 3 && policy.status["healthy"] == 3
    })
    .await;
    let table = stage.plane().kubectl().run(&["get", "nrp", &stage.pool]).await.unwrap();
    for column in ["NODES", "WAITING", "BLOCKED", "REPAIRING", "REPAIRED", "ALLOWED", "AGE"] {
        assert!(table.contains(column), "{table}");
    }
    assert_eq!(stage.policies.get(&stage.pool).await.unwrap().name_any(), stage.pool);
}

/// Whether a node has no mark of Salvor.
fn is_clean(node: &Node) -> bool {
    let is_ours = |key: &String| key.contains("salvor.dev/") && key != "salvor.dev/reboot-done";
    node_condition(node, "SalvorRepair").is_none()
        && node_condition(node, "NodeReboot").is_none()
        && !node.annotations().keys().any(is_ours)
        && node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true))
}

/// The policy or the selected label is removed. No mark of Salvor stays on the nodes, whatever the state of their
/// repair.
async fn nothing_is_left_on_nodes_that_no_policy_selects(site: Site) {
    let stage = Stage::with(site, "forsaken", Manner::Ends).await;
    stage.karpenter.hang();
    let mut nodes = stage.healthy(4).await;
    let rule = |kind: &str, toleration: &str, action: &str| json!({"conditionType": kind, "conditionStatus": "False", "toleration": toleration, "action": action});
    let rules = [rule(BAD, "30m", "Replace"), rule("Late", "2h", "Replace"), rule("Stuck", "30m", "Reboot")];
    stage.policy("30m", json!({ "policies": rules })).await;
    let mut plain = stage.launch("plain");
    (plain.of_pool, plain.has_claim) = (false, false);
    plain.provider_id = String::new();
    nodes.push(stage.make(plain).await);
    stage.set(&nodes[0], "Late", "False", HOUR).await;
    stage.set(&nodes[1], "Stuck", "False", HOUR).await;
    stage.annotate(&nodes[2], json!({"salvor.dev/do-not-repair": ""})).await;
    stage.sicken(&nodes[2]).await;
    stage.sicken(&nodes[3]).await;
    stage.says(&nodes[0], "Waiting").await;
    stage.says(&nodes[1], "Rebooting").await;
    stage.says(&nodes[2], "Vetoed").await;
    stage.says(&nodes[3], "Repairing").await;
    // One node leaves by its label, the others lose their policy.
    let patch = Patch::Merge(json!({"metadata": {"labels": {crate::karpenter::MEMBER: null}}}));
    stage.nodes.patch(&nodes[0], &PatchParams::default(), &patch).await.unwrap();
    wait::for_object(&stage.nodes, &nodes[0], "nothing of ours is on it", is_clean).await;
    stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
    stage.annotate(&nodes[2], json!({"salvor.dev/do-not-repair": null})).await;
    for node in &nodes {
        wait::for_object(&stage.nodes, node, "nothing of ours is on it", is_clean).await;
    }
    // What was started at Karpenter completes, and nothing else is started.
    stage.karpenter.go_on();
    stage.is_gone(&nodes[3]).await;
    assert!(!stage.claim_of(&nodes[2]).await.is_deleting());
}

/// A cordon of Salvor is removed with the policy. One of a person is not.
async fn a_cordon_goes_with_its_policy(site: Site) {
    let stage = Stage::new(site, "uncordon").await;
    let mut plain = stage.launch("plain");
    (plain.of_pool, plain.has_claim) = (false, false);
    plain.provider_id = String::new();
    let node = stage.make(plain).await;
    // A pod that nothing ends, so that the drain does not end either.
    let namespace = stage.namespace().await;
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &namespace);
    let pod = json!({
        "metadata": {"name": "works", "finalizers": ["example.com/held"]},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "work"}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    stage.policy("30m", json!({"termination": "Graceful", "gracePeriod": "1h"})).await;
    stage.sicken(&node).await;
    stage.says(&node, "Repairing").await;
    stage.policies.delete(&stage.pool, &DeleteParams::default()).await.unwrap();
    wait::for_object(&stage.nodes, &node, "nothing of ours is on it", is_clean).await;
}

on_both!(
    nothing_is_left_on_nodes_that_no_policy_selects,
    a_cordon_goes_with_its_policy,
    of_two_policies_the_older_one_counts,
    a_node_that_no_policy_selects_is_left_alone,
    a_policy_that_makes_no_sense_is_refused,
    a_policy_that_cannot_be_read_repairs_nothing,
    a_broken_policy_keeps_its_nodes,
    a_reason_chooses,
    tolerations_are_found_in_three_steps,
    an_action_of_none_does_nothing,
    a_node_pool_may_say_it_itself,
    a_policy_has_columns,
);
