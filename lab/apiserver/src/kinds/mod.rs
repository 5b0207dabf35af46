//! The built-in kinds: each is defined entirely by one [`Kind`] in one of the lists below.
//!
//! To serve another kind, add it to the list of its group, run `tests/schemas.rs` and `tests/structs.rs` with
//! `SALVOR_UPDATE=1`, and add an object of it to `tests/samples.yaml`; `tests/kinds.rs` compares its whole life with
//! the real server's.

mod admission;
mod cluster;
mod core;
pub(crate) mod defaults;
mod devices;
pub(crate) mod events;
pub(crate) mod go;
mod indexes;
mod job;
mod job_status;
pub(crate) mod metadata;
mod network;
pub(crate) mod part;
mod pod;
mod pod_status;
pub(crate) mod prepare;
mod storage;
pub(crate) mod table;
pub(crate) mod validation;
mod webhooks;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::table::{Generation, Subresource};
use crate::environment::Environment;
use crate::protocol::printing::Column;
use crate::protocol::status::Cause;

/// A built-in kind, and how it differs from the default behaviour.
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) subresources: &'static [Subresource],
    /// Its path in etcd below `/registry`, if not its plural.
    pub(crate) kept_at: Option<&'static str>,
    /// The group under which its objects are stored, if another one.
    pub(crate) stored_group: Option<&'static str>,
    /// When `metadata.generation` increases.
    pub(crate) generation: Generation,
    /// An update may leave out the resourceVersion.
    pub(crate) unconditional_update: bool,
    /// An update of an object that does not exist creates it.
    pub(crate) create_on_update: bool,
    /// A delete that removes the object returns it.
    pub(crate) returns_deleted: bool,
    /// A delete without a propagation policy orphans the dependents, for compatibility with older clients.
    pub(crate) orphans: bool,
    /// Field selectors beside `metadata.name` and `metadata.namespace`: the label, and the JSON pointer it reads.
    pub(crate) selectable: &'static [(&'static str, &'static str)],
    /// The error for other field selectors, where `selectable` has any. `{}` is the label.
    pub(crate) unknown_field: &'static str,
    pub(crate) names: Names,
    /// A warning with every answer.
    pub(crate) deprecated: Option<&'static str>,
    /// The columns of a table.
    pub(crate) columns: &'static [Column],
    /// Fills in what the client leaves out.
    pub(crate) defaults: fn(&mut Value),
    pub(crate) new_status: NewStatus,
    /// The server's changes to a new object.
    pub(crate) on_create: fn(&mut Value, &Environment<'_>),
    /// The server's changes to an updated object: the present one, and the new one.
    pub(crate) on_update: fn(&Value, &mut Value, Timestamp),
    /// The server's changes to an updated status.
    pub(crate) on_status: fn(&Value, &mut Value, Timestamp),
    /// Fields of the metadata that an update of the status does not change.
    pub(crate) status_keeps: &'static [&'static str],
    /// The problems of a new object.
    pub(crate) check: fn(&Value) -> Vec<Cause>,
    pub(crate) check_update: CheckUpdate,
    /// The problems of an update of the status.
    pub(crate) check_status: fn(&Value, &Value) -> Vec<Cause>,
    pub(crate) warnings: fn(&Value) -> Vec<String>,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kind").field(&self.group).field(&self.kind).finish()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// `a.b-c`.
    Subdomain,
    /// Without dots.
    Label,
    /// Without dots, and beginning with a letter.
    Label1035,
    /// Anything that is valid in a path.
    PathSegment,
}

/// The status of a new object of a kind that has one.
pub(crate) enum NewStatus {
    Empty,
    /// The default value before any controller has set it.
    As(fn() -> Value),
    /// The client's value.
    Kept,
}

/// The checks of an update.
pub(crate) enum CheckUpdate {
    /// All checks of a new object, and this one: the present object, and the new one.
    Also(fn(&Value, &Value) -> Vec<Cause>),
    /// Only this check.
    Only(fn(&Value, &Value) -> Vec<Cause>),
}

/// For `status_keeps`, where an update of the status changes no metadata at all.
const ALL_METADATA: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];

/// The category of `kubectl get all`.
const ALL: &[&str] = &["all"];

/// The category of kinds that extend the API.
const API_EXTENSIONS: &[&str] = &["api-extensions"];

/// A namespaced kind with default behaviour.
const fn namespaced(group: &'static str, kind: &'static str, plural: &'static str) -> Kind {
    Kind {
        group,
        version: "v1",
        kind,
        plural,
        short_names: &[],
        categories: &[],
        namespaced: true,
        subresources: &[],
        kept_at: None,
        stored_group: None,
        generation: Generation::None,
        unconditional_update: true,
        create_on_update: false,
        returns_deleted: false,
        orphans: false,
        selectable: &[],
        unknown_field: "field label not supported: {}",
        names: Names::Subdomain,
        deprecated: None,
        columns: &[],
        defaults: |_| {},
        new_status: NewStatus::Empty,
        on_create: |_, _| {},
        on_update: |_, _, _| {},
        on_status: |_, _, _| {},
        status_keeps: &[],
        check: |_| Vec::new(),
        check_update: CheckUpdate::Also(|_, _| Vec::new()),
        check_status: |_, _| Vec::new(),
        warnings: |_| Vec::new(),
    }
}

/// A cluster-scoped kind with default behaviour.
const fn clustered(group: &'static str, kind: &'static str, plural: &'static str) -> Kind {
    Kind { namespaced: false, ..namespaced(group, kind, plural) }
}

pub(crate) fn all() -> impl Iterator<Item = &'static Kind> {
    let lists: [&'static [Kind]; 7] = [
        core::KINDS,
        workloads::KINDS,
        storage::KINDS,
        network::KINDS,
        devices::KINDS,
        admission::KINDS,
        cluster::KINDS,
    ];
    lists.into_iter().flatten()
}

impl Kind {
    /// The name of its definition in OpenAPI.
    pub(crate) fn definition(&self) -> String {
        let (package, version, kind) = (self.package(), self.version, self.kind);
        if self.group == "apiextensions.k8s.io" {
            return format!("io.k8s.apiextensions-apiserver.pkg.apis.{package}.{version}.{kind}");
        }
        format!("io.k8s.api.{package}.{version}.{kind}")
    }

    /// The Go package that has its structures.
    fn package(&self) -> &'static str {
        match self.group {
            "" => "core",
            group => group.split('.').next().unwrap_or(group),
        }
    }

    /// The status of a new object, if the client cannot set it.
    pub(crate) fn new_status(&self) -> Option<Value> {
        match self.new_status {
            NewStatus::Empty => Some(json!({})),
            NewStatus::As(status) => Some(status()),
            NewStatus::Kept => None,
        }
    }
}
