//! Benchmarks, most of them on the real control plane. Each prints a table; `lab/bench/README.md` explains how they
//! measure.

mod appwrapper;
mod choosing;
mod comparison;
mod embedded;
mod eviction;
mod incidents;
mod job;
mod nodes;
mod process;
mod repair;
mod requests;
mod running;
mod simulate;
mod truth;
mod watching;
mod zombie;

use std::process::ExitCode;

use clap::Parser;

/// The same as in the shipped binary: simulations run in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks
#[derive(Parser)]
enum Benchmark {
    /// AppWrappers: many to Running and to Succeeded, and failures noticed, beside CodeFlare's controller
    Appwrapper(appwrapper::Sizes),
    /// Jobs: many small ones and a large one, beside kube-controller-manager
    Job(job::Sizes),
    /// The embedded API server: requests per second, a watch fanned out, and memory per stored pod
    Embedded(embedded::Sizes),
    /// Many simulated nodes and pods in one process, under the real scheduler and node lifecycle
    Nodes {
        /// Simulated nodes
        #[arg(default_value_t = 1_000)]
        nodes: usize,
        /// Pods that they run
        #[arg(default_value_t = 10_000)]
        pods: usize,
    },
    /// Zombie recovery: memory at rest and a storm, beside bare requests and beside Kueue
    Zombie(zombie::Sizes),
    /// Emptying nodes: one, and many at once, beside bare requests
    Eviction(eviction::Sizes),
    /// Repair in a large cluster: how soon all nodes are judged after a change, and what a node weighs
    Repair(repair::Sizes),
    /// Incidents under Karpenter's own repair rules and under Salvor, side by side in virtual time
    Incidents(incidents::Choice),
    /// An hour of large clusters with failing nodes, each in one process and in virtual time
    Simulate(simulate::Choice),
    /// The same scenarios in virtual time and on the real control plane, phase by phase
    SimulateTruth(truth::Choice),
    /// The tables of docs/guides/choosing.md: runs its commands and writes their output into it
    Choosing(choosing::Choice),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Benchmark::parse() {
        Benchmark::Appwrapper(sizes) => appwrapper::run(&sizes).await,
        Benchmark::Job(sizes) => job::run(&sizes).await,
        Benchmark::Embedded(sizes) => embedded::run(&sizes).await,
        Benchmark::Nodes { nodes, pods } => nodes::run(nodes, pods).await,
        Benchmark::Zombie(sizes) => zombie::run(&sizes).await,
        Benchmark::Eviction(sizes) => eviction::run(&sizes).await,
        Benchmark::Repair(sizes) => repair::run(&sizes).await,
        Benchmark::Incidents(choice) => incidents::run(choice).await,
        Benchmark::Simulate(choice) => simulate::run(choice).await,
        Benchmark::SimulateTruth(choice) => truth::run(choice).await,
        Benchmark::Choosing(choice) => choosing::run(&choice),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
