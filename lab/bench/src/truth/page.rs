//! The page: the predictions, the measurements, and why they differ where they do.

use std::fmt::Write;

use salvor_simulate::report::Phases;

use super::compare::{Comparison, Distance, Line, Side};

const HEAD: &str = "\
# Is the simulation true?

<!-- Written by `make bench-simulate-truth`. -->

The scenarios of `docs/scenarios/truth` are played twice. **Predicted** is [`salvor simulate`](../guides/simulate.md): the cluster in memory, in virtual
time. **Measured** is the real control plane: etcd, kube-apiserver, kube-controller-manager (which runs the Jobs) and kube-scheduler as they
ship, with the default timers of node lifecycle, and `salvor run` as a process. Kubelets and disks are simulated in both.
";

const HOW: &str = "\
What happened on the real control plane is read from the benchmark's own watches of pods and nodes, when a change arrives, and from the
kubelets' record of what ran. Salvor is not asked: `wait` ends where the rules say so, counted from what the API shows. In the simulation it
ends when Salvor finds that it may act. Times are seconds, means of the pods that were replaced; in brackets are the
least and the largest mean of one seed. [What the phases mean](../guides/simulate.md#what-the-numbers-mean).

A difference of at most 10 % is given in percent, and a larger one in seconds, with its cause:

- `a`: at most about a second. Requests, watches and the scheduler take no time in virtual time, and some on a machine. And
  kube-controller-manager waits one second for more changes of pods before it looks at a Job (`replace`); Salvor's Job controller, which stands
  for it in the simulation, does not.
- `b`: within what the seeds span. When a machine fails, its Lease was renewed up to ten seconds before; node lifecycle looks
  every five seconds, and gives up one node of a zone every ten. Both sides draw these times at random.
- numbers: below the table.
";

/// kube-controller-manager skipped the turn of a node. Its log shows it; the page gives the number of times.
const STALE: &str = "kube-controller-manager gives up one node of a zone every ten seconds. It let a turn pass because its own view still showed \
    the node as Ready, a moment after it had itself written otherwise, and the node waited for the next turn. Its log says so; times:";
/// The Job controller waits for more changes of pods.
const BATCHED: &str = "kube-controller-manager waits one second for more changes of pods before it looks at a Job. Salvor's Job controller, \
    which stands for it in the simulation, does not.";

/// The cause of a difference that was investigated.
fn known(comparison: &Comparison, phase: &str, by: f64) -> Option<String> {
    match phase {
        "evict" | "in all" if by > 0.0 && comparison.stale > 0 => {
            Some(format!("{STALE} {}.", comparison.stale))
        }
        "replace" if (0.0..2.0).contains(&by) => Some(BATCHED.to_owned()),
        _ => None,
    }
}

pub(super) fn page(all: &[Comparison], seeds: u64, rounds: u64) -> String {
    let mut page = format!("{HEAD}\n{HOW}\nSeeds: {seeds}. Rounds on the real control plane: {rounds}.\n");
    for comparison in all {
        scenario(&mut page, comparison);
    }
    page
}

fn scenario(page: &mut String, it: &Comparison) {
    let file = format!("scenarios/truth/{}.yaml", it.name);
    line(page, format_args!("\n## {}\n\n[{file}](../{file})\n", it.title));
    line(page, format_args!("| of | pods | | {} | in all |", Phases::NAMES.join(" | ")));
    line(page, format_args!("|---|--:|---|{}", "--:|".repeat(Phases::NAMES.len() + 1)));
    let mut causes = Vec::new();
    for row in &it.lines {
        cells(page, it, row, &mut causes);
    }
    if !causes.is_empty() {
        page.push('\n');
    }
    for (number, cause) in causes.iter().enumerate() {
        line(page, format_args!("{}. {cause}", number + 1));
    }
}

fn cells(page: &mut String, comparison: &Comparison, row: &Line, causes: &mut Vec<String>) {
    let predicted = row.predicted.spans.iter().map(|span| {
        let (least, most) = span.range;
        if most - least < 0.1 {
            format!("{:.1}", span.mean)
        } else {
            format!("{:.1} ({least:.0}–{most:.0})", span.mean)
        }
    });
    let predicted: Vec<String> = predicted.collect();
    let measured: Vec<String> = row.measured.spans.iter().map(|span| format!("{:.1}", span.mean)).collect();
    let phases = Phases::NAMES.into_iter().chain(["in all"]);
    let differences = row.distances().zip(phases).map(|(distance, phase)| match distance {
        Distance::Near(share) => format!("{:+.0} %", share * 100.0),
        Distance::Short(by) => format!("{by:+.1} `a`"),
        Distance::Spread(by) => format!("{by:+.1} `b`"),
        Distance::Far(by) => {
            let number = cause(causes, known(comparison, phase, by));
            format!("**{by:+.1}** `{number}`")
        }
    });
    let differences: Vec<String> = differences.collect();
    line(
        page,
        format_args!("| {} | {} | predicted | {} |", row.name, pods(&row.predicted), predicted.join(" | ")),
    );
    line(page, format_args!("| | {} | measured | {} |", pods(&row.measured), measured.join(" | ")));
    line(page, format_args!("| | | difference | {} |", differences.join(" | ")));
}

fn pods(side: &Side) -> String {
    if side.lost == side.replaced {
        side.lost.to_string()
    } else {
        format!("{} of {}", side.replaced, side.lost)
    }
}

/// The number of a cause, which is listed once.
fn cause(causes: &mut Vec<String>, told: Option<String>) -> usize {
    let told = told.unwrap_or_else(|| "**Not explained.**".to_owned());
    let position = causes.iter().position(|known| *known == told).unwrap_or_else(|| {
        causes.push(told);
        causes.len() - 1
    });
    position + 1
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}
