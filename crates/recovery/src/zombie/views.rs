//! The views of zombie recovery: only the fields by which it judges.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use salvor_api::config::TerminateAction;
use salvor_api::names::{annotations, reasons, taints};
use salvor_api::{GoDuration, Labels, ParseGoDurationError};

use super::jobs::OfJob;
use crate::ids::{NodeName, ResourceVersion};
use crate::liveness::{NodeLease, Pulse};
use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready, Taint, boot_to_remember};
use crate::one_actor::{EvictionSign, NodeSigns};

/// So much of a value that nobody can read is kept: enough to recognise it.
const LONGEST_SHOWN: usize = 64;

/// A pod, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Which pod.
    pub pod: PodRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// Its labels, which rules select by.
    pub labels: Labels,
    /// The annotations by which its owner consents, and on which terms.
    pub consent: ConsentAnnotations,
    /// Where it is in its life.
    pub phase: PodPhase,
    /// Its deletion, if it is being deleted.
    pub deletion: Option<Deletion>,
    /// The node to which it is bound.
    pub node_name: Option<NodeName>,
    /// The mark of an earlier recovery.
    pub mark: Option<Mark>,
    /// True if it has the condition `DisruptionTarget=True`.
    pub disruption_target: bool,
    /// True if the event about its recovery is known to be recorded.
    pub announced: bool,
    /// True if it was told, or need not be, that its wait cannot be read.
    pub wait_told: bool,
    /// The Job that controls it, if one does.
    pub job: Option<Box<OfJob>>,
}

/// The values of the annotations, as far as they matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsentAnnotations {
    /// `kueue.x-k8s.io/safe-to-forcefully-terminate`.
    pub terminate: Option<String>,
    /// `kueue.x-k8s.io/safe-to-forcefully-delete`.
    pub delete: Option<String>,
    /// `salvor.dev/termination-grace-after`.
    pub wait: AskedWait,
}

impl ConsentAnnotations {
    /// Picks them out of all annotations.
    pub fn from_annotations(all: &BTreeMap<String, String>) -> Self {
        let value = |key| all.get(key).map(|value| cut(value));
        Self {
            terminate: value(annotations::SAFE_TO_FORCEFULLY_TERMINATE),
            delete: value(annotations::SAFE_TO_FORCEFULLY_DELETE),
            wait: all
                .get(annotations::TERMINATION_GRACE_AFTER)
                .map_or(AskedWait::Unset, |it| AskedWait::of(it)),
        }
    }
}

/// The wait after its grace period that a pod's own annotation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AskedWait {
    /// There is no annotation.
    #[default]
    Unset,
    /// This long. What is too long for a duration is the longest there is.
    For(SignedDuration),
    /// Nobody can tell how long.
    Unreadable {
        /// The value, or its beginning.
        value: String,
        /// The defect.
        defect: WaitDefect,
    },
}

/// A defect of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitDefect {
    /// The value is not a duration.
    Malformed,
    /// The value is negative.
    Negative,
}

impl AskedWait {
    /// Reads the annotation.
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

/// The beginning of a value. Whoever may write annotations may write long ones, and pods are kept by the thousand.
fn cut(value: &str) -> String {
    value.chars().take(LONGEST_SHOWN).collect()
}

/// The condition that a recovery leaves on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The action of that recovery.
    pub action: TerminateAction,
    /// When it was written. Kueue's own controller does not say.
    pub since: Option<Timestamp>,
}

impl Mark {
    /// Reads a condition of type `KueueFailureRecovery`, whoever wrote it.
    pub fn from_condition(status: &str, reason: &str, since: Option<Timestamp>) -> Option<Self> {
        let action = match reason {
            reasons::KUEUE_FORCEFULLY_TERMINATED => TerminateAction::Fail,
            reasons::KUEUE_FORCEFULLY_DELETED => TerminateAction::FailAndDelete,
            _ => return None,
        };
        (status == "True").then_some(Self { action, since })
    }

    /// True if what is asked for now was already begun then.
    pub(super) fn covers(self, action: TerminateAction) -> bool {
        self.action == action || self.action == TerminateAction::FailAndDelete
    }
}

/// A node, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Which node.
    pub node: NodeRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// Its labels, which rules select by.
    pub labels: Labels,
    /// The unreachable taint, if the node has it.
    pub unreachable: Option<Unreachable>,
    /// Its `Ready` condition.
    pub ready: Ready,
    /// The boot that its kubelet reports; empty if it reports none.
    pub boot_id: Box<str>,
    /// The heartbeat of its `Ready` condition, which stands in for a Lease where there is none.
    pub heartbeat: Option<NodeLease>,
    /// The pulse of its kubelet, by its Lease. Leases are not watched, so it may be unread. It is read before anything is done.
    pub pulse: Pulse,
    /// Its taints with the key `node.kubernetes.io/out-of-service`.
    pub out_of_service: Vec<Taint>,
    /// Our annotation that says that we put the taint there.
    pub out_of_service_mark: Option<OutOfServiceMark>,
    /// All its taints.
    pub taints: Vec<Taint>,
    /// The progress of its eviction, from our annotations.
    pub eviction: EvictionSign,
    /// True if the event about our taint is known to be recorded.
    pub announced: bool,
    /// True if the event about its return without a reboot is known to be recorded.
    pub return_told: bool,
}

impl NodeView {
    /// The boot to be remembered with our taint; none if it is not known.
    pub(super) fn boot_to_remember(&self) -> Option<String> {
        boot_to_remember(&self.boot_id)
    }

    /// True if our taint is on it, and its machine has not been rebooted since: its volumes were detached by force, and its
    /// old containers may still run. A boot that is not reported is no other boot.
    pub(super) fn may_still_use_volumes(&self, mark: &OutOfServiceMark) -> bool {
        let same_boot = |boot: &String| self.boot_id.is_empty() || *self.boot_id == **boot;
        self.out_of_service.contains(&out_of_service_taint()) && mark.boot_id.as_ref().is_some_and(same_boot)
    }

    /// The signs on it that tell which recovery acts on it.
    pub(super) fn signs(&self) -> NodeSigns<'_> {
        let out_of_service = self.out_of_service_mark.is_some();
        NodeSigns { taints: &self.taints, eviction: self.eviction, out_of_service }
    }
}

/// Since when a node has the taint `node.kubernetes.io/unreachable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// The earliest time that is certain.
    pub since: Timestamp,
}

impl Unreachable {
    /// From the `timeAdded` of each unreachable taint that the node has now, or since when we have seen one.
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

/// That we put the out-of-service taint on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfServiceMark {
    /// When; none if somebody made the annotation unreadable.
    pub since: Option<Timestamp>,
    /// The boot of its machine then; none if it was not known, or if an older version put it there.
    pub boot_id: Option<String>,
}

impl OutOfServiceMark {
    /// Reads the annotations.
    pub fn from_annotations(since: &str, boot: Option<&str>) -> Self {
        Self { since: since.parse().ok(), boot_id: boot.and_then(boot_to_remember) }
    }
}

/// The taint that we put on nodes.
pub(super) fn out_of_service_taint() -> Taint {
    Taint {
        key: taints::OUT_OF_SERVICE.into(),
        value: taints::OUT_OF_SERVICE_VALUE.into(),
        effect: taints::NO_EXECUTE.into(),
    }
}
