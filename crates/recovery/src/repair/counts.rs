//! What is counted of all nodes of a policy. `survey.rs` fills it in, and the limits are read from it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::holds::{LaunchTrouble, Outage};
use super::member::Member;
use super::sickness::Diagnosis;
use super::status::{End, Ended, Repair, Replacements};
use crate::ids::{NodeName, Uid};

/// The name of a pool, and the type of a condition.
pub type PoolCondition = (String, String);

#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub nodes: usize,
    /// Nodes that are not sick.
    pub healthy: usize,
    /// Sick nodes whose toleration is not over.
    pub waiting: usize,
    /// Nodes past their toleration with a veto.
    pub vetoed: usize,
    /// Nodes with a repair in the status for which nothing more can be done.
    pub given_up: usize,
    /// Nodes whose repair is blocked, by the code of the hold.
    pub held: BTreeMap<&'static str, usize>,
    pub due: BTreeSet<NodeName>,
    /// Nodes that are initialized and not being deleted.
    pub base: usize,
    /// Nodes of `base` that are past their toleration and not given up.
    pub unhealthy: usize,
    /// Nodes that were past their toleration and healed recently.
    pub settling: usize,
    /// When the settling nodes stop counting, unless more nodes heal.
    pub settled_at: Option<Timestamp>,
    /// The limit for `unhealthy` and `settling` together.
    pub limit: usize,
    /// What blocks repairs that have begun, as the conditions of their nodes report it: one entry for each node.
    pub begun_and_held: Vec<String>,
    /// Zones whose nodes are sick with a common cause.
    pub zones: BTreeMap<String, Outage>,
    /// Pools and condition types whose nodes are sick with a common cause.
    pub pools: BTreeMap<PoolCondition, Outage>,
    /// How long after its toleration a node stays blocked because of its zone or pool, or because too many nodes are
    /// sick.
    pub outage_timeout: Option<SignedDuration>,
    /// Pools and condition types for which replacements do not help.
    pub relapses: BTreeMap<PoolCondition, Relapse>,
    /// The last replacements, including those that begin now.
    pub replacements: Vec<Replacements>,
    /// Pools that fail to get new machines.
    pub launches: BTreeMap<String, LaunchTrouble>,
    /// The number of nodes that may be under repair at once.
    pub allowed: usize,
    /// The number of nodes that are under repair.
    pub used: usize,
    /// When a schedule changes the budget.
    pub budget_until: Option<Timestamp>,
    /// Repairs that begin now.
    pub picks: Vec<Repair>,
    /// Repairs that are over.
    pub over: Vec<Ended>,
    /// Repairs that never began and are dropped: no longer needed, or their turn has lapsed.
    pub released: Vec<Repair>,
    /// Repairs that are not needed now, or whose turn has lapsed.
    pub idle: BTreeSet<Uid>,
    /// Nodes whose pods must be counted before the turns can be decided.
    pub to_count: BTreeSet<NodeName>,
    /// When the result changes without any event.
    pub changes_at: Option<Timestamp>,
}

impl Survey {
    pub(super) fn wake(&mut self, at: Timestamp, now: Timestamp) {
        if now < at {
            self.changes_at = Some(self.changes_at.map_or(at, |before| before.min(at)));
        }
    }

    /// Repairs that are over and replaced or rebooted their machine.
    pub fn repaired(&self) -> usize {
        let is_repaired = |ended: &&Ended| match ended.end {
            End::Replaced | End::Rebooted => true,
            End::NodeGone => false,
        };
        self.over.iter().filter(is_repaired).count()
    }
}

/// Replacements in a pool that do not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relapse {
    /// The number of new nodes that are sick.
    pub sick: usize,
    /// When one more node is tried.
    pub again: Timestamp,
    /// When the last retry began, if there was one.
    pub(super) tried: Option<Timestamp>,
    /// True if a node of the pool is under repair for this condition.
    pub busy: bool,
}

#[derive(Default)]
pub(super) struct Counts<'a> {
    /// Initialized nodes that are not being deleted, by zone. Nodes that boot or are being deleted say nothing about
    /// their zone or pool.
    pub(super) zones: BTreeMap<&'a str, usize>,
    /// The same by pool.
    pub(super) pools: BTreeMap<String, usize>,
    /// Nodes that have been ready for pods.
    pub(super) initialized: usize,
}

impl<'a> Counts<'a> {
    pub(super) fn count(
        &mut self,
        survey: &mut Survey,
        member: &Member<'a>,
        diagnosis: &Diagnosis,
        is_given_up: bool,
        now: Timestamp,
    ) {
        let is_sick = diagnosis.sick.is_some();
        survey.nodes += 1;
        match &diagnosis.sick {
            None => survey.healthy += 1,
            Some(sick) => survey.wake(sick.deadline, now),
        }
        diagnosis.resets_at.into_iter().for_each(|at| survey.wake(at, now));
        survey.waiting += usize::from(is_sick && !diagnosis.is_due(now));
        self.initialized += usize::from(!diagnosis.starting);
        if !diagnosis.starting && !member.is_deleting() {
            survey.base += 1;
            survey.unhealthy += usize::from(diagnosis.is_due(now) && !is_given_up);
            *self.zones.entry(&member.node.zone).or_default() += 1;
            match self.pools.get_mut(member.pool()) {
                Some(nodes) => *nodes += 1,
                None => {
                    self.pools.insert(member.pool().to_owned(), 1);
                }
            }
        }
    }
}
