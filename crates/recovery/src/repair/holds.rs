//! The reasons that block a repair that is due, and their texts.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use salvor_api::names::repair::{annotations::REPAIRS, reasons};

use super::policy::amounts::Amount;
use super::views::Left;
use crate::brake::Held;
use crate::gate::{MACHINE_MAY_RUN, MachineMayRun};
use crate::ids::NodeName;
use crate::liveness::Lease;
use crate::objects::PodRef;
use crate::one_actor::NodeActor;
use crate::proof::Proof;

/// Nodes that are sick with a common cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    pub sick: usize,
    /// Nodes that healed recently.
    pub settling: usize,
    pub nodes: usize,
    /// When the outage ends unless more nodes heal. Set only if the nodes that are sick now are too few for an outage.
    pub settled_at: Option<Timestamp>,
    /// True if one of the nodes is under repair.
    pub busy: bool,
}

/// A pool's failure to get new machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchTrouble {
    pub what: String,
    /// When it ends by itself, if known.
    pub until: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    Paused,
    /// Too many nodes are past their toleration, so the nodes are not the cause, or not the only one.
    TooManyUnhealthy {
        unhealthy: usize,
        /// Nodes that were past their toleration and healed recently. They still count.
        settling: usize,
        limit: usize,
        nodes: usize,
        /// The limit as written in the policy.
        setting: Amount,
        /// When the block ends unless more nodes heal. Set only if the nodes that are past their toleration now are
        /// within the limit.
        settled_at: Option<Timestamp>,
        /// When this node gets its turn anyway. None if another node has the turn, or if the block never times out.
        ends: Option<Timestamp>,
        /// True if a node of the policy is under repair.
        busy: bool,
    },
    /// The nodes of a zone are sick, apparently with a common cause.
    ZoneOutage {
        zone: String,
        outage: Outage,
        /// When this node gets its turn anyway. None if another node of the zone has the turn, or if the block never
        /// times out.
        ends: Option<Timestamp>,
    },
    /// The nodes of a pool are sick, apparently with a common cause.
    PoolOutage {
        pool: String,
        /// The type of the condition that the sick nodes share.
        condition: String,
        outage: Outage,
        /// When this node gets its turn anyway. None if another node of the pool has the turn, or if the block never
        /// times out.
        ends: Option<Timestamp>,
    },
    /// New nodes of the pool have the same condition that replacing them should cure.
    RepairsDoNotHelp {
        pool: String,
        condition: String,
        /// The number of new nodes with the condition.
        sick: usize,
        /// When one more node is tried. None if that is due now.
        until: Option<Timestamp>,
    },
    /// New machines of the pool fail to launch.
    LaunchFailures {
        pool: String,
        trouble: LaunchTrouble,
    },
    AnotherRecovery(NodeActor),
    /// Nothing can replace the node. The text says why.
    NoBackend(String),
    /// The API server refused the write.
    BackendFailed {
        /// The server's message.
        words: String,
        /// When the write is retried.
        until: Timestamp,
    },
    BudgetExhausted {
        used: usize,
        allowed: usize,
        /// When a schedule changes the budget.
        until: Option<Timestamp>,
    },
    /// Every rung of the ladder was tried.
    LadderExhausted,
    /// Nothing owns the node, so nothing replaces its machine, which may still run.
    MachineMayRun {
        node: NodeName,
        /// The start of the drain.
        since: Timestamp,
        /// The pods that remain on the node, if known.
        left: Option<Left>,
        /// The first remaining pod that must not run twice, and why.
        once: Option<(PodRef, String)>,
        /// A statement that the machine is off, and the Lease because of which it does not count.
        doubt: Option<Box<(Proof, Lease)>>,
    },
    /// The brake, which limits all recoveries of the cluster.
    Brake(Held),
}

impl Hold {
    pub const TOO_MANY_UNHEALTHY: &'static str = "TooManyUnhealthy";
    pub const BUDGET_EXHAUSTED: &'static str = "BudgetExhausted";
    pub const ZONE_OUTAGE: &'static str = "ZoneOutage";
    pub const POOL_OUTAGE: &'static str = "PoolOutage";
    pub const REPAIRS_DO_NOT_HELP: &'static str = "RepairsDoNotHelp";

    /// A stable name for metrics, conditions and JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Paused => "Paused",
            Self::TooManyUnhealthy { .. } => Self::TOO_MANY_UNHEALTHY,
            Self::ZoneOutage { .. } => Self::ZONE_OUTAGE,
            Self::PoolOutage { .. } => Self::POOL_OUTAGE,
            Self::RepairsDoNotHelp { .. } => Self::REPAIRS_DO_NOT_HELP,
            Self::LaunchFailures { .. } => "LaunchFailures",
            Self::AnotherRecovery(_) => "AnotherRecovery",
            Self::NoBackend(_) => "NoBackend",
            Self::BackendFailed { .. } => "BackendFailed",
            Self::BudgetExhausted { .. } => Self::BUDGET_EXHAUSTED,
            Self::LadderExhausted => "LadderExhausted",
            Self::MachineMayRun { .. } => MACHINE_MAY_RUN,
            Self::Brake(held) => held.code(),
        }
    }

    /// A short text that changes when the node's condition has to be written again.
    pub fn token(&self) -> String {
        // The condition is written once when the time is first known, not whenever the time moves: every node that
        // heals moves it. `explain` shows the current time.
        let settles = if self.settled_at().is_some() { " settles" } else { "" };
        // An unreadable list of repairs has its own token: it replaces a condition that says the budget is exhausted.
        let unreadable = if self.is_of_an_unreadable_list() { " unreadable" } else { "" };
        let left = match self {
            Self::MachineMayRun { left, doubt, .. } => {
                let doubt = match doubt.as_deref() {
                    None => "",
                    Some((_, Lease::Unread)) => " unread",
                    Some((_, Lease::None | Lease::Renewed { .. })) => " doubted",
                };
                let left = left.as_ref().map_or("unknown".to_owned(), |left| left.pods.len().to_string());
                format!(" {left}{doubt}")
            }
            Self::Paused
            | Self::TooManyUnhealthy { .. }
            | Self::ZoneOutage { .. }
            | Self::PoolOutage { .. }
            | Self::RepairsDoNotHelp { .. }
            | Self::LaunchFailures { .. }
            | Self::AnotherRecovery(_)
            | Self::NoBackend(_)
            | Self::BackendFailed { .. }
            | Self::BudgetExhausted { .. }
            | Self::LadderExhausted
            | Self::Brake(_) => String::new(),
        };
        format!("{} {}{settles}{unreadable}{left}", reasons::BLOCKED, self.code())
    }

    /// True if the budget counts as exhausted only because the list of repairs under way cannot be read.
    fn is_of_an_unreadable_list(&self) -> bool {
        matches!(self, Self::BudgetExhausted { used: usize::MAX, .. })
    }

    /// When the block ends unless more nodes heal, if it waits only for that.
    fn settled_at(&self) -> Option<Timestamp> {
        match self {
            Self::TooManyUnhealthy { settled_at, .. } => *settled_at,
            Self::ZoneOutage { outage, .. } | Self::PoolOutage { outage, .. } => outage.settled_at,
            Self::Paused
            | Self::RepairsDoNotHelp { .. }
            | Self::LaunchFailures { .. }
            | Self::AnotherRecovery(_)
            | Self::NoBackend(_)
            | Self::BackendFailed { .. }
            | Self::BudgetExhausted { .. }
            | Self::LadderExhausted
            | Self::MachineMayRun { .. }
            | Self::Brake(_) => None,
        }
    }

    /// When the block ends, or may end, without a change in the cluster.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::BackendFailed { until, .. } => Some(*until),
            Self::BudgetExhausted { until, .. } => *until,
            Self::LaunchFailures { trouble, .. } => trouble.until,
            Self::Brake(held) => held.until(),
            Self::TooManyUnhealthy { settled_at, ends, .. } => settled_at.iter().chain(ends).min().copied(),
            Self::ZoneOutage { outage, ends, .. } | Self::PoolOutage { outage, ends, .. } => {
                outage.settled_at.into_iter().chain(*ends).min()
            }
            Self::RepairsDoNotHelp { until, .. } => *until,
            Self::Paused
            | Self::AnotherRecovery(_)
            | Self::NoBackend(_)
            | Self::LadderExhausted
            | Self::MachineMayRun { .. } => None,
        }
    }

    /// A sentence that says what would end the block.
    pub fn what_would_end_it(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Paused => "Somebody sets spec.paused of the policy to false.",
            Self::TooManyUnhealthy { .. } => {
                "Enough nodes become healthy, unhealthyLimit is raised, or repair.outageTimeout is over."
            }
            Self::ZoneOutage { .. } => {
                "Enough nodes of the zone become healthy, or repair.zoneSickPercent is raised."
            }
            Self::PoolOutage { .. } => {
                "Enough nodes of the pool become healthy, or repair.poolSickPercent is raised."
            }
            Self::RepairsDoNotHelp { .. } => {
                "A new node of the pool stays healthy, or those that are sick become healthy or go."
            }
            Self::LaunchFailures { .. } => "A new machine of the pool registers.",
            Self::AnotherRecovery(_) => "The other recovery finishes.",
            Self::NoBackend(_) => "Exactly one NodeClaim or Machine stands for the node.",
            Self::BackendFailed { .. } => "The API server accepts the write.",
            Self::BudgetExhausted { .. } => "A repair under way finishes, or the budget is raised.",
            Self::LadderExhausted => "A person repairs the node, or the policy's ladder gets another rung.",
            Self::MachineMayRun { node, since, left, once, doubt: _ } => {
                return Cow::Owned(ways_out(node, *since, left.as_ref(), once.as_ref()));
            }
            Self::Brake(_) => "The brake releases.",
        })
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the policy is paused"),
            Self::TooManyUnhealthy { unhealthy, settling, limit, nodes, setting, settled_at, ends, busy } => {
                write!(f, "{unhealthy} of {nodes} nodes are past their toleration")?;
                if let Some(until) = settled_at {
                    write!(f, ", and {settling} were until lately: held until {until} unless more heal; ")?;
                    return write!(f, "unhealthyLimit {setting} allows {limit}");
                }
                write!(f, ", more than unhealthyLimit {setting} allows, which is {limit}")?;
                match ends {
                    Some(ends) => write!(f, ": held until {ends}"),
                    None if *busy => f.write_str(": one at a time, and one is under repair"),
                    None => Ok(()),
                }
            }
            Self::ZoneOutage { zone, outage, ends } => {
                told(f, outage, &format!("zone {zone} are sick"), *ends)
            }
            Self::PoolOutage { pool, condition, outage, ends } => {
                told(f, outage, &format!("{} are sick by {condition}", named(pool)), *ends)
            }
            Self::RepairsDoNotHelp { pool, condition, sick, until } => {
                write!(f, "replacements do not help: {sick} new nodes of {} have {condition}", named(pool))?;
                match until {
                    Some(until) => write!(f, "; one node is tried again at {until}"),
                    None => f.write_str("; one node is tried again now"),
                }
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
            Self::MachineMayRun { node, since, left, once, doubt } => {
                write!(
                    f,
                    "nothing owns node {node}, so its machine may run; it is drained since {since}, and "
                )?;
                tell_left(f, left.as_ref())?;
                if let Some((pod, because)) = once {
                    write!(f, "; two of {pod} must not run: {because}")?;
                }
                if let Some((proof, lease)) = doubt.as_deref() {
                    write!(f, "; {proof}, which does not count while its kubelet may be heard of: {lease}")?;
                }
                write!(f, ". {}", ways_out(node, *since, left.as_ref(), once.as_ref()))
            }
            Self::Brake(held) => write!(f, "the brake holds it: {held}"),
        }
    }
}

/// The maximum number of pods named in a message.
const MOST_NAMED: usize = 5;

fn tell_left(f: &mut fmt::Formatter<'_>, left: Option<&Left>) -> fmt::Result {
    let Some(Left { pods }) = left else { return f.write_str("it is not known which pods are left") };
    let named: Vec<String> = pods.iter().take(MOST_NAMED).map(|it| it.pod.to_string()).collect();
    match pods.len().saturating_sub(MOST_NAMED) {
        0 if named.is_empty() => f.write_str("no pod is left"),
        0 => write!(f, "these pods are left: {}", named.join(", ")),
        more => write!(f, "these pods are left: {} and {more} more", named.join(", ")),
    }
}

/// The ways out for a node whose machine may run, as commands. They name the pod that must not run twice, or else the
/// first remaining pod.
fn ways_out(
    node: &NodeName,
    since: Timestamp,
    left: Option<&Left>,
    once: Option<&(PodRef, String)>,
) -> String {
    let first = left.and_then(|left| left.pods.first()).map(|it| &it.pod);
    let pod = once.map(|(pod, _)| pod).or(first);
    let of_pod = pod.map(|pod| {
        let waits = MachineMayRun {
            pod: pod.clone(),
            node: node.clone(),
            since: Some(since),
            because: once.map(|(_, because)| because.clone()).unwrap_or_default(),
        };
        waits.ways_out().map(|way| format!("; or {way}")).concat()
    });
    format!(
        "Bring the machine back, and Salvor uncordons the node{}; or take it out of the cluster when the machine is off: \
         kubectl delete node {node}",
        of_pod.unwrap_or_default()
    )
}

fn named(pool: &str) -> String {
    if pool.is_empty() { "no pool".to_owned() } else { format!("pool {pool}") }
}

fn told(f: &mut fmt::Formatter<'_>, outage: &Outage, of: &str, ends: Option<Timestamp>) -> fmt::Result {
    let Outage { sick, settling, nodes, settled_at, busy } = outage;
    write!(f, "{sick} of {nodes} nodes of {of}")?;
    if settled_at.is_some() {
        write!(f, ", and {settling} were until lately")?;
    }
    f.write_str(", which looks like one cause")?;
    match (settled_at, ends) {
        (Some(until), _) => write!(f, ": held until {until} unless more heal"),
        (None, Some(ends)) => write!(f, ": held until {ends}"),
        (None, None) if *busy => f.write_str(": one at a time, and one is under repair"),
        (None, None) => Ok(()),
    }
}
