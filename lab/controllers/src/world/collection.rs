//! Kinds of objects, and their API paths.

use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Pod,
    Node,
    Lease,
    Claim,
    Volume,
    StorageClass,
    Attachment,
    ReplicaSet,
    Deployment,
    StatefulSet,
    Job,
    Budget,
    Namespace,
    Event,
}

impl Kind {
    /// All kinds that are watched. Events are only written, never read.
    pub(crate) const WATCHED: [Self; 13] = [
        Self::Pod,
        Self::Node,
        Self::Lease,
        Self::Claim,
        Self::Volume,
        Self::StorageClass,
        Self::Attachment,
        Self::ReplicaSet,
        Self::Deployment,
        Self::StatefulSet,
        Self::Job,
        Self::Budget,
        Self::Namespace,
    ];

    /// The watched kind with this prefix of its path and this plural.
    pub(crate) fn watched(prefix: &str, plural: &str) -> Option<Self> {
        Self::WATCHED.into_iter().find(|kind| (kind.names().1, kind.names().2) == (prefix, plural))
    }

    /// Its API kind, its group and version as in paths, and its plural.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Pod => ("Pod", "/api/v1", "pods"),
            Self::Node => ("Node", "/api/v1", "nodes"),
            Self::Lease => ("Lease", "/apis/coordination.k8s.io/v1", "leases"),
            Self::Claim => ("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
            Self::Volume => ("PersistentVolume", "/api/v1", "persistentvolumes"),
            Self::StorageClass => ("StorageClass", "/apis/storage.k8s.io/v1", "storageclasses"),
            Self::Attachment => ("VolumeAttachment", "/apis/storage.k8s.io/v1", "volumeattachments"),
            Self::ReplicaSet => ("ReplicaSet", "/apis/apps/v1", "replicasets"),
            Self::Deployment => ("Deployment", "/apis/apps/v1", "deployments"),
            Self::StatefulSet => ("StatefulSet", "/apis/apps/v1", "statefulsets"),
            Self::Job => ("Job", "/apis/batch/v1", "jobs"),
            Self::Budget => ("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
            Self::Namespace => ("Namespace", "/api/v1", "namespaces"),
            Self::Event => ("Event", "/api/v1", "events"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.names().0
    }

    pub(crate) fn api_version(self) -> &'static str {
        let prefix = self.names().1;
        prefix.strip_prefix("/apis/").or_else(|| prefix.strip_prefix("/api/")).unwrap_or(prefix)
    }

    /// The path of all its objects, in one namespace or, if that is empty, in all.
    pub(crate) fn path(self, namespace: &str) -> String {
        let (_, prefix, plural) = self.names();
        if namespace.is_empty() {
            format!("{prefix}/{plural}")
        } else {
            format!("{prefix}/namespaces/{namespace}/{plural}")
        }
    }
}

/// Where all objects of one resource are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Collection {
    /// A kind that the control loops know.
    Known(Kind),
    /// A kind of which only the metadata is read.
    Other(Arc<Resource>),
}

impl Collection {
    /// The path of its objects, in one namespace or, if that is empty, in all.
    pub(crate) fn path(&self, namespace: &str) -> String {
        match self {
            Self::Known(kind) => kind.path(namespace),
            Self::Other(resource) => resource.path(namespace),
        }
    }
}

/// A resource, in the server's preferred version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    /// `/api/v1`, `/apis/apps/v1`.
    pub(crate) prefix: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
}

impl Resource {
    /// The path of all its objects, in one namespace or, if that is empty, in all.
    pub(crate) fn path(&self, namespace: &str) -> String {
        let Self { prefix, plural, .. } = self;
        if namespace.is_empty() {
            format!("{prefix}/{plural}")
        } else {
            format!("{prefix}/namespaces/{namespace}/{plural}")
        }
    }

    pub(crate) fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Empty for the core group.
    pub(crate) fn group(&self) -> &str {
        self.prefix.strip_prefix("/apis/").and_then(|rest| rest.split('/').next()).unwrap_or("")
    }

    pub(crate) fn version(&self) -> &str {
        self.prefix.rsplit('/').next().unwrap_or("")
    }

    /// True if each of its objects defines another resource.
    pub(crate) fn is_definition(&self) -> bool {
        self.group() == "apiextensions.k8s.io" && self.plural == "customresourcedefinitions"
    }

    /// Events own nothing and have no owners, and there are many of them.
    pub(crate) fn is_event(&self) -> bool {
        self.plural == "events" && ["", "events.k8s.io"].contains(&self.group())
    }
}
