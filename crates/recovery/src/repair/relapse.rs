//! Do replacements help? If new machines of a pool have the condition that they should cure, more of them would have it too.
//!
//! For each pool and condition the last replacements are written down in the policy's status, by the same write that begins them. Nodes
//! of the pool that came after the last one, or after the first one if none of those tells yet, are the witnesses: those that have the
//! condition, and those that have been ready without it for `repair.settleAfter`. If more are sick than well, no further node of the
//! pool is replaced for that condition. One is tried again after `repair.retryAfter`, then after twice that, and so on.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::progress::kind_of;
use super::sickness::{Diagnosis, Settings};
use super::survey::Member;
use super::views::Status;
use crate::moments::{after, to_the_second};

/// The waits between tries are doubled so often.
const DOUBLED: u32 = 4;
/// Replacements are forgotten after so many times `repair.retryAfter`: twice the longest wait.
const FORGOTTEN: i32 = 1 << (DOUBLED + 1);
/// The clocks of nodes and of the API server differ by at most this.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(5);
/// So many pools and conditions are remembered.
const MOST: usize = 100;

/// A pool, and the type of a condition.
pub type PoolCondition = (String, String);

/// The last replacements of nodes of a pool for one condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replacements {
    /// The pool; empty for nodes without one.
    pub pool: String,
    /// The type of the condition.
    pub condition: String,
    /// When the first replacement of the row was decided.
    pub first: Timestamp,
    /// When the last one was.
    pub last: Timestamp,
    /// How often one node was tried again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Reads a list of them. What cannot be read is left out: a memory that is lost holds nobody up.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Replacements>, D::Error> {
    let all = match Value::deserialize(from)? {
        Value::Array(all) => all,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Vec::new(),
    };
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// Replacements of a pool that do not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relapse {
    /// The new nodes that are sick.
    pub sick: usize,
    /// When one node is tried again.
    pub again: Timestamp,
    /// When the last one was tried again, if any was.
    pub(super) tried: Option<Timestamp>,
    /// True if a node is under repair for it.
    pub busy: bool,
}

/// What is known of the replacements of a policy.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    rows: BTreeMap<PoolCondition, Replacements>,
    /// Rows whose new nodes are well, all of them that tell.
    proven: Vec<PoolCondition>,
    pub(super) relapses: BTreeMap<PoolCondition, Relapse>,
    /// When a witness tells something else although nothing happens.
    pub(super) changes_at: Option<Timestamp>,
}

/// The new nodes of a row that tell.
#[derive(Clone, Copy, Default)]
struct Witnesses {
    sick: usize,
    well: usize,
}

impl Memory {
    /// Reads the witnesses.
    pub(super) fn new(
        kept: &[Replacements],
        members: &[Member<'_>],
        diagnoses: &[Diagnosis],
        settings: &Settings,
        now: Timestamp,
    ) -> Self {
        let Some(retry_after) = settings.retry_after else { return Self::default() };
        let rows = rows(kept, retry_after, now);
        let mut memory = Self { rows, ..Self::default() };
        let Some(earliest) = memory.rows.values().map(|row| row.first).min() else { return memory };
        let young: Vec<(&Member<'_>, &Diagnosis)> = members
            .iter()
            .zip(diagnoses)
            .filter(|(member, _)| came_after(member, earliest))
            .filter(|(member, _)| !member.is_deleting() && member.veto(now).is_none())
            .collect();
        let turns = young.iter().filter_map(|(member, diagnosis)| turns_at(member, diagnosis, settings));
        memory.changes_at = turns.filter(|at| now < *at).min();
        for (key, row) in &memory.rows {
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
                // Nobody knows yet what came of the last try.
                tried.is_none() && first.sick <= first.well
            };
            let doubled = if first.sick == 0 { 0 } else { row.retries.min(DOUBLED) };
            let again = after(row.last, times(retry_after, 1 << doubled));
            // Without a witness the outcome of a try is waited for, and not for ever.
            if !helps && (first.sick > 0 || now < again) {
                let relapse = Relapse { sick: first.sick, again, tried, busy: false };
                memory.relapses.insert(key.clone(), relapse);
            } else if first.sick == 0 && first.well > 0 {
                memory.proven.push(key.clone());
            }
        }
        memory
    }

    /// Writes a replacement down that is decided now.
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

    /// The list that is written down.
    pub(super) fn kept(self) -> Vec<Replacements> {
        let mut all: Vec<Replacements> = self.rows.into_values().collect();
        if all.len() > MOST {
            all.sort_by(|one, other| other.last.cmp(&one.last));
            all.truncate(MOST);
            all.sort_by(|one, other| (&one.pool, &one.condition).cmp(&(&other.pool, &other.condition)));
        }
        all
    }
}

fn times(wait: SignedDuration, factor: i32) -> SignedDuration {
    wait.checked_mul(factor).unwrap_or(SignedDuration::MAX)
}

/// The rows that count: one of each pool and condition, none that is forgotten. A time that lies ahead counts as now, and is
/// written so.
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

/// True if a node was created after this time. Times of the API have no fractions: of the same second nobody knows.
fn came_after(member: &Member<'_>, time: Timestamp) -> bool {
    member.node.created.is_some_and(|created| time < created)
}

/// True if a new node has the condition, or had it a moment ago, and had it soon after it came. One that was well for a while was
/// helped, and a sickness from before it came is none of a new machine. A node that boots is not ready, and has that condition only when it has had it for too long.
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

/// True if the node has the condition, since whenever.
fn has(diagnosis: &Diagnosis, kind: &str) -> bool {
    diagnosis.memory.sick.keys().any(|key| kind_of(key) == kind)
}

/// The moment from which on a new node has been ready for long enough.
fn well_from(member: &Member<'_>, diagnosis: &Diagnosis, settings: &Settings) -> Option<Timestamp> {
    let ready = member.node.condition("Ready").filter(|ready| ready.status == Status::True);
    let since = ready.filter(|_| !diagnosis.starting)?.since.or(member.node.created)?;
    Some(after(since, settings.settle_after))
}

/// When a new node tells something else, if nothing happens.
fn turns_at(member: &Member<'_>, diagnosis: &Diagnosis, settings: &Settings) -> Option<Timestamp> {
    let settled = diagnosis.healed.as_ref().map(|it| after(it.at, it.span(settings.settle_after)));
    well_from(member, diagnosis, settings).into_iter().chain(settled).max()
}
