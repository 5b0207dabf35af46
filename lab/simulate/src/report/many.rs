//! Aggregates many seeds of one policy, and compares many policies.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Percentiles, Phases, Recommendation, Report, recommend};
use crate::play::Millis;

/// The distribution of a number over many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub p50: f64,
    /// 90% of seeds have no more.
    pub p90: f64,
    pub max: f64,
    pub mean: f64,
}

impl Spread {
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SeedLine {
    pub seed: u64,
    /// Units of work that failures hit.
    pub lost: u64,
    /// Those that did not run again.
    pub not_recovered: u64,
    pub time_to_recovery: Percentiles,
    /// How long the same work ran twice.
    pub double_run: Millis,
    /// How often work ran twice that must not.
    pub at_most_once_violations: u64,
    /// Pods and nodes together.
    pub killed_in_vain: u64,
    /// The useful share of the work.
    pub goodput: f64,
    /// Work that was lost, in pod-milliseconds.
    pub work_lost: Millis,
    pub api_calls: u64,
    /// Actions that limits blocked.
    pub held: u64,
    /// Units of work that another pod took over.
    pub replaced: u64,
    /// The mean time of each phase, over the replaced units.
    pub phases: Phases,
    /// The time to recovery of each loss; null if it was not recovered.
    pub times: Vec<Option<Millis>>,
    /// The root causes at the end, each once.
    #[serde(default)]
    pub stuck: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub policy: String,
    /// How the policy is modelled, if that needs an explanation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    pub seeds: u64,
    /// Units of work that failures hit, in all seeds.
    pub lost: u64,
    /// Those that did not run again.
    pub not_recovered: u64,
    /// Over all units of all seeds.
    pub time_to_recovery: Percentiles,
    /// The mean time of each phase.
    pub phases: Phases,
    /// How long the same work ran twice, per seed.
    pub double_run_seconds: Spread,
    /// How often work ran twice that must not, in all seeds.
    pub at_most_once_violations: u64,
    /// Pods and nodes killed needlessly, per seed.
    pub killed_in_vain: Spread,
    /// The useful share of the work, per seed.
    pub goodput: Spread,
    /// Pod-seconds of work lost, per seed.
    pub work_lost_seconds: Spread,
    /// Per seed.
    pub api_calls: Spread,
    /// Actions that limits blocked, per seed.
    pub held: Spread,
    /// The root causes at the end, with the number of seeds that have them.
    pub stuck: BTreeMap<String, u64>,
    /// The arguments with which `salvor demo --replay` plays this policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub replay: String,
    /// The worst seed: most violations, then most work not recovered, then the longest time.
    pub worst_seed: Option<u64>,
    pub each: Vec<SeedLine>,
}

impl Summary {
    /// Summarizes the reports of a policy; their order does not matter.
    pub fn of(policy: &str, note: &str, reports: &[Report]) -> Self {
        Self::of_lines(policy, note, reports.iter().map(line).collect())
    }

    /// Summarizes the numbers of seeds. A seed that is present twice counts once.
    pub fn of_lines(policy: &str, note: &str, mut each: Vec<SeedLine>) -> Self {
        each.sort_by_key(|line| line.seed);
        each.dedup_by_key(|line| line.seed);
        let spread = |number: fn(&SeedLine) -> f64| Spread::of(each.iter().map(number));
        let worst = each.iter().max_by_key(|line| {
            let longest = if line.lost == 0 { 0 } else { line.time_to_recovery.max.unwrap_or(Millis::MAX) };
            // Among equal seeds, the first wins.
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

    /// Sets the arguments with which `salvor demo --replay` plays this policy.
    #[must_use]
    pub fn replayed_with(self, arguments: &str) -> Self {
        Self { replay: arguments.to_owned(), ..self }
    }

    /// The time to recovery of each loss of each seed, shortest first; losses that were not recovered are last.
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
    /// In the order in which they were given.
    pub policies: Vec<Summary>,
    /// Policies that no other policy dominates.
    pub pareto_front: Vec<String>,
    pub recommendation: Option<Recommendation>,
}

impl Comparison {
    pub fn of(policies: Vec<Summary>) -> Self {
        let front = super::pareto::front(&policies);
        let pareto_front = front.iter().map(|index| policies[*index].policy.clone()).collect();
        let recommendation = recommend(&policies);
        Self { policies, pareto_front, recommendation }
    }
}

/// A part of a simulation that was played elsewhere, as written with `-o json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Shard {
    pub scenario: String,
    /// Only simulations with the same fingerprint can be joined.
    #[serde(default)]
    pub fingerprint: String,
    /// Which part of all seeds it covers, if not all.
    #[serde(default)]
    pub part: Option<Part>,
    policies: Vec<ShardPolicy>,
    /// Each play in full, if there were only a few.
    #[serde(default)]
    pub reports: Vec<Report>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// The index of the part, from 0.
    pub index: u64,
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

    /// The reports of all plays in the order of policies and seeds, if `reports` has all of them.
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
            // The first seed that is not known to be played; `None` after the last seed that exists.
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
