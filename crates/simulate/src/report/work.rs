//! Work that was done, lost, and not done.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{
    play::{Millis, Record, RunLife, WorkloadFacts},
    scenario::Fault,
};

/// Pod-milliseconds of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkTotals {
    /// Work that counts.
    pub useful: Millis,
    /// Work that was done and is lost: since the last checkpoint of a pod that died, or on a node on which nothing made progress.
    pub lost: Millis,
    /// Work that was done twice.
    pub doubled: Millis,
    /// Time in which a pod should have run, and did not.
    pub down: Millis,
    /// The useful share of all of it; 1 if there was nothing to do.
    pub goodput: f64,
}

impl Default for WorkTotals {
    fn default() -> Self {
        Self::of(0, 0, 0, 0)
    }
}

impl WorkTotals {
    fn of(useful: Millis, lost: Millis, doubled: Millis, down: Millis) -> Self {
        Self { useful, lost, doubled, down, goodput: 0.0 }.measured()
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self::of(
            self.useful + other.useful,
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.down + other.down,
        )
    }

    #[expect(clippy::cast_precision_loss, reason = "a share of pod-milliseconds needs no 53 bits")]
    fn measured(self) -> Self {
        let all = self.useful + self.lost + self.doubled + self.down;
        let goodput = if all == 0 { 1.0 } else { (self.useful as f64 / all as f64 * 1e4).round() / 1e4 };
        Self { goodput, ..self }
    }
}

/// The work of each workload.
pub(super) fn totals(record: &Record) -> Vec<WorkTotals> {
    let mut runs: Vec<Vec<&RunLife>> = vec![Vec::new(); record.workloads.len()];
    for run in &record.runs {
        runs[record.pods[run.pod].workload].push(run);
    }
    record.workloads.iter().zip(&runs).map(|(facts, runs)| of_workload(record, facts, runs)).collect()
}

fn of_workload(record: &Record, facts: &WorkloadFacts, runs: &[&RunLife]) -> WorkTotals {
    let (mut ran, mut lost) = (0, 0);
    let mut done: BTreeSet<Option<&str>> = BTreeSet::new();
    for run in runs {
        let (from, to) = within(record, run);
        let took = to - from;
        ran += took;
        let idle = idle(record, run);
        let unit = record.pods[run.pod].unit.as_deref();
        lost += match run.ended {
            // A unit is done once; pods that are alike each do their own.
            Some((_, 0)) if facts.takes.is_some() => {
                if unit.is_none() || done.insert(unit) {
                    idle
                } else {
                    took
                }
            }
            Some((ended, _)) if facts.accumulates && ended <= record.end => {
                let since = facts.checkpoint_every.map_or(took, |every| (ended - run.from) % every);
                since.max(idle).min(took)
            }
            Some(_) | None => idle,
        };
    }
    let doubled: Millis = record
        .double_runs
        .iter()
        .filter(|it| it.workload == facts.name && !it.volume)
        .map(|it| it.lasted)
        .sum();
    // A copy that died is lost already: it must not count twice.
    let doubled = doubled.min(ran - lost);
    WorkTotals::of(ran - lost - doubled, lost, doubled, down(record, facts, runs))
}

/// The part of a run that is within the play.
fn within(record: &Record, run: &RunLife) -> (Millis, Millis) {
    let from = run.from.clamp(0, record.end);
    (from, run.ended.map_or(record.end, |(ended, _)| ended).clamp(from, record.end))
}

/// The time of a run in which its node was sick.
fn idle(record: &Record, run: &RunLife) -> Millis {
    let (from, to) = within(record, run);
    let sick = record
        .incidents
        .iter()
        .filter(|it| matches!(it.fault, Fault::Sick(_)) && it.nodes.contains(&run.node));
    let idle: Millis = sick.map(|it| (it.until.unwrap_or(record.end).min(to) - it.at.max(from)).max(0)).sum();
    idle.min(to - from)
}

/// A run from one time to another, and whether the work was done then.
type Spell = (Millis, Millis, bool);

/// Time in which units did not run. Work that ends is missed between its first start and its end; the rest from beginning to end.
fn down(record: &Record, facts: &WorkloadFacts, runs: &[&RunLife]) -> Millis {
    let mut units: BTreeMap<(Option<&str>, usize), Vec<Spell>> = BTreeMap::new();
    for run in runs {
        let pod = &record.pods[run.pod];
        let (from, to) = within(record, run);
        let alone = if pod.unit.is_some() { 0 } else { run.pod };
        let is_done = matches!(run.ended, Some((_, 0)));
        units.entry((pod.unit.as_deref(), alone)).or_default().push((from, to, is_done));
    }
    if facts.takes.is_some() {
        // Pods that are alike do not follow one another.
        let followed = units.into_iter().filter(|((unit, _), _)| unit.is_some());
        return followed.map(|(_, spells)| gaps(spells, record.end)).sum();
    }
    let ran: Millis = covered(units.into_values());
    (Millis::from(facts.units) * record.end - ran).max(0)
}

/// The time that units ran, each counted once at a time.
fn covered(units: impl Iterator<Item = Vec<Spell>>) -> Millis {
    units
        .map(|mut spells| {
            spells.sort_unstable();
            let (mut sum, mut reached) = (0, Millis::MIN);
            for (from, to, _) in spells {
                sum += (to - from.max(reached)).max(0);
                reached = reached.max(to);
            }
            sum
        })
        .sum()
}

/// The time between the first start of a unit and its end in which it did not run.
fn gaps(mut spells: Vec<Spell>, end: Millis) -> Millis {
    spells.sort_unstable();
    let Some(&(mut reached, ..)) = spells.first() else { return 0 };
    let mut sum = 0;
    for (from, to, is_done) in spells {
        sum += (from - reached).max(0);
        reached = reached.max(to);
        if is_done {
            return sum;
        }
    }
    sum + (end - reached)
}
