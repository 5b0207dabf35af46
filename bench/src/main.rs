//! Benchmarks, most of them on the real control plane. Each prints a table; `bench/README.md` says how they measure.

mod embedded;
mod nodes;
mod process;
mod zombie;

use std::process::ExitCode;

use clap::Parser;

/// Benchmarks
#[derive(Parser)]
enum Benchmark {
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
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Benchmark::parse() {
        Benchmark::Embedded(sizes) => embedded::run(&sizes).await,
        Benchmark::Nodes { nodes, pods } => nodes::run(nodes, pods).await,
        Benchmark::Zombie(sizes) => zombie::run(&sizes).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
