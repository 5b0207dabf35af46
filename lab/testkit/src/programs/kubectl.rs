//! The real kubectl.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::plane::assets::{self, AssetsError};

/// Runs kubectl against a control plane, in one namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
    namespace: String,
}

#[derive(Debug, thiserror::Error)]
#[error("kubectl {arguments} failed: {reason}")]
pub struct KubectlError {
    arguments: String,
    reason: String,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf, cache: PathBuf) -> Self {
        Self { program, kubeconfig, cache, namespace: "default".to_owned() }
    }

    /// kubectl with a given kubeconfig, and a folder for its cache.
    ///
    /// # Errors
    /// If there is no kubectl and none can be built.
    pub fn with(kubeconfig: &Path, cache: &Path) -> Result<Self, AssetsError> {
        Ok(Self::new(assets::folder()?.join("kubectl"), kubeconfig.to_owned(), cache.to_owned()))
    }

    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    /// Runs it and returns its stdout.
    ///
    /// # Errors
    /// If it ends with anything but success; with its stderr.
    pub async fn run(&self, arguments: &[&str]) -> Result<String, KubectlError> {
        let failed = |reason: String| KubectlError { arguments: arguments.join(" "), reason };
        let output = tokio::process::Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(&self.cache)
            .args(["--namespace", &self.namespace])
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| failed(format!("it does not start: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, said.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
