//! `salvor completions`: completion scripts for shells.

use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to complete
    shell: Shell,
}

pub(crate) fn execute(args: &CompletionsArgs, mut salvor: clap::Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut salvor, "salvor", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
