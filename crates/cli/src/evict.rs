//! `salvor evict`: for an operator on call whose machine is off and whose workloads must move now.

mod render;

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use jiff::SignedDuration;
use salvor_api::config::{LeaderElection, LogFormat};
use salvor_api::{Controller, GoDuration, is_dns_subdomain, value_defect};
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
    /// Leave the request on the node even if no leader carries it out now
    ///
    /// Without it, a node is refused if an operator was elected here before and none leads now, or if the leader's eviction is
    /// off. An operator without leader election cannot be seen from here.
    #[arg(long)]
    force_request: bool,
    /// Accept a node that is still alive, as right after power-off: the request is remembered until it is unreachable
    ///
    /// If its kubelet shows life again, the request is forgotten, and this command ends with 1.
    #[arg(long)]
    wait: bool,
    /// Stop following after this time, with exit code 1; the request stays
    #[arg(long, value_name = "DURATION")]
    timeout: Option<GoDuration>,
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
    let timeout = match args.timeout {
        None => Duration::MAX,
        Some(given) => match Duration::try_from(SignedDuration::from(given)) {
            Ok(timeout) if !timeout.is_zero() => timeout,
            _ => return Err(CliError::Timeout(given)),
        },
    };
    logging::start(LogFormat::Text, LevelFilter::WARN)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let outcome = runtime.block_on(async {
        let cluster = args.cluster.load().await?;
        let asked = format!("{} ({})", cluster.config.cluster_url, cluster.origin);
        let failed = |source| CliError::Evict { source, cluster: asked.clone() };
        let client = EvictClient::open(cluster.config.clone()).map_err(failed)?;
        let survey = client.survey(&args.node, &args.incident).await.map_err(failed)?;
        let running = InCluster::read(cluster.config.clone(), &LeaderElection::default()).await;
        if args.output == Form::Text {
            output::print(&render::survey(&survey))?;
            output::talk(&operator(&running));
        }
        if args.dry_run {
            if args.output == Form::Json {
                print_json(&json!({ "survey": survey }))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(alive) = survey.alive.as_ref().filter(|_| !args.wait) {
            return Err(CliError::NodeAlive { node: args.node.clone(), alive: alive.clone() });
        }
        if let Some(why) = nobody_evicts(&running).filter(|_| !args.force_request) {
            return Err(CliError::NobodyEvicts { node: args.node.clone(), why });
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
            let last = follow(&client, &survey, asked, args.wait).await?;
            Ok((last, client.whereabouts(&survey).await?))
        };
        let (last, places) = tokio::select! {
            followed = followed => followed.map_err(failed)?,
            () = tokio::time::sleep(timeout) => {
                output::talk(&render::interrupted(&args.node, is_asked.get()));
                return Ok(ExitCode::FAILURE);
            }
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
fn operator(running: &InCluster) -> String {
    let published = running.published.as_ref().and_then(|published| published.configuration.as_ref());
    let off = published.filter(|runs| !runs.controllers.enabled(Controller::Eviction) || runs.dry_run);
    match off {
        Some(runs) if runs.dry_run => format!("{}. It is a dry run, and evicts nothing\n", running.told),
        Some(_) => format!("{}. Its controller eviction is off, and evicts nothing\n", running.told),
        None => format!("{}\n", running.told),
    }
}

/// Why the running operator would not carry out a request, as far as its Lease tells.
fn nobody_evicts(running: &InCluster) -> Option<&'static str> {
    if running.leader.is_none() {
        return running.was_led.then_some("no replica of Salvor leads");
    }
    let configuration = running.published.as_ref()?.configuration.as_ref()?;
    if configuration.dry_run {
        return Some("the running operator is a dry run");
    }
    let on = configuration.controllers.enabled(Controller::Eviction);
    (!on).then_some("the running operator's eviction is off")
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
    wait: bool,
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
        let remembered = wait && standing.remembered && standing.end == Some(End::TaintGone);
        if standing.end.is_some() && !remembered {
            end_line(moving);
            return Ok(standing);
        }
        idle = if standing.phase.is_some() || remembered { 0 } else { idle + 1 };
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

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;
    use salvor_operator::Published;

    use super::*;

    #[test]
    fn a_request_that_nothing_would_carry_out_is_refused() {
        let running = |leader: Option<&str>, was_led: bool, settings: &str| {
            let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
            let configuration = Some(parse(&format!("{head}{settings}")).unwrap());
            InCluster {
                published: Some(Published { version: "1".into(), configuration }),
                leader: leader.map(str::to_owned),
                was_led,
                ..InCluster::default()
            }
        };
        for (running, refused) in [
            (running(Some("a"), true, ""), None),
            (running(None, true, ""), Some("no replica of Salvor leads")),
            (
                running(Some("a"), true, "controllers: [zombie]\n"),
                Some("the running operator's eviction is off"),
            ),
            (running(Some("a"), true, "dryRun: true\n"), Some("the running operator is a dry run")),
            // An operator without leader election cannot be seen.
            (running(None, false, ""), None),
            (InCluster { leader: Some("a".into()), was_led: true, ..InCluster::default() }, None),
        ] {
            assert_eq!(nobody_evicts(&running), refused);
        }
    }
}
