//! Surveys of policies: computed once for all changes that arrived meanwhile, and not for each decision that depends on
//! them.

pub(super) mod cache;

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use salvor_recovery::{
    ids::Uid,
    repair::{LaunchTrouble, Policy, Repair, Scope, Survey, survey},
};

use self::cache::{Cache, Surveyed};
use super::{Repairs, store::owners::SeenOwner, subjects::Key};

impl Repairs {
    pub(super) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pools that have trouble launching machines, and when that changes by itself.
    fn launches(&self, now: Timestamp) -> (BTreeMap<String, LaunchTrouble>, Option<Timestamp>) {
        let timeout = self.settings.launch_timeout;
        let (mut troubles, mut changes): (BTreeMap<String, LaunchTrouble>, Option<Timestamp>) =
            Default::default();
        for owner in self.claims.values().chain(self.machines().values()) {
            let pool = &owner.pool;
            if owner.is_up || owner.deleting().is_some() || pool.is_empty() {
                continue;
            }
            let Some(created) = owner.created else { continue };
            let late = created.saturating_add(timeout).unwrap_or(Timestamp::MAX);
            if now < late {
                changes = changes.into_iter().chain([late]).min();
                continue;
            }
            let what = format!("{} was created at {created} and has no node", owner.object());
            troubles.entry(pool.to_string()).or_insert(LaunchTrouble { what, until: None });
        }
        for (pool, at) in &self.lost_launches {
            let until = at.saturating_add(timeout).unwrap_or(Timestamp::MAX);
            if now < until {
                changes = changes.into_iter().chain([until]).min();
                let what = format!("a machine went at {at} before it became a node");
                troubles.entry(pool.to_string()).or_insert(LaunchTrouble { what, until: Some(until) });
            }
        }
        (troubles, changes)
    }

    /// The survey of a policy, computed again if anything that it depends on has changed.
    pub(super) fn survey(&self, key: &Key, policy: &Policy, now: Timestamp) -> Arc<Survey> {
        let mut cache = self.cache();
        if let Some(known) = cache.known(key, self.generation, now) {
            return known;
        }
        let (launches, changes) = self.launches(now);
        let nodes = self.members.get(key).into_iter().flatten().filter_map(|name| self.node(name));
        let scope = Scope {
            policy,
            launches: &launches,
            is_gone: &|repair| self.is_gone(repair),
            owner_deleting: &|repair| self.owner(repair.owner.as_ref()?)?.deleting(),
            is_left_alone: &|repair| self.is_left_alone(key, repair),
            idle: &cache.idle,
            settings: &self.settings,
        };
        let mut found = survey(&scope, nodes.map(|node| self.member(node)), now);
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
        let generation = self.generation;
        let surveyed = Surveyed { generation, at: now, survey: survey.clone(), woken: false };
        cache.surveys.insert(key.clone(), surveyed);
        #[cfg(test)]
        {
            cache.made += 1;
        }
        survey
    }

    /// True if neither the node nor the owner of a repair exists any more.
    fn is_gone(&self, repair: &Repair) -> bool {
        let owner_is_gone = |owner: &Uid| {
            self.owner(owner).is_none() && self.claims.is_settled() && self.machines().is_settled()
        };
        self.nodes_listed
            && !self.uids.contains_key(&repair.uid)
            && repair.owner.as_ref().is_none_or(owner_is_gone)
    }

    fn owner(&self, uid: &Uid) -> Option<&SeenOwner> {
        let known = [&self.claims, &self.machines[0], &self.machines[1]];
        known.into_iter().find_map(|store| store.get(uid))
    }

    /// True if the node of a repair exists, is not being deleted, and no longer belongs to the policy.
    fn is_left_alone(&self, key: &Key, repair: &Repair) -> bool {
        let node = self.uids.get(&repair.uid).and_then(|name| self.nodes.get(name));
        node.is_some_and(|node| {
            self.assigned.get(&node.node.name) != Some(key) && !self.member(node).is_deleting()
        })
    }
}
