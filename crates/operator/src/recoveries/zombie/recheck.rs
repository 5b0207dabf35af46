//! The second look: a pod or a node decided again from live reads, and these reads.

use std::sync::Arc;

use futures::future::try_join;
use jiff::Timestamp;
use kube::Client;
use salvor_api::config::LostPods;
use salvor_recovery::{
    Decision,
    ids::NodeName,
    liveness::Heartbeat,
    objects::PodRef,
    zombie::{NodeView, PodView, Step, ZombiePolicy, decide_node, decide_pod},
};

use super::{
    jobs::Jobs,
    subject::{Subject, Why},
    wire::{PodWire, SeenNode},
};
use crate::{
    client::{
        live,
        recent_reads::{ReadAge, RecentReads},
        wire::read,
    },
    engine::recovery::{Known, LiveRecheck},
    watch_set::{leases::Heartbeats, nodes::NodeWire},
};

#[derive(Debug)]
pub(crate) struct Recheck {
    pub(super) subject: Subject,
    /// The pod as it was decided.
    pub(super) pod: Option<PodView>,
    pub(super) announced: bool,
    pub(super) return_told: bool,
    pub(super) observed: Option<Timestamp>,
    pub(super) policy: Arc<ZombiePolicy>,
    pub(super) looks: RecentReads<NodeView>,
    pub(super) heartbeats: Heartbeats,
    pub(super) jobs: Jobs,
}

impl Recheck {
    /// The node and its Lease, live.
    async fn node(&self, client: &Client, name: &NodeName, now: Timestamp) -> kube::Result<Option<NodeView>> {
        let observed = self.observed.unwrap_or(now);
        let (node, lease) = try_join(node(client, name, observed), live::node_lease(client, name)).await?;
        let Some(mut node) = node else { return Ok(None) };
        node.heartbeat = self.heartbeats.note(&node.node, node.heartbeat_in(lease, now), now);
        Ok(Some(node))
    }
}

impl LiveRecheck for Recheck {
    type Why = Why;
    type Step = Step;

    async fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
        sight: &mut ReadAge,
    ) -> kube::Result<Option<Decision<Why, Step>>> {
        match &self.subject {
            Subject::Pod(subject) => {
                let PodRef { namespace, name, uid } = &**subject;
                let fresh = match known {
                    Known::Guarded => self.pod.clone(),
                    Known::Written(pod) => Some(read::<PodWire>(pod)?.view()),
                    Known::Nothing => pod(client, namespace, name).await?,
                };
                let Some(mut pod) = fresh.filter(|p| p.pod.uid == *uid) else { return Ok(None) };
                pod.announced = self.announced;
                // Those events were recorded before any write, or are not needed.
                (pod.wait_told, pod.evict_told) = (true, true);
                let node = match &pod.node_name {
                    Some(name) => self.looks.at(name, sight, self.node(client, name, now)).await?,
                    None => None,
                };
                let asks = !pod.phase.is_terminal() && self.policy.lost_pods != LostPods::Count;
                if let Some(of) = pod.job.as_mut().filter(|_| asks) {
                    of.sight = self.jobs.look(client, &of.job, now, sight).await?;
                    self.jobs.note_again(&of.job, &of.sight);
                    if let Some(judged) = self.pod.as_ref().and_then(|pod| pod.job.as_ref()) {
                        of.family.clone_from(&judged.family);
                        of.told = judged.told;
                    }
                }
                Ok(Some(decide_pod(&pod, node.as_ref(), &self.policy, now).map_why(Why::Pod)))
            }
            Subject::Node { name } => {
                let Some(mut node) = self.node(client, name, now).await? else { return Ok(None) };
                (node.announced, node.return_told) = (self.announced, self.return_told);
                Ok(Some(decide_node(&node, &self.policy, now).map_why(Why::Node)))
            }
        }
    }
}

async fn pod(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<PodView>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let text = live::get(client, &path).await?;
    text.map(|text| parse_pod(&text)).transpose()
}

pub(super) fn parse_pod(text: &str) -> kube::Result<PodView> {
    Ok(read::<PodWire>(text)?.view())
}

/// Reads a node live, without its Lease, for a caller that has not watched it.
pub(super) async fn node_at_first_sight(
    client: &Client,
    name: &NodeName,
    now: Timestamp,
) -> kube::Result<Option<NodeView>> {
    let text = live::get(client, &format!("/api/v1/nodes/{name}")).await?;
    text.map(|text| see_at_first_sight(&text, now)).transpose()
}

/// Decodes a node, without its Lease, for a caller that has not watched it.
pub(super) fn see_at_first_sight(text: &str, now: Timestamp) -> kube::Result<NodeView> {
    Ok(SeenNode::from(&read::<NodeWire>(text)?).view_at_first_sight(now))
}

/// The heartbeat that a node's Lease shows without having been watched.
pub(super) async fn heartbeat_at_first_sight(
    client: &Client,
    node: &NodeView,
    now: Timestamp,
) -> kube::Result<Heartbeat> {
    let lease = live::node_lease(client, &node.node.name).await?;
    Ok(Heartbeat::at_a_glance(lease.or(node.ready_heartbeat), now))
}

/// Reads a node live. `observed` is when it was first seen unreachable, for a taint without a time.
async fn node(client: &Client, name: &NodeName, observed: Timestamp) -> kube::Result<Option<NodeView>> {
    let text = live::get(client, &format!("/api/v1/nodes/{name}")).await?;
    text.map(|text| Ok(SeenNode::from(&read::<NodeWire>(&text)?).view(observed))).transpose()
}
