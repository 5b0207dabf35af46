//! The same incidents under Karpenter's own repair rules and under Salvor, in virtual time.

mod list;
mod outcome;
mod play;
mod report;
mod script;
#[cfg(test)]
mod tests;
mod world;

use std::path::PathBuf;

use salvor_simulate::in_virtual_time;

use self::play::{Contender, play};
use self::report::{Played, page};

/// What is played.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Choice {
    /// Play only the incidents whose name contains this, and write no page
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Where the page is written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/repair-incidents.md"), value_name = "FILE", hide_default_value = true)]
    output: PathBuf,
}

/// Plays all incidents under both rules, prints the page and writes it.
pub(crate) async fn run(Choice { only, output }: Choice) -> Result<(), String> {
    let part = only.clone();
    let played = tokio::task::spawn_blocking(move || play_all(part.as_deref()));
    let played = played.await.map_err(|error| error.to_string())??;
    if played.is_empty() {
        let names: Vec<&str> = list::all().iter().map(|incident| incident.name).collect();
        return Err(format!("no incident has {only:?} in its name: take one of {}", names.join("; ")));
    }
    let page = page(&played);
    eprintln!("{page}");
    match only {
        Some(_) => Ok(()),
        None => std::fs::write(&output, page)
            .map_err(|error| format!("the page cannot be written to {}: {error}", output.display())),
    }
}

fn play_all(part: Option<&str>) -> Result<Vec<Played>, String> {
    let chosen = list::all().into_iter().filter(|it| part.is_none_or(|part| it.name.contains(part)));
    let both = chosen.map(|incident| {
        let under = |contender| {
            in_virtual_time(play(&incident, contender))
                .map_err(|error| format!("{} under {contender:?}: {error}", incident.name))
        };
        let (karpenter, salvor) = (under(Contender::Karpenter)?, under(Contender::Salvor)?);
        Ok(Played { incident, karpenter, salvor })
    });
    both.collect()
}
