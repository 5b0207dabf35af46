//! Reads chapters, and resolves targets to nodes.

use std::collections::BTreeSet;

use serde_saphyr::Spanned;

use super::values::{bad, duration, line};
use crate::scenario::{
    ACCELERATOR, Condition, Deed, Fault, Node, Scenario, ScenarioError, Step, accelerator_condition,
    file::{self, Target},
};

impl Scenario {
    pub(super) fn step(&self, at: &str, spanned: Spanned<file::Step>) -> Result<Step, ScenarioError> {
        let at_line = line(&spanned);
        let file::Step { after, title, say, expect, crash, partition, heal, reboot, fail_accelerator } =
            spanned.value;
        let deeds = [
            (Deed::Fault(Fault::Crash), crash),
            (Deed::Fault(Fault::Partition), partition),
            (Deed::Heal, heal),
            (Deed::Fault(Fault::Reboot), reboot),
            (Deed::Fault(Fault::Sick(accelerator_condition())), fail_accelerator),
        ];
        let mut strike = None;
        for (deed, target) in deeds {
            let Some(target) = target else { continue };
            if strike.is_some() {
                let problem =
                    "more than one of crash, partition, heal, reboot and failAccelerator: make a step of each".into();
                return Err(bad(at_line, at, problem));
            }
            let nodes = self.struck(&format!("{at}.{}", deed.name()), &deed, &target)?;
            strike = Some((deed, nodes));
        }
        let expect_recovered = match &expect {
            None => false,
            Some(text) if text.value == "recovered" => true,
            Some(text) => {
                let problem =
                    format!("{:?} cannot be expected: write recovered, or leave it out", text.value);
                return Err(bad(line(text), &format!("{at}.expect"), problem));
            }
        };
        Ok(Step { after: duration(&after, &format!("{at}.after"))?, title, say, expect_recovered, strike })
    }

    fn struck(&self, at: &str, deed: &Deed, target: &Spanned<Target>) -> Result<Vec<String>, ScenarioError> {
        let nodes = self.nodes_of(at, target)?;
        match deed {
            Deed::Fault(Fault::Sick(_)) => {
                let gpus: Vec<String> = nodes.into_iter().filter(|node| self.has_accelerator(node)).collect();
                if gpus.is_empty() {
                    let field = if target.value.zone.is_some() { "zone" } else { "node" };
                    let all: Vec<&str> = self
                        .nodes
                        .iter()
                        .map(|node| node.name.as_str())
                        .filter(|node| self.has_accelerator(node))
                        .collect();
                    let problem = match (all.first(), all.last()) {
                        (Some(first), Some(last)) => {
                            format!("no node of these has an accelerator; {first} to {last} have")
                        }
                        _ => "no node has an accelerator: write gpuNodes, such as gpuNodes: 2".into(),
                    };
                    return Err(bad(line(target), &format!("{at}.{field}"), problem));
                }
                Ok(gpus)
            }
            Deed::Fault(_) | Deed::Heal => Ok(nodes),
        }
    }

    fn has_accelerator(&self, node: &str) -> bool {
        let pool = self.node(node).and_then(|node| self.pool(&node.pool));
        pool.is_some_and(|pool| pool.capacity.contains_key(ACCELERATOR))
    }

    /// The nodes that a target names, in order.
    pub(in crate::scenario) fn nodes_of(
        &self,
        at: &str,
        target: &Spanned<Target>,
    ) -> Result<Vec<String>, ScenarioError> {
        let at_line = line(target);
        let Target { zone, node, pool, rack, spot } = &target.value;
        let written = [zone.is_some(), node.is_some(), pool.is_some(), rack.is_some(), spot.is_some()];
        if !written.contains(&true) || (node.is_some() && written.iter().filter(|it| **it).count() > 1) {
            let problem =
                "write either {zone: NAME} or {node: NAME}, or {pool: NAME}, {rack: NAME} or {spot: true}";
            return Err(bad(at_line, at, problem.into()));
        }
        if let Some(node) = node {
            if self.node(node).is_some() {
                return Ok(vec![node.clone()]);
            }
            return Err(bad(
                at_line,
                &format!("{at}.node"),
                format!("there is no node {node:?}; there are {}", self.spans()),
            ));
        }
        let known =
            |of: fn(&Node) -> Option<&str>| -> BTreeSet<&str> { self.nodes.iter().filter_map(of).collect() };
        let checks: [(&str, &Option<String>, BTreeSet<&str>); 3] = [
            ("zone", zone, known(|node| Some(&node.zone))),
            ("pool", pool, known(|node| Some(&node.pool))),
            ("rack", rack, known(|node| node.rack.as_deref())),
        ];
        for (field, asked, known) in checks {
            if let Some(asked) = asked
                && !known.contains(asked.as_str())
            {
                let names: Vec<&str> = known.into_iter().collect();
                let there_are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let problem = format!("there is no {field} {asked:?}; there are {there_are}");
                return Err(bad(at_line, &format!("{at}.{field}"), problem));
            }
        }
        let is_asked = |asked: &Option<String>, has: Option<&str>| {
            asked.as_deref().is_none_or(|asked| has == Some(asked))
        };
        let fits = |it: &&Node| {
            is_asked(zone, Some(&it.zone))
                && is_asked(pool, Some(&it.pool))
                && is_asked(rack, it.rack.as_deref())
                && spot.is_none_or(|spot| self.pool(&it.pool).is_some_and(|pool| pool.spot == spot))
        };
        let nodes: Vec<String> = self.nodes.iter().filter(fits).map(|node| node.name.clone()).collect();
        if nodes.is_empty() {
            return Err(bad(at_line, at, "no node fits all of that".into()));
        }
        Ok(nodes)
    }

    /// The names of nodes, from the first to the last of each pool.
    fn spans(&self) -> String {
        let spans = self.pools.iter().map(|pool| {
            let mut names: Vec<&str> = self
                .nodes
                .iter()
                .filter(|node| node.pool == pool.name)
                .map(|node| node.name.as_str())
                .collect();
            names.sort_unstable();
            format!("{} to {}", names.first().unwrap_or(&""), names.last().unwrap_or(&""))
        });
        spans.collect::<Vec<_>>().join(", and ")
    }
}

/// The condition of a failure, with defaults for missing fields.
pub(in crate::scenario) fn condition(written: Option<&file::Condition>) -> Condition {
    match written {
        Some(it) => Condition { kind: it.kind.clone(), status: it.status.clone(), reason: it.reason.clone() },
        None => accelerator_condition(),
    }
}
