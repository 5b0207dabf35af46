//! `salvor simulate merge`: joins what shards have reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use salvor_simulate::report::{Comparison, Shard, comparison_table, summary_table, svg};

use super::{Form, SimulateError, answer, pretty, read};
use crate::error::CliError;
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// The folder of the reports
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The form of the report
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    output: Form,
}

pub(super) fn execute(args: &MergeArgs) -> Result<ExitCode, CliError> {
    let shards = shards(&args.folder)?;
    let title = shards.first().map(|shard| shard.scenario.clone()).unwrap_or_default();
    if let Some(other) = shards.iter().find(|shard| shard.scenario != title) {
        return Err(SimulateError::Mixed(title, other.scenario.clone()).into());
    }
    let comparison = Comparison::joined(shards);
    let text = match args.output {
        Form::Table => table(&title, &comparison),
        Form::Json => pretty(&answer(&title, &comparison, Vec::new()))?,
        Form::Svg => svg(&title, &comparison),
        Form::Html => return Err(SimulateError::NoHistory.into()),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The report of many plays.
pub(super) fn table(title: &str, comparison: &Comparison) -> String {
    match comparison.policies.as_slice() {
        [one] => summary_table(title, one),
        _ => comparison_table(title, comparison),
    }
}

/// All reports of a folder, in the order of their names.
fn shards(folder: &Path) -> Result<Vec<Shard>, SimulateError> {
    let unreadable = |source| SimulateError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    if files.is_empty() {
        return Err(SimulateError::NoShards(folder.to_owned()));
    }
    let shard = |path: PathBuf| {
        let text = read(&path)?;
        serde_json::from_str::<Shard>(&text)
            .map_err(|error| SimulateError::Shard { path, problem: error.to_string() })
    };
    files.into_iter().map(shard).collect()
}
