//! The resource table: every kind that the server knows, built-in or defined by a client.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::kinds::{self, Kind};
use crate::protocol::status::with_group;
use crate::schema::Schema;

/// Where objects of a resource are stored: its group and its plural. All versions of a resource share it.
pub(crate) type ResourceKey = (String, String);

/// One resource in one version.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    /// Where its objects are stored, if not under its own group and plural.
    pub(crate) stored_as: ResourceKey,
    pub(crate) subresources: Vec<Subresource>,
    /// When `metadata.generation` increases.
    pub(crate) generation: Generation,
    /// True if an update may leave out the resourceVersion.
    pub(crate) unconditional_update: bool,
    /// True if an update of an object that does not exist creates it.
    pub(crate) create_on_update: bool,
    /// True if a delete that removes the object returns it.
    pub(crate) returns_deleted: bool,
    /// Field selectors beside `metadata.name` and `metadata.namespace`: the label, and the JSON pointer it reads.
    pub(crate) selectable: Vec<(String, String)>,
    /// Columns of a table, for custom resources.
    pub(crate) columns: Vec<Column>,
    pub(crate) schema: Arc<Schema>,
    /// The definition of a built-in kind.
    pub(crate) built_in: Option<&'static Kind>,
    /// The schema of a custom resource.
    pub(crate) custom: Option<Arc<Custom>>,
}

/// The parts of a custom resource's definition that requests need.
#[derive(Debug, Clone)]
pub(crate) struct Custom {
    /// The name of the CustomResourceDefinition.
    pub(crate) definition: String,
    pub(crate) schema: Value,
    pub(crate) scale: Option<Value>,
    /// Objects that were written after this revision match the current schema.
    pub(crate) fits_after: u64,
}

/// When `metadata.generation` increases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// Never: the kind has no generation.
    None,
    /// When the value at one of these JSON pointers changes.
    Of(&'static [&'static str]),
    /// When anything outside the metadata changes (and outside the status, where that is a subresource).
    Everything,
}

impl Generation {
    /// When the spec changes.
    pub(crate) const SPEC: Self = Self::Of(&["/spec"]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subresource {
    Status,
    Scale,
    Binding,
    Eviction,
    Finalize,
    Resize,
    EphemeralContainers,
    Log,
    Approval,
}

impl Subresource {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Finalize => "finalize",
            Self::Resize => "resize",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Log => "log",
            Self::Approval => "approval",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    pub(crate) path: String,
}

impl Resource {
    fn built_in(kind: &'static Kind) -> Self {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            kind: kind.kind.to_owned(),
            list_kind: format!("{}List", kind.kind),
            plural: kind.plural.to_owned(),
            singular: kind.kind.to_lowercase(),
            short_names: own(kind.short_names),
            categories: own(kind.categories),
            namespaced: kind.namespaced,
            stored_as: (kind.stored_group.unwrap_or(kind.group).to_owned(), kind.plural.to_owned()),
            subresources: kind.subresources.to_vec(),
            generation: kind.generation,
            unconditional_update: kind.unconditional_update,
            create_on_update: kind.create_on_update,
            returns_deleted: kind.returns_deleted,
            selectable: kind
                .selectable
                .iter()
                .map(|&(label, pointer)| (label.to_owned(), pointer.to_owned()))
                .collect(),
            columns: Vec::new(),
            schema: Schema::built_in(&kind.definition()),
            built_in: Some(kind),
            custom: None,
        }
    }

    /// `apps/v1`, or `v1` for the core group.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, as errors name it.
    pub(crate) fn qualified(&self) -> String {
        with_group(&self.plural, &self.group)
    }

    /// The key of an object in the real server's etcd, which some of its messages contain.
    pub(crate) fn registry_key(&self, namespace: &str, name: &str) -> String {
        let place = match self.built_in {
            Some(kind) if !self.is_definition() => kind.kept_at.unwrap_or(kind.plural).to_owned(),
            _ => format!("{}/{}", self.group, self.plural),
        };
        let scope = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        format!("/registry/{place}/{scope}{name}")
    }

    pub(crate) fn key(&self) -> &ResourceKey {
        &self.stored_as
    }

    pub(crate) fn has(&self, subresource: Subresource) -> bool {
        self.subresources.contains(&subresource)
    }

    pub(crate) fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    pub(crate) fn is_pod(&self) -> bool {
        self.is("", "Pod")
    }

    pub(crate) fn is_namespace(&self) -> bool {
        self.is("", "Namespace")
    }

    pub(crate) fn is_definition(&self) -> bool {
        self.is("apiextensions.k8s.io", "CustomResourceDefinition")
    }

    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        if self.custom.is_some() {
            return &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
        }
        if self.is_namespace() {
            &["create", "delete", "get", "list", "patch", "update", "watch"]
        } else {
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        }
    }
}

/// All resources by group, version and plural.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
}

impl Table {
    pub(crate) fn built_in() -> Self {
        let mut table = Self { resources: BTreeMap::new() };
        for kind in kinds::all() {
            table.insert(Resource::built_in(kind));
        }
        table
    }

    pub(crate) fn insert(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    /// Removes all versions of the resource that a definition created.
    pub(crate) fn remove_defined_by(&mut self, definition: &str) {
        self.resources.retain(|_, resource| {
            resource.custom.as_ref().is_none_or(|custom| custom.definition != definition)
        });
    }

    pub(crate) fn get(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.iter().find(|resource| resource.kind == kind && resource.api_version() == api_version)
    }

    pub(crate) fn serves(&self, group: &str, version: &str) -> bool {
        self.iter().any(|resource| resource.group == group && resource.version == version)
    }
}
