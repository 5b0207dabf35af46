//! `salvor pause` and `salvor resume`: stop all actions and continue, without a restart.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use jiff::SignedDuration;
use salvor_api::GoDuration;
use salvor_api::config::{Configuration, LogFormat};
use salvor_operator::{PauseClient, PauseError};
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use crate::cluster::ClusterArgs;
use crate::error::CliError;
use crate::evict::person;
use crate::settings::JudgingArgs;
use crate::{logging, output};

/// A longer reason would not fit into an annotation, an event and a line of the page.
const LONGEST_REASON: usize = 500;

#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    /// The reason, shown to everybody who finds Salvor paused
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// End the pause by itself after this time [default: only `salvor resume` ends it]
    #[arg(long = "for", value_name = "DURATION")]
    lasts: Option<GoDuration>,
    /// How long to wait until the leader confirms; 0s does not wait
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    wait: GoDuration,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    place: Place,
}

/// The cluster, and the Salvor in it.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// The operator's configuration file, for the name and namespace of its Lease [env: SALVOR_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

impl Place {
    pub(crate) fn configuration(&self) -> Result<Configuration, CliError> {
        JudgingArgs { config: self.config.clone(), ..JudgingArgs::default() }.load()
    }
}

pub(crate) fn pause(args: &PauseArgs) -> Result<ExitCode, CliError> {
    if args.reason.len() > LONGEST_REASON {
        return Err(CliError::LongReason { length: args.reason.len(), longest: LONGEST_REASON });
    }
    let wait = Duration::try_from(SignedDuration::from(args.wait)).map_err(|_| CliError::Wait(args.wait))?;
    let lasts = args.lasts.map(SignedDuration::from);
    if let Some(lasts) = args.lasts.filter(|lasts| !SignedDuration::from(*lasts).is_positive()) {
        return Err(CliError::PauseFor(lasts));
    }
    at(&args.place, async |client, _| {
        let paused = client.pause(&person(), &args.reason, lasts).await?;
        let told = paused.pause.to_string();
        let told = output::one_line(&told);
        if paused.already {
            tell(&format!("it was {told} already"));
        } else if !wait.is_zero() {
            tell(&told);
        }
        if wait.is_zero() {
            return Ok((format!("{}\n", output::one_line(&paused.pause.to_string())), ExitCode::SUCCESS));
        }
        Ok(match client.acknowledged(&paused, wait).await {
            Some(leader) => (format!("paused: {leader} has stopped\n"), ExitCode::SUCCESS),
            None => {
                tell(&format!(
                    "no leader has confirmed within {}. Is Salvor running, and is there a leader?\n\
                     The pause stays, and the next leader obeys it. To undo it: salvor resume",
                    args.wait
                ));
                (String::new(), ExitCode::FAILURE)
            }
        })
    })
}

pub(crate) fn resume(args: &ResumeArgs) -> Result<ExitCode, CliError> {
    at(&args.place, async |client, configuration| {
        let text = match client.resume().await? {
            Some(pause) => format!(
                "resumed: it was {}\nthe leader goes on within {}\n",
                output::one_line(&pause.to_string()),
                configuration.leader_election.retry_period
            ),
            None => "nobody has paused Salvor\n".to_owned(),
        };
        Ok((text, ExitCode::SUCCESS))
    })
}

/// Runs an action in the cluster and prints the outcome.
fn at(
    place: &Place,
    what: impl AsyncFnOnce(&PauseClient, &Configuration) -> Result<(String, ExitCode), PauseError>,
) -> Result<ExitCode, CliError> {
    let configuration = place.configuration()?;
    logging::start(LogFormat::Text, LevelFilter::ERROR)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let (text, code) = runtime.block_on(async {
        let cluster = place.cluster.load().await?;
        let asked = format!("{} ({})", cluster.config.cluster_url, cluster.origin);
        let failed = |source| CliError::Pause { source, cluster: asked.clone() };
        let client =
            PauseClient::open(cluster.config.clone(), &configuration.leader_election).map_err(failed)?;
        what(&client, &configuration).await.map_err(failed)
    })?;
    output::print(&text)?;
    Ok(code)
}

/// Prints a remark on standard error.
fn tell(text: &str) {
    output::talk(&format!("{text}\n"));
}
