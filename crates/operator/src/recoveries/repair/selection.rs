//! The policy that counts for each node, and those who are concerned when something changes.

use std::collections::BTreeSet;

use salvor_recovery::{ids::NodeName, repair::Policy};

use super::{
    Repairs,
    subjects::{Key, Subject},
    wire::SeenPool,
};

impl Repairs {
    pub(super) fn policy(&self, key: &Key) -> Option<&Policy> {
        match key {
            Key::Policy(name) => self.policies.values().find(|policy| policy.object.name == *name),
            Key::Pool(name) => self.pool(name).and_then(|pool| pool.policy.as_ref()),
        }
    }

    pub(super) fn pool(&self, name: &str) -> Option<&SeenPool> {
        self.pools.values().find(|pool| pool.view.object.name == name)
    }

    /// NodePools with a block `spec.repair`.
    pub(super) fn pool_policies(&self) -> impl Iterator<Item = &Policy> {
        self.pools.values().filter_map(|pool| pool.policy.as_ref())
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let policies = self.policies.values().map(|policy| Key::Policy(policy.object.name.clone()));
        policies.chain(self.pool_policies().map(|pool| Key::Pool(pool.object.name.clone()))).collect()
    }

    /// The policies in the order in which they count: NodeRepairPolicies by age, then NodePools. One that cannot be read keeps the
    /// nodes that it selects, and nothing is done to them: a younger one must not take them over because of a typing error.
    fn by_age(&self) -> Vec<(Key, &Policy)> {
        let mut policies: Vec<&Policy> = self.policies.values().collect();
        policies.sort_by_key(|policy| (policy.created, policy.object.name.clone()));
        let pools = self.pool_policies();
        let policies = policies.into_iter().map(|it| (Key::Policy(it.object.name.clone()), it));
        policies.chain(pools.map(|it| (Key::Pool(it.object.name.clone()), it))).collect()
    }

    /// Finds the policy of a node.
    pub(super) fn assign(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name) else { return self.unassign(name) };
        let mut selecting =
            self.by_age().into_iter().filter(|(_, policy)| policy.selects(&node.labels)).map(|(key, _)| key);
        let first = selecting.next();
        let others: Vec<Key> = selecting.filter(|key| matches!(key, Key::Policy(_))).collect();
        self.unassign(name);
        let Some(key) = first else { return };
        let (Key::Policy(older) | Key::Pool(older)) = &key;
        for other in others {
            self.overlaps.entry(other).or_default().insert(name.clone(), older.clone());
        }
        self.members.entry(key.clone()).or_default().insert(name.clone());
        self.assigned.insert(name.clone(), key);
    }

    pub(super) fn unassign(&mut self, name: &NodeName) {
        if let Some(key) = self.assigned.remove(name)
            && let Some(members) = self.members.get_mut(&key)
        {
            members.remove(name);
        }
        for overlap in self.overlaps.values_mut() {
            overlap.remove(name);
        }
        self.overlaps.retain(|_, nodes| !nodes.is_empty());
    }

    pub(super) fn assign_all(&mut self) {
        self.assigned.clear();
        self.members.clear();
        self.overlaps.clear();
        let names: Vec<NodeName> = self.nodes.keys().cloned().collect();
        for name in names {
            self.assign(&name);
        }
    }

    /// Everybody who is concerned when something changes around a node: the node, its policy, and the nodes whose repair is held.
    pub(super) fn concerned(&self, name: &NodeName) -> BTreeSet<Subject> {
        let mut woken = BTreeSet::from([Subject::Node(name.clone())]);
        if let Some(key) = self.assigned.get(name) {
            woken.extend(self.concerned_by(key));
        }
        woken
    }

    /// A policy, the nodes that have their turn, and those that are due and have none.
    pub(super) fn concerned_by(&self, key: &Key) -> BTreeSet<Subject> {
        let mut woken = BTreeSet::from([Subject::Policy(key.clone())]);
        let repairs = self.policy(key).into_iter().flat_map(|policy| &policy.status.repairs);
        woken.extend(repairs.map(|repair| Subject::Node(repair.node.clone())));
        let cache = self.cache();
        let due = cache.surveys.get(key).into_iter().flat_map(|known| &known.survey.due);
        woken.extend(due.map(|name| Subject::Node(name.clone())));
        woken.extend(self.residents.subjects());
        woken
    }
}
