//! `salvor simulate`: shows what a policy does before a real outage happens.

mod live;
mod merge;
mod progress;
mod shards;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use salvor_api::config::LogFormat;
use salvor_simulate::play::{Peer, PlayError, Policy, PolicyError, play};
use salvor_simulate::report::{Comparison, Page, Part, Report, Summary};
use salvor_simulate::report::{html, report_table, svg};
use salvor_simulate::scenario::{Scenario, ScenarioError, Source, schema};
use salvor_simulate::{Seeds, Threads};
use serde::Serialize;
use tracing::level_filters::LevelFilter;

use crate::error::CliError;
use crate::logging;
use crate::output;
use progress::Progress;

/// More combinations are probably a typing error.
const MOST_POLICIES: usize = 1000;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    command: Option<SimulateCommand>,
    /// The scenario, as a YAML file: cluster, work, failures, and Salvor's configuration
    #[arg(value_name = "SCENARIO", required_unless_present_any = ["schema", "from_cluster"])]
    scenario: Option<PathBuf>,
    /// The seed of everything random: one seed, one history
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "seeds")]
    seed: u64,
    /// Play many seeds on all cores, such as 1..1000; Ctrl-C reports those that are done
    #[arg(long, value_name = "A..B")]
    seeds: Option<Seeds>,
    /// The form of the report
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    output: Form,
    /// Play two configuration files of Salvor on the same failures
    #[arg(long, value_names = ["FILE", "FILE"], num_args = 2)]
    compare: Vec<PathBuf>,
    /// Play a field of Salvor's configuration, or of a workload (workloads.NAME.FIELD), with each of these values; repeat it for a grid
    #[arg(long, value_name = "KEY=VALUE,VALUE", value_parser = sweep)]
    sweep: Vec<Sweep>,
    /// Play the rules of a peer as well: kubernetes, kueue, karpenter or appwrapper; repeatable
    #[arg(long, value_name = "PEER")]
    against: Vec<Peer>,
    /// Let something else fail as well, such as "partition zone=b 15m" or "crash node=n1 at=2m"; repeatable
    #[arg(long, value_name = "FAILURE")]
    fail: Vec<String>,
    #[command(flatten)]
    live: live::LiveArgs,
    /// Play only a part of the seeds: the I-th of N parts, from 0
    #[arg(long, value_name = "I/N", value_parser = shards::part, requires = "seeds")]
    shard: Option<shards::Part>,
    /// Print a ConfigMap and an Indexed Job that play the seeds in N parts, 10 if it is not said, on a Kubernetes cluster
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "10",
        requires = "seeds",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    as_job: Option<u32>,
    /// With --as-job: the image of Salvor
    #[arg(long, value_name = "IMAGE", requires = "as_job", default_value = shards::IMAGE)]
    image: String,
    /// Only check the scenario: exits with 2 if it is wrong, and says in which line
    #[arg(long)]
    check: bool,
    /// Print the JSON schema of scenarios
    #[arg(long, exclusive = true)]
    schema: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SimulateCommand {
    /// Join the reports of parts that were played elsewhere
    ///
    /// Reads all files of a folder that end with .json, as -o json has written them.
    Merge(merge::MergeArgs),
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For a terminal
    Table,
    /// For machines
    Json,
    /// One page, in one file
    Html,
    /// The plot
    Svg,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sweep {
    key: String,
    values: Vec<String>,
}

impl std::fmt::Display for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.values.join(","))
    }
}

fn sweep(text: &str) -> Result<Sweep, String> {
    let usage = || "write KEY=VALUE,VALUE, such as brake.maxUnreachablePercent=20,50".to_owned();
    let (key, values) = text.split_once('=').ok_or_else(usage)?;
    // A comma inside brackets belongs to a value.
    let mut deep = 0usize;
    let parts = values.split(|c: char| {
        match c {
            '[' | '{' => deep += 1,
            ']' | '}' => deep = deep.saturating_sub(1),
            _ => {}
        }
        c == ',' && deep == 0
    });
    let values: Vec<String> = parts.map(|part| part.trim().to_owned()).collect();
    if key.trim().is_empty() || values.iter().any(String::is_empty) {
        return Err(usage());
    }
    Ok(Sweep { key: key.trim().to_owned(), values })
}

#[derive(Debug, thiserror::Error)]
enum SimulateError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {error}", path.display())]
    Scenario { path: PathBuf, error: ScenarioError },
    #[error("{from}: {}", one_line(error))]
    Policy { from: String, error: PolicyError },
    #[error("{0} settings are too many: at most {MOST_POLICIES}")]
    TooMany(usize),
    #[error("seed {seed} of policy {policy} cannot be played: {error}")]
    Play { seed: u64, policy: String, error: PlayError },
    #[error("{} is no report of salvor simulate -o json: {problem}", path.display())]
    Shard { path: PathBuf, problem: String },
    #[error("{} has no file that ends with .json", .0.display())]
    NoShards(PathBuf),
    #[error("the reports are of different scenarios: {0:?} and {1:?}")]
    Mixed(String, String),
    #[error(
        "{} is of another simulation than {}: the scenario or the version of Salvor differs", other.display(), one.display()
    )]
    Foreign { one: PathBuf, other: PathBuf },
    #[error("--as-job cannot take {0:?} along: write a path below the folder of the scenario")]
    Outside(String),
    #[error("--as-job takes {0:?} along twice, with different contents: rename one")]
    SameName(String),
    #[error("--as-job: the files have {0} bytes, and a ConfigMap can hold {most}", most = shards::MOST_BYTES)]
    TooLarge(usize),
    #[error("--fail {failure:?}: {problem}")]
    Fail { failure: String, problem: String },
    #[error(
        "nothing fails: write --fail, such as --fail \"partition zone=b 15m\", or --save FILE to write failures into the file"
    )]
    NothingFails,
    #[error("{cluster}: {problem}")]
    Live { cluster: String, problem: String },
    #[error("interrupted before the first seed was done")]
    Interrupted,
}

fn one_line(error: &PolicyError) -> String {
    error.to_string().replace('\n', "; ")
}

impl From<SimulateError> for CliError {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Play { .. } | SimulateError::Interrupted | SimulateError::Live { .. } => {
                Self::Command(error.into())
            }
            SimulateError::Read { .. }
            | SimulateError::Scenario { .. }
            | SimulateError::Policy { .. }
            | SimulateError::Shard { .. }
            | SimulateError::NoShards(_)
            | SimulateError::Mixed(..)
            | SimulateError::Foreign { .. }
            | SimulateError::Outside(_)
            | SimulateError::SameName(_)
            | SimulateError::TooLarge(_)
            | SimulateError::Fail { .. }
            | SimulateError::NothingFails
            | SimulateError::TooMany(_) => Self::Usage(error.into()),
        }
    }
}

pub(crate) fn execute(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    if let Some(SimulateCommand::Merge(args)) = &args.command {
        return merge::execute(args);
    }
    if args.schema {
        output::print(&pretty(&schema())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = args.scenario.clone().unwrap_or_else(|| PathBuf::from("the cluster"));
    let path = path.as_path();
    let (mut scenario, text) = if args.live.from_cluster { live::scenario(&args.live)? } else { load(path)? };
    for failure in &args.fail {
        let failed = scenario.fail(failure);
        failed.map_err(|problem| SimulateError::Fail { failure: failure.clone(), problem })?;
    }
    if args.live.from_cluster && args.fail.is_empty() {
        if args.live.save.is_some() {
            return Ok(ExitCode::SUCCESS);
        }
        return Err(SimulateError::NothingFails.into());
    }
    let policies = policies(args, &scenario)?;
    if args.check {
        let pods = scenario.workloads.iter().map(|it| it.units() as usize).sum();
        let told = format!(
            "{}: good: {}, {} with {}, {} with seed {}\n",
            path.display(),
            counted(scenario.nodes.len(), "node"),
            counted(scenario.workloads.len(), "workload"),
            counted(pods, "pod"),
            counted(scenario.incidents(args.seed).len(), "failure"),
            args.seed,
        );
        output::print(&told)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(parts) = args.as_job {
        let folder = path.parent().unwrap_or(Path::new(""));
        output::print(&shards::job(args, &text, folder, parts)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    logging::start(LogFormat::Text, LevelFilter::ERROR)?;
    let seeds = args.seeds.clone().unwrap_or(Seeds(args.seed..=args.seed));
    let Some(seeds) = args.shard.map_or(Some(seeds.clone()), |part| seeds.shard(part.index, part.count))
    else {
        // There are more shards than seeds.
        let comparison = Comparison::of(Vec::new());
        output::print(&pretty(&Answer::of(args, &scenario, &comparison, Vec::new()))?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let reports = play_all(&scenario, &policies, &seeds)?;
    let text = tell(args, &scenario, &policies, &reports)?;
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn load(path: &Path) -> Result<(Scenario, String), SimulateError> {
    let text = read(path)?;
    let source = Source { folder: path.parent().map(Path::to_owned).unwrap_or_default() };
    let scenario = Scenario::read(&text, &source);
    let scenario = scenario.map_err(|error| SimulateError::Scenario { path: path.to_owned(), error })?;
    Ok((scenario, text))
}

fn read(path: &Path) -> Result<String, SimulateError> {
    fs::read_to_string(path).map_err(|source| SimulateError::Read { path: path.to_owned(), source })
}

/// The requested policies in order, or the policy of the scenario.
fn policies(args: &SimulateArgs, scenario: &Scenario) -> Result<Vec<Policy>, SimulateError> {
    let mut policies = Vec::new();
    for path in &args.compare {
        let from = path.display().to_string();
        let policy = Policy::of_file(&from, &read(path)?, scenario);
        policies.push(policy.map_err(|error| SimulateError::Policy { from, error })?);
    }
    if policies.is_empty() {
        policies.push(Policy::of(scenario));
    }
    for sweep in &args.sweep {
        let count = policies.len().saturating_mul(sweep.values.len());
        if count > MOST_POLICIES {
            return Err(SimulateError::TooMany(count));
        }
        let mut grid = Vec::with_capacity(count);
        for policy in &policies {
            for value in &sweep.values {
                let set = policy.with_setting(&sweep.key, value, scenario);
                grid.push(set.map_err(|error| SimulateError::Policy { from: "--sweep".to_owned(), error })?);
            }
        }
        policies = grid;
    }
    policies.extend(args.against.iter().map(|peer| Policy::peer(*peer)));
    tell_apart(&mut policies);
    Ok(policies)
}

/// A policy that is requested twice is played twice. Its name gets a number.
fn tell_apart(policies: &mut [Policy]) {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for policy in policies {
        let times = known.entry(policy.name.clone()).or_default();
        *times += 1;
        if *times > 1 {
            policy.name = format!("{} ({times})", policy.name);
        }
    }
}

/// Plays every policy with every seed. Returns the finished reports of each policy.
fn play_all(
    scenario: &Scenario,
    policies: &[Policy],
    seeds: &Seeds,
) -> Result<Vec<Vec<Report>>, SimulateError> {
    let first = *seeds.0.start();
    let count = policies.len() as u64;
    // Policies take turns, so that an interrupt leaves about the same number of seeds for each.
    let games = Seeds(0..=seeds.count().saturating_mul(count).saturating_sub(1));
    let threads = Arc::new(Threads::new(games.clone()));
    let _signals = progress::stop_on_signal(&threads);
    let mut progress = Progress::new(games.count());
    let failed = Mutex::new(None);
    let mut reports: Vec<Vec<Report>> = policies.iter().map(|_| Vec::new()).collect();
    let which = |game: u64| (usize::try_from(game % count).unwrap_or_default(), first + game / count);
    threads.run(
        |game| {
            let (policy, seed) = which(game);
            play(scenario, &policies[policy], seed).map(|record| Report::of(&record))
        },
        |game, played| {
            let (policy, seed) = which(game);
            match played {
                Ok(report) => reports[policy].push(report),
                Err(error) => {
                    threads.stop();
                    let policy = policies[policy].name.clone();
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(SimulateError::Play { seed, policy, error });
                }
            }
            progress.step();
        },
    );
    progress.end();
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    on_the_same_seeds(&mut reports);
    if reports.iter().all(Vec::is_empty) {
        return Err(SimulateError::Interrupted);
    }
    Ok(reports)
}

/// Policies are compared on the same failures: after an interrupt, seeds that not all policies have played are dropped.
fn on_the_same_seeds(reports: &mut [Vec<Report>]) {
    let seeds = |reports: &Vec<Report>| reports.iter().map(|it| it.seed).collect::<BTreeSet<u64>>();
    let common = reports.iter().map(seeds).reduce(|a, b| &a & &b).unwrap_or_default();
    for reports in reports {
        reports.retain(|report| common.contains(&report.seed));
        reports.sort_by_key(|report| report.seed);
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: &'static str,
    kind: &'static str,
    scenario: &'a str,
    /// Equal for simulations that can be merged.
    fingerprint: String,
    /// The shard of all seeds that this report covers.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part>,
    #[serde(flatten)]
    comparison: &'a Comparison,
    /// Each run in full, if there are only a few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reports: Vec<&'a Report>,
}

impl<'a> Answer<'a> {
    fn of(
        args: &SimulateArgs,
        scenario: &'a Scenario,
        comparison: &'a Comparison,
        reports: Vec<&'a Report>,
    ) -> Self {
        let part = args.shard.zip(args.seeds.as_ref()).map(|(part, seeds)| Part {
            index: part.index,
            count: part.count,
            first: *seeds.0.start(),
            last: *seeds.0.end(),
        });
        let fingerprint = scenario.fingerprint();
        Self { part, ..Self::joined(&scenario.title, fingerprint, comparison, reports) }
    }

    /// The answer for merged shards.
    fn joined(
        scenario: &'a str,
        fingerprint: String,
        comparison: &'a Comparison,
        reports: Vec<&'a Report>,
    ) -> Self {
        let (api_version, kind) = ("salvor.dev/v1alpha1", "SimulationReport");
        Self { api_version, kind, scenario, fingerprint, part: None, comparison, reports }
    }
}

/// At most this many runs are reported in full.
const IN_FULL: usize = 10;

fn tell(
    args: &SimulateArgs,
    scenario: &Scenario,
    policies: &[Policy],
    reports: &[Vec<Report>],
) -> Result<String, CliError> {
    let title = scenario.title.as_str();
    let summaries: Vec<Summary> = policies
        .iter()
        .zip(reports)
        .map(|(policy, reports)| {
            let summary = Summary::of(&policy.name, &policy.note, reports);
            summary.replayed_with(&watch::arguments(args, policy))
        })
        .collect();
    let comparison = Comparison::of(summaries);
    let all = || reports.iter().flatten();
    Ok(match args.output {
        Form::Table => match (comparison.policies.as_slice(), reports) {
            ([one], [reports]) if reports.len() == 1 => {
                let note =
                    if one.note.is_empty() { "" } else { &format!("\n  {}: {}\n", one.policy, one.note) };
                let watch = watch::line(args, &one.replay, reports[0].seed);
                format!("{}{note}{watch}", report_table(title, &reports[0]))
            }
            _ => merge::table(title, &comparison),
        },
        Form::Json => {
            let in_full = if all().count() <= IN_FULL { all().collect() } else { Vec::new() };
            pretty(&Answer::of(args, scenario, &comparison, in_full))?
        }
        Form::Svg => svg(title, &comparison),
        Form::Html => page(args, scenario, policies, &comparison)?,
    })
}

/// The recommended policy, or the only one, and its worst seed.
fn shown<'a>(comparison: &'a Comparison, policies: &'a [Policy]) -> Option<(&'a Summary, &'a Policy, u64)> {
    let best = comparison.recommendation.as_ref().map(|it| it.policy.as_str());
    let summaries = || {
        let played = comparison.policies.iter().zip(policies);
        played.filter_map(|(summary, policy)| Some((summary, policy, summary.worst_seed?)))
    };
    summaries().find(|(summary, ..)| Some(summary.policy.as_str()) == best).or_else(|| summaries().next())
}

/// The page shows that seed. It is played again, which gives the same history.
fn page(
    args: &SimulateArgs,
    scenario: &Scenario,
    policies: &[Policy],
    comparison: &Comparison,
) -> Result<String, CliError> {
    let Some((summary, policy, seed)) = shown(comparison, policies) else {
        return Err(SimulateError::Interrupted.into());
    };
    let record = play(scenario, policy, seed).map_err(|error| SimulateError::Play {
        seed,
        policy: policy.name.clone(),
        error,
    })?;
    let report = Report::of(&record);
    let worst = Some((&report, &record));
    let watch = watch::command(args, &summary.replay, seed);
    let page =
        Page { title: &scenario.title, say: &scenario.say, comparison, worst, watch: watch.as_deref() };
    Ok(html(&page))
}

fn pretty(value: &impl Serialize) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_a_field_and_its_values() {
        let parsed = sweep("brake.maxUnreachablePercent=20, 50,100").unwrap();
        assert_eq!(
            (parsed.key.as_str(), parsed.values.join(" ").as_str()),
            ("brake.maxUnreachablePercent", "20 50 100")
        );
        assert_eq!(sweep("controllers=[zombie, job],[job]").unwrap().values, ["[zombie, job]", "[job]"]);
        for bad in ["", "a", "=1", "a=", "a=1,,2"] {
            assert!(sweep(bad).unwrap_err().contains("write KEY=VALUE"), "{bad}");
        }
    }
}
