//! `salvor evict`: for an operator on call whose machine is off and whose workloads must move now.

mod render;

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use salvor_api::config::{LeaderElection, LogFormat};
use salvor_api::{Controller, is_dns_subdomain, value_defect};
use salvor_operator::{End, EvictClient, EvictError, EvictionRequest, InCluster, Standing, Survey};
use serde_json::json;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

use crate::cluster::ClusterArgs;
use crate::error::CliError;
use crate::live::INTERRUPTED;
use crate::logging;
use crate::output::{self, Form};

/// How often the progress is read.
const PERIOD: Duration = Duration::from_millis(500);
/// After this many reads without a start of the eviction, a hint is printed.
const PATIENCE: u32 = 20;

#[derive(Debug, clap::Args)]
pub(crate) struct EvictArgs {
    /// The node's name, alone or as node/NAME
    #[arg(value_name = "NODE", value_parser = node)]
    node: String,
    /// An incident or ticket, which becomes the value of the taint
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    incident: String,
    /// Evict the node even if most nodes of its zone, or of the cluster, are unreachable
    ///
    /// Use it if you know that this machine is off. Your name is written on the node and in an event. It holds for this
    /// eviction only, and for at most one day. Nothing else changes: a node that is alive is refused, and the limits per
    /// minute still hold.
    #[arg(long)]
    despite_zone_outage: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Only show what is on the node and whether its kubelet is alive
    #[arg(long)]
    dry_run: bool,
    /// The form of the answer
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: Form,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A node's name, without the kind that kubectl prefixes.
fn node(text: &str) -> Result<String, Infallible> {
    let name = text.split_once('/').filter(|(kind, _)| ["node", "nodes", "no"].contains(kind));
    Ok(name.map_or(text, |(_, name)| name).to_owned())
}

pub(crate) fn execute(args: &EvictArgs) -> Result<ExitCode, CliError> {
    if !is_dns_subdomain(&args.node) {
        return Err(CliError::NodeName(args.node.clone()));
    }
    if let Some(defect) = value_defect(&args.incident) {
        return Err(CliError::Incident(defect));
    }
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let outcome = runtime.block_on(async {
        let cluster = args.cluster.load().await?;
        let asked = format!("{} ({})", cluster.config.cluster_url, cluster.origin);
        let failed = |source| CliError::Evict { source, cluster: asked.clone() };
        let client = EvictClient::open(cluster.config.clone()).map_err(failed)?;
        let survey = client.survey(&args.node, &args.incident).await.map_err(failed)?;
        if args.output == Form::Text {
            output::print(&render::survey(&survey))?;
            output::talk(&operator(&cluster.config).await);
        }
        if args.dry_run {
            if args.output == Form::Json {
                print_json(&json!({ "survey": survey }))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(alive) = &survey.alive {
            return Err(CliError::NodeAlive { node: args.node.clone(), alive: alive.clone() });
        }
        // From here on, an interrupt must report what stays on the node.
        let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::Start)?;
        if !args.yes && (!survey.requested || args.despite_zone_outage) {
            let consents = tokio::select! {
                consents = consents(&args.node, args.despite_zone_outage) => consents?,
                _ = interrupt.recv() => {
                    output::talk("\nNothing was done.\n");
                    return Ok(ExitCode::from(INTERRUPTED));
                }
            };
            if !consents {
                output::talk("Nothing was done.\n");
                return Ok(ExitCode::FAILURE);
            }
        }
        let is_asked = Cell::new(false);
        let followed = async {
            let despite = args.despite_zone_outage.then(person);
            let asked = client.request(&args.node, &args.incident, despite.as_deref()).await?;
            is_asked.set(true);
            let last = follow(&client, &survey, asked).await?;
            Ok((last, client.whereabouts(&survey).await?))
        };
        let (last, places) = tokio::select! {
            followed = followed => followed.map_err(failed)?,
            _ = interrupt.recv() => {
                output::talk(&render::interrupted(&args.node, is_asked.get()));
                return Ok(ExitCode::from(INTERRUPTED));
            }
        };
        match args.output {
            Form::Text => output::print(&render::end(&survey, &last, &places))?,
            Form::Json => print_json(&json!({ "survey": survey, "standing": last, "runsNow": places }))?,
        }
        Ok(if last.end == Some(End::Finished) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    });
    // A pending prompt blocks a thread forever, so the runtime does not wait for it.
    runtime.shutdown_background();
    outcome
}

/// Which operator would act on the request, as the leader's Lease reports.
async fn operator(config: &kube::Config) -> String {
    let running = InCluster::read(config.clone(), &LeaderElection::default()).await;
    let published = running.published.and_then(|published| published.configuration);
    let off = published.filter(|runs| !runs.controllers.enabled(Controller::Eviction) || runs.dry_run);
    match off {
        Some(runs) if runs.dry_run => format!("{}. It is a dry run, and evicts nothing\n", running.told),
        Some(_) => format!("{}. Its controller eviction is off, and evicts nothing\n", running.told),
        None => format!("{}\n", running.told),
    }
}

/// The user and host that run this command, for the record on the object.
pub(crate) fn person() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let name = variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "somebody".to_owned());
    match variable("HOSTNAME") {
        Some(host) => format!("{name}@{host}"),
        None => name,
    }
}

/// Asks for confirmation. Without a terminal nothing is done.
async fn consents(node: &str, despite_zone_outage: bool) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::NobodyToAsk);
    }
    let despite = if despite_zone_outage { ", although other nodes are unreachable, too" } else { "" };
    output::talk(&format!(
        "Is the machine of node {node} really switched off? Evict the node{despite}? [y/N] "
    ));
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await.map_err(io::Error::other).flatten().map_err(CliError::Start)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Shows the progress until the eviction ends.
async fn follow(
    client: &EvictClient,
    survey: &Survey,
    asked: EvictionRequest,
) -> Result<Standing, EvictError> {
    let moving = io::stderr().is_terminal();
    let mut shown = None;
    let mut idle = 0;
    loop {
        let standing = client.standing(survey, asked).await.inspect_err(|_| end_line(moving))?;
        if shown.as_ref() != Some(&standing) {
            let line = render::bar(survey, &standing);
            if moving {
                output::talk_over(&line);
            } else {
                output::talk(&format!("{line}\n"));
            }
        }
        if standing.end.is_some() {
            end_line(moving);
            return Ok(standing);
        }
        idle = if standing.phase.is_some() { 0 } else { idle + 1 };
        if idle == PATIENCE {
            // A failed read is no reason to stop.
            let said = client.last_word(survey).await.ok().flatten();
            end_line(moving);
            output::talk(&render::not_begun(survey.node.as_str(), said.as_deref()));
        }
        shown = Some(standing);
        tokio::time::sleep(PERIOD).await;
    }
}

/// Ends the line of the progress bar.
fn end_line(moving: bool) {
    if moving {
        output::talk("\n");
    }
}

fn print_json(value: &serde_json::Value) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Output(error.into()))?;
    output::print(&(text + "\n"))
}
