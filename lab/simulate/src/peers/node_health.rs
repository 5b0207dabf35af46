//! The decisions of Karpenter 1.14.1's controller `node.health`, as a client of the same API.
//!
//! It reacts when a node is new, or when a status or lastTransitionTime among its conditions changes, and when a
//! requeue that it asked for is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use salvor_apiserver::Cluster;
use serde_json::json;
use tokio::time::sleep;

use crate::{objects, unless_gone};

#[cfg(test)]
mod tests;

const TERMINATION: &str = "karpenter.sh/nodeclaim-termination-timestamp";
const POOL: &str = "karpenter.sh/nodepool";
/// A node that the circuit breaker blocks is requeued after this time.
const HELD_FOR: SignedDuration = SignedDuration::from_mins(5);
/// The delay after which its watches deliver a change.
const SOON: Duration = Duration::from_secs(1);

/// The fields of a node's conditions whose change triggers a reconcile.
type Told = Vec<(String, String, Option<Timestamp>)>;

/// A condition that makes a node unhealthy, and how long that is tolerated.
#[derive(Debug, PartialEq, Eq)]
pub struct SickCondition {
    pub kind: &'static str,
    /// The status that means unhealthy.
    pub sick: &'static str,
    /// How long it is tolerated.
    pub minutes: u64,
}

/// The conditions that Karpenter's AWS provider repairs, with its tolerations.
pub const SICK_CONDITIONS: [SickCondition; 7] = [
    SickCondition { kind: "Ready", sick: "False", minutes: 30 },
    SickCondition { kind: "Ready", sick: "Unknown", minutes: 30 },
    SickCondition { kind: "AcceleratedHardwareReady", sick: "False", minutes: 10 },
    SickCondition { kind: "StorageReady", sick: "False", minutes: 30 },
    SickCondition { kind: "NetworkingReady", sick: "False", minutes: 30 },
    SickCondition { kind: "KernelReady", sick: "False", minutes: 30 },
    SickCondition { kind: "ContainerRuntimeReady", sick: "False", minutes: 30 },
];

pub struct NodeHealth {
    cluster: Cluster,
    nodes: Api<Node>,
    claims: Api<DynamicObject>,
    /// The conditions at the last reconcile, by node UID.
    told: BTreeMap<String, Told>,
    /// When each node is requeued.
    again: BTreeMap<String, Timestamp>,
    /// The last revision that it has seen.
    revision: u64,
}

impl NodeHealth {
    /// Needs NodeClaims in the cluster.
    pub fn new(cluster: &Cluster) -> Self {
        let client = cluster.client();
        Self {
            cluster: cluster.clone(),
            claims: objects(&client, "karpenter.sh", "v1", "NodeClaim", "nodeclaims"),
            nodes: Api::all(client),
            told: BTreeMap::new(),
            again: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Runs until the API fails.
    pub async fn run(mut self) -> kube::Error {
        loop {
            if let Err(error) = self.look().await {
                return error;
            }
            sleep(SOON).await;
        }
    }

    async fn look(&mut self) -> Result<(), kube::Error> {
        let now = self.cluster.now();
        let due = self.again.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone());
        let mut queue: BTreeSet<String> = due.collect();
        let revision = self.cluster.revision();
        if queue.is_empty() && revision == self.revision {
            return Ok(());
        }
        self.revision = revision;
        let nodes = self.nodes.list(&ListParams::default()).await?.items;
        let claims = self.claims.list(&ListParams::default()).await?.items;
        let told: BTreeMap<String, Told> =
            nodes.iter().map(|node| (node.uid().unwrap_or_default(), conditions(node))).collect();
        let changed = nodes.iter().filter(|node| {
            let uid = node.uid().unwrap_or_default();
            told.get(&uid) != self.told.get(&uid)
        });
        queue.extend(changed.map(ResourceExt::name_any));
        self.told = told;
        for name in queue {
            self.again.remove(&name);
            let Some(node) = nodes.iter().find(|node| node.name_any() == name) else { continue };
            self.reconcile(node, &nodes, &claims, now).await?;
        }
        Ok(())
    }

    async fn reconcile(
        &mut self,
        node: &Node,
        nodes: &[Node],
        claims: &[DynamicObject],
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        let provider = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let is_its = |claim: &&DynamicObject| claim.data["status"]["providerID"] == json!(provider);
        let mut owners = claims.iter().filter(is_its);
        let (Some(claim), None) = (owners.next().filter(|_| !provider.is_empty()), owners.next()) else {
            return Ok(());
        };
        let Some(until) = deadline(node) else { return Ok(()) };
        if now < until {
            self.look_again(node, until);
            return Ok(());
        }
        let pool = claim.labels().get(POOL);
        let is_in_scope = |other: &&Node| pool.is_none_or(|pool| other.labels().get(POOL) == Some(pool));
        let scope: Vec<&Node> = nodes.iter().filter(is_in_scope).collect();
        // Whatever state they are in, and however long they have been unhealthy.
        let unhealthy = scope.iter().filter(|node| deadline(node).is_some()).count();
        if unhealthy > scope.len().div_ceil(5) {
            self.look_again(node, now.saturating_add(HELD_FOR).unwrap_or(Timestamp::MAX));
            return Ok(());
        }
        let name = claim.name_any();
        let set = claim.annotations().get(TERMINATION).and_then(|text| text.parse::<Timestamp>().ok());
        if set.is_none_or(|set| set >= now) {
            let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let patch = Patch::Merge(json!({"metadata": {"annotations": {TERMINATION: at}}}));
            let patched = self.claims.patch(&name, &PatchParams::default(), &patch).await;
            patched.map(|_| ()).or_else(unless_gone)?;
        }
        if claim.metadata.deletion_timestamp.is_none() {
            let deleted = self.claims.delete(&name, &DeleteParams::default()).await;
            deleted.map(|_| ()).or_else(unless_gone)?;
        }
        Ok(())
    }

    /// The earlier of two times wins, as in its queue.
    fn look_again(&mut self, node: &Node, at: Timestamp) {
        let again = self.again.entry(node.name_any()).or_insert(at);
        *again = at.min(*again);
    }
}

fn conditions(node: &Node) -> Told {
    let all = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.map(|it| (it.type_.clone(), it.status.clone(), it.last_transition_time.as_ref().map(|at| at.0)))
        .collect()
}

/// The earliest end of a toleration; `None` if the node is healthy.
fn deadline(node: &Node) -> Option<Timestamp> {
    let ends = conditions(node).into_iter().filter_map(|(kind, status, since)| {
        let known = SICK_CONDITIONS.iter().find(|it| it.kind == kind && it.sick == status)?;
        since?.checked_add(SignedDuration::from_secs(i64::try_from(known.minutes * 60).ok()?)).ok()
    });
    ends.min()
}
