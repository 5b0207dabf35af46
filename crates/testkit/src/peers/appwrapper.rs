//! The CodeFlare AppWrapper controller: the objects that it needs in the cluster, and its configuration.

use std::path::Path;

use serde_json::{Value, json};

use super::crds::create;
use super::webhooks::Webhooks;
use super::{Mount, Peer, RunningPeer, crds, loopback};
use crate::access::Access;
use crate::assets::AssetsError;
use crate::ports;
use crate::program::Program;

const SECRET: &str = "appwrapper-webhook-server-cert";
const NAMESPACE: &str = "appwrapper-system";
/// It cannot be told another one, so only one on a machine can have webhooks.
const WEBHOOK_PORT: u16 = 9443;

/// The controller, built.
#[derive(Debug)]
pub struct AppWrapperController {
    folder: &'static Path,
}

impl AppWrapperController {
    /// Builds it, if that was not done before.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn build() -> Result<Self, AssetsError> {
        Ok(Self { folder: Peer::AppWrapper.folder()? })
    }

    /// Creates its custom resource.
    ///
    /// # Errors
    /// If the API server refuses it.
    pub async fn install(&self, access: &Access) -> Result<(), String> {
        crds::install(access, &self.folder.join("crds"), |_| ()).await
    }

    /// Starts it with what its configuration has under `appwrapper`, durations in nanoseconds; it may not be ready yet. With
    /// webhooks it takes a fixed port.
    ///
    /// # Errors
    /// If its files cannot be written, or the API server refuses its ConfigMap or its webhooks.
    pub async fn start(
        &self,
        access: &Access,
        appwrapper: &Value,
        with_webhooks: bool,
    ) -> Result<RunningPeer, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let client = access.client("salvor-testkit-appwrapper");
        let probes = loopback(ports::free());
        // Its webhook server looks below the folder for temporary files, and nowhere else.
        let certificates = folder.path().join("k8s-webhook-server/serving-certs");
        let configuration = json!({
            "appwrapper": appwrapper,
            "webhooksEnabled": with_webhooks,
            "certManagement": {"certificateDir": certificates},
            "controllerManager": {
                "health": {"bindAddress": probes.to_string()},
                "metrics": {"bindAddress": loopback(ports::free()).to_string()},
                "leaderElection": false,
            },
        });
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        create(&client, "/api/v1/namespaces", &namespace).await?;
        // One ConfigMap for each process: another may run with other settings.
        let name = format!("config-{}", probes.port());
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"config.yaml": configuration.to_string()},
        });
        create(&client, &format!("/api/v1/namespaces/{NAMESPACE}/configmaps"), &map).await?;
        if with_webhooks {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
            });
            create(&client, &format!("/api/v1/namespaces/{NAMESPACE}/secrets"), &secret).await?;
            let webhooks = Webhooks {
                namespace: NAMESPACE,
                service: "appwrapper-webhook-service",
                port: WEBHOOK_PORT,
                prefix: "appwrapper-",
            };
            webhooks.install(access, &self.folder.join("webhooks.yaml")).await?;
        }
        let written = |error: std::io::Error| format!("{}: {error}", folder.path().display());
        let kubeconfig = folder.path().join("kubeconfig");
        access.write_kubeconfig(&kubeconfig).map_err(written)?;
        let program = Program::start(
            &self.folder.join("appwrapper"),
            [format!("--config={name}")],
            &[
                ("KUBECONFIG", &kubeconfig.display().to_string()),
                ("NAMESPACE", NAMESPACE),
                ("TMPDIR", &folder.path().display().to_string()),
            ],
        );
        let mount =
            Mount { access: access.in_namespace(NAMESPACE), secret: SECRET, folder: certificates };
        Ok(RunningPeer { program, probes, mounts: with_webhooks.then_some(mount), folder })
    }
}
