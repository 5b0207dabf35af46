//! From what happened to numbers: pure functions over a [`Record`].

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

/// The report of one play.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The policy.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// The length of the play, in milliseconds.
    pub played: Millis,
    /// Everything together.
    pub total: Recovery,
    /// Each failure, in order.
    pub failures: Vec<FailureReport>,
    /// Each workload.
    pub workloads: Vec<WorkloadReport>,
    /// All work together.
    pub work: WorkTotals,
    /// The same work running twice, in milliseconds.
    pub double_run: Millis,
    /// Each time that it did.
    pub double_runs: Vec<DoubleRun>,
    /// Work ran twice whose owner has not opted in to that, or two pods could write to one volume.
    pub at_most_once_violations: u64,
    /// Pods that were killed although their machine was back soon after.
    pub pods_killed_in_vain: u64,
    /// Nodes that were given up although their machine was back soon after, or had not failed.
    pub nodes_killed_in_vain: u64,
    /// Nodes that were given up: declared out of service, or replaced.
    pub nodes_given_up: u64,
    /// Requests of the operator.
    pub api_calls: Calls,
    /// Writes of the operator, by action and result.
    pub writes: BTreeMap<String, u64>,
    /// What limits held back.
    pub held: Vec<Held>,
    /// What is stuck at the end.
    pub stuck: Vec<Stuck>,
    /// Each unit of work that a failure hit.
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
    /// Time to recovery.
    pub time_to_recovery: Percentiles,
    /// The mean time of each phase, of those that were replaced.
    pub phases: Phases,
    /// Percentiles of each phase, of the same.
    pub phase_percentiles: PhasePercentiles,
}

/// A unit of work that a failure hit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossReport {
    /// The position of the failure.
    pub failure: usize,
    /// The workload.
    pub workload: String,
    /// The pod.
    pub pod: String,
    /// The node that it ran on.
    pub node: String,
    /// `replaced`, `resumed` or `notRecovered`.
    pub outcome: Cow<'static, str>,
    /// The time until the work ran again; none if it did not before the end.
    pub time_to_recovery: Option<Millis>,
    /// The pod that took over, and the same time in phases: they sum up to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The phases.
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

/// One failure. Harm that cannot be laid to one is in the totals only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureReport {
    /// When, in milliseconds after the beginning.
    pub at: Millis,
    /// When it was over.
    pub until: Option<Millis>,
    /// In which way.
    pub kind: Cow<'static, str>,
    /// What failed.
    pub named: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// How the work on them recovered.
    pub recovery: Recovery,
    /// Work that was lost on them, in pod-milliseconds.
    pub work_lost: Millis,
    /// Work of theirs that ran elsewhere as well, in milliseconds.
    pub double_run: Millis,
    /// Work of theirs ran twice that must not.
    pub at_most_once_violations: u64,
    /// Pods of theirs that were killed although their machine was back soon after.
    pub pods_killed_in_vain: u64,
    /// Those of them that were given up although they were back soon after.
    pub nodes_killed_in_vain: u64,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReport {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Cow<'static, str>,
    /// How it recovered.
    pub recovery: Recovery,
    /// Its work.
    pub work: WorkTotals,
}

impl Report {
    /// The report of a play.
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

    /// The time to recovery of each loss.
    pub fn times(&self) -> Vec<Option<Millis>> {
        self.losses.iter().map(|loss| loss.time_to_recovery).collect()
    }

    /// Kills in vain, of pods and nodes.
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

/// Work ran twice whose owner has not opted in to that, or two pods could write to one volume.
fn is_violation(it: &DoubleRun) -> bool {
    it.volume || !it.consented
}

/// What failures have done, by the position of each.
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
        // The last failure of the node by then. Failures are in order of time.
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
