//! The brake: what holds all recoveries back when too much fails at once.
//!
//! A cluster that seems to lose half its nodes has more likely lost sight of them. So nothing is recovered while too
//! large a share of nodes is unreachable, and never more than a budget of pods in any minute.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::BrakeLimits;
use salvor_api::names::{events, reasons};
use serde::{Deserialize, Serialize};

use crate::action::{Action, EventNote, EventType, Subject};
use crate::verdict::Judgement;

/// In a small cluster two lost nodes are easily more than half of it, and yet an everyday failure.
pub(crate) const NODES_ALWAYS_ALLOWED: u32 = 2;

/// How many pods a node holds at most by default; how many it really holds is not watched.
const PODS_OF_A_NODE: u32 = 110;

/// How long an admission counts: a minute, and the second that is lost by counting whole seconds.
const WINDOW_SECONDS: i64 = 61;

/// How many nodes there are, and how many of them are unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes with the unreachable taint.
    pub unreachable: u32,
    /// All nodes.
    pub total: u32,
}

/// Since when too many nodes are unreachable, and how many they were when last counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Engaged {
    /// When the brake took hold.
    pub since: Timestamp,
    /// The last count.
    pub nodes: NodeCounts,
}

/// All that the brake remembers. Kept outside the process, it survives a restart and a change of leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrakeState {
    /// Pods admitted, by the second (Unix time) in which they were.
    admitted: BTreeMap<i64, u32>,
    /// Nodes admitted, likewise.
    admitted_nodes: BTreeMap<i64, u32>,
    /// Whether and since when too many nodes are unreachable.
    engaged: Option<Engaged>,
}

/// What holds an action back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "limit", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Held {
    /// Too large a share of nodes is unreachable.
    #[error(
        "{} of {} nodes are unreachable, more than brake.maxUnreachablePercent={max_unreachable_percent} allows, since {}",
        engaged.nodes.unreachable, engaged.nodes.total, engaged.since
    )]
    MaxUnreachablePercent {
        /// Since when, and the last count.
        engaged: Engaged,
        /// The limit.
        max_unreachable_percent: u8,
    },
    /// Too large a share of a zone's nodes is unreachable.
    #[error(
        "{} of {} nodes of zone {zone:?} are unreachable, more than brake.maxUnreachablePercent={max_unreachable_percent} allows",
        nodes.unreachable, nodes.total
    )]
    ZoneDown {
        /// The zone.
        zone: String,
        /// Its nodes.
        nodes: NodeCounts,
        /// The limit.
        max_unreachable_percent: u8,
    },
    /// The budget of this minute is spent.
    #[error(
        "brake.maxNodesPerMinute={max_nodes_per_minute} nodes were begun to be emptied within a minute, there is room again at {until}"
    )]
    MaxNodesPerMinute {
        /// The limit.
        max_nodes_per_minute: u32,
        /// The first instant at which there is room.
        until: Timestamp,
    },
    /// The budget of this minute is spent.
    #[error(
        "brake.maxPodsPerMinute={max_pods_per_minute} pods were recovered within a minute, there is room again at {until}"
    )]
    MaxPodsPerMinute {
        /// The limit.
        max_pods_per_minute: u32,
        /// The first instant at which there is room.
        until: Timestamp,
    },
}

impl Held {
    /// A stable name for metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MaxUnreachablePercent { .. } => "MaxUnreachablePercent",
            Self::ZoneDown { .. } => "ZoneDown",
            Self::MaxNodesPerMinute { .. } => "MaxNodesPerMinute",
            Self::MaxPodsPerMinute { .. } => "MaxPodsPerMinute",
        }
    }

    /// When it is over by itself; none if that depends on nodes coming back.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::MaxUnreachablePercent { .. } | Self::ZoneDown { .. } => None,
            Self::MaxPodsPerMinute { until, .. } | Self::MaxNodesPerMinute { until, .. } => Some(*until),
        }
    }
}

/// The brake took hold or let go: the moment to say so once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Too many nodes are unreachable from now on.
    Engaged(Engaged),
    /// No longer too many, after this.
    Released(Engaged),
}

impl Transition {
    /// The event that says so, once: its name follows from when the brake took hold.
    pub fn event(&self, regarding: Subject) -> EventNote {
        let (kind, reason, since, verb) = match self {
            Self::Engaged(Engaged { since, .. }) => {
                (EventType::Warning, reasons::BRAKE_ENGAGED, since, "engaged")
            }
            Self::Released(Engaged { since, .. }) => {
                (EventType::Normal, reasons::BRAKE_RELEASED, since, "released")
            }
        };
        EventNote {
            name: format!("salvor-brake-{verb}.{}", since.as_second()),
            regarding,
            kind,
            reason: reason.into(),
            action: events::HOLD_RECOVERIES,
            reporting_controller: events::POD_TERMINATION_CONTROLLER,
            message: self.to_string(),
        }
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engaged(Engaged { nodes, .. }) => write!(
                f,
                "{} of {} nodes are unreachable at once: recoveries wait until fewer are",
                nodes.unreachable, nodes.total
            ),
            Self::Released(Engaged { since, .. }) => {
                write!(
                    f,
                    "few enough nodes are unreachable again: recoveries go on, after they waited since {since}"
                )
            }
        }
    }
}

/// One budget for all recoveries.
#[derive(Clone, Debug)]
pub struct Brake {
    limits: BrakeLimits,
    state: BrakeState,
}

impl Brake {
    /// A brake that goes on where an earlier one stopped.
    pub fn new(limits: BrakeLimits, state: BrakeState) -> Self {
        Self { limits, state }
    }

    /// Goes on from what another process remembered. What holds here and now is not forgotten for it.
    pub fn restore(&mut self, state: BrakeState) {
        let engaged = state.engaged.or(self.state.engaged);
        self.state = BrakeState { engaged, ..state };
    }

    /// What to keep for the next process.
    pub fn state(&self) -> &BrakeState {
        &self.state
    }

    /// Whether too many nodes are unreachable, as last counted.
    pub fn engaged(&self) -> Option<Engaged> {
        self.state.engaged
    }

    /// Takes note of how many nodes are unreachable, and tells when that changes what is allowed.
    pub fn observe(&mut self, now: Timestamp, nodes: NodeCounts) -> Option<Transition> {
        let percent = u64::from(self.limits.max_unreachable_percent);
        let too_many = percent > 0
            && nodes.unreachable > NODES_ALWAYS_ALLOWED
            && u64::from(nodes.unreachable) * 100 > u64::from(nodes.total) * percent;
        match (self.state.engaged, too_many) {
            (None, true) => {
                let engaged = Engaged { since: now, nodes };
                self.state.engaged = Some(engaged);
                Some(Transition::Engaged(engaged))
            }
            (Some(before), true) => {
                self.state.engaged = Some(Engaged { nodes, ..before });
                None
            }
            (Some(before), false) => {
                self.state.engaged = None;
                Some(Transition::Released(before))
            }
            (None, false) => None,
        }
    }

    /// Whether so many more pods may be recovered now, without counting them.
    ///
    /// More pods at once than the whole budget pass when none were admitted in the last minute: they cannot be split.
    ///
    /// # Errors
    /// What holds them back.
    pub fn check(&self, now: Timestamp, pods: u32) -> Result<(), Held> {
        if let Some(engaged) = self.state.engaged {
            let max_unreachable_percent = self.limits.max_unreachable_percent;
            return Err(Held::MaxUnreachablePercent { engaged, max_unreachable_percent });
        }
        let max_pods_per_minute = self.limits.max_pods_per_minute;
        match full_until(&self.state.admitted, max_pods_per_minute, now, pods) {
            None => Ok(()),
            Some(until) => Err(Held::MaxPodsPerMinute { max_pods_per_minute, until }),
        }
    }

    /// Whether so many more pods may be recovered now; if so they count from now on.
    ///
    /// # Errors
    /// What holds them back.
    pub fn admit(&mut self, now: Timestamp, pods: u32) -> Result<(), Held> {
        self.check(now, pods)?;
        count_from_now_on(&mut self.state.admitted, self.limits.max_pods_per_minute, now, pods);
        Ok(())
    }

    fn check_both(&self, now: Timestamp, disruption: Disruption) -> Result<(), Held> {
        self.check(now, disruption.pods)?;
        let max_nodes_per_minute = self.limits.max_nodes_per_minute;
        match full_until(&self.state.admitted_nodes, max_nodes_per_minute, now, disruption.nodes) {
            None => Ok(()),
            Some(until) => Err(Held::MaxNodesPerMinute { max_nodes_per_minute, until }),
        }
    }

    fn admit_both(&mut self, now: Timestamp, disruption: Disruption) -> Result<(), Held> {
        self.check_both(now, disruption)?;
        let BrakeLimits { max_pods_per_minute, max_nodes_per_minute, .. } = self.limits;
        count_from_now_on(&mut self.state.admitted, max_pods_per_minute, now, disruption.pods);
        count_from_now_on(&mut self.state.admitted_nodes, max_nodes_per_minute, now, disruption.nodes);
        Ok(())
    }

    /// A judgement as the brake leaves it, for showing: nothing is counted.
    #[must_use]
    pub fn review<Why>(&self, now: Timestamp, judgement: Judgement<Why>) -> Judgement<Why> {
        match disruption(judgement.verdict.actions()).map_or(Ok(()), |much| self.check_both(now, much)) {
            Ok(()) => judgement,
            Err(held) => judgement.held_back(held),
        }
    }

    /// A judgement as the brake leaves it, for carrying out: what passes is counted.
    #[must_use]
    pub fn pass<Why>(&mut self, now: Timestamp, judgement: Judgement<Why>) -> Judgement<Why> {
        match disruption(judgement.verdict.actions()).map_or(Ok(()), |much| self.admit_both(now, much)) {
            Ok(()) => judgement,
            Err(held) => judgement.held_back(held),
        }
    }
}

/// How much a judgement takes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Disruption {
    pods: u32,
    nodes: u32,
}

/// Until when something that was let through at a time counts.
pub fn counts_until(admitted: Timestamp) -> Timestamp {
    end_of_window(admitted.as_second())
}

/// Until when there is no room for so many more; none if there is. A limit of 0 is no limit.
fn full_until(admitted: &BTreeMap<i64, u32>, limit: u32, now: Timestamp, more: u32) -> Option<Timestamp> {
    if limit == 0 || more == 0 {
        return None;
    }
    let room_for = u64::from(limit).saturating_sub(u64::from(more));
    let mut counted: u64 = counting(admitted, now).map(|(_, count)| u64::from(count)).sum();
    let mut until = None;
    for (second, count) in counting(admitted, now) {
        if counted <= room_for {
            break;
        }
        counted -= u64::from(count);
        until = Some(end_of_window(second));
    }
    until
}

fn count_from_now_on(admitted: &mut BTreeMap<i64, u32>, limit: u32, now: Timestamp, more: u32) {
    if limit == 0 || more == 0 {
        return;
    }
    let mut kept = BTreeMap::new();
    for (second, count) in counting(admitted, now) {
        add(&mut kept, second, count);
    }
    add(&mut kept, now.as_second(), more);
    *admitted = kept;
}

/// Admissions that still count. One from the future, by a clock that was ahead, counts as if it were made now.
fn counting(admitted: &BTreeMap<i64, u32>, now: Timestamp) -> impl Iterator<Item = (i64, u32)> + '_ {
    let this_second = now.as_second();
    admitted
        .iter()
        .map(move |(second, count)| ((*second).min(this_second), *count))
        .filter(move |(second, _)| now < end_of_window(*second))
}

fn add(admitted: &mut BTreeMap<i64, u32>, second: i64, more: u32) {
    let count = admitted.entry(second).or_default();
    *count = count.saturating_add(more);
}

fn end_of_window(second: i64) -> Timestamp {
    let start =
        Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX });
    start.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX)
}

/// How many pods and nodes the actions begin to recover; none if nothing is taken away from anyone.
///
/// A pod counts with its status patch, so that finishing what was begun costs nothing more, or with its graceful eviction. A node that is declared out
/// of service loses all its pods, so it counts as if it were full; one that we empty ourselves counts as a node, and its
/// pods one by one.
fn disruption(actions: &[Action]) -> Option<Disruption> {
    actions.iter().any(Action::is_disruptive).then(|| {
        let mut much = Disruption::default();
        for action in actions.iter().flat_map(Action::steps) {
            match action {
                Action::PatchPodStatus { .. } | Action::EvictPod { .. } => {
                    much.pods = much.pods.saturating_add(1);
                }
                Action::TaintNode { .. } => much.pods = much.pods.saturating_add(PODS_OF_A_NODE),
                Action::StartEviction { .. } => much.nodes = much.nodes.saturating_add(1),
                _ => {}
            }
        }
        much
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
    }

    fn brake(max_pods_per_minute: u32, max_unreachable_percent: u8) -> Brake {
        Brake::new(
            BrakeLimits { max_pods_per_minute, max_unreachable_percent, ..BrakeLimits::default() },
            BrakeState::default(),
        )
    }

    fn counts(unreachable: u32, total: u32) -> NodeCounts {
        NodeCounts { unreachable, total }
    }

    #[test]
    fn holds_only_above_the_share_and_above_two_nodes() {
        let cases = [
            (50, counts(0, 0), false),
            (50, counts(2, 2), false),
            (50, counts(2, 3), false),
            (50, counts(3, 6), false),
            (50, counts(3, 5), true),
            (50, counts(501, 1000), true),
            (50, counts(500, 1000), false),
            (100, counts(10, 10), false),
            (1, counts(3, 1000), false),
            (1, counts(11, 1000), true),
            (0, counts(10, 10), false),
            (50, counts(u32::MAX, u32::MAX), true),
        ];
        for (percent, nodes, held) in cases {
            let mut brake = brake(1000, percent);
            brake.observe(at(0), nodes);
            assert_eq!(brake.check(at(1), 1).is_err(), held, "{percent}% {nodes:?}");
        }
    }

    #[test]
    fn says_once_that_it_takes_hold_and_once_that_it_lets_go() {
        let mut brake = brake(1000, 50);
        assert_eq!(brake.observe(at(0), counts(2, 5)), None);
        let engaged = Engaged { since: at(1), nodes: counts(3, 5) };
        assert_eq!(brake.observe(at(1), counts(3, 5)), Some(Transition::Engaged(engaged)));
        assert_eq!(brake.observe(at(2), counts(4, 5)), None);
        let held = brake.check(at(3), 1).unwrap_err();
        assert_eq!(held.code(), "MaxUnreachablePercent");
        assert_eq!(held.until(), None);
        assert_eq!(
            held.to_string(),
            "4 of 5 nodes are unreachable, more than brake.maxUnreachablePercent=50 allows, since 2027-01-15T08:00:00.001Z"
        );
        let before = Engaged { since: at(1), nodes: counts(4, 5) };
        assert_eq!(brake.observe(at(4), counts(1, 5)), Some(Transition::Released(before)));
        assert_eq!(brake.observe(at(5), counts(1, 5)), None);
        assert_eq!(brake.check(at(6), 1), Ok(()));
    }

    #[test]
    fn a_restart_in_the_middle_changes_nothing() {
        let mut first = brake(2, 50);
        first.admit(at(0), 2).unwrap();
        first.observe(at(10), counts(3, 5));
        let kept = serde_json::to_string(first.state()).unwrap();
        let mut second = Brake::new(first.limits.clone(), serde_json::from_str(&kept).unwrap());
        assert_eq!(second.check(at(20), 0), first.check(at(20), 0));
        assert_eq!(second.observe(at(30), counts(3, 5)), None, "the event would be sent again");
        second.observe(at(40), counts(0, 5));
        assert!(matches!(second.check(at(50), 1), Err(Held::MaxPodsPerMinute { .. })));
        assert_eq!(serde_json::from_str::<BrakeState>("{}").unwrap(), BrakeState::default());
    }

    #[test]
    fn the_budget_is_spent_and_comes_back() {
        let mut brake = brake(3, 50);
        assert_eq!(brake.admit(at(0), 2), Ok(()));
        assert_eq!(brake.admit(at(30_000), 1), Ok(()));
        let held = brake.admit(at(30_001), 1).unwrap_err();
        assert_eq!(held, Held::MaxPodsPerMinute { max_pods_per_minute: 3, until: at(61_000) });
        assert_eq!(brake.check(at(60_999), 1).unwrap_err().until(), Some(at(61_000)));
        assert_eq!(brake.admit(at(61_000), 2), Ok(()));
        assert_eq!(brake.check(at(61_001), 1).unwrap_err().until(), Some(at(91_000)));
        assert_eq!(brake.check(at(61_001), 3).unwrap_err().until(), Some(at(122_000)));
    }

    #[test]
    fn no_limit_means_no_limit() {
        let mut brake = brake(0, 0);
        brake.observe(at(0), counts(10, 10));
        for _ in 0..3 {
            assert_eq!(brake.admit(at(1), u32::MAX), Ok(()));
        }
        assert_eq!(brake.state(), &BrakeState::default());
    }

    #[test]
    fn more_than_the_whole_budget_passes_alone() {
        let mut brake = brake(3, 50);
        assert_eq!(brake.admit(at(0), 5), Ok(()));
        assert!(brake.admit(at(1), 1).is_err());
        assert!(brake.check(at(60_000), 5).is_err());
        assert_eq!(brake.admit(at(61_000), 5), Ok(()));
    }

    #[test]
    fn a_clock_that_was_ahead_cannot_hold_for_longer_than_a_minute() {
        let mut brake = brake(1, 50);
        brake.admit(at(3_600_000_000), 1).unwrap();
        let until = brake.check(at(0), 1).unwrap_err().until().unwrap();
        assert_eq!(until, at(61_000));
        let mut state = BrakeState::default();
        state.admitted.extend([(i64::MAX, u32::MAX), (i64::MIN, u32::MAX)]);
        let brake = Brake::new(BrakeLimits::default(), state);
        assert!(brake.check(at(0), 1).is_err());
    }

    proptest! {
        #![proptest_config(crate::fuzz::cases(256))]

        #[test]
        fn no_minute_sees_more_than_the_budget(
            limit in 1u32..20,
            steps in proptest::collection::vec((0i64..20_000, 1u32..4), 1..200),
        ) {
            let mut brake = brake(limit, 50);
            let mut now = 0;
            let mut admitted: Vec<(i64, u32)> = Vec::new();
            for (pause, pods) in steps {
                now += pause;
                match brake.admit(at(now), pods) {
                    Ok(()) => admitted.push((now, pods)),
                    Err(held) => {
                        let until = held.until().unwrap();
                        prop_assert!(until > at(now));
                        prop_assert_eq!(brake.check(until, pods), Ok(()));
                        let just_before = until.checked_sub(SignedDuration::from_nanos(1)).unwrap();
                        prop_assert!(brake.check(just_before, pods).is_err());
                    }
                }
                let in_last_minute = admitted.iter().filter(|(time, _)| now - time < 60_000);
                let sum: u32 = in_last_minute.clone().map(|(_, pods)| pods).sum();
                prop_assert!(sum <= limit || in_last_minute.count() == 1);
                prop_assert!(brake.state().admitted.len() <= 62);
            }
        }
    }
}
