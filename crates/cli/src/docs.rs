//! `salvor docs`: generates the reference pages from the code.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use crate::error::CliError;
use crate::manifests::chart;

/// Fixed, so that the page does not depend on the terminal.
const HELP_WIDTH: usize = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct DocsArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The folder of the Helm chart, for the files of it that are generated
    #[arg(long, value_name = "DIR")]
    chart: Option<PathBuf>,
}

pub(crate) fn execute(args: &DocsArgs, salvor: clap::Command) -> Result<(), CliError> {
    let pages = [
        ("cli.md", cli_reference(salvor)),
        ("configuration.md", salvor_api::config::reference()),
        ("metrics.md", salvor_operator::metrics_reference()),
    ];
    for (name, text) in pages {
        let path = args.folder.join(name);
        write(path, &text)?;
    }
    if let Some(chart) = &args.chart {
        for (name, text) in chart::files()? {
            write(chart.join(name), &text)?;
        }
    }
    Ok(())
}

fn write(path: PathBuf, text: &str) -> Result<(), CliError> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(&path, text)).map_err(|source| CliError::WriteFile { path, source })
}

fn cli_reference(salvor: clap::Command) -> String {
    let mut page = String::from(
        "# Command line\n\n\
         <!-- Generated from the command's own definitions by `salvor docs`; change them there. -->\n\n\
         A flag beats its environment variable, which beats the [configuration file](configuration.md), which beats the \
         default; feature gates do so one by one. A variable that is empty counts as not set. `SALVOR_LOG` chooses what is \
         logged, as in `SALVOR_LOG=info,salvor_operator=debug`.\n\n\
         Data goes to standard output, all else to standard error. The exit code is 0 after success and a clean stop, 1 after \
         a failure, 2 if the command line or an environment variable is wrong, and 128 plus the signal if `evict` is \
         interrupted or a second signal ends `run`.\n",
    );
    let mut salvor = salvor.term_width(HELP_WIDTH);
    salvor.build();
    describe(&mut page, &salvor);
    page
}

fn describe(page: &mut String, command: &clap::Command) {
    let title = command.get_bin_name().unwrap_or(command.get_name());
    let help = command.clone().render_long_help().to_string();
    let help: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
    // Writing to a string cannot fail.
    let _ = write!(page, "\n## `{title}`\n\n```text\n{}\n```\n", help.join("\n"));
    for inner in command.get_subcommands() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            describe(page, inner);
        }
    }
}
