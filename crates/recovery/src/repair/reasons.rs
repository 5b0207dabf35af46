//! The reasons forevery decision of the repair recovery, with their messages.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::repair::{
    annotations::{PROGRESS, REPAIRS},
    reasons as names,
};

use super::action::Action;
use super::holds::Hold;
use super::sickness::Sick;
use super::veto::Veto;
use crate::verdict::Reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeWhy {
    Disabled,
    NotSelected,
    InvalidPolicy {
        defect: String,
    },
    /// The caches of policies, nodes or machines are not complete yet.
    NotListed,
    /// No condition that the policy or the provider names is sick.
    Healthy,
    /// The node is sick, and the policy names no action for that condition.
    ActionNone {
        condition: String,
    },
    /// The machine registered again after its Node was deleted.
    CameBack {
        deleted: Timestamp,
    },
    /// The node was sick until recently.
    HealthyAgain {
        /// When its clocks reset.
        until: Timestamp,
    },
    TolerationRunning {
        sick: Box<Sick>,
    },
    /// A person has vetoed the repair.
    Vetoed {
        sick: Box<Sick>,
        veto: Box<Veto>,
    },
    Held {
        sick: Box<Sick>,
        hold: Box<Hold>,
    },
    /// The repair begins as soon as the policy's status lists it.
    NotReserved {
        sick: Box<Sick>,
    },
    /// The annotation on the node cannot be read, so it is unknown what was tried.
    AnnotationUnreadable {
        problem: Box<str>,
    },
    /// The node is being deleted, and not by Salvor.
    BeingDeleted,
    RepairUnderWay {
        action: Action,
        since: Timestamp,
        /// True if it takes too long.
        stuck: bool,
    },
    /// The node has been sick for longer than tolerated, and is repaired.
    Sick {
        sick: Box<Sick>,
        action: Action,
    },
}

impl fmt::Display for NodeWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("the repair recovery is switched off"),
            Self::NotSelected => f.write_str("no repair policy selects this node"),
            Self::InvalidPolicy { defect } => write!(f, "its repair policy cannot be read: {defect}"),
            Self::NotListed => f.write_str("not all policies, nodes and machines are known yet"),
            Self::Healthy => f.write_str("the node is healthy"),
            Self::ActionNone { condition } => write!(f, "{condition}, for which the policy does nothing"),
            Self::CameBack { deleted } => {
                write!(
                    f,
                    "its machine is back, whose Node was deleted at {deleted}: it gets its labels, annotations and taints again"
                )
            }
            Self::HealthyAgain { until } => {
                write!(f, "the node is healthy again; its clocks are reset at {until} if it stays so")
            }
            Self::TolerationRunning { sick } => write!(f, "{sick}, until {}", sick.deadline),
            Self::Vetoed { sick, veto } => {
                write!(f, "{sick}; {} forbids its repair", veto.by)?;
                veto.until.map_or(Ok(()), |until| write!(f, " until {until}"))
            }
            Self::Held { sick, hold } => write!(f, "{}: {hold} ({sick})", hold.code()),
            Self::NotReserved { sick } => {
                write!(f, "{sick}; its repair begins as soon as the policy's status says so")
            }
            Self::AnnotationUnreadable { problem } => write!(
                f,
                "annotation {PROGRESS} of the node cannot be read ({problem}), so nothing is done to the node. Correct it, or remove it: \
                 then Salvor knows nothing of what it has tried"
            ),
            Self::BeingDeleted => f.write_str("the node is being deleted already"),
            Self::RepairUnderWay { action, since, stuck: false } => {
                write!(f, "its repair is under way since {since} ({action})")
            }
            Self::RepairUnderWay { action, since, stuck: true } => {
                write!(f, "its repair is under way since {since} ({action}), and takes too long")
            }
            Self::Sick { sick, action } => write!(f, "{sick}, which is over ({action})"),
        }
    }
}

impl Reason for NodeWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::Disabled => "Disabled",
            Self::NotSelected => "NotSelected",
            Self::InvalidPolicy { .. } => "InvalidPolicy",
            Self::NotListed => "NotListed",
            Self::Healthy => "Healthy",
            Self::ActionNone { .. } => "ActionNone",
            Self::CameBack { .. } => "CameBack",
            Self::HealthyAgain { .. } => "HealthyAgain",
            Self::TolerationRunning { .. } => "TolerationRunning",
            Self::Vetoed { .. } => "Vetoed",
            Self::Held { hold, .. } => hold.code(),
            Self::NotReserved { .. } => "NotReserved",
            Self::AnnotationUnreadable { .. } => names::UNREADABLE,
            Self::BeingDeleted => "BeingDeleted",
            Self::RepairUnderWay { .. } => "RepairUnderWay",
            Self::Sick { .. } => "Sick",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::Disabled => "The administrator adds repair to controllers.".into(),
            Self::NotSelected => {
                "A NodeRepairPolicy selects the node, or its NodePool gets a block spec.repair.".into()
            }
            Self::InvalidPolicy { .. } => "Somebody corrects the policy.".into(),
            Self::NotListed => "All of them are listed.".into(),
            Self::Healthy => "A condition that the policy or the provider names becomes sick.".into(),
            Self::ActionNone { condition } => format!("The policy names another action for {condition}."),
            Self::CameBack { .. } => "They are written.".into(),
            Self::HealthyAgain { .. } => "The node stays healthy, or becomes sick again.".into(),
            Self::TolerationRunning { sick } => {
                format!("The condition becomes healthy, or it is {}.", sick.deadline)
            }
            Self::Vetoed { veto, .. } => match veto.until {
                Some(until) => format!("It is {until}, or the veto is removed."),
                None => "The veto is removed.".into(),
            },
            Self::Held { hold, .. } => hold.what_would_end_it().into_owned(),
            Self::NotReserved { .. } => "The policy's status lists the node among its repairs.".into(),
            Self::AnnotationUnreadable { .. } => {
                format!("Somebody corrects or removes the annotation {PROGRESS}.")
            }
            Self::BeingDeleted => "Nothing: the node goes.".into(),
            Self::RepairUnderWay { .. } => "The node is gone, or healthy again.".into(),
            Self::Sick { .. } => "The node becomes healthy before it is repaired.".into(),
        }
    }
}

/// Why a policy's status is written, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyWhy {
    /// The caches of policies, nodes or machines are not complete yet.
    NotListed,
    Invalid {
        defect: String,
    },
    /// The list of repairs under way cannot be read: another writer has changed it.
    ListDamaged,
    Repairs {
        begin: usize,
        /// Repairs that are over or no longer needed.
        end: usize,
    },
    Counts,
    /// The status is up to date.
    Settled,
    /// A NodePool without a block `spec.repair`.
    NotOurs,
}

impl fmt::Display for PolicyWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotListed => f.write_str("not all policies, nodes and machines are known yet"),
            Self::Invalid { defect } => write!(f, "the policy selects nothing: {defect}"),
            Self::ListDamaged => {
                write!(
                    f,
                    "the list of its repairs under way (status.repairs, or annotation {REPAIRS}) cannot be read, so nothing is begun"
                )
            }
            Self::Repairs { begin, end } => write!(f, "{begin} repairs begin, {end} end"),
            Self::Counts => f.write_str("counts or conditions have changed"),
            Self::Settled => f.write_str("its status is up to date"),
            Self::NotOurs => f.write_str("a NodeRepairPolicy counts, or there is no block spec.repair"),
        }
    }
}

impl Reason for PolicyWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::NotListed => "NotListed",
            Self::Invalid { .. } => "InvalidSpec",
            Self::ListDamaged => "ListDamaged",
            Self::Repairs { .. } => "Repairs",
            Self::Counts => "Counts",
            Self::Settled => "Settled",
            Self::NotOurs => "NotOurs",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::NotListed => "All of them are listed.".into(),
            Self::Invalid { .. } => "Somebody corrects the spec.".into(),
            Self::ListDamaged => {
                format!("Somebody corrects or removes the list: status.repairs, or the annotation {REPAIRS}.")
            }
            Self::Repairs { .. } | Self::Counts => "The status is written.".into(),
            Self::Settled => "A node of the policy changes, or its time has come.".into(),
            Self::NotOurs => "The NodePool gets a block spec.repair.".into(),
        }
    }
}
