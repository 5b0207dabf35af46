//! Nodes that are lost already: how many of them the brake allows.

use salvor_api::{config::Configuration, names::taints};
use serde_json::Value;

use super::finding::{Check, Finding, Severity};

/// So many lost nodes never engage the brake, whatever their share is.
const FEW: usize = 2;

pub(super) fn check(nodes: &[Value], configuration: &Configuration) -> Vec<Finding> {
    let limit = usize::from(configuration.brake.max_unreachable_percent);
    let lost: Vec<&str> = nodes.iter().filter(|node| is_lost(node)).filter_map(name).collect();
    if limit == 0 || lost.len() <= FEW || lost.len() * 100 <= nodes.len() * limit {
        return Vec::new();
    }
    let shown = lost.iter().take(10).copied().collect::<Vec<_>>().join(", ");
    vec![Finding::new(
        Severity::Warning,
        Check::Brake,
        format!("{} of {} nodes are unreachable: {shown}", lost.len(), nodes.len()),
        format!("brake.maxUnreachablePercent={limit} holds every recovery while it is so"),
        "Delete the Nodes of machines that do not come back, or raise brake.maxUnreachablePercent",
    )]
}

fn name(node: &Value) -> Option<&str> {
    node["metadata"]["name"].as_str()
}

fn is_lost(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.into_iter().flatten().any(|taint| taint["key"] == taints::UNREACHABLE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn more_lost_nodes_than_the_brake_allows_are_a_warning() {
        let node = |lost: bool| {
            let taints = if lost { json!([{"key": taints::UNREACHABLE}]) } else { json!([]) };
            json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})
        };
        let found = |lost: usize, all: usize| {
            let nodes: Vec<Value> = (0..all).map(|number| node(number < lost)).collect();
            check(&nodes, &Configuration::default()).len()
        };
        assert_eq!((found(0, 4), found(2, 4), found(3, 4), found(1, 1)), (0, 0, 1, 0));
    }
}
