//! Kueue as a plain process beside the control plane: what it needs there, and how it is configured.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use http::Method;
use kube::Client;
use salvor_testkit::{ControlPlane, Program, wait::Patience};
use serde_json::{Value, json};

use super::world;
use crate::requests::{JSON, send};

const NAMESPACE: &str = "kueue-system";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Its certificate rotator waits until each of these names a webhook that converts it.
const CONVERTED: [&str; 5] = ["clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"];
/// Far above what the API server can answer on one machine: the shipped limit of 300 would measure itself.
const UNLIMITED: u32 = 10_000;
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(60);

/// Kueue, built.
#[derive(Debug)]
pub(crate) struct Kueue {
    program: PathBuf,
    crds: PathBuf,
}

impl Kueue {
    /// Builds it, if that was not done before.
    pub(crate) fn build() -> Result<Self, String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kueue/build");
        let output = Command::new(script)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| format!("{script} does not start: {e}"))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        match printed.lines().collect::<Vec<_>>()[..] {
            [program, crds] if output.status.success() => {
                Ok(Self { program: program.into(), crds: crds.into() })
            }
            _ => Err(format!("bench/kueue/build ended with {}", output.status)),
        }
    }

    /// Creates its namespace, its custom resources and the secret that it fills.
    pub(crate) async fn install(&self, plane: &ControlPlane) -> Result<(), String> {
        let client = plane.admin().client("bench-world");
        world::make_namespace(&client, NAMESPACE).await?;
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kueue-webhook-server-cert"}});
        send(&client, Method::POST, &format!("/api/v1/namespaces/{NAMESPACE}/secrets"), JSON, &secret)
            .await?;
        let files = fs::read_dir(&self.crds).map_err(|e| format!("{}: {e}", self.crds.display()))?;
        let mut names = Vec::new();
        for file in files {
            let path = file.map_err(|e| e.to_string())?.path();
            let crd = read_crd(&path)?;
            send(&client, Method::POST, CRDS, JSON, &crd).await?;
            names.push(crd["metadata"]["name"].as_str().unwrap_or("").to_owned());
        }
        for name in names {
            until_established(&client, &name).await?;
        }
        Ok(())
    }

    /// Starts it; the address of its probes.
    pub(crate) fn start(&self, plane: &ControlPlane, folder: &Path) -> Result<(Program, SocketAddr), String> {
        let probes = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let certificates = folder.join("certificates");
        write_certificate(&certificates)?;
        let config = folder.join("kueue.json");
        let text = configuration(probes, free_port()?, free_port()?, &certificates).to_string();
        fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
        let kubeconfig = plane.kubeconfig().display().to_string();
        let arguments = [format!("--config={}", config.display())];
        Ok((Program::start(&self.program, arguments, &[("KUBECONFIG", &kubeconfig)]), probes))
    }
}

/// As shipped, save for addresses, elections, the client's limits and the gates.
fn configuration(probes: SocketAddr, metrics_port: u16, webhook_port: u16, certificates: &Path) -> Value {
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": probes.to_string()},
        "metrics": {"bindAddress": format!("127.0.0.1:{metrics_port}")},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": certificates},
        "leaderElection": {"leaderElect": false},
        "controller": {"groupKindConcurrency": {
            "Job.batch": 5,
            "Pod": 5,
            "Workload.kueue.x-k8s.io": 10,
            "LocalQueue.kueue.x-k8s.io": 5,
            "Cohort.kueue.x-k8s.io": 1,
            "ClusterQueue.kueue.x-k8s.io": 5,
            "ResourceFlavor.kueue.x-k8s.io": 1,
        }},
        "clientConnection": {"qps": UNLIMITED, "burst": UNLIMITED},
        // Its visibility server writes to a folder of root's.
        "featureGates": {"FailureRecoveryPolicy": true, "VisibilityOnDemand": false},
        "integrations": {"frameworks": [
            "batch/job",
            "kubeflow.org/mpijob",
            "ray.io/rayjob",
            "ray.io/raycluster",
            "ray.io/rayservice",
            "jobset.x-k8s.io/jobset",
            "workload.codeflare.dev/appwrapper",
            "trainer.kubeflow.org/trainjob",
            "pod",
            "deployment",
            "statefulset",
            "leaderworkerset.x-k8s.io/leaderworkerset",
        ]},
    })
}

fn read_crd(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut crd: Value = serde_saphyr::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or("");
    if CONVERTED.contains(&plural) {
        crd["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": {"service": {"namespace": NAMESPACE, "name": "kueue-webhook-service", "path": "/convert"}},
                "conversionReviewVersions": ["v1"],
            },
        });
    }
    Ok(crd)
}

async fn until_established(client: &Client, name: &str) -> Result<(), String> {
    let asking = async {
        loop {
            let crd = send(client, Method::GET, &format!("{CRDS}/{name}"), JSON, &Value::Null).await?;
            let crd: Value = serde_json::from_str(&crd).map_err(|e| format!("{name}: {e}"))?;
            let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True") {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let in_time = Patience::of(ESTABLISHED_WITHIN).until(asking).await;
    in_time.unwrap_or_else(|| Err(format!("the custom resource {name} is not served in time")))
}

fn write_certificate(folder: &Path) -> Result<(), String> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(|e| e.to_string())?;
    let write = |name: &str, text: String| fs::write(folder.join(name), text);
    fs::create_dir(folder)
        .and_then(|()| write("tls.crt", made.cert.pem()))
        .and_then(|()| write("tls.key", made.signing_key.serialize_pem()))
        .map_err(|e| format!("{}: {e}", folder.display()))
}

/// Somebody could take it before it is used; Kueue then says so and ends.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|e| e.to_string())
}
