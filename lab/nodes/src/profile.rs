//! The properties of a simulated node.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Pod, Taint};

use crate::runtime::RestartBackoff;

#[derive(Clone, Copy, Debug)]
pub struct Timers {
    /// The interval of Lease renewals.
    pub lease_renewal: Duration,
    /// `leaseDurationSeconds` of the Lease.
    pub lease_duration: Duration,
    /// The interval at which an unchanged node status is written again.
    pub status_report: Duration,
    pub restart_backoff: RestartBackoff,
}

impl Default for Timers {
    /// The kubelet's defaults.
    fn default() -> Self {
        Self {
            lease_renewal: Duration::from_secs(10),
            lease_duration: Duration::from_secs(40),
            status_report: Duration::from_secs(300),
            restart_backoff: RestartBackoff::default(),
        }
    }
}

/// A node to be simulated: its name, its properties for the scheduler, and its static pods.
#[derive(Clone, Debug)]
pub struct NodeProfile {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) capacity: BTreeMap<String, String>,
    pub(crate) static_pods: Vec<Pod>,
    pub(crate) provider_id: Option<String>,
}

impl NodeProfile {
    /// A node with 8 CPUs, 32 GiB and room for 110 pods.
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        let capacity = [("cpu", "8"), ("memory", "32Gi"), ("pods", "110"), ("ephemeral-storage", "100Gi")];
        Self {
            labels: [
                ("kubernetes.io/hostname", name.as_str()),
                ("kubernetes.io/os", "linux"),
                ("kubernetes.io/arch", "amd64"),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
            taints: Vec::new(),
            capacity: capacity.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            static_pods: Vec::new(),
            provider_id: None,
            name,
        }
    }

    pub fn renamed(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }.labelled("kubernetes.io/hostname", name)
    }

    /// The providerID by which the owner of its machine identifies it.
    pub fn provided_as(mut self, provider_id: &str) -> Self {
        self.provider_id = Some(provider_id.to_owned());
        self
    }

    /// The zone that node lifecycle counts it in.
    pub fn in_zone(self, zone: &str) -> Self {
        self.labelled("topology.kubernetes.io/zone", zone)
    }

    pub fn labelled(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn with_capacity(mut self, resource: &str, quantity: &str) -> Self {
        self.capacity.insert(resource.to_owned(), quantity.to_owned());
        self
    }

    /// A taint that it registers with.
    pub fn tainted(mut self, taint: Taint) -> Self {
        self.taints.push(taint);
        self
    }

    /// A pod that it runs from its own disk, independent of the API.
    pub fn with_static_pod(mut self, pod: Pod) -> Self {
        self.static_pods.push(pod);
        self
    }
}

/// A fault of a node. Faults differ in their effect on the containers and on the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine is off: containers end now, nothing is reported.
    Crash,
    /// No traffic gets through in either direction; containers and kubelet keep running.
    Partition,
    /// The kubelet is dead, the machine is not: containers keep running, but none is started or stopped.
    KubeletStop,
    /// Every call to the API takes this much longer.
    Slow(Duration),
    /// Alternates between partitioned and reachable, until it is healed.
    Flap {
        /// How long each partition lasts.
        down: Duration,
        /// How long it is reachable each time.
        up: Duration,
    },
}
