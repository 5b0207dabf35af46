//! Computes numbers from a play: pure functions over a [`Record`].

mod html;
mod losses;
mod many;
mod pareto;
mod stats;
mod svg;
mod table;
#[cfg(test)]
mod tests;
mod vain;
mod work;

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};

pub use html::{Page, html};
pub use losses::{Loss, Outcome, PhasePercentiles, Phases};
pub use many::{Comparison, Part, SeedLine, Shard, Spread, Summary};
pub use pareto::{Recommendation, recommend};
pub use stats::Percentiles;
pub use svg::svg;
pub use table::{comparison_table, report_table, span_text, summary_table};
pub use work::WorkTotals;

use self::vain::Vain;
use crate::play::{Calls, DoubleRun, Held, Millis, Record, Stuck};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub policy: String,
    pub seed: u64,
    /// The length of the play.
    pub played: Millis,
    pub total: Recovery,
    pub failures: Vec<FailureReport>,
    pub workloads: Vec<WorkloadReport>,
    pub work: WorkTotals,
    /// How long the same work ran twice.
    pub double_run: Millis,
    pub double_runs: Vec<DoubleRun>,
    /// How often work ran twice although its owner has not opted in, or two pods could write to one volume.
    pub at_most_once_violations: u64,
    /// Pods that were killed although their machine was back soon after.
    pub pods_killed_in_vain: u64,
    /// Nodes that were given up although their machine was back soon after, or had not failed.
    pub nodes_killed_in_vain: u64,
    /// Nodes that were declared out of service, or replaced.
    pub nodes_given_up: u64,
    pub api_calls: Calls,
    /// Writes of the operator, by action and result.
    pub writes: BTreeMap<String, u64>,
    pub held: Vec<Held>,
    pub stuck: Vec<Stuck>,
    pub losses: Vec<LossReport>,
}

/// Losses, and how they ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// Units of work that a failure hit.
    pub lost: u64,
    /// Those that a new pod took over.
    pub replaced: u64,
    /// Those whose machine came back in time.
    pub resumed: u64,
    /// Those that did not run again before the end.
    pub not_recovered: u64,
    pub time_to_recovery: Percentiles,
    /// The mean time of each phase, over the replaced units.
    pub phases: Phases,
    /// Percentiles of each phase, over the same units.
    pub phase_percentiles: PhasePercentiles,
}

/// A unit of work that a failure hit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossReport {
    /// The index of the failure.
    pub failure: usize,
    pub workload: String,
    pub pod: String,
    pub node: String,
    /// `replaced`, `resumed` or `notRecovered`.
    pub outcome: Cow<'static, str>,
    /// The time until the work ran again; `None` if it did not before the end.
    pub time_to_recovery: Option<Millis>,
    /// The pod that took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The phases of `time_to_recovery`, which add up to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Phases>,
}

impl LossReport {
    fn of(record: &Record, loss: &Loss) -> Self {
        let pod = &record.pods[loss.pod];
        let (outcome, by, phases) = match &loss.outcome {
            Outcome::Replaced { by, phases, .. } => {
                ("replaced", Some(record.pods[*by].name.clone()), Some(phases.clone()))
            }
            Outcome::Resumed { .. } => ("resumed", None, None),
            Outcome::NotRecovered => ("notRecovered", None, None),
        };
        Self {
            failure: loss.incident,
            workload: record.workloads[loss.workload].name.clone(),
            pod: pod.name.clone(),
            node: pod.node.clone().unwrap_or_default(),
            outcome: Cow::Borrowed(outcome),
            time_to_recovery: loss.outcome.after(),
            by,
            phases,
        }
    }
}

/// One failure. Damage that cannot be attributed to one failure is only in the totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureReport {
    /// Milliseconds after the beginning.
    pub at: Millis,
    /// When it was over.
    pub until: Option<Millis>,
    pub kind: Cow<'static, str>,
    pub named: String,
    pub nodes: Vec<String>,
    /// How the work on its nodes recovered.
    pub recovery: Recovery,
    /// Work that was lost on its nodes, in pod-milliseconds.
    pub work_lost: Millis,
    /// How long work of its nodes also ran elsewhere.
    pub double_run: Millis,
    /// How often work of its nodes ran twice that must not.
    pub at_most_once_violations: u64,
    /// Pods on its nodes that were killed although their machine was back soon after.
    pub pods_killed_in_vain: u64,
    /// Nodes among them that were given up although they were back soon after.
    pub nodes_killed_in_vain: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReport {
    pub name: String,
    pub kind: Cow<'static, str>,
    pub recovery: Recovery,
    pub work: WorkTotals,
}

impl Report {
    pub fn of(record: &Record) -> Self {
        let losses = losses::losses(record);
        let of = |keep: &dyn Fn(&Loss) -> bool| Recovery::of(losses.iter().filter(|loss| keep(loss)));
        let works = work::totals(record);
        let vain = Vain::of(record);
        let harm = Harm::of(record, &works);
        let failures = record.incidents.iter().enumerate().map(|(index, it)| FailureReport {
            at: it.at,
            until: it.until,
            kind: Cow::Borrowed(it.fault.name()),
            named: it.named.clone(),
            nodes: it.nodes.clone(),
            recovery: of(&|loss| loss.incident == index),
            work_lost: harm.lost.get(&index).copied().unwrap_or_default(),
            double_run: harm.doubled.get(&index).copied().unwrap_or_default(),
            at_most_once_violations: harm.violations.get(&index).copied().unwrap_or_default(),
            pods_killed_in_vain: count(vain.pods.iter().filter(|by| **by == index)),
            nodes_killed_in_vain: count(vain.nodes.iter().filter(|by| **by == Some(index))),
        });
        let workloads =
            record.workloads.iter().zip(&works).enumerate().map(|(index, (facts, work))| WorkloadReport {
                name: facts.name.clone(),
                kind: Cow::Borrowed(facts.kind),
                recovery: of(&|loss| loss.workload == index),
                work: work.totals.clone(),
            });
        Self {
            policy: record.policy.clone(),
            seed: record.seed,
            played: record.end,
            total: of(&|_| true),
            failures: failures.collect(),
            workloads: workloads.collect(),
            work: works.iter().fold(WorkTotals::default(), |sum, it| sum.plus(&it.totals)),
            double_run: record.double_runs.iter().map(|it| it.lasted).sum(),
            double_runs: record.double_runs.clone(),
            at_most_once_violations: count(record.double_runs.iter().filter(|it| is_violation(it))),
            pods_killed_in_vain: count(vain.pods.iter()),
            nodes_killed_in_vain: count(vain.nodes.iter()),
            nodes_given_up: vain.given_up,
            api_calls: record.calls.clone(),
            writes: record.writes.clone(),
            held: record.held.clone(),
            stuck: record.stuck.clone(),
            losses: losses.iter().map(|loss| LossReport::of(record, loss)).collect(),
        }
    }

    pub fn times(&self) -> Vec<Option<Millis>> {
        self.losses.iter().map(|loss| loss.time_to_recovery).collect()
    }

    /// Needless kills of pods and nodes.
    pub fn killed_in_vain(&self) -> u64 {
        self.pods_killed_in_vain + self.nodes_killed_in_vain
    }
}

impl Recovery {
    fn of<'a>(losses: impl Iterator<Item = &'a Loss>) -> Self {
        let losses: Vec<&Loss> = losses.collect();
        let replaced = losses.iter().filter_map(|loss| match &loss.outcome {
            Outcome::Replaced { phases, .. } => Some(phases),
            Outcome::Resumed { .. } | Outcome::NotRecovered => None,
        });
        let is_resumed = |loss: &&&Loss| matches!(loss.outcome, Outcome::Resumed { .. });
        let is_open = |loss: &&&Loss| loss.outcome == Outcome::NotRecovered;
        Self {
            lost: count(losses.iter()),
            replaced: count(replaced.clone()),
            resumed: count(losses.iter().filter(is_resumed)),
            not_recovered: count(losses.iter().filter(is_open)),
            time_to_recovery: Percentiles::of(losses.iter().map(|loss| loss.outcome.after())),
            phases: Phases::mean(replaced.clone()),
            phase_percentiles: PhasePercentiles::of(replaced),
        }
    }
}

/// Work ran twice although its owner has not opted in, or two pods could write to one volume.
fn is_violation(it: &DoubleRun) -> bool {
    it.volume || !it.consented
}

/// The damage of each failure, by its index.
#[derive(Debug, Default)]
struct Harm {
    lost: BTreeMap<usize, Millis>,
    doubled: BTreeMap<usize, Millis>,
    violations: BTreeMap<usize, u64>,
}

impl Harm {
    fn of(record: &Record, works: &[work::Work]) -> Self {
        let mut on_node: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (position, incident) in record.incidents.iter().enumerate() {
            incident.nodes.iter().for_each(|node| on_node.entry(node).or_default().push(position));
        }
        // The last failure of the node by then. Failures are ordered by time.
        let cause = |node: &str, at: Millis| {
            let own = on_node.get(node).into_iter().flatten().copied();
            own.take_while(|position| record.incidents[*position].at <= at).last()
        };
        let mut harm = Self::default();
        for (run, lost) in works.iter().flat_map(|work| &work.lost) {
            let run = &record.runs[*run];
            let at = run.ended.map_or(record.end, |(ended, _)| ended);
            if let Some(cause) = cause(&run.node, at) {
                *harm.lost.entry(cause).or_default() += lost;
            }
        }
        for it in &record.double_runs {
            if let Some(cause) = cause(&it.node, it.since) {
                *harm.doubled.entry(cause).or_default() += it.lasted;
                *harm.violations.entry(cause).or_default() += u64::from(is_violation(it));
            }
        }
        harm
    }
}

fn count<T>(all: impl Iterator<Item = T>) -> u64 {
    u64::try_from(all.count()).unwrap_or(u64::MAX)
}
