//! `salvor simulate`: shows what a policy does before a real outage happens.

mod answer;
mod args;
mod error;
mod live;
mod merge;
mod progress;
mod shards;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use salvor_api::config::LogFormat;
use salvor_simulate::play::{Policy, play};
use salvor_simulate::report::{Comparison, Page, Report, Summary};
use salvor_simulate::report::{html, report_table, svg};
use salvor_simulate::scenario::{Scenario, Source, schema};
use salvor_simulate::{Seeds, Threads};
use tracing::level_filters::LevelFilter;

use crate::error::CliError;
use crate::logging;
use crate::output;
use answer::{Answer, IN_FULL, pretty};
pub(crate) use args::SimulateArgs;
use args::{Form, SimulateCommand};
use error::{MOST_POLICIES, SimulateError, read};
use progress::Progress;

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
