//! `salvor run`: runs the operator until a signal.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use salvor_api::config::Configuration;
use salvor_operator::{CheckAtStart, Notices, story};
use salvor_page::{Page, ServeOptions};
use salvor_recovery::appwrapper::AppWrapperPolicy;
use salvor_why::Judge;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use crate::cluster::{Cluster, ClusterError, Origin, Source};
use crate::error::CliError;
use crate::settings::{JudgingArgs, ServingArgs};
use crate::{doctor, logging};

/// A person at a terminal should not wait longer for an unreachable server.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// The shortest period between two diagnoses for the page. They run only while a browser has it open.
const LOOK_FOR_MISSING: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The kubeconfig file [env: KUBECONFIG] [default: ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    judging: JudgingArgs,
    #[command(flatten)]
    serving: ServingArgs,
}

pub(crate) fn execute(args: &RunArgs) -> Result<ExitCode, CliError> {
    let configuration = args.serving.load(&args.judging)?;
    logging::start(configuration.log_format, LevelFilter::INFO)?;
    let source = Source::find(args.kubeconfig.as_deref());
    end_on_panic();
    // The operator mostly waits for the API server. With a second thread, a storm took a fifth more CPU and was not
    // faster. The leader election and health checks have their own thread, which is almost idle.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Start)?;
    let ending = runtime.block_on(async {
        let signals = listen_for_signals().map_err(CliError::Start)?;
        let shutdown = CancellationToken::new();
        let operator = operate(&source, configuration, shutdown.clone());
        until_stopped(operator, signals, &shutdown).await
    });
    // A blocked task must not delay the exit.
    runtime.shutdown_background();
    Ok(match ending {
        Ok(Ending::Clean) => ExitCode::SUCCESS,
        Ok(Ending::Forced(signal)) => {
            tracing::warn!(signal = signal.name(), "second signal received, exiting without cleanup");
            ExitCode::from(signal.exit_code())
        }
        // A log line instead of plain text, so that it appears in the logs.
        Err(error) => {
            tracing::error!("{}", story(&error));
            error.exit_code()
        }
    })
}

/// A panic of one task or thread must not leave a process that holds the Lease and does half of its work. Release
/// builds abort on panic anyway.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

async fn operate(
    source: &Source,
    configuration: Configuration,
    shutdown: CancellationToken,
) -> Result<(), CliError> {
    let cluster = Cluster::load(source).await?;
    if cluster.origin != Origin::InCluster {
        // In a pod the server will come back, and waiting is better than restarts with growing backoff. A person with a
        // wrong kubeconfig should get an error.
        match shutdown.run_until_cancelled(first_answer(&cluster)).await {
            Some(answer) => answer?,
            None => return Ok(()),
        }
    }
    tracing::info!(
        server = %cluster.config.cluster_url,
        origin = %cluster.origin,
        version = env!("CARGO_PKG_VERSION"),
        "starting"
    );
    let notices = if configuration.page.enabled {
        show_page(&configuration, cluster.client()?, shutdown.clone()).await?
    } else {
        Notices::default()
    };
    let checked = CheckAtStart::default();
    doctor::check_in_background(&cluster, &configuration, checked.clone());
    salvor_operator::run(cluster.config, configuration, notices, checked, shutdown).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Serves a read-only page while the operator runs.
async fn show_page(
    configuration: &Configuration,
    client: kube::Client,
    shutdown: CancellationToken,
) -> Result<Notices, CliError> {
    let address = configuration.page.bind;
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let at = listener.local_addr()?;
        Ok((listener, at))
    };
    let (listener, at) = bound.await.map_err(|source| CliError::BindPage { address, source })?;
    let (notices, heard) = Notices::channel();
    let page = Page::new(Timestamp::now);
    let (fed, told) = (page.clone(), page.clone());
    let policy = AppWrapperPolicy::new(configuration);
    look_for_missing(&page, client.clone(), configuration, shutdown.clone()).map_err(CliError::Start)?;
    tokio::spawn(async move { fed.follow(client, policy).await });
    tokio::spawn(async move { told.listen(heard).await });
    tokio::spawn(async move {
        if let Err(error) = page.serve(listener, ServeOptions::default(), shutdown.cancelled_owned()).await {
            tracing::error!(%error, "page server failed");
        }
    });
    tracing::info!(page = %format_args!("http://{at}/"), "page served");
    Ok(notices)
}

/// Keeps the page's list of unrecovered workloads up to date. It has its own thread: in a large cluster the rules take
/// a while, and recoveries must not wait for the page.
fn look_for_missing(
    page: &Page,
    client: kube::Client,
    configuration: &Configuration,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let page = page.clone();
    let judge = Judge { file: Some(configuration.clone()) };
    thread::Builder::new().name("page-missing".to_owned()).spawn(move || {
        let look = page.look_for_missing(client, judge, LOOK_FOR_MISSING);
        runtime.block_on(shutdown.run_until_cancelled(look));
    })?;
    Ok(())
}

async fn first_answer(cluster: &Cluster) -> Result<(), ClusterError> {
    let client = cluster.client()?;
    match tokio::time::timeout(FIRST_ANSWER_WITHIN, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) => Err(cluster.refused(&status)),
        Ok(Err(error)) => Err(cluster.unreachable(story(&error))),
        Err(_) => {
            let seconds = FIRST_ANSWER_WITHIN.as_secs();
            Err(cluster.unreachable(format!("no answer within {seconds}s")))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopSignal {
    Interrupt,
    Terminate,
}

impl StopSignal {
    fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    fn kind(self) -> SignalKind {
        match self {
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
        }
    }

    /// The exit code that a shell reports for this signal.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

pub(crate) fn listen_for_signals() -> io::Result<mpsc::Receiver<StopSignal>> {
    let (heard, signals) = mpsc::channel(2);
    for stop in [StopSignal::Interrupt, StopSignal::Terminate] {
        let mut stream = signal(stop.kind())?;
        let heard = heard.clone();
        tokio::spawn(async move { while stream.recv().await.is_some() && heard.send(stop).await.is_ok() {} });
    }
    Ok(signals)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The operator finished its work.
    Clean,
    /// A second signal arrived.
    Forced(StopSignal),
}

/// Runs the operator. The first signal stops it gracefully, the second immediately.
async fn until_stopped(
    operator: impl Future<Output = Result<(), CliError>>,
    mut signals: mpsc::Receiver<StopSignal>,
    shutdown: &CancellationToken,
) -> Result<Ending, CliError> {
    tokio::pin!(operator);
    tokio::select! {
        outcome = &mut operator => return outcome.map(|()| Ending::Clean),
        Some(signal) = signals.recv() => {
            tracing::info!(signal = signal.name(), "signal received, stopping; a second one exits at once");
            shutdown.cancel();
        }
    }
    tokio::select! {
        outcome = &mut operator => outcome.map(|()| Ending::Clean),
        Some(signal) = signals.recv() => Ok(Ending::Forced(signal)),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn the_first_signal_asks_and_the_operator_ends_cleanly() {
        let (send, signals) = mpsc::channel(2);
        let shutdown = CancellationToken::new();
        send.send(StopSignal::Terminate).await.unwrap();
        let asked = shutdown.clone();
        let operator = async move {
            asked.cancelled().await;
            Ok(())
        };
        let ending = until_stopped(operator, signals, &shutdown).await.unwrap();
        assert_eq!(ending, Ending::Clean);
        assert!(shutdown.is_cancelled());
    }

    #[tokio::test]
    async fn the_second_signal_ends_an_operator_that_hangs() {
        let (send, signals) = mpsc::channel(2);
        send.send(StopSignal::Terminate).await.unwrap();
        send.send(StopSignal::Interrupt).await.unwrap();
        let ending = until_stopped(pending(), signals, &CancellationToken::new()).await;
        assert_eq!(ending.unwrap(), Ending::Forced(StopSignal::Interrupt));
    }

    #[tokio::test]
    async fn an_operator_that_ends_by_itself_is_not_waited_for() {
        let (_send, signals) = mpsc::channel(2);
        let failed = async { Err(CliError::Start(io::Error::other("boom"))) };
        let ending = until_stopped(failed, signals, &CancellationToken::new()).await;
        assert_eq!(ending.unwrap_err().to_string(), "cannot start: boom");
    }
}
