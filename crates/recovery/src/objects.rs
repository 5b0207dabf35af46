//! The objects that recoveries act on, each named so that no other can be meant, and what more than one of them reads there.

use crate::ids::{NodeName, Uid};
use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use serde::{Serialize, Serializer, ser::SerializeMap};

/// A kind of object, as the API names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// The API group, empty for the core group.
    pub group: Cow<'static, str>,
    /// The version in which it is read and written.
    pub version: Cow<'static, str>,
    /// The kind, such as `Pod`.
    pub kind: Cow<'static, str>,
    /// The name in paths, such as `pods`.
    pub resource: Cow<'static, str>,
}

impl Kind {
    /// A kind that is known when this is compiled.
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

    /// The resource with its group, as `kubectl` takes it.
    pub fn full_resource(&self) -> Cow<'_, str> {
        match &*self.group {
            "" => Cow::Borrowed(&self.resource),
            group => Cow::Owned(format!("{}.{group}", self.resource)),
        }
    }
}

/// Pods.
pub static POD: Kind = Kind::known("", "v1", "Pod", "pods");
/// Nodes.
pub static NODE: Kind = Kind::known("", "v1", "Node", "nodes");
/// PersistentVolumes.
pub static PERSISTENT_VOLUME: Kind = Kind::known("", "v1", "PersistentVolume", "persistentvolumes");
/// Jobs.
pub static JOB: Kind = Kind::known("batch", "v1", "Job", "jobs");
/// Leases.
pub static LEASE: Kind = Kind::known("coordination.k8s.io", "v1", "Lease", "leases");

/// One object and no other of the same name, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// Its kind.
    pub kind: &'a Kind,
    /// Its namespace, if its kind has one.
    pub namespace: Option<&'a str>,
    /// Its name.
    pub name: &'a str,
    /// Its UID, empty if it is not known.
    pub uid: &'a Uid,
}

impl Object<'_> {
    /// The same, owned.
    pub fn to_ref(&self) -> ObjectRef {
        ObjectRef {
            kind: self.kind.clone(),
            namespace: self.namespace.map(str::to_owned),
            name: self.name.to_owned(),
            uid: self.uid.clone(),
        }
    }
}

/// One object and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its UID, empty if it is not known; first, because it alone tells any two apart.
    pub uid: Uid,
    /// Its kind.
    pub kind: Kind,
    /// Its namespace, if its kind has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// A Lease, by its name.
    pub fn lease(namespace: &str, name: &str) -> Self {
        Self {
            uid: Uid::default(),
            kind: LEASE.clone(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        }
    }

    /// The same, borrowed.
    pub fn as_object(&self) -> Object<'_> {
        let Self { uid, kind, namespace, name } = self;
        Object { kind, namespace: namespace.as_deref(), name, uid }
    }

    /// The namespace in which events about it are kept: Kubernetes keeps those of objects without one in `default`.
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

/// A pod, and no other pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Its UID; first, because it alone tells any two apart.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl PodRef {
    /// The object.
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

/// A node, and no other node of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRef {
    /// Its name.
    pub name: NodeName,
    /// Its UID.
    pub uid: Uid,
}

impl NodeRef {
    /// The object.
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

/// A Job, and no other Job of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRef {
    /// Its UID; first, because it alone tells any two apart.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl JobRef {
    /// The object.
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
/// A boot ID is a UUID. What is written on a Node has a bound, and a kubelet may report anything.
const LONGEST_BOOT_ID: usize = 128;

/// The boot of a machine, in a form that can be written down; none if it is not known.
pub(crate) fn boot_to_remember(boot_id: &str) -> Option<String> {
    Some(boot_id).filter(|boot| !boot.is_empty() && boot.len() <= LONGEST_BOOT_ID).map(str::to_owned)
}
