//! The errors that can end a command.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use salvor_api::GoDuration;
use salvor_api::config::ConfigError;
use salvor_operator::{EvictError, ExplainError, PauseError, RunError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command line or an environment variable is wrong.
    #[error(transparent)]
    Usage(Box<dyn Error + Send + Sync>),
    /// An error of the command itself.
    #[error(transparent)]
    Command(Box<dyn Error + Send + Sync>),
    #[error("cannot read the configuration {} (from {named_by}): {source}", path.display())]
    ReadConfig {
        path: PathBuf,
        /// The flag, variable or argument that named the file.
        named_by: &'static str,
        source: io::Error,
    },
    #[error("{}", in_file(path, error))]
    Config { path: PathBuf, error: ConfigError },
    #[error("{} cannot be imported: {problem}", path.display())]
    Import {
        path: PathBuf,
        /// The field, its value and a correct form.
        problem: String,
    },
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("cannot show the page on {address} (--page): {source}")]
    BindPage { address: SocketAddr, source: io::Error },
    #[error("{cluster}: {source}")]
    Explain {
        source: ExplainError,
        /// Where the request was sent.
        cluster: String,
    },
    #[error("{cluster}: {source}")]
    Why {
        source: salvor_why::WhyError,
        /// Where the request was sent.
        cluster: String,
    },
    #[error("{cluster}: {source}")]
    Evict {
        source: EvictError,
        /// Where the request was sent.
        cluster: String,
    },
    #[error(
        "node {node} is not evicted, because {alive}; switch the machine off first, and wait until the node is unreachable \
         (with --wait, the request is remembered until then)"
    )]
    NodeAlive {
        node: String,
        /// The sign of life of the node.
        alive: String,
    },
    #[error(
        "node {node} is not evicted, because {why}; to leave the request on the node for a later leader, use --force-request"
    )]
    NobodyEvicts { node: String, why: &'static str },
    #[error("--timeout {0} must be longer than 0s, such as 10m")]
    Timeout(GoDuration),
    #[error(
        "{0:?} cannot be the name of a node: write lower case letters, digits, '-' and '.', as `kubectl get nodes` shows it"
    )]
    NodeName(String),
    #[error("--incident becomes the value of a taint, and {0}")]
    Incident(String),
    #[error("there is no terminal to ask for confirmation: use --yes if the machine is off")]
    NobodyToAsk,
    #[error("{cluster}: {source}")]
    Pause {
        source: PauseError,
        /// Where the request was sent.
        cluster: String,
    },
    #[error("--reason is {length} bytes long: write at most {longest}")]
    LongReason { length: usize, longest: usize },
    #[error("--wait {0} must not be negative")]
    Wait(GoDuration),
    #[error("--for {0} must be longer than 0s, such as 1h")]
    PauseFor(GoDuration),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("cannot write {}: {source}", path.display())]
    WriteFile { path: PathBuf, source: io::Error },
    #[error("cannot start: {0}")]
    Start(io::Error),
}

impl CliError {
    /// 2 if the command line or an environment variable is wrong, as clap does; otherwise 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::NodeName(_) | Self::Incident(_) => ExitCode::from(2),
            Self::Timeout(_) => ExitCode::from(2),
            Self::LongReason { .. } | Self::Wait(_) | Self::PauseFor(_) => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

fn in_file(path: &Path, error: &ConfigError) -> String {
    let path = path.display();
    let problems: String = error.problems.iter().map(|problem| format!("\n{path}: {problem}")).collect();
    format!("{path} cannot be used:{problems}")
}
