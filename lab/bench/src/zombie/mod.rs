//! What zombie recovery costs: memory when idle, and a storm. Salvor, the bare requests, and Kueue, in one run.

pub(crate) mod contender;
mod floor;
mod memory;
pub(crate) mod observer;
mod report;
pub(crate) mod storm;
pub(crate) mod world;

use std::path::PathBuf;

use salvor_testkit::{ControlPlane, Part, peers::Kueue};

use self::{contender::Contender, memory::Memory, report::Report, storm::Storm, world::Consent};
use crate::running::build_salvor;

/// How much of everything.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Sizes {
    /// Pods in the cluster whose memory is measured
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pods: usize,
    /// Nodes in that cluster
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    nodes: usize,
    /// Pods there that carry a consent annotation
    #[arg(long, default_value_t = 200, value_name = "N")]
    opted_in: usize,
    /// Zombies that come due at once
    #[arg(long, default_value_t = 2_000, value_name = "N")]
    zombies: usize,
    /// Storms of each kind, each beside a floor of its own; medians are reported
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Do not measure memory
    #[arg(long)]
    without_memory: bool,
    /// Do not compare with Kueue
    #[arg(long)]
    without_kueue: bool,
    /// Measure this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// Where the table is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/zombie.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

/// Measures everything, prints the page and writes it.
pub(crate) async fn run(sizes: &Sizes) -> Result<(), String> {
    let salvor = Contender::Salvor(sizes.salvor.clone().map_or_else(build_salvor, Ok)?);
    let kueue = if sizes.without_kueue {
        Err("left out by --without-kueue".to_owned())
    } else {
        Kueue::build().map_err(|e| e.to_string())
    };
    let mut report = Report::new(sizes.clone());
    report.salvor.storms = storms(&salvor, &[Consent::Terminate, Consent::Delete], sizes).await?;
    let kueue = match kueue {
        Ok(kueue) => Some(Contender::Kueue(kueue)),
        Err(problem) => {
            report.kueue_is_missing_because = Some(problem);
            None
        }
    };
    if let Some(kueue) = &kueue {
        // Kueue knows no other annotation.
        report.kueue.storms = storms(kueue, &[Consent::Delete], sizes).await?;
    }
    if !sizes.without_memory {
        let (salvor, kueue) = memories(&salvor, kueue.as_ref(), sizes).await?;
        report.salvor.memory = Some(salvor);
        report.kueue.memory = kueue;
    }
    let page = report.page();
    eprintln!("{page}");
    std::fs::write(&sizes.output, page)
        .map_err(|e| format!("the table cannot be written to {}: {e}", sizes.output.display()))
}

/// Every kind of storm has its own control plane, so that none finds the leftovers of another.
async fn storms(contender: &Contender, consents: &[Consent], sizes: &Sizes) -> Result<Vec<Storm>, String> {
    let mut storms = Vec::new();
    for &consent in consents {
        let plane = plane().await?;
        contender.prepare(&plane).await?;
        storms.push(storm::measure(&plane, contender, consent, sizes.zombies, sizes.rounds).await?);
    }
    Ok(storms)
}

/// One after the other on the same cluster: neither writes anything there.
async fn memories(
    salvor: &Contender,
    kueue: Option<&Contender>,
    sizes: &Sizes,
) -> Result<(Memory, Option<Memory>), String> {
    let plane = plane().await?;
    let pod_bytes = memory::fill(&plane, sizes).await?;
    let of_salvor = memory::measure(&plane, salvor, pod_bytes).await?;
    let of_kueue = match kueue {
        Some(kueue) => {
            kueue.prepare(&plane).await?;
            Some(memory::measure(&plane, kueue, pod_bytes).await?)
        }
        None => None,
    };
    Ok((of_salvor, of_kueue))
}

/// etcd and the API server. Only the benchmark and the contender write to it.
async fn plane() -> Result<ControlPlane, String> {
    ControlPlane::builder().start().await.map_err(|e| e.to_string())
}

pub(crate) fn pids(plane: &ControlPlane) -> Vec<u32> {
    Part::ALL.into_iter().filter_map(|part| plane.pid(part)).collect()
}
