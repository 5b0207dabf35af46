//! Computes the work that was done, lost, and not done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    play::{Ended, Millis, Record, RunLife, WorkloadFacts},
    scenario::Fault,
};

/// Pod-milliseconds of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkTotals {
    /// Work that counts.
    pub useful: Millis,
    /// Work that was done and is lost: since the last checkpoint of a pod that died, or on a node on which nothing made
    /// progress. Work that ran in two pods at once is not included.
    pub lost: Millis,
    pub doubled: Millis,
    /// Time in which a pod should have run but did not.
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

#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) totals: WorkTotals,
    /// The work that each run lost, by the index of the run.
    pub(super) lost: BTreeMap<usize, Millis>,
}

pub(super) fn totals(record: &Record) -> Vec<Work> {
    let mut runs: Vec<Vec<usize>> = vec![Vec::new(); record.workloads.len()];
    for (position, run) in record.runs.iter().enumerate() {
        runs[record.pods[run.pod].workload].push(position);
    }
    record.workloads.iter().zip(&runs).map(|(facts, runs)| of_workload(record, facts, runs)).collect()
}

fn of_workload(record: &Record, facts: &WorkloadFacts, runs: &[usize]) -> Work {
    let mut units: BTreeMap<Option<&str>, Vec<Spell>> = BTreeMap::new();
    for position in runs {
        let unit = record.pods[record.runs[*position].pod].unit.as_deref();
        units.entry(unit).or_default().push(Spell::of(record, *position));
    }
    let (mut useful, mut doubled, mut down, mut present) = (0, 0, 0, 0u32);
    let mut lost = BTreeMap::new();
    for (unit, mut spells) in units {
        spells.sort_by_key(|spell| (spell.began, spell.run));
        keep(facts, unit.is_some(), &mut spells);
        match unit {
            Some(_) => {
                present += 1;
                useful += one_at_a_time(&spells, &mut doubled, &mut lost);
                down += match facts.takes {
                    Some(_) => gaps(&spells, record.end),
                    None => record.end - covered(&spells),
                };
            }
            None => {
                useful += side_by_side(facts, &spells, &mut lost);
                down += match facts.takes {
                    Some(_) => until_replaced(&spells, record.end),
                    None => shortage(facts.units, &spells, record.end),
                };
                present = facts.units;
            }
        }
    }
    if facts.takes.is_none() {
        // A unit that never ran was down all the time.
        down += Millis::from(facts.units.saturating_sub(present)) * record.end;
    }
    let totals = WorkTotals::of(useful, lost.values().sum(), doubled, down);
    Work { totals, lost }
}

/// The part of a run that lies within the play.
#[derive(Debug)]
struct Spell {
    /// The index of the run.
    run: usize,
    /// When it really began, perhaps before the play.
    began: Millis,
    from: Millis,
    to: Millis,
    /// When it really ended, and whether its work was done then; `None` if it still runs at the end.
    ended: Option<(Millis, bool)>,
    /// Its pod was deleted or marked Failed: its work is no longer wanted.
    is_given_up: bool,
    /// Its work counts until this time.
    kept: Millis,
    /// The periods in which its node was unhealthy and it made no progress, in order.
    idle: Vec<(Millis, Millis)>,
}

impl Spell {
    fn of(record: &Record, position: usize) -> Self {
        let run: &RunLife = &record.runs[position];
        let from = run.from.clamp(0, record.end);
        let to = run.ended.map_or(record.end, |(ended, _)| ended).clamp(from, record.end);
        let is_sick = |fault: &Fault| matches!(fault, Fault::Sick(_));
        let sick = record.incidents.iter().filter(|it| is_sick(&it.fault) && it.nodes.contains(&run.node));
        let mut idle: Vec<(Millis, Millis)> = Vec::new();
        // Failures are ordered by time.
        for it in sick {
            let begins = it.at.max(from).max(idle.last().map_or(Millis::MIN, |(_, to)| *to));
            let ends = it.until.unwrap_or(record.end).min(to);
            if begins < ends {
                idle.push((begins, ends));
            }
        }
        let ended = run.ended.filter(|(at, _)| *at <= record.end).map(|(at, code)| (at, code == 0));
        let pod = &record.pods[run.pod];
        let is_given_up = match pod.over {
            Some((_, Ended::Succeeded)) => false,
            Some((_, Ended::Failed)) => true,
            None => pod.deleted.is_some(),
        };
        Self { run: position, began: run.from, from, to, ended, is_given_up, kept: to, idle }
    }

    /// The time up to which its work was saved at `at`.
    fn saved(&self, every: Option<Millis>, at: Millis) -> Millis {
        let ran = self.ended.map_or(at, |(ended, _)| ended.min(at)) - self.began;
        match every.filter(|every| *every > 0 && ran > 0) {
            Some(every) => self.began + ran / every * every,
            None => self.began,
        }
    }

    /// True if it runs at `at`, and its work at that time counts.
    fn counts_at(&self, at: Millis) -> bool {
        self.runs_at(at) && at < self.kept && !self.idle.iter().any(|(from, to)| (*from..*to).contains(&at))
    }

    fn runs_at(&self, at: Millis) -> bool {
        (self.from..self.to).contains(&at)
    }

    fn counted(&self) -> Vec<(Millis, Millis)> {
        let (mut parts, mut at) = (Vec::new(), self.from);
        let kept = self.kept.min(self.to);
        for (from, to) in self.idle.iter().copied().chain([(kept, kept)]) {
            if at < from.min(kept) {
                parts.push((at, from.min(kept)));
            }
            at = at.max(to);
        }
        parts
    }
}

/// Sets the time until which the work of each run counts. Runs are ordered by their start.
fn keep(facts: &WorkloadFacts, is_unit: bool, spells: &mut [Spell]) {
    if !facts.accumulates {
        return;
    }
    let every = facts.checkpoint_every;
    let is_done = |spell: &Spell| facts.takes.is_some() && matches!(spell.ended, Some((_, true)));
    if !is_unit {
        for spell in spells.iter_mut().filter(|spell| spell.ended.is_some() && !is_done(spell)) {
            spell.kept = spell.saved(every, spell.to);
        }
        return;
    }
    // Each run continues from the most that an earlier one has saved: the progress that it began with, and the run that
    // saved it.
    let mut begun: Vec<(Millis, Option<usize>)> = Vec::with_capacity(spells.len());
    for (position, spell) in spells.iter().enumerate() {
        let before = (0..position).map(|it| {
            let other = &spells[it];
            (begun[it].0 + other.saved(every, spell.began) - other.began, it)
        });
        let most = before.filter(|(saved, _)| *saved > 0).max_by_key(|(saved, _)| *saved);
        begun.push(most.map_or((0, None), |(saved, it)| (saved, Some(it))));
    }
    // The run that completes the work; else one that still runs; else the one that saved most. All work that does not
    // lead to it is lost.
    let progress = |it: usize, until: Millis| begun[it].0 + until - spells[it].began;
    let all = || 0..spells.len();
    let done = |it: &usize| is_done(&spells[*it]);
    let alive = |it: &usize| spells[*it].ended.is_none();
    let wanted = |it: &usize| !spells[*it].is_given_up;
    let first_done = |keep: &dyn Fn(&usize) -> bool| all().filter(keep).min_by_key(|it| spells[*it].to);
    let furthest =
        |keep: &dyn Fn(&usize) -> bool| all().filter(keep).max_by_key(|it| progress(*it, spells[*it].to));
    let whole = first_done(&|it| done(it) && wanted(it))
        .or_else(|| furthest(&|it| alive(it) && wanted(it)))
        .or_else(|| first_done(&done))
        .or_else(|| furthest(&alive));
    let last = whole.map(|it| (it, spells[it].to)).or_else(|| {
        let saved = all().map(|it| (it, spells[it].saved(every, spells[it].to)));
        saved.max_by_key(|(it, until)| progress(*it, *until))
    });
    let mut kept: Vec<Millis> = spells.iter().map(|spell| spell.began).collect();
    let mut next = last;
    while let Some((it, until)) = next {
        kept[it] = until;
        next = begun[it].1.map(|before| (before, spells[before].saved(every, spells[it].began)));
    }
    spells.iter_mut().zip(kept).for_each(|(spell, kept)| spell.kept = kept);
}

/// The useful time of one unit of work. Whatever a second run does at the same time is done twice.
fn one_at_a_time(spells: &[Spell], doubled: &mut Millis, lost: &mut BTreeMap<usize, Millis>) -> Millis {
    let mut edges: Vec<Millis> = spells
        .iter()
        .flat_map(|it| {
            let idle = it.idle.iter().flat_map(|(from, to)| [*from, *to]);
            idle.chain([it.from, it.to, it.kept.clamp(it.from, it.to)])
        })
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut useful = 0;
    for pair in edges.windows(2) {
        let (at, took) = (pair[0], pair[1] - pair[0]);
        let mut running = spells.iter().filter(|it| it.runs_at(at));
        let Some(first) = running.next() else { continue };
        *doubled += took * Millis::try_from(running.count()).unwrap_or(Millis::MAX);
        if spells.iter().any(|it| it.counts_at(at)) {
            useful += took;
        } else {
            *lost.entry(first.run).or_default() += took;
        }
    }
    useful
}

/// The useful time of interchangeable pods: of no more than the wanted number at once.
fn side_by_side(facts: &WorkloadFacts, spells: &[Spell], lost: &mut BTreeMap<usize, Millis>) -> Millis {
    let mut parts = Vec::new();
    for spell in spells {
        let counted = spell.counted();
        let sum: Millis = counted.iter().map(|(from, to)| to - from).sum();
        let rest = spell.to - spell.from - sum;
        if rest > 0 {
            lost.insert(spell.run, rest);
        }
        parts.extend(counted);
    }
    let most = if facts.takes.is_some() { Millis::MAX } else { Millis::from(facts.units) };
    levels(parts.into_iter()).map(|(took, count)| took * count.min(most)).sum()
}

/// The time in which fewer pods ran than wanted.
fn shortage(wanted: u32, spells: &[Spell], end: Millis) -> Millis {
    let most = Millis::from(wanted);
    let ran: Millis =
        levels(spells.iter().map(|it| (it.from, it.to))).map(|(took, n)| took * n.min(most)).sum();
    most * end - ran
}

/// How long each number of intervals overlapped.
fn levels(parts: impl Iterator<Item = (Millis, Millis)>) -> impl Iterator<Item = (Millis, Millis)> {
    let mut changes: BTreeMap<Millis, Millis> = BTreeMap::new();
    for (from, to) in parts {
        *changes.entry(from).or_default() += 1;
        *changes.entry(to).or_default() -= 1;
    }
    let (mut last, mut count) = (0, 0);
    let steps = changes.into_iter().map(move |(at, change)| {
        let level = (at - last, count);
        (last, count) = (at, count + change);
        level
    });
    steps.collect::<Vec<_>>().into_iter()
}

/// The time from the death of each of these pods to the next start. They are interchangeable, so any other may take its
/// place.
fn until_replaced(spells: &[Spell], end: Millis) -> Millis {
    let mut dead: Vec<Millis> =
        spells.iter().filter(|it| matches!(it.ended, Some((at, false)) if at >= 0)).map(|it| it.to).collect();
    dead.sort_unstable();
    let mut starts = spells.iter().map(|it| it.began).peekable();
    dead.into_iter()
        .map(|at| {
            while starts.next_if(|start| *start < at).is_some() {}
            starts.next().unwrap_or(end) - at
        })
        .sum()
}

/// The time that a unit ran, with overlaps counted once.
fn covered(spells: &[Spell]) -> Millis {
    let (mut sum, mut reached) = (0, Millis::MIN);
    for it in spells {
        sum += (it.to - it.from.max(reached)).max(0);
        reached = reached.max(it.to);
    }
    sum
}

/// The time between the first start of a unit and its end in which it did not run.
fn gaps(spells: &[Spell], end: Millis) -> Millis {
    let Some(mut reached) = spells.first().map(|it| it.from) else { return 0 };
    let mut sum = 0;
    let done = spells.iter().filter(|it| matches!(it.ended, Some((_, true)))).map(|it| it.to).min();
    let over = done.unwrap_or(end);
    for it in spells.iter().filter(|it| it.from < over) {
        sum += (it.from - reached).max(0);
        reached = reached.max(it.to);
    }
    sum + (over - reached).max(0)
}
