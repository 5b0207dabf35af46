//! The input of zombie recovery: only the fields that it decides by.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::TerminateAction;
use salvor_api::names::{annotations, reasons, taints};
use salvor_api::{GoDuration, Labels, ParseGoDurationError};

use super::job_facts::OfJob;
use crate::ids::{NodeName, ResourceVersion};
use crate::liveness::{Heartbeat, NodeLease};
use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready, Taint, boot_to_remember};
use crate::one_actor::{EvictionSign, NodeSigns};

/// How much of an unreadable value is kept: enough to recognize it.
const LONGEST_SHOWN: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub pod: PodRef,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    /// Rules select by them.
    pub labels: Labels,
    /// The annotations by which its owner consents, and on which terms.
    pub consent: ConsentAnnotations,
    pub phase: PodPhase,
    pub deletion: Option<Deletion>,
    /// The node to which it is bound.
    pub node_name: Option<NodeName>,
    /// The mark of an earlier recovery.
    pub mark: Option<Mark>,
    /// True if it has the condition `DisruptionTarget=True`.
    pub disruption_target: bool,
    /// True if the event about its recovery is known to be recorded.
    pub announced: bool,
    /// True if the event about its unreadable wait is recorded, or not needed.
    pub wait_told: bool,
    /// True if the event about its unreadable evict-after is recorded, or not needed.
    pub evict_told: bool,
    /// The Job that controls it.
    pub job: Option<Box<OfJob>>,
}

/// The relevant annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsentAnnotations {
    /// `kueue.x-k8s.io/safe-to-forcefully-terminate`.
    pub terminate: Option<String>,
    /// `kueue.x-k8s.io/safe-to-forcefully-delete`.
    pub delete: Option<String>,
    /// `salvor.dev/termination-grace-after`.
    pub wait: AskedWait,
    /// `salvor.dev/evict-after`.
    pub evict_after: AskedWait,
}

impl ConsentAnnotations {
    pub fn from_annotations(all: &BTreeMap<String, String>) -> Self {
        let value = |key| all.get(key).map(|value| cut(value));
        let duration = |key| all.get(key).map_or(AskedWait::Unset, |it| AskedWait::of(it));
        Self {
            terminate: value(annotations::SAFE_TO_FORCEFULLY_TERMINATE),
            delete: value(annotations::SAFE_TO_FORCEFULLY_DELETE),
            wait: duration(annotations::TERMINATION_GRACE_AFTER),
            evict_after: duration(annotations::EVICT_AFTER),
        }
    }
}

/// A duration that a pod's own annotation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AskedWait {
    #[default]
    Unset,
    /// A value too long for the type becomes the longest duration.
    For(SignedDuration),
    Unreadable {
        /// The value, or its beginning.
        value: String,
        defect: WaitDefect,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitDefect {
    /// Not a duration.
    Malformed,
    Negative,
}

impl fmt::Display for WaitDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "is not a duration such as 30s or 1m30s",
            Self::Negative => "is negative",
        })
    }
}

impl AskedWait {
    pub(super) fn is_unreadable(&self) -> bool {
        match self {
            Self::Unreadable { .. } => true,
            Self::Unset | Self::For(_) => false,
        }
    }

    pub fn of(value: &str) -> Self {
        let unreadable = |defect| Self::Unreadable { value: cut(value), defect };
        match value.parse::<GoDuration>() {
            Ok(wait) if wait.is_negative() => unreadable(WaitDefect::Negative),
            Ok(wait) => Self::For(wait.into()),
            Err(ParseGoDurationError::Overflow { .. }) if value.starts_with('-') => {
                unreadable(WaitDefect::Negative)
            }
            Err(ParseGoDurationError::Overflow { .. }) => Self::For(GoDuration::MAX.into()),
            Err(_) => unreadable(WaitDefect::Malformed),
        }
    }
}

/// The beginning of a value: annotations may be long, and thousands of pods are kept in memory.
fn cut(value: &str) -> String {
    value.chars().take(LONGEST_SHOWN).collect()
}

/// The condition that a recovery leaves on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub action: TerminateAction,
    /// When it was written. Kueue's own controller does not record this.
    pub since: Option<Timestamp>,
}

impl Mark {
    /// Reads a condition of type `KueueFailureRecovery`, from Salvor or another controller.
    pub fn from_condition(status: &str, reason: &str, since: Option<Timestamp>) -> Option<Self> {
        let action = match reason {
            reasons::KUEUE_FORCEFULLY_TERMINATED => TerminateAction::Fail,
            reasons::KUEUE_FORCEFULLY_DELETED => TerminateAction::FailAndDelete,
            _ => return None,
        };
        (status == "True").then_some(Self { action, since })
    }

    /// True if that recovery already began the action that is requested now.
    pub(super) fn covers(self, action: TerminateAction) -> bool {
        self.action == action || self.action == TerminateAction::FailAndDelete
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub node: NodeRef,
    /// The resourceVersion that the decision rests on.
    pub resource_version: ResourceVersion,
    /// Rules select by them.
    pub labels: Labels,
    /// The unreachable taint, if the node has it.
    pub unreachable: Option<Unreachable>,
    pub ready: Ready,
    /// The boot ID that its kubelet reports; empty if it reports none.
    pub boot_id: Box<str>,
    /// The heartbeat of its `Ready` condition, which takes the place of a missing Lease.
    pub ready_heartbeat: Option<NodeLease>,
    /// The heartbeat of its kubelet, from the Lease. Leases are not watched, so it may be unread; it is read before
    /// anything is done.
    pub heartbeat: Heartbeat,
    /// Its taints with the key `node.kubernetes.io/out-of-service`.
    pub out_of_service: Vec<Taint>,
    /// Our annotation that marks the out-of-service taint as ours.
    pub out_of_service_mark: Option<OutOfServiceMark>,
    pub taints: Vec<Taint>,
    pub eviction: EvictionSign,
    /// True if the event about our taint is known to be recorded.
    pub announced: bool,
    /// True if the event about its return without a reboot is known to be recorded.
    pub return_told: bool,
}

impl NodeView {
    /// The boot ID to store with our taint; none if it is unknown.
    pub(super) fn boot_to_remember(&self) -> Option<String> {
        boot_to_remember(&self.boot_id)
    }

    /// True if our taint is on it, and its machine has not rebooted since: its volumes were detached by force, and its
    /// old containers may still run. A missing boot ID counts as the same boot.
    pub(super) fn may_still_use_volumes(&self, mark: &OutOfServiceMark) -> bool {
        let same_boot = |boot: &String| self.boot_id.is_empty() || *self.boot_id == **boot;
        self.out_of_service.contains(&out_of_service_taint()) && mark.boot_id.as_ref().is_some_and(same_boot)
    }

    /// The heartbeat that a read of its Lease shows; that of its `Ready` condition if it has no Lease.
    pub fn heartbeat_in(&self, lease: Option<NodeLease>, now: Timestamp) -> Option<NodeLease> {
        let lost = self.unreachable.map(|taint| taint.since);
        lease.map(|lease| lease.lost_at(lost, now)).or(self.ready_heartbeat)
    }

    /// What on the node shows which recovery acts on it.
    pub(super) fn signs(&self) -> NodeSigns<'_> {
        let out_of_service = self.out_of_service_mark.is_some();
        NodeSigns { taints: &self.taints, eviction: self.eviction, out_of_service }
    }
}

/// The taint `node.kubernetes.io/unreachable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The earliest time that is certain.
    pub since: Timestamp,
}

impl Unreachable {
    /// From the `timeAdded` of each unreachable taint that the node has now, or since when one was observed.
    ///
    /// The node lifecycle controller sets two such taints one after the other, so the earliest counts.
    pub fn from_taints(
        time_added: impl IntoIterator<Item = Option<Timestamp>>,
        observed: Timestamp,
    ) -> Option<Self> {
        let mut taints = time_added.into_iter().peekable();
        taints.peek()?;
        Some(Self { since: taints.flatten().min().unwrap_or(observed) })
    }
}

/// The mark that the out-of-service taint on a node is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfServiceMark {
    /// None if the annotation became unreadable.
    pub since: Option<Timestamp>,
    /// The boot ID at that time; none if it was unknown, or an older version set the taint.
    pub boot_id: Option<String>,
}

impl OutOfServiceMark {
    pub fn from_annotations(since: &str, boot: Option<&str>) -> Self {
        Self { since: since.parse().ok(), boot_id: boot.and_then(boot_to_remember) }
    }
}

pub(super) fn out_of_service_taint() -> Taint {
    Taint {
        key: taints::OUT_OF_SERVICE.into(),
        value: taints::OUT_OF_SERVICE_VALUE.into(),
        effect: taints::NO_EXECUTE.into(),
    }
}
