//! Resets: which of them count, and what is written down about each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::bounds::shortened;
use super::conditions::up_to_the_second;
use super::names::reasons;
use super::policy::{AppWrapperPolicy, Counting, Timers};
use super::status::{AppWrapperStatus, Phase};
use super::views::{FoundComponent, PodView};
use crate::ids::NodeName;

/// So many resets are kept in the status. Older ones are dropped: a status must not grow without end.
pub const HISTORY: usize = 10;
/// So many pods, nodes and exit codes are kept of each.
pub const EVIDENCE: usize = 10;
/// So much of a message is kept.
const LONGEST_MESSAGE: usize = 256;

/// Why a workload is unhealthy. The name of each is the reason of the condition `Unhealthy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// A component could not be created.
    CreateFailed,
    /// A component is gone.
    MissingComponent,
    /// A component says that it failed.
    FailedComponent,
    /// Pods failed, and nothing took their place.
    FoundFailedPods,
    /// Pods use a resource of a node that Autopilot wants to be left.
    AutopilotNoExecute,
    /// Pods are on a node that is unreachable or force-evicted.
    NodeLost,
    /// Not all pods exist, or not all run, after the time that they may take.
    InsufficientPodsReady,
    /// The AppWrapper breaks a rule of admission.
    Refused,
}

impl Cause {
    /// The reason of the condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateFailed => reasons::CREATE_FAILED,
            Self::MissingComponent => reasons::MISSING_COMPONENT,
            Self::FailedComponent => reasons::FAILED_COMPONENT,
            Self::FoundFailedPods => reasons::FOUND_FAILED_PODS,
            Self::AutopilotNoExecute => reasons::AUTOPILOT_NO_EXECUTE,
            Self::NodeLost => reasons::NODE_LOST,
            Self::InsufficientPodsReady => reasons::INSUFFICIENT_PODS_READY,
            Self::Refused => reasons::REFUSED,
        }
    }
}

impl Cause {
    /// Whether it lies in the node alone, so that the workload has to leave it.
    fn leaves_a_node(self) -> bool {
        match self {
            Self::AutopilotNoExecute | Self::NodeLost => true,
            Self::CreateFailed
            | Self::MissingComponent
            | Self::FailedComponent
            | Self::FoundFailedPods
            | Self::InsufficientPodsReady
            | Self::Refused => false,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What made a workload unhealthy, with what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Why.
    pub cause: Cause,
    /// The message of the condition `Unhealthy`.
    pub condition: String,
    /// The message of the event and of the record.
    pub event: String,
    /// Whether the workload itself is at fault, and not its nodes, the scheduler or whoever evicted its pods.
    pub own_fault: bool,
    /// Whether another attempt is of no use.
    pub terminal: bool,
    /// The pods concerned, by name.
    pub pods: BTreeMap<String, PodRecord>,
    /// Names of the nodes concerned.
    pub nodes: BTreeSet<NodeName>,
    /// Exit codes of the pods concerned.
    pub exit_codes: BTreeSet<i32>,
}

impl Evidence {
    /// Evidence of which only the sentence is known.
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            cause,
            event: format!("{cause}: {message}"),
            condition: message,
            own_fault: true,
            terminal: false,
            pods: BTreeMap::new(),
            nodes: BTreeSet::new(),
            exit_codes: BTreeSet::new(),
        }
    }
}

/// One reset, or the end in Failed, as the status keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetRecord {
    /// When it was decided.
    pub time: Option<Timestamp>,
    /// The phase that it led to: `Resetting` or `Failed`.
    pub phase: Phase,
    /// The reason of the condition `Unhealthy`.
    pub cause: String,
    /// What a person reads.
    pub message: String,
    /// Whether it counted against the retry limit.
    pub counted: bool,
    /// The pods concerned, not all if there are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodRecord>,
    /// Names of the nodes concerned, not all if there are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// Exit codes of the pods concerned, also of those that are not in the list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<i32>,
}

/// A pod that was concerned by a reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodRecord {
    /// Its name.
    pub name: String,
    /// Its node, if it had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Why it was disrupted, if it was, or else its phase: preempted or crashed?
    pub reason: String,
    /// The first exit code of its containers that is not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl PodRecord {
    /// What is kept of a component that is a Pod and is lost.
    pub fn of_object(object: &FoundComponent) -> Option<(String, Self)> {
        let node = object.node_name.clone()?;
        let name = object.object.name.clone();
        let reason = object.disruption.clone().unwrap_or_else(|| "Deleted".into());
        Some((name.clone(), Self { name, node: Some(node), reason, exit_code: None }))
    }

    /// What is kept of a pod.
    pub fn of(pod: &PodView) -> (String, Self) {
        let reason = pod.disruption.clone().unwrap_or_else(|| pod.phase.to_string());
        let name = pod.pod.name.clone();
        let (node, exit_code) = (pod.node_name.clone(), pod.exit_codes.first().copied());
        (name.clone(), Self { name, node, reason, exit_code })
    }
}

/// Where an unhealthy workload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It is reset.
    Reset {
        /// Whether that counts against the retry limit.
        counted: bool,
    },
    /// It is given up.
    Fail(GivenUp),
}

/// Why an unhealthy workload is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Another attempt is of no use.
    Terminal,
    /// There were as many resets as there may be.
    LimitReached,
    /// There may be no resets.
    NoRetries,
}

impl Course {
    /// Reset or fail? `count` is the number of resets that counted so far.
    pub(super) fn of(evidence: &Evidence, count: i32, timers: &Timers, policy: &AppWrapperPolicy) -> Self {
        let limit = timers.retry_limit;
        let has_room = count < limit;
        let is_counted = evidence.own_fault || evidence.cause == Cause::NodeLost && policy.count_lost_nodes;
        let (counted, allowed) = match policy.counting {
            // Leaving a node is no retry. Everything else needs that retries are allowed at all.
            Counting::OwnFaults if !is_counted => (false, limit > 0 || evidence.cause.leaves_a_node()),
            Counting::OwnFaults => (true, has_room),
            Counting::AsUpstream => (evidence.cause != Cause::AutopilotNoExecute, has_room),
        };
        if evidence.terminal {
            Self::Fail(GivenUp::Terminal)
        } else if allowed {
            Self::Reset { counted }
        } else if limit > 0 {
            Self::Fail(GivenUp::LimitReached)
        } else {
            Self::Fail(GivenUp::NoRetries)
        }
    }

    pub(super) fn phase(self) -> Phase {
        match self {
            Self::Reset { .. } => Phase::Resetting,
            Self::Fail(_) => Phase::Failed,
        }
    }
}

/// Writes the reset or the failure into the status: phase, count and history.
pub(super) fn record(status: &mut AppWrapperStatus, course: Course, evidence: &Evidence, now: Timestamp) {
    let counted = course == Course::Reset { counted: true };
    status.phase = course.phase();
    if counted {
        status.resetting_count = status.resetting_count.saturating_add(1);
    }
    status.resets.push(ResetRecord {
        time: Some(up_to_the_second(now)),
        phase: course.phase(),
        cause: evidence.cause.as_str().into(),
        message: shortened(&evidence.event, LONGEST_MESSAGE),
        counted,
        pods: evidence.pods.values().take(EVIDENCE).cloned().collect(),
        nodes: evidence.nodes.iter().take(EVIDENCE).cloned().collect(),
        exit_codes: evidence.exit_codes.iter().take(EVIDENCE).copied().collect(),
    });
    let surplus = status.resets.len().saturating_sub(HISTORY);
    status.resets.drain(..surplus);
}
