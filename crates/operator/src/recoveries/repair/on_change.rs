//! Applies changes of nodes, policies, NodePools, NodeClaims and Machines, and finds the subjects to requeue.

pub(super) mod selection;

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use salvor_recovery::{
    ids::{NodeName, Uid},
    repair::{NodeView, Policy, diagnose},
};

use super::{
    Repairs,
    store::{Turn, owners::SeenOwner},
    subjects::{Key, Subject, key_of},
    wire::SeenPool,
};
use crate::{
    client::revision::{Revision, Told},
    engine::recovery::Recovery,
    watch_set::{feeds::OfKind, packed::packed, watch::Change},
};

impl Repairs {
    pub(super) fn see_node(
        &mut self,
        mut node: Box<NodeView>,
        told: Told,
        now: Timestamp,
    ) -> BTreeSet<Subject> {
        let name = node.node.name.clone();
        self.pods_on_nodes.node_is_there(&name);
        let mut woken = BTreeSet::new();
        let mut relabelled = true;
        if let Some(before) = self.nodes.get_mut(&name) {
            if before.node.uid == node.node.uid {
                let revision = node.resource_version.revision();
                if !told.replaces(revision, before.resource_version.revision()) {
                    return woken;
                }
                // A heartbeat requeues nothing.
                before.resource_version.clone_from(&node.resource_version);
                if *before == node {
                    return woken;
                }
                relabelled = before.labels != node.labels;
                // Share these texts with the other maps instead of keeping a second copy.
                node.node.clone_from(&before.node);
                if !relabelled {
                    node.labels.clone_from(&before.labels);
                }
                if !relabelled && self.is_only_told(&name, &node, now) {
                    let subject = Subject::Node(name.clone());
                    self.nodes.insert(name, node);
                    return BTreeSet::from([subject]);
                }
            } else {
                self.uids.remove(&before.node.uid);
            }
        }
        if relabelled {
            woken.extend(self.concerned(&name));
        }
        self.uids.insert(node.node.uid.clone(), name.clone());
        self.nodes.insert(name.clone(), node);
        if relabelled {
            self.assign(&name);
        }
        self.generation += 1;
        woken.extend(self.concerned(&name));
        woken
    }

    /// True if a known node has changed only by our own reports on it. That affects no other subject: otherwise a
    /// thousand reports would each decide the whole policy again.
    fn is_only_told(&self, name: &NodeName, node: &NodeView, now: Timestamp) -> bool {
        let Some(before) = self.node(name).filter(|before| before.is_same_but_for_us(node)) else {
            return false;
        };
        let Some(policy) = self.assigned.get(name).and_then(|key| self.policy(key)) else { return true };
        let backend = self.backend(before);
        let diagnosed =
            |node: &NodeView| diagnose(node, backend.owner(), policy, &self.settings, now).unrecorded();
        diagnosed(before) == diagnosed(node)
    }

    pub(super) fn drop_node(&mut self, uid: &Uid) -> BTreeSet<Subject> {
        let Some(name) = self.uids.remove(uid) else { return BTreeSet::new() };
        let woken = self.concerned(&name);
        if self.nodes.get(&name).is_some_and(|node| node.node.uid == *uid) {
            self.nodes.remove(&name);
            self.unassign(&name);
        }
        self.refused.remove(uid);
        self.silent.remove(uid);
        self.braked.remove(uid);
        self.pods.forget(&name);
        self.generation += 1;
        woken
    }

    #[expect(clippy::vec_box, reason = "the map keeps the boxes")]
    pub(super) fn list_nodes(
        &mut self,
        change: Vec<Box<NodeView>>,
        new_history: bool,
        revision: Revision,
    ) -> BTreeSet<Subject> {
        let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
        if new_history {
            self.nodes.clear();
            self.uids.clear();
        }
        let present: BTreeSet<&Uid> = change.iter().map(|node| &node.node.uid).collect();
        let gone: Vec<Uid> = self.uids.keys().filter(|uid| !present.contains(*uid)).cloned().collect();
        for uid in gone {
            self.drop_node(&uid);
        }
        for node in change {
            let name = node.node.name.clone();
            self.pods_on_nodes.node_is_there(&name);
            let known = self.nodes.get(&name).filter(|known| known.node.uid == node.node.uid);
            let is_later = known.is_none_or(|known| {
                Told::ByListAt(revision)
                    .replaces(node.resource_version.revision(), known.resource_version.revision())
            });
            if is_later {
                self.uids.insert(node.node.uid.clone(), name.clone());
                self.nodes.insert(name, node);
            }
        }
        packed(&mut self.nodes);
        packed(&mut self.uids);
        self.nodes_listed = true;
        self.assign_all();
        self.generation += 1;
        woken.extend(self.subjects());
        woken
    }

    pub(super) fn on_policies(&mut self, news: OfKind<Policy>) -> BTreeSet<Subject> {
        // Even the watch event of our own write requeues the affected subjects.
        let told = match &news {
            OfKind::Change(Change::Applied(policy)) => Some(key_of(policy)),
            OfKind::Change(Change::Gone(_) | Change::Reset { .. }) | OfKind::Served(_) | OfKind::Lost(_) => {
                None
            }
        };
        let Turn { before, changed, gone, all } = self.policies.on_change(news);
        let after: Vec<&Policy> = changed.iter().filter_map(|uid| self.policies.get(uid)).collect();
        let same_spec = |after: &&Policy| {
            before.iter().any(|it| it.object == after.object && it.generation == after.generation)
        };
        let is_same = !all && gone.is_empty() && after.iter().all(same_spec);
        for policy in before.iter().filter(|policy| gone.contains(&policy.object.uid)) {
            self.metrics.forget(&policy.name());
            self.written.remove(&key_of(policy));
        }
        self.select_again(told.as_ref(), is_same)
    }

    pub(super) fn on_pools(&mut self, news: OfKind<SeenPool>) -> BTreeSet<Subject> {
        let told = match &news {
            OfKind::Change(Change::Applied(pool)) => Some(Key::Pool(pool.view.object.name.as_str().into())),
            OfKind::Change(Change::Gone(_) | Change::Reset { .. }) | OfKind::Served(_) | OfKind::Lost(_) => {
                None
            }
        };
        let Turn { before, changed, gone, all } = self.pools.on_change(news);
        let after: Vec<&SeenPool> = changed.iter().filter_map(|uid| self.pools.get(uid)).collect();
        let generation = |pool: &SeenPool| pool.policy.as_ref().map(|policy| policy.generation);
        // Karpenter often writes the status of a NodePool, which requeues nothing.
        let same_spec = |after: &&SeenPool| {
            before.iter().any(|it| it.view == after.view && generation(it) == generation(after))
        };
        let is_same = !all && gone.is_empty() && after.iter().all(same_spec);
        if is_same && after.iter().all(|pool| pool.policy.is_none()) {
            return BTreeSet::new();
        }
        for policy in before
            .iter()
            .filter(|pool| gone.contains(&pool.view.object.uid))
            .filter_map(|it| it.policy.as_ref())
        {
            self.metrics.forget(&policy.name());
            self.written.remove(&key_of(policy));
        }
        self.select_again(told.as_ref(), is_same)
    }

    /// Policies have changed. Returns the subjects to requeue.
    fn select_again(&mut self, told: Option<&Key>, same_spec: bool) -> BTreeSet<Subject> {
        self.generation += 1;
        if same_spec {
            return told.map(|key| self.concerned_by(key)).unwrap_or_default();
        }
        let mut woken: BTreeSet<Subject> = self.subjects().into_iter().collect();
        self.assign_all();
        woken.extend(self.subjects());
        woken
    }

    pub(super) fn on_claims(&mut self, news: OfKind<SeenOwner>, now: Timestamp) -> BTreeSet<Subject> {
        let turn = self.claims.on_change(news);
        if turn.is_nothing() {
            return BTreeSet::new();
        }
        self.note_lost(&turn, now);
        self.generation += 1;
        if turn.all {
            return self.subjects().into_iter().collect();
        }
        let changed = turn.changed.iter().filter_map(|uid| self.claims.get(uid));
        let of: BTreeSet<&str> = turn.before.iter().chain(changed).map(|it| &*it.called).collect();
        let pools: BTreeSet<&str> = turn.before.iter().map(|it| &*it.pool).collect();
        let is_theirs = |node: &NodeView| {
            of.contains(&*node.provider_id)
                || node.progress.is_some() && node.pool().is_some_and(|pool| pools.contains(pool))
        };
        let theirs = self.nodes.values().filter(|node| is_theirs(node));
        let names: Vec<NodeName> = theirs.map(|node| node.node.name.clone()).collect();
        let mut woken: BTreeSet<Subject> = names.iter().flat_map(|name| self.concerned(name)).collect();
        // The node of a repair may be gone before its owner is.
        woken.extend(self.keys_of_owners(&turn.gone).into_iter().map(Subject::Policy));
        woken.extend(self.keys_in_pools(&turn).into_iter().map(Subject::Policy));
        woken
    }

    /// Policies with nodes in the pools of changed owners: a new machine may end a block.
    fn keys_in_pools(&self, turn: &Turn<SeenOwner>) -> BTreeSet<Key> {
        let changed = turn.changed.iter().filter_map(|uid| self.claims.get(uid));
        let pools: BTreeSet<&str> = turn.before.iter().chain(changed).map(|it| &*it.pool).collect();
        let in_pool = |key: &&Key| {
            let nodes = self.members.get(key).into_iter().flatten().filter_map(|name| self.node(name));
            nodes.into_iter().any(|node| node.pool().is_some_and(|pool| pools.contains(pool)))
        };
        self.members.keys().filter(in_pool).cloned().collect()
    }

    pub(super) fn on_machines(
        &mut self,
        version: usize,
        news: OfKind<SeenOwner>,
        now: Timestamp,
    ) -> BTreeSet<Subject> {
        let turn = self.machines[version].on_change(news);
        if turn.is_nothing() {
            return BTreeSet::new();
        }
        self.note_lost(&turn, now);
        self.generation += 1;
        if turn.all {
            return self.subjects().into_iter().collect();
        }
        let changed = turn.changed.iter().filter_map(|uid| self.machines[version].get(uid));
        let names = turn.before.iter().chain(changed).map(|it| &it.node).filter(|name| !name.is_empty());
        let names: BTreeSet<&NodeName> = names.collect();
        let mut woken: BTreeSet<Subject> = names.iter().flat_map(|name| self.concerned(name)).collect();
        woken.extend(self.keys_of_owners(&turn.gone).into_iter().map(Subject::Policy));
        let changed = turn.changed.iter().filter_map(|uid| self.machines[version].get(uid));
        let launches = turn.before.iter().chain(changed).filter(|it| !it.is_up);
        let pools: BTreeSet<Arc<str>> = launches.map(|it| it.pool.clone()).collect();
        woken.extend(self.concerned_in_machine_pools(&pools));
        woken
    }

    /// The subjects to requeue when a Machine of these pools came up, or was deleted before it did: that may end a
    /// block.
    fn concerned_in_machine_pools(&self, pools: &BTreeSet<Arc<str>>) -> BTreeSet<Subject> {
        if pools.is_empty() {
            return BTreeSet::new();
        }
        let is_in_them =
            |node: &NodeView| self.backend(node).owner().is_some_and(|owner| pools.contains(&owner.pool));
        let has_nodes = |key: &&Key| {
            let nodes = self.members.get(key).into_iter().flatten().filter_map(|name| self.node(name));
            nodes.into_iter().any(is_in_them)
        };
        let keys: Vec<&Key> = self.members.keys().filter(has_nodes).collect();
        keys.into_iter().flat_map(|key| self.concerned_by(key)).collect()
    }

    fn keys_of_owners(&self, gone: &BTreeSet<Uid>) -> BTreeSet<Key> {
        let concerned = |key: &Key| {
            let repairs = self.policy(key).into_iter().flat_map(|policy| &policy.status.repairs);
            repairs.into_iter().any(|repair| repair.owner.as_ref().is_some_and(|owner| gone.contains(owner)))
        };
        self.keys().into_iter().filter(concerned).collect()
    }

    /// A NodeClaim or Machine that was deleted before its machine became a node is a failed launch.
    fn note_lost(&mut self, turn: &Turn<SeenOwner>, now: Timestamp) {
        let frees = self.frees;
        for gone in turn.before.iter().filter(|it| frees && turn.gone.contains(&it.uid)) {
            if !self.keys_of_owners(&BTreeSet::from([gone.uid.clone()])).is_empty() {
                self.pods_on_nodes.owner_is_gone(&gone.object(), now);
            }
        }
        let lost = turn.before.iter().filter(|it| turn.gone.contains(&it.uid) && !it.is_up);
        self.lost_launches.extend(lost.map(|it| (it.pool.clone(), now)));
        let keep_until =
            |at: Timestamp| at.saturating_add(self.settings.launch_timeout).unwrap_or(Timestamp::MAX);
        self.lost_launches.retain(|(_, at)| now < keep_until(*at));
    }
}
