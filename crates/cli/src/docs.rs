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
         Data goes to standard output, all else to standard error.\n\n\
         | exit code | command | meaning |\n|---|---|---|\n\
         | 0 | all | success, and a clean stop; `why` and `status` have answered, also if something is missing; `doctor` has \
         found nothing, or infos only |\n\
         | 1 | all | a failure, such as an object that does not exist or a server that does not answer; `doctor` has found an \
         error; `evict` has not evicted the node, or its time is over; no leader has confirmed `pause` |\n\
         | 2 | all | the command line, an environment variable or a scenario is wrong |\n\
         | 3 | `doctor` | there are warnings, and no error |\n\
         | 4 | `why --exit-code` | something is missing |\n\
         | 128 plus the signal | `evict`, `why --watch`, `status --watch`, `run` | interrupted, or by a second signal in the case \
         of `run` |\n",
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
