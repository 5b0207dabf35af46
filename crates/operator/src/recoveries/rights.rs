//! RBAC permissions as plain values. A recovery declares what it needs, and `salvor manifests` grants exactly that.

use std::borrow::Cow;

/// The namespace in which kubelets keep their heartbeat Leases.
const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    pub scope: Scope,
    pub resource: Resource,
    pub verbs: Vec<Verb>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In every namespace, and for cluster-scoped objects.
    Cluster,
    Namespace(String),
}

/// In the order of a rule in the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

impl Verb {
    /// All verbs that a watch needs. `get` is included because verdicts are checked against live objects.
    pub const READ: [Self; 3] = [Self::Get, Self::List, Self::Watch];

    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// A kind of object, or one object of it by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    pub group: Cow<'static, str>,
    /// The plural name, with a subresource after a slash.
    pub plural: Cow<'static, str>,
    /// Restricts the permission to this object.
    pub name: Option<String>,
}

impl Resource {
    pub const PODS: Self = Self::of("", "pods");
    pub const POD_STATUS: Self = Self::of("", "pods/status");
    pub const NODES: Self = Self::of("", "nodes");
    /// The core API, as Kubernetes' own controllers use: the newer API lacks fields that `kubectl` shows.
    pub const EVENTS: Self = Self::of("", "events");
    pub const LEASES: Self = Self::of("coordination.k8s.io", "leases");

    pub const fn of(group: &'static str, plural: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), plural: Cow::Borrowed(plural), name: None }
    }

    pub fn everywhere(self, verbs: &[Verb]) -> Right {
        Right { scope: Scope::Cluster, resource: self, verbs: verbs.to_vec() }
    }

    pub fn within(self, namespace: &str, verbs: &[Verb]) -> Right {
        Right { scope: Scope::Namespace(namespace.to_owned()), resource: self, verbs: verbs.to_vec() }
    }
}

pub(crate) fn node_leases() -> Right {
    Resource::LEASES.within(NODE_LEASE_NAMESPACE, &[Verb::Get])
}
