//! Limits how many actions are admitted in any minute.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::moments::after;

/// How long an admission counts: a minute, plus a second because admissions are counted by whole seconds.
pub(super) const WINDOW: SignedDuration = SignedDuration::from_secs(61);

/// The admissions, by the second (Unix time) in which they happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Admitted(pub(super) BTreeMap<i64, u32>);

impl Admitted {
    /// Until when there is no room for so many more; none if there is. A limit of 0 means no limit.
    ///
    /// A request larger than the whole limit passes if nothing was admitted in the last minute: it cannot be split.
    pub(super) fn full_until(&self, limit: u32, now: Timestamp, more: u32) -> Option<Timestamp> {
        if limit == 0 || more == 0 {
            return None;
        }
        let room_for = u64::from(limit).saturating_sub(u64::from(more));
        let mut counted: u64 = self.counting(now).map(|(_, count)| u64::from(count)).sum();
        let mut until = None;
        for (second, count) in self.counting(now) {
            if counted <= room_for {
                break;
            }
            counted -= u64::from(count);
            until = Some(end_of_window(second));
        }
        until
    }

    pub(super) fn add(&mut self, limit: u32, now: Timestamp, more: u32) {
        if limit == 0 || more == 0 {
            return;
        }
        self.forget(now);
        let count = self.0.entry(now.as_second()).or_default();
        *count = count.saturating_add(more);
    }

    /// Moves admissions that are carried out only now to the present second. True if that changes anything.
    pub(super) fn carried_out(&mut self, limit: u32, admitted: Timestamp, now: Timestamp, some: u32) -> bool {
        if limit == 0 || some == 0 || admitted.as_second() >= now.as_second() {
            return false;
        }
        if let Some(count) = self.0.get_mut(&admitted.as_second()) {
            *count = count.saturating_sub(some);
        }
        self.add(limit, now, some);
        true
    }

    /// Drops what no longer counts. A time in the future, from a fast clock or a manual edit, counts as now, so it
    /// blocks nothing for longer than a minute.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let mut kept = BTreeMap::new();
        for (second, count) in self.counting(now) {
            let kept: &mut u32 = kept.entry(second).or_default();
            *kept = kept.saturating_add(count);
        }
        self.0 = kept;
    }

    fn counting(&self, now: Timestamp) -> impl Iterator<Item = (i64, u32)> + '_ {
        let this_second = now.as_second();
        self.0
            .iter()
            .map(move |(second, count)| ((*second).min(this_second), *count))
            .filter(move |(second, count)| *count > 0 && now < end_of_window(*second))
    }
}

pub(super) fn end_of_window(second: i64) -> Timestamp {
    let start =
        Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX });
    after(start, WINDOW)
}
