//! The two programs that recover zombie pods, as processes.

use std::path::PathBuf;

use salvor_testkit::{
    ControlPlane,
    peers::{Kueue, RunningPeer},
};

use crate::running::{Running, start_salvor};

/// The brake is off: the benchmark measures a storm.
const CONFIGURATION: &str = "featureGates: {FailureRecoveryPolicy: true}
controllers: [zombie]
brake: {maxPodsPerMinute: 0, maxNodesPerMinute: 0, maxUnreachablePercent: 0}
";

#[derive(Debug)]
pub(crate) enum Contender {
    Salvor(PathBuf),
    Kueue(Kueue),
}

impl Contender {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Salvor(_) => "salvor",
            Self::Kueue(_) => "kueue",
        }
    }

    /// Whether a user agent is that of this contender.
    pub(crate) fn is(&self, user_agent: &str) -> bool {
        user_agent.starts_with(self.name())
    }

    /// Creates the objects that must exist before it starts.
    pub(crate) async fn prepare(&self, plane: &ControlPlane) -> Result<(), String> {
        match self {
            Self::Salvor(_) => Ok(()),
            Self::Kueue(kueue) => kueue.install(&plane.admin(), false).await,
        }
    }

    /// Starts it, and waits until it is ready and idle.
    pub(crate) async fn start(&self, plane: &ControlPlane) -> Result<Running, String> {
        let (program, address, folder) = match self {
            Self::Salvor(binary) => {
                let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
                let (program, address) = start_salvor(binary, plane, folder.path(), CONFIGURATION).await?;
                (program, address, folder)
            }
            Self::Kueue(kueue) => {
                let peer = kueue.start(&plane.admin(), &[("FailureRecoveryPolicy", true)])?;
                let RunningPeer { program, probes, folder, .. } = peer.ready().await?;
                (program, probes, folder)
            }
        };
        Running::when_at_rest(self.name(), program, address, folder).await
    }
}
