//! The embedded cluster instead of a real control plane: in this process, served on loopback, for one test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use salvor_apiserver::{Server, Settings};
use salvor_cluster::{LocalCluster, Options};
use salvor_controllers::{AttachDetachTimers, EvictionRates, LoopOptions, NodeLifecycleTimers, PodGcTimers};
use serde_json::Value;

use super::accounting::Accounting;
use super::assets;
use super::audit::Audited;
use crate::access::Access;
use crate::network::proxy::Proxy;
use crate::nodes::QUICK;
use crate::programs::kubectl::Kubectl;
use crate::random;

/// Control loops with timers as short as those of [the real ones](crate::ControlPlane) in tests.
fn quick() -> LoopOptions {
    LoopOptions {
        node_lifecycle: NodeLifecycleTimers {
            monitor_period: Duration::from_secs(1),
            grace_period: Duration::from_secs(8),
            startup_grace_period: Duration::from_secs(8),
            rates: EvictionRates { normal: 1000.0, disrupted: 1000.0, ..EvictionRates::default() },
        },
        pod_gc: PodGcTimers::default(),
        attach_detach: AttachDetachTimers::default(),
        ..LoopOptions::default()
    }
}

/// An embedded cluster that other processes can reach. Dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct EmbeddedPlane {
    // Dropped first: a cluster that is shutting down must not serve requests.
    server: Server,
    cluster: LocalCluster,
    access: Access,
    folder: PathBuf,
}

impl EmbeddedPlane {
    /// Starts one on the current tokio runtime; with control loops, or as an API server alone.
    ///
    /// # Panics
    /// If it cannot be started.
    pub async fn start(with_loops: bool) -> Self {
        let mut loops = quick();
        if !with_loops {
            loops.loops.clear();
        }
        let api = Settings { start: Timestamp::now(), seed: random::number() };
        let folder = std::env::temp_dir().join(format!("salvor-testkit-embedded-{}", random::suffix(10)));
        let started = async {
            std::fs::create_dir(&folder).map_err(|error| error.to_string())?;
            let options = Options { api, loops, kubelets: QUICK };
            let cluster = LocalCluster::start(options).await.map_err(|error| error.to_string())?;
            let audited = Audited::new(cluster.service(), &folder.join(AUDIT_LOG));
            let audited = audited.map_err(|error| error.to_string())?;
            let server = Server::start(audited, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
                .await
                .map_err(|error| error.to_string())?;
            let access = access(server.kubeconfig())?;
            access.write_kubeconfig(&folder.join(KUBECONFIG)).map_err(|error| error.to_string())?;
            Ok::<_, String>((server, cluster, access))
        };
        match started.await {
            Ok((server, cluster, access)) => Self { server, cluster, access, folder },
            Err(error) => panic!("the embedded cluster does not start: {error}"),
        }
    }

    /// Access with all rights.
    pub fn admin(&self) -> Access {
        self.access.clone()
    }

    pub fn cluster(&self) -> &LocalCluster {
        &self.cluster
    }

    /// The real kubectl, as the admin.
    ///
    /// # Panics
    /// If there is no kubectl and none can be built.
    pub fn kubectl(&self) -> Kubectl {
        let assets = assets::folder().unwrap_or_else(|error| panic!("{error}"));
        let cache = self.folder.join("kubectl-cache");
        Kubectl::new(assets.join("kubectl"), self.folder.join(KUBECONFIG), cache)
    }

    /// Counts the requests that are answered over the network.
    pub fn accounting(&self) -> Accounting {
        Accounting::new(self.admin(), self.folder.join(AUDIT_LOG))
    }

    /// A proxy in front of it that can simulate network faults.
    pub async fn proxy(&self) -> std::io::Result<Proxy> {
        Proxy::start(self.server.address(), self.admin()).await
    }
}

const AUDIT_LOG: &str = "audit.log";
const KUBECONFIG: &str = "admin.kubeconfig";

impl Drop for EmbeddedPlane {
    fn drop(&mut self) {
        // Another process may have cleaned up already.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Extracts the access from the kubeconfig.
pub(crate) fn access(kubeconfig: &str) -> Result<Access, String> {
    let config: Value = serde_json::from_str(kubeconfig).map_err(|error| error.to_string())?;
    let cluster = &config["clusters"][0]["cluster"];
    let decode = |text: &Value| {
        let decoded: Result<ByteString, _> = serde_json::from_value(text.clone());
        decoded.map(|bytes| bytes.0).map_err(|error| error.to_string())
    };
    let ca_pem = String::from_utf8(decode(&cluster["certificate-authority-data"])?)
        .map_err(|error| error.to_string())?;
    let inner: String = ca_pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let server = cluster["server"].as_str().unwrap_or_default();
    Ok(Access {
        server: server.parse().map_err(|error| format!("{server}: {error}"))?,
        ca_der: decode(&Value::String(inner))?,
        ca_pem,
        token: config["users"][0]["user"]["token"].as_str().unwrap_or_default().to_owned(),
        namespace: "default".to_owned(),
    })
}
