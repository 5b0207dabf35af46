//! Reports as text, for a terminal.

use std::fmt::Write as _;

use super::{Comparison, FailureReport, Percentiles, Phases, Recovery, Report, Summary};
use crate::play::Millis;

/// A table shows at most this many failures.
const MOST: usize = 40;

/// A duration in short form: `450ms`, `1m30s`, `2h5m`.
pub fn span_text(time: Millis) -> String {
    if time == 0 {
        return "0s".to_owned();
    }
    if time.abs() < 1000 {
        return format!("{time}ms");
    }
    let sign = if time < 0 { "-" } else { "" };
    let seconds = (time.abs() + 500) / 1000;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes, seconds) {
        (0, 0, seconds) => format!("{sign}{seconds}s"),
        (0, minutes, 0) => format!("{sign}{minutes}m"),
        (0, minutes, seconds) => format!("{sign}{minutes}m{seconds}s"),
        (hours, 0, 0) => format!("{sign}{hours}h"),
        (hours, minutes, 0) => format!("{sign}{hours}h{minutes}m"),
        (hours, minutes, seconds) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

pub(super) fn perhaps(time: Option<Millis>) -> String {
    time.map_or_else(|| "never".to_owned(), span_text)
}

/// Aligned columns; the first and those in `left` are left-aligned.
fn columns(rows: &[Vec<String>], left: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|it| it.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let fill = " ".repeat(width - cell.chars().count());
            // Writing to memory cannot fail.
            let _ = if left.contains(&column) {
                write!(line, " {cell}{fill} ")
            } else {
                write!(line, " {fill}{cell} ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn times(percentiles: &Percentiles) -> String {
    if percentiles.count == 0 {
        return "nothing was lost".to_owned();
    }
    let Percentiles { p50, p90, p99, max, .. } = percentiles;
    format!("p50 {}   p90 {}   p99 {}   max {}", perhaps(*p50), perhaps(*p90), perhaps(*p99), perhaps(*max))
}

fn phases(phases: &Phases) -> String {
    let each = Phases::NAMES.iter().zip(phases.all());
    each.map(|(name, time)| format!("{name} {}", span_text(time))).collect::<Vec<_>>().join("   ")
}

fn counted(recovery: &Recovery) -> String {
    let Recovery { lost, replaced, resumed, not_recovered, .. } = recovery;
    format!(
        "pods that lost their node: {lost} ({replaced} replaced, {resumed} resumed on it, {not_recovered} not recovered)"
    )
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.2}%", (share * 10_000.0).round() / 100.0)
}

pub fn report_table(title: &str, report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<18} {value}");
    };
    line("time to recovery", times(&report.total.time_to_recovery));
    line("", counted(&report.total));
    if report.total.replaced > 0 {
        line("phases, mean", phases(&report.total.phases));
        line("phases, p90", phases(&report.total.phase_percentiles.p90));
    }
    let work = &report.work;
    line(
        "work",
        format!(
            "goodput {}: {} useful, {} lost, {} done twice, {} not running",
            percent(work.goodput),
            span_text(work.useful),
            span_text(work.lost),
            span_text(work.doubled),
            span_text(work.down)
        ),
    );
    line(
        "ran twice",
        format!(
            "{} in sum; at-most-once violations: {}",
            span_text(report.double_run),
            report.at_most_once_violations
        ),
    );
    line(
        "killed in vain",
        format!(
            "pods: {}; nodes: {} of {} that were given up",
            report.pods_killed_in_vain, report.nodes_killed_in_vain, report.nodes_given_up
        ),
    );
    let calls = &report.api_calls;
    line("API calls", format!("{} reads, {} writes, {} watches", calls.reads, calls.writes, calls.watches));
    for held in &report.held {
        let name = if std::ptr::eq(held, &report.held[0]) { "held back" } else { "" };
        line(
            name,
            format!("{} by {}: {} times, {} objects", held.recovery, held.by, held.times, held.subjects),
        );
    }
    if report.held.is_empty() {
        line("held back", "nothing".to_owned());
    }
    let head = format!(
        "{}\n  policy {}, seed {}, {} played\n\n",
        short(title, 200),
        report.policy,
        report.seed,
        span_text(report.played)
    );
    format!("{head}{text}{}{}{}", failures(&report.failures), workloads(report), stuck(report))
}

fn failures(failures: &[FailureReport]) -> String {
    if failures.is_empty() {
        return "\n  Nothing failed.\n".to_owned();
    }
    let header =
        ["AT", "FAILURE", "OF", "LASTS", "PODS", "P50", "P90", "P99", "MAX", "WORK LOST", "TWICE", "IN VAIN"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for failure in failures.iter().take(MOST) {
        let lasts =
            failure.until.map_or_else(|| "for good".to_owned(), |until| span_text(until - failure.at));
        let times = &failure.recovery.time_to_recovery;
        let time = |time| if times.count == 0 { "-".to_owned() } else { perhaps(time) };
        let mut row = named(failure);
        row.extend([
            lasts,
            failure.recovery.lost.to_string(),
            time(times.p50),
            time(times.p90),
            time(times.p99),
            time(times.max),
            span_text(failure.work_lost),
            span_text(failure.double_run),
            (failure.pods_killed_in_vain + failure.nodes_killed_in_vain).to_string(),
        ]);
        rows.push(row);
    }
    let mut text = format!("\n{}", columns(&rows, &[1, 2]));
    if failures.len() > MOST {
        let _ = writeln!(text, "  and {} more (all are in -o json)", failures.len() - MOST);
    }
    let mut header = vec!["AT", "FAILURE", "OF"];
    header.extend(Phases::NAMES);
    let mut rows = vec![header.into_iter().map(str::to_uppercase).collect::<Vec<String>>()];
    for failure in failures.iter().take(MOST).filter(|it| it.recovery.replaced > 0) {
        let mut row = named(failure);
        row.extend(failure.recovery.phases.all().map(span_text));
        rows.push(row);
    }
    if rows.len() > 1 {
        let _ = write!(text, "\n{}", columns(&rows, &[1, 2]));
    }
    text
}

/// The time, kind and target of a failure.
fn named(failure: &FailureReport) -> Vec<String> {
    vec![span_text(failure.at), failure.kind.clone().into_owned(), short(&failure.named, 32)]
}

fn workloads(report: &Report) -> String {
    let header = ["WORKLOAD", "KIND", "LOST", "P50", "MAX", "GOODPUT", "WORK LOST", "TWICE", "NOT RUNNING"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for workload in &report.workloads {
        let recovery = &workload.recovery;
        let time = |time| if recovery.lost == 0 { "-".to_owned() } else { perhaps(time) };
        rows.push(vec![
            short(&workload.name, 32),
            workload.kind.clone().into_owned(),
            recovery.lost.to_string(),
            time(recovery.time_to_recovery.p50),
            time(recovery.time_to_recovery.max),
            percent(workload.work.goodput),
            span_text(workload.work.lost),
            span_text(workload.work.doubled),
            span_text(workload.work.down),
        ]);
    }
    format!("\n{}", columns(&rows, &[0, 1]))
}

fn stuck(report: &Report) -> String {
    if report.stuck.is_empty() {
        return "\n  Nothing was stuck at the end.\n".to_owned();
    }
    let mut text = "\n  Stuck at the end:\n".to_owned();
    for it in &report.stuck {
        let _ = writeln!(text, "  - {}: {}", it.code, it.message);
        for workload in &it.workloads {
            let _ = writeln!(text, "      {workload}");
        }
        if let Some(expected) = &it.expected_back {
            let _ = writeln!(text, "      Expected back: {expected}");
        }
        if let Some(remedy) = &it.remedy {
            let _ = writeln!(text, "      > {remedy}");
        }
    }
    text
}

pub fn summary_table(title: &str, summary: &Summary) -> String {
    let mut text =
        format!("{}\n  policy {}, {}\n\n", short(title, 200), summary.policy, counted_seeds(summary.seeds));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<18} {value}");
    };
    line("time to recovery", times(&summary.time_to_recovery));
    line(
        "",
        format!(
            "pods that lost their node in all seeds: {}, not recovered: {}",
            summary.lost, summary.not_recovered
        ),
    );
    line("phases, mean", phases(&summary.phases));
    line("at-most-once", format!("{} violations in all seeds", summary.at_most_once_violations));
    let spreads = [
        ("goodput", summary.goodput, true),
        ("double-run seconds", summary.double_run_seconds, false),
        ("killed in vain", summary.killed_in_vain, false),
        ("work lost, seconds", summary.work_lost_seconds, false),
        ("API calls", summary.api_calls, false),
        ("held back", summary.held, false),
    ];
    let mut rows = vec![["PER SEED", "MIN", "P50", "P90", "MAX", "MEAN"].map(str::to_owned).to_vec()];
    for (name, it, is_share) in spreads {
        let number = |number: f64| if is_share { percent(number) } else { format!("{number:.1}") };
        rows.push(vec![
            name.to_owned(),
            number(it.min),
            number(it.p50),
            number(it.p90),
            number(it.max),
            number(it.mean),
        ]);
    }
    let mut text = format!("{text}\n{}", columns(&rows, &[0]));
    let stuck = summary.stuck.iter().map(|(cause, seeds)| format!("{cause} in {}", counted_seeds(*seeds)));
    let stuck = stuck.collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        text,
        "\n  Stuck at the end: {}.",
        if stuck.is_empty() { "nothing" } else { stuck.as_str() }
    );
    if let Some(worst) = summary.worst_seed {
        // Joined shards do not know the file name of the scenario, and must give the same text.
        let _ = writeln!(
            text,
            "\n  The worst seed is {worst}: play it alone with --seed {worst}, or watch it:\n  {}",
            watch(summary, worst)
        );
    }
    text
}

fn counted_seeds(seeds: u64) -> String {
    if seeds == 1 { "1 seed".to_owned() } else { format!("{seeds} seeds") }
}

/// The command that shows a seed in the demo.
pub(super) fn watch(summary: &Summary, seed: u64) -> String {
    let more = if summary.replay.is_empty() { String::new() } else { format!(" {}", summary.replay) };
    format!("salvor demo --replay SCENARIO --seed {seed}{more}")
}

pub fn comparison_table(title: &str, comparison: &Comparison) -> String {
    let header = [
        "",
        "POLICY",
        "P50",
        "P90",
        "MAX",
        "NOT RECOVERED",
        "TWICE",
        "VIOLATIONS",
        "IN VAIN",
        "GOODPUT",
        "API CALLS",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for policy in &comparison.policies {
        let is_best = comparison.recommendation.as_ref().is_some_and(|it| it.policy == policy.policy);
        let is_in_front = comparison.pareto_front.contains(&policy.policy);
        let mark = match (is_best, is_in_front) {
            (true, _) => "*",
            (false, true) => "+",
            (false, false) => "",
        };
        let time = |time| if policy.lost == 0 { "-".to_owned() } else { perhaps(time) };
        rows.push(vec![
            mark.to_owned(),
            policy.policy.clone(),
            time(policy.time_to_recovery.p50),
            time(policy.time_to_recovery.p90),
            time(policy.time_to_recovery.max),
            format!("{} of {}", policy.not_recovered, policy.lost),
            format!("{:.1} s", policy.double_run_seconds.mean),
            policy.at_most_once_violations.to_string(),
            format!("{:.1}", policy.killed_in_vain.mean),
            percent(policy.goodput.mean),
            format!("{:.0}", policy.api_calls.mean),
        ]);
    }
    let seeds = counted_seeds(comparison.policies.first().map_or(0, |policy| policy.seeds));
    let mut text = format!(
        "{}\n  {} policies on the same failures, {seeds} each; TWICE, IN VAIN, GOODPUT and API CALLS are means of a seed\n\n{}",
        short(title, 200),
        comparison.policies.len(),
        columns(&rows, &[0, 1])
    );
    text.push_str("\n  + is on the Pareto front of P90, TWICE and IN VAIN: no other is better in one and as good in the rest.\n");
    if let Some(recommendation) = &comparison.recommendation {
        let _ =
            writeln!(text, "  * is recommended: {}\n    {}.", recommendation.policy, recommendation.reason);
        let chosen = comparison.policies.iter().find(|it| it.policy == recommendation.policy);
        if let Some((chosen, worst)) = chosen.and_then(|it| Some((it, it.worst_seed?))) {
            let _ = writeln!(text, "    Its worst seed is {worst}: {}", watch(chosen, worst));
        }
    }
    for policy in comparison.policies.iter().filter(|policy| !policy.note.is_empty()) {
        let _ = writeln!(text, "\n  {}: {}", policy.policy, policy.note);
    }
    text
}

/// Shortens a text to this many characters. Names come from files that users write: no control character may reach a
/// terminal.
fn short(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let count = text.chars().count();
    if count <= most {
        return text.chars().map(plain).collect();
    }
    let cut: String = text.chars().take(most - 1).map(plain).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_people_write_them() {
        let cases = [
            (0, "0s"),
            (450, "450ms"),
            (1000, "1s"),
            (59_600, "1m"),
            (90_000, "1m30s"),
            (3_600_000, "1h"),
            (3_900_000, "1h5m"),
            (3_601_000, "1h0m1s"),
        ];
        for (time, expected) in cases {
            assert_eq!(span_text(time), expected, "{time}");
        }
    }

    #[test]
    fn a_title_cannot_steer_a_terminal() {
        assert_eq!(short("a\x1b[2J", 32), "a\u{fffd}[2J");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
