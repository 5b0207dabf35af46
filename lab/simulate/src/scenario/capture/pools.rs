//! Captures the pools of a cluster: groups of identical nodes.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::names::repair::labels::NODE_POOL;
use serde_json::{Map, Value, json};

use super::{
    Objects, list,
    names::{Names, plain},
    strings, text,
};

/// Labels that differ from node to node, or that a scenario sets itself.
const OWN_LABELS: [&str; 6] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/rack",
    "karpenter.sh/capacity-type",
    "pool",
];
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// The resources that the scheduler counts, besides those with a domain.
const RESOURCES: [&str; 3] = ["cpu", "memory", "pods"];

/// The API does not show how long machines take. These are the times of the examples.
const SHUTDOWN: &str = "30s";
const BOOT: &str = "2m";

#[derive(Debug, Default)]
pub(super) struct Pools {
    /// As they appear in a scenario.
    pub(super) written: Vec<Value>,
    /// The pool of each node, by the node's name in the cluster.
    pub(super) of_node: BTreeMap<String, String>,
    /// By the name of a Karpenter NodePool: the values of its label in the scenario.
    pub(super) of_node_pool: BTreeMap<String, BTreeSet<String>>,
}

/// The properties that nodes of one pool share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    capacity: BTreeMap<String, String>,
    taints: Vec<(String, Option<String>, String)>,
    spot: bool,
    node_pool: String,
    /// The zone of nodes that Karpenter replaces: a pool with machines is in one zone.
    machines: Option<String>,
}

fn class(node: &Value, claims: &Claims) -> Class {
    let counted = |name: &str| RESOURCES.contains(&name) || name.contains('/');
    let capacity = strings(&node["status"]["allocatable"]);
    let label = |key: &str| node["metadata"]["labels"][key].as_str().unwrap_or_default().to_owned();
    let mut marks: Vec<_> = list(&node["spec"]["taints"])
        .filter(|taint| !text(&taint["key"]).starts_with("node.kubernetes.io/"))
        .map(|taint| {
            (text(&taint["key"]), taint["value"].as_str().map(str::to_owned), text(&taint["effect"]))
        })
        .collect();
    marks.sort();
    Class {
        capacity: capacity.into_iter().filter(|(name, _)| counted(name)).collect(),
        taints: marks,
        spot: label("karpenter.sh/capacity-type") == "spot",
        node_pool: label(NODE_POOL),
        machines: claims.have(node).then(|| zone(node)),
    }
}

fn zone(node: &Value) -> String {
    node["metadata"]["labels"][ZONE].as_str().unwrap_or("none").to_owned()
}

/// The nodes that have a NodeClaim, by name and by provider ID.
struct Claims {
    nodes: BTreeSet<String>,
    machines: BTreeSet<String>,
}

impl Claims {
    fn of(claims: &[Value]) -> Self {
        let all = |field: &str| -> BTreeSet<String> {
            claims.iter().map(|claim| text(&claim["status"][field])).filter(|it| !it.is_empty()).collect()
        };
        Self { nodes: all("nodeName"), machines: all("providerID") }
    }

    fn have(&self, node: &Value) -> bool {
        self.nodes.contains(&text(&node["metadata"]["name"]))
            || self.machines.contains(&text(&node["spec"]["providerID"]))
    }
}

pub(super) fn pools(objects: &Objects, names: Names, notes: &mut Vec<String>) -> Pools {
    let claims = Claims::of(&objects.node_claims);
    let mut classes: BTreeMap<Class, Vec<&Value>> = BTreeMap::new();
    for node in &objects.nodes {
        classes.entry(class(node, &claims)).or_default().push(node);
    }
    let asked = asked_labels(objects);
    let mut pools = Pools::default();
    let mut machines = 0;
    for (number, (class, nodes)) in (1..).zip(classes) {
        let name = match (names, class.node_pool.as_str()) {
            (Names::Hashed(_), _) | (Names::Plain, "") => format!("pool{number}"),
            (Names::Plain, own) => format!("{}-{number}", plain(own, 20)),
        };
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for node in &nodes {
            *zones.entry(names.of(&zone(node), 24)).or_default() += 1;
            pools.of_node.insert(text(&node["metadata"]["name"]), name.clone());
        }
        let counts: BTreeSet<usize> = zones.values().copied().collect();
        if counts.last().zip(counts.first()).is_some_and(|(most, least)| most - least > 1) {
            let each: Vec<String> = zones.iter().map(|(zone, count)| format!("{zone} {count}")).collect();
            notes.push(format!(
                "the nodes of {name} are dealt out evenly to its zones; in the cluster they are {}",
                each.join(", ")
            ));
        }
        let mut pool = json!({ "name": name, "nodes": nodes.len(), "zones": zones.keys().collect::<Vec<_>>(), "capacity": names.resources(class.capacity) });
        let labels: Map<String, Value> = common_labels(&nodes)
            .into_iter()
            .filter(|(key, _)| names == Names::Plain || asked.contains(key))
            // The simulated Karpenter writes this label itself.
            .filter(|(key, _)| class.machines.is_none() || key != NODE_POOL)
            .map(|(key, value)| (names.key(&key), names.value(&key, &value).into()))
            .collect();
        if !labels.is_empty() {
            pool["labels"] = labels.into();
        }
        if !class.taints.is_empty() {
            let taints = class.taints.iter().map(|(key, value, effect)| match value {
                Some(value) => {
                    json!({ "key": names.key(key), "value": names.value(key, value), "effect": effect })
                }
                None => json!({ "key": names.key(key), "effect": effect }),
            });
            pool["taints"] = taints.collect();
        }
        if class.spot {
            pool["spot"] = true.into();
        }
        let label = match class.machines {
            Some(_) => {
                pool["machines"] = json!({ "shutdown": SHUTDOWN, "boot": BOOT });
                machines += nodes.len();
                name
            }
            None => names.value(NODE_POOL, &class.node_pool),
        };
        if !class.node_pool.is_empty() {
            pools.of_node_pool.entry(class.node_pool).or_default().insert(label);
        }
        pools.written.push(pool);
    }
    if machines > 0 {
        notes.push(format!(
            "{machines} nodes have NodeClaims: nobody can see how long a machine needs to end and to boot, so {SHUTDOWN} and {BOOT} are guessed; write machines"
        ));
    }
    pools
}

/// The keys of labels that Salvor's configuration or a NodeRepairPolicy selects by.
fn asked_labels(objects: &Objects) -> BTreeSet<String> {
    fn collect(value: &Value, keys: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                keys.extend(
                    fields
                        .get("matchLabels")
                        .and_then(Value::as_object)
                        .into_iter()
                        .flatten()
                        .map(|(key, _)| key.clone()),
                );
                keys.extend(
                    fields.get("matchExpressions").into_iter().flat_map(list).map(|it| text(&it["key"])),
                );
                fields.values().for_each(|field| collect(field, keys));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut keys = BTreeSet::new();
    collect(&serde_json::to_value(&objects.configuration).unwrap_or_default(), &mut keys);
    objects.repair_policies.iter().for_each(|policy| collect(policy, &mut keys));
    keys
}

fn common_labels(nodes: &[&Value]) -> BTreeMap<String, String> {
    let mut all = nodes.iter().map(|node| strings(&node["metadata"]["labels"]));
    let mut common = all.next().unwrap_or_default();
    common.retain(|key, _| !OWN_LABELS.contains(&key.as_str()));
    for labels in all {
        common.retain(|key, value| labels.get(key) == Some(value));
    }
    common
}
