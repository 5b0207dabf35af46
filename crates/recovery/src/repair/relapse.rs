//! Decides whether replacements help. If new machines of a pool have the condition that replacing should cure, more new
//! machines would have it too.
//!
//! The policy's status records the last replacements for each pool and condition, in the same write that begins them.
//! The witnesses are nodes of the pool created after the last replacement, or after the first one if none of those is
//! conclusive yet. A witness is sick if it has the condition, and well if it has been ready without it for
//! `repair.settleAfter`. If more witnesses are sick than well, no further node of the pool is replaced for that
//! condition. One node is tried again after `repair.retryAfter`, then after twice that, and so on.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::counts::{PoolCondition, Relapse};
use super::member::Member;
use super::progress::kind_of;
use super::sickness::{Diagnosis, Settings};
use super::status::Replacements;
use super::views::Status;
use crate::moments::{CLOCKS_DIFFER, after, to_the_second};

/// The wait between tries doubles at most this many times.
const DOUBLED: u32 = 4;
/// Replacements are forgotten after this many times `repair.retryAfter`: twice the longest wait.
const FORGOTTEN: i32 = 1 << (DOUBLED + 1);
/// The maximum number of pools and conditions remembered.
const MOST: usize = 100;

/// The replacements of a policy, with the evidence for and against them.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    rows: BTreeMap<PoolCondition, Replacements>,
    /// The earliest replacement that counts. Only nodes created later are witnesses.
    earliest: Option<Timestamp>,
    /// Rows whose conclusive new nodes are all well.
    proven: Vec<PoolCondition>,
    pub(super) relapses: BTreeMap<PoolCondition, Relapse>,
    /// When a witness changes its answer without any event.
    pub(super) changes_at: Option<Timestamp>,
}

/// The conclusive new nodes of a row.
#[derive(Clone, Copy, Default)]
struct Witnesses {
    sick: usize,
    well: usize,
}

impl Memory {
    pub(super) fn new(kept: &[Replacements], settings: &Settings, now: Timestamp) -> Self {
        let rows = settings.retry_after.map(|retry_after| rows(kept, retry_after, now)).unwrap_or_default();
        Self { earliest: rows.values().map(|row| row.first).min(), rows, ..Self::default() }
    }

    /// True if the node may be a witness.
    pub(super) fn asks(&self, member: &Member<'_>) -> bool {
        self.earliest.is_some_and(|earliest| came_after(member, earliest))
    }

    /// Counts the witnesses among these nodes.
    pub(super) fn hear(
        &mut self,
        members: &[Member<'_>],
        diagnoses: &[Diagnosis],
        settings: &Settings,
        now: Timestamp,
    ) {
        let Some(retry_after) = settings.retry_after else { return };
        let young: Vec<(&Member<'_>, &Diagnosis)> = members
            .iter()
            .zip(diagnoses)
            .filter(|(member, _)| self.asks(member))
            .filter(|(member, _)| !member.is_deleting() && member.veto(now).is_none())
            .collect();
        let turns = young.iter().filter_map(|(member, diagnosis)| turns_at(member, diagnosis, settings));
        self.changes_at = turns.filter(|at| now < *at).min();
        for (key, row) in &self.rows {
            let since = |time: Timestamp| {
                let mut witnesses = Witnesses::default();
                let of_row =
                    young.iter().filter(|(member, _)| member.pool() == row.pool && came_after(member, time));
                for (member, diagnosis) in of_row {
                    if is_sick(member, diagnosis, &row.condition, settings, now) {
                        witnesses.sick += 1;
                    } else if !has(diagnosis, &row.condition)
                        && well_from(member, diagnosis, settings).is_some_and(|from| from <= now)
                    {
                        witnesses.well += 1;
                    }
                }
                witnesses
            };
            let (first, last) = (since(row.first), since(row.last));
            let tried = Some(row.last).filter(|_| row.retries > 0);
            let helps = if last.sick + last.well > 0 {
                last.sick <= last.well
            } else {
                // The outcome of the last try is not known yet.
                tried.is_none() && first.sick <= first.well
            };
            let doubled = if first.sick == 0 { 0 } else { row.retries.min(DOUBLED) };
            let again = after(row.last, times(retry_after, 1 << doubled));
            // Without a witness, wait for the outcome of the last try, but not forever.
            if !helps && (first.sick > 0 || now < again) {
                let relapse = Relapse { sick: first.sick, again, tried, busy: false };
                self.relapses.insert(key.clone(), relapse);
            } else if first.sick == 0 && first.well > 0 {
                self.proven.push(key.clone());
            }
        }
    }

    /// Records a replacement that is decided now.
    pub(super) fn add(&mut self, pool: &str, condition: &str, now: Timestamp) {
        let now = to_the_second(now);
        let key = (pool.to_owned(), condition.to_owned());
        let is_retry = self.relapses.contains_key(&key);
        let is_proven = self.proven.contains(&key);
        let row = self.rows.entry(key).or_insert_with(|| Replacements {
            pool: pool.to_owned(),
            condition: condition.to_owned(),
            first: now,
            last: now,
            retries: 0,
        });
        row.last = now;
        row.retries = if is_retry { row.retries.saturating_add(1).min(MOST as u32) } else { 0 };
        if is_proven {
            row.first = now;
        }
    }

    /// The list for the policy's status.
    pub(super) fn kept(self) -> Vec<Replacements> {
        let mut all: Vec<Replacements> = self.rows.into_values().collect();
        if all.len() > MOST {
            all.sort_by_key(|row| std::cmp::Reverse(row.last));
            all.truncate(MOST);
            all.sort_by(|one, other| (&one.pool, &one.condition).cmp(&(&other.pool, &other.condition)));
        }
        all
    }
}

fn times(wait: SignedDuration, factor: i32) -> SignedDuration {
    wait.checked_mul(factor).unwrap_or(SignedDuration::MAX)
}

/// The rows that count: one per pool and condition, without expired ones. A time in the future counts as now, and is
/// written back as now.
fn rows(
    kept: &[Replacements],
    retry_after: SignedDuration,
    now: Timestamp,
) -> BTreeMap<PoolCondition, Replacements> {
    let mut rows: BTreeMap<PoolCondition, Replacements> = BTreeMap::new();
    for row in kept {
        let last = row.last.min(to_the_second(now));
        let row = Replacements { first: row.first.min(last), last, ..row.clone() };
        if after(last, times(retry_after, FORGOTTEN)) <= now {
            continue;
        }
        let key = (row.pool.clone(), row.condition.clone());
        if rows.get(&key).is_none_or(|other| other.last < row.last) {
            rows.insert(key, row);
        }
    }
    rows
}

/// API timestamps have whole seconds: for a node created in the same second the order is unknown, so it does not count.
fn came_after(member: &Member<'_>, time: Timestamp) -> bool {
    member.node.created.is_some_and(|created| time < created)
}

/// True if a new node has the condition, or had it until recently, and got it soon after it came up. A node that was
/// well for a while counts as cured. A sickness that began before the node was created says nothing about a new
/// machine. A booting node is not Ready, so it counts only once it is past its toleration.
fn is_sick(
    member: &Member<'_>,
    diagnosis: &Diagnosis,
    kind: &str,
    settings: &Settings,
    now: Timestamp,
) -> bool {
    let sick = diagnosis.sick.as_ref().filter(|sick| sick.kind() == kind);
    if diagnosis.starting {
        return sick.is_some_and(|sick| sick.deadline <= now);
    }
    let clocks = diagnosis.memory.sick.iter().filter(|(key, _)| kind_of(key) == kind);
    let healed = diagnosis.healed.iter().filter(|healed| {
        kind_of(&healed.condition) == kind && now < after(healed.at, healed.span(settings.settle_after))
    });
    let began = clocks.map(|(_, clock)| clock.since).chain(healed.map(|healed| healed.seen)).min();
    let soon = sick.map_or(settings.settle_after, |sick| sick.toleration.max(settings.settle_after));
    let ready = member.node.condition("Ready").filter(|ready| ready.status == Status::True);
    let came = member.node.created.max(ready.and_then(|ready| ready.since));
    let created = member.node.created.unwrap_or(Timestamp::MAX);
    began
        .zip(came)
        .is_some_and(|(began, came)| created <= after(began, CLOCKS_DIFFER) && began <= after(came, soon))
}

/// True if the node has the condition, whenever it began.
fn has(diagnosis: &Diagnosis, kind: &str) -> bool {
    diagnosis.memory.sick.keys().any(|key| kind_of(key) == kind)
}

/// From when on a new node has been ready for long enough to count as well.
fn well_from(member: &Member<'_>, diagnosis: &Diagnosis, settings: &Settings) -> Option<Timestamp> {
    let ready = member.node.condition("Ready").filter(|ready| ready.status == Status::True);
    let since = ready.filter(|_| !diagnosis.starting)?.since.or(member.node.created)?;
    Some(after(since, settings.settle_after))
}

/// When a new node changes its answer without any event.
fn turns_at(member: &Member<'_>, diagnosis: &Diagnosis, settings: &Settings) -> Option<Timestamp> {
    let settled = diagnosis.healed.as_ref().map(|it| after(it.at, it.span(settings.settle_after)));
    well_from(member, diagnosis, settings).into_iter().chain(settled).max()
}
