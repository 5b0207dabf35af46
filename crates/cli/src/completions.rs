//! `salvor completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::error::CliError;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to complete
    shell: Shell,
}

pub(crate) fn execute(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "salvor", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
