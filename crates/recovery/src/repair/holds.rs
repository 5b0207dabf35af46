//! What holds a repair that is due.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::repair::{annotations::REPAIRS, reasons};

use super::amounts::Amount;
use super::survey::LaunchTrouble;
use crate::brake::Held;
use crate::one_actor::NodeActor;

/// What holds a repair that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The policy is paused.
    Paused,
    /// Too many nodes are past their toleration: it is not the nodes, or not only.
    TooManyUnhealthy {
        /// So many are.
        unhealthy: usize,
        /// So many may be.
        limit: usize,
        /// Of so many.
        nodes: usize,
        /// The limit as the policy has it.
        setting: Amount,
    },
    /// The nodes of a zone are sick for one cause.
    ZoneOutage {
        /// The zone.
        zone: String,
        /// Its sick nodes.
        sick: usize,
        /// All its nodes.
        nodes: usize,
    },
    /// New machines do not come up.
    LaunchFailures {
        /// The pool.
        pool: String,
        /// What was seen.
        trouble: LaunchTrouble,
    },
    /// Another recovery acts on the node.
    AnotherRecovery(NodeActor),
    /// Nothing can replace the node.
    NoBackend(String),
    /// The server refused to.
    BackendFailed {
        /// Its words.
        words: String,
        /// When it is tried again.
        until: Timestamp,
    },
    /// As many nodes as may be are under repair.
    BudgetExhausted {
        /// So many are.
        used: usize,
        /// So many may be.
        allowed: usize,
        /// When the budget changes by itself.
        until: Option<Timestamp>,
    },
    /// Everything on the ladder was tried.
    LadderExhausted,
    /// The brake, which is about the whole cluster.
    Brake(Held),
}

impl Hold {
    /// The code of an exhausted budget.
    pub const BUDGET_EXHAUSTED: &'static str = "BudgetExhausted";

    /// A stable name for metrics, conditions and JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Paused => "Paused",
            Self::TooManyUnhealthy { .. } => "TooManyUnhealthy",
            Self::ZoneOutage { .. } => "ZoneOutage",
            Self::LaunchFailures { .. } => "LaunchFailures",
            Self::AnotherRecovery(_) => "AnotherRecovery",
            Self::NoBackend(_) => "NoBackend",
            Self::BackendFailed { .. } => "BackendFailed",
            Self::BudgetExhausted { .. } => Self::BUDGET_EXHAUSTED,
            Self::LadderExhausted => "LadderExhausted",
            Self::Brake(held) => held.code(),
        }
    }

    /// A short text that changes when the node's condition has to be written again.
    pub fn token(&self) -> String {
        // A node that was told of a budget that is used up must be told that nobody knows how much of it is.
        let unreadable = if self.is_of_an_unreadable_list() { " unreadable" } else { "" };
        format!("{} {}{unreadable}", reasons::BLOCKED, self.code())
    }

    /// True if the budget counts as used up because nobody can read what is under way.
    fn is_of_an_unreadable_list(&self) -> bool {
        matches!(self, Self::BudgetExhausted { used: usize::MAX, .. })
    }

    /// When it is over by itself, or may be.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::BackendFailed { until, .. } => Some(*until),
            Self::BudgetExhausted { until, .. } => *until,
            Self::LaunchFailures { trouble, .. } => trouble.until,
            Self::Brake(held) => held.until(),
            Self::Paused
            | Self::TooManyUnhealthy { .. }
            | Self::ZoneOutage { .. }
            | Self::AnotherRecovery(_)
            | Self::NoBackend(_)
            | Self::LadderExhausted => None,
        }
    }

    /// A sentence that says what would end it.
    pub fn what_would_end_it(&self) -> &'static str {
        match self {
            Self::Paused => "Somebody sets spec.paused of the policy to false.",
            Self::TooManyUnhealthy { .. } => "Enough nodes become healthy, or unhealthyLimit is raised.",
            Self::ZoneOutage { .. } => {
                "Enough nodes of the zone become healthy, or repair.zoneSickPercent is raised."
            }
            Self::LaunchFailures { .. } => "A new machine of the pool registers.",
            Self::AnotherRecovery(_) => "The other recovery finishes.",
            Self::NoBackend(_) => "Exactly one NodeClaim or Machine stands for the node.",
            Self::BackendFailed { .. } => "The API server accepts the write.",
            Self::BudgetExhausted { .. } => "A repair under way finishes, or the budget is raised.",
            Self::LadderExhausted => "A person repairs the node, or the policy's ladder gets another rung.",
            Self::Brake(_) => "The brake releases.",
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the policy is paused"),
            Self::TooManyUnhealthy { unhealthy, limit, nodes, setting } => write!(
                f,
                "{unhealthy} of {nodes} nodes are past their toleration, more than unhealthyLimit {setting} allows, which is {limit}"
            ),
            Self::ZoneOutage { zone, sick, nodes } => {
                write!(f, "{sick} of {nodes} nodes of zone {zone} are sick, which looks like one cause")
            }
            Self::LaunchFailures { pool, trouble } => {
                write!(f, "pool {pool} gets no new nodes: {}", trouble.what)
            }
            Self::AnotherRecovery(actor) => write!(f, "{actor} acts on this node"),
            Self::NoBackend(why) => f.write_str(why),
            Self::BackendFailed { words, until } => {
                write!(f, "the API server refused the repair, which is tried again at {until}: {words}")
            }
            Self::BudgetExhausted { used: usize::MAX, .. } => {
                write!(
                    f,
                    "the list of repairs under way cannot be read: correct or remove status.repairs of the NodeRepairPolicy, or annotation \
                     {REPAIRS} of the NodePool"
                )
            }
            Self::BudgetExhausted { used, allowed, until } => {
                write!(f, "{used} nodes are under repair, and the budget allows {allowed}")?;
                until.map_or(Ok(()), |until| write!(f, " until {until}"))
            }
            Self::LadderExhausted => f.write_str("everything on the ladder was tried"),
            Self::Brake(held) => write!(f, "the brake holds it: {held}"),
        }
    }
}
