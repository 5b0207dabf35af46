//! The share of unreachable nodes, and how the brake releases after it was too large.
//!
//! Nodes that were lost together mostly come back together, one after the other. So when the share is small enough
//! again, nothing passes until the number of lost nodes has not fallen for a while (*settling*). Then a little passes,
//! and twice as much in each step (*gradual*). If more nodes come back meanwhile, it settles again.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::BrakeLimits;
use salvor_api::names::{events, reasons};
use serde::{Deserialize, Serialize};

use crate::event::{EventNote, EventType};
use crate::moments::after;
use crate::objects::ObjectRef;

/// In a small cluster two lost nodes are easily more than half of it, and still a routine failure.
const NODES_ALWAYS_ALLOWED: u32 = 2;

/// The length of a step of the gradual release. The node lifecycle controller checks nodes every five seconds, so a
/// node that came back within a step is known at its end.
const STEP: SignedDuration = SignedDuration::from_secs(5);

/// After this many steps only the budget per minute counts: 1023 pods have passed by then, more than the default
/// budget.
const STEPS: u32 = 10;

/// A flapping node makes the number of lost nodes fall again and again. Without a new minimum, that delays the release
/// for at most this many settle periods.
const PATIENCE: i32 = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes with the unreachable taint.
    pub unreachable: u32,
    pub total: u32,
}

impl NodeCounts {
    /// True if so many are unreachable that the nodes are not the likely cause. A limit of 0 means no limit.
    pub fn exceed(self, max_unreachable_percent: u8) -> bool {
        max_unreachable_percent > 0
            && self.unreachable > NODES_ALWAYS_ALLOWED
            && u64::from(self.unreachable) * 100 > u64::from(self.total) * u64::from(max_unreachable_percent)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Engaged {
    /// When the brake engaged.
    pub since: Timestamp,
    /// The last count.
    pub nodes: NodeCounts,
}

/// The state from when the share is small enough again until everything is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settling {
    /// The state that blocked before.
    after: Engaged,
    /// The number of lost nodes at the last count.
    lost: u32,
    /// When that number last fell.
    fell: Timestamp,
    /// The lowest number since the share became small enough.
    lowest: u32,
    /// When that minimum was first seen.
    lowest_since: Timestamp,
    /// Pods admitted since it settled.
    pods: u32,
    /// Nodes admitted since it settled.
    nodes: u32,
    /// True if the release was reported.
    told: bool,
}

impl Settling {
    fn new(now: Timestamp, after: Engaged, lost: u32) -> Self {
        let (fell, lowest_since) = (now, now);
        Self { after, lost, fell, lowest: lost, lowest_since, pods: 0, nodes: 0, told: false }
    }

    /// When the number of lost nodes will not have fallen for long enough.
    fn settled_at(&self, period: SignedDuration) -> Timestamp {
        after(self.fell, period).min(after(self.lowest_since, period.saturating_mul(PATIENCE)))
    }

    fn count(&mut self, now: Timestamp, lost: u32, period: SignedDuration) {
        let settled_before = self.settled_at(period) <= now;
        if lost < self.lost {
            self.fell = now;
        }
        if lost < self.lowest {
            (self.lowest, self.lowest_since) = (lost, now);
        }
        self.lost = lost;
        if settled_before && self.settled_at(period) > now {
            (self.pods, self.nodes) = (0, 0);
        }
    }
}

/// The share of unreachable nodes, of the cluster or of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Share {
    /// The engaged state, if the share is too large.
    engaged: Option<Engaged>,
    /// The state if the share was too large a moment ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    settling: Option<Settling>,
}

/// What a share allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Everything.
    Free,
    /// Nothing: the share is too large.
    Engaged(Engaged),
    /// Nothing before this time: the share was too large a moment ago.
    Settling { lost: u32, until: Timestamp },
    /// So many pods and nodes, and more with each step.
    Gradual(Gradual),
}

/// The amount admitted since it settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gradual {
    since: Timestamp,
    pods: u32,
    nodes: u32,
}

impl Gradual {
    /// When there is room for so many more; none if there is now.
    pub(super) fn full_until(&self, now: Timestamp, pods: u32, nodes: u32) -> Option<Timestamp> {
        let passed = |before: u32, more: u32| if more == 0 { 0 } else { before.saturating_add(more) };
        let needed = u64::from(passed(self.pods, pods).max(passed(self.nodes, nodes)));
        // 1 in the first step, 3 by the second, 7 by the third.
        let step = (0..STEPS).find(|step| needed < 2u64 << step).unwrap_or(STEPS);
        let room = after(self.since, STEP.saturating_mul(i32::try_from(step).unwrap_or(i32::MAX)));
        (now < room).then_some(room)
    }
}

impl Share {
    pub(super) fn engaged(&self) -> Option<Engaged> {
        self.engaged
    }

    pub(super) fn is_free(&self) -> bool {
        *self == Self::default()
    }

    /// Since when it blocks, or blocked a moment ago: for choosing between several.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.engaged.or(self.settling.map(|settling| settling.after)).map(|engaged| engaged.since)
    }

    pub(super) fn stage(&self, now: Timestamp, limits: &BrakeLimits) -> Stage {
        if let Some(engaged) = self.engaged {
            return Stage::Engaged(engaged);
        }
        let period = SignedDuration::from(limits.settle_period);
        let Some(settling) = self.settling.filter(|_| period.is_positive()) else { return Stage::Free };
        let until = settling.settled_at(period);
        if now < until {
            return Stage::Settling { lost: settling.lost, until };
        }
        if now >= after(until, STEP.saturating_mul(i32::try_from(STEPS).unwrap_or(i32::MAX))) {
            return Stage::Free;
        }
        Stage::Gradual(Gradual { since: until, pods: settling.pods, nodes: settling.nodes })
    }

    /// Records a count, and returns a change of what is allowed.
    pub(super) fn observe(
        &mut self,
        now: Timestamp,
        nodes: NodeCounts,
        limits: &BrakeLimits,
    ) -> Option<Transition> {
        self.forget_the_future(now);
        let period = SignedDuration::from(limits.settle_period);
        match (self.engaged, nodes.exceed(limits.max_unreachable_percent)) {
            (Some(before), true) => {
                self.engaged = Some(Engaged { nodes, ..before });
                None
            }
            (None, true) => {
                let engaged = Engaged { since: now, nodes };
                *self = Self { engaged: Some(engaged), settling: None };
                Some(Transition::Engaged(engaged))
            }
            (Some(before), false) if limits.max_unreachable_percent == 0 || !period.is_positive() => {
                *self = Self::default();
                Some(Transition::Released(before))
            }
            (Some(before), false) => {
                let settling = Settling::new(now, before, nodes.unreachable);
                let until = settling.settled_at(period);
                *self = Self { engaged: None, settling: Some(settling) };
                Some(Transition::Settling { after: before, nodes, until })
            }
            (None, false) => {
                // A node that comes back later does not reopen an incident that is over.
                if self.stage(now, limits) != Stage::Free
                    && let Some(settling) = &mut self.settling
                {
                    settling.count(now, nodes.unreachable, period);
                }
                self.go_on(now, limits)
            }
        }
    }

    /// The changes that time alone has caused.
    fn go_on(&mut self, now: Timestamp, limits: &BrakeLimits) -> Option<Transition> {
        let stage = self.stage(now, limits);
        let settling = self.settling.as_mut()?;
        let released = Transition::Released(settling.after);
        let is_news = !settling.told;
        match stage {
            Stage::Engaged(_) | Stage::Settling { .. } => return None,
            Stage::Gradual(_) => settling.told = true,
            Stage::Free => self.settling = None,
        }
        is_news.then_some(released)
    }

    /// When what is allowed changes without a change of a node.
    pub(super) fn changes_at(&self, now: Timestamp, limits: &BrakeLimits) -> Option<Timestamp> {
        match self.stage(now, limits) {
            Stage::Settling { until, .. } => Some(until),
            Stage::Free | Stage::Engaged(_) | Stage::Gradual(_) => None,
        }
    }

    pub(super) fn passed(&mut self, now: Timestamp, limits: &BrakeLimits, pods: u32, nodes: u32) {
        if let Stage::Gradual(_) = self.stage(now, limits)
            && let Some(settling) = &mut self.settling
        {
            settling.pods = settling.pods.saturating_add(pods);
            settling.nodes = settling.nodes.saturating_add(nodes);
        }
    }

    /// Continues from the state of another process, but keeps what blocks here and now.
    pub(super) fn restore(&mut self, now: Timestamp, other: Self) {
        let engaged = other.engaged.or(self.engaged);
        let later = match (self.settling, other.settling) {
            (Some(ours), Some(theirs)) if ours.fell > theirs.fell => Some(ours),
            (ours, theirs) => theirs.or(ours),
        };
        *self = Self { engaged, settling: later.filter(|_| engaged.is_none()) };
        self.forget_the_future(now);
    }

    /// Treats times in the future, from a fast clock or a manual edit, as now: nothing blocks for longer than it
    /// should.
    pub(super) fn forget_the_future(&mut self, now: Timestamp) {
        if let Some(engaged) = &mut self.engaged {
            engaged.since = engaged.since.min(now);
        }
        if let Some(settling) = &mut self.settling {
            settling.after.since = settling.after.since.min(now);
            settling.fell = settling.fell.min(now);
            settling.lowest_since = settling.lowest_since.min(now);
        }
    }
}

/// The brake engaged or released: the moment to report it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Too many nodes are unreachable from now on.
    Engaged(Engaged),
    /// No longer too many, but more nodes may come back.
    Settling {
        /// The state that blocked before.
        after: Engaged,
        nodes: NodeCounts,
        /// When it releases if no more nodes come back.
        until: Timestamp,
    },
    /// Recoveries continue after this outage.
    Released(Engaged),
}

impl Transition {
    /// The event that reports it once: its name follows from the time when the brake engaged.
    pub fn event(&self, regarding: ObjectRef) -> Option<EventNote> {
        let (kind, reason, since, verb) = match self {
            Self::Engaged(Engaged { since, .. }) => {
                (EventType::Warning, reasons::BRAKE_ENGAGED, since, "engaged")
            }
            Self::Released(Engaged { since, .. }) => {
                (EventType::Normal, reasons::BRAKE_RELEASED, since, "released")
            }
            // The brake still blocks: waiting subjects report until when.
            Self::Settling { .. } => return None,
        };
        Some(EventNote {
            name: format!("salvor-brake-{verb}.{}", since.as_second()),
            regarding,
            kind,
            reason: reason.into(),
            action: events::HOLD_RECOVERIES,
            reporting_controller: events::POD_TERMINATION_CONTROLLER,
            message: self.to_string(),
        })
    }
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engaged(Engaged { nodes, .. }) => write!(
                f,
                "{} of {} nodes are unreachable at once: recoveries wait until fewer nodes are unreachable",
                nodes.unreachable, nodes.total
            ),
            Self::Settling { nodes, until, .. } => write!(
                f,
                "{} of {} nodes are still unreachable: recoveries wait until {until}, and longer if more nodes become Ready",
                nodes.unreachable, nodes.total
            ),
            Self::Released(Engaged { since, .. }) => {
                write!(f, "fewer nodes are unreachable now: recoveries go on. They have waited since {since}")
            }
        }
    }
}
