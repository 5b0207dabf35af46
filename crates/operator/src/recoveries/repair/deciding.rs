//! Decisions about nodes, pods and policies from the view.

use std::collections::BTreeSet;

use jiff::Timestamp;
use salvor_recovery::{
    Decision, Verdict,
    ids::NodeName,
    repair::{
        Backend, KeptBy, Member, NODE_CLAIM, NodeView, NodeWhy, Place, PodPlace, PodWhy, PolicyScene,
        PolicyWhy, Repair, Scene, Step, decide_node, decide_pod, decide_policy, is_drained,
    },
};

use super::{
    Repairs,
    store::owners::{Owners, machine_name},
    subjects::{Key, PodSubject},
};

impl Repairs {
    /// Machines in the version that is served; the newest if both are.
    pub(super) fn machines(&self) -> &Owners {
        let [new, old] = &self.machines;
        if new.is_not_served() { old } else { new }
    }

    /// True if everything that a verdict depends on is known.
    pub(super) fn is_known(&self) -> bool {
        let awaited = self.pools.is_awaited() || self.claims.is_awaited() || self.machines().is_awaited();
        self.nodes_listed && self.policies.is_settled() && !awaited
    }

    /// The backend that repairs a node.
    pub(super) fn backend(&self, node: &NodeView) -> Backend {
        if let Some(why) = self.claims.unknown() {
            return Backend::Missing(format!("NodeClaims cannot be read: {why}"));
        }
        let mut claims = self.claims.called(&node.provider_id);
        match (claims.next(), claims.next()) {
            (Some(claim), None) if claim.is_of(node) => return Backend::Claim(claim.view()),
            (Some(claim), None) => {
                return Backend::Missing(format!("{} stands for another node", claim.object()));
            }
            (Some(_), Some(_)) => {
                return Backend::Missing(format!(
                    "several NodeClaims have its providerID {}",
                    node.provider_id
                ));
            }
            (None, _) => {}
        }
        if node.pool().is_some() && !self.claims.is_not_served() {
            return Backend::Missing(format!("no NodeClaim has its providerID {:?}", node.provider_id));
        }
        let Some(machine) = node.marks().machine.as_ref() else { return Backend::Node };
        let (namespace, name) = machine;
        if let Some(why) = self.machines().unknown() {
            return Backend::Missing(format!("Machines cannot be read: {why}"));
        }
        match self.machines().called(&machine_name(namespace, name)).next() {
            Some(found) if found.node == node.node.name => Backend::Machine(found.view()),
            Some(_) => Backend::Missing(format!("Machine {namespace}/{name} stands for another node")),
            None => Backend::Missing(format!("there is no Machine {namespace}/{name}")),
        }
    }

    pub(super) fn member<'a>(&'a self, node: &'a NodeView) -> Member<'a> {
        Member {
            node,
            backend: self.backend(node),
            refused: self.refused.get(&node.node.uid),
            pods: self.pods.of(&node.node.name),
            pool: node.pool().and_then(|name| self.pool(name)).map(|pool| &pool.view),
            left: self.pods_on_nodes.left(&node.node.name),
            lease: self.heartbeats.of(&node.node).lease,
        }
    }

    pub(super) fn judge_node(&self, name: &NodeName, now: Timestamp) -> Option<Decision<NodeWhy, Step>> {
        let node = self.node(name)?;
        if !self.enabled || !self.is_known() {
            let why = if self.enabled { NodeWhy::NotListed } else { NodeWhy::Disabled };
            return Some(Decision { verdict: Verdict::Ignore(why), findings: Vec::new() });
        }
        Some(self.in_scene(node, now, |scene| decide_node(scene, &self.settings, now)))
    }

    /// A node with everything that its verdict depends on.
    pub(super) fn in_scene<T>(
        &self,
        node: &NodeView,
        now: Timestamp,
        look: impl FnOnce(&Scene<'_>) -> T,
    ) -> T {
        let name = &node.node.name;
        let key = self.assigned.get(name);
        let policy = key.and_then(|key| self.policy(key));
        let survey = key.zip(policy).map(|(key, policy)| self.survey(key, policy, now));
        let uid = &node.node.uid;
        let reserved = policy.and_then(|policy| policy.status.repair_of(uid));
        let planned =
            survey.as_ref().filter(|_| self.plans).and_then(|it| it.picks.iter().find(|it| it.uid == *uid));
        let place = match (reserved, planned) {
            (Some(repair), _) => Place::Reserved(repair),
            (None, Some(repair)) => Place::Planned(repair),
            (None, None) => Place::None,
        };
        let braked = self.braked.get(uid);
        let kept = self.kept_of(node, now);
        look(&Scene { member: self.member(node), policy, survey: survey.as_deref(), place, braked, kept })
    }

    /// The latest record of the deleted Node of a machine that has registered again.
    pub(super) fn kept_of(&self, node: &NodeView, now: Timestamp) -> Option<KeptBy<'_>> {
        let all = self
            .policies
            .values()
            .flat_map(|policy| policy.status.deleted_nodes.iter().map(move |kept| KeptBy { policy, kept }));
        all.filter(|by| by.kept.is_of(node, now)).max_by_key(|by| by.kept.at)
    }

    pub(super) fn judge_pod(&self, subject: &PodSubject, now: Timestamp) -> Option<Decision<PodWhy, Step>> {
        let pod = self.pods_on_nodes.pod(subject)?;
        let place = match (self.pods_on_nodes.grave(&subject.node), self.node(&subject.node)) {
            (Some(grave), node) => {
                let store = if grave.owner.kind == NODE_CLAIM { &self.claims } else { self.machines() };
                let is_there = store.get(&grave.owner.uid).is_some();
                // If the kind is not served or cannot be read, its objects are unknown.
                let is_known = store.is_listed();
                PodPlace::Replaced {
                    grave: grave.clone(),
                    node_is_there: node.is_some() || !self.nodes_listed,
                    owner_is_there: is_there || !is_known,
                }
            }
            (None, Some(node)) => {
                let is_judged = self.enabled && self.is_known();
                let drained = |scene: &Scene<'_>| is_drained(scene, &self.settings, now);
                let is_drained = is_judged && self.in_scene(node, now, drained);
                PodPlace::Drained { node: node.node.clone(), is_drained }
            }
            (None, None) => return None,
        };
        Some(decide_pod(pod, &place, self.pods_on_nodes.refusal(&subject.pod.uid), &self.reader.gate, now))
    }

    /// The nodes whose pods are evicted one by one, or will be.
    pub(super) fn drained(&self) -> BTreeSet<NodeName> {
        let policies = self.policies.values().chain(self.pool_policies());
        let nodes = policies
            .flat_map(|policy| &policy.status.repairs)
            .filter_map(|repair| self.node(self.uids.get(&repair.uid)?));
        let drained = nodes.filter(|node| {
            node.unschedulable && node.deleting().is_none() && self.backend(node) == Backend::Node
        });
        drained.map(|node| node.node.name.clone()).collect()
    }

    /// Requests the Leases of nodes that may be deleted because something proves that their machine is off.
    pub(super) fn want_leases(&self, drained: &BTreeSet<NodeName>) {
        let is_said_to_be_off =
            |name: &&NodeName| self.node(name).is_some_and(|node| node.marks().off.is_some());
        let wanted: BTreeSet<&NodeName> = drained.iter().filter(is_said_to_be_off).collect();
        for name in self.leases.now().iter().filter(|name| !wanted.contains(name)) {
            self.leases.set(name, false);
            self.heartbeats.forget(name);
        }
        wanted.into_iter().for_each(|name| self.leases.set(name, true));
    }

    pub(super) fn judge_policy(&self, key: &Key, now: Timestamp) -> Option<Decision<PolicyWhy, Step>> {
        let policy = self.policy(key)?;
        if !self.is_known() {
            let verdict = Verdict::Ignore(PolicyWhy::NotListed);
            return Some(Decision { verdict, findings: Vec::new() });
        }
        let survey = policy.defects.is_empty().then(|| self.survey(key, policy, now));
        let overlap =
            self.overlaps.get(key).and_then(|nodes| Some((nodes.len(), nodes.values().next()?.to_string())));
        let written = self.written.get(key).copied();
        let pool_of = |repair: &Repair| {
            let owner = repair.owner.as_ref().and_then(|uid| self.claims.get(uid));
            let node = self.node(&repair.node);
            let pool = repair.pool.as_deref().or(owner.map(|it| &*it.pool));
            let pool = pool.or(node.and_then(NodeView::pool))?;
            self.pool(pool).map(|pool| pool.view.object.clone())
        };
        let scene = PolicyScene { policy, survey: survey.as_deref(), overlap, written, pool_of: &pool_of };
        Some(decide_policy(&scene, now))
    }
}
