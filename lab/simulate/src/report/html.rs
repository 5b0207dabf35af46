//! A report as a self-contained HTML page: no script, nothing loaded from elsewhere.

use std::fmt::Write as _;

use super::{
    Comparison, Report, Summary, comparison_table, report_table,
    svg::{STYLE, distribution, escaped, inline, phases, scatter, timeline},
    table::percent,
};
use crate::play::Record;

#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    pub title: &'a str,
    pub say: &'a str,
    pub comparison: &'a Comparison,
    /// The worst seed of the recommended policy, or of the first: its report and its record. Joined reports have none.
    pub worst: Option<(&'a Report, &'a Record)>,
    /// The command that shows that seed in the demo.
    pub watch: Option<&'a str>,
}

/// At most this many seeds are listed.
const MOST_SEEDS: usize = 200;

/// Printed pages always use the light scheme.
const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#5b6470;--line:#d5dae0;--card:#f6f8fa;--good:#1a7f37;--bad:#b3261e}\
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171c;--fg:#e6e9ee;--soft:#9aa4b2;--line:#39414d;--card:#1c2129;--good:#56d364;--bad:#ff8a80}}\
body{font:15px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg);margin:0 auto;max-width:1040px;padding:24px}\
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 8px}p{margin:4px 0 12px}.soft{color:var(--soft)}\
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;min-width:130px}\
.card b{display:block;font-size:20px}.bad b{color:var(--bad)}svg{width:100%;height:auto}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}tr.worst td{color:var(--bad);font-weight:600}\
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;overflow-x:auto;font-size:12px}\
code{background:var(--card);border-radius:4px;padding:1px 4px}a{color:inherit}\
@media print{body{max-width:none;padding:0;font-size:11px}h2{break-after:avoid}svg,tr,.card{break-inside:avoid}.card{min-width:0}.wide{overflow:visible}\
th,td{padding:2px 5px}pre{white-space:pre-wrap;overflow-wrap:anywhere;overflow:visible;font-size:7px;padding:6px}}";

pub fn html(page: &Page<'_>) -> String {
    let Page { title, say, comparison, worst, watch: _ } = *page;
    let shown = match (worst, &comparison.recommendation) {
        (Some((report, _)), _) => comparison.policies.iter().find(|it| it.policy == report.policy),
        (None, Some(best)) => comparison.policies.iter().find(|it| it.policy == best.policy),
        (None, None) => comparison.policies.first(),
    };
    let mut body = format!("<h1>{}</h1>", escaped(title));
    if !say.is_empty() {
        let _ = write!(body, "<p class=\"soft\">{}</p>", escaped(say));
    }
    if comparison.policies.len() > 1 {
        body.push_str("<h2>Policies on the same failures</h2>");
        body.push_str(&inline("Policies: time to recovery against double-run seconds", scatter(comparison)));
        let rows: Vec<_> = comparison.policies.iter().map(|it| (it.policy.as_str(), &it.phases)).collect();
        body.push_str(&inline("Phases of each policy", phases(&rows)));
        let _ = write!(body, "<pre>{}</pre>", escaped_lines(&comparison_table(title, comparison)));
    }
    if let Some(summary) = shown {
        of_policy(&mut body, summary);
    }
    match worst {
        Some((report, record)) => of_seed(&mut body, page, shown.map_or(1, |it| it.seeds), report, record),
        None => of_worst(&mut body, shown),
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{}</title><style>{PAGE_STYLE}{STYLE}</style></head><body>{body}</body></html>\n",
        escaped(title)
    )
}

/// The seed that is shown in full.
fn of_seed(body: &mut String, page: &Page<'_>, seeds: u64, report: &Report, record: &Record) {
    let _ = write!(
        body,
        "<h2 id=\"worst\">{}</h2><p class=\"soft\">Upper bar of a node: what really happened to it. Outlined bar: the time in which it was \
         marked unreachable. Dot: it was given up. Below: how many pods of each workload really ran; the dashed line is how many should.</p>",
        escaped(&match seeds {
            1 => format!("Seed {}", report.seed),
            _ => format!("The worst seed: {}", report.seed),
        })
    );
    if let Some(watch) = page.watch {
        let _ =
            write!(body, "<p>Watch it, with pause, steps and any time: <code>{}</code></p>", escaped(watch));
    }
    body.push_str(&inline("Timeline of nodes and workloads", timeline(record)));
    let per_workload: Vec<_> = report
        .workloads
        .iter()
        .filter(|it| it.recovery.replaced > 0)
        .map(|it| (it.name.as_str(), &it.recovery.phases))
        .collect();
    if !per_workload.is_empty() {
        body.push_str(&inline("Phases by workload", phases(&per_workload)));
    }
    let _ = write!(body, "<pre>{}</pre>", escaped_lines(&report_table(page.title, report)));
}

/// Says how to play the worst seed. Merged reports contain no history of it to show.
fn of_worst(body: &mut String, shown: Option<&Summary>) {
    let Some((summary, worst)) = shown.and_then(|it| Some((it, it.worst_seed?))) else { return };
    let _ = write!(
        body,
        "<h2 id=\"worst\">The worst seed: {worst}</h2><p>The reports of parts have no history. Play it alone with \
         <code>--seed {worst} -o html</code>, or watch it: <code>{}</code></p>",
        escaped(&super::table::watch(summary, worst))
    );
}

fn of_policy(body: &mut String, summary: &Summary) {
    let time = |time| super::table::perhaps(time);
    let times = &summary.time_to_recovery;
    let lost = summary.lost > 0;
    let cards = [
        ("median time to recovery", if lost { time(times.p50) } else { "-".to_owned() }, false),
        ("90% back within", if lost { time(times.p90) } else { "-".to_owned() }, lost && times.p90.is_none()),
        ("longest", if lost { time(times.max) } else { "-".to_owned() }, lost && times.max.is_none()),
        (
            "not recovered",
            format!("{} of {}", summary.not_recovered, summary.lost),
            summary.not_recovered > 0,
        ),
        ("goodput, mean", percent(summary.goodput.mean), false),
        ("double-run seconds a seed", format!("{:.1}", summary.double_run_seconds.mean), false),
        (
            "at-most-once violations",
            summary.at_most_once_violations.to_string(),
            summary.at_most_once_violations > 0,
        ),
        ("kills in vain a seed", format!("{:.1}", summary.killed_in_vain.mean), false),
    ];
    let _ = write!(body, "<h2>Policy {}</h2><div class=\"cards\">", escaped(&summary.policy));
    for (name, value, is_bad) in cards {
        let class = if is_bad { "card bad" } else { "card" };
        let _ = write!(body, "<div class=\"{class}\"><b>{}</b>{name}</div>", escaped(&value));
    }
    body.push_str("</div>");
    body.push_str(&inline("Distribution of the time to recovery", distribution(summary)));
    body.push_str(&inline("Phases of a recovery", phases(&[(summary.policy.as_str(), &summary.phases)])));
    if summary.seeds < 2 {
        return;
    }
    let worst = summary.worst_seed.unwrap_or_default();
    let _ = write!(
        body,
        "<h2>{} seeds</h2><p><a href=\"#worst\">Go to the worst seed, {worst}</a></p><div class=\"wide\"><table><thead><tr><th>seed<th>p50<th>p90\
         <th>max<th>not recovered<th>ran twice<th>violations<th>in vain<th>goodput<th>API calls</tr></thead><tbody>",
        summary.seeds
    );
    // The worst first: readers look for those.
    let mut each: Vec<_> = summary.each.iter().collect();
    each.sort_by_key(|it| {
        let longest = if it.lost == 0 { 0 } else { it.time_to_recovery.max.unwrap_or(i64::MAX) };
        std::cmp::Reverse((it.seed == worst, it.at_most_once_violations, it.not_recovered, longest))
    });
    for it in each.iter().take(MOST_SEEDS) {
        let time = |value| if it.lost == 0 { "-".to_owned() } else { time(value) };
        let seed =
            if it.seed == worst { format!("<a href=\"#worst\">{worst}</a>") } else { it.seed.to_string() };
        let _ = write!(
            body,
            "<tr{}><td>{seed}<td>{}<td>{}<td>{}<td>{} of {}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            if it.seed == worst { " class=\"worst\"" } else { "" },
            time(it.time_to_recovery.p50),
            time(it.time_to_recovery.p90),
            time(it.time_to_recovery.max),
            it.not_recovered,
            it.lost,
            super::span_text(it.double_run),
            it.at_most_once_violations,
            it.killed_in_vain,
            percent(it.goodput),
            it.api_calls,
        );
    }
    body.push_str("</tbody></table></div>");
    if each.len() > MOST_SEEDS {
        let _ = write!(
            body,
            "<p class=\"soft\">and {} more seeds, all better; they are in -o json</p>",
            each.len() - MOST_SEEDS
        );
    }
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}
