//! Finds sickness of many nodes with a common cause, and decides how long it blocks repairs.
//!
//! The nodes of a zone share its network and power; the nodes of a pool share an image and agents. If most of them are
//! sick, new machines seldom help, and the cause is likely to pass.
//!
//! A cause passes node by node. So a node that healed by itself keeps counting as sick for `repair.settleAfter`, and
//! longer while others heal: it counts as long as the next node healed within that span. Each node counts once, with
//! the last time that it healed, so one flapping agent cannot keep other nodes counted. A node never counts for longer
//! than it was seen sick.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::counts::{Counts, Survey};
use super::holds::Outage;
use super::member::Member;
use super::progress::{Healed, kind_of};
use super::sickness::{Diagnosis, Settings};
use crate::moments::after;

/// The minimum number of sick nodes for a common cause. The node lifecycle controller uses the same number.
const AT_LEAST: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Tally<'a> {
    pub(super) sick: usize,
    pub(super) nodes: usize,
    pub(super) healed: Vec<&'a Healed>,
}

/// The nodes that healed and still count as sick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settling {
    pub(super) nodes: usize,
    /// When they stop counting unless more nodes heal.
    pub(super) until: Option<Timestamp>,
    /// When the first of them is forgotten.
    pub(super) changes_at: Option<Timestamp>,
}

impl Tally<'_> {
    /// Counts the nodes that healed, from the most recent one back.
    pub(super) fn settling(&mut self, settle_after: SignedDuration, now: Timestamp) -> Settling {
        self.healed.sort_by_key(|healed| std::cmp::Reverse(healed.at));
        let mut settling = Settling::default();
        let mut next = now;
        for healed in &self.healed {
            let end = after(healed.at, healed.span(settle_after));
            if next < end {
                next = healed.at;
                settling.nodes += 1;
                settling.until = settling.until.max(Some(end));
                let forgotten = healed.forgotten_at(settle_after);
                settling.changes_at = settling.changes_at.into_iter().chain([forgotten]).min();
            }
        }
        settling
    }

    fn outage(&self, settling: Settling, is_one: impl Fn(usize, usize) -> bool) -> Option<Outage> {
        let Self { sick, nodes, .. } = *self;
        let alone = is_one(sick, nodes);
        let together = sick > 0 && is_one(sick + settling.nodes, nodes);
        (alone || together).then_some(Outage {
            sick,
            settling: settling.nodes,
            nodes,
            settled_at: settling.until.filter(|_| !alone),
            busy: false,
        })
    }
}

/// Finds the zones and pools whose nodes are sick with a common cause, and counts healed nodes that still count against
/// the unhealthy limit. `members` holds at least all nodes that are sick or healed recently; `counts` covers all nodes.
pub(super) fn find(
    survey: &mut Survey,
    counts: &Counts<'_>,
    members: &[Member<'_>],
    diagnoses: &[Diagnosis],
    limit_of: impl Fn(usize) -> usize,
    settings: &Settings,
    now: Timestamp,
) {
    let mut all = Tally::default();
    let counted =
        counts.zones.iter().map(|(zone, nodes)| (*zone, Tally { nodes: *nodes, ..Tally::default() }));
    let mut zones: BTreeMap<&str, Tally<'_>> = counted.collect();
    let mut conditions: BTreeMap<(&str, &str), Tally<'_>> = BTreeMap::new();
    for (member, diagnosis) in members.iter().zip(diagnoses) {
        // A node that boots or is being deleted says nothing about its zone.
        if diagnosis.starting || member.is_deleting() {
            continue;
        }
        let (zone, pool) = (zones.entry(&member.node.zone).or_default(), member.pool());
        if diagnosis.sick.is_some() {
            zone.sick += 1;
            let clocks = &diagnosis.memory.sick;
            let mut kinds: Vec<&str> =
                clocks.iter().filter(|(_, it)| it.healthy.is_none()).map(|(key, _)| kind_of(key)).collect();
            kinds.dedup();
            for kind in kinds {
                conditions.entry((pool, kind)).or_default().sick += 1;
            }
        } else if let Some(healed) = &diagnosis.healed {
            zone.healed.push(healed);
            conditions.entry((pool, kind_of(&healed.condition))).or_default().healed.push(healed);
            all.healed.extend(Some(healed).filter(|healed| healed.due));
        }
    }

    let mut settle = |tally: &mut Tally<'_>| {
        let settling = tally.settling(settings.settle_after, now);
        settling.until.into_iter().chain(settling.changes_at).for_each(|at| survey.wake(at, now));
        settling
    };
    let settling = settle(&mut all);
    let several = zones.keys().filter(|zone| !zone.is_empty()).count() > 1;
    let share = |sick: usize, nodes: usize, percent: u8| {
        sick >= AT_LEAST && sick * 100 >= nodes.saturating_mul(usize::from(percent))
    };
    let mut zones_out = BTreeMap::new();
    for (zone, mut tally) in zones.into_iter().filter(|(zone, _)| !zone.is_empty()) {
        let Some(percent) = settings.zone_sick_percent else { continue };
        let settling = settle(&mut tally);
        // A single zone is the whole policy, and the policy's own limit covers that.
        let is_one =
            |sick: usize, nodes: usize| share(sick, nodes, percent) && (several || sick > limit_of(nodes));
        zones_out.extend(tally.outage(settling, is_one).map(|outage| (zone.to_owned(), outage)));
    }
    let mut pools_out = BTreeMap::new();
    for ((pool, kind), mut tally) in conditions {
        let Some(percent) = settings.pool_sick_percent else { continue };
        tally.nodes = counts.pools.get(pool).copied().unwrap_or_default();
        let settling = settle(&mut tally);
        let is_one = |sick: usize, nodes: usize| share(sick, nodes, percent) && sick > limit_of(nodes);
        let outage = tally.outage(settling, is_one);
        pools_out.extend(outage.map(|outage| ((pool.to_owned(), kind.to_owned()), outage)));
    }
    (survey.zones, survey.pools) = (zones_out, pools_out);
    (survey.settling, survey.settled_at) = (settling.nodes, settling.until);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLES: SignedDuration = SignedDuration::from_mins(3);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn healed(seen: i64, ended: i64) -> Healed {
        Healed { condition: "Ready=False".to_owned(), seen: at(seen), at: at(ended), due: true }
    }

    fn settling(all: &[Healed], now: i64) -> (usize, Option<i64>) {
        let mut tally = Tally { healed: all.iter().collect(), ..Tally::default() };
        let found = tally.settling(SETTLES, at(now));
        (found.nodes, found.until.map(|until| until.duration_since(at(0)).as_secs()))
    }

    #[test]
    fn who_healed_counts_until_nobody_has_healed_for_a_while() {
        assert_eq!(settling(&[], 0), (0, None));
        let all = [healed(-3000, 0), healed(-3000, 100), healed(-3000, 250)];
        assert_eq!(settling(&all, 250), (3, Some(430)), "each within three minutes of the next");
        assert_eq!(settling(&all, 429), (3, Some(430)));
        assert_eq!(settling(&all, 430), (0, None));
        let gap = [healed(-3000, 0), healed(-3000, 180), healed(-3000, 300)];
        assert_eq!(settling(&gap, 300), (2, Some(480)), "a gap of three minutes ends it");
    }

    /// However often one agent flaps, it adds only its own node and at most one span.
    #[test]
    fn one_flapping_agent_keeps_nobody_else_counted() {
        let others = [healed(-3000, 0), healed(-3000, 0), healed(-3000, 1)];
        let mut last = 0;
        for flap in 1..100 {
            let ended = flap * 120;
            let all: Vec<Healed> = others.iter().cloned().chain([healed(ended - 60, ended)]).collect();
            for now in ended..ended + 120 {
                if settling(&all, now).0 > 1 {
                    last = now;
                }
            }
        }
        assert!(last <= 360, "{last}");
        assert_eq!(settling(&[healed(0, 20)], 39), (1, Some(40)), "as long as it was sick");
        assert_eq!(settling(&[healed(0, 20)], 40), (0, None));
    }
}
