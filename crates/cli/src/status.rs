//! `salvor status`: how Salvor runs in a cluster, what waits, and what it did lately. It only reads.

mod actions;
mod answer;
mod render;

use std::process::ExitCode;

use jiff::Timestamp;
use salvor_api::Controller;
use salvor_api::config::LogFormat;
use salvor_operator::{InCluster, recoveries};
use salvor_why::{Judge, NotSeen, Reader, WhyError};
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use self::answer::Status;
use crate::error::CliError;
use crate::output::{self, Form};
use crate::pause::Place;
use crate::{live, logging};

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Count and list only what is in this namespace [default: all namespaces]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    /// Show it again whenever it changes, until interrupted
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn execute(args: &StatusArgs) -> Result<ExitCode, CliError> {
    let configuration = args.place.configuration()?;
    logging::start(LogFormat::Text, LevelFilter::ERROR)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    runtime.block_on(async {
        let cluster = args.place.cluster.load().await?;
        let asked = format!("{} ({})", cluster.config.cluster_url, cluster.origin);
        let failed = |source| CliError::Why { source, cluster: asked.clone() };
        let mut reader = Reader::new(cluster.config.clone()).map_err(failed)?;
        let mut view = async || {
            reader.reach().await.map_err(failed)?;
            let running = InCluster::read(cluster.config.clone(), &configuration.leader_election).await;
            let status = read(&mut reader, running, args.namespace.as_deref()).await.map_err(failed)?;
            match args.output {
                Form::Json => {
                    let json = serde_json::to_string_pretty(&status);
                    Ok(json.map_err(|error| CliError::Output(error.into()))? + "\n")
                }
                Form::Text => Ok::<_, CliError>(render::render(&status, Timestamp::now())),
            }
        };
        if args.watch {
            return live::watch(args.output, view).await;
        }
        let text = view().await?;
        match args.output {
            Form::Text => output::show(&text, false)?,
            Form::Json => output::print(&text)?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Reads what the Lease does not tell.
async fn read(reader: &mut Reader, running: InCluster, namespace: Option<&str>) -> Result<Status, WhyError> {
    let mut status = Status::of(running);
    match reader.everything(&Judge::default(), namespace).await {
        Ok((overview, _)) => status.count(&overview),
        Err(WhyError::NotReadable { what, why }) => {
            status.not_seen.push(NotSeen { what, why });
        }
        Err(error) => return Err(error),
    }
    let mut events = Vec::new();
    for entry in recoveries().filter(|entry| entry.controller != Controller::Job) {
        match reader.events_by(entry.reporter, namespace).await {
            Ok(found) => events.push((entry.controller, found)),
            Err(missed) => {
                status.not_seen.push(missed);
                return Ok(status);
            }
        }
    }
    let done = actions::read(&events);
    status.recovered_last_hour = Some(actions::recovered(&done, reader.now()));
    status.last_actions = Some(actions::last(done));
    Ok(status)
}
