//! Where a pod may run, and where it runs best: the scheduler's rules, one by one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use salvor_apiserver::quantity;

use crate::nodes::taints::{
    NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, UNSCHEDULABLE, tolerates, untolerated,
};
use crate::world::views::{Container, Node, Pod};

/// Amounts of resources, in billionths.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// The requests of a pod: the sum of its containers, or its largest init container if that is more.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let of = |container: &Container| amounts(&container.resources.requests);
    let mut total = Amounts::new();
    for container in &pod.spec.containers {
        add(&mut total, &of(container));
    }
    let mut before = Amounts::new();
    for container in &pod.spec.init_containers {
        let own = of(container);
        if container.restart_policy == "Always" {
            // A sidecar runs beside all containers that come after it.
            add(&mut total, &own);
            add(&mut before, &own);
        } else {
            let mut peak = before.clone();
            add(&mut peak, &own);
            raise(&mut total, &peak);
        }
    }
    add(&mut total, &amounts(&pod.spec.overhead));
    total
}

pub(crate) fn amounts(quantities: &BTreeMap<String, String>) -> Amounts {
    let read = |(name, text): (&String, &String)| Some((name.clone(), quantity::amount(text)?));
    quantities.iter().filter_map(read).collect()
}

pub(crate) fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *total.entry(name.clone()).or_default() += amount;
    }
}

pub(crate) fn subtract(total: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        *total.entry(name.clone()).or_default() -= amount;
    }
}

fn raise(total: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = total.entry(name.clone()).or_default();
        *known = (*known).max(*amount);
    }
}

/// Why a node does not fit, as `FailedScheduling` counts them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Obstacle {
    Insufficient(String),
    TooManyPods,
    Unschedulable,
    UntoleratedTaint,
    NodeAffinity,
    VolumeNodeAffinity,
    TopologySpread,
    AntiAffinity,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Self::TooManyPods => f.write_str("Too many pods"),
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::UntoleratedTaint => f.write_str("node(s) had untolerated taint(s)"),
            Self::NodeAffinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::VolumeNodeAffinity => f.write_str("node(s) didn't match PersistentVolume's node affinity"),
            Self::TopologySpread => f.write_str("node(s) didn't match pod topology spread constraints"),
            Self::AntiAffinity => f.write_str("node(s) didn't match pod anti-affinity rules"),
        }
    }
}

/// The resources of a node, and the used part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Load {
    pub(crate) has: Amounts,
    pub(crate) pods: usize,
    pub(crate) taken: Amounts,
}

/// Checks whether a pod fits a node with this load. Returns the first reason if it does not.
pub(crate) fn obstacle(pod: &Pod, asks: &Amounts, node: &Node, load: &Load) -> Option<Obstacle> {
    let tolerations = &pod.spec.tolerations;
    if node.spec.unschedulable {
        let taint = k8s_openapi::api::core::v1::Taint {
            key: UNSCHEDULABLE.to_owned(),
            effect: NO_SCHEDULE.to_owned(),
            ..Default::default()
        };
        if !tolerations.iter().any(|toleration| tolerates(toleration, &taint)) {
            return Some(Obstacle::Unschedulable);
        }
    }
    if untolerated(&node.spec.taints, tolerations, &[NO_SCHEDULE, NO_EXECUTE]).is_some() {
        return Some(Obstacle::UntoleratedTaint);
    }
    let selected =
        pod.spec.node_selector.iter().all(|(key, value)| node.metadata.labels.get(key) == Some(value));
    if !selected || !required_affinity(pod).is_none_or(|selector| selects(selector, node)) {
        return Some(Obstacle::NodeAffinity);
    }
    lack(asks, load)
}

/// The resources that a node lacks.
fn lack(asks: &Amounts, load: &Load) -> Option<Obstacle> {
    let of = |amounts: &Amounts, resource: &str| amounts.get(resource).copied().unwrap_or(0);
    let room = of(&load.has, "pods") / quantity::SCALE;
    if i128::try_from(load.pods).is_ok_and(|pods| pods >= room) {
        return Some(Obstacle::TooManyPods);
    }
    asks.iter().filter(|(_, asked)| **asked > 0).find_map(|(resource, asked)| {
        let lacks = of(&load.taken, resource) + asked > of(&load.has, resource);
        lacks.then(|| Obstacle::Insufficient(resource.clone()))
    })
}

fn required_affinity(pod: &Pod) -> Option<&NodeSelector> {
    let affinity = pod.spec.affinity.as_ref()?.node_affinity.as_ref()?;
    affinity.required_during_scheduling_ignored_during_execution.as_ref()
}

/// Any of the terms; a term without requirements selects nothing.
pub(crate) fn selects(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_selects(term, node))
}

fn term_selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let by_label = |one: &NodeSelectorRequirement| meets(one, node.metadata.labels.get(&one.key));
    let by_field =
        |one: &NodeSelectorRequirement| one.key == "metadata.name" && meets(one, Some(&node.metadata.name));
    let any = expressions.clone().next().is_some() || fields.clone().next().is_some();
    any && expressions.clone().all(by_label) && fields.clone().all(by_field)
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values: BTreeSet<&String> = requirement.values.iter().flatten().collect();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = number(values.first().copied());
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => matches!((number(value), bound), (Some(value), Some(bound)) if value > bound),
        "Lt" => matches!((number(value), bound), (Some(value), Some(bound)) if value < bound),
        _ => false,
    }
}

/// The score of a node for a pod; the greatest is the best. Spreading comes first, then free room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// The preferences of the pod that the node meets.
    wishes: i64,
    /// `PreferNoSchedule` taints.
    avoided: std::cmp::Reverse<usize>,
    /// Pods of the same owner in the zone, and on the node.
    alike_in_zone: std::cmp::Reverse<usize>,
    alike_on_node: std::cmp::Reverse<usize>,
    /// Thousandths of the fullest resource that would be used.
    fullness: std::cmp::Reverse<i64>,
    pods: std::cmp::Reverse<usize>,
}

impl Score {
    /// The score of the node with these similar pods around it.
    pub(crate) fn beside(self, alike: Alike) -> Self {
        Self {
            alike_in_zone: std::cmp::Reverse(alike.in_zone),
            alike_on_node: std::cmp::Reverse(alike.on_node),
            ..self
        }
    }
}

/// Pods of the same owner: how many in the node's zone, and how many on the node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Alike {
    pub(crate) in_zone: usize,
    pub(crate) on_node: usize,
}

pub(crate) fn score(pod: &Pod, asks: &Amounts, node: &Node, load: &Load, alike: Alike) -> Score {
    let avoided = node.spec.taints.iter().filter(|taint| {
        taint.effect == PREFER_NO_SCHEDULE && !pod.spec.tolerations.iter().any(|one| tolerates(one, taint))
    });
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let wishes = preferred.into_iter().flatten().filter(|wish| term_selects(&wish.preference, node));
    let fullness = ["cpu", "memory"].into_iter().filter_map(|resource| {
        let of = |amounts: &Amounts| amounts.get(resource).copied().unwrap_or(0);
        i64::try_from((of(&load.taken) + of(asks)) * 1000 / of(&load.has).max(1)).ok()
    });
    Score {
        wishes: wishes.map(|wish| i64::from(wish.weight)).sum(),
        avoided: std::cmp::Reverse(avoided.count()),
        alike_in_zone: std::cmp::Reverse(alike.in_zone),
        alike_on_node: std::cmp::Reverse(alike.on_node),
        fullness: std::cmp::Reverse(fullness.max().unwrap_or(0)),
        pods: std::cmp::Reverse(load.pods),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "calls read as the JSON they mean")]
    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn node(spec: Value) -> Node {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {"zone": "a", "size": "8"}},
        });
        node["spec"] = spec;
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn what_a_pod_asks_for() {
        let asks = requests(&pod(json!({
            "containers": [{"resources": {"requests": {"cpu": "500m"}}}, {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "initContainers": [
                {"resources": {"requests": {"cpu": "250m"}}, "restartPolicy": "Always"},
                {"resources": {"requests": {"cpu": "3"}}},
            ],
            "overhead": {"cpu": "10m"},
        })));
        assert_eq!(
            asks["cpu"],
            3_260 * quantity::SCALE / 1000,
            "the init container beside the sidecar is the peak"
        );
        assert_eq!(asks["memory"], (1 << 30) * quantity::SCALE);
    }

    fn load(pods: usize, cpu: &str) -> Load {
        let read = |pairs: &[(&str, &str)]| {
            amounts(&pairs.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect())
        };
        let has = read(&[("cpu", "4"), ("memory", "8Gi"), ("pods", "3")]);
        Load { has, pods, taken: read(&[("cpu", cpu)]) }
    }

    #[test]
    fn obstacles_one_by_one() {
        let (free, full, busy) = (load(0, "0"), load(3, "0"), load(1, "3500m"));
        let one_cpu = json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
        let tainted = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
        let affinity = |operator: &str, key: &str, values: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]}}}})
        };
        for (spec, on, load, expected) in [
            (json!({}), json!({}), &free, None),
            (json!({}), json!({}), &full, Some(Obstacle::TooManyPods)),
            (one_cpu.clone(), json!({}), &free, None),
            (one_cpu, json!({}), &busy, Some(Obstacle::Insufficient("cpu".to_owned()))),
            (
                json!({"containers": [{"resources": {"requests": {"gpu": "1"}}}]}),
                json!({}),
                &free,
                Some(Obstacle::Insufficient("gpu".to_owned())),
            ),
            (json!({}), tainted.clone(), &free, Some(Obstacle::UntoleratedTaint)),
            (json!({"tolerations": [{"key": "k", "operator": "Exists"}]}), tainted, &free, None),
            (json!({}), json!({"unschedulable": true}), &free, Some(Obstacle::Unschedulable)),
            (json!({"tolerations": [{"operator": "Exists"}]}), json!({"unschedulable": true}), &free, None),
            (json!({"nodeSelector": {"zone": "a"}}), json!({}), &free, None),
            (json!({"nodeSelector": {"zone": "b"}}), json!({}), &free, Some(Obstacle::NodeAffinity)),
            (affinity("In", "zone", json!(["a", "b"])), json!({}), &free, None),
            (affinity("NotIn", "zone", json!(["a"])), json!({}), &free, Some(Obstacle::NodeAffinity)),
            (affinity("Gt", "size", json!(["7"])), json!({}), &free, None),
            (affinity("Lt", "size", json!(["7"])), json!({}), &free, Some(Obstacle::NodeAffinity)),
            (affinity("Exists", "none", json!([])), json!({}), &free, Some(Obstacle::NodeAffinity)),
        ] {
            let pod = pod(spec.clone());
            assert_eq!(obstacle(&pod, &requests(&pod), &node(on), load), expected, "{spec}");
        }
    }

    #[test]
    fn spreading_beats_room_and_wishes_beat_spreading() {
        let plain = pod(json!({}));
        let wishing = pod(
            json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}]}}}),
        );
        let (free, busy) = (load(0, "0"), load(2, "0"));
        let here = node(json!({}));
        let none = Amounts::new();
        let alone = Alike::default();
        let crowd = Alike { in_zone: 1, on_node: 1 };
        assert!(score(&plain, &none, &here, &busy, alone) > score(&plain, &none, &here, &free, crowd));
        assert!(score(&plain, &none, &here, &free, alone) > score(&plain, &none, &here, &busy, alone));
        assert!(score(&wishing, &none, &here, &free, crowd) > score(&plain, &none, &here, &free, alone));
    }
}
