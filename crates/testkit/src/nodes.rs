//! Simulated nodes for an arena.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use salvor_nodes::{Fleet, FleetOptions, NodeProfile, RestartBackoff, Timers};

use crate::{Arena, wait};

/// Kubelet timers for tests in which nodes die: the same shape as a real kubelet's, ten times as fast.
pub const QUICK: Timers = Timers {
    lease_renewal: Duration::from_secs(1),
    lease_duration: Duration::from_secs(4),
    status_report: Duration::from_secs(30),
    restart_backoff: RestartBackoff {
        base: Duration::from_secs(1),
        max: Duration::from_secs(30),
        reset_after: Duration::from_secs(60),
    },
};

impl Arena<'_> {
    /// The arena's node number `index`, as it will register.
    pub fn node(&self, index: usize) -> NodeProfile {
        NodeProfile::named(self.node_name(index)).in_zone(self.zone())
    }

    /// Starts simulated nodes 0 to `count - 1` with [`QUICK`] timers, and waits until pods can be scheduled to each.
    ///
    /// # Panics
    /// If they cannot be registered, or if no controller manager takes their first taint away.
    pub async fn fleet(&self, count: usize) -> Fleet {
        let options = FleetOptions { timers: QUICK, ..FleetOptions::default() };
        let fleet = Fleet::start(self.admin().client(&format!("{}-nodes", self.user_agent())), options);
        if let Err(error) = fleet.add((0..count).map(|i| self.node(i))).await {
            panic!("the simulated nodes cannot be registered: {error}");
        }
        let schedulable =
            |n: &Node| n.spec.as_ref().and_then(|s| s.taints.as_ref()).is_none_or(Vec::is_empty);
        let mine = ListParams::default().labels(&format!("topology.kubernetes.io/zone={}", self.zone()));
        wait::for_list(&Api::all(self.client()), &mine, "every node is schedulable", |nodes: &[Node]| {
            nodes.len() == count && nodes.iter().all(schedulable)
        })
        .await;
        fleet
    }
}
