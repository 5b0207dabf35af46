//! Why a simulation cannot be played.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use salvor_simulate::play::{PlayError, PolicyError};
use salvor_simulate::scenario::ScenarioError;

use crate::error::CliError;

/// More combinations are probably a typing error.
pub(super) const MOST_POLICIES: usize = 1000;

/// A ConfigMap holds a mebibyte, including its other fields.
pub(super) const MOST_BYTES: usize = 1_000_000;

#[derive(Debug, thiserror::Error)]
pub(super) enum SimulateError {
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
    #[error("--as-job: the files have {0} bytes, and a ConfigMap can hold {most}", most = MOST_BYTES)]
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

pub(super) fn read(path: &Path) -> Result<String, SimulateError> {
    fs::read_to_string(path).map_err(|source| SimulateError::Read { path: path.to_owned(), source })
}
