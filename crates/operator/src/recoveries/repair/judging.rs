//! Judgements of nodes, pods and policies by what was seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use salvor_recovery::{
    Judgement, Verdict,
    ids::{NodeName, Uid},
    repair::{
        Backend, LaunchTrouble, Member, NODE_CLAIM, NodeView, NodeWhy, Place, PodPlace, PodWhy, Policy,
        PolicyScene, PolicyWhy, Repair, Scene, Scope, Step, Survey, Termination, decide_node, decide_pod,
        decide_policy, drained_until, survey,
    },
};

use super::{
    Repairs,
    store::Store,
    subjects::{Key, PodSubject},
    wire::SeenOwner,
};

/// What was computed for a policy, and for how long it holds.
#[derive(Debug)]
pub(super) struct Surveyed {
    pub(super) generation: u64,
    pub(super) at: Timestamp,
    pub(super) survey: Arc<Survey>,
}

/// What judging remembers.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) surveys: BTreeMap<Key, Surveyed>,
    /// Since when repairs, by the UID of their node, are not needed any more.
    pub(super) idle: BTreeMap<Uid, Timestamp>,
}

impl Repairs {
    pub(super) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Machines in the version that is served; the newest if both are.
    pub(super) fn machines(&self) -> &Store<SeenOwner> {
        let [new, old] = &self.machines;
        if new.is_not_served() { old } else { new }
    }

    /// True if nothing is missing that would make a verdict another one.
    pub(super) fn is_known(&self) -> bool {
        let awaited = self.pools.is_awaited() || self.claims.is_awaited() || self.machines().is_awaited();
        self.nodes_listed && self.policies.is_settled() && !awaited
    }

    /// The backend that repairs a node.
    pub(super) fn backend(&self, node: &NodeView) -> Backend {
        if let Some(why) = self.claims.unknown() {
            return Backend::Missing(format!("NodeClaims cannot be read: {why}"));
        }
        let uids = self.by_provider.get(&*node.provider_id).filter(|_| !node.provider_id.is_empty());
        let mut claims = uids.into_iter().flatten().filter_map(|uid| self.claims.get(uid));
        match (claims.next(), claims.next()) {
            (Some(claim), None) if claim.is_of(node) => return Backend::Claim(claim.view.clone()),
            (Some(claim), None) => {
                return Backend::Missing(format!("{} stands for another node", claim.view.object));
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
        let Some(machine) = node.machine.as_deref() else { return Backend::Node };
        let (namespace, name) = machine;
        if let Some(why) = self.machines().unknown() {
            return Backend::Missing(format!("Machines cannot be read: {why}"));
        }
        let is_it = |it: &&SeenOwner| {
            it.view.object.namespace.as_deref() == Some(namespace) && it.view.object.name == *name
        };
        match self.machines().values().find(is_it) {
            Some(found) if found.node.as_ref() == Some(&node.node.name) => {
                Backend::Machine(found.view.clone())
            }
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
            left: self.residents.left(&node.node.name),
        }
    }

    /// Pools that have trouble to get new machines, and when that changes by itself.
    fn launches(&self, now: Timestamp) -> (BTreeMap<String, LaunchTrouble>, Option<Timestamp>) {
        let timeout = self.settings.launch_timeout;
        let (mut troubles, mut changes): (BTreeMap<String, LaunchTrouble>, Option<Timestamp>) =
            Default::default();
        for owner in self.claims.values().chain(self.machines().values()) {
            let pool = &owner.view.pool;
            if owner.is_up || owner.view.deleting || pool.is_empty() {
                continue;
            }
            let Some(created) = owner.created else { continue };
            let late = created.saturating_add(timeout).unwrap_or(Timestamp::MAX);
            if now < late {
                changes = changes.into_iter().chain([late]).min();
                continue;
            }
            let what = format!("{} was created at {created} and has no node", owner.view.object);
            troubles.entry(pool.clone()).or_insert(LaunchTrouble { what, until: None });
        }
        for (pool, at) in &self.lost_launches {
            let until = at.saturating_add(timeout).unwrap_or(Timestamp::MAX);
            if now < until {
                changes = changes.into_iter().chain([until]).min();
                let what = format!("a machine went at {at} before it became a node");
                troubles.entry(pool.clone()).or_insert(LaunchTrouble { what, until: Some(until) });
            }
        }
        (troubles, changes)
    }

    /// The state of a policy, which is computed anew if anything that it rests on has changed.
    pub(super) fn survey(&self, key: &Key, policy: &Policy, now: Timestamp) -> Arc<Survey> {
        let mut cache = self.cache();
        let known = cache.surveys.get(key).filter(|known| {
            let is_over = known.survey.changes_at.is_some_and(|at| at <= now);
            known.generation == self.generation && known.at <= now && !is_over
        });
        if let Some(known) = known {
            return known.survey.clone();
        }
        let (launches, changes) = self.launches(now);
        let members = self.members.get(key).into_iter().flatten().filter_map(|name| self.nodes.get(name));
        let scope = Scope {
            policy,
            members: members.map(|node| self.member(node)).collect(),
            launches: &launches,
            is_gone: &|repair| self.is_gone(repair),
            is_left_alone: &|repair| self.is_left_alone(key, repair),
            idle: &cache.idle,
            settings: &self.settings,
        };
        let mut found = survey(&scope, now);
        found.changes_at = found.changes_at.into_iter().chain(changes).min();
        for repair in &policy.status.repairs {
            if found.idle.contains(&repair.uid) {
                cache.idle.entry(repair.uid.clone()).or_insert(now);
            } else {
                cache.idle.remove(&repair.uid);
            }
        }
        self.pods.want(key, &found.to_count);
        self.metrics.show(&policy.name(), &found, policy.status.repairs.len());
        let survey = Arc::new(found);
        let surveyed = Surveyed { generation: self.generation, at: now, survey: survey.clone() };
        cache.surveys.insert(key.clone(), surveyed);
        survey
    }

    /// True if neither the node nor the owner of a repair is there any more.
    fn is_gone(&self, repair: &Repair) -> bool {
        let owner_is_gone = |owner: &Uid| {
            let known = [&self.claims, &self.machines[0], &self.machines[1]];
            let is_there = known.iter().any(|store| store.get(owner).is_some());
            !is_there && self.claims.is_settled() && self.machines().is_settled()
        };
        self.nodes_listed
            && !self.uids.contains_key(&repair.uid)
            && repair.owner.as_ref().is_none_or(owner_is_gone)
    }

    /// True if the node of a repair is there, is not being deleted, and is not a node of the policy any more.
    fn is_left_alone(&self, key: &Key, repair: &Repair) -> bool {
        let node = self.uids.get(&repair.uid).and_then(|name| self.nodes.get(name));
        node.is_some_and(|node| {
            self.assigned.get(&node.node.name) != Some(key) && !self.member(node).is_deleting()
        })
    }

    pub(super) fn judge_node(&self, name: &NodeName, now: Timestamp) -> Option<Judgement<NodeWhy, Step>> {
        let node = self.nodes.get(name)?;
        if !self.enabled || !self.is_known() {
            let why = if self.enabled { NodeWhy::NotListed } else { NodeWhy::Disabled };
            return Some(Judgement { verdict: Verdict::Ignore(why), findings: Vec::new() });
        }
        Some(self.in_scene(node, now, |scene| decide_node(scene, &self.settings, now)))
    }

    /// A node with all that its verdict rests on.
    pub(super) fn in_scene<T>(&self, node: &NodeView, now: Timestamp, look: impl FnOnce(&Scene<'_>) -> T) -> T {
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
        look(&Scene { member: self.member(node), policy, survey: survey.as_deref(), place, braked })
    }

    pub(super) fn judge_pod(&self, subject: &PodSubject, now: Timestamp) -> Option<Judgement<PodWhy, Step>> {
        let pod = self.residents.pod(subject)?;
        let place = match (self.residents.grave(&subject.node), self.nodes.get(&subject.node)) {
            (Some(grave), node) => {
                let store = if grave.owner.kind == NODE_CLAIM { &self.claims } else { self.machines() };
                let is_there = store.get(&grave.owner.uid).is_some();
                // Of a kind that is not served, or cannot be read, nobody knows what is there.
                let is_known = store.is_listed();
                PodPlace::Replaced {
                    grave: grave.clone(),
                    node_is_there: node.is_some() || !self.nodes_listed,
                    owner_is_there: is_there || !is_known,
                }
            }
            (None, Some(node)) => {
                let is_judged = self.enabled && self.is_known();
                let drained = |scene: &Scene<'_>| drained_until(scene, &self.settings, now);
                let until = is_judged.then(|| self.in_scene(node, now, drained)).flatten();
                PodPlace::Drained { node: node.node.clone(), until }
            }
            (None, None) => return None,
        };
        Some(decide_pod(pod, &place, self.residents.refusal(&subject.pod.uid), now))
    }

    /// The nodes whose pods are evicted one by one, or will be.
    pub(super) fn drained(&self) -> BTreeSet<NodeName> {
        let policies = self.policies.values().chain(self.pool_policies());
        let graceful = policies.filter(|policy| matches!(policy.termination, Termination::Graceful(_)));
        let nodes = graceful
            .flat_map(|policy| &policy.status.repairs)
            .filter_map(|repair| self.nodes.get(self.uids.get(&repair.uid)?));
        let drained =
            nodes.filter(|node| node.unschedulable && !node.deleting && self.backend(node) == Backend::Node);
        drained.map(|node| node.node.name.clone()).collect()
    }

    pub(super) fn judge_policy(&self, key: &Key, now: Timestamp) -> Option<Judgement<PolicyWhy, Step>> {
        let policy = self.policy(key)?;
        if !self.is_known() {
            let verdict = Verdict::Ignore(PolicyWhy::NotListed);
            return Some(Judgement { verdict, findings: Vec::new() });
        }
        let survey = policy.defects.is_empty().then(|| self.survey(key, policy, now));
        let overlap =
            self.overlaps.get(key).and_then(|nodes| Some((nodes.len(), nodes.values().next()?.clone())));
        let written = self.written.get(key).copied();
        let pool_of = |repair: &Repair| {
            let owner = repair.owner.as_ref().and_then(|uid| self.claims.get(uid));
            let node = self.nodes.get(&repair.node);
            let pool = repair.pool.as_deref().or(owner.map(|it| it.view.pool.as_str()));
            let pool = pool.or(node.and_then(NodeView::pool))?;
            self.pool(pool).map(|pool| pool.view.object.clone())
        };
        let scene = PolicyScene { policy, survey: survey.as_deref(), overlap, written, pool_of: &pool_of };
        Some(decide_policy(&scene, now))
    }
}
