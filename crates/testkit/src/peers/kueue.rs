//! Kueue: the objects that it needs in the cluster, and its configuration.

use std::path::Path;

use serde_json::{Value, json};

use super::crds::create;
use super::webhooks::Webhooks;
use super::{Mount, Peer, RunningPeer, crds, loopback};
use crate::access::Access;
use crate::assets::AssetsError;
use crate::ports;
use crate::program::Program;

const NAMESPACE: &str = "kueue-system";
const SECRET: &str = "kueue-webhook-server-cert";
const SERVICE: &str = "kueue-webhook-service";
/// Its certificate rotator waits until each of these names a webhook that converts it.
const CONVERTED: [&str; 5] = ["clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"];
/// Far above what the API server can answer on one machine: the shipped limit of 300 would measure itself.
const UNLIMITED: u32 = 10_000;

/// Kueue, built. Its webhooks have a port that the cluster knows and the process takes.
#[derive(Debug)]
pub struct Kueue {
    folder: &'static Path,
    webhook_port: u16,
    frameworks: &'static [&'static str],
}

/// The kinds of workload that it queues.
const FRAMEWORKS: &[&str] = &[
    "batch/job",
    "kubeflow.org/mpijob",
    "kubeflow.org/pytorchjob",
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
];

impl Kueue {
    /// Builds it, if that was not done before.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn build() -> Result<Self, AssetsError> {
        Ok(Self { folder: Peer::Kueue.folder()?, webhook_port: ports::free(), frameworks: FRAMEWORKS })
    }

    /// The same for these kinds of workload only. MultiKueue uses no cluster that lacks one of them.
    #[must_use]
    pub fn only_for(self, frameworks: &'static [&'static str]) -> Self {
        Self { frameworks, ..self }
    }

    /// Creates its namespace, its custom resources, the secret that it fills and, if asked, its webhooks.
    ///
    /// # Errors
    /// If the API server refuses one of them.
    pub async fn install(&self, access: &Access, with_webhooks: bool) -> Result<(), String> {
        let client = access.client("salvor-testkit-kueue");
        let webhooks =
            Webhooks { namespace: NAMESPACE, service: SERVICE, port: self.webhook_port, prefix: "kueue-" };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        create(&client, "/api/v1/namespaces", &namespace).await?;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}});
        create(&client, &format!("/api/v1/namespaces/{NAMESPACE}/secrets"), &secret).await?;
        let converts = |crd: &mut Value| {
            let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or_default();
            if CONVERTED.contains(&plural) {
                crd["spec"]["conversion"] = json!({
                    "strategy": "Webhook",
                    "webhook": {
                        "clientConfig": {"service": webhooks.reference(&"/convert".into())},
                        "conversionReviewVersions": ["v1"],
                    },
                });
            }
        };
        crds::install(access, &self.folder.join("crds"), converts).await?;
        if with_webhooks {
            webhooks.install(access, &self.folder.join("webhooks.yaml")).await?;
        }
        Ok(())
    }

    /// Starts it with these gates beside those that it needs here; it may not be ready yet.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn start(&self, access: &Access, gates: &[(&str, bool)]) -> Result<RunningPeer, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let written = |error: std::io::Error| format!("{}: {error}", folder.path().display());
        let probes = loopback(ports::free());
        let certificates = folder.path().join("certificates");
        let (config, kubeconfig) = (folder.path().join("kueue.json"), folder.path().join("kubeconfig"));
        let mut configuration = self.configuration(&certificates);
        configuration["health"]["healthProbeBindAddress"] = probes.to_string().into();
        for (gate, on) in gates {
            configuration["featureGates"][gate] = (*on).into();
        }
        std::fs::write(&config, configuration.to_string()).map_err(written)?;
        access.write_kubeconfig(&kubeconfig).map_err(written)?;
        let program = Program::start(
            &self.folder.join("kueue"),
            [format!("--config={}", config.display())],
            &[("KUBECONFIG", &kubeconfig.display().to_string())],
        );
        let mounts =
            Mount { access: access.in_namespace(NAMESPACE), secret: SECRET.to_owned(), folder: certificates };
        Ok(RunningPeer { program, probes, folder, mounts: Some(mounts) })
    }

    /// As shipped, save for addresses, elections, the client's limits and the gates.
    fn configuration(&self, certificates: &Path) -> Value {
        json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {},
            "metrics": {"bindAddress": loopback(ports::free()).to_string()},
            "webhook": {"host": "127.0.0.1", "port": self.webhook_port, "certDir": certificates},
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
            "featureGates": {"VisibilityOnDemand": false},
            "integrations": {"frameworks": self.frameworks},
        })
    }
}
