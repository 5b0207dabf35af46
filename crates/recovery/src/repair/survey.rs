//! Counts all nodes of a policy, applies its limits, and decides which nodes get a turn.
//!
//! Three numbers are distinct. A node past its toleration is *due*. *Unhealthy*, for the policy's limit, are due nodes
//! that are initialized and not being deleted. *Used*, for the budget, are the repairs under way in the policy's
//! status. A node that is given up (vetoed, ladder exhausted, or blocked because its machine may run) counts in neither
//! of the last two: it would block a small pool forever.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::repair::{CONDITION, reasons};

use super::action::Action;
use super::counts::{Counts, Survey};
use super::holds::{Hold, LaunchTrouble};
use super::ladder::{Turn, turn};
use super::limits::{Asked, SingleFile};
use super::member::{Course, Member};
use super::next::{Case, Next};
use super::outages;
use super::policy::{Policy, UnownedNodes, allowance};
use super::relapse;
use super::sickness::{Diagnosis, Settings, Sick, diagnose};
use super::status::{End, Ended, Repair};
use super::veto::Veto;
use super::views::{Backend, NodeView};
use crate::ids::Uid;
use crate::moments::{after, to_the_second};

/// A repair that is no longer needed before it began is dropped after this time. Until then one of its writes may still
/// be in flight.
pub const RELEASE_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// The maximum number of repairs under way, because they are all written into one object.
const MOST_AT_ONCE: usize = 500;

/// Everything that a policy's limits depend on.
pub struct Scope<'a> {
    pub policy: &'a Policy,
    /// Pools that fail to get new machines.
    pub launches: &'a BTreeMap<String, LaunchTrouble>,
    /// True if the node and the owner of a repair are both gone.
    pub is_gone: &'a dyn Fn(&Repair) -> bool,
    /// The deletion time of a repair's owner.
    pub owner_deleting: &'a dyn Fn(&Repair) -> Option<Timestamp>,
    /// True if the node of a repair exists, is not being deleted, and is not among the members because it is no longer
    /// selected.
    pub is_left_alone: &'a dyn Fn(&Repair) -> bool,
    /// Since when repairs in the status are no longer needed, by the node's UID.
    pub idle: &'a BTreeMap<Uid, Timestamp>,
    pub settings: &'a Settings,
}

/// A node that is due and not blocked.
struct Candidate<'a> {
    member: &'a Member<'a>,
    sick: Sick,
    action: Action,
}

/// Takes the nodes one by one, and keeps nothing of nodes that need no decision.
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
                // A node that is being deleted needs no turn, unless its deletion can be hastened.
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

/// True if a write is left for the replacement of a node.
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

/// Computes how many nodes may be under repair at once. A node under repair stays in the base of the percentage until
/// it is gone: otherwise every repair that begins would shrink the budget.
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

/// Sorts the repairs in the status: under way, over, or no longer needed. Returns the UIDs of nodes whose repair stays
/// in the list.
fn settle_repairs<'a>(
    survey: &mut Survey,
    scope: &Scope<'a>,
    members: &[Member<'_>],
    diagnoses: &[Diagnosis],
    now: Timestamp,
) -> BTreeSet<&'a Uid> {
    let Scope { policy, settings, .. } = scope;
    if policy.status.damaged {
        // The number of repairs is unknown, so the budget counts as exhausted.
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
            // Either the node is gone and its owner is not, or the node is no longer selected, and then nothing acts on
            // it.
            None => !(scope.is_left_alone)(repair),
            Some((member, diagnosis)) => {
                // It is unknown whether a node whose memory cannot be read was rebooted.
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
            // Preparations are undone first.
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
            // A vetoed repair keeps its turn: the veto may be lifted before the turn lapses.
            let is_vetoed = member.veto(now).is_some();
            if !is_vetoed && is_given_up(member, diagnosis, policy, settings, now) {
                survey.given_up += 1;
                continue;
            }
        }
        let counts_until = match course {
            // It may begin at any moment, so it counts. Lapsed repairs are released first.
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

/// True if the last action on the node was a reboot, according to its condition. A node that was blocked after the
/// reboot recovered by other means.
fn was_rebooted(repair: &Repair, node: &NodeView) -> bool {
    match node.condition(CONDITION).map(|told| &*told.reason) {
        Some(reasons::REBOOTING | reasons::REPAIRED) => true,
        Some(reasons::BLOCKED | reasons::RECOVERED) => false,
        Some(_) | None => repair.action == Some(Action::Reboot),
    }
}

/// Gives the free places of the budget to the nodes that were due first. Among equals, the node with the fewest pods
/// wins.
fn pick(
    survey: &mut Survey,
    mut candidates: Vec<Candidate<'_>>,
    memory: &mut relapse::Memory,
    policy: &Policy,
    now: Timestamp,
) {
    // Repairs that are given up take up room in the list too.
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
        // The number of pods decides only between nodes with the same deadline where the budget runs out.
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
        // Draining a node that nothing owns creates no new machine.
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
