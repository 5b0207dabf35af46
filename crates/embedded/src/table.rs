//! The resource table: every kind the server knows, and how each differs from the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::schema::Schema;
use crate::status::with_group;

/// Where objects of a resource are kept: its group and its plural. Versions of one resource share a place.
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
    /// Where its objects are kept, if not under its own group and plural.
    pub(crate) stored_as: ResourceKey,
    pub(crate) subresources: Vec<Subresource>,
    /// Whether `metadata.generation` counts changes.
    pub(crate) generation: Generation,
    /// Whether an update may leave out the resource version.
    pub(crate) unconditional_update: bool,
    /// Whether an update of an object that is not there creates it.
    pub(crate) create_on_update: bool,
    /// Whether a delete that leaves nothing behind answers with the object.
    pub(crate) returns_deleted: bool,
    /// Field selectors beside `metadata.name` and `metadata.namespace`: the label, and the JSON pointer it reads.
    pub(crate) selectable: Vec<(String, String)>,
    /// Columns of a table, for custom resources.
    pub(crate) columns: Vec<Column>,
    pub(crate) schema: Arc<Schema>,
    /// What a custom resource is checked against.
    pub(crate) custom: Option<Arc<Custom>>,
}

/// The parts of a custom resource's definition that requests need.
#[derive(Debug, Clone)]
pub(crate) struct Custom {
    /// The name of the CustomResourceDefinition.
    pub(crate) definition: String,
    pub(crate) schema: Value,
    pub(crate) scale: Option<Value>,
    /// Objects that were written after this revision fit the schema as it is.
    pub(crate) fits_after: u64,
}

/// When `metadata.generation` grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// It does not exist.
    None,
    /// When the spec changes.
    Spec,
    /// When anything outside the metadata changes (and outside the status, where that is a subresource).
    Everything,
}

/// A part of an object with a path of its own.
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
        }
    }
}

/// A column of a custom resource's table.
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
    /// `apps/v1`, or `v1` for the core group.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, as errors name it.
    pub(crate) fn qualified(&self) -> String {
        with_group(&self.plural, &self.group)
    }

    /// Where the real server keeps an object in etcd, which some of its messages tell.
    pub(crate) fn registry_key(&self, namespace: &str, name: &str) -> String {
        let place = match (self.group.as_str(), self.plural.as_str()) {
            ("", "nodes") => "minions".to_owned(),
            ("", "services") => "services/specs".to_owned(),
            ("", plural) => plural.to_owned(),
            ("apps" | "batch", plural) => plural.to_owned(),
            ("coordination.k8s.io", _) => "leases".to_owned(),
            ("policy", _) => "poddisruptionbudgets".to_owned(),
            ("storage.k8s.io" | "scheduling.k8s.io", plural) => plural.to_owned(),
            (group, plural) => format!("{group}/{plural}"),
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
#[derive(Debug)]
pub(crate) struct Table {
    resources: BTreeMap<(String, String, String), Arc<Resource>>,
}

/// One line of the table of built-in kinds.
struct Line {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    package: &'static str,
    subresources: &'static [Subresource],
    traits: &'static [Trait],
    selectable: &'static [(&'static str, &'static str)],
}

/// How a built-in kind differs from the ordinary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trait {
    /// Listed by `kubectl get all`.
    All,
    SpecGeneration,
    ConditionalUpdate,
    CreateOnUpdate,
    ReturnsDeleted,
}

use Subresource::{Binding, EphemeralContainers, Eviction, Finalize, Log, Resize, Scale, Status};
use Trait::{All, ConditionalUpdate, CreateOnUpdate, ReturnsDeleted, SpecGeneration};

const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject.kind", "/involvedObject/kind"),
    ("involvedObject.namespace", "/involvedObject/namespace"),
    ("involvedObject.name", "/involvedObject/name"),
    ("involvedObject.uid", "/involvedObject/uid"),
    ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
    ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
    ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
    ("reason", "/reason"),
    ("reportingComponent", "/reportingComponent"),
    ("source", "/source/component"),
    ("type", "/type"),
];

const NEW_EVENT_FIELDS: &[(&str, &str)] = &[
    ("regarding.kind", "/involvedObject/kind"),
    ("regarding.namespace", "/involvedObject/namespace"),
    ("regarding.name", "/involvedObject/name"),
    ("regarding.uid", "/involvedObject/uid"),
    ("regarding.apiVersion", "/involvedObject/apiVersion"),
    ("regarding.resourceVersion", "/involvedObject/resourceVersion"),
    ("regarding.fieldPath", "/involvedObject/fieldPath"),
    ("reason", "/reason"),
    ("reportingController", "/reportingComponent"),
    ("type", "/type"),
];

const POD_FIELDS: &[(&str, &str)] = &[
    ("spec.nodeName", "/spec/nodeName"),
    ("spec.restartPolicy", "/spec/restartPolicy"),
    ("spec.schedulerName", "/spec/schedulerName"),
    ("spec.serviceAccountName", "/spec/serviceAccountName"),
    ("spec.hostNetwork", "/spec/hostNetwork"),
    ("status.phase", "/status/phase"),
    ("status.podIP", "/status/podIP"),
    ("status.podIPs", "/status/podIP"),
    ("status.nominatedNodeName", "/status/nominatedNodeName"),
];

macro_rules! line {
    ($group:literal $kind:literal $plural:literal $short:expr, $namespaced:literal, $package:literal, $sub:expr, $traits:expr, $fields:expr) => {
        Line {
            group: $group,
            kind: $kind,
            plural: $plural,
            short: $short,
            namespaced: $namespaced,
            package: $package,
            subresources: $sub,
            traits: $traits,
            selectable: $fields,
        }
    };
}

const BUILT_IN: &[Line] = &[
    line!("" "ConfigMap" "configmaps" &["cm"], true, "core", &[], &[], &[]),
    line!("" "Endpoints" "endpoints" &["ep"], true, "core", &[], &[CreateOnUpdate], &[]),
    line!("" "Event" "events" &["ev"], true, "core", &[], &[CreateOnUpdate], EVENT_FIELDS),
    line!("" "LimitRange" "limitranges" &["limits"], true, "core", &[], &[CreateOnUpdate], &[]),
    line!("" "Namespace" "namespaces" &["ns"], false, "core", &[Finalize, Status], &[ReturnsDeleted], &[("status.phase", "/status/phase")]),
    line!("" "Node" "nodes" &["no"], false, "core", &[Status], &[], &[("spec.unschedulable", "/spec/unschedulable")]),
    line!("" "PersistentVolume" "persistentvolumes" &["pv"], false, "core", &[Status], &[ReturnsDeleted], &[]),
    line!("" "PersistentVolumeClaim" "persistentvolumeclaims" &["pvc"], true, "core", &[Status], &[ReturnsDeleted], &[]),
    line!("" "Pod" "pods" &["po"], true, "core", &[Binding, EphemeralContainers, Eviction, Log, Resize, Status], &[All, SpecGeneration, ReturnsDeleted], POD_FIELDS),
    line!("" "PodTemplate" "podtemplates" &[], true, "core", &[], &[CreateOnUpdate, ReturnsDeleted, SpecGeneration], &[]),
    line!("" "ReplicationController" "replicationcontrollers" &["rc"], true, "core", &[Scale, Status], &[All, SpecGeneration], &[("status.replicas", "/status/replicas")]),
    line!("" "ResourceQuota" "resourcequotas" &["quota"], true, "core", &[Status], &[ReturnsDeleted], &[]),
    line!("" "Secret" "secrets" &[], true, "core", &[], &[], &[("type", "/type")]),
    line!("" "Service" "services" &["svc"], true, "core", &[Status], &[All, CreateOnUpdate, ReturnsDeleted], &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")]),
    line!("" "ServiceAccount" "serviceaccounts" &["sa"], true, "core", &[], &[ReturnsDeleted], &[]),
    line!("apiextensions.k8s.io" "CustomResourceDefinition" "customresourcedefinitions" &["crd", "crds"], false, "apiextensions", &[Status], &[SpecGeneration, ConditionalUpdate], &[]),
    line!("apps" "ControllerRevision" "controllerrevisions" &[], true, "apps", &[], &[], &[]),
    line!("apps" "DaemonSet" "daemonsets" &["ds"], true, "apps", &[Status], &[All, SpecGeneration], &[]),
    line!("apps" "Deployment" "deployments" &["deploy"], true, "apps", &[Scale, Status], &[All, SpecGeneration], &[]),
    line!("apps" "ReplicaSet" "replicasets" &["rs"], true, "apps", &[Scale, Status], &[All, SpecGeneration], &[("status.replicas", "/status/replicas")]),
    line!("apps" "StatefulSet" "statefulsets" &["sts"], true, "apps", &[Scale, Status], &[All, SpecGeneration], &[]),
    line!("batch" "CronJob" "cronjobs" &["cj"], true, "batch", &[Status], &[All, SpecGeneration], &[]),
    line!("batch" "Job" "jobs" &[], true, "batch", &[Status], &[All, SpecGeneration], &[("status.successful", "/status/succeeded")]),
    line!("coordination.k8s.io" "Lease" "leases" &[], true, "coordination", &[], &[ConditionalUpdate, CreateOnUpdate], &[]),
    line!("discovery.k8s.io" "EndpointSlice" "endpointslices" &[], true, "discovery", &[], &[], &[]),
    line!("events.k8s.io" "Event" "events" &["ev"], true, "events", &[], &[CreateOnUpdate], NEW_EVENT_FIELDS),
    line!("policy" "PodDisruptionBudget" "poddisruptionbudgets" &["pdb"], true, "policy", &[Status], &[SpecGeneration, ConditionalUpdate], &[]),
    line!("rbac.authorization.k8s.io" "ClusterRole" "clusterroles" &[], false, "rbac", &[], &[CreateOnUpdate], &[]),
    line!("rbac.authorization.k8s.io" "ClusterRoleBinding" "clusterrolebindings" &[], false, "rbac", &[], &[CreateOnUpdate], &[]),
    line!("rbac.authorization.k8s.io" "Role" "roles" &[], true, "rbac", &[], &[CreateOnUpdate], &[]),
    line!("rbac.authorization.k8s.io" "RoleBinding" "rolebindings" &[], true, "rbac", &[], &[CreateOnUpdate], &[]),
    line!("scheduling.k8s.io" "PriorityClass" "priorityclasses" &["pc"], false, "scheduling", &[], &[SpecGeneration], &[]),
    line!("storage.k8s.io" "CSIDriver" "csidrivers" &[], false, "storage", &[], &[ConditionalUpdate, ReturnsDeleted], &[]),
    line!("storage.k8s.io" "CSINode" "csinodes" &[], false, "storage", &[Status], &[ConditionalUpdate, ReturnsDeleted], &[]),
    line!("storage.k8s.io" "StorageClass" "storageclasses" &["sc"], false, "storage", &[], &[ReturnsDeleted], &[]),
    line!("storage.k8s.io" "VolumeAttachment" "volumeattachments" &[], false, "storage", &[Status], &[ConditionalUpdate, ReturnsDeleted], &[]),
];

impl Table {
    /// The built-in kinds.
    pub(crate) fn built_in() -> Self {
        let mut table = Self { resources: BTreeMap::new() };
        for line in BUILT_IN {
            table.insert(line.resource());
        }
        table
    }

    pub(crate) fn insert(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.resources.insert(key, Arc::new(resource));
    }

    /// Forgets all versions of the resource that a definition made.
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

impl Line {
    fn resource(&self) -> Resource {
        let has = |wanted| self.traits.contains(&wanted);
        let definition = if self.package == "apiextensions" {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.{}", self.kind)
        } else {
            format!("io.k8s.api.{}.v1.{}", self.package, self.kind)
        };
        // Both kinds of events are the same objects.
        let stored_group = if self.plural == "events" { "" } else { self.group };
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let categories: &[&str] = match (has(All), self.package) {
            (true, _) => &["all"],
            (false, "apiextensions") => &["api-extensions"],
            _ => &[],
        };
        Resource {
            group: self.group.to_owned(),
            version: "v1".to_owned(),
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            short_names: own(self.short),
            categories: own(categories),
            namespaced: self.namespaced,
            stored_as: (stored_group.to_owned(), self.plural.to_owned()),
            subresources: self.subresources.to_vec(),
            generation: if has(SpecGeneration) { Generation::Spec } else { Generation::None },
            unconditional_update: !has(ConditionalUpdate),
            create_on_update: has(CreateOnUpdate),
            returns_deleted: has(ReturnsDeleted),
            selectable: self
                .selectable
                .iter()
                .map(|&(label, pointer)| (label.to_owned(), pointer.to_owned()))
                .collect(),
            columns: Vec::new(),
            schema: Schema::built_in(&definition),
            custom: None,
        }
    }
}
