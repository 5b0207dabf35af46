//! Applies the limits of a policy to one node.

use jiff::Timestamp;

use super::action::Action;
use super::counts::{PoolCondition, Survey};
use super::holds::{Hold, Outage};
use super::member::Member;
use super::policy::Policy;
use super::progress::kind_of;
use super::sickness::Sick;
use super::status::Repair;
use super::views::Backend;
use crate::moments::after;

/// A repair for which the limits are checked.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub member: &'a Member<'a>,
    pub sick: &'a Sick,
    pub action: Action,
    /// The entry in the policy's status.
    pub repair: Option<&'a Repair>,
}

impl Asked<'_> {
    /// True if something was already done to the node. Sickness of other nodes does not block it any more.
    fn has_begun(&self) -> bool {
        let is_prepared = self.member.node.is_cordoned_by_us() || self.member.prepared().is_some();
        self.member.is_deleting() || self.repair.is_some() && is_prepared
    }

    fn pool_condition(&self) -> PoolCondition {
        (self.member.pool().to_owned(), self.sick.kind().to_owned())
    }
}

/// A group of nodes in which one node at a time is repaired.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SingleFile {
    Policy,
    Zone(String),
    Pool(PoolCondition),
    Relapse(PoolCondition),
}

impl SingleFile {
    /// The code of the hold for all other nodes of the group.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Policy => Hold::TOO_MANY_UNHEALTHY,
            Self::Zone(_) => Hold::ZONE_OUTAGE,
            Self::Pool(_) => Hold::POOL_OUTAGE,
            Self::Relapse(_) => Hold::REPAIRS_DO_NOT_HELP,
        }
    }
}

impl Survey {
    /// The hold that applies to every node of the policy.
    pub fn held_as_a_whole(&self, policy: &Policy) -> Option<Hold> {
        if policy.paused {
            return Some(Hold::Paused);
        }
        self.has_too_many().then(|| self.too_many(policy, None))
    }

    fn too_many(&self, policy: &Policy, ends: Option<Timestamp>) -> Hold {
        Hold::TooManyUnhealthy {
            unhealthy: self.unhealthy,
            settling: self.settling,
            limit: self.limit,
            nodes: self.base,
            setting: policy.unhealthy_limit,
            settled_at: self.settled_at.filter(|_| self.unhealthy <= self.limit),
            ends,
            busy: self.used > 0,
        }
    }

    /// True if the nodes past their toleration, together with those that healed recently, exceed the policy's limit.
    pub(super) fn has_too_many(&self) -> bool {
        self.unhealthy > 0 && self.unhealthy + self.settling > self.limit
    }

    /// The hold for a node that is due. The budget is checked elsewhere.
    pub fn hold(&self, policy: &Policy, asked: &Asked<'_>, now: Timestamp) -> Option<Hold> {
        if policy.paused {
            return Some(Hold::Paused);
        }
        if self.has_too_many() {
            // A limit of zero is a person's decision that nothing is repaired, so it never times out.
            let is_for_ever = policy.unhealthy_limit.is_nothing();
            let waits = if is_for_ever {
                Some(None)
            } else {
                self.waits(self.used > 0, self.settling > 0, asked, now)
            };
            if let Some(ends) = waits {
                return Some(self.too_many(policy, ends));
            }
        }
        let member = asked.member;
        let zone = &*member.node.zone;
        if let Some((outage, ends)) = self.zones.get(zone).and_then(|it| self.holds(it, asked, now)) {
            return Some(Hold::ZoneOutage { zone: zone.to_owned(), outage, ends });
        }
        let key = asked.pool_condition();
        if let Some((outage, ends)) = self.pools.get(&key).and_then(|it| self.holds(it, asked, now)) {
            let (pool, condition) = key;
            return Some(Hold::PoolOutage { pool, condition, outage, ends });
        }
        if let Some((pool, trouble)) = self.launches.get_key_value(member.pool()) {
            return Some(Hold::LaunchFailures { pool: pool.clone(), trouble: trouble.clone() });
        }
        if let Some(hold) = self.held_by_relapse(asked, now) {
            return Some(hold);
        }
        if let Some(actor) = member.node.other_actor {
            return Some(Hold::AnotherRecovery(actor));
        }
        if let Backend::Missing(why) = &member.backend {
            return Some(Hold::NoBackend(why.clone()));
        }
        let refused = member.refused.filter(|refusal| now < refusal.until);
        refused.map(|refusal| Hold::BackendFailed { words: refusal.words.clone(), until: refusal.until })
    }

    /// The outage if it blocks this node, and when it stops doing so.
    fn holds(
        &self,
        outage: &Outage,
        asked: &Asked<'_>,
        now: Timestamp,
    ) -> Option<(Outage, Option<Timestamp>)> {
        self.waits(outage.busy, outage.settling > 0, asked, now).map(|ends| (*outage, ends))
    }

    /// How long a node waits because of other sick nodes; none if it does not wait. After the timeout it gets its turn
    /// once no other node of the group is under repair. While others heal, the cause passes by itself, and no turn begins.
    fn waits(
        &self,
        busy: bool,
        healing: bool,
        asked: &Asked<'_>,
        now: Timestamp,
    ) -> Option<Option<Timestamp>> {
        let ends = self.outage_timeout.map(|timeout| after(asked.sick.overdue_from(), timeout));
        let is_over = ends.is_some_and(|ends| ends <= now);
        let has_turn = is_over && (asked.repair.is_some() || !(busy || healing));
        (!has_turn).then_some(ends.filter(|_| !is_over))
    }

    /// The hold for a pool in which replacements do not help. It does not apply to the node that is tried again, nor to
    /// a node to which something was already done.
    pub(super) fn held_by_relapse(&self, asked: &Asked<'_>, now: Timestamp) -> Option<Hold> {
        let key = asked.pool_condition();
        let relapse = self.relapses.get(&key).filter(|_| asked.action == Action::Replace)?;
        let is_tried = asked.repair.is_some_and(|repair| relapse.tried == Some(repair.since));
        // A repair that already had its turn does not become the next try.
        let is_new = asked.repair.is_none_or(|repair| self.picks.contains(repair));
        let has_turn = is_new && relapse.again <= now && !relapse.busy;
        if is_tried || has_turn || asked.has_begun() {
            return None;
        }
        let (pool, condition) = key;
        let until = Some(relapse.again).filter(|again| now < *again);
        Some(Hold::RepairsDoNotHelp { pool, condition, sick: relapse.sick, until })
    }

    /// The groups of this node in which one node at a time is repaired.
    pub(super) fn single_files(&self, asked: &Asked<'_>) -> Vec<SingleFile> {
        let key = asked.pool_condition();
        let zone = self.zones.get_key_value(&*asked.member.node.zone);
        let zone = zone.map(|(zone, _)| SingleFile::Zone(zone.clone()));
        let pool = self.pools.contains_key(&key).then(|| SingleFile::Pool(key.clone()));
        let relapse = self.relapses.contains_key(&key) && asked.action == Action::Replace;
        let policy = self.has_too_many().then_some(SingleFile::Policy);
        let relapse = relapse.then_some(SingleFile::Relapse(key));
        policy.into_iter().chain(zone).chain(pool).chain(relapse).collect()
    }

    /// The reason why a node that is due and not otherwise blocked has no turn.
    pub fn budget_hold(&self) -> Option<Hold> {
        (self.used >= self.allowed).then_some(Hold::BudgetExhausted {
            used: self.used,
            allowed: self.allowed,
            until: self.budget_until,
        })
    }

    /// Marks the outages and relapses that have a node under repair, by its zone and pool. If the Node is gone and its
    /// machine is not, its zone is unknown, so every zone is marked.
    pub(super) fn is_busy_with(&mut self, repair: &Repair, place: Option<(&str, &str)>) {
        for (zone, outage) in &mut self.zones {
            outage.busy |= place.is_none_or(|(of, _)| of == zone);
        }
        let is_of = |(pool, kind): &PoolCondition| {
            let of = place.map(|(_, pool)| pool).or(repair.pool.as_deref());
            kind_of(&repair.condition) == kind && of.is_none_or(|of| of == pool)
        };
        for (key, outage) in &mut self.pools {
            outage.busy |= is_of(key);
        }
        for (key, relapse) in &mut self.relapses {
            relapse.busy |= is_of(key);
        }
    }
}
