//! The two programs that recover zombies, as processes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use salvor_testkit::{ControlPlane, Program, wait::Patience};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::kueue::Kueue;
use crate::process::cpu_seconds;

/// The brake is off: a storm is what is measured.
const CONFIGURATION: &str = "apiVersion: config.salvor.dev/v1alpha1
kind: Configuration
brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}
";

/// A contender has this long to start, and this long to come to rest.
const START: Duration = Duration::from_secs(300);
/// How often a starting contender is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// At rest: less than this share of one core over a second.
const REST: f64 = 0.05;

/// A program that recovers zombies.
#[derive(Debug)]
pub(crate) enum Contender {
    Salvor(PathBuf),
    Kueue(Kueue),
}

impl Contender {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Salvor(_) => "salvor",
            Self::Kueue(_) => "kueue",
        }
    }

    /// Whether requests of this user agent are its own.
    pub(crate) fn is(&self, user_agent: &str) -> bool {
        user_agent.starts_with(self.name())
    }

    /// Puts into the cluster what it needs to be there before it starts.
    pub(crate) async fn prepare(&self, plane: &ControlPlane) -> Result<(), String> {
        match self {
            Self::Salvor(_) => Ok(()),
            Self::Kueue(kueue) => kueue.install(plane).await,
        }
    }

    /// Starts it, and waits until it is ready and has come to rest.
    pub(crate) async fn start(&self, plane: &ControlPlane) -> Result<Running, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (program, address) = match self {
            Self::Salvor(binary) => start_salvor(binary, plane, folder.path()).await?,
            Self::Kueue(kueue) => kueue.start(plane, folder.path())?,
        };
        let running = Running { program, _folder: folder };
        let ready = async {
            while !running.program.has_ended() && !answers_ok(address, "/readyz").await {
                tokio::time::sleep(LOOK).await;
            }
        };
        let in_time = Patience::of(START).until(ready).await.is_some();
        if !in_time || running.program.has_ended() {
            return Err(format!("{} does not get ready:\n{}", self.name(), running.tail()));
        }
        running.rest().await?;
        Ok(running)
    }
}

/// A contender that runs. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) program: Program,
    _folder: tempfile::TempDir,
}

impl Running {
    /// Waits until it does nothing: its lists are read and its caches filled.
    async fn rest(&self) -> Result<(), String> {
        let resting = async {
            loop {
                let before = cpu_seconds(self.program.pid());
                tokio::time::sleep(Duration::from_secs(1)).await;
                if cpu_seconds(self.program.pid()) - before < REST {
                    return;
                }
            }
        };
        let in_time = Patience::of(START).until(resting).await;
        in_time.ok_or_else(|| format!("it does not come to rest:\n{}", self.tail()))
    }

    /// The end of what it has said.
    pub(crate) fn tail(&self) -> String {
        let output = self.program.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

async fn start_salvor(
    binary: &Path,
    plane: &ControlPlane,
    folder: &Path,
) -> Result<(Program, SocketAddr), String> {
    let config = folder.join("salvor.yaml");
    std::fs::write(&config, CONFIGURATION).map_err(|e| format!("{}: {e}", config.display()))?;
    let arguments = [
        "run".to_owned(),
        format!("--kubeconfig={}", plane.kubeconfig().display()),
        format!("--config={}", config.display()),
        "--feature-gates=FailureRecoveryPolicy=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--log-format=json".to_owned(),
        "--bind=127.0.0.1:0".to_owned(),
    ];
    let program = Program::start(binary, arguments, &[]);
    let served_at = || {
        let output = program.output();
        let line = output.lines().find(|line| line.contains("salvor is running"))?;
        let address = line.split("\"address\":\"").nth(1)?.split('"').next()?;
        address.parse::<SocketAddr>().ok()
    };
    let told = async {
        loop {
            match served_at() {
                Some(address) => return Some(address),
                None if program.has_ended() => return None,
                None => tokio::time::sleep(LOOK).await,
            }
        }
    };
    let address = Patience::of(START).until(told).await.flatten();
    let address = address.ok_or_else(|| format!("salvor does not start:\n{}", program.output()))?;
    Ok((program, address))
}

/// One request over plain HTTP on loopback needs no HTTP library.
async fn answers_ok(address: SocketAddr, path: &str) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    exchange.await.is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}
