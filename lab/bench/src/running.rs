//! Contenders as processes: started, ready, idle.

use std::{
    ffi::OsStr,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use salvor_testkit::{ControlPlane, Program, wait::Patience};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::process::{cpu_seconds, memory_mb};

/// The time limit for a contender to start, and to become idle.
pub(crate) const START: Duration = Duration::from_secs(300);
/// The polling interval of a starting contender.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
/// Idle: less than this share of one core over a second.
const REST: f64 = 0.05;
/// Settled: its memory changes by less than this share for this long.
const STEADY: f64 = 0.01;
const STEADY_FOR: Duration = Duration::from_secs(20);
/// Memory that never settles is reported as it is by then.
const GIVE_UP: Duration = Duration::from_secs(240);
const LOOK_AT_MEMORY: Duration = Duration::from_millis(500);

/// A running contender. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) program: Program,
    /// Its configuration.
    _folder: tempfile::TempDir,
}

impl Running {
    /// Waits until a started program is ready and idle.
    pub(crate) async fn when_at_rest(
        name: &str,
        program: Program,
        address: SocketAddr,
        folder: tempfile::TempDir,
    ) -> Result<Self, String> {
        let running = Self { program, _folder: folder };
        let ready = async {
            while !running.program.has_ended() && !answers_ok(address, "/readyz").await {
                tokio::time::sleep(LOOK).await;
            }
        };
        let in_time = Patience::of(START).until(ready).await.is_some();
        if !in_time || running.program.has_ended() {
            return Err(format!("{name} does not get ready:\n{}", running.tail()));
        }
        let rests = rest(running.program.pid()).await;
        rests.ok_or_else(|| format!("{name} does not come to rest:\n{}", running.tail()))?;
        Ok(running)
    }

    /// The end of its output.
    pub(crate) fn tail(&self) -> String {
        let output = self.program.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// Waits until a process is idle: its lists are read and its caches filled. `None` if that never happens.
pub(crate) async fn rest(pid: u32) -> Option<()> {
    let resting = async {
        loop {
            let before = cpu_seconds(pid);
            tokio::time::sleep(Duration::from_secs(1)).await;
            if cpu_seconds(pid) - before < REST {
                return;
            }
        }
    };
    Patience::of(START).until(resting).await
}

/// Starts `salvor run` with this configuration. Returns the address of its probes.
pub(crate) async fn start_salvor(
    binary: &Path,
    plane: &ControlPlane,
    folder: &Path,
    configuration: &str,
) -> Result<(Program, SocketAddr), String> {
    let config = folder.join("salvor.yaml");
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    std::fs::write(&config, format!("{head}{configuration}"))
        .map_err(|e| format!("{}: {e}", config.display()))?;
    let arguments = [
        "run".to_owned(),
        format!("--kubeconfig={}", plane.kubeconfig().display()),
        format!("--config={}", config.display()),
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

/// Waits until the resident memory of a process has settled: now and at its peak, in MB.
pub(crate) async fn settled_memory(pid: u32) -> (f64, f64) {
    let began = Instant::now();
    let (mut level, mut since) = (memory_mb(pid).0, Instant::now());
    while since.elapsed() < STEADY_FOR && began.elapsed() < GIVE_UP {
        tokio::time::sleep(LOOK_AT_MEMORY).await;
        let now = memory_mb(pid).0;
        if (now - level).abs() > level * STEADY {
            (level, since) = (now, Instant::now());
        }
    }
    memory_mb(pid)
}

/// The whole answer to a GET. One request over plain HTTP on loopback needs no HTTP library.
pub(crate) async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn answers_ok(address: SocketAddr, path: &str) -> bool {
    get(address, path).await.is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}

/// Builds the `salvor` that belongs to this benchmark: same sources, same profile.
pub(crate) fn build_salvor() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    let own = std::env::current_exe().map_err(|e| format!("where this program is cannot be told: {e}"))?;
    // cargo names the folder after the profile, except for this one.
    let profile = match own.parent().and_then(Path::file_name).and_then(OsStr::to_str) {
        Some("debug") | None => "dev",
        Some(folder) => folder,
    };
    build.args(["build", "--quiet", "-p", "salvor", "--profile", profile]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    let status = build.status().map_err(|e| format!("cargo does not start: {e}"))?;
    if !status.success() {
        return Err(format!("salvor does not build: cargo ended with {status}"));
    }
    Ok(own.with_file_name("salvor"))
}
