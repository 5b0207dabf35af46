//! The budget of any minute.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::moments::after;

/// An admission counts for this long: a minute, and one second because whole seconds are counted.
pub(super) const WINDOW: SignedDuration = SignedDuration::from_secs(61);

/// The admissions, by the second (Unix time) in which they happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Admitted(pub(super) BTreeMap<i64, u32>);

impl Admitted {
    /// Until when there is no room for so many more; none if there is. A limit of 0 is no limit.
    ///
    /// More at once than the whole limit pass when none were admitted in the last minute: they cannot be split.
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

    /// So many more count from now on.
    pub(super) fn add(&mut self, limit: u32, now: Timestamp, more: u32) {
        if limit == 0 || more == 0 {
            return;
        }
        self.forget(now);
        let count = self.0.entry(now.as_second()).or_default();
        *count = count.saturating_add(more);
    }

    /// So many that were admitted then were carried out only now: they count from now on. Whether that changes anything.
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

    /// Drops what no longer counts. What is yet to come, by a clock that was ahead or by somebody's hand, counts as if it
    /// were admitted now: it holds nothing for longer than a minute.
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
