//! The Node object of a simulated node, as its kubelet writes it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Kubelet;
use super::worker::Volumes;
use crate::status;

impl Kubelet {
    /// The Node as it registers.
    pub(crate) fn registration(&self, now: Timestamp) -> Value {
        let mut node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.profile.name,
                "labels": self.profile.labels,
                // Without it the attach/detach controller ignores the node's volumes.
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
            "spec": { "taints": self.profile.taints },
        });
        if let Some(provider_id) = &self.profile.provider_id {
            node["spec"]["providerID"] = provider_id.as_str().into();
        }
        node["status"] = self.node_status(now);
        node
    }

    /// The node's status now, as a strategic merge patch of `status`.
    pub(crate) fn node_status(&self, now: Timestamp) -> Value {
        let condition = |kind: &str, holds: bool, reason: &str, message: &str| {
            json!({
                "type": kind,
                "status": if holds { "True" } else { "False" },
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": status::time(now),
                "lastTransitionTime": status::time(self.ready_since),
            })
        };
        json!({
            "capacity": self.profile.capacity,
            "allocatable": self.profile.capacity,
            "addresses": [
                {"type": "InternalIP", "address": self.host_ip},
                {"type": "Hostname", "address": self.profile.name},
            ],
            "nodeInfo": {
                "machineID": self.profile.name,
                "systemUUID": self.profile.name,
                "bootID": self.boot_id,
                "kernelVersion": "simulated",
                "osImage": "simulated",
                "containerRuntimeVersion": "sim://1",
                "kubeletVersion": "v1.37.1",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "conditions": [
                condition("Ready", true, "KubeletReady", "simulated kubelet is posting ready status"),
                condition("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ],
            "volumesInUse": self.volumes_in_use(),
        })
    }

    /// Volumes that a pod of this node uses or is about to use.
    pub(crate) fn volumes_in_use(&self) -> BTreeSet<String> {
        self.workers
            .values()
            .filter(|w| !w.has_let_go())
            .filter_map(|w| match &w.volumes {
                Volumes::Known(volumes) => Some(volumes),
                Volumes::Unknown => None,
            })
            .flatten()
            .map(|v| v.unique_name.clone())
            .collect()
    }
}
