//! The `salvor` command: runs the operator, explains its verdicts, and writes what installs it.

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
mod local_cluster;
mod logging;
mod manifests;
mod output;
mod pause;
mod run;
mod settings;
mod simulate;
mod uninstall;
mod why;

use std::process::ExitCode;

/// A storm is thousands of objects that come, are read and go. The C library's allocator keeps what it had once: seen with
/// two threads, a quarter more in all after the benchmark of Jobs, for a little more CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::read().execute().unwrap_or_else(|error| {
        output::complain(&error);
        error.exit_code()
    })
}
