//! What zombie recovery looks at: only the fields that it judges by.

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvor_api::Labels;
use salvor_api::config::TerminateAction;
use salvor_api::names::{annotations, reasons, taints};

use crate::objects::{Deletion, NodeRef, PodPhase, PodRef, Ready, Taint};

/// A pod, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Which pod.
    pub pod: PodRef,
    /// The state that is judged.
    pub resource_version: String,
    /// Its labels, which rules select by.
    pub labels: Labels,
    /// The annotations by which its owner consents.
    pub consent: ConsentAnnotations,
    /// Where it is in its life.
    pub phase: PodPhase,
    /// Whether it is being deleted.
    pub deletion: Option<Deletion>,
    /// The node to which it is bound.
    pub node_name: Option<String>,
    /// What an earlier recovery left on it.
    pub mark: Option<Mark>,
    /// Whether it has the condition `DisruptionTarget=True`.
    pub disruption_target: bool,
    /// Whether the event about its recovery is known to be recorded.
    pub announced: bool,
}

/// The values of the two annotations, as they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsentAnnotations {
    /// `kueue.x-k8s.io/safe-to-forcefully-terminate`.
    pub terminate: Option<String>,
    /// `kueue.x-k8s.io/safe-to-forcefully-delete`.
    pub delete: Option<String>,
}

impl ConsentAnnotations {
    /// Picks the two out of all annotations.
    pub fn from_annotations(all: &BTreeMap<String, String>) -> Self {
        Self {
            terminate: all.get(annotations::SAFE_TO_FORCEFULLY_TERMINATE).cloned(),
            delete: all.get(annotations::SAFE_TO_FORCEFULLY_DELETE).cloned(),
        }
    }
}

/// The condition that a recovery leaves on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What that recovery was to do.
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

    /// Whether what is asked for now was already begun then.
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
    pub resource_version: String,
    /// Its labels, which rules select by.
    pub labels: Labels,
    /// Whether the control plane has lost it.
    pub unreachable: Option<Unreachable>,
    /// Its `Ready` condition.
    pub ready: Ready,
    /// When its kubelet last renewed its Lease; none if it has no Lease. Only [`super::decide_node`] asks for it.
    pub lease_renewed: Option<Timestamp>,
    /// Its taints with the key `node.kubernetes.io/out-of-service`.
    pub out_of_service: Vec<Taint>,
    /// Our annotation that says that we put the taint there.
    pub out_of_service_mark: Option<OutOfServiceMark>,
    /// Whether the event about our taint is known to be recorded.
    pub announced: bool,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfServiceMark {
    /// When; none if somebody made the annotation unreadable.
    pub since: Option<Timestamp>,
}

impl OutOfServiceMark {
    /// Reads the annotation.
    pub fn from_annotation(value: &str) -> Self {
        Self { since: value.parse().ok() }
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
