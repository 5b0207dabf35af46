//! The two controllers of AppWrappers, as processes.

use std::{path::PathBuf, process::Command};

use salvor_testkit::{
    ControlPlane, free_port,
    peers::{self, AppWrapperController},
};
use serde_json::{Value, json};

use crate::running::{Running, start_salvor};

#[derive(Debug)]
pub(crate) enum Contender {
    Salvor(PathBuf),
    Upstream(AppWrapperController),
}

impl Contender {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Salvor(_) => "salvor",
            Self::Upstream(_) => "appwrapper",
        }
    }

    /// Whether a user agent is that of this controller.
    pub(crate) fn is(&self, user_agent: &str) -> bool {
        user_agent.split('/').next() == Some(self.name())
    }

    /// Starts it with its CRD and its webhooks, and waits until it is ready and idle.
    pub(crate) async fn start(&self, plane: &ControlPlane) -> Result<Running, String> {
        let admin = plane.admin();
        match self {
            Self::Salvor(binary) => {
                let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
                let definitions = folder.path().join("crds");
                write_definitions(binary, &definitions)?;
                peers::install(&admin, &definitions, |_| ()).await?;
                let port = free_port();
                // The brake is off: the benchmark measures many failures at once.
                let configuration = format!(
                    "controllers: [appwrapper]\n\
                     brake: {{maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}}\n\
                     webhooks: {{enabled: true, bind: \"127.0.0.1:{port}\", url: \"https://127.0.0.1:{port}\"}}\n"
                );
                let (program, address) = start_salvor(binary, plane, folder.path(), &configuration).await?;
                Running::when_at_rest(self.name(), program, address, folder).await
            }
            Self::Upstream(upstream) => {
                upstream.install(&admin).await?;
                let peer = upstream.start(&admin, &json!({})).await?.ready().await?;
                let peers::RunningPeer { program, probes, folder, .. } = peer;
                Running::when_at_rest(self.name(), program, probes, folder).await
            }
        }
    }
}

/// The CRDs of Salvor's own manifests, one file each.
fn write_definitions(binary: &PathBuf, folder: &PathBuf) -> Result<(), String> {
    let output = Command::new(binary)
        .args(["manifests", "--controllers", "appwrapper"])
        .output()
        .map_err(|e| format!("{}: {e}", binary.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|e| e.to_string())?;
    std::fs::create_dir(folder).map_err(|e| e.to_string())?;
    for (number, document) in documents.iter().enumerate() {
        if document["kind"] == "CustomResourceDefinition" {
            std::fs::write(folder.join(format!("{number}.yaml")), document.to_string())
                .map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}
