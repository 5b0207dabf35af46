//! `salvor cluster`: an in-memory cluster for tests. `salvor cluster fault` makes its nodes fail.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use salvor_api::{GoDuration, ParseGoDurationError};
use salvor_apiserver::{Server, ServerError, Settings};
use salvor_cluster::{FaultError, LocalCluster, NodeFault, Options, StartError, inject, zoned};
use salvor_controllers::{Loop, LoopOptions, NodeLifecycleTimers, UnknownLoop};
use salvor_nodes::Timers;
use salvor_operator::story;

use crate::cluster::{Cluster, Source};
use crate::error::CliError;
use crate::run::listen_for_signals;
use crate::settings::page_address;

/// Requests are answered one by one. The rest of the work is TLS.
const WORKER_THREADS: usize = 2;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LocalClusterArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    start: StartArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Break or heal a node of a running `salvor cluster`
    Fault(FaultArgs),
}

#[derive(Debug, clap::Args)]
struct StartArgs {
    /// The number of simulated nodes, at most 5000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number_of_nodes)]
    nodes: usize,
    /// The number of zones, 1 to 5000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_of_zones)]
    zones: usize,
    /// The control loops that run, separated by commas, or `none` [default: all]
    #[arg(long, value_name = "LIST")]
    loops: Option<ChosenLoops>,
    /// The address to serve the API on; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = page_address)]
    listen: SocketAddr,
    /// The file for the kubeconfig; whoever can read it may do everything [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    /// A node without heartbeat for this long becomes unreachable
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = grace_period)]
    node_grace_period: Duration,
}

#[derive(Debug, clap::Args)]
struct FaultArgs {
    /// The node
    node: String,
    /// The fault: crash, partition, heal or reboot
    fault: NodeFault,
    /// The kubeconfig file that `salvor cluster` wrote [env: KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The limit of Kubernetes itself.
const MOST_NODES: usize = 5_000;

fn number_of_nodes(text: &str) -> Result<usize, String> {
    whole_number(text, 0)
}

fn number_of_zones(text: &str) -> Result<usize, String> {
    whole_number(text, 1)
}

fn whole_number(text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=MOST_NODES).contains(number));
    number.ok_or_else(|| format!("write a whole number from {least} to {MOST_NODES}"))
}

/// With a shorter period the nodes would only renew their Leases. A longer one is useless for tests.
fn grace_period(text: &str) -> Result<Duration, String> {
    let duration: GoDuration = text.parse().map_err(|error: ParseGoDurationError| error.to_string())?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
    if (least..=most).contains(&duration.to_std()) {
        Ok(duration.to_std())
    } else {
        Err(format!("{duration} is not between 1s and 24h"))
    }
}

#[derive(Debug, Clone)]
struct ChosenLoops(BTreeSet<Loop>);

impl FromStr for ChosenLoops {
    type Err = UnknownLoop;

    fn from_str(text: &str) -> Result<Self, UnknownLoop> {
        if text == "none" {
            return Ok(Self(BTreeSet::new()));
        }
        text.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalClusterError {
    #[error(transparent)]
    Serve(#[from] ServerError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot write the kubeconfig {}: {source}", path.display())]
    Kubeconfig { path: PathBuf, source: io::Error },
    #[error("{cluster}: {source}")]
    Fault {
        source: FaultError,
        /// Where the request was sent.
        cluster: String,
    },
}

impl From<LocalClusterError> for CliError {
    fn from(error: LocalClusterError) -> Self {
        Self::Command(error.into())
    }
}

pub(crate) fn execute(args: LocalClusterArgs) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()
        .map_err(CliError::Start)?;
    let outcome = runtime.block_on(async {
        match args.command {
            Some(Command::Fault(args)) => fault(&args).await.map(|()| ExitCode::SUCCESS),
            None => run(args.start).await,
        }
    });
    runtime.shutdown_background();
    outcome
}

async fn run(args: StartArgs) -> Result<ExitCode, CliError> {
    // Listens for signals from the start: many nodes take a while, and the kubeconfig file must still be removed.
    let mut signals = listen_for_signals().map_err(CliError::Start)?;
    let running = tokio::select! {
        running = start(args) => running?,
        _ = signals.recv() => return Ok(ExitCode::SUCCESS),
    };
    signals.recv().await;
    // A second signal exits without waiting.
    tokio::select! {
        () = running.stop() => Ok(ExitCode::SUCCESS),
        Some(signal) = signals.recv() => Ok(ExitCode::from(signal.exit_code())),
    }
}

struct Running {
    cluster: LocalCluster,
    server: Server,
    kubeconfig: KubeconfigFile,
}

impl Running {
    async fn stop(self) {
        drop(self.kubeconfig);
        drop(self.server);
        self.cluster.stop().await;
    }
}

async fn start(args: StartArgs) -> Result<Running, CliError> {
    let loops = args.loops.map_or_else(|| Loop::ALL.into(), |chosen| chosen.0);
    let cluster = LocalCluster::start(options(args.node_grace_period, loops.clone()))
        .await
        .map_err(LocalClusterError::from)?;
    let server = cluster.serve(args.listen).await.map_err(LocalClusterError::from)?;
    let nodes = cluster.fleet().add(zoned(args.nodes, args.zones)).await;
    nodes.map_err(|error| LocalClusterError::Start(error.into()))?;
    let kubeconfig = KubeconfigFile::write(args.kubeconfig_out.as_deref(), server.kubeconfig())?;
    say(&format!(
        "A Kubernetes API in memory, for tests only: nothing is kept, and its nodes are simulated.\n\
         {nodes} in {zones}; loops: {loops}\n\
         https://{address}\n\
         export KUBECONFIG={file}\n\
         Ctrl-C ends it.",
        nodes = count(args.nodes, "node"),
        zones = count(args.zones, "zone"),
        loops = if loops.is_empty() {
            "none".to_owned()
        } else {
            loops.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ")
        },
        address = server.address(),
        file = kubeconfig.path.display(),
    ));
    Ok(Running { cluster, server, kubeconfig })
}

fn options(grace: Duration, loops: BTreeSet<Loop>) -> Options {
    let node_lifecycle = NodeLifecycleTimers {
        monitor_period: grace / 10,
        grace_period: grace,
        startup_grace_period: grace + grace / 5,
        ..NodeLifecycleTimers::default()
    };
    Options {
        api: Settings { seed: seed(), start: Timestamp::now() },
        loops: LoopOptions { loops, node_lifecycle, ..LoopOptions::default() },
        kubelets: Timers { lease_renewal: grace / 5, ..Timers::default() },
    }
}

/// Two clusters on one machine should not share UIDs.
fn seed() -> u64 {
    let nanoseconds = Timestamp::now().as_nanosecond().to_le_bytes();
    let low = u64::from_le_bytes(std::array::from_fn(|index| nanoseconds[index]));
    low ^ u64::from(std::process::id())
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn say(text: &str) {
    // A missing reader is not an error.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The kubeconfig file. It is removed at the end if Salvor chose its path.
pub(crate) struct KubeconfigFile {
    path: PathBuf,
    is_ours: bool,
}

impl KubeconfigFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file readable only by its owner, and atomically: a process that waits for the file never reads half
    /// of it.
    pub(crate) fn write(chosen: Option<&Path>, text: &str) -> Result<Self, LocalClusterError> {
        let is_ours = chosen.is_none();
        let path = chosen.map_or_else(
            || std::env::temp_dir().join(format!("salvor-cluster-{}.kubeconfig", std::process::id())),
            Path::to_owned,
        );
        let mut draft = path.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&draft, &path));
        match written {
            Ok(()) => Ok(Self { path, is_ours }),
            Err(source) => {
                // The file may not exist.
                let _ = fs::remove_file(&draft);
                Err(LocalClusterError::Kubeconfig { path, source })
            }
        }
    }
}

impl Drop for KubeconfigFile {
    fn drop(&mut self) {
        if self.is_ours {
            // The file may already have been removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn fault(args: &FaultArgs) -> Result<(), CliError> {
    let cluster = Cluster::load(&Source::find(args.kubeconfig.as_deref())).await?;
    match inject(&cluster.client()?, &args.node, args.fault).await {
        Ok(()) => Ok(()),
        Err(FaultError::Api(error)) if !matches!(error, kube::Error::Api(_)) => {
            Err(cluster.unreachable(story(&error)).into())
        }
        Err(source) => {
            let cluster = cluster.config.cluster_url.to_string();
            Err(LocalClusterError::Fault { source, cluster }.into())
        }
    }
}
