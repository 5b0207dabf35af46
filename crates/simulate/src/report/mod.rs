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

use serde::Serialize;

pub use html::{Page, html};
pub use losses::{Loss, Outcome, Phases};
pub use many::{Comparison, SeedLine, Shard, Spread, Summary};
pub use pareto::{Recommendation, recommend};
pub use stats::Percentiles;
pub use svg::svg;
pub use table::{comparison_table, report_table, span_text, summary_table};
pub use work::WorkTotals;

use crate::play::{Calls, DoubleRun, Held, Millis, Record, Stuck};

/// The report of one play.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    pub writes: std::collections::BTreeMap<String, u64>,
    /// What limits held back.
    pub held: Vec<Held>,
    /// What is stuck at the end.
    pub stuck: Vec<Stuck>,
    /// The time to recovery of each loss.
    #[serde(skip)]
    pub times: Vec<Option<Millis>>,
}

/// Losses, and how they ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureReport {
    /// When, in milliseconds after the beginning.
    pub at: Millis,
    /// When it was over.
    pub until: Option<Millis>,
    /// In which way.
    pub kind: &'static str,
    /// What failed.
    pub named: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// How the work on them recovered.
    pub recovery: Recovery,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReport {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
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
        let per_workload = work::totals(record);
        let failures = record.incidents.iter().enumerate().map(|(index, it)| FailureReport {
            at: it.at,
            until: it.until,
            kind: it.fault.name(),
            named: it.named.clone(),
            nodes: it.nodes.clone(),
            recovery: of(&|loss| loss.incident == index),
        });
        let workloads =
            record.workloads.iter().zip(&per_workload).enumerate().map(|(index, (facts, work))| {
                WorkloadReport {
                    name: facts.name.clone(),
                    kind: facts.kind,
                    recovery: of(&|loss| loss.workload == index),
                    work: work.clone(),
                }
            });
        let runs_twice = record.double_runs.iter();
        let is_violation = |it: &&DoubleRun| it.volume || !it.consented;
        let (given_up, nodes_in_vain) = vain::nodes(record);
        Self {
            policy: record.policy.clone(),
            seed: record.seed,
            played: record.end,
            total: of(&|_| true),
            failures: failures.collect(),
            workloads: workloads.collect(),
            work: per_workload.iter().fold(WorkTotals::default(), |sum, it| sum.plus(it)),
            // Two pods of one ordinal are told once, not once more for their volume.
            double_run: runs_twice.clone().filter(|it| !it.volume).map(|it| it.lasted).sum(),
            double_runs: record.double_runs.clone(),
            at_most_once_violations: count(runs_twice.filter(is_violation)),
            pods_killed_in_vain: vain::pods(record),
            nodes_killed_in_vain: nodes_in_vain,
            nodes_given_up: given_up,
            api_calls: record.calls.clone(),
            writes: record.writes.clone(),
            held: record.held.clone(),
            stuck: record.stuck.clone(),
            times: losses.iter().map(|loss| loss.outcome.after()).collect(),
        }
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
            phases: Phases::mean(replaced),
        }
    }
}

fn count<T>(all: impl Iterator<Item = T>) -> u64 {
    u64::try_from(all.count()).unwrap_or(u64::MAX)
}
