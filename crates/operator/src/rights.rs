//! Rights in a cluster as plain values. A recovery says which it needs, and `salvor manifests` grants exactly those.

use std::borrow::Cow;

/// The namespace in which kubelets keep the Leases that show they are alive.
const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// A right: verbs on a kind of object, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Where.
    pub scope: Scope,
    /// With which objects.
    pub resource: Resource,
    /// The verbs.
    pub verbs: Vec<Verb>,
}

/// Where a right holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In every namespace, and on objects without one.
    Cluster,
    /// In one namespace.
    Namespace(String),
}

/// The verbs, in the order of a rule in the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
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
    /// All that watching needs. Reading one object is among it, because verdicts are checked against live objects.
    pub const READ: [Self; 3] = [Self::Get, Self::List, Self::Watch];

    /// The verb as RBAC writes it.
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
    /// Its API group.
    pub group: Cow<'static, str>,
    /// Its name in the API, with a subresource behind a slash.
    pub plural: Cow<'static, str>,
    /// The only object that is meant, if it is one.
    pub name: Option<String>,
}

impl Resource {
    /// Pods.
    pub const PODS: Self = Self::of("", "pods");
    /// The status of pods.
    pub const POD_STATUS: Self = Self::of("", "pods/status");
    /// Nodes.
    pub const NODES: Self = Self::of("", "nodes");
    /// Events are written as Kubernetes' own controllers do: the newer API has no room for what `kubectl` shows.
    pub const EVENTS: Self = Self::of("", "events");
    /// Leases.
    pub const LEASES: Self = Self::of("coordination.k8s.io", "leases");

    /// All objects of a kind.
    pub const fn of(group: &'static str, plural: &'static str) -> Self {
        Self { group: Cow::Borrowed(group), plural: Cow::Borrowed(plural), name: None }
    }

    /// A right that holds everywhere.
    pub fn everywhere(self, verbs: &[Verb]) -> Right {
        Right { scope: Scope::Cluster, resource: self, verbs: verbs.to_vec() }
    }

    /// A right that holds in one namespace.
    pub fn within(self, namespace: &str, verbs: &[Verb]) -> Right {
        Right { scope: Scope::Namespace(namespace.to_owned()), resource: self, verbs: verbs.to_vec() }
    }
}

/// The right to read the Leases of kubelets.
pub(crate) fn node_leases() -> Right {
    Resource::LEASES.within(NODE_LEASE_NAMESPACE, &[Verb::Get])
}
