//! Recommends a setting: time to recovery against double runs and needless kills.

use serde::Serialize;

use super::{Summary, span_text};
use crate::play::Millis;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recommendation {
    pub policy: String,
    /// The reason, in numbers.
    pub reason: String,
}

/// The costs of a policy; less is better.
fn costs(summary: &Summary) -> [f64; 3] {
    #[expect(clippy::cast_precision_loss, reason = "no play lasts 2^53 milliseconds")]
    let time = match summary.time_to_recovery.p90 {
        Some(time) => time as f64,
        None if summary.lost == 0 => 0.0,
        None => f64::INFINITY,
    };
    [time, summary.double_run_seconds.mean, summary.killed_in_vain.mean]
}

/// The indexes of the policies that no other dominates, that is, none is at least as good in every cost and better in
/// one.
pub(super) fn front(policies: &[Summary]) -> Vec<usize> {
    let all: Vec<[f64; 3]> = policies.iter().map(costs).collect();
    let beats = |a: &[f64; 3], b: &[f64; 3]| {
        let pairs = || a.iter().zip(b);
        pairs().all(|(a, b)| a <= b) && pairs().any(|(a, b)| a < b)
    };
    (0..all.len()).filter(|index| !all.iter().any(|other| beats(other, &all[*index]))).collect()
}

/// The policy to choose. Fewest violations of at-most-once come first, then the least work that does not come back; of
/// the remaining policies, the one on the Pareto front that is nearest to the best of each number.
pub fn recommend(policies: &[Summary]) -> Option<Recommendation> {
    if policies.len() < 2 {
        return None;
    }
    let fewest_violations = policies.iter().map(|it| it.at_most_once_violations).min()?;
    let safe: Vec<&Summary> =
        policies.iter().filter(|it| it.at_most_once_violations == fewest_violations).collect();
    let fewest_open = safe.iter().map(|it| it.not_recovered).min()?;
    let candidates: Vec<Summary> =
        safe.into_iter().filter(|it| it.not_recovered == fewest_open).cloned().collect();
    let front = front(&candidates);
    let all: Vec<[f64; 3]> = front.iter().map(|index| costs(&candidates[*index])).collect();
    let (mut least, mut most) = ([f64::INFINITY; 3], [f64::NEG_INFINITY; 3]);
    for costs in &all {
        for (position, cost) in costs.iter().enumerate() {
            least[position] = least[position].min(*cost);
            most[position] = most[position].max(*cost);
        }
    }
    let far = |costs: &[f64; 3]| -> f64 {
        let share = |position: usize| {
            let (least, most) = (least[position], most[position]);
            if most > least && most.is_finite() { (costs[position] - least) / (most - least) } else { 0.0 }
        };
        (0..3).map(share).sum()
    };
    let best = (0..all.len()).min_by(|a, b| far(&all[*a]).total_cmp(&far(&all[*b])))?;
    let chosen = &candidates[front[best]];
    Some(Recommendation { policy: chosen.policy.clone(), reason: reason(chosen, policies) })
}

fn reason(chosen: &Summary, policies: &[Summary]) -> String {
    let time = |time: Option<Millis>| time.map_or_else(|| "never".to_owned(), span_text);
    let others = || policies.iter().filter(|it| it.policy != chosen.policy);
    let fastest = policies.iter().filter_map(|it| it.time_to_recovery.p90).min();
    let least = |number: fn(&Summary) -> f64| policies.iter().map(number).fold(f64::INFINITY, f64::min);
    let mut parts = vec![
        format!(
            "90% of the work is back within {} (fastest: {})",
            time(chosen.time_to_recovery.p90),
            time(fastest)
        ),
        format!(
            "{:.1} double-run seconds a seed (least: {:.1})",
            chosen.double_run_seconds.mean,
            least(|it| it.double_run_seconds.mean)
        ),
        format!(
            "{:.1} kills in vain a seed (least: {:.1})",
            chosen.killed_in_vain.mean,
            least(|it| it.killed_in_vain.mean)
        ),
        format!("{} of {} not recovered", chosen.not_recovered, chosen.lost),
    ];
    let unsafe_ones =
        others().filter(|it| it.at_most_once_violations > chosen.at_most_once_violations).count();
    if unsafe_ones > 0 {
        parts.push(format!("{unsafe_ones} other(s) broke at-most-once more often"));
    }
    let open = others().filter(|it| it.not_recovered > chosen.not_recovered).count();
    if open > 0 {
        parts.push(format!("{open} other(s) left more work behind"));
    }
    parts.join("; ")
}
