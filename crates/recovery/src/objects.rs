//! The objects that recoveries act on, each named so that no other can be meant, and what more than one of them reads there.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

/// A pod, and no other pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Its UID; first, because it alone tells any two apart.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
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

/// A Job, and no other Job of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRef {
    /// Its UID; first, because it alone tells any two apart.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
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

/// A pod's deletion mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: the end of the pod's own grace period.
    pub timestamp: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`; 0 once the pod is force deleted and only finalizers hold it.
    pub grace_seconds: Option<i64>,
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

/// A node's `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The kubelet says that it is ready.
    True,
    /// The kubelet says that it is not.
    False,
    /// The kubelet says nothing, or there is no such condition.
    Unknown,
}

impl Ready {
    /// Reads the condition's status.
    pub fn from_api(status: Option<&str>) -> Self {
        match status {
            Some("True") => Self::True,
            Some("False") => Self::False,
            _ => Self::Unknown,
        }
    }
}
