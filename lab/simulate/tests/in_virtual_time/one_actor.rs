//! Two recoveries on one node: one acts, the other waits for it.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use salvor_apiserver::Faults;
use salvor_simulate::{Line, Process, in_virtual_time};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::stage::{Stage, configuration};

const MINUTE: Duration = Duration::from_secs(60);
const KEY: &str = "salvor.dev/force-eviction";
const OUT: &str = "node.kubernetes.io/out-of-service";
const PROGRESS: &str = "eviction.salvor.dev/progress";

async fn node(stage: &Stage) -> Value {
    serde_json::to_value(stage.nodes().get("node").await.unwrap()).unwrap()
}

fn has_taint(node: &Value, key: &str) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
}

async fn ask_for_eviction(stage: &Stage) {
    let mut taints = node(stage).await["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.push(json!({"key": KEY, "value": "INC-1", "effect": "NoSchedule"}));
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    stage.nodes().patch("node", &PatchParams::default(), &patch).await.unwrap();
}

#[test]
fn of_an_eviction_and_the_rule_for_out_of_service_one_acts_on_a_node() {
    in_virtual_time(async {
        let stage = Stage::new(1).await;
        stage.node("node").await;
        let rule = "{nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 10m}";
        // The rule's own taint is among the triggers, and still requests nothing.
        let lines = format!(
            "leaderElection: {{enabled: false}}\ncontrollers: [zombie, eviction]\n\
             failureRecoveryPolicy: {{rules: [{{taintNodeOutOfService: {rule}}}]}}\n\
             eviction: {{triggers: [{{key: {OUT}, proof: true}}]}}\n"
        );
        let configuration = configuration(&lines);
        let start =
            || Process::start(&stage.cluster, "salvor", &configuration, Line::default(), &Faults::default());
        let salvor = start();

        // A user requests the eviction before the rule's time is over: the rule waits, also for what is finished.
        stage.lose("node").await;
        sleep(5 * MINUTE).await;
        ask_for_eviction(&stage).await;
        sleep(60 * MINUTE).await;
        let evicted = node(&stage).await;
        assert!(
            evicted["metadata"]["annotations"][PROGRESS].as_str().unwrap().contains("finished"),
            "{evicted}"
        );
        assert!(!has_taint(&evicted, OUT), "{evicted}");
        // A new process comes to the same decision.
        drop(salvor);
        let _salvor = start();
        sleep(60 * MINUTE).await;
        assert!(!has_taint(&node(&stage).await, OUT));
        stage.comes_back("node").await;
        sleep(MINUTE).await;
        let back = node(&stage).await;
        assert!(!has_taint(&back, KEY) && back["metadata"]["annotations"][PROGRESS].is_null(), "{back}");

        // Lost again, without a request: the rule acts, and its taint is no request.
        stage.lose("node").await;
        sleep(60 * MINUTE).await;
        let out = node(&stage).await;
        assert!(has_taint(&out, OUT) && !has_taint(&out, KEY), "{out}");
        assert!(out["metadata"]["annotations"][PROGRESS].is_null(), "{out}");
        // A user takes precedence over the rule.
        ask_for_eviction(&stage).await;
        sleep(MINUTE).await;
        let both = node(&stage).await;
        assert!(both["metadata"]["annotations"][PROGRESS].as_str().unwrap().contains("finished"), "{both}");
        // Each removes what it added.
        stage.comes_back("node").await;
        sleep(MINUTE).await;
        let back = node(&stage).await;
        assert!(!has_taint(&back, OUT) && !has_taint(&back, KEY), "{back}");
        assert!(back["metadata"]["annotations"].get(PROGRESS).is_none_or(Value::is_null), "{back}");
    });
}
