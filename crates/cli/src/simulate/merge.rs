//! `salvor simulate merge`: merges the reports of shards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use salvor_simulate::report::{Comparison, Page, Shard, comparison_table, html, summary_table, svg};

use super::answer::{Answer, IN_FULL, pretty};
use super::args::{Form, MergeArgs};
use super::error::{SimulateError, read};
use crate::error::CliError;
use crate::output;

pub(super) fn execute(args: &MergeArgs) -> Result<ExitCode, CliError> {
    let mut shards = shards(&args.folder)?;
    let Some((first, one)) = shards.first().map(|(path, shard)| (path.clone(), shard.clone())) else {
        return Err(SimulateError::NoShards(args.folder.clone()).into());
    };
    for (path, shard) in &shards {
        if shard.scenario != one.scenario {
            return Err(SimulateError::Mixed(one.scenario, shard.scenario.clone()).into());
        }
        if shard.fingerprint != one.fingerprint {
            return Err(SimulateError::Foreign { one: first, other: path.clone() }.into());
        }
    }
    let title = one.scenario.as_str();
    let comparison = Comparison::joined(shards.iter().map(|(_, shard)| shard));
    tell_missing(&comparison.missing(shards.iter().filter_map(|(_, shard)| shard.part.as_ref())));
    let text = match args.output {
        Form::Table => table(title, &comparison),
        Form::Json => {
            let in_full = shards.iter_mut().flat_map(|(_, shard)| std::mem::take(&mut shard.reports));
            let in_full = comparison.in_full(in_full);
            let told = if in_full.len() <= IN_FULL { in_full.iter().collect() } else { Vec::new() };
            pretty(&Answer::joined(title, one.fingerprint.clone(), &comparison, told))?
        }
        Form::Svg => svg(title, &comparison),
        Form::Html => html(&Page { title, say: "", comparison: &comparison, worst: None, watch: None }),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Reports the seeds that the shards should contain and do not.
fn tell_missing(missing: &[(u64, u64)]) {
    /// Limits how many ranges are named.
    const NAMED: usize = 10;
    if missing.is_empty() {
        return;
    }
    let named = missing.iter().take(NAMED);
    let mut named: Vec<String> =
        named.map(|(from, to)| if from == to { from.to_string() } else { format!("{from}..{to}") }).collect();
    if missing.len() > NAMED {
        named.push(format!("and {} more ranges", missing.len() - NAMED));
    }
    let seeds = missing.iter().map(|(from, to)| (to - from).saturating_add(1)).fold(0, u64::saturating_add);
    let count = if seeds == 1 { "1 seed is".to_owned() } else { format!("{seeds} seeds are") };
    output::note(&format!("{count} missing, and the report is without: {}", named.join(", ")));
}

pub(super) fn table(title: &str, comparison: &Comparison) -> String {
    match comparison.policies.as_slice() {
        [one] => summary_table(title, one),
        _ => comparison_table(title, comparison),
    }
}

/// All reports of a folder, sorted by file name.
fn shards(folder: &Path) -> Result<Vec<(PathBuf, Shard)>, SimulateError> {
    let unreadable = |source| SimulateError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let mut shards = Vec::new();
    for path in files {
        let text = read(&path)?;
        // The log of a replaced pod may come before the report.
        let report = if text.starts_with('{') { 0 } else { text.find("\n{").unwrap_or(0) };
        let mut found = serde_json::Deserializer::from_str(&text[report..]).into_iter::<Shard>().peekable();
        let broken = |problem: String| SimulateError::Shard { path: path.clone(), problem };
        if found.peek().is_none() {
            return Err(broken("it is empty".to_owned()));
        }
        for shard in found {
            shards.push((path.clone(), shard.map_err(|error| broken(error.to_string()))?));
        }
    }
    Ok(shards)
}
