//! Simulated nodes for an arena, and kubelets for nodes that others create.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams, runtime::watcher::Event};
use salvor_nodes::{Fault, Fleet, FleetOptions, NodeProfile, RestartBackoff, Timers};
use tokio::task::JoinHandle;

use crate::watch::{replica::follow, wait};
use crate::{Access, Arena};

/// Kubelet timers for tests in which nodes die: the same proportions as a real kubelet's, ten times as fast.
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
    /// If they cannot be registered, or if no controller manager removes their first taint.
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

/// Kubelets for Node objects that others create, for example Karpenter's kwok provider: each new node becomes ready and
/// runs its pods, and when its object is removed, so is its machine. Dropping it stops them all.
#[derive(Debug)]
pub struct Kubelets {
    fleet: Arc<Fleet>,
    task: JoinHandle<()>,
}

impl Kubelets {
    /// Starts to run all selected nodes, with [`QUICK`] timers.
    pub fn start(access: &Access, selection: &ListParams) -> Self {
        let client = access.client("salvor-testkit-kubelets");
        let options = FleetOptions { timers: QUICK, ..FleetOptions::default() };
        let fleet = Arc::new(Fleet::start(client.clone(), options));
        let mut news = follow::<Node>(&Api::all(client), selection);
        let kubelets = Arc::clone(&fleet);
        let task = tokio::spawn(async move {
            let mut known = BTreeSet::new();
            while let Some(event) = news.next().await {
                match event {
                    Ok(Event::Apply(node) | Event::InitApply(node)) if known.insert(node.name_any()) => {
                        // Registering waits for answers; the next node must not.
                        let kubelets = Arc::clone(&kubelets);
                        tokio::spawn(async move { kubelets.add([profile_of(&node)]).await });
                    }
                    Ok(Event::Delete(node)) => {
                        // A stopped fleet has no machine to turn off.
                        let _ = kubelets.inject(&node.name_any(), Fault::Crash).await;
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        });
        Self { fleet, task }
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A machine with the capacity of its object. The object already has its labels and taints.
fn profile_of(node: &Node) -> NodeProfile {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let resources = allocatable.into_iter().flatten();
    resources.fold(NodeProfile::named(node.name_any()), |profile, (resource, quantity)| {
        profile.with_capacity(resource, &quantity.0)
    })
}
