//! Decides which resets count against the retry limit, and records each reset.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;

use super::bounds::shortened;
use super::names::reasons;
use super::policy::{AppWrapperPolicy, Counting, Timers};
use super::status::{AppWrapperStatus, Phase, PodRecord, ResetRecord};
use super::views::{FoundComponent, PodView};
use crate::ids::NodeName;
use crate::moments::up_to_the_second;

/// The maximum number of resets kept in the status. Older ones are dropped, so that the status does not grow without
/// end.
pub const HISTORY: usize = 10;
/// The maximum number of pods, nodes and exit codes kept for each reset.
pub const EVIDENCE: usize = 10;
/// The maximum length of a message in bytes of JSON.
const LONGEST_MESSAGE: usize = 256;

/// Why a workload is unhealthy. The name is the reason of the condition `Unhealthy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    CreateFailed,
    MissingComponent,
    /// A component reports that it failed.
    FailedComponent,
    /// Pods failed and were not replaced.
    FoundFailedPods,
    /// Pods use a resource of a node that Autopilot marks with NoExecute.
    AutopilotNoExecute,
    /// Pods are on a node that is unreachable or force-evicted.
    NodeLost,
    /// Not all pods exist, or not all run, after their grace period.
    InsufficientPodsReady,
    /// The AppWrapper breaks an admission rule.
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
    /// True if the cause is the node alone, so that the workload has to leave it.
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

/// The cause of an unhealthy workload, with the observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub cause: Cause,
    /// The message of the condition `Unhealthy`.
    pub condition: String,
    /// The message of the event and of the record.
    pub event: String,
    /// True if the workload itself is at fault, and not its nodes, the scheduler or an eviction.
    pub own_fault: bool,
    /// True if another attempt would not help.
    pub terminal: bool,
    /// The affected pods by name.
    pub pods: BTreeMap<String, PodRecord>,
    pub nodes: BTreeSet<NodeName>,
    pub exit_codes: BTreeSet<i32>,
}

impl Evidence {
    /// Evidence with a message and without pods, nodes or exit codes.
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

impl PodRecord {
    /// The record of a lost component that is a Pod.
    pub fn of_object(object: &FoundComponent) -> Option<(String, Self)> {
        let node = object.node_name.clone()?;
        let name = object.object.name.clone();
        let reason = object.disruption.clone().unwrap_or_else(|| "Deleted".into());
        Some((name.clone(), Self { name, node: Some(node), reason, exit_code: None }))
    }

    pub fn of(pod: &PodView) -> (String, Self) {
        let reason = pod.disruption.clone().unwrap_or_else(|| pod.phase.to_string());
        let name = pod.pod.name.clone();
        let (node, exit_code) = (pod.node_name.clone(), pod.exit_codes.first().copied());
        (name.clone(), Self { name, node, reason, exit_code })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Reset {
        /// True if the reset counts against the retry limit.
        counted: bool,
    },
    Fail(GivenUp),
}

/// Why an unhealthy workload is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Another attempt would not help.
    Terminal,
    LimitReached,
    /// The retry limit allows no reset at all.
    NoRetries,
}

impl Course {
    /// Decides between reset and failure. `count` is the number of resets that counted so far.
    pub(super) fn of(evidence: &Evidence, count: i32, timers: &Timers, policy: &AppWrapperPolicy) -> Self {
        let limit = timers.retry_limit;
        let has_room = count < limit;
        let is_counted = evidence.own_fault || evidence.cause == Cause::NodeLost && policy.count_lost_nodes;
        let (counted, allowed) = match policy.counting {
            // Leaving a node is not a retry. Every other reset requires that retries are allowed at all.
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

/// Writes phase, count and history into the status.
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
