//! Benchmarks on the real control plane. Each prints a table; `bench/README.md` keeps what was seen.

mod nodes;
mod process;

use std::process::ExitCode;

const USAGE: &str = "usage: salvor-bench nodes [NODES] [PODS]";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = |i: usize, default: usize| match arguments.get(i).map(|a| a.parse()) {
        None => Ok(default),
        Some(Ok(n)) if n > 0 => Ok(n),
        Some(_) => Err(format!(
            "{:?} is not a positive count\n{USAGE}",
            arguments[i]
        )),
    };
    let result = match arguments.first().map(String::as_str) {
        Some("nodes") => match (count(1, 1_000), count(2, 10_000)) {
            (Ok(nodes), Ok(pods)) => nodes::run(nodes, pods).await,
            (Err(error), _) | (_, Err(error)) => Err(error),
        },
        Some(other) => Err(format!("{other:?} is not a benchmark\n{USAGE}")),
        None => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
