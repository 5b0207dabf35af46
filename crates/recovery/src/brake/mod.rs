//! The brake blocks all recoveries when too much fails at once.
//!
//! A cluster that seems to lose half its nodes has more likely lost the connection to them. So nothing is recovered
//! while too large a share of nodes is unreachable, nor right afterwards, and never more than a budget of pods in any
//! minute.

mod budget;
mod counting;
mod held;
mod passing;
mod share;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;
use salvor_api::config::BrakeLimits;
use salvor_api::names::{events, reasons};
use serde::{Deserialize, Serialize};

use self::budget::{Admitted, WINDOW, end_of_window};
use self::share::{Share, Stage};
use crate::event::{EventNote, EventType};
use crate::moments::after;
use crate::objects::ObjectRef;
use crate::step::{Disrupts, Step};

pub use counting::{Census, NodeStanding, WasReady};
pub use held::{Held, RepairLimit};
pub use share::{Engaged, NodeCounts, Transition};

/// The most pods on a node by default; the real number is not watched.
const PODS_OF_A_NODE: u32 = 110;

/// The most zones that are saved. They are saved in an annotation of the Lease, and a Lease that is too large cannot be
/// renewed.
const MOST_ZONES: usize = 64;

/// A zone is named by two labels, of 63 characters each at most.
const LONGEST_ZONE: usize = 127;

/// How much of the error about an unreadable saved state is kept.
const LONGEST_WHY: usize = 200;

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_WHY)].to_owned()
}

/// The current counts of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// None if the caller does not count the cluster.
    pub cluster: Option<NodeCounts>,
    /// By zone; none if the caller does not count zones.
    pub zones: Option<BTreeMap<String, NodeCounts>>,
    /// When the counts change without a change of a node.
    pub changes_at: Option<Timestamp>,
}

impl From<NodeCounts> for Tally {
    fn from(cluster: NodeCounts) -> Self {
        Self { cluster: Some(cluster), ..Self::default() }
    }
}

/// The saved state of the brake. It is stored outside the process, so it survives a restart and a change of leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrakeState {
    /// Admitted pods. Always written: a text without it was not written by a brake.
    admitted: Admitted,
    #[serde(default)]
    admitted_nodes: Admitted,
    /// The share of the cluster's nodes that is unreachable.
    #[serde(flatten)]
    cluster: Share,
    /// The same for each zone in which it matters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    zones: BTreeMap<String, Share>,
    /// When the saved state was found to be lost, while that still blocks everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lost: Option<Lost>,
}

/// The saved state could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lost {
    /// When that was found.
    pub since: Timestamp,
    pub why: String,
}

impl Lost {
    /// When a full budget period has passed.
    fn until(&self, limits: &BrakeLimits) -> Timestamp {
        after(self.since, WINDOW.max(limits.settle_period.into()))
    }

    /// The event that reports it, once.
    pub fn event(&self, regarding: ObjectRef) -> EventNote {
        EventNote {
            name: format!("salvor-brake-memory-lost.{}", self.since.as_second()),
            regarding,
            kind: EventType::Warning,
            reason: reasons::BRAKE_MEMORY_LOST.into(),
            action: events::HOLD_RECOVERIES,
            reporting_controller: events::POD_TERMINATION_CONTROLLER,
            message: format!(
                "Salvor does not know what was recovered lately ({}). The whole budget counts as spent; after that recoveries \
                 go on by themselves",
                self.why
            ),
        }
    }
}

impl BrakeState {
    /// Reads the state that an earlier process saved.
    ///
    /// # Errors
    /// The defect.
    pub fn read(kept: &str) -> Result<Self, String> {
        if !kept.trim_start().starts_with('{') {
            return Err("it is not a JSON object".into());
        }
        // The error may quote the whole input, and it is saved too.
        serde_json::from_str(kept).map_err(|error| shortened(&error.to_string()))
    }
}

/// One budget for all recoveries.
#[derive(Clone, Debug)]
pub struct Brake {
    limits: BrakeLimits,
    state: BrakeState,
}

impl Brake {
    /// A brake that continues from a saved state.
    pub fn new(limits: BrakeLimits, state: BrakeState) -> Self {
        Self { limits, state }
    }

    /// Continues from the state of another process, but keeps what blocks here and now.
    pub fn restore(&mut self, now: Timestamp, state: BrakeState) {
        let BrakeState { admitted, admitted_nodes, cluster, zones, lost } = state;
        let ours = &mut self.state;
        (ours.admitted, ours.admitted_nodes) = (admitted, admitted_nodes);
        ours.lost = lost.map(|lost| Lost { since: lost.since.min(now), why: shortened(&lost.why) });
        ours.cluster.restore(now, cluster);
        for (zone, share) in zones.into_iter().filter(|(zone, _)| zone.len() <= LONGEST_ZONE) {
            ours.zones.entry(zone).or_default().restore(now, share);
        }
        ours.admitted.forget(now);
        ours.admitted_nodes.forget(now);
    }

    /// The state of another process is lost: it may have spent the whole budget a moment ago.
    pub fn assume_spent(&mut self, now: Timestamp, why: impl Into<String>) {
        self.state.lost = Some(Lost { since: now, why: why.into() });
    }

    /// The loss of an earlier state, while it blocks everything.
    pub fn lost(&self, now: Timestamp) -> Option<&Lost> {
        let BrakeLimits { max_pods_per_minute, max_nodes_per_minute, max_unreachable_percent, .. } =
            self.limits;
        let limited = max_pods_per_minute > 0 || max_nodes_per_minute > 0 || max_unreachable_percent > 0;
        self.state.lost.as_ref().filter(|lost| limited && now < lost.until(&self.limits))
    }

    pub fn state(&self) -> &BrakeState {
        &self.state
    }

    /// The state to save for the next process. If there are too many zones, it keeps those that engaged last.
    pub fn state_to_save(&self) -> BrakeState {
        let mut state = self.state.clone();
        if state.zones.len() > MOST_ZONES {
            let mut zones: Vec<_> = state.zones.into_iter().collect();
            zones.sort_by_key(|(_, share)| Reverse(share.since()));
            zones.truncate(MOST_ZONES);
            state.zones = zones.into_iter().collect();
        }
        state
    }

    /// The engaged state, if too many nodes were unreachable at the last count.
    pub fn engaged(&self) -> Option<Engaged> {
        self.state.cluster.engaged()
    }

    /// The zones in which too many nodes were unreachable at the last count.
    pub fn zones_down(&self) -> BTreeSet<String> {
        let down = self.state.zones.iter().filter(|(_, share)| share.engaged().is_some());
        down.map(|(zone, _)| zone.clone()).collect()
    }

    /// True if nothing is recovered because too many nodes are, or were a moment ago, unreachable.
    pub fn holds_all(&self, now: Timestamp) -> bool {
        matches!(self.state.cluster.stage(now, &self.limits), Stage::Engaged(_) | Stage::Settling { .. })
    }

    /// Records the counts of nodes, and returns a change of what is allowed in the whole cluster.
    ///
    /// Call it for every count: a skipped count cannot show that the number of lost nodes fell.
    pub fn observe(&mut self, now: Timestamp, tally: impl Into<Tally>) -> Option<Transition> {
        let tally = tally.into();
        if let Some(counts) = &tally.zones {
            self.state.zones.retain(|zone, _| counts.contains_key(zone));
            for (zone, nodes) in counts {
                let mut share = self.state.zones.get(zone).copied().unwrap_or_default();
                share.observe(now, *nodes, &self.limits);
                if share.is_free() {
                    self.state.zones.remove(zone);
                } else {
                    self.state.zones.insert(zone.clone(), share);
                }
            }
        }
        self.state.cluster.observe(now, tally.cluster?, &self.limits)
    }

    /// When what is allowed in the whole cluster changes without a change of a node.
    pub fn changes_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.state.cluster.changes_at(now, &self.limits)
    }

    /// Checks whether this many more pods may be recovered now, without counting them.
    ///
    /// A request larger than the whole budget passes if nothing was admitted in the last minute: it cannot be split.
    ///
    /// # Errors
    /// The limit that blocks them.
    pub fn check(&self, now: Timestamp, pods: u32) -> Result<(), Held> {
        self.check_all(now, &Disruption { pods, ..Disruption::default() })
    }

    /// Admits this many more pods if they may be recovered now; they count from now on.
    ///
    /// # Errors
    /// The limit that blocks them.
    pub fn admit(&mut self, now: Timestamp, pods: u32) -> Result<(), Held> {
        self.admit_all(now, &Disruption { pods, ..Disruption::default() })
    }

    fn check_all(&self, now: Timestamp, much: &Disruption<'_>) -> Result<(), Held> {
        let BrakeLimits { max_pods_per_minute, max_nodes_per_minute, .. } = self.limits;
        if let Some(lost) = self.lost(now) {
            return Err(Held::MemoryLost { why: lost.why.clone(), until: lost.until(&self.limits) });
        }
        if much.outage == Outage::Holds {
            self.check_shares(now, much)?;
        }
        if let Some(until) = self.state.admitted.full_until(max_pods_per_minute, now, much.pods) {
            return Err(Held::MaxPodsPerMinute { max_pods_per_minute, until });
        }
        match self.state.admitted_nodes.full_until(max_nodes_per_minute, now, much.nodes) {
            None => Ok(()),
            Some(until) => Err(Held::MaxNodesPerMinute { max_nodes_per_minute, until }),
        }
    }

    fn check_shares(&self, now: Timestamp, much: &Disruption<'_>) -> Result<(), Held> {
        let max_unreachable_percent = self.limits.max_unreachable_percent;
        match self.state.cluster.stage(now, &self.limits) {
            Stage::Engaged(engaged) => {
                return Err(Held::MaxUnreachablePercent { engaged, max_unreachable_percent });
            }
            held => let_through(held, now, much, None)?,
        }
        let Some((zone, share)) = much.zone.and_then(|zone| self.state.zones.get_key_value(zone)) else {
            return Ok(());
        };
        match share.stage(now, &self.limits) {
            Stage::Engaged(Engaged { nodes, .. }) => {
                let zone = zone.clone();
                Err(Held::ZoneDown { zone, nodes, max_unreachable_percent })
            }
            held => let_through(held, now, &Disruption { pods: 0, ..*much }, Some(zone)),
        }
    }

    fn admit_all(&mut self, now: Timestamp, much: &Disruption<'_>) -> Result<(), Held> {
        let state = &mut self.state;
        state.admitted.forget(now);
        state.admitted_nodes.forget(now);
        if self.lost(now).is_none() {
            self.state.lost = None;
        }
        let state = &mut self.state;
        state.cluster.forget_the_future(now);
        state.zones.values_mut().for_each(|share| share.forget_the_future(now));
        self.check_all(now, much)?;
        let (limits, state) = (&self.limits, &mut self.state);
        state.admitted.add(limits.max_pods_per_minute, now, much.pods);
        state.admitted_nodes.add(limits.max_nodes_per_minute, now, much.nodes);
        state.cluster.passed(now, limits, much.pods, much.nodes);
        if let Some(share) = much.zone.and_then(|zone| state.zones.get_mut(zone)) {
            share.passed(now, limits, 0, much.nodes);
        }
        Ok(())
    }

    /// Records that steps admitted earlier are carried out now, after a failed request or a wait that the live objects
    /// required. Otherwise they would share a minute with the steps that are admitted once their own admission has
    /// expired. True if the state changes.
    pub fn carried_out<S: Step>(&mut self, admitted: Timestamp, now: Timestamp, steps: &[S]) -> bool {
        let Some(Disruption { pods, nodes, .. }) = disruption(steps, Outage::Holds) else { return false };
        let (limits, state) = (&self.limits, &mut self.state);
        let pods = state.admitted.carried_out(limits.max_pods_per_minute, admitted, now, pods);
        let nodes = state.admitted_nodes.carried_out(limits.max_nodes_per_minute, admitted, now, nodes);
        pods || nodes
    }

    /// Whether steps that were admitted, and counted, may still be carried out.
    ///
    /// # Errors
    /// The limit that blocks them.
    pub fn check_again<S: Step>(&self, now: Timestamp, steps: &[S], outage: Outage) -> Result<(), Held> {
        let nothing_more = disruption(steps, outage).map(|much| Disruption { pods: 0, nodes: 0, ..much });
        nothing_more.map_or(Ok(()), |much| self.check_all(now, &much))
    }
}

fn let_through(
    stage: Stage,
    now: Timestamp,
    much: &Disruption<'_>,
    zone: Option<&String>,
) -> Result<(), Held> {
    let zone = zone.cloned();
    match stage {
        Stage::Free | Stage::Engaged(_) => Ok(()),
        Stage::Settling { lost, until } => Err(Held::Settling { zone, lost, until }),
        Stage::Gradual(gradual) => match gradual.full_until(now, much.pods, much.nodes) {
            None => Ok(()),
            Some(until) => Err(Held::Gradual { zone, until }),
        },
    }
}

/// The pods and nodes that a decision disrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Disruption<'a> {
    pods: u32,
    nodes: u32,
    /// The zone of the node whose eviction begins.
    zone: Option<&'a str>,
    outage: Outage,
}

/// Whether an outage blocks a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outage {
    /// An outage blocks it: if many nodes are unreachable, the network has probably failed.
    #[default]
    Holds,
    /// An outage does not block it: a person knows that this node is off. Budgets still count.
    Ignored,
}

/// Until when an admission counts.
pub fn counts_until(admitted: Timestamp) -> Timestamp {
    end_of_window(admitted.as_second())
}

/// The pods and nodes whose recovery the steps begin; none if the steps disrupt nothing.
fn disruption<S: Step>(steps: &[S], outage: Outage) -> Option<Disruption<'_>> {
    steps.iter().any(Step::is_disruptive).then(|| {
        let mut much = Disruption { outage, ..Disruption::default() };
        for step in steps.iter().flat_map(Step::steps) {
            let pods = match step.effect().disrupts {
                Disrupts::Nothing | Disrupts::WhatWasBegun => 0,
                Disrupts::Pods(pods) | Disrupts::Workload { pods } => pods,
                Disrupts::NodeWithAllPods => PODS_OF_A_NODE,
                Disrupts::Node { zone } => {
                    much.nodes = much.nodes.saturating_add(1);
                    much.zone = Some(zone);
                    0
                }
            };
            much.pods = much.pods.saturating_add(pods);
        }
        much
    })
}

#[cfg(test)]
mod tests;
