//! Second looks, and live reads of single objects for other callers.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::try_join;
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Decision,
    brake::{Census, NodeCounts, NodeStanding},
    eviction::{AttachmentView, EvictionPolicy, NodeView, PodView, Scene, Step, decide_node, decide_pod},
    gate::{Copies, GatePolicy},
    ids::{NodeName, Uid},
};

use super::{
    kubelet::observe,
    subject::{PodSubject, Subject, Why},
    wire::{ATTACHMENTS, AttachmentWire, PodWire},
};
use crate::{
    client::{
        live,
        recent_reads::{ReadAge, RecentReads},
        wire::read,
    },
    engine::recovery::{Known, LiveRecheck},
    recoveries::work::{read_copies, read_copies_or_why_not},
    watch_set::nodes::{NODES, NodeWire},
};

#[derive(Debug)]
pub(crate) struct Recheck {
    pub(super) subject: Subject,
    /// The pod as it was decided.
    pub(super) pod: Option<PodView>,
    /// The node as it was decided.
    pub(super) known: Option<NodeView>,
    /// True if the pods of the node are known.
    pub(super) pods_listed: bool,
    /// The results for the claims and Jobs of its pods, by the pod's UID.
    pub(super) copies: BTreeMap<Uid, Copies>,
    pub(super) attachments: Option<Vec<AttachmentView>>,
    pub(super) zone: Vec<NodeStanding>,
    pub(super) policy: Arc<EvictionPolicy>,
    pub(super) looks: RecentReads<NodeView>,
}

impl Recheck {
    async fn node(&self, client: &Client, name: &NodeName, now: Timestamp) -> kube::Result<Option<NodeView>> {
        let (view, lease) = try_join(read_node(client, name), live::node_lease(client, name)).await?;
        let Some(mut view) = view else { return Ok(None) };
        let known = self.known.as_ref().filter(|known| known.node == view.node);
        observe(&mut view, known, lease, now);
        if let Some(known) = known {
            view.told = known.told.clone();
            view.refused = known.refused.clone();
        }
        Ok(Some(view))
    }

    /// The result for the claims and the Job of a pod, read again if it decides about the pod: it may have changed
    /// since. If it only now becomes relevant, it is unknown.
    async fn copies(&self, client: &Client, mut pod: PodView) -> kube::Result<Copies> {
        if pod.work.copies == Copies::Allowed && !(pod.work.claims.is_empty() && pod.work.job.is_none()) {
            pod.work.copies = Copies::Unread;
        }
        match &self.known {
            Some(known) if self.policy.must_read_work(&pod, known) => read_copies(client, &pod.work).await,
            _ => Ok(pod.work.copies),
        }
    }

    /// Reads the pods together with the node if it is being evicted, as far as is known. Otherwise it only matters
    /// whether they are known.
    async fn pods(&self, client: &Client, node: &NodeName) -> kube::Result<Option<Vec<PodView>>> {
        if !self.known.as_ref().is_some_and(is_being_emptied) {
            return Ok(self.pods_listed.then(Vec::new));
        }
        let mut pods = read_pods(client, node, self.policy.gate()).await?;
        for pod in pods.iter_mut().filter(|pod| pod.work.copies == Copies::Unread) {
            pod.work.copies = self.copies.get(&pod.pod.uid).cloned().unwrap_or(Copies::Unread);
        }
        Ok(Some(pods))
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
                let PodSubject { node, uid, namespace, name } = &**subject;
                let fresh = match known {
                    Known::Guarded => self.pod.clone(),
                    Known::Written(pod) => Some(parse_pod(pod, self.policy.gate())?),
                    Known::Nothing => read_pod(client, namespace, name, self.policy.gate()).await?,
                };
                let Some(mut pod) = fresh.filter(|p| p.pod.uid == *uid) else { return Ok(None) };
                pod.announced = self.pod.as_ref().is_some_and(|p| p.announced);
                let node = self.looks.at(node, sight, self.node(client, node, now));
                let (node, copies) = try_join(node, self.copies(client, pod.clone())).await?;
                pod.work.copies = copies;
                // Another Node of that name is another machine, whatever its annotations say.
                let is_judged =
                    |node: &NodeView| self.known.as_ref().is_none_or(|known| known.node == node.node);
                let node = node.filter(is_judged);
                Ok(Some(decide_pod(&pod, node.as_ref(), &self.policy, now).map_why(Why::Pod)))
            }
            Subject::Node { name } => {
                let (node, pods) = try_join(self.node(client, name, now), self.pods(client, name)).await?;
                let Some(node) = node else { return Ok(None) };
                let mut census = Census::new(now, self.policy.count_nodes_ready_within);
                self.zone.iter().for_each(|standing| census.add(&node.zone, standing));
                let scene = Scene {
                    node: &node,
                    pods: pods.as_ref().map(|pods| pods.iter().collect()),
                    attachments: self.attachments.as_ref().map(|all| all.iter().collect()),
                    zone: census.zone(&node.zone),
                };
                Ok(Some(decide_node(&scene, &self.policy, now).map_why(Why::Node)))
            }
        }
    }
}

/// True if its pods are being failed and deleted now.
pub(super) fn is_being_emptied(node: &NodeView) -> bool {
    node.progress.as_ref().is_some_and(|progress| progress.finished.is_none() && progress.stopped.is_none())
}

/// Reads a node live, without its Lease.
pub(crate) async fn read_node(client: &Client, name: &NodeName) -> kube::Result<Option<NodeView>> {
    let text = live::get(client, &format!("/api/v1/nodes/{name}")).await?;
    text.map(|text| parse_node(&text)).transpose()
}

/// Decodes a node, without its Lease.
pub(crate) fn parse_node(text: &str) -> kube::Result<NodeView> {
    Ok(read::<NodeWire>(text)?.view())
}

async fn read_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    gate: &GatePolicy,
) -> kube::Result<Option<PodView>> {
    let text = live::get(client, &format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?;
    text.map(|text| parse_pod(&text, gate)).transpose()
}

pub(super) fn parse_pod(text: &str, gate: &GatePolicy) -> kube::Result<PodView> {
    Ok(read::<PodWire>(text)?.view(gate))
}

pub(crate) async fn read_pods(
    client: &Client,
    node: &NodeName,
    gate: &GatePolicy,
) -> kube::Result<Vec<PodView>> {
    let selector = format!("&fieldSelector=spec.nodeName%3D{node}");
    live::list(client, "/api/v1/pods", &selector, |pod: PodWire| Some(pod.view(gate))).await
}

pub(crate) async fn read_attachments(client: &Client, node: &NodeName) -> kube::Result<Vec<AttachmentView>> {
    let to_it = |wire: AttachmentWire| Some(wire.view()).filter(|attachment| attachment.node == *node);
    live::list(client, &ATTACHMENTS.path, "", to_it).await
}

pub(crate) async fn read_zone(
    client: &Client,
    zone: &str,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> kube::Result<NodeCounts> {
    let in_it = |wire: NodeWire| (wire.zone() == zone).then(|| wire.standing());
    let mut census = Census::new(now, policy.count_nodes_ready_within);
    for standing in live::list(client, &NODES.path, "", in_it).await? {
        census.add(zone, &standing);
    }
    Ok(census.zone(zone))
}

/// Adds a node's Lease for a caller that sees the node for the first time.
pub(crate) async fn read_lease(client: &Client, node: &mut NodeView, now: Timestamp) -> kube::Result<()> {
    let lease = live::node_lease(client, &node.node.name).await?;
    observe(node, None, lease, now);
    Ok(())
}

/// Reads the claims and Jobs of pods as far as they decide about them.
pub(crate) async fn read_works(
    client: &Client,
    policy: &EvictionPolicy,
    node: &NodeView,
    pods: &mut [PodView],
) {
    for pod in pods.iter_mut().filter(|pod| policy.must_read_work(pod, node)) {
        pod.work.copies = read_copies_or_why_not(client, &pod.work).await;
    }
}
