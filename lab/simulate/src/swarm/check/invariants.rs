//! The names of the invariants. `docs/guarantees.md` has a line for each.

use std::fmt;

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No pod is marked Failed or force-deleted, and no node tainted out-of-service, while its kubelet sends
    /// heartbeats.
    ForceAlive,
    /// Each such write relies on a live read of the node that was sent within the second before it.
    LookAge,
    /// Each write to an object names the UID that the decision was based on.
    JudgedUid,
    /// A process that writes holds the Lease when the request is sent, by a renewal that is younger than the renew
    /// deadline.
    LeaseHeld,
    /// No more pods than the budget are marked Failed in any window, across restarts and changes of leader.
    BrakeWindow,
    /// Nothing is written after a pause was acknowledged.
    Paused,
    /// A dry run writes nothing but the holder of the Lease.
    DryRun,
    /// No pod is evicted later than a second after a user has stopped the eviction.
    Stopped,
    /// Salvor never makes work run twice that must not.
    RanTwice,
    /// A Job counts no pod twice, and none that has not terminated.
    JobCount,
    /// No Job has more pods at once than it asks for, nor two for one index, nor a name twice.
    JobPods,
    /// An AppWrapper releases its quota only after the last pod is gone, and begins no attempt beside another.
    Quota,
    /// No more nodes are under repair than the budget allows.
    RepairBudget,
    /// No node is replaced that was not unhealthy for its toleration.
    RepairSick,
    /// No recovery begins on a node while another one acts on it.
    OneActor,
    /// The number of reads of a process is bounded.
    Bounded,
    Panic,
    /// When faults cease, everything that may be recovered is, in time.
    Eventually,
    /// When everything is healthy again, no mark of Salvor is left on any object.
    LeftBehind,
}

impl Invariant {
    pub const ALL: [Self; 19] = [
        Self::ForceAlive,
        Self::LookAge,
        Self::JudgedUid,
        Self::LeaseHeld,
        Self::BrakeWindow,
        Self::Paused,
        Self::DryRun,
        Self::Stopped,
        Self::RanTwice,
        Self::JobCount,
        Self::JobPods,
        Self::Quota,
        Self::RepairBudget,
        Self::RepairSick,
        Self::OneActor,
        Self::Bounded,
        Self::Panic,
        Self::Eventually,
        Self::LeftBehind,
    ];

    /// True if it is also checked in the minute after the API went back to an older state. The other invariants rely on
    /// what a process has read: until it reads again, it cannot know that this is outdated.
    pub(super) fn holds_after_a_restore(self) -> bool {
        match self {
            Self::ForceAlive
            | Self::LookAge
            | Self::JudgedUid
            | Self::DryRun
            | Self::Bounded
            | Self::Panic
            | Self::Eventually
            | Self::LeftBehind => true,
            Self::LeaseHeld
            | Self::BrakeWindow
            | Self::Paused
            | Self::Stopped
            | Self::RanTwice
            | Self::JobCount
            | Self::JobPods
            | Self::Quota
            | Self::RepairBudget
            | Self::RepairSick
            | Self::OneActor => false,
        }
    }

    pub fn id(self) -> &'static str {
        match self {
            Self::ForceAlive => "force-alive",
            Self::LookAge => "look-age",
            Self::JudgedUid => "judged-uid",
            Self::LeaseHeld => "lease-held",
            Self::BrakeWindow => "brake-window",
            Self::Paused => "paused",
            Self::DryRun => "dry-run",
            Self::Stopped => "stopped",
            Self::RanTwice => "ran-twice",
            Self::JobCount => "job-count",
            Self::JobPods => "job-pods",
            Self::Quota => "quota",
            Self::RepairBudget => "repair-budget",
            Self::RepairSick => "repair-sick",
            Self::OneActor => "one-actor",
            Self::Bounded => "bounded",
            Self::Panic => "panic",
            Self::Eventually => "eventually",
            Self::LeftBehind => "left-behind",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub at: Timestamp,
    pub text: String,
}

impl Violation {
    pub(in crate::swarm) fn new(invariant: Invariant, at: Timestamp, text: impl Into<String>) -> Self {
        Self { invariant, at, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.invariant.id(), self.at, self.text)
    }
}
