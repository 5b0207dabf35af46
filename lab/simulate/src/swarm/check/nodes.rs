//! Checks that repairs stay within their budget and hit only unhealthy nodes, and that each node has one actor.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{annotations, taints};
use salvor_apiserver::ChangeKind;
use serde_json::Value;

use super::{
    Seen,
    forces::is_taken_out_of_service,
    invariants::{Invariant, Violation},
    known::{Known, condition, has_taint},
    text,
};
use crate::swarm::{
    deed::{Call, Deed, Move},
    objects::SICK,
    plan::Plan,
};

/// A read of a node may be this old.
const LOOK_HOLDS: SignedDuration = SignedDuration::from_secs(1);

/// A node that is healthy for no longer than this counts as continuously unhealthy: a minute by `repair.healthyAfter`,
/// and the rest because faults may keep Salvor from seeing that it is healthy. A pause, in which Salvor records
/// nothing, is added.
const LONGEST_BREAK: SignedDuration = SignedDuration::from_mins(5);

/// A period in which a node is unhealthy.
#[derive(Clone, Copy)]
struct Sickness {
    since: Timestamp,
    /// Since when the node is healthy again; `None` while it is unhealthy.
    well: Option<Timestamp>,
}

/// The repairs in progress, and the nodes that are unhealthy.
#[derive(Clone)]
pub(super) struct Nodes {
    budget: usize,
    toleration: SignedDuration,
    longest_break: SignedDuration,
    evicts: bool,
    /// The last unhealthy period of each node, by name.
    sick: BTreeMap<String, Sickness>,
    /// Since when the eviction of a node is requested, by name.
    asked: BTreeMap<String, Timestamp>,
    /// UIDs of NodeClaims that we have deleted and that are not gone.
    going: BTreeSet<String>,
}

impl Nodes {
    pub(super) fn new(plan: &Plan) -> Self {
        let settings = &plan.settings;
        // A process that starts while all responses carry a time in the future has no other clock to compare with.
        let is_all_ahead = |deed: &Deed| matches!(deed, Deed::Clock { call: Call::Any, ahead: 1.., .. });
        let toleration = if plan.has(is_all_ahead) { 0 } else { settings.toleration };
        let pause =
            |it: &Move| if let Deed::Pause { lasts } = it.deed { i64::try_from(lasts).ok() } else { None };
        let paused: i64 = plan.moves.iter().filter_map(pause).sum();
        Self {
            budget: settings.budget,
            toleration: SignedDuration::from_secs(toleration.into()),
            longest_break: LONGEST_BREAK + SignedDuration::from_secs(paused),
            evicts: settings.eviction,
            sick: BTreeMap::new(),
            asked: BTreeMap::new(),
            going: BTreeSet::new(),
        }
    }

    pub(super) fn see(&mut self, seen: &Seen<'_>, known: &Known, wrong: &mut Vec<Violation>) {
        match seen.resource {
            "nodes" => {
                if seen.by.is_some() && is_taken_out_of_service(seen) {
                    self.one_actor(seen, seen.name(), known, wrong);
                }
                self.see_node(seen);
            }
            "nodeclaims" => self.see_claim(seen, known, wrong),
            _ => {}
        }
    }

    fn see_node(&mut self, seen: &Seen<'_>) {
        let there = seen.kind != ChangeKind::Removed;
        let note = |of: &mut BTreeMap<String, Timestamp>, holds: bool| {
            if there && holds {
                of.entry(seen.name().to_owned()).or_insert(seen.at);
            } else {
                of.remove(seen.name());
            }
        };
        note(&mut self.asked, has_taint(seen.object, taints::FORCE_EVICTION));
        if !there {
            self.sick.remove(seen.name());
        } else if condition(seen.object, SICK) == Some("False") {
            let sickness = Sickness { since: seen.at, well: None };
            let known = self.sick.entry(seen.name().to_owned()).or_insert(sickness);
            let is_over =
                known.well.take().is_some_and(|well| seen.at.duration_since(well) > self.longest_break);
            if is_over {
                *known = sickness;
            }
        } else if let Some(known) = self.sick.get_mut(seen.name()) {
            known.well.get_or_insert(seen.at);
        }
    }

    fn see_claim(&mut self, seen: &Seen<'_>, known: &Known, wrong: &mut Vec<Violation>) {
        let uid = seen.uid().to_owned();
        if seen.kind == ChangeKind::Removed {
            self.going.remove(&uid);
            return;
        }
        let Some(write) = seen.by.filter(|write| write.sent.method == Method::DELETE && seen.ends()) else {
            return;
        };
        self.going.insert(uid);
        if self.going.len() > self.budget {
            let text =
                format!("{} NodeClaims are being deleted with a budget of {}", self.going.len(), self.budget);
            wrong.push(Violation::new(Invariant::RepairBudget, seen.at, text));
        }
        let node = text(&seen.object["status"]["nodeName"]).to_owned();
        let text = match self.sick.get(&node) {
            None => Some("not sick".to_owned()),
            // A read that is recent enough may have shown it unhealthy.
            Some(Sickness { well: Some(well), .. }) if write.sent.at.duration_since(*well) > LOOK_HOLDS => {
                Some(format!("well since {well}"))
            }
            Some(Sickness { since, .. }) if write.sent.at.duration_since(*since) < self.toleration => {
                Some(format!("sick only since {since}"))
            }
            Some(_) => None,
        };
        if let Some(text) = text {
            let text = format!("{} was deleted, and {node} is {text}", seen.name());
            wrong.push(Violation::new(Invariant::RepairSick, seen.at, text));
        }
        let is_read = known.looked(&write.sent, &format!("/api/v1/nodes/{node}"));
        if !is_read {
            let text = format!("{} was deleted without a look at {node} in the second before", seen.name());
            wrong.push(Violation::new(Invariant::LookAge, seen.at, text));
        }
        self.one_actor(seen, &node, known, wrong);
    }

    /// Nothing else begins on a node whose eviction is requested or in progress.
    fn one_actor(&self, seen: &Seen<'_>, node: &str, known: &Known, wrong: &mut Vec<Violation>) {
        let Some(write) = seen.by.filter(|_| self.evicts) else { return };
        let asked = self.asked.get(node).filter(|since| write.sent.at.duration_since(**since) > LOOK_HOLDS);
        let progress = known
            .cluster_object("nodes", node)
            .map(|it| &it["metadata"]["annotations"][annotations::EVICTION]);
        let is_finished = progress.and_then(Value::as_str).is_some_and(|it| it.contains("\"finished\""));
        if let Some(since) = asked
            && !is_finished
        {
            let text = format!(
                "{} {} at {}, and the eviction of {node} is asked for since {since}",
                write.sent.method, write.sent.path, write.sent.at
            );
            wrong.push(Violation::new(Invariant::OneActor, seen.at, text));
        }
    }
}

/// True if this change begins the eviction of a node.
pub(super) fn begins_eviction(seen: &Seen<'_>) -> bool {
    let has_begun = |node: &Value| !node["metadata"]["annotations"][annotations::EVICTION].is_null();
    has_begun(seen.object) && !seen.before.is_some_and(has_begun)
}
