//! The names of the invariants. `docs/guarantees.md` has a line for each.

use std::fmt;

use jiff::Timestamp;

/// A promise that a seed may find broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No pod is marked Failed or removed by force, and no node tainted out-of-service, while its kubelet is heard.
    ForceAlive,
    /// Each such write rests on a live read of the node that was sent within the second before it.
    LookAge,
    /// Each write to an object names the UID that was judged.
    JudgedUid,
    /// Whoever writes holds the Lease when the request is sent, by a renewal that is younger than the renew deadline.
    LeaseHeld,
    /// Not more pods than the budget are marked Failed in any window, across restarts and changes of leader.
    BrakeWindow,
    /// Nothing is written after a pause was acknowledged.
    Paused,
    /// A dry run writes nothing but who holds the Lease.
    DryRun,
    /// No pod is evicted later than a second after a person has stopped the eviction.
    Stopped,
    /// Work that must not run twice never does by Salvor's doing.
    RanTwice,
    /// A Job counts no pod twice, and none that has not ended.
    JobCount,
    /// No Job has more pods at once than it asks for, nor two for one index, nor a name twice.
    JobPods,
    /// An AppWrapper gives its quota back after the last pod is gone, and begins no attempt beside another.
    Quota,
    /// No more nodes are under repair than the budget allows.
    RepairBudget,
    /// No node is replaced that was not sick for its toleration.
    RepairSick,
    /// No recovery begins on a node while another one acts on it.
    OneActor,
    /// The reads of a process are bounded.
    Bounded,
    /// Nothing panics.
    Panic,
    /// When faults cease, everything that may be recovered is, in time.
    Eventually,
    /// When all is well again, nothing of Salvor's is left on any object.
    LeftBehind,
}

impl Invariant {
    /// All of them.
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

    /// True if it is checked also in the minute after the API went back to an older state. The others rest on what the API has told: until
    /// it is asked again, nobody knows that something of it is not so any more.
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

    /// Its id.
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

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub invariant: Invariant,
    /// When.
    pub at: Timestamp,
    /// What happened.
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
