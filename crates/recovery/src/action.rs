//! The writes that recoveries ask for, as data. Each names exactly the object that was judged.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

/// A pod, and no other pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A node, and no other node of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind")]
pub enum Subject {
    /// A pod.
    Pod(PodRef),
    /// A node.
    Node(NodeRef),
    /// The Lease that Salvor's replicas share: Salvor itself.
    Lease {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Subject {
    /// The namespace in which events about it are kept.
    pub fn event_namespace(&self) -> &str {
        match self {
            Self::Pod(pod) => &pod.namespace,
            // Where Kubernetes keeps the events of objects without a namespace.
            Self::Node(_) => "default",
            Self::Lease { namespace, .. } => namespace,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Lease { namespace, name } => write!(f, "lease {namespace}/{name}"),
        }
    }
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// Some container runs.
    Running,
    /// All containers have ended well.
    Succeeded,
    /// All containers have ended, and not all well.
    Failed,
    /// The node could not be asked.
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`. An absent phase is a new pod's; what nobody knows is `Unknown`.
    pub fn from_api(phase: &str) -> Self {
        match phase {
            "" | "Pending" => Self::Pending,
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }

    /// The value of `status.phase`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether the pod will never run again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition to set to `True`, replacing one of the same type and leaving all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
    /// Since when, to the second.
    pub last_transition_time: Timestamp,
}

/// A taint, by which Kubernetes tells nodes apart for scheduling and eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, empty if it has none.
    pub value: String,
    /// Its effect.
    pub effect: String,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        if value.is_empty() { write!(f, "{key}:{effect}") } else { write!(f, "{key}={value}:{effect}") }
    }
}

/// How loudly an event speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventType {
    /// Something that should happen.
    Normal,
    /// Something that a person should know.
    Warning,
}

/// An event to record once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EventNote {
    /// The event's own name, the same on every attempt, so that the API server refuses a second one.
    pub name: String,
    /// What it is about.
    pub regarding: Subject,
    /// How loudly it speaks.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Why it was recorded.
    pub reason: &'static str,
    /// What was done.
    pub action: &'static str,
    /// Who reports it.
    pub reporting_controller: &'static str,
    /// What a person reads.
    pub message: String,
}

/// One guarded write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Action {
    /// Changes a pod's status, if the pod is still exactly as it was judged.
    PatchPodStatus {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: String,
        /// The new phase, or none to keep it.
        phase: Option<PodPhase>,
        /// The conditions to set.
        conditions: Vec<Condition>,
    },
    /// Records an event.
    EmitEvent(EventNote),
    /// Deletes a pod at once, with no grace, if it still has that UID.
    ForceDeletePod {
        /// The pod.
        pod: PodRef,
    },
    /// Adds a taint to a node, and an annotation that says who did, if the node is still exactly as it was judged.
    TaintNode {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// The taint to add.
        taint: Taint,
        /// The annotation's key.
        mark: &'static str,
        /// The annotation's value.
        since: Timestamp,
    },
    /// Takes a taint that we added off a node, and the annotation with it, if the node is still exactly as it was judged.
    UntaintNode {
        /// The node.
        node: NodeRef,
        /// The state that was judged.
        resource_version: String,
        /// The taint to take off, if it is there.
        taint: Taint,
        /// The annotation's key.
        mark: &'static str,
    },
}

impl Action {
    /// Whether the objects are read live and judged once more before this step: it cannot be taken back, or what it
    /// rests on is not watched.
    pub fn needs_a_second_look(&self) -> bool {
        match self {
            // On an out-of-service node Kubernetes itself force deletes pods and detaches volumes. Leases are not watched.
            // A phase of Failed is never taken back either, and the node that it rests on may have healed unseen.
            Self::PatchPodStatus { .. }
            | Self::ForceDeletePod { .. }
            | Self::TaintNode { .. }
            | Self::UntaintNode { .. } => true,
            Self::EmitEvent(_) => false,
        }
    }

    /// Whether the step takes something away from a workload, so that the brake must let it pass.
    pub fn is_disruptive(&self) -> bool {
        match self {
            Self::PatchPodStatus { .. } | Self::ForceDeletePod { .. } | Self::TaintNode { .. } => true,
            Self::EmitEvent(_) | Self::UntaintNode { .. } => false,
        }
    }

    /// The object that the step is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::PatchPodStatus { pod, .. } | Self::ForceDeletePod { pod } => Subject::Pod(pod.clone()),
            Self::TaintNode { node, .. } | Self::UntaintNode { node, .. } => Subject::Node(node.clone()),
            Self::EmitEvent(event) => event.regarding.clone(),
        }
    }

    /// A stable name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PatchPodStatus { .. } => "PatchPodStatus",
            Self::EmitEvent(_) => "EmitEvent",
            Self::ForceDeletePod { .. } => "ForceDeletePod",
            Self::TaintNode { .. } => "TaintNode",
            Self::UntaintNode { .. } => "UntaintNode",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchPodStatus { pod, phase, conditions, .. } => {
                write!(f, "patch the status of pod {pod}:")?;
                match phase {
                    Some(phase) => write!(f, " phase {phase},")?,
                    None => f.write_str(" phase kept,")?,
                }
                for (position, condition) in conditions.iter().enumerate() {
                    let separator = if position == 0 { "" } else { "," };
                    write!(f, "{separator} condition {}=True ({})", condition.kind, condition.reason)?;
                }
                Ok(())
            }
            Self::EmitEvent(event) => {
                write!(f, "record the {:?} event {} on {}", event.kind, event.reason, event.regarding)
            }
            Self::ForceDeletePod { pod } => write!(f, "delete pod {pod} with no grace"),
            Self::TaintNode { node, taint, .. } => write!(f, "taint node {node} with {taint}"),
            Self::UntaintNode { node, taint, .. } => {
                write!(f, "take the taint {taint} off node {node}")
            }
        }
    }
}
