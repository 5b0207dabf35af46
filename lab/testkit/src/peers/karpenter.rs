//! Karpenter with its kwok provider: the objects that it needs in the cluster, and its settings. The nodes that it
//! launches are Node objects only; [`Kubelets`](crate::Kubelets) runs them.

use std::path::Path;

use serde_json::{Value, json};

use super::{Peer, RunningPeer, crds, loopback};
use crate::access::Access;
use crate::network::ports;
use crate::plane::assets::AssetsError;
use crate::programs::program::Program;

/// The zones that it can launch nodes in.
pub const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

#[derive(Debug)]
pub struct Karpenter {
    folder: &'static Path,
}

impl Karpenter {
    /// Builds it, unless it is cached.
    pub fn build() -> Result<Self, AssetsError> {
        Ok(Self { folder: Peer::Karpenter.folder()? })
    }

    /// Creates its CRDs.
    pub async fn install(&self, access: &Access) -> Result<(), String> {
        crds::install(access, &self.folder.join("crds"), |_| ()).await
    }

    /// Starts it, with its own node repair on or off. It may not be ready yet.
    pub fn start(&self, access: &Access, node_repair: bool) -> Result<RunningPeer, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let written = |error: std::io::Error| format!("{}: {error}", folder.path().display());
        let (kubeconfig, types) =
            (folder.path().join("kubeconfig"), folder.path().join("instance-types.json"));
        access.write_kubeconfig(&kubeconfig).map_err(written)?;
        std::fs::write(&types, instance_types().to_string()).map_err(written)?;
        let probes = loopback(ports::free());
        let program = Program::start(
            &self.folder.join("karpenter"),
            [] as [&str; 0],
            &[
                ("KUBECONFIG", &kubeconfig.display().to_string()),
                ("INSTANCE_TYPES_FILE_PATH", &types.display().to_string()),
                ("DISABLE_LEADER_ELECTION", "true"),
                ("METRICS_PORT", &ports::free().to_string()),
                ("HEALTH_PROBE_PORT", &probes.port().to_string()),
                ("FEATURE_GATES", &format!("NodeRepair={node_repair}")),
                // Pods of a test are created all at once.
                ("BATCH_IDLE_DURATION", "100ms"),
                ("BATCH_MAX_DURATION", "1s"),
            ],
        );
        Ok(RunningPeer { program, probes, folder, mounts: None })
    }
}

/// One instance type, as large as a [simulated node](salvor_nodes::NodeProfile), in each zone.
fn instance_types() -> Value {
    let one_of = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let offering = |zone: &str| {
        json!({
            "Price": 1.0,
            "Available": true,
            "Requirements": [
                one_of("karpenter.sh/capacity-type", "on-demand"),
                one_of("topology.kubernetes.io/zone", zone),
            ],
        })
    };
    json!([{
        "name": "simulated",
        "offerings": ZONES.map(offering),
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"},
    }])
}
