//! Second looks: the node, its owner and its policy are read live and decided once more.

use std::{collections::BTreeMap, sync::Arc};

use futures::{
    StreamExt, TryStreamExt,
    future::{try_join, try_join3},
    stream,
};
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Decision,
    gate::{Copies, Work},
    ids::{NodeName, Uid},
    liveness::Lease,
    objects::{NodeRef, ObjectRef, PodRef},
    repair::{
        Backend, Grave, Left, Member, NodeView, Place, PodPlace, PodView, Policy, PoolView, Scene, Settings,
        Step, Survey, decide_node, decide_pod, is_drained,
    },
};

use super::{
    store::{
        owners::{MACHINE_VERSIONS, SeenOwner},
        pods_on_nodes::left_of,
    },
    subjects::Why,
    wire::{self, Reader},
};
use crate::{
    client::{
        live,
        recent_reads::ReadAge,
        wire::{Nothing, Object, read},
    },
    engine::recovery::{Known, LiveRecheck},
    recoveries::work::read_copies,
    watch_set::{leases::Heartbeats, nodes::NodeWire},
};

/// Limit on concurrent reads: a look must finish within the second of its validity.
const AT_ONCE: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Recheck {
    /// The node as it was decided.
    pub(super) node: Option<NodeRef>,
    pub(super) provider_id: String,
    /// The policy that applies to it.
    pub(super) policy: Option<ObjectRef>,
    /// The survey of that policy, from the watches.
    pub(super) survey: Option<Arc<Survey>>,
    /// The backend, from the watches.
    pub(super) backend: Option<Backend>,
    /// Its NodePool, from the watches.
    pub(super) pool: Option<PoolView>,
    pub(super) settings: Option<Arc<Settings>>,
    pub(super) reader: Arc<Reader>,
    /// The results for the claims and Jobs of the node's pods.
    pub(super) copies: BTreeMap<Uid, Copies>,
    pub(super) heartbeats: Heartbeats,
    /// The pod in question, if the look is about one.
    pub(super) pod: Option<PodQuestion>,
}

#[derive(Debug)]
pub(crate) struct PodQuestion {
    /// The pod as it was decided.
    pub(super) pod: PodView,
    /// Its node, if that was replaced.
    pub(super) grave: Option<Grave>,
}

impl LiveRecheck for Recheck {
    type Why = Why;
    type Step = Step;

    async fn ask(
        &self,
        client: &Client,
        known: Known<'_>,
        now: Timestamp,
        _: &mut ReadAge,
    ) -> kube::Result<Option<Decision<Why, Step>>> {
        let Some(question) = &self.pod else {
            let judge = |scene: &Scene<'_>, settings: &Settings| decide_node(scene, settings, now);
            let judged = self.in_scene(client, true, now, judge).await?;
            return Ok(judged.map(|decision| decision.map_why(Why::Node)));
        };
        let PodRef { namespace, name, uid } = &question.pod.pod;
        let pod = match known {
            Known::Guarded => Some(question.pod.clone()),
            Known::Written(text) => Some(self.reader.pod(read(text)?)),
            Known::Nothing => {
                let text = live::get(client, &format!("/api/v1/namespaces/{namespace}/pods/{name}")).await?;
                text.map(|text| read(&text).map(|it| self.reader.pod(it))).transpose()?
            }
        };
        let Some(pod) = pod.filter(|pod| pod.pod.uid == *uid) else { return Ok(None) };
        let place = match (&question.grave, &self.node) {
            (Some(grave), _) => self.replaced(client, grave).await?,
            (None, Some(node)) => {
                let drained = |scene: &Scene<'_>, settings: &Settings| is_drained(scene, settings, now);
                let is_drained = self.in_scene(client, false, now, drained).await?.unwrap_or(false);
                PodPlace::Drained { node: node.clone(), is_drained }
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(decide_pod(&pod, &place, None, &self.reader.gate, now).map_why(Why::Pod)))
    }
}

impl Recheck {
    /// The current node, with everything that its verdict depends on; `None` if it is gone.
    async fn in_scene<T>(
        &self,
        client: &Client,
        counts_pods: bool,
        now: Timestamp,
        look: impl FnOnce(&Scene<'_>, &Settings) -> T,
    ) -> kube::Result<Option<T>> {
        let (Some(judged), Some(settings), Some(backend)) = (&self.node, &self.settings, &self.backend)
        else {
            return Ok(None);
        };
        let node = async {
            let text = live::get(client, &format!("/api/v1/nodes/{}", judged.name)).await?;
            text.map(|text| read::<NodeWire>(&text)).transpose()
        };
        let (node, owner, policy) = try_join3(node, self.owner(client, backend), self.policy(client)).await?;
        // Another node of that name is another machine.
        let Some(wire) = node.filter(|wire| wire.node() == *judged) else { return Ok(None) };
        let node = self.reader.node(&wire);
        let backend = match (backend, owner) {
            (Backend::Claim(_), Some(owner)) if owner.is_of(&node) => Backend::Claim(owner.view()),
            (Backend::Machine(_), Some(owner)) if owner.node == node.node.name => {
                Backend::Machine(owner.view())
            }
            (Backend::Claim(_) | Backend::Machine(_), _) => {
                Backend::Missing("its NodeClaim or Machine is gone, or stands for another node".to_owned())
            }
            (Backend::Node, _)
                if *node.provider_id != *self.provider_id || node.marks().machine.is_some() =>
            {
                Backend::Missing("the node has another machine than a moment ago".to_owned())
            }
            (Backend::Node, _) => Backend::Node,
            (Backend::Missing(why), _) => Backend::Missing(why.clone()),
        };
        let policy = policy.filter(|policy| policy.selects(&node.labels));
        // Whether the Node may be deleted depends on the pods that are left.
        let left = if counts_pods && node.unschedulable && backend == Backend::Node {
            Some(self.pods_left(client, &node).await?)
        } else {
            None
        };
        // Proof that its machine is off counts only while its kubelet is not heard of.
        let lease = if left.is_some() && node.marks().off.is_some() {
            let read = live::node_lease(client, &node.node.name).await?;
            self.heartbeats.note(&node.node, read.or(wire.ready_heartbeat()), now).lease
        } else {
            Lease::Unread
        };
        let repair = policy.as_ref().and_then(|policy| policy.status.repair_of(&node.node.uid));
        let scene = Scene {
            place: repair.map_or(Place::None, Place::Reserved),
            member: Member {
                node: &node,
                backend,
                refused: None,
                pods: None,
                pool: self.pool.as_ref(),
                left,
                lease,
            },
            policy: policy.as_ref(),
            survey: self.survey.as_deref(),
            braked: None,
            kept: None,
        };
        Ok(Some(look(&scene, settings)))
    }

    /// What is left of a replaced node and its machine, read live.
    async fn replaced(&self, client: &Client, grave: &Grave) -> kube::Result<PodPlace> {
        let node = format!("/api/v1/nodes/{}", grave.node.name);
        let owner = path(&grave.owner);
        let (node, owner) =
            try_join(live::get_if_there(client, &node), live::get_if_there(client, &owner)).await?;
        let owner = owner.map(|text| read::<Object<Nothing, Nothing>>(&text)).transpose()?;
        let owner_is_there = owner.is_some_and(|owner| owner.metadata.uid == grave.owner.uid);
        Ok(PodPlace::Replaced { grave: grave.clone(), node_is_there: node.is_some(), owner_is_there })
    }

    /// The pods left by the drain of a node. Claims and Jobs that allowed a second copy are read again, shared ones
    /// once: `podReplacementPolicy` of a Job may have changed since. Every other result keeps the Node.
    async fn pods_left(&self, client: &Client, node: &NodeView) -> kube::Result<Left> {
        let view = |wire| Some(self.reader.pod(wire));
        let pods = live::list(client, "/api/v1/pods", &on_node(&node.node.name), view).await?;
        let mut left = left_of(&pods);
        let mut allowed: BTreeMap<_, Work> = BTreeMap::new();
        for pod in left.pods.iter_mut().filter(|pod| self.reader.gate.must_read(&pod.work)) {
            match self.copies.get(&pod.pod.uid) {
                Some(Copies::Allowed) => {
                    allowed.insert((pod.work.claims.clone(), pod.work.job.clone()), pod.work.clone());
                }
                Some(known @ (Copies::Forbidden(_) | Copies::Unread | Copies::Unreadable(_))) => {
                    pod.work.copies = known.clone();
                }
                None => {}
            }
        }
        let reads = allowed
            .into_iter()
            .map(async |(shared, work)| Ok::<_, kube::Error>((shared, read_copies(client, &work).await?)));
        let known: BTreeMap<_, Copies> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
        for pod in left.pods.iter_mut().filter(|pod| pod.work.copies == Copies::Unread) {
            if let Some(copies) = known.get(&(pod.work.claims.clone(), pod.work.job.clone())) {
                pod.work.copies = copies.clone();
            }
        }
        Ok(left)
    }

    async fn owner(&self, client: &Client, backend: &Backend) -> kube::Result<Option<SeenOwner>> {
        let Some(owner) = backend.owner() else { return Ok(None) };
        let Some(text) = live::get(client, &path(&owner.object)).await? else { return Ok(None) };
        let found = match backend {
            Backend::Claim(_) => self.reader.claim(read(&text)?),
            Backend::Machine(_) | Backend::Node | Backend::Missing(_) => {
                let version = MACHINE_VERSIONS.into_iter().find(|it| *it == owner.object.kind.version);
                self.reader.machine(read(&text)?, version.unwrap_or(MACHINE_VERSIONS[0]))
            }
        };
        Ok(Some(found).filter(|found| found.uid == owner.object.uid))
    }

    async fn policy(&self, client: &Client) -> kube::Result<Option<Policy>> {
        let Some(judged) = &self.policy else { return Ok(None) };
        let Some(text) = live::get(client, &path(judged)).await? else { return Ok(None) };
        let object: serde_json::Value = read(&text)?;
        let policy = if judged.kind == salvor_recovery::repair::NODE_POOL {
            wire::pool(&object)
        } else {
            wire::policy(&object)
        };
        Ok(policy.filter(|policy| policy.object.uid == judged.uid))
    }
}

/// Selects the pods that are bound to a node.
pub(super) fn on_node(name: &NodeName) -> String {
    format!("&fieldSelector=spec.nodeName%3D{}", live::percent_encode(name.as_str()))
}

pub(super) fn path(object: &ObjectRef) -> String {
    let ObjectRef { kind, namespace, name, .. } = object;
    let namespace =
        namespace.as_ref().map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    format!("/apis/{}/{}{namespace}/{}/{name}", kind.group, kind.version, kind.resource)
}
