//! `salvor demo`: a cluster in this process, a story with failing nodes, and a page to watch it.

mod pace;
mod replay;
mod stage;
mod story;
mod terminal;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::LogFormat;
use salvor_apiserver::Server;
use salvor_cluster::StartError;
use salvor_page::{Page, ServeOptions, Wish};
use salvor_simulate::play::{Peer, PlayError, PolicyError};
use salvor_simulate::scenario::{self, Scenario, ScenarioError, Source};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use crate::error::CliError;
use crate::local_cluster::{KubeconfigFile, LocalClusterError};
use crate::logging;
use crate::run::listen_for_signals;
use crate::settings::page_address;
use pace::{SharedClock, keep_pace};
use stage::Stage;
use terminal::{Terminal, WithoutReader};

const PAGE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8090);

/// How often the demo diagnoses the cluster for the page, in real time.
const LOOK_FOR_MISSING: Duration = Duration::from_secs(3);

/// The cluster's time begins this long before now.
const HEAD_START: SignedDuration = SignedDuration::from_hours(6);

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Speed of the cluster's time: N of its seconds pass in one real second, 0.1 to 60; no effect with --once; with --replay,
    /// the speed at first
    #[arg(long, value_name = "N", default_value_t = 8.0, value_parser = speed)]
    speed: f64,
    /// The story, as a YAML file [default: a zone is cut off]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Play a seed of a scenario as `salvor simulate` does, and show its history on the page: pause, step, speed, any time
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["scenario", "once", "kubeconfig_out"])]
    replay: Option<PathBuf>,
    /// With --replay: the seed of everything random [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --replay: let something else fail as well, such as "partition zone=b 15m"; repeatable
    #[arg(long, value_name = "FAILURE", requires = "replay")]
    fail: Vec<String>,
    /// With --replay: play Salvor with this configuration file in place of the scenario's configuration
    #[arg(long, value_name = "FILE", requires = "replay", conflicts_with = "without_salvor")]
    config: Option<PathBuf>,
    /// With --replay: set a field of Salvor's configuration, or of a workload (workloads.NAME.FIELD); repeatable
    #[arg(long, value_name = "KEY=VALUE", requires = "replay", conflicts_with = "without_salvor", value_parser = setting)]
    set: Vec<(String, String)>,
    /// With --replay: play the rules of a peer in place of Salvor: kubernetes, kueue, karpenter or appwrapper
    #[arg(long, value_name = "PEER", requires = "replay", conflicts_with_all = ["without_salvor", "config", "set"])]
    against: Option<Peer>,
    /// Play in virtual time, print the report, and exit: with code 0 only if everything recovered
    #[arg(long)]
    once: bool,
    /// The same story without Salvor's recoveries
    #[arg(long)]
    without_salvor: bool,
    /// Where to serve the page [default: 127.0.0.1:8090, or any free port if that is taken]
    #[arg(long, value_name = "ADDR", conflicts_with = "once", value_parser = page_address)]
    page: Option<SocketAddr>,
    /// Serve the cluster's API on loopback, and write a kubeconfig for kubectl to FILE
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    kubeconfig_out: Option<PathBuf>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .ok_or_else(|| "write KEY=VALUE, such as brake.maxUnreachablePercent=20".to_owned())?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| (0.1..=60.0).contains(speed));
    speed.ok_or_else(|| "write a number from 0.1 to 60".into())
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
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

pub(crate) fn execute(args: &DemoArgs) -> Result<ExitCode, CliError> {
    if let Some(path) = &args.replay {
        return replay::execute(args, path);
    }
    if let Some(seed) = args.seed {
        return Err(DemoError::SeedWithoutReplay(seed).into());
    }
    let scenario = load(args.scenario.as_deref())?;
    logging::start(LogFormat::Text, LevelFilter::ERROR)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .map_err(CliError::Start)?;
    let ending = if args.once {
        runtime.block_on(play_once(&scenario, !args.without_salvor)).map_err(CliError::from)
    } else {
        runtime.block_on(play_live(args, &scenario))
    };
    runtime.shutdown_background();
    ending
}

fn load(path: Option<&Path>) -> Result<Scenario, DemoError> {
    let Some(path) = path else {
        let path = PathBuf::from("the built-in story");
        return Scenario::read(scenario::DEMO, &Source::default())
            .map_err(|error| DemoError::Scenario { path, error });
    };
    let text = fs::read_to_string(path)
        .map_err(|source| DemoError::ReadScenario { path: path.to_owned(), source })?;
    let source = Source { folder: path.parent().map(Path::to_owned).unwrap_or_default() };
    Scenario::read(&text, &source).map_err(|error| DemoError::Scenario { path: path.to_owned(), error })
}

/// Plays the story in virtual time, without a page and without an open port.
async fn play_once(scenario: &Scenario, with_salvor: bool) -> Result<ExitCode, DemoError> {
    // A fixed start time, so that the same story always gives the same report.
    let start = Timestamp::constant(1_767_225_600, 0);
    let stage = Stage::set(scenario, start, None, with_salvor).await?;
    let mut terminal = Terminal::new(stage.now(), WithoutReader::GoOn);
    story::opening(&stage, scenario, |_| {}).await?;
    let report = story::play(&stage, scenario, &mut terminal).await?;
    story::tell(&report, &terminal, with_salvor)?;
    stage.strike_set().await;
    Ok(if report.all_recovered() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the story at a speed that people can follow, until Ctrl-C.
async fn play_live(args: &DemoArgs, scenario: &Scenario) -> Result<ExitCode, CliError> {
    let mut signals = listen_for_signals().map_err(CliError::Start)?;
    let listener = bind_page(args.page, PAGE)?;
    let address = listener.local_addr().map_err(CliError::Start)?;
    // The cluster's time starts in the past because it runs faster than real time. Otherwise kubectl would show
    // negative ages.
    let start = Timestamp::now() - HEAD_START;
    let clock = SharedClock::showing(start);
    let with_salvor = !args.without_salvor;
    let staged = Stage::set(scenario, start, Some(clock.clone()), with_salvor).await;
    let stage = staged?;
    let mut terminal = Terminal::new(stage.now(), WithoutReader::End);
    story::opening(&stage, scenario, |now| clock.set(now)).await.map_err(DemoError::from)?;

    let pace = tokio::spawn(keep_pace(args.speed, stage.cluster.api().clone(), clock));
    let (wish, wishes) = mpsc::channel(8);
    let stop = CancellationToken::new();
    let shown = show(&stage.page, listener, wish, args, stop.clone()).map_err(CliError::Start)?;
    let server = serve(args, &stage).await?;

    let performance = async {
        greet(args, &terminal, address, server.as_ref().map(|(_, kubeconfig)| kubeconfig.path()))?;
        let report = story::play(&stage, scenario, &mut terminal).await?;
        story::tell(&report, &terminal, with_salvor)?;
        terminal
            .line("  The cluster keeps running: crash or cut off nodes on the page. Press Ctrl-C to stop.")?;
        Ok(story::go_on(&stage, &mut terminal).await?)
    };
    let ending = tokio::select! {
        outcome = performance => outcome,
        () = stage.grant(wishes) => Ok(()),
        () = stage.look_for_missing(with_salvor, LOOK_FOR_MISSING.mul_f64(args.speed)) => Ok(()),
        _ = signals.recv() => Ok(()),
    };
    stop.cancel();
    pace.abort();
    drop(server);
    // A second signal exits without waiting.
    tokio::select! {
        () = stage.strike_set() => {}
        Some(signal) = signals.recv() => return Ok(ExitCode::from(signal.exit_code())),
    }
    // The panic hook has already printed a panic of that thread.
    let _ = shown.join();
    match ending {
        // A reader that closes the pipe, such as `head`, is not an error.
        Err(DemoError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        ending => Ok(ending.map(|()| ExitCode::SUCCESS)?),
    }
}

/// Prints the address of the page and other ways to access the cluster.
fn greet(
    args: &DemoArgs,
    terminal: &Terminal,
    page: SocketAddr,
    kubeconfig: Option<&Path>,
) -> Result<(), DemoError> {
    terminal.line("A whole cluster runs in this process. Nothing outside of it is touched.")?;
    terminal.line(&format!("  page       http://{page}/"))?;
    if let Some(path) = kubeconfig {
        terminal.line(&format!("  kubectl    export KUBECONFIG={}", path.display()))?;
    }
    terminal
        .line(&format!("  time       {} of its seconds pass in one real second (--speed)", args.speed))?;
    Ok(terminal.line("  stop       Ctrl-C")?)
}

/// Uses any free port if the default one is taken. A port given by --page is never replaced.
fn bind_page(asked: Option<SocketAddr>, usual: SocketAddr) -> Result<TcpListener, DemoError> {
    let address = asked.unwrap_or(usual);
    TcpListener::bind(address)
        .or_else(|error| match (asked, error.kind()) {
            (None, io::ErrorKind::AddrInUse) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)),
            _ => Err(error),
        })
        .map_err(|source| DemoError::Page { address, source })
}

/// Serves the page on its own thread, because it needs real time.
fn show(
    page: &Page,
    listener: TcpListener,
    wishes: mpsc::Sender<Wish>,
    args: &DemoArgs,
    stop: CancellationToken,
) -> io::Result<thread::JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let options =
        ServeOptions { wishes: Some(wishes), speed: args.speed, has_operator: !args.without_salvor };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let page = page.clone();
    Ok(thread::spawn(move || {
        let served = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            page.serve(listener, options, stop.cancelled_owned()).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the page is not served any more");
        }
    }))
}

async fn serve(args: &DemoArgs, stage: &Stage) -> Result<Option<(Server, KubeconfigFile)>, CliError> {
    let Some(path) = &args.kubeconfig_out else { return Ok(None) };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = stage.cluster.serve(address).await.map_err(LocalClusterError::from)?;
    let kubeconfig = KubeconfigFile::write(Some(path), server.kubeconfig())?;
    Ok(Some((server, kubeconfig)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_evaded_unless_it_was_asked_for() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = taken.local_addr().unwrap();
        let other = bind_page(None, address).unwrap().local_addr().unwrap();
        assert!(other.ip().is_loopback() && other.port() != address.port());
        let error = bind_page(Some(address), PAGE).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }
}
