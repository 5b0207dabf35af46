//! What running AppWrappers costs: Salvor beside the controller that users have today, in one run.

mod contender;
mod load;
mod report;
mod turn;

use std::path::PathBuf;

use salvor_testkit::peers::AppWrapperController;

use self::contender::Contender;
use crate::running::build_salvor;

/// How much of everything.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Sizes {
    /// AppWrappers of one Job
    #[arg(long, default_value_t = 500, value_name = "N")]
    appwrappers: usize,
    /// AppWrappers whose pod fails
    #[arg(long, default_value_t = 20, value_name = "N")]
    failures: usize,
    /// Turns of each contender; medians are reported
    #[arg(long, default_value_t = 1, value_name = "N")]
    rounds: usize,
    /// Measure only the other one
    #[arg(long)]
    without_salvor: bool,
    /// Measure only Salvor
    #[arg(long)]
    without_upstream: bool,
    /// Measure this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// Where the table is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/appwrappers.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

/// Measures everything, prints the page and writes it.
pub(crate) async fn run(sizes: &Sizes) -> Result<(), String> {
    let mut contenders = Vec::new();
    if !sizes.without_salvor {
        contenders.push(Contender::Salvor(sizes.salvor.clone().map_or_else(build_salvor, Ok)?));
    }
    if !sizes.without_upstream {
        contenders.push(Contender::Upstream(AppWrapperController::build().map_err(|e| e.to_string())?));
    }
    let (mut salvor, mut upstream) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        for contender in &contenders {
            let turn = turn::measure(contender, sizes).await?;
            eprintln!("{}: {turn:?}", contender.name());
            match contender {
                Contender::Salvor(_) => salvor.push(turn),
                Contender::Upstream(_) => upstream.push(turn),
            }
        }
        // The second contender finds a warmer machine, so they alternate.
        contenders.reverse();
    }
    let page = report::page(sizes, &salvor, &upstream);
    eprintln!("{page}");
    std::fs::write(&sizes.output, page)
        .map_err(|e| format!("the table cannot be written to {}: {e}", sizes.output.display()))
}
