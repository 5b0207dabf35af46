//! All nodes of a policy together: how many are sick, which limit holds, and whose turn it is.
//!
//! Three numbers are kept apart. *Due* is a node past its toleration. *Unhealthy*, for the breaker, are due nodes among those that
//! are initialized and not being deleted. *Used*, for the budget, are the repairs that are written down as under way. A node that is
//! given up (vetoed, its ladder used up, or held because its machine may run) is in neither of the last two: it would freeze a small pool for ever.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::repair::{CONDITION, reasons};

use super::action::Action;
use super::holds::Hold;
use super::ladder::{Turn, turn};
use super::limits::{Asked, SingleFile};
use super::next::{Case, Next};
use super::outages::{self, Outage};
use super::policy::{Policy, UnownedNodes, allowance};
use super::relapse::{self, PoolCondition, Relapse, Replacements};
use super::sickness::{Diagnosis, Settings, Sick, diagnose};
use super::status::{End, Ended, Repair};
use super::veto::{Veto, veto};
use super::views::{Backend, Left, NodeView, OwnerView, PoolView, Refusal};
use crate::ids::{NodeName, Uid};
use crate::moments::{after, to_the_second};

/// A repair that was decided, and is not needed any more before it began, is forgotten after this time: until then a write of
/// it may still be on its way.
pub const RELEASE_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// So many repairs are under way at once at most: they are written into one object.
const MOST_AT_ONCE: usize = 500;

/// A node of a policy.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// The backend that repairs it.
    pub backend: Backend,
    /// The server's last refusal to do so.
    pub refused: Option<&'a Refusal>,
    /// The number of its pods, if anybody had to know.
    pub pods: Option<u32>,
    /// Its NodePool.
    pub pool: Option<&'a PoolView>,
    /// The pods that its drain has left, if they are known.
    pub left: Option<Left>,
}

impl Member<'_> {
    /// True if the node, or the owner of its machine, is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deleting().is_some()
    }

    /// Since when the node, or the owner of its machine, is being deleted.
    fn deleting(&self) -> Option<Timestamp> {
        self.node.deleting().into_iter().chain(self.backend.owner().and_then(|owner| owner.deleting)).min()
    }

    /// The pool that makes its replacement; empty if it has none.
    pub fn pool(&self) -> &str {
        self.backend.owner().map(|owner| &*owner.pool).or(self.node.pool()).unwrap_or_default()
    }

    /// The veto on its repair.
    pub fn veto(&self, now: Timestamp) -> Option<Veto> {
        veto(self.node, &self.backend, self.pool, now)
    }

    /// The NodeClaim, if we set the time of its forced termination and it is not being deleted, and the value that was there before.
    pub(super) fn prepared(&self) -> Option<(&OwnerView, &str)> {
        match &self.backend {
            Backend::Claim(claim) if claim.deleting.is_none() => {
                claim.termination_before.as_deref().map(|before| (claim, before))
            }
            Backend::Claim(_) | Backend::Machine(_) | Backend::Node | Backend::Missing(_) => None,
        }
    }
}

/// How far a repair that is written down has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Nothing was done yet that cannot be taken back, because something else holds it. Its turn ends at this time: others who are not
    /// held would wait for ever, and if they had turns besides, it would begin beside them.
    NotBegun { lapses_at: Timestamp },
    /// It is under way, and stuck from this time on.
    Begun { stuck_at: Timestamp },
}

impl Course {
    /// The course of a repair. The member is its node, and none if that is gone and its owner is not.
    pub(super) fn of(
        repair: &Repair,
        member: Option<&Member<'_>>,
        owner_deleting: Option<Timestamp>,
        policy: &Policy,
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        let tried = member.and_then(|member| member.node.progress.as_deref()?.tried.as_ref());
        let drained = member.filter(|member| member.backend == Backend::Node && member.node.unschedulable);
        let draining = drained.and_then(|member| member.node.progress.as_deref()?.draining_since);
        let begun_at = member.map_or(owner_deleting, Member::deleting);
        let begun_at = begun_at.or(tried.map(|tried| tried.at)).or(draining);
        let has_begun = begun_at.is_some()
            || member.is_none_or(|member| {
                let is_remediated = member.backend.owner().is_some_and(|owner| owner.remediated);
                // Nobody knows what was done to a node whose memory cannot be read.
                is_remediated || member.node.marks().damage.is_some()
            });
        // A time that lies ahead counts as now.
        let from = begun_at.map_or(repair.since, |at| at.max(repair.since)).min(now);
        let until = after(from, settings.stuck_after.saturating_add(policy.termination.grace()));
        if has_begun { Self::Begun { stuck_at: until } } else { Self::NotBegun { lapses_at: until } }
    }

    /// True if its turn is over before it began.
    pub(super) fn has_lapsed(self, now: Timestamp) -> bool {
        matches!(self, Self::NotBegun { lapses_at } if lapses_at <= now)
    }
}

/// The trouble of a pool to get new machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchTrouble {
    /// What was seen.
    pub what: String,
    /// When it is over by itself, if that is known.
    pub until: Option<Timestamp>,
}

/// All that a policy's limits depend on.
pub struct Scope<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Pools that have trouble to get new machines.
    pub launches: &'a BTreeMap<String, LaunchTrouble>,
    /// True if the node and the owner of a repair are both gone.
    pub is_gone: &'a dyn Fn(&Repair) -> bool,
    /// Since when the owner of a repair is being deleted.
    pub owner_deleting: &'a dyn Fn(&Repair) -> Option<Timestamp>,
    /// True if the node of a repair is there, is not being deleted, and is not among the members: it is selected no more.
    pub is_left_alone: &'a dyn Fn(&Repair) -> bool,
    /// Since when repairs that are under way, by the node's UID, are not needed any more.
    pub idle: &'a BTreeMap<Uid, Timestamp>,
    /// The settings.
    pub settings: &'a Settings,
}

/// The state of a policy.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Its nodes.
    pub nodes: usize,
    /// Those that are not sick.
    pub healthy: usize,
    /// Those whose toleration runs.
    pub waiting: usize,
    /// Those that are past it, and whose repair a person forbids.
    pub vetoed: usize,
    /// Those whose repair is written down, and for which nothing more can be done.
    pub given_up: usize,
    /// Those whose repair is held, by cause.
    pub held: BTreeMap<&'static str, usize>,
    /// All nodes past their toleration, by name.
    pub due: BTreeSet<NodeName>,
    /// Nodes that are initialized and not being deleted.
    pub base: usize,
    /// Those of them that are past their toleration and not given up.
    pub unhealthy: usize,
    /// Nodes that were past their toleration, and healed lately.
    pub settling: usize,
    /// When those count no more, unless more nodes heal.
    pub settled_at: Option<Timestamp>,
    /// The limit of both.
    pub limit: usize,
    /// What holds repairs that have their turn already, once for each node that tells so.
    pub begun_and_held: Vec<String>,
    /// Zones whose nodes are sick for one cause.
    pub zones: BTreeMap<String, Outage>,
    /// Pools, each with the type of a condition, whose nodes are sick for one cause.
    pub pools: BTreeMap<PoolCondition, Outage>,
    /// For how long after its toleration a node is held for its zone or pool, or because too many are sick.
    pub outage_timeout: Option<SignedDuration>,
    /// Pools, each with the type of a condition, in which replacements do not help.
    pub relapses: BTreeMap<PoolCondition, Relapse>,
    /// The last replacements, with those that begin now.
    pub replacements: Vec<Replacements>,
    /// Pools that have trouble to get new machines.
    pub launches: BTreeMap<String, LaunchTrouble>,
    /// The nodes that may be under repair at once.
    pub allowed: usize,
    /// Those that are.
    pub used: usize,
    /// When the budget changes by itself.
    pub budget_until: Option<Timestamp>,
    /// Repairs to begin now.
    pub picks: Vec<Repair>,
    /// Repairs that are over.
    pub over: Vec<Ended>,
    /// Repairs that are not needed any more, or whose turn is over, and that never began.
    pub released: Vec<Repair>,
    /// Repairs that are not needed now, or whose turn is over.
    pub idle: BTreeSet<Uid>,
    /// Nodes, by name, whose pods must be counted before it is known whose turn it is.
    pub to_count: BTreeSet<NodeName>,
    /// When this changes although nothing else does.
    pub changes_at: Option<Timestamp>,
}

impl Survey {
    pub(super) fn wake(&mut self, at: Timestamp, now: Timestamp) {
        if now < at {
            self.changes_at = Some(self.changes_at.map_or(at, |before| before.min(at)));
        }
    }

    /// The machines that were replaced or rebooted, of the repairs that are over.
    pub fn repaired(&self) -> usize {
        let is_repaired = |ended: &&Ended| match ended.end {
            End::Replaced | End::Rebooted => true,
            End::NodeGone => false,
        };
        self.over.iter().filter(is_repaired).count()
    }
}

/// A node that is due, and not held.
struct Candidate<'a> {
    member: &'a Member<'a>,
    sick: Sick,
    action: Action,
}

/// Looks at all nodes of a policy, one by one: of a node about which nothing is to be decided, nothing is kept.
pub fn survey<'a>(scope: &Scope<'_>, all: impl IntoIterator<Item = Member<'a>>, now: Timestamp) -> Survey {
    let Scope { policy, settings, .. } = scope;
    let mut survey = Survey {
        launches: scope.launches.clone(),
        outage_timeout: settings.outage_timeout,
        ..Survey::default()
    };
    let mut counts = Counts::default();
    policy.status.deleted_nodes.iter().for_each(|kept| survey.wake(kept.forgotten_at(), now));
    let reserved: BTreeSet<&Uid> = policy.status.repairs.iter().map(|repair| &repair.uid).collect();
    let mut memory = relapse::Memory::new(&policy.status.replacements, settings, now);
    let (mut members, mut diagnoses): (Vec<Member<'_>>, Vec<Diagnosis>) = Default::default();
    for member in all {
        let diagnosis = diagnose(member.node, member.backend.owner(), policy, settings, now);
        let is_given_up = is_given_up(&member, &diagnosis, policy, settings, now);
        counts.count(&mut survey, &member, &diagnosis, is_given_up, now);
        let is_case = diagnosis.sick.is_some()
            || diagnosis.healed.is_some()
            || reserved.contains(&member.node.node.uid)
            || memory.asks(&member);
        if is_case {
            members.push(member);
            diagnoses.push(diagnosis);
        }
    }
    survey.limit = policy.unhealthy_limit.of(survey.base);
    let limit_of = |nodes| policy.unhealthy_limit.of(nodes);
    outages::find(&mut survey, &counts, &members, &diagnoses, limit_of, settings, now);
    memory.hear(&members, &diagnoses, settings, now);
    survey.relapses.clone_from(&memory.relapses);
    memory.changes_at.into_iter().for_each(|at| survey.wake(at, now));
    let standing = settle_repairs(&mut survey, scope, &members, &diagnoses, now);
    allow(&mut survey, policy, counts.initialized, &members, &diagnoses, &standing, now);

    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for (member, diagnosis) in members.iter().zip(&diagnoses) {
        let uid = &member.node.node.uid;
        let Some(sick) = diagnosis.sick.as_ref().filter(|_| diagnosis.is_due(now)) else { continue };
        survey.due.insert(member.node.node.name.clone());
        if let Some(Veto { until, .. }) = member.veto(now) {
            survey.vetoed += 1;
            until.into_iter().for_each(|until| survey.wake(until, now));
            continue;
        }
        if standing.contains(uid) {
            survey.begun_and_held.extend(diagnosis.memory.blocked_by().map(str::to_owned));
            continue;
        }
        if member.node.marks().damage.is_some() {
            *survey.held.entry(reasons::UNREADABLE).or_default() += 1;
            continue;
        }
        let turn = turn(sick, diagnosis.memory.tried.as_ref(), now);
        let asked = Asked { member, sick, action: turn.action(), repair: None };
        match survey.hold(policy, &asked, now) {
            Some(hold) => {
                hold.until().into_iter().for_each(|until| survey.wake(until, now));
                *survey.held.entry(hold.code()).or_default() += 1;
            }
            None => match turn {
                // Whatever is being deleted needs no turn, unless its end can be hastened.
                Turn::Try { action: Action::Replace, .. } if !can_go_on(member, policy, settings, now) => {}
                Turn::Try { action, .. } => candidates.push(Candidate { member, sick: sick.clone(), action }),
                Turn::Running { until, .. } => survey.wake(until, now),
                Turn::Exhausted => *survey.held.entry(Hold::LadderExhausted.code()).or_default() += 1,
            },
        }
    }
    pick(&mut survey, candidates, &mut memory, policy, now);
    survey.replacements = memory.kept();
    survey
}

/// True if there is anything left to do for the replacement of a node.
fn can_go_on(member: &Member<'_>, policy: &Policy, settings: &Settings, now: Timestamp) -> bool {
    let case = Case { member, policy, settings, repair: None, now };
    matches!(case.replacement(), Next::Write(_))
}

/// True if a node is past its toleration and nothing more can be done for it.
fn is_given_up(
    member: &Member<'_>,
    diagnosis: &Diagnosis,
    policy: &Policy,
    settings: &Settings,
    now: Timestamp,
) -> bool {
    let sick = diagnosis.sick.as_ref().filter(|_| diagnosis.is_due(now));
    sick.is_some_and(|sick| {
        let repair = policy.status.repair_of(&member.node.node.uid);
        let turn = turn(sick, diagnosis.memory.tried.as_ref(), now);
        Case { member, policy, settings, repair, now }.is_given_up(sick, turn)
    })
}

/// All nodes of a policy, counted.
#[derive(Default)]
pub(super) struct Counts<'a> {
    /// Those that are initialized and not being deleted, by zone. Nodes that boot, or go, say nothing about their zone or pool.
    pub(super) zones: BTreeMap<&'a str, usize>,
    /// The same by pool.
    pub(super) pools: BTreeMap<String, usize>,
    /// Those that have been ready for pods.
    initialized: usize,
}

impl<'a> Counts<'a> {
    fn count(
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

/// Counts the nodes that may be under repair at once. A node under repair counts among those the share is taken of, until it is
/// gone: otherwise every repair that begins would make the budget smaller.
fn allow(
    survey: &mut Survey,
    policy: &Policy,
    initialized: usize,
    members: &[Member<'_>],
    diagnoses: &[Diagnosis],
    standing: &BTreeSet<&Uid>,
    now: Timestamp,
) {
    let is_counted = |(member, diagnosis): &(&Member<'_>, &Diagnosis)| {
        !diagnosis.starting && standing.contains(&member.node.node.uid)
    };
    let counted = members.iter().zip(diagnoses).filter(is_counted).count();
    let nodes = initialized + standing.len() - counted;
    let (allowed, until) = allowance(&policy.budgets, nodes, now);
    survey.allowed = allowed.min(MOST_AT_ONCE);
    survey.budget_until = until;
    until.into_iter().for_each(|until| survey.wake(until, now));
}

/// Sorts the repairs that are written down: under way, over, or not needed any more. Returns the nodes of those that stand.
fn settle_repairs<'a>(
    survey: &mut Survey,
    scope: &Scope<'a>,
    members: &[Member<'_>],
    diagnoses: &[Diagnosis],
    now: Timestamp,
) -> BTreeSet<&'a Uid> {
    let Scope { policy, settings, .. } = scope;
    if policy.status.damaged {
        // Nobody knows how many there are.
        survey.used = usize::MAX;
    }
    let by_uid: BTreeMap<&Uid, usize> =
        members.iter().enumerate().map(|(index, member)| (&member.node.node.uid, index)).collect();
    let mut standing = BTreeSet::new();
    for repair in &policy.status.repairs {
        if (scope.is_gone)(repair) {
            let end = if repair.owner.is_some() { End::Replaced } else { End::NodeGone };
            survey.over.push(Ended { repair: repair.clone(), end });
            continue;
        }
        let member = by_uid.get(&repair.uid).map(|index| (&members[*index], &diagnoses[*index]));
        let is_needed = match member {
            // The node is gone, and its owner is not; or it is selected no more, and then nobody acts on it.
            None => !(scope.is_left_alone)(repair),
            Some((member, diagnosis)) => {
                // Nobody knows whether a node whose memory cannot be read was rebooted.
                let is_known = member.node.marks().damage.is_none();
                let rebooted = is_known && was_rebooted(repair, member.node) && diagnosis.memory.is_empty();
                if rebooted && diagnosis.sick.is_none() && !member.is_deleting() {
                    survey.over.push(Ended { repair: repair.clone(), end: End::Rebooted });
                    continue;
                }
                let held = diagnosis.sick.as_ref().and_then(|sick| {
                    let action = repair.action.unwrap_or(Action::Replace);
                    survey.held_by_relapse(&Asked { member, sick, action, repair: Some(repair) }, now)
                });
                let is_wanted = diagnosis.is_due(now) && member.veto(now).is_none() && held.is_none();
                member.is_deleting()
                    || is_wanted
                    || !is_known
                    || !diagnosis.memory.is_empty() && diagnosis.memory.tried.is_some()
            }
        };
        let course = Course::of(
            repair,
            member.map(|(member, _)| member),
            (scope.owner_deleting)(repair),
            policy,
            settings,
            now,
        );
        if !is_needed || course.has_lapsed(now) {
            survey.idle.insert(repair.uid.clone());
            let release = scope.idle.get(&repair.uid).map(|since| after(*since, RELEASE_AFTER));
            // What was prepared is taken back first.
            let is_prepared = member.is_some_and(|(member, _)| {
                member.prepared().is_some() || course.has_lapsed(now) && member.node.is_cordoned_by_us()
            });
            match release {
                Some(release) if release <= now && !is_prepared => {
                    survey.released.push(repair.clone());
                    continue;
                }
                Some(release) => survey.wake(release, now),
                None => survey.wake(after(now, RELEASE_AFTER), now),
            }
        }
        standing.insert(&repair.uid);
        if let Some((member, diagnosis)) = member {
            let case = Case { member, policy, settings, repair: Some(repair), now };
            case.drain_ends().into_iter().for_each(|ends| survey.wake(ends, now));
            // A repair that has its turn keeps it while a person forbids more: the veto may be lifted before the turn lapses.
            let is_vetoed = member.veto(now).is_some();
            if !is_vetoed && is_given_up(member, diagnosis, policy, settings, now) {
                survey.given_up += 1;
                continue;
            }
        }
        let counts_until = match course {
            // It may begin at any moment. Whoever has lapsed is released first.
            Course::NotBegun { lapses_at } => {
                survey.wake(lapses_at, now);
                None
            }
            Course::Begun { stuck_at } => {
                survey.wake(stuck_at, now);
                Some(stuck_at)
            }
        };
        if counts_until.is_none_or(|until| now < until) {
            survey.used = survey.used.saturating_add(1);
            let place = member.map(|(member, _)| (&*member.node.zone, member.pool()));
            survey.is_busy_with(repair, place);
        }
    }
    standing
}

/// True if a node whose repair ends was rebooted last, as its condition tells it. A node that was held after that got well by other means.
fn was_rebooted(repair: &Repair, node: &NodeView) -> bool {
    match node.condition(CONDITION).map(|told| &*told.reason) {
        Some(reasons::REBOOTING | reasons::REPAIRED) => true,
        Some(reasons::BLOCKED | reasons::RECOVERED) => false,
        Some(_) | None => repair.action == Some(Action::Reboot),
    }
}

/// Gives the free places of the budget to those who are due first; of equals, to the node with the fewest pods.
fn pick(
    survey: &mut Survey,
    mut candidates: Vec<Candidate<'_>>,
    memory: &mut relapse::Memory,
    policy: &Policy,
    now: Timestamp,
) {
    // Those that are given up are written down as well.
    let room = MOST_AT_ONCE.saturating_sub(policy.status.repairs.len());
    let free = survey.allowed.saturating_sub(survey.used).min(room);
    let lapsed: BTreeSet<Uid> = survey.released.iter().map(|repair| repair.uid.clone()).collect();
    let order = |candidate: &Candidate<'_>| {
        let pods = candidate.member.pods.unwrap_or(u32::MAX);
        let node = &candidate.member.node.node;
        (lapsed.contains(&node.uid), candidate.sick.deadline, pods, node.name.clone())
    };
    candidates.sort_by_cached_key(order);
    let is_unhindered = survey.zones.is_empty() && survey.pools.is_empty() && survey.relapses.is_empty();
    if !is_unhindered || survey.has_too_many() {
        let mut taken: BTreeSet<SingleFile> = BTreeSet::new();
        candidates.retain(|Candidate { member, sick, action }| {
            let asked = Asked { member, sick, action: *action, repair: None };
            let files = survey.single_files(&asked);
            match files.iter().find(|file| taken.contains(file)) {
                Some(file) => *survey.held.entry(file.code()).or_default() += 1,
                None => {
                    taken.extend(files);
                    return true;
                }
            }
            false
        });
    }
    if free > 0 && free < candidates.len() {
        // The pods decide only among those of one deadline between whom the budget ends.
        let last = candidates[free - 1].sick.deadline;
        if candidates[free].sick.deadline == last {
            let tied = candidates.iter().filter(|it| it.sick.deadline == last && it.member.pods.is_none());
            survey.to_count = tied.map(|it| it.member.node.node.name.clone()).collect();
        }
    }
    let blocked = candidates.len().saturating_sub(free);
    let to_count = survey.to_count.clone();
    for Candidate { member, sick, action } in candidates.into_iter().take(free) {
        let NodeView { node, .. } = member.node;
        if !to_count.is_empty() && to_count.contains(&node.name) {
            continue;
        }
        // The drain of a node that nothing owns makes no new machine.
        let is_drain = member.backend == Backend::Node && policy.unowned == UnownedNodes::Drain;
        if action == Action::Replace && !is_drain {
            memory.add(member.pool(), sick.kind(), now);
        }
        survey.picks.push(Repair {
            node: node.name.clone(),
            uid: node.uid.clone(),
            owner: member.backend.owner().map(|owner| owner.object.uid.clone()),
            pool: member.node.pool().map(str::to_owned),
            action: Some(action),
            condition: sick.key,
            sick: Some(sick.since),
            since: policy.not_before(to_the_second(now)),
        });
    }
    if blocked > 0 {
        survey.held.insert(Hold::BUDGET_EXHAUSTED, blocked);
    }
}
