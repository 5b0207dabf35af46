//! `salvor demo --replay`: plays a seed of a scenario as `salvor simulate` does, and shows its history on the page.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use jiff::Timestamp;
use salvor_api::config::{Configuration, LogFormat};
use salvor_apiserver::{Change, ChangeKind};
use salvor_operator::Notice;
use salvor_page::{Episode, Recording, Replay, Story};
use salvor_recovery::appwrapper::AppWrapperPolicy;
use salvor_simulate::play::{Audience, IncidentRecord, Peer, Policy, Record, play_before};
use salvor_simulate::report::{Report, report_table};
use salvor_simulate::scenario::{Deed, Fault, Scenario};
use salvor_why::Overview;
use tokio::sync::oneshot;
use tracing::level_filters::LevelFilter;

use super::args::{DemoArgs, PAGE, bind_page, load};
use super::error::DemoError;
use crate::error::CliError;
use crate::logging;
use crate::output;
use crate::run::listen_for_signals;

/// Records what the page needs.
#[derive(Default)]
struct Pen(Recording);

impl Audience for Pen {
    fn change(&mut self, change: &Change<'_>) {
        let Change { at, group, resource, kind, object, .. } = *change;
        self.0.object(at, group, resource, kind == ChangeKind::Removed, object);
    }

    fn notice(&mut self, at: Timestamp, notice: &Notice) {
        self.0.notice(at, notice);
    }

    fn began(&mut self, at: Timestamp) {
        self.0.begin(at);
    }

    fn ended(&mut self, at: Timestamp, missing: &Overview) {
        self.0.end(at, missing);
    }
}

pub(super) fn execute(args: &DemoArgs, path: &Path) -> Result<ExitCode, CliError> {
    let mut scenario = load(Some(path))?;
    for failure in &args.fail {
        let failed = scenario.fail(failure);
        failed.map_err(|problem| DemoError::Fail { failure: failure.clone(), problem })?;
    }
    let seed = args.seed.unwrap_or(1);
    let policy = policy(args, &scenario)?;
    logging::start(LogFormat::Text, LevelFilter::ERROR)?;
    let listener = bind_page(args.page, PAGE)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let ending = runtime.block_on(async {
        let mut signals = listen_for_signals().map_err(CliError::Start)?;
        let (done, played) = oneshot::channel();
        let (path, speed) = (path.to_owned(), args.speed);
        // The simulation has its own runtime and clock.
        thread::spawn(move || {
            let played = record(&scenario, &policy, seed, speed);
            // After a signal, no receiver is left.
            let _ = done.send(played.map_err(|error| DemoError::Play { path, seed, error }));
        });
        let (told, replay) = tokio::select! {
            played = played => played.unwrap_or(Err(DemoError::Vanished))?,
            signal = signals.recv() => {
                return Ok(signal.map_or(ExitCode::SUCCESS, |signal| ExitCode::from(signal.exit_code())));
            }
        };
        show(listener, replay, &told, async move {
            signals.recv().await;
        })
        .await
    });
    runtime.shutdown_background();
    ending
}

/// The requested policy, named as in the reports of `salvor simulate`.
fn policy(args: &DemoArgs, scenario: &Scenario) -> Result<Policy, DemoError> {
    let peer = if args.without_salvor { Some(Peer::Kubernetes) } else { args.against };
    if let Some(peer) = peer {
        return Ok(Policy::peer(peer));
    }
    let mut policy = match &args.config {
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|source| DemoError::ReadConfiguration { path: path.clone(), source })?;
            let from = path.display().to_string();
            Policy::of_file(&from, &text, scenario).map_err(|error| DemoError::Policy { from, error })?
        }
        None => Policy::of(scenario),
    };
    for (key, value) in &args.set {
        policy = policy
            .with_setting(key, value, scenario)
            .map_err(|error| DemoError::Policy { from: "--set".to_owned(), error })?;
    }
    Ok(policy)
}

/// Plays the seed and returns the report and the history.
fn record(
    scenario: &Scenario,
    policy: &Policy,
    seed: u64,
    speed: f64,
) -> Result<(String, Replay), salvor_simulate::play::PlayError> {
    let configuration = policy.configuration.as_ref();
    let wrappers = AppWrapperPolicy::new(configuration.unwrap_or(&Configuration::default()));
    let pen = Arc::new(Mutex::new(Pen(Recording::new(wrappers))));
    let record = play_before(scenario, policy, seed, &pen)?;
    let has_operator = configuration.is_some();
    let Pen(recording) = std::mem::take(&mut *pen.lock().unwrap_or_else(PoisonError::into_inner));
    let story = story(scenario, &record, speed, has_operator);
    Ok((report_table(&scenario.title, &Report::of(&record)), recording.replay(story)))
}

fn story(scenario: &Scenario, record: &Record, speed: f64, has_operator: bool) -> Story {
    let said = if scenario.say.is_empty() { "" } else { &format!("{} ", scenario.say) };
    Story {
        title: scenario.title.clone(),
        text: format!("{said}Seed {}, policy {}.", record.seed, record.policy),
        episodes: record.incidents.iter().filter(|it| it.at <= record.end).map(episode).collect(),
        speed,
        has_operator,
    }
}

fn episode(incident: &IncidentRecord) -> Episode {
    let IncidentRecord { at, until, fault, nodes, .. } = incident;
    Episode {
        at: *at,
        // A reboot ends by itself.
        until: until.filter(|until| until > at && *fault != Fault::Reboot),
        begins: Deed::Fault(fault.clone()).told(nodes),
        is_over: Deed::Heal.told(nodes),
    }
}

/// Prints the report and serves the page until Ctrl-C.
async fn show(
    listener: TcpListener,
    replay: Replay,
    told: &str,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<ExitCode, CliError> {
    let address = listener.local_addr().map_err(CliError::Start)?;
    listener.set_nonblocking(true).map_err(CliError::Start)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(CliError::Start)?;
    let text = format!(
        "{told}\n  page       http://{address}/\n  keys       space: play and pause; arrows: step; shift and arrows: from event to event\n  stop       Ctrl-C\n"
    );
    output::print(&text)?;
    replay.serve(listener, stop).await.map_err(|source| DemoError::Page { address, source })?;
    Ok(ExitCode::SUCCESS)
}
