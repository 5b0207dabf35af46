//! `salvor status`: how Salvor runs in a cluster, what waits, and what it did lately. It only reads.

mod actions;
mod render;

use std::process::ExitCode;

use jiff::Timestamp;
use salvor_api::Controller;
use salvor_api::config::{Configuration, LogFormat};
use salvor_api::names::taints;
use salvor_operator::{InCluster, recoveries};
use salvor_recovery::pause::{Pause, Said};
use salvor_why::{Judge, NotSeen, Overview, Reader, Stage};
use serde::Serialize;
use tokio::runtime;
use tracing::level_filters::LevelFilter;

use self::actions::{Action, Recovered};
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

/// The answer, in the form that `-o json` prints. A value that cannot be read is null, and `notSeen` says why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    leader: Option<String>,
    leader_since: Option<Timestamp>,
    /// The version of the current or last leader.
    version: Option<String>,
    dry_run: Option<bool>,
    /// Null if the leader does not publish its configuration.
    recoveries: Option<Vec<RecoverySwitch>>,
    brake: BrakeStatus,
    paused: Option<PauseStatus>,
    /// Pods that a recovery waits for.
    waiting: Option<usize>,
    waiting_workloads: Option<usize>,
    /// Pods that no recovery ends before something changes.
    blocked: Option<usize>,
    blocked_workloads: Option<usize>,
    recovered_last_hour: Option<Recovered>,
    /// Newest first.
    last_actions: Option<Vec<Action>>,
    /// Who or what would prove that a machine is off.
    proven_by: Vec<String>,
    /// How Salvor runs, in one line.
    told: String,
    not_seen: Vec<NotSeen>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct RecoverySwitch {
    name: &'static str,
    on: bool,
    /// Why it is off.
    why: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct BrakeStatus {
    holds: bool,
    /// A stable name of the limit.
    limit: Option<&'static str>,
    why: Option<String>,
    until: Option<Timestamp>,
    zones: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PauseStatus {
    by: Option<String>,
    since: Option<Timestamp>,
    /// When it ends by itself.
    until: Option<Timestamp>,
    reason: Option<String>,
    /// The leader that has stopped; null while none has confirmed.
    confirmed_by: Option<String>,
    told: String,
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
        output::print(&view().await?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Reads what the Lease does not tell.
async fn read(
    reader: &mut Reader,
    running: InCluster,
    namespace: Option<&str>,
) -> Result<Status, salvor_why::WhyError> {
    let mut status = Status::of(running);
    match reader.everything(&Judge::default(), namespace).await {
        Ok((overview, _)) => status.count(&overview),
        Err(salvor_why::WhyError::NotReadable { what, why }) => {
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

impl Status {
    /// What the Lease tells.
    fn of(running: InCluster) -> Self {
        let InCluster { published, leader, was_led: _, leads_since, pause, stopped, held, zones_held, told } =
            running;
        let (version, configuration) = match published {
            Some(published) => (Some(published.version), published.configuration),
            None => (None, None),
        };
        let confirmed_by = stopped.map(|stopped| stopped.by);
        Self {
            leader,
            leader_since: leads_since,
            version,
            dry_run: configuration.as_ref().map(|configuration| configuration.dry_run),
            recoveries: configuration.as_ref().map(switches),
            brake: BrakeStatus {
                holds: held.is_some() || !zones_held.is_empty(),
                limit: held.as_ref().map(|held| held.code()),
                why: held.as_ref().map(ToString::to_string),
                until: held.as_ref().and_then(|held| held.until()),
                zones: zones_held.into_iter().collect(),
            },
            paused: pause.map(|pause| PauseStatus::of(&pause, confirmed_by)),
            proven_by: configuration.as_ref().map(proven_by).unwrap_or_default(),
            told,
            ..Self::default()
        }
    }

    fn count(&mut self, overview: &Overview) {
        let sum = |stage: Stage| {
            let groups =
                overview.groups.iter().filter(move |it| it.root_cause.code.recovery() == Some(stage));
            groups.fold((0, 0), |(pods, workloads), group| {
                (pods + group.pods, workloads + group.workloads.len())
            })
        };
        let (waiting, blocked) = (sum(Stage::Waiting), sum(Stage::Blocked));
        (self.waiting, self.waiting_workloads) = (Some(waiting.0), Some(waiting.1));
        (self.blocked, self.blocked_workloads) = (Some(blocked.0), Some(blocked.1));
        self.not_seen.extend(overview.not_seen.iter().cloned());
    }
}

impl PauseStatus {
    fn of(pause: &Pause, confirmed_by: Option<String>) -> Self {
        let told = pause.to_string();
        let none = Self { by: None, since: None, until: None, reason: None, confirmed_by, told };
        match pause {
            Pause::Said(Said { since, by, reason, until }) => {
                let reason = Some(reason.clone()).filter(|reason| !reason.is_empty());
                Self { by: Some(by.clone()), since: Some(*since), until: *until, reason, ..none }
            }
            Pause::Unreadable(_) | Pause::Unread => none,
        }
    }
}

fn switches(configuration: &Configuration) -> Vec<RecoverySwitch> {
    let switch = |entry: &salvor_operator::RecoveryEntry| {
        let off = entry.off(configuration);
        let name = entry.controller.name();
        RecoverySwitch { name, on: off.is_none(), why: off.map(|off| off.to_string()) }
    };
    recoveries().map(switch).collect()
}

/// Who or what would prove that a machine is off, by the configuration. A missing heartbeat is no proof.
fn proven_by(configuration: &Configuration) -> Vec<String> {
    let on = |controller| configuration.controllers.enabled(controller);
    let mut proofs = Vec::new();
    if on(Controller::Eviction) {
        proofs.push(format!("a person: salvor evict NODE (taint {})", taints::FORCE_EVICTION));
    }
    let out_of_service = taints::OUT_OF_SERVICE;
    proofs.push(format!("a person or another controller: taint {out_of_service}"));
    let triggers = configuration.eviction.triggers.iter().enumerate().filter(|(_, trigger)| trigger.proof);
    for (at, trigger) in triggers.filter(|_| on(Controller::Eviction)) {
        let value = trigger.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        let effect = trigger.effect.map(|effect| format!(":{}", effect.as_str())).unwrap_or_default();
        proofs.push(format!("taint {}{value}{effect} (eviction.triggers[{at}])", trigger.key));
    }
    if on(Controller::Repair) {
        proofs.push(
            "repair: a machine that Salvor ended, once its Node and its NodeClaim or Machine are gone".into(),
        );
    }
    proofs
}

#[cfg(test)]
mod tests {
    use salvor_api::config::parse;
    use salvor_operator::Published;
    use serde_json::{Value, json};

    use super::*;

    fn configuration(text: &str) -> Configuration {
        parse(&format!("apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n{text}")).unwrap()
    }

    #[test]
    fn a_lease_tells_who_leads_with_what() {
        let text = "controllers: [zombie, eviction]\neviction: {triggers: [{key: example.com/off, proof: true}, {key: example.com/sick}]}\n";
        let published = Published { version: "1.2.3".into(), configuration: Some(configuration(text)) };
        let pause = Pause::Said(Said {
            since: "2026-11-16T09:00:00Z".parse().unwrap(),
            by: "jane".into(),
            reason: String::new(),
            until: None,
        });
        let running = InCluster {
            published: Some(published),
            leader: Some("a".into()),
            pause: Some(pause),
            ..InCluster::default()
        };
        let status = serde_json::to_value(Status::of(running)).unwrap();
        let on = |name: &str| {
            let all = status["recoveries"].as_array().unwrap();
            all.iter().find(|recovery| recovery["name"] == name).unwrap()["on"].clone()
        };
        assert_eq!((&status["leader"], &status["version"]), (&json!("a"), &json!("1.2.3")));
        assert_eq!((on("zombie"), on("eviction")), (json!(false), json!(true)), "a gate is off: {status:#}");
        assert_eq!(status["brake"]["holds"], false);
        assert_eq!((&status["paused"]["by"], &status["paused"]["reason"]), (&json!("jane"), &Value::Null));
        let proofs = status["provenBy"].to_string();
        assert!(proofs.contains("salvor evict NODE") && proofs.contains("example.com/off"), "{proofs}");
        assert!(!proofs.contains("example.com/sick") && !proofs.contains("repair"), "{proofs}");
    }

    #[test]
    fn without_a_lease_nothing_is_claimed() {
        let status = Status::of(InCluster { told: "no operator".into(), ..InCluster::default() });
        assert_eq!((&status.leader, &status.recoveries, status.waiting), (&None, &None, None));
        assert_eq!(status.proven_by, Vec::<String>::new());
    }
}
