//! Second looks, and reads of single objects for those who ask.

use std::sync::Arc;

use futures::future::try_join;
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Judgement,
    brake::{Census, NodeCounts, NodeStanding},
    eviction::{AttachmentView, EvictionPolicy, Lease, NodeView, PodView, Scene, decide_node, decide_pod},
};

use super::{
    ATTACHMENTS, NODES, PodSubject, Subject, Why, seen,
    wire::{AttachmentWire, NodeWire, PodWire},
};
use crate::{
    live,
    looks::Looks,
    recovery::{Known, LiveInquiry},
    wire::{List, read},
};

/// A live question about a node or a pod.
#[derive(Debug)]
pub(crate) struct Inquiry {
    pub(super) subject: Subject,
    /// The pod as it was judged.
    pub(super) pod: Option<PodView>,
    /// The node as it was judged.
    pub(super) known: Option<NodeView>,
    /// The pods of a node that is not being emptied yet, as it was judged: they are only counted on to be complete.
    pub(super) pods: Option<Vec<PodView>>,
    pub(super) attachments: Option<Vec<AttachmentView>>,
    /// The nodes of its zone.
    pub(super) zone: Vec<NodeStanding>,
    pub(super) policy: Arc<EvictionPolicy>,
    pub(super) looks: Looks<NodeView>,
}

impl Inquiry {
    async fn node(&self, client: &Client, name: &str, now: Timestamp) -> kube::Result<Option<NodeView>> {
        let (view, lease) = try_join(read_node(client, name), live::node_lease(client, name)).await?;
        let Some(mut view) = view else { return Ok(None) };
        let before = self.known.as_ref().map_or(Lease::Unread, |known| known.lease);
        view.lease = seen(before, lease, now);
        if let Some(known) = self.known.as_ref().filter(|known| known.node == view.node) {
            view.told = known.told.clone();
        }
        Ok(Some(view))
    }

    /// Reads the pods together with the node if it is being emptied, as far as is known. If that has changed since, they
    /// may be those of before, and the node is judged anew by what its own state says.
    async fn pods(&self, client: &Client, node: &str) -> kube::Result<Option<Vec<PodView>>> {
        if self.known.as_ref().is_some_and(is_being_emptied) {
            return read_pods(client, node).await.map(Some);
        }
        Ok(self.pods.clone())
    }
}

impl LiveInquiry for Inquiry {
    type Why = Why;

    async fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
    ) -> kube::Result<Option<Judgement<Why>>> {
        match &self.subject {
            Subject::Pod(subject) => {
                let PodSubject { node, uid, namespace, name } = &**subject;
                let fresh = match known {
                    Known::Guarded => self.pod.clone(),
                    Known::Written(pod) => Some(read::<PodWire>(pod)?.view()),
                    Known::Nothing => read_pod(client, namespace, name).await?,
                };
                let Some(mut pod) = fresh.filter(|p| p.pod.uid == *uid) else { return Ok(None) };
                pod.announced = self.pod.as_ref().is_some_and(|p| p.announced);
                let node = self.looks.at(node, self.node(client, node, now)).await?;
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

/// Whether its pods are failed and deleted now.
pub(super) fn is_being_emptied(node: &NodeView) -> bool {
    node.progress.as_ref().is_some_and(|progress| progress.finished.is_none() && progress.stopped.is_none())
}

/// Reads a node live, without its Lease.
pub(crate) async fn read_node(client: &Client, name: &str) -> kube::Result<Option<NodeView>> {
    let text = live::get(client, &format!("/api/v1/nodes/{name}")).await?;
    text.map(|text| parse_node(&text)).transpose()
}

/// Reads a node from the API's text, without its Lease.
pub(crate) fn parse_node(text: &str) -> kube::Result<NodeView> {
    Ok(read::<NodeWire>(text)?.view())
}

/// Reads a pod live.
pub(crate) async fn read_pod(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<PodView>> {
    let text = live::get(client, &format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?;
    text.map(|text| Ok(read::<PodWire>(&text)?.view())).transpose()
}

/// Reads the pods of a node live.
pub(crate) async fn read_pods(client: &Client, node: &str) -> kube::Result<Vec<PodView>> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let Some(text) = live::get(client, &path).await? else { return Ok(Vec::new()) };
    Ok(read::<List<PodWire>>(&text)?.items.into_iter().map(PodWire::view).collect())
}

/// Reads the volumes attached to a node live.
pub(crate) async fn read_attachments(client: &Client, node: &str) -> kube::Result<Vec<AttachmentView>> {
    let Some(text) = live::get(client, ATTACHMENTS.path).await? else { return Ok(Vec::new()) };
    let all = read::<List<AttachmentWire>>(&text)?.items.into_iter().map(AttachmentWire::view);
    Ok(all.filter(|attachment| attachment.node == node).collect())
}

/// Counts the nodes of a zone live.
pub(crate) async fn read_zone(
    client: &Client,
    zone: &str,
    policy: &EvictionPolicy,
    now: Timestamp,
) -> kube::Result<NodeCounts> {
    let Some(text) = live::get(client, NODES.path).await? else { return Ok(NodeCounts::default()) };
    let mut census = Census::new(now, policy.count_nodes_ready_within);
    for node in read::<List<NodeWire>>(&text)?.items {
        let standing = node.standing();
        census.add(&node.view().zone, &standing);
    }
    Ok(census.zone(zone))
}

/// What a node's Lease says to somebody who sees it for the first time.
pub(crate) async fn read_lease(client: &Client, node: &str, now: Timestamp) -> kube::Result<Lease> {
    Ok(seen(Lease::Unread, live::node_lease(client, node).await?, now))
}
