//! Kueue: the objects that it needs in the cluster, and its configuration.

use std::path::Path;

use serde_json::{Value, json};

use super::crds::create;
use super::webhooks::Webhooks;
use super::{Mount, Peer, RunningPeer, crds, loopback};
use crate::access::Access;
use crate::network::ports;
use crate::plane::assets::AssetsError;
use crate::programs::program::Program;

const NAMESPACE: &str = "kueue-system";
const SECRET: &str = "kueue-webhook-server-cert";
const SERVICE: &str = "kueue-webhook-service";
/// Its certificate rotator waits until each of these CRDs names a conversion webhook.
const CONVERTED: [&str; 5] = ["clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"];
/// Far above what the API server can answer on one machine: with the shipped limit of 300, a benchmark would measure
/// the limit.
const UNLIMITED: u32 = 10_000;

/// Kueue, built. The port of its webhooks is chosen in advance, because the cluster must know it.
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
    /// Builds it, unless it is cached.
    pub fn build() -> Result<Self, AssetsError> {
        Ok(Self { folder: Peer::Kueue.folder()?, webhook_port: ports::free(), frameworks: FRAMEWORKS })
    }

    /// Queues only these kinds of workload. MultiKueue uses no cluster that lacks one of them.
    #[must_use]
    pub fn only_for(self, frameworks: &'static [&'static str]) -> Self {
        Self { frameworks, ..self }
    }

    /// Creates its namespace, its CRDs, the secret that it fills and, if asked, its webhooks.
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

    /// Starts it with these feature gates besides those that it needs here. It may not be ready yet.
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

    /// As shipped, except for addresses, leader election, the client's limits and the feature gates.
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
            // Its visibility server writes to a folder that only root may write.
            "featureGates": {"VisibilityOnDemand": false},
            "integrations": {"frameworks": self.frameworks},
        })
    }
}
