//! References to the objects that recoveries act on, unambiguous by UID, and fields that more than one recovery reads.

use crate::ids::{NodeName, Uid};
use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};

/// A kind of object, as the API names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    /// The version in which it is read and written.
    pub version: Cow<'static, str>,
    /// The kind, such as `Pod`.
    pub kind: Cow<'static, str>,
    /// The plural name in paths, such as `pods`.
    pub resource: Cow<'static, str>,
}

impl Kind {
    /// A kind that is known at compile time.
    pub const fn known(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        resource: &'static str,
    ) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
            resource: Cow::Borrowed(resource),
        }
    }

    /// The value of `apiVersion`.
    pub fn api_version(&self) -> Cow<'_, str> {
        match &*self.group {
            "" => Cow::Borrowed(&self.version),
            group => Cow::Owned(format!("{group}/{}", self.version)),
        }
    }

    /// The resource with its group, as `kubectl` accepts it.
    pub fn full_resource(&self) -> Cow<'_, str> {
        match &*self.group {
            "" => Cow::Borrowed(&self.resource),
            group => Cow::Owned(format!("{}.{group}", self.resource)),
        }
    }
}

pub static POD: Kind = Kind::known("", "v1", "Pod", "pods");
pub static NODE: Kind = Kind::known("", "v1", "Node", "nodes");
pub static PERSISTENT_VOLUME: Kind = Kind::known("", "v1", "PersistentVolume", "persistentvolumes");
pub static JOB: Kind = Kind::known("batch", "v1", "Job", "jobs");
pub static LEASE: Kind = Kind::known("coordination.k8s.io", "v1", "Lease", "leases");

/// A reference to one object and no other of the same name, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    pub kind: &'a Kind,
    /// None if its kind is cluster-scoped.
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    /// Empty if unknown.
    pub uid: &'a Uid,
}

impl Object<'_> {
    pub fn to_ref(&self) -> ObjectRef {
        ObjectRef {
            kind: self.kind.clone(),
            namespace: self.namespace.map(str::to_owned),
            name: self.name.to_owned(),
            uid: self.uid.clone(),
        }
    }
}

/// A reference to one object and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Empty if unknown. First in the order, because it alone distinguishes any two objects.
    pub uid: Uid,
    pub kind: Kind,
    /// None if its kind is cluster-scoped.
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectRef {
    /// A Lease, by its name; its UID is unknown.
    pub fn lease(namespace: &str, name: &str) -> Self {
        Self {
            uid: Uid::default(),
            kind: LEASE.clone(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    pub fn as_object(&self) -> Object<'_> {
        let Self { uid, kind, namespace, name } = self;
        Object { kind, namespace: namespace.as_deref(), name, uid }
    }

    /// The namespace of events about the object: Kubernetes keeps those of cluster-scoped objects in `default`.
    pub fn event_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.kind.to_lowercase())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

impl Serialize for ObjectRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", &self.kind.kind)?;
        if !self.uid.is_empty() {
            map.serialize_entry("uid", &self.uid)?;
        }
        if let Some(namespace) = &self.namespace {
            map.serialize_entry("namespace", namespace)?;
        }
        map.serialize_entry("name", &self.name)?;
        map.end()
    }
}

/// A reference to one pod and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// First in the order, because it alone distinguishes any two pods.
    pub uid: Uid,
    pub namespace: String,
    pub name: String,
}

impl PodRef {
    pub fn object(&self) -> Object<'_> {
        Object { kind: &POD, namespace: Some(&self.namespace), name: &self.name, uid: &self.uid }
    }
}

impl From<&PodRef> for ObjectRef {
    fn from(object: &PodRef) -> Self {
        object.object().to_ref()
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A reference to one node and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    pub name: NodeName,
    pub uid: Uid,
}

impl NodeRef {
    pub fn object(&self) -> Object<'_> {
        Object { kind: &NODE, namespace: None, name: self.name.as_str(), uid: &self.uid }
    }
}

impl From<&NodeRef> for ObjectRef {
    fn from(object: &NodeRef) -> Self {
        object.object().to_ref()
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())
    }
}

/// A reference to one Job and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRef {
    /// First in the order, because it alone distinguishes any two Jobs.
    pub uid: Uid,
    pub namespace: String,
    pub name: String,
}

impl JobRef {
    pub fn object(&self) -> Object<'_> {
        Object { kind: &JOB, namespace: Some(&self.namespace), name: &self.name, uid: &self.uid }
    }
}

impl From<&JobRef> for ObjectRef {
    fn from(object: &JobRef) -> Self {
        object.object().to_ref()
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// At least one container runs.
    Running,
    /// All containers have succeeded.
    Succeeded,
    /// All containers have ended, and at least one failed.
    Failed,
    /// The state of the pod could not be read from its node.
    Unknown,
}

impl PodPhase {
    /// Reads `status.phase`. An absent phase means a new pod; an unrecognized one is `Unknown`.
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

    /// True if the pod will never run again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for PodPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: the end of the pod's own grace period.
    pub timestamp: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`; 0 once the pod is force deleted and only finalizers keep it.
    pub grace_seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taint {
    pub key: String,
    /// Empty if it has none.
    pub value: String,
    pub effect: String,
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        if value.is_empty() { write!(f, "{key}:{effect}") } else { write!(f, "{key}={value}:{effect}") }
    }
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A node's `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The kubelet reports that it is ready.
    True,
    /// The kubelet reports that it is not ready.
    False,
    /// The kubelet reports nothing, or there is no such condition.
    Unknown,
}

impl Ready {
    /// Reads the status of the condition.
    pub fn from_api(status: Option<&str>) -> Self {
        match status {
            Some("True") => Self::True,
            Some("False") => Self::False,
            _ => Self::Unknown,
        }
    }
}
/// A boot ID is a UUID, but a kubelet may report anything. This bounds what Salvor writes on a Node.
const LONGEST_BOOT_ID: usize = 128;

/// The boot ID in a form that can be written; none if it is unknown.
pub(crate) fn boot_to_remember(boot_id: &str) -> Option<String> {
    Some(boot_id).filter(|boot| !boot.is_empty() && boot.len() <= LONGEST_BOOT_ID).map(str::to_owned)
}
