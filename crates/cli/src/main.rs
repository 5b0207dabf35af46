//! The `salvor` command: runs the operator, explains its verdicts, and prints the manifests that install it.

mod cli;
mod cluster;
mod completions;
mod config;
mod demo;
mod docs;
mod doctor;
mod error;
mod evict;
mod explain;
mod live;
mod local_cluster;
mod logging;
mod manifests;
mod opt_in;
mod output;
mod pause;
mod run;
mod settings;
mod simulate;
mod status;
mod uninstall;
mod why;

use std::process::ExitCode;

/// A failure storm allocates and frees thousands of objects. The C library's allocator keeps memory it once used: with
/// two threads it kept a quarter more after the Job benchmark, and took slightly more CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::read().execute().unwrap_or_else(|error| {
        output::print_error(&error);
        error.exit_code()
    })
}
