//! Real controllers of other projects as plain processes beside a control plane, and their CRDs.
//!
//! `control-plane/peer` builds them once into the cache; none of their files are in this repository.

pub mod appwrapper;
mod crds;
pub mod karpenter;
pub mod kueue;
mod webhooks;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub use self::appwrapper::AppWrapperController;
pub use self::crds::install;
pub use self::karpenter::Karpenter;
pub use self::kueue::Kueue;
use crate::access::Access;
use crate::plane::assets::{self, AssetsError};
use crate::programs::program::Program;
use crate::watch::wait::{self, Patience};

const READY_WITHIN: Duration = Duration::from_secs(120);

/// What `control-plane/peer` can build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Kueue,
    AppWrapper,
    /// No program: the CRDs of workloads that are wrapped (JobSet, RayCluster, RayJob, PyTorchJob, LeaderWorkerSet),
    /// and the samples of AppWrappers.
    Workloads,
    /// Karpenter with its kwok provider.
    Karpenter,
    /// No program: the CRDs of Karpenter and of Cluster API.
    Machines,
    Helm,
    Helm3,
}

impl Peer {
    /// Also the name of its program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kueue => "kueue",
            Self::AppWrapper => "appwrapper",
            Self::Workloads => "workloads",
            Self::Karpenter => "karpenter",
            Self::Machines => "machines",
            Self::Helm => "helm",
            Self::Helm3 => "helm3",
        }
    }

    /// The folder that holds it. The first call of a process runs the build script, which may take minutes.
    ///
    /// # Errors
    /// If it is not there and cannot be built.
    pub fn folder(self) -> Result<&'static Path, AssetsError> {
        static FOLDERS: [OnceLock<Result<PathBuf, AssetsError>>; 7] = [const { OnceLock::new() }; 7];
        FOLDERS[self as usize]
            .get_or_init(|| {
                let mut script =
                    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../control-plane/peer"));
                script.arg(self.name());
                assets::build(script, &mut std::io::stderr())
            })
            .as_deref()
            .map_err(Clone::clone)
    }
}

/// A running peer. Dropping it kills it.
#[derive(Debug)]
pub struct RunningPeer {
    pub program: Program,
    /// The address of its probes.
    pub probes: SocketAddr,
    /// The files that it was started with.
    pub folder: tempfile::TempDir,
    mounts: Option<Mount>,
}

/// A Secret that the peer fills with a certificate, and the folder in which it waits for it. In a cluster the kubelet
/// copies one to the other.
#[derive(Debug)]
struct Mount {
    access: Access,
    secret: String,
    folder: PathBuf,
}

impl RunningPeer {
    /// Waits until it is ready; polled, because a probe cannot be watched.
    ///
    /// # Errors
    /// If it ends instead, or takes too long; with the end of its output.
    pub async fn ready(self) -> Result<Self, String> {
        let getting_ready = async {
            if let Some(mount) = &self.mounts {
                mount.fill().await?;
            }
            while !answers_ok(self.probes).await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        let outcome = tokio::select! {
            outcome = Patience::of(READY_WITHIN).until(getting_ready) => {
                outcome.unwrap_or_else(|| Err("it does not get ready in time".to_owned()))
            }
            code = self.program.exit_code() => Err(format!("it ended with {code:?}")),
        };
        match outcome {
            Ok(()) => Ok(self),
            Err(problem) => Err(format!("{problem}:\n{}", self.program.output())),
        }
    }
}

impl Mount {
    async fn fill(&self) -> Result<(), String> {
        let secrets: Api<Secret> = Api::default_namespaced(self.access.client("salvor-testkit-mount"));
        let is_filled =
            |secret: &Secret| secret.data.as_ref().is_some_and(|data| data.contains_key(CERTIFICATE));
        let secret = wait::for_object(&secrets, &self.secret, "it has a certificate", is_filled).await;
        let mut files: Vec<_> = secret.data.into_iter().flatten().collect();
        // The peer continues as soon as the certificate exists, so it is written last.
        files.sort_by_key(|(name, _)| name == CERTIFICATE);
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            files.iter().try_for_each(|(name, bytes)| std::fs::write(self.folder.join(name), &bytes.0))
        };
        write().map_err(|error| format!("{}: {error}", self.folder.display()))
    }
}

const CERTIFICATE: &str = "tls.crt";

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// One request over plain HTTP on loopback needs no HTTP library.
async fn answers_ok(address: SocketAddr) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    exchange.await.is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}
