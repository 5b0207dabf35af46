//! The same scenarios in virtual time and on the real control plane: predicted and measured phases side by side.

mod compare;
mod page;
mod real;

use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use salvor_simulate::{
    play::{self, Policy},
    report::Report,
    scenario::{Scenario, Source},
};

use self::compare::{Comparison, Measured, Rows};
use crate::running::build_salvor;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scenarios/truth");

/// The scenarios, each with the rows that it is compared by.
const SCENARIOS: [(&str, Rows); 5] = [
    ("crash", Rows::Workloads),
    ("partition", Rows::Workloads),
    ("database", Rows::Workloads),
    ("jobs", Rows::Workloads),
    ("brake", Rows::Failures),
];

/// What is played.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Choice {
    /// Play only this scenario, and write no page
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Seeds in virtual time
    #[arg(long, default_value_t = 30, value_name = "N")]
    seeds: u64,
    /// Plays on the real control plane; they are averaged
    #[arg(long, default_value_t = 2, value_name = "N")]
    rounds: u64,
    /// Control planes that run at the same time
    #[arg(long, default_value_t = 5, value_name = "N")]
    at_once: usize,
    /// Run this salvor instead of building one
    #[arg(long, value_name = "FILE")]
    salvor: Option<PathBuf>,
    /// Where the page is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/simulate-truth.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

/// Plays everything on both sides, prints the page and writes it.
pub(crate) async fn run(choice: Choice) -> Result<(), String> {
    let chosen: Vec<_> =
        SCENARIOS.iter().filter(|(name, _)| choice.only.as_ref().is_none_or(|only| only == name)).collect();
    if chosen.is_empty() {
        let names = SCENARIOS.map(|(name, _)| name).join(", ");
        return Err(format!("{:?} is no scenario: take one of {names}", choice.only));
    }
    let salvor = choice.salvor.clone().map_or_else(build_salvor, Ok)?;
    let scenarios = chosen.into_iter().map(|(name, rows)| Ok((*name, *rows, load(name)?)));
    let scenarios: Vec<(&str, Rows, Scenario)> = scenarios.collect::<Result<_, String>>()?;
    let games = (1..=choice.rounds).flat_map(|round| scenarios.iter().enumerate().map(move |it| (round, it)));
    let measured: Vec<(usize, Measured)> = stream::iter(games)
        .map(|(round, (index, (name, _, scenario)))| measure(index, name, scenario, &salvor, round))
        .buffer_unordered(choice.at_once.max(1))
        .try_collect()
        .await?;
    let mut compared = Vec::new();
    for (index, (name, rows, scenario)) in scenarios.into_iter().enumerate() {
        let own: Vec<&Measured> = measured.iter().filter(|(of, _)| *of == index).map(|(_, it)| it).collect();
        let (title, predicted) = predict(name, scenario, choice.seeds).await?;
        compared.push(Comparison::of(name, &title, rows, &predicted, &own));
    }
    let page = page::page(&compared, choice.seeds, choice.rounds);
    eprintln!("{page}");
    match choice.only {
        Some(_) => Ok(()),
        None => std::fs::write(&choice.output, page)
            .map_err(|error| format!("the page cannot be written to {}: {error}", choice.output.display())),
    }
}

fn load(name: &str) -> Result<Scenario, String> {
    let path = Path::new(FOLDER).join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Scenario::read(&text, &Source { folder: FOLDER.into() })
        .map_err(|error| format!("{}: {error}", path.display()))
}

async fn measure(
    index: usize,
    name: &str,
    scenario: &Scenario,
    salvor: &Path,
    round: u64,
) -> Result<(usize, Measured), String> {
    let played =
        real::play(name, scenario, salvor, round).await.map_err(|error| format!("{name}: {error}"))?;
    eprintln!("simulate-truth: {name} was played on the real control plane");
    Ok((index, Measured { report: Report::of(&played.record), stale: played.stale }))
}

/// The title, and the report of each seed.
async fn predict(name: &str, scenario: Scenario, seeds: u64) -> Result<(String, Vec<Report>), String> {
    eprintln!("simulate-truth: {name} is played in virtual time");
    let title = scenario.title.clone();
    let played = tokio::task::spawn_blocking(move || {
        let policy = Policy::of(&scenario);
        let plays = (1..=seeds).map(|seed| play::play(&scenario, &policy, seed));
        plays.map(|record| record.map(|record| Report::of(&record))).collect::<Result<Vec<_>, _>>()
    });
    let reports =
        played.await.map_err(|error| error.to_string())?.map_err(|error| format!("{name}: {error}"))?;
    Ok((title, reports))
}
