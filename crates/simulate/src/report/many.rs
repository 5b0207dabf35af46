//! Many seeds of one policy, and many policies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Percentiles, Phases, Recommendation, Report, recommend};
use crate::play::Millis;

/// A number over many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// Nine of ten seeds have no more.
    pub p90: f64,
    /// The largest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
}

impl Spread {
    /// Of these numbers.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or_default()
        };
        #[expect(clippy::cast_precision_loss, reason = "there are no 2^53 seeds")]
        let mean = if sorted.is_empty() { 0.0 } else { sorted.iter().sum::<f64>() / sorted.len() as f64 };
        Self { min: at(0), p50: at(50), p90: at(90), max: at(100), mean: (mean * 1e4).round() / 1e4 }
    }
}

/// The numbers of one seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SeedLine {
    /// The seed.
    pub seed: u64,
    /// Units of work that failures hit.
    pub lost: u64,
    /// Those that did not run again.
    pub not_recovered: u64,
    /// Time to recovery.
    pub time_to_recovery: Percentiles,
    /// The same work running twice, in milliseconds.
    pub double_run: Millis,
    /// Work ran twice that must not.
    pub at_most_once_violations: u64,
    /// Pods and nodes.
    pub killed_in_vain: u64,
    /// The useful share of the work.
    pub goodput: f64,
    /// Work that was lost, in pod-milliseconds.
    pub work_lost: Millis,
    /// Requests of the operator.
    pub api_calls: u64,
    /// Actions that limits held back.
    pub held: u64,
    /// Units of work that another pod took over.
    pub replaced: u64,
    /// The mean time of each phase, of those.
    pub phases: Phases,
    /// The time to recovery of each loss; null if it never came.
    pub times: Vec<Option<Millis>>,
    /// The causes of what was stuck at the end, each once.
    #[serde(default)]
    pub stuck: Vec<String>,
}

/// Many seeds of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// How it is modelled, if that needs words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Seeds that were played.
    pub seeds: u64,
    /// Units of work that failures hit, in all seeds.
    pub lost: u64,
    /// Those that did not run again.
    pub not_recovered: u64,
    /// Time to recovery of all of them.
    pub time_to_recovery: Percentiles,
    /// The mean time of each phase.
    pub phases: Phases,
    /// Seconds in which the same work ran twice, per seed.
    pub double_run_seconds: Spread,
    /// Work ran twice that must not, in all seeds.
    pub at_most_once_violations: u64,
    /// Pods and nodes killed in vain, per seed.
    pub killed_in_vain: Spread,
    /// The useful share of the work, per seed.
    pub goodput: Spread,
    /// Pod-seconds of work lost, per seed.
    pub work_lost_seconds: Spread,
    /// Requests of the operator, per seed.
    pub api_calls: Spread,
    /// Actions that limits held back, per seed.
    pub held: Spread,
    /// The causes of what was stuck at the end, and in how many seeds.
    pub stuck: BTreeMap<String, u64>,
    /// The arguments with which `salvor demo --replay` plays this policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replay: String,
    /// The worst seed: most violations, then most work not recovered, then the longest time.
    pub worst_seed: Option<u64>,
    /// Each seed.
    pub each: Vec<SeedLine>,
}

impl Summary {
    /// Of the reports of a policy; their order does not matter.
    pub fn of(policy: &str, note: &str, reports: &[Report]) -> Self {
        Self::of_lines(policy, note, reports.iter().map(line).collect())
    }

    /// Of the numbers of seeds. A seed that is there twice counts once.
    pub fn of_lines(policy: &str, note: &str, mut each: Vec<SeedLine>) -> Self {
        each.sort_by_key(|line| line.seed);
        each.dedup_by_key(|line| line.seed);
        let spread = |number: fn(&SeedLine) -> f64| Spread::of(each.iter().map(number));
        let worst = each.iter().max_by_key(|line| {
            let longest = if line.lost == 0 { 0 } else { line.time_to_recovery.max.unwrap_or(Millis::MAX) };
            // Of equal seeds the first.
            (
                line.at_most_once_violations,
                line.not_recovered,
                longest,
                line.double_run,
                std::cmp::Reverse(line.seed),
            )
        });
        let mut stuck = BTreeMap::new();
        for cause in each.iter().flat_map(|line| &line.stuck) {
            *stuck.entry(cause.clone()).or_default() += 1;
        }
        Self {
            policy: policy.to_owned(),
            note: note.to_owned(),
            replay: String::new(),
            stuck,
            seeds: super::count(each.iter()),
            lost: each.iter().map(|line| line.lost).sum(),
            not_recovered: each.iter().map(|line| line.not_recovered).sum(),
            time_to_recovery: Percentiles::of(each.iter().flat_map(|line| line.times.iter().copied())),
            phases: weighted(&each),
            double_run_seconds: spread(|line| seconds(line.double_run)),
            at_most_once_violations: each.iter().map(|line| line.at_most_once_violations).sum(),
            killed_in_vain: spread(|line| whole(line.killed_in_vain)),
            goodput: spread(|line| line.goodput),
            work_lost_seconds: spread(|line| seconds(line.work_lost)),
            api_calls: spread(|line| whole(line.api_calls)),
            held: spread(|line| whole(line.held)),
            worst_seed: worst.map(|line| line.seed),
            each,
        }
    }

    /// The same, with the arguments with which `salvor demo --replay` plays this policy.
    #[must_use]
    pub fn replayed_with(self, arguments: &str) -> Self {
        Self { replay: arguments.to_owned(), ..self }
    }

    /// The time to recovery of each loss of each seed, the shortest first; those that never came are last.
    pub fn times(&self) -> Vec<Option<Millis>> {
        let mut times: Vec<Option<Millis>> =
            self.each.iter().flat_map(|line| line.times.iter().copied()).collect();
        times.sort_by_key(|time| time.unwrap_or(Millis::MAX));
        times
    }
}

fn line(report: &Report) -> SeedLine {
    SeedLine {
        seed: report.seed,
        lost: report.total.lost,
        not_recovered: report.total.not_recovered,
        time_to_recovery: report.total.time_to_recovery.clone(),
        double_run: report.double_run,
        at_most_once_violations: report.at_most_once_violations,
        killed_in_vain: report.killed_in_vain(),
        goodput: report.work.goodput,
        work_lost: report.work.lost,
        api_calls: report.api_calls.all(),
        held: report.held.iter().map(|held| held.times).sum(),
        replaced: report.total.replaced,
        phases: report.total.phases.clone(),
        times: report.times(),
        stuck: report.stuck.iter().map(|it| it.code.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
    }
}

/// The mean of phases over all work that was replaced.
fn weighted(lines: &[SeedLine]) -> Phases {
    let mut sums = [0i128; 7];
    let mut count = 0i128;
    for line in lines {
        let weight = i128::from(line.replaced);
        count += weight;
        sums.iter_mut().zip(line.phases.all()).for_each(|(sum, phase)| *sum += i128::from(phase) * weight);
    }
    let mean = |sum: i128| Millis::try_from(sum / count.max(1)).unwrap_or(Millis::MAX);
    let [detect, evict, wait, decide, replace, schedule, start] = sums.map(mean);
    Phases { detect, evict, wait, decide, replace, schedule, start }
}

/// Many policies on the same failures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Each policy, in the order in which they were given.
    pub policies: Vec<Summary>,
    /// Those that no other beats in everything.
    pub pareto_front: Vec<String>,
    /// The one to choose.
    pub recommendation: Option<Recommendation>,
}

impl Comparison {
    /// Of these policies.
    pub fn of(policies: Vec<Summary>) -> Self {
        let front = super::pareto::front(&policies);
        let pareto_front = front.iter().map(|index| policies[*index].policy.clone()).collect();
        let recommendation = recommend(&policies);
        Self { policies, pareto_front, recommendation }
    }
}

/// A part of a simulation that was played elsewhere, as it was written with `-o json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Shard {
    /// The title of the scenario.
    pub scenario: String,
    /// Simulations that can be joined have the same.
    #[serde(default)]
    pub fingerprint: String,
    /// The part that it is of all seeds, if it is one.
    #[serde(default)]
    pub part: Option<Part>,
    policies: Vec<ShardPolicy>,
    /// Each play in full, if there were no more than a few.
    #[serde(default)]
    pub reports: Vec<Report>,
}

/// A part of the seeds of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// Which of them it is, from 0.
    pub index: u64,
    /// The number of parts.
    pub count: u64,
    /// The first seed of all parts.
    pub first: u64,
    /// The last seed of all parts.
    pub last: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct ShardPolicy {
    policy: String,
    #[serde(default)]
    note: String,
    #[serde(default)]
    replay: String,
    each: Vec<SeedLine>,
}

impl Comparison {
    /// Joins parts. Policies are in the order of the first part that has them.
    pub fn joined<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> Self {
        let mut order: Vec<&ShardPolicy> = Vec::new();
        let mut lines: BTreeMap<&str, Vec<SeedLine>> = BTreeMap::new();
        for policy in shards.into_iter().flat_map(|shard| &shard.policies) {
            if !lines.contains_key(policy.policy.as_str()) {
                order.push(policy);
            }
            lines.entry(&policy.policy).or_default().extend(policy.each.iter().cloned());
        }
        let summary = |it: &ShardPolicy| {
            let each = lines.remove(it.policy.as_str()).unwrap_or_default();
            Summary::of_lines(&it.policy, &it.note, each).replayed_with(&it.replay)
        };
        Self::of(order.into_iter().map(summary).collect())
    }

    /// The reports of all plays in the order of policies and seeds, if these are all.
    pub fn in_full(&self, reports: impl IntoIterator<Item = Report>) -> Vec<Report> {
        let mut known: BTreeMap<(String, u64), Report> =
            reports.into_iter().map(|it| ((it.policy.clone(), it.seed), it)).collect();
        let plays =
            self.policies.iter().flat_map(|it| it.each.iter().map(|line| (it.policy.clone(), line.seed)));
        plays.map(|play| known.remove(&play)).collect::<Option<Vec<Report>>>().unwrap_or_default()
    }

    /// The seeds of these parts that were not played with every policy, as ranges.
    pub fn missing<'a>(&self, parts: impl IntoIterator<Item = &'a Part>) -> Vec<(u64, u64)> {
        let has =
            |policy: &Summary, seed: u64| policy.each.binary_search_by_key(&seed, |line| line.seed).is_ok();
        let first = self.policies.first().map(|it| it.each.as_slice()).unwrap_or_default();
        let played = first.iter().map(|line| line.seed);
        let played: Vec<u64> = played.filter(|seed| self.policies.iter().all(|it| has(it, *seed))).collect();
        let whole: BTreeSet<(u64, u64)> = parts.into_iter().map(|it| (it.first, it.last)).collect();
        let mut missing = Vec::new();
        for (first, last) in whole {
            // The first seed that is not known to be played; none after the last seed that there is.
            let mut next = Some(first);
            for seed in played.iter().copied().filter(|seed| (first..=last).contains(seed)) {
                missing.extend(next.filter(|next| *next < seed).map(|next| (next, seed - 1)));
                next = seed.checked_add(1);
            }
            missing.extend(next.filter(|next| *next <= last).map(|next| (next, last)));
        }
        missing
    }
}

#[expect(clippy::cast_precision_loss, reason = "no play lasts 2^53 milliseconds")]
fn seconds(time: Millis) -> f64 {
    time as f64 / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "nobody counts to 2^53 here")]
fn whole(count: u64) -> f64 {
    count as f64
}
