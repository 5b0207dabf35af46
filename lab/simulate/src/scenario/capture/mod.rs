//! Builds a scenario from the objects of a live cluster: its nodes as pools, its workloads with their disruption
//! budgets, Salvor's configuration, and its NodeRepairPolicies.

mod budgets;
mod names;
mod pools;
#[cfg(test)]
mod tests;
mod workloads;

use std::collections::BTreeMap;

use salvor_api::config::Configuration;
use serde_json::{Map, Value, json};

use self::pools::Pools;
use super::{API_VERSION, KIND};
use crate::json::without_nulls;

pub use names::Names;
pub(super) use names::hash;

/// Objects as the API returns them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub nodes: Vec<Value>,
    pub pods: Vec<Value>,
    pub jobs: Vec<Value>,
    pub stateful_sets: Vec<Value>,
    pub deployments: Vec<Value>,
    /// They connect pods to their Deployments.
    pub replica_sets: Vec<Value>,
    pub app_wrappers: Vec<Value>,
    pub budgets: Vec<Value>,
    /// The machines that Karpenter replaces.
    pub node_claims: Vec<Value>,
    pub repair_policies: Vec<Value>,
    /// `None` if Salvor does not run there.
    pub configuration: Option<Configuration>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// The scenario, without failures.
    pub scenario: Value,
    /// What was left out or guessed.
    pub notes: Vec<String>,
}

pub fn capture(objects: &Objects, names: Names) -> Captured {
    let mut notes = Vec::new();
    let pools = pools::pools(objects, names, &mut notes);
    let workloads = workloads::workloads(objects, names, &pools.of_node, &mut notes);
    let mut scenario = json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "title": "Taken from a cluster",
        "pools": pools.written, "workloads": workloads,
    });
    match &objects.configuration {
        Some(configuration) => {
            let mut config = serde_json::to_value(configuration).unwrap_or_default();
            without_nulls(&mut config);
            names.in_configuration(&mut config);
            names.in_selectors(&mut config, &pools.of_node_pool);
            scenario["salvor"] = json!({ "config": config });
            let policies = repair_policies(objects, names, &pools);
            if !policies.is_empty() {
                scenario["salvor"]["repairPolicies"] = policies.into();
            }
        }
        None => {
            scenario["salvor"] = json!({ "enabled": false });
            notes.push("no configuration of Salvor was found in the cluster: it is played without Salvor; write salvor.config, or use --compare".into());
        }
    }
    Captured { scenario, notes }
}

/// The spec of each NodeRepairPolicy, by name.
fn repair_policies(objects: &Objects, names: Names, pools: &Pools) -> Map<String, Value> {
    let policy = |policy: &Value| {
        let mut spec = policy["spec"].clone();
        without_nulls(&mut spec);
        names.in_policy(&mut spec);
        names.in_selectors(&mut spec, &pools.of_node_pool);
        (names.of(&text(&policy["metadata"]["name"]), 60), spec)
    };
    objects.repair_policies.iter().map(policy).collect()
}

fn strings(map: &Value) -> BTreeMap<String, String> {
    let pairs = map.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
