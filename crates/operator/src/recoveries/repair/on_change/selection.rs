//! Finds the policy that applies to each node, and the subjects to requeue when something changes.

use std::collections::BTreeSet;

use salvor_recovery::{
    ids::NodeName,
    repair::{NodeView, Policy},
};

use crate::{
    recoveries::repair::{
        Repairs,
        subjects::{Key, Subject, key_of},
        wire::SeenPool,
    },
    watch_set::packed::{packed, packed_set},
};

/// The policy that applies to a node, and younger ones that select it too.
struct Choice {
    key: Key,
    younger: Vec<Key>,
}

impl Choice {
    /// From the policies in order of precedence, those that select a node.
    fn of(policies: &[(Key, &Policy)], node: &NodeView) -> Option<Self> {
        let mut selecting =
            policies.iter().filter(|(_, policy)| policy.selects(&node.labels)).map(|(key, _)| key);
        let key = selecting.next()?.clone();
        let younger = selecting.filter(|key| matches!(key, Key::Policy(_))).cloned().collect();
        Some(Self { key, younger })
    }
}

impl Repairs {
    pub(crate) fn node(&self, name: &NodeName) -> Option<&NodeView> {
        self.nodes.get(name).map(Box::as_ref)
    }

    pub(crate) fn policy(&self, key: &Key) -> Option<&Policy> {
        match key {
            Key::Policy(name) => self.policies.values().find(|policy| *policy.object.name == **name),
            Key::Pool(name) => self.pool(name).and_then(|pool| pool.policy.as_ref()),
        }
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&SeenPool> {
        self.pools.values().find(|pool| pool.view.object.name == name)
    }

    /// NodePools with a block `spec.repair`.
    pub(crate) fn pool_policies(&self) -> impl Iterator<Item = &Policy> {
        self.pools.values().filter_map(|pool| pool.policy.as_ref())
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.policies.values().chain(self.pool_policies()).map(key_of).collect()
    }

    /// The policies in order of precedence: NodeRepairPolicies by age, then NodePools. One that cannot be decoded keeps
    /// the nodes that it selects, and nothing is done to them: a younger one must not take them over because of a typo.
    fn by_age(&self) -> Vec<(Key, &Policy)> {
        let mut policies: Vec<&Policy> = self.policies.values().collect();
        policies.sort_by_key(|policy| (policy.created, policy.object.name.clone()));
        policies.into_iter().chain(self.pool_policies()).map(|policy| (key_of(policy), policy)).collect()
    }

    pub(crate) fn assign(&mut self, name: &NodeName) {
        let choice = self.node(name).and_then(|node| Choice::of(&self.by_age(), node));
        self.unassign(name);
        if let Some(choice) = choice {
            self.settle(name.clone(), choice);
        }
    }

    pub(crate) fn assign_all(&mut self) {
        let policies = self.by_age();
        let chosen = |node: &NodeView| Some((node.node.name.clone(), Choice::of(&policies, node)?));
        let all: Vec<(NodeName, Choice)> = self.nodes.values().filter_map(|node| chosen(node)).collect();
        self.assigned.clear();
        self.members.clear();
        self.overlaps.clear();
        for (name, choice) in all {
            self.settle(name, choice);
        }
        packed(&mut self.assigned);
        self.members.values_mut().for_each(packed_set);
    }

    fn settle(&mut self, name: NodeName, Choice { key, younger }: Choice) {
        let (Key::Policy(older) | Key::Pool(older)) = &key;
        for other in younger {
            self.overlaps.entry(other).or_default().insert(name.clone(), older.clone());
        }
        self.members.entry(key.clone()).or_default().insert(name.clone());
        self.assigned.insert(name, key);
    }

    pub(crate) fn unassign(&mut self, name: &NodeName) {
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

    /// The subjects to requeue when something changes around a node: the node, its policy, and the nodes whose repair
    /// is blocked.
    pub(crate) fn concerned(&self, name: &NodeName) -> BTreeSet<Subject> {
        let mut woken = BTreeSet::from([Subject::Node(name.clone())]);
        if let Some(key) = self.assigned.get(name) {
            woken.extend(self.concerned_by(key));
        }
        woken
    }

    /// A policy, the nodes that have their turn, those that are due and have none, and the tracked pods.
    ///
    /// Due nodes are requeued once until the policy is surveyed again. The next of them to be decided triggers the
    /// survey, so until then all of them are still queued. A thousand changes at once requeue a thousand nodes once
    /// each.
    pub(crate) fn concerned_by(&self, key: &Key) -> BTreeSet<Subject> {
        let mut woken = BTreeSet::from([Subject::Policy(key.clone())]);
        let repairs = self.policy(key).into_iter().flat_map(|policy| &policy.status.repairs);
        woken.extend(repairs.map(|repair| Subject::Node(repair.node.clone())));
        let asleep = self.cache().wake(key);
        let due = asleep.iter().flat_map(|survey| &survey.due);
        woken.extend(due.map(|name| Subject::Node(name.clone())));
        woken.extend(self.pods_on_nodes.subjects());
        woken
    }
}
