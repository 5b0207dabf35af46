//! What running Jobs costs: many small ones and a large one, Salvor beside kube-controller-manager in one run.

mod contender;
mod load;
mod report;
mod turn;

use std::path::PathBuf;

use salvor_testkit::{ControlPlane, Part};

use self::{contender::Contender, report::Report};
use crate::running::build_salvor;

/// How much of everything.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Sizes {
    /// Jobs of one pod
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    jobs: usize,
    /// Pods of the one Indexed Job
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    pods: usize,
    /// Turns of each contender; medians are reported
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Measure this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// Where the table is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/jobs.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

/// Measures everything, prints the page and writes it.
pub(crate) async fn run(sizes: &Sizes) -> Result<(), String> {
    let salvor = Contender::Salvor(sizes.salvor.clone().map_or_else(build_salvor, Ok)?);
    let built_in = Contender::BuiltIn;
    let plane = ControlPlane::builder()
        .with(Part::ControllerManager)
        .flag(Part::ControllerManager, "--controllers=job-controller")
        .flag(Part::ControllerManager, "--kube-api-qps=10000")
        .flag(Part::ControllerManager, "--kube-api-burst=10000")
        .start()
        .await
        .map_err(|e| e.to_string())?;
    // A controller that is not measured does not run.
    plane.crash(Part::ControllerManager).await.map_err(|e| e.to_string())?;
    let mut report = Report::new(sizes.clone());
    for round in 0..sizes.rounds {
        // The second contender finds a larger database, so they alternate.
        let order = if round % 2 == 0 { [&salvor, &built_in] } else { [&built_in, &salvor] };
        for contender in order {
            let turn = turn::measure(&plane, contender, round, sizes).await?;
            eprintln!("{}: {turn:?}", contender.name());
            report.take(contender, turn);
        }
    }
    let page = report.page();
    eprintln!("{page}");
    std::fs::write(&sizes.output, page)
        .map_err(|e| format!("the table cannot be written to {}: {e}", sizes.output.display()))
}
