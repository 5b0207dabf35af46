//! The two Job controllers, as processes.

use std::path::PathBuf;

use salvor_testkit::{ControlPlane, Part};
use serde_json::Value;

use crate::running::{Running, rest, start_salvor};

const CONFIGURATION: &str = "controllers: [job]\n";

/// A Job controller.
#[derive(Debug)]
pub(crate) enum Contender {
    Salvor(PathBuf),
    /// kube-controller-manager with only its Job controller, and no client limits.
    BuiltIn,
}

/// A running contender.
#[derive(Debug)]
pub(crate) enum AtWork<'p> {
    Salvor(Running),
    BuiltIn(&'p ControlPlane),
}

impl Contender {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Salvor(_) => "salvor",
            Self::BuiltIn => "kube-controller-manager",
        }
    }

    /// Whether a user agent is that of this contender.
    pub(crate) fn is(&self, user_agent: &str) -> bool {
        user_agent.starts_with(self.name())
    }

    /// `spec.managedBy` of the Jobs that it runs.
    pub(crate) fn managed_by(&self) -> Value {
        match self {
            Self::Salvor(_) => "salvor.dev/job-controller".into(),
            Self::BuiltIn => Value::Null,
        }
    }

    /// Starts it, and waits until it is ready and idle.
    pub(crate) async fn start<'p>(&self, plane: &'p ControlPlane) -> Result<AtWork<'p>, String> {
        match self {
            Self::Salvor(binary) => {
                let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
                let (program, address) = start_salvor(binary, plane, folder.path(), CONFIGURATION).await?;
                Ok(AtWork::Salvor(Running::when_at_rest(self.name(), program, address, folder).await?))
            }
            Self::BuiltIn => {
                plane.start(Part::ControllerManager).await.map_err(|e| e.to_string())?;
                let pid = plane.pid(Part::ControllerManager).unwrap_or(0);
                rest(pid).await.ok_or("kube-controller-manager does not come to rest")?;
                Ok(AtWork::BuiltIn(plane))
            }
        }
    }
}

impl AtWork<'_> {
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Salvor(running) => running.program.pid(),
            Self::BuiltIn(plane) => plane.pid(Part::ControllerManager).unwrap_or(0),
        }
    }

    pub(crate) async fn stop(self) -> Result<(), String> {
        match self {
            Self::Salvor(running) => {
                running.program.kill().await;
                Ok(())
            }
            Self::BuiltIn(plane) => plane.crash(Part::ControllerManager).await.map_err(|e| e.to_string()),
        }
    }
}
