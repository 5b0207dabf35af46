//! Plots as SVG: phases as bars, the distribution of times, a timeline, and policies against each other.

use std::fmt::Write as _;

use super::{Comparison, Phases, Summary, span_text};
use crate::play::{Millis, Record};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 190.0;
/// The number of characters that fit into `LEFT`.
const LABEL: usize = 23;
const RIGHT: f64 = 24.0;
const ROW: f64 = 22.0;
/// A timeline shows at most this many nodes.
const MOST_NODES: usize = 60;

/// Colours for both schemes: they have the contrast that text needs on white and on near black.
pub(super) const STYLE: &str = "\
svg{font:12px system-ui,sans-serif;--ink:#1b1f24;--soft:#5b6470;--rule:#d5dae0;--paper:#fff;--bad:#b3261e;--warn:#9a6700;--good:#1a7f37;\
--p0:#6b7280;--p1:#8250df;--p2:#9a6700;--p3:#b3261e;--p4:#0a6cbd;--p5:#0f766e;--p6:#1a7f37}\
@media screen and (prefers-color-scheme:dark){svg{--ink:#e6e9ee;--soft:#9aa4b2;--rule:#39414d;--paper:#14171c;--bad:#ff8a80;--warn:#e3b341;--good:#56d364;\
--p0:#9aa4b2;--p1:#c297ff;--p2:#e3b341;--p3:#ff8a80;--p4:#6cb6ff;--p5:#5eead4;--p6:#56d364}}\
text{fill:var(--ink)}.soft{fill:var(--soft)}.rule{stroke:var(--rule);stroke-width:1}.paper{fill:var(--paper)}\
.crash,.kubeletStop{fill:var(--bad)}.partition,.flapping{fill:var(--warn)}.slow,.sick,.reboot{fill:var(--p1)}\
.seen{fill:none;stroke:var(--ink);stroke-width:1.5}.out{fill:var(--p4)}.runs{fill:var(--good);opacity:.75}.wanted{fill:none;stroke:var(--soft);stroke-dasharray:3 3}\
.p0{fill:var(--p0)}.p1{fill:var(--p1)}.p2{fill:var(--p2)}.p3{fill:var(--p3)}.p4{fill:var(--p4)}.p5{fill:var(--p5)}.p6{fill:var(--p6)}\
.line{fill:none;stroke:var(--p4);stroke-width:2}.dot{fill:var(--p4)}.best{fill:var(--good)}.beaten{fill:var(--soft)}";

/// The plot of a report: the distribution and the phases of one policy, or several policies against each other.
pub fn svg(title: &str, comparison: &Comparison) -> String {
    let (height, body) = match comparison.policies.as_slice() {
        [one] => {
            let (first, distribution) = distribution(one);
            let (second, phases) = phases(&[(one.policy.as_str(), &one.phases)]);
            (first + second, format!("{distribution}<g transform=\"translate(0 {first})\">{phases}</g>"))
        }
        _ => scatter(comparison),
    };
    let head = 34.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" width=\"{WIDTH}\" height=\"{total}\" role=\"img\">\
         <style>{STYLE}</style><title>{title}</title><rect class=\"paper\" width=\"{WIDTH}\" height=\"{total}\"/>\
         <text x=\"16\" y=\"22\" font-size=\"15\" font-weight=\"600\">{title}</text>\
         <g transform=\"translate(0 {head})\">{body}</g></svg>\n",
        title = escaped(title),
        total = height + head,
    )
}

/// One plot in a page.
pub(super) fn inline(label: &str, (height, body): (f64, String)) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">{body}</svg>",
        escaped(label)
    )
}

/// The share of work that is back after a time.
pub(super) fn distribution(summary: &Summary) -> (f64, String) {
    let (height, top, bottom) = (230.0, 24.0, 190.0);
    let mut body = text(16.0, 12.0, "", "Share of the lost work that is back, by time since the failure");
    let times = summary.times();
    let known: Vec<Millis> = times.iter().flatten().copied().collect();
    let Some(longest) = known.iter().copied().max().filter(|longest| *longest > 0) else {
        body.push_str(&text(LEFT, 60.0, "soft", "Nothing was lost, or nothing came back."));
        return (80.0, body);
    };
    let (x, ticks) = time_scale(longest);
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let y = bottom - share * (bottom - top);
        body.push_str(&rule(LEFT, y, WIDTH - RIGHT, y));
        body.push_str(&text_end(LEFT - 8.0, y + 4.0, "soft", &format!("{:.0}%", share * 100.0)));
    }
    for tick in ticks {
        body.push_str(&text_middle(x(tick), bottom + 18.0, "soft", &span_text(tick)));
    }
    let mut path = format!("M{:.1} {bottom:.1}", x(0));
    let all = float(times.len());
    for (position, time) in known.iter().enumerate() {
        let y = |count: usize| bottom - float(count) / all * (bottom - top);
        let _ = write!(path, " L{:.1} {:.1} L{:.1} {:.1}", x(*time), y(position), x(*time), y(position + 1));
    }
    let _ = write!(body, "<path class=\"line\" d=\"{path}\"/>");
    (height, body)
}

/// The mean phases of policies or workloads, as bars.
pub(super) fn phases(rows: &[(&str, &Phases)]) -> (f64, String) {
    let mut body = text(16.0, 12.0, "", "Phases of a recovery, mean");
    let longest =
        rows.iter().map(|(_, phases)| phases.all().iter().sum::<Millis>()).max().unwrap_or(0).max(1);
    let (x, ticks) = time_scale(longest);
    let top = 26.0;
    let mut y = top;
    for (name, phases) in rows {
        body.push_str(&text_end(LEFT - 8.0, y + 15.0, "", &cut(name, LABEL)));
        let mut at = 0;
        for (position, (phase, time)) in Phases::NAMES.iter().zip(phases.all()).enumerate() {
            let (from, to) = (x(at), x(at + time));
            at += time;
            let width = to - from;
            let _ = write!(
                body,
                "<rect class=\"p{position}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\"><title>{phase} {}</title></rect>",
                span_text(time)
            );
        }
        body.push_str(&text(x(at) + 6.0, y + 14.0, "soft", &span_text(at)));
        y += ROW + 4.0;
    }
    for tick in ticks {
        body.push_str(&text_middle(x(tick), y + 14.0, "soft", &span_text(tick)));
    }
    y += 34.0;
    for (position, phase) in Phases::NAMES.iter().enumerate() {
        let at = LEFT + float(position) * 100.0;
        let _ = write!(
            body,
            "<rect class=\"p{position}\" x=\"{at:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\"/>",
            y - 10.0
        );
        body.push_str(&text(at + 17.0, y, "", phase));
    }
    (y + 16.0, body)
}

/// Policies: time to recovery against double runs; the size of a dot shows the needless kills.
pub(super) fn scatter(comparison: &Comparison) -> (f64, String) {
    let (height, top, bottom) = (430.0, 28.0, 380.0);
    let mut body = text(
        16.0,
        12.0,
        "",
        "Time to recovery (p90) against double-run seconds of a seed; a larger dot: more kills in vain",
    );
    let policies = &comparison.policies;
    let never = policies.iter().any(|it| it.time_to_recovery.p90.is_none() && it.lost > 0);
    let longest = policies.iter().filter_map(|it| it.time_to_recovery.p90).max().unwrap_or(0).max(1000);
    let most = policies.iter().map(|it| it.double_run_seconds.mean).fold(1.0, f64::max);
    let kills = policies.iter().map(|it| it.killed_in_vain.mean).fold(1.0, f64::max);
    let x = |seconds: f64| LEFT + seconds / most * (WIDTH - RIGHT - LEFT - 120.0);
    let headroom = if never { 40.0 } else { 10.0 };
    #[expect(clippy::cast_precision_loss, reason = "a place in a plot")]
    let y = |time: Option<Millis>| match time {
        Some(time) => bottom - time as f64 / longest as f64 * (bottom - top - headroom),
        None => top + 8.0,
    };
    for share in [0, 1, 2, 3, 4] {
        let time = longest * share / 4;
        body.push_str(&rule(LEFT, y(Some(time)), WIDTH - RIGHT, y(Some(time))));
        body.push_str(&text_end(LEFT - 8.0, y(Some(time)) + 4.0, "soft", &span_text(time)));
        let seconds = most * f64::from(u8::try_from(share).unwrap_or(0)) / 4.0;
        body.push_str(&text_middle(x(seconds), bottom + 18.0, "soft", &format!("{seconds:.0} s")));
    }
    if never {
        body.push_str(&text_end(LEFT - 8.0, top + 12.0, "soft", "never"));
    }
    let mut front: Vec<(f64, f64)> = Vec::new();
    // Policies at the same place share a label.
    let mut labels: Vec<(f64, f64, String)> = Vec::new();
    for (position, policy) in policies.iter().enumerate() {
        let is_best = comparison.recommendation.as_ref().is_some_and(|it| it.policy == policy.policy);
        let in_front = comparison.pareto_front.contains(&policy.policy);
        let class = match (is_best, in_front) {
            (true, _) => "best",
            (false, true) => "dot",
            (false, false) => "beaten",
        };
        let time = if policy.lost == 0 { Some(0) } else { policy.time_to_recovery.p90 };
        let (cx, cy) = (x(policy.double_run_seconds.mean), y(time));
        if in_front {
            front.push((cx, cy));
        }
        let radius = 4.0 + 8.0 * (policy.killed_in_vain.mean / kills).sqrt();
        let _ = write!(
            body,
            "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"{radius:.1}\"><title>{}</title></circle>",
            escaped(&policy.policy)
        );
        let label =
            if is_best { format!("{} (recommended)", position + 1) } else { (position + 1).to_string() };
        let (lx, ly) = (cx + radius + 3.0, cy - radius);
        match labels.iter_mut().find(|(x, y, _)| (*x - lx).abs() < 12.0 && (*y - ly).abs() < 12.0) {
            Some((.., known)) => {
                let _ = write!(known, ", {label}");
            }
            None => labels.push((lx, ly, label)),
        }
    }
    labels.iter().for_each(|(x, y, label)| body.push_str(&text(*x, *y, "", label)));
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let points: String = front.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
    let _ = write!(body, "<polyline class=\"line\" opacity=\".5\" points=\"{points}\"/>");
    let mut at = height;
    for (position, policy) in policies.iter().enumerate() {
        body.push_str(&text(LEFT, at, "soft", &format!("{}  {}", position + 1, cut(&policy.policy, 110))));
        at += 16.0;
    }
    (at + 4.0, body)
}

/// Failures and marks of nodes, and how much of each workload ran, over time.
pub(super) fn timeline(record: &Record) -> (f64, String) {
    let end = record.end.max(1);
    let (x, ticks) = time_scale(end);
    let mut body = String::new();
    let mut nodes: Vec<&str> =
        record.incidents.iter().flat_map(|it| it.nodes.iter().map(String::as_str)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let hidden = nodes.len().saturating_sub(MOST_NODES);
    let mut y = 8.0;
    for node in nodes.iter().take(MOST_NODES) {
        body.push_str(&text_end(LEFT - 8.0, y + 13.0, "", &cut(node, LABEL)));
        body.push_str(&rule(LEFT, y + ROW - 2.0, WIDTH - RIGHT, y + ROW - 2.0));
        for incident in
            record.incidents.iter().filter(|it| it.nodes.iter().any(|it| it == node) && it.at < end)
        {
            let (from, to) = (x(incident.at), x(incident.until.unwrap_or(end).min(end)));
            let _ = write!(
                body,
                "<rect class=\"{}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"7\"><title>{} of {} at {}</title></rect>",
                incident.fault.name(),
                y + 2.0,
                (to - from).max(2.0),
                incident.fault.name(),
                escaped(&incident.named),
                span_text(incident.at)
            );
        }
        if let Some(life) = record.nodes.get(*node) {
            for (from, to) in life.unreachable.iter().filter(|(from, _)| *from >= 0) {
                let (from, to) = (x(*from), x(to.unwrap_or(end).min(end)));
                let width = (to - from).max(2.0);
                let _ = write!(
                    body,
                    "<rect class=\"seen\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"6\"><title>marked unreachable</title></rect>",
                    y + 11.0
                );
            }
            let marks = life.out_of_service.iter().copied().chain(life.claim_deleted).filter(|at| *at >= 0);
            for at in marks {
                let _ = write!(
                    body,
                    "<circle class=\"out\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>given up at {}</title></circle>",
                    x(at),
                    y + 14.0,
                    span_text(at)
                );
            }
        }
        y += ROW;
    }
    if hidden > 0 {
        body.push_str(&text(LEFT, y + 12.0, "soft", &format!("and {hidden} more nodes")));
        y += ROW;
    }
    y += 8.0;
    for (position, workload) in record.workloads.iter().enumerate() {
        let height = 34.0;
        body.push_str(&text_end(LEFT - 8.0, y + 15.0, "", &cut(&workload.name, LABEL)));
        body.push_str(&text_end(
            LEFT - 8.0,
            y + 30.0,
            "soft",
            &format!("{} {}", workload.units, workload.kind),
        ));
        body.push_str(&running(record, position, y, height, &x));
        y += height + 10.0;
    }
    for tick in ticks {
        body.push_str(&text_middle(x(tick), y + 12.0, "soft", &span_text(tick)));
    }
    (y + 22.0, body)
}

/// The number of running pods of a workload, over time.
fn running(record: &Record, workload: usize, top: f64, height: f64, x: &impl Fn(Millis) -> f64) -> String {
    let end = record.end;
    let mut steps: Vec<(Millis, i64)> = Vec::new();
    for run in record.runs.iter().filter(|run| record.pods[run.pod].workload == workload) {
        let from = run.from.clamp(0, end);
        let to = run.ended.map_or(end, |(at, _)| at).clamp(from, end);
        steps.extend([(from, 1), (to, -1)]);
    }
    steps.sort_unstable();
    let wanted = i64::from(record.workloads[workload].units);
    let mut most = wanted.max(1);
    let mut count = 0;
    let mut levels: Vec<(Millis, i64)> = vec![(0, 0)];
    for (at, change) in steps {
        count += change;
        most = most.max(count);
        match levels.last_mut() {
            Some(last) if last.0 == at => last.1 = count,
            _ => levels.push((at, count)),
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a place in a plot")]
    let y = |count: i64| top + height - count as f64 / most as f64 * height;
    let mut path = format!("M{:.1} {:.1}", x(0), top + height);
    let mut last = 0;
    for (at, count) in &levels {
        let _ = write!(path, " L{:.1} {:.1} L{:.1} {:.1}", x(*at), y(last), x(*at), y(*count));
        last = *count;
    }
    let _ = write!(path, " L{:.1} {:.1} L{:.1} {:.1} Z", x(end), y(last), x(end), top + height);
    let line = y(wanted);
    format!(
        "<path class=\"runs\" d=\"{path}\"/><path class=\"wanted\" d=\"M{LEFT} {line:.1} L{:.1} {line:.1}\"/>",
        WIDTH - RIGHT
    )
}

/// The x coordinates of times from 0 to the longest, and the ticks.
fn time_scale(longest: Millis) -> (impl Fn(Millis) -> f64, Vec<Millis>) {
    const STEPS: [Millis; 13] = [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400];
    let step = STEPS.into_iter().map(|it| it * 1000).find(|step| longest / step <= 8).unwrap_or(86_400_000);
    let ticks = (0..=longest / step).map(|number| number * step).collect();
    #[expect(clippy::cast_precision_loss, reason = "a place in a plot")]
    let x = move |time: Millis| {
        LEFT + time.clamp(0, longest) as f64 / longest as f64 * (WIDTH - LEFT - RIGHT - 40.0)
    };
    (x, ticks)
}

fn rule(x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!("<line class=\"rule\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
}

fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words))
}

fn text_end(x: f64, y: f64, class: &str, words: &str) -> String {
    format!("<text class=\"{class}\" text-anchor=\"end\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words))
}

fn text_middle(x: f64, y: f64, class: &str, words: &str) -> String {
    format!(
        "<text class=\"{class}\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        escaped(words)
    )
}

/// Shortens a name to this many characters. Keeps the end, because similar names differ in a value or number at the
/// end.
fn cut(words: &str, most: usize) -> String {
    let count = words.chars().count();
    if count <= most {
        return words.to_owned();
    }
    format!("…{}", words.chars().skip(count + 1 - most).collect::<String>())
}

/// Escapes text for markup: names come from files that users write.
pub(super) fn escaped(words: &str) -> String {
    let mut safe = String::with_capacity(words.len());
    for c in words.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            c if c.is_control() => safe.push(char::REPLACEMENT_CHARACTER),
            c => safe.push(c),
        }
    }
    safe
}

#[expect(clippy::cast_precision_loss, reason = "a place in a plot")]
fn float(count: usize) -> f64 {
    count as f64
}
