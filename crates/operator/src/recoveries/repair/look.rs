//! Second looks: the node, its owner and its policy are read live and judged once more.

use std::sync::Arc;

use futures::future::try_join3;
use jiff::Timestamp;
use kube::Client;
use salvor_recovery::{
    Judgement,
    objects::{NodeRef, ObjectRef},
    one_actor::NodeActors,
    repair::{Backend, Member, Place, Policy, PoolView, Scene, Settings, Step, Survey, decide_node},
};

use super::{
    MACHINE_VERSIONS, Why,
    wire::{self, SeenOwner, node_view},
};
use crate::{
    live,
    looks::Sight,
    nodes::NodeWire,
    recovery::{Known, LiveInquiry},
    wire::read,
};

/// A live question about a node.
#[derive(Debug, Default)]
pub(crate) struct Inquiry {
    /// The node as it was judged.
    pub(super) node: Option<NodeRef>,
    pub(super) provider_id: String,
    /// The policy that counts for it.
    pub(super) policy: Option<ObjectRef>,
    /// The state of that policy, by the watches.
    pub(super) survey: Option<Arc<Survey>>,
    /// The backend, by the watches.
    pub(super) backend: Option<Backend>,
    /// Its NodePool, by the watches.
    pub(super) pool: Option<PoolView>,
    pub(super) settings: Option<Arc<Settings>>,
    pub(super) actors: Arc<NodeActors>,
}

impl LiveInquiry for Inquiry {
    type Why = Why;
    type Step = Step;

    async fn ask(
        &self,
        client: &Client,
        _: Known<'_>,
        now: Timestamp,
        _: &mut Sight,
    ) -> kube::Result<Option<Judgement<Why, Step>>> {
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
        let Some(node) = node.map(|wire| node_view(&wire, &self.actors)).filter(|node| node.node == *judged)
        else {
            return Ok(None);
        };
        let backend = match (backend, owner) {
            (Backend::Claim(_), Some(owner)) if owner.is_of(&node) => Backend::Claim(owner.view),
            (Backend::Machine(_), Some(owner)) if owner.node.as_ref() == Some(&node.node.name) => {
                Backend::Machine(owner.view)
            }
            (Backend::Claim(_) | Backend::Machine(_), _) => {
                Backend::Missing("its NodeClaim or Machine is gone, or stands for another node".to_owned())
            }
            (Backend::Node, _) if *node.provider_id != *self.provider_id || node.machine.is_some() => {
                Backend::Missing("the node has another machine than a moment ago".to_owned())
            }
            (Backend::Node, _) => Backend::Node,
            (Backend::Missing(why), _) => Backend::Missing(why.clone()),
        };
        let policy = policy.filter(|policy| policy.selects(&node.labels));
        let repair = policy.as_ref().and_then(|policy| policy.status.repair_of(&node.node.uid));
        let scene = Scene {
            place: repair.map_or(Place::None, Place::Reserved),
            member: Member { node: &node, backend, refused: None, pods: None, pool: self.pool.as_ref() },
            policy: policy.as_ref(),
            survey: self.survey.as_deref(),
        };
        Ok(Some(decide_node(&scene, settings, now).map_why(Why::Node)))
    }
}

impl Inquiry {
    async fn owner(&self, client: &Client, backend: &Backend) -> kube::Result<Option<SeenOwner>> {
        let Some(owner) = backend.owner() else { return Ok(None) };
        let Some(text) = live::get(client, &path(&owner.object)).await? else { return Ok(None) };
        let found = match backend {
            Backend::Claim(_) => wire::claim(read(&text)?),
            Backend::Machine(_) | Backend::Node | Backend::Missing(_) => {
                let version = MACHINE_VERSIONS.into_iter().find(|it| *it == owner.object.kind.version);
                wire::machine(read(&text)?, version.unwrap_or(MACHINE_VERSIONS[0]))
            }
        };
        Ok(Some(found).filter(|found| found.view.object.uid == owner.object.uid))
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

/// The path of an object.
pub(super) fn path(object: &ObjectRef) -> String {
    let ObjectRef { kind, namespace, name, .. } = object;
    let namespace =
        namespace.as_ref().map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    format!("/apis/{}/{}{namespace}/{}/{name}", kind.group, kind.version, kind.resource)
}
