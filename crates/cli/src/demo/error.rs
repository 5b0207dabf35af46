//! Why the demo cannot be played.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use salvor_cluster::StartError;
use salvor_simulate::play::{PlayError, PolicyError};
use salvor_simulate::scenario::ScenarioError;

use crate::error::CliError;

#[derive(Debug, thiserror::Error)]
pub(super) enum DemoError {
    #[error("cannot read the scenario {}: {source}", path.display())]
    ReadScenario { path: PathBuf, source: io::Error },
    #[error("{} is not a scenario: {error}", path.display())]
    Scenario { path: PathBuf, error: ScenarioError },
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the demo's cluster refuses a request: {0}")]
    Api(#[from] kube::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    #[error("cannot show the page on {address} (--page): {source}")]
    Page { address: SocketAddr, source: io::Error },
    #[error(
        "--seed {0}: the demo plays a seed of a scenario only with --replay: write --replay SCENARIO --seed {0}"
    )]
    SeedWithoutReplay(u64),
    #[error("seed {seed} of {} cannot be played: {error}", path.display())]
    Play { path: PathBuf, seed: u64, error: PlayError },
    #[error("--fail {failure:?}: {problem}")]
    Fail { failure: String, problem: String },
    #[error("cannot read {}: {source}", path.display())]
    ReadConfiguration { path: PathBuf, source: io::Error },
    #[error("{from}: {}", error.to_string().replace('\n', "; "))]
    Policy { from: String, error: PolicyError },
    #[error("the play ended without a result")]
    Vanished,
}

impl From<DemoError> for CliError {
    fn from(error: DemoError) -> Self {
        match error {
            DemoError::SeedWithoutReplay(_)
            | DemoError::Fail { .. }
            | DemoError::ReadConfiguration { .. }
            | DemoError::Policy { .. } => Self::Usage(error.into()),
            DemoError::ReadScenario { .. }
            | DemoError::Scenario { .. }
            | DemoError::Start(_)
            | DemoError::Api(_)
            | DemoError::Output(_)
            | DemoError::Page { .. }
            | DemoError::Play { .. }
            | DemoError::Vanished => Self::Command(error.into()),
        }
    }
}
