//! `salvor demo`: a cluster in this process, a story with failing nodes, and a page to watch it.

mod args;
mod error;
mod pace;
mod replay;
mod stage;
mod story;
mod terminal;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::LogFormat;
use salvor_apiserver::Server;
use salvor_page::{Page, ServeOptions, Wish};
use salvor_simulate::scenario::Scenario;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use crate::error::CliError;
use crate::local_cluster::{KubeconfigFile, LocalClusterError};
use crate::logging;
use crate::run::listen_for_signals;
pub(crate) use args::DemoArgs;
use args::{PAGE, bind_page, load};
use error::DemoError;
use pace::{SharedClock, keep_pace};
use stage::Stage;
use terminal::{Terminal, WithoutReader};

/// How often the demo diagnoses the cluster for the page, in real time.
const LOOK_FOR_MISSING: Duration = Duration::from_secs(3);

/// The cluster's time begins this long before now.
const HEAD_START: SignedDuration = SignedDuration::from_hours(6);

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

/// Plays the story in virtual time, without a page and without an open port.
async fn play_once(scenario: &Scenario, with_salvor: bool) -> Result<ExitCode, DemoError> {
    // A fixed start time, so that the same story always gives the same report.
    let start = Timestamp::constant(1_767_225_600, 0);
    let stage = Stage::set(scenario, start, None, with_salvor).await?;
    let mut terminal = Terminal::new(stage.now(), WithoutReader::GoOn);
    story::opening(&stage, scenario, |_| {}).await?;
    let report = story::play(&stage, scenario, &mut terminal, with_salvor).await?;
    story::tell(&report, &terminal, scenario, with_salvor)?;
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
        let report = story::play(&stage, scenario, &mut terminal, with_salvor).await?;
        story::tell(&report, &terminal, scenario, with_salvor)?;
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
            tracing::error!(%error, "page server failed");
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
