//! What it costs to evict nodes: from the taint to the last pod gone and the last volume free, beside the bare
//! requests.

mod floor;
mod run;
mod stateful;
mod world;

use std::{fmt::Write, path::PathBuf};

use salvor_testkit::ControlPlane;

use self::run::Round;
use crate::{
    process::{Disturbance, cores},
    running::build_salvor,
};

/// The page mentions it if other processes took more than this share of the machine.
const TOLERATED: f64 = 0.1;
/// The target: at most this many times the floor.
const TARGET: f64 = 1.1;

/// How much of everything.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Sizes {
    /// Pods on the one node that is emptied alone
    #[arg(long, default_value_t = 100, value_name = "N")]
    pods: usize,
    /// Volumes on each node
    #[arg(long, default_value_t = 20, value_name = "N")]
    volumes: usize,
    /// Nodes that are emptied at once
    #[arg(long, default_value_t = 50, value_name = "N")]
    nodes: usize,
    /// Pods on each of them
    #[arg(long, default_value_t = 40, value_name = "N")]
    pods_each: usize,
    /// Rounds of each kind, each beside a floor of its own; medians are reported
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Do not compare with the out-of-service taint
    #[arg(long)]
    without_comparison: bool,
    /// Measure this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// Where the table is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/eviction.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

/// Measures both, prints the page and writes it.
pub(crate) async fn run(sizes: &Sizes) -> Result<(), String> {
    let salvor = sizes.salvor.clone().map_or_else(build_salvor, Ok)?;
    let mut page = format!(
        "# Benchmarks of eviction\n\n\
         <!-- Written by `make bench-eviction`; lab/bench/README.md says how it measures. -->\n\n\
         From the taint to the last pod gone and the last volume free, on {} cores that also run etcd and the API server. \
         Medians of {} rounds, each beside a floor of its own: the bare requests, 32 in flight, on an equal set.\n\n",
        cores(),
        sizes.rounds,
    );
    let mut table = String::from(
        "| what | Salvor | floor | in floors | target | met | writes per pod | CPU | memory before | a quarter in | peak |\n\
         |---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|\n",
    );
    let mut disturbance = Disturbance::default();
    for (what, nodes, pods) in [("one node", 1, sizes.pods), ("many at once", sizes.nodes, sizes.pods_each)] {
        let plane = ControlPlane::builder().start().await.map_err(|e| e.to_string())?;
        let shape = world::Shape { nodes, pods, volumes: sizes.volumes };
        let rounds = run::measure(&plane, &salvor, shape, sizes.rounds).await?;
        disturbance = rounds.iter().map(|round| round.disturbance).fold(disturbance, Disturbance::and);
        let what = format!("{what}: {nodes} × ({pods} pods, {} volumes)", sizes.volumes);
        row(&mut table, &what, &rounds);
    }
    if disturbance.share() > TOLERATED {
        let percent = disturbance.share() * 100.0;
        line(
            &mut page,
            format_args!("> **A disturbed run.** Other processes took {percent:.0} % of the machine.\n"),
        );
    }
    page.push_str(&table);
    if !sizes.without_comparison {
        compare(&mut page, &stateful::measure(&salvor).await?);
    }
    eprintln!("{page}");
    std::fs::write(&sizes.output, page)
        .map_err(|e| format!("the table cannot be written to {}: {e}", sizes.output.display()))
}

fn compare(page: &mut String, comparison: &stateful::Comparison) {
    let cell =
        |seconds: Option<f64>| seconds.map_or("stuck after a minute".to_owned(), |s| format!("{s:.1} s"));
    line(
        page,
        format_args!(
            "\nA StatefulSet with a volume on a machine that is off, under the real controllers and simulated kubelets and disks: from \
             the taint until it runs elsewhere with its volume.\n\n\
             | without help | out-of-service taint, by hand | Salvor |\n|--:|--:|--:|\n| {} | {} | {} |",
            cell(comparison.nobody),
            cell(comparison.out_of_service),
            cell(comparison.salvor),
        ),
    );
}

fn row(table: &mut String, what: &str, rounds: &[Round]) {
    let median = |of: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let ratio = median(&|round| round.seconds / round.floor);
    let met = if ratio <= TARGET { "yes" } else { "**no**" };
    line(
        table,
        format_args!(
            "| {what} | {:.2} s | {:.2} s | {ratio:.2}× | ≤ {TARGET}× | {met} | {:.3} | {:.2} s | {:.1} MB | {:.1} MB | {:.1} MB |",
            median(&|round| round.seconds),
            median(&|round| round.floor),
            median(&|round| round.writes),
            median(&|round| round.cpu),
            median(&|round| round.memory_before),
            median(&|round| round.memory_early),
            median(&|round| round.memory_peak),
        ),
    );
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}
