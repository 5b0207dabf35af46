//! The limits of a policy, asked about one node.

use jiff::Timestamp;

use super::action::Action;
use super::holds::Hold;
use super::outages::Outage;
use super::policy::Policy;
use super::progress::kind_of;
use super::relapse::PoolCondition;
use super::sickness::Sick;
use super::status::Repair;
use super::survey::{Member, Survey};
use super::views::Backend;
use crate::moments::after;

/// A repair that limits are asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The node.
    pub member: &'a Member<'a>,
    /// Its sickness.
    pub sick: &'a Sick,
    /// What would be done.
    pub action: Action,
    /// The repair as it is written down.
    pub repair: Option<&'a Repair>,
}

impl Asked<'_> {
    /// True if something was done to the node already, so that it is not held any more for others.
    fn has_begun(&self) -> bool {
        let is_prepared = self.member.node.is_cordoned_by_us() || self.member.prepared().is_some();
        self.member.is_deleting() || self.repair.is_some() && is_prepared
    }

    fn pool_condition(&self) -> PoolCondition {
        (self.member.pool().to_owned(), self.sick.kind().to_owned())
    }
}

/// A group of which one node at a time is repaired.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SingleFile {
    Policy,
    Zone(String),
    Pool(PoolCondition),
    Relapse(PoolCondition),
}

impl SingleFile {
    /// The code of the hold of all others.
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
    /// What holds every node of the policy.
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

    /// True if more nodes are past their toleration, or were until lately, than the policy's limit.
    pub(super) fn has_too_many(&self) -> bool {
        self.unhealthy > 0 && self.unhealthy + self.settling > self.limit
    }

    /// What holds a node that is due, besides the budget.
    pub fn hold(&self, policy: &Policy, asked: &Asked<'_>, now: Timestamp) -> Option<Hold> {
        if policy.paused {
            return Some(Hold::Paused);
        }
        if self.has_too_many() {
            // A limit of nothing is a person's word that nothing is repaired.
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

    /// The outage, if it holds this node, and when it does not any more.
    fn holds(
        &self,
        outage: &Outage,
        asked: &Asked<'_>,
        now: Timestamp,
    ) -> Option<(Outage, Option<Timestamp>)> {
        self.waits(outage.busy, outage.settling > 0, asked, now).map(|ends| (*outage, ends))
    }

    /// How long a node that is held with others waits, if it does. One that was held for long enough has its turn when no other one of them
    /// is under repair. While others heal, the cause passes by itself, and no turn begins.
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

    /// The hold of a pool in which replacements do not help. The node that is tried again, and one to which something was done
    /// already, are not held.
    pub(super) fn held_by_relapse(&self, asked: &Asked<'_>, now: Timestamp) -> Option<Hold> {
        let key = asked.pool_condition();
        let relapse = self.relapses.get(&key).filter(|_| asked.action == Action::Replace)?;
        let is_tried = asked.repair.is_some_and(|repair| relapse.tried == Some(repair.since));
        // A turn that was given before does not become the one that is tried again.
        let is_new = asked.repair.is_none_or(|repair| self.picks.contains(repair));
        let has_turn = is_new && relapse.again <= now && !relapse.busy;
        if is_tried || has_turn || asked.has_begun() {
            return None;
        }
        let (pool, condition) = key;
        let until = Some(relapse.again).filter(|again| now < *again);
        Some(Hold::RepairsDoNotHelp { pool, condition, sick: relapse.sick, until })
    }

    /// The groups to which a node belongs of which one node at a time is repaired.
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

    /// Why a node that is due and not held has no turn.
    pub fn budget_hold(&self) -> Option<Hold> {
        (self.used >= self.allowed).then_some(Hold::BudgetExhausted {
            used: self.used,
            allowed: self.allowed,
            until: self.budget_until,
        })
    }

    /// Marks the outages and relapses in which a node is under repair, by its zone and pool. A node that is gone, while its machine
    /// is not, may be of any zone.
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
