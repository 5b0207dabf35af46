//! The CodeFlare AppWrapper controller: the objects that it needs in the cluster, and its configuration.

use std::path::Path;

use serde_json::{Value, json};

use super::crds::create;
use super::webhooks::Webhooks;
use super::{Mount, Peer, RunningPeer, crds, loopback, webhooks};
use crate::access::Access;
use crate::network::ports;
use crate::plane::assets::AssetsError;
use crate::programs::program::Program;

const NAMESPACE: &str = "appwrapper-system";

#[derive(Debug)]
pub struct AppWrapperController {
    folder: &'static Path,
}

impl AppWrapperController {
    /// Builds it, unless it is cached.
    pub fn build() -> Result<Self, AssetsError> {
        Ok(Self { folder: Peer::AppWrapper.folder()? })
    }

    /// Creates its CRD.
    pub async fn install(&self, access: &Access) -> Result<(), String> {
        crds::install(access, &self.folder.join("crds"), |_| ()).await
    }

    /// Starts it, with webhooks, with this section `appwrapper` of its configuration, durations in nanoseconds. It may
    /// not be ready yet.
    ///
    /// # Errors
    /// If its files cannot be written, or the API server refuses its ConfigMap or its webhooks.
    pub async fn start(&self, access: &Access, appwrapper: &Value) -> Result<RunningPeer, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let client = access.client("salvor-testkit-appwrapper");
        let (probes, webhook_port) = (loopback(ports::free()), ports::free());
        // Its webhook server reads certificates only below the folder for temporary files.
        let certificates = folder.path().join("k8s-webhook-server/serving-certs");
        // Unique names for each process: another may have run before, on another port.
        let own = |name: &str| format!("{name}-{webhook_port}");
        let prefix = own("appwrapper") + "-";
        let configuration = json!({
            "appwrapper": appwrapper,
            "webhooksEnabled": true,
            "certManagement": {
                "certificateDir": certificates,
                "webhookServiceName": own("webhooks"),
                "webhookSecretName": own("certificate"),
                "mutatingWebhookConfigName": format!("{prefix}mutating-webhook-configuration"),
                "validatingWebhookConfigName": format!("{prefix}validating-webhook-configuration"),
            },
            "controllerManager": {
                "health": {"bindAddress": probes.to_string()},
                "metrics": {"bindAddress": loopback(ports::free()).to_string()},
                "leaderElection": false,
            },
        });
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        create(&client, "/api/v1/namespaces", &namespace).await?;
        let below = |plural: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}");
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": own("config")},
            "data": {"config.yaml": configuration.to_string()},
        });
        create(&client, &below("configmaps"), &map).await?;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": own("certificate")}});
        create(&client, &below("secrets"), &secret).await?;
        // The API server would call the webhooks of an earlier process, which no longer answer.
        webhooks::remove(access, "appwrapper-").await?;
        let service = own("webhooks");
        let hooks = Webhooks { namespace: NAMESPACE, service: &service, port: webhook_port, prefix: &prefix };
        hooks.install(access, &self.folder.join("webhooks.yaml")).await?;
        let written = |error: std::io::Error| format!("{}: {error}", folder.path().display());
        let kubeconfig = folder.path().join("kubeconfig");
        access.write_kubeconfig(&kubeconfig).map_err(written)?;
        let program = Program::start(
            &self.folder.join("appwrapper"),
            [format!("--config={}", own("config"))],
            &[
                ("KUBECONFIG", &kubeconfig.display().to_string()),
                ("NAMESPACE", NAMESPACE),
                ("TMPDIR", &folder.path().display().to_string()),
                ("WEBHOOK_PORT", &webhook_port.to_string()),
            ],
        );
        let mount = Mount {
            access: access.in_namespace(NAMESPACE),
            secret: own("certificate"),
            folder: certificates,
        };
        Ok(RunningPeer { program, probes, folder, mounts: Some(mount) })
    }
}
