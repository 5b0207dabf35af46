//! Server-side apply: a client says which fields it cares about, and owns them.
//!
//! Ownership is recorded in `managedFields` from the first apply of an object on. Before that nobody's fields are
//! recorded, and the first apply finds them owned by `before-first-apply`.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::{self, Core};
use crate::declared;
use crate::environment::Environment;
use crate::fields::{self, FieldSet, Path};
use crate::object::{self, Stored};
use crate::request::{Query, Request, Target};
use crate::status::Refusal;
use crate::table::{Resource, Subresource};
use crate::write::{self, Options, Part};

/// Who owns what nobody applied.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Who wrote, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    name: String,
    operation: &'static str,
    subresource: String,
}

impl Manager {
    fn shown(&self, api_version: &str) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == "Update" {
            text.push_str(&format!(" using {api_version}"));
        }
        text
    }
}

/// The owners of an object's fields.
#[derive(Debug, Clone, Default)]
struct Managers(BTreeMap<Manager, (FieldSet, String)>);

impl Managers {
    fn read(value: &Value) -> Self {
        let entries = object::list(value, "/metadata/managedFields").iter().map(|entry| {
            let manager = Manager {
                name: object::text(entry, "/manager").to_owned(),
                operation: if object::text(entry, "/operation") == "Apply" { "Apply" } else { "Update" },
                subresource: object::text(entry, "/subresource").to_owned(),
            };
            let set = FieldSet::decode(entry.get("fieldsV1").unwrap_or(&Value::Null));
            (manager, (set, object::text(entry, "/time").to_owned()))
        });
        Self(entries.collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn set(&self, manager: &Manager) -> FieldSet {
        self.0.get(manager).map(|(set, _)| set.clone()).unwrap_or_default()
    }

    /// Gives a manager its fields; the time tells when they last changed.
    fn put(&mut self, manager: Manager, set: FieldSet, now: Timestamp) {
        if set.is_empty() {
            self.0.remove(&manager);
        } else if self.set(&manager) != set {
            self.0.insert(manager, (set, object::time(now)));
        }
    }

    /// Takes a field from everybody but one.
    fn take_from_others(&mut self, but: &Manager, path: &[String]) {
        for (manager, (set, _)) in &mut self.0 {
            if manager != but {
                set.remove(path);
            }
        }
        self.0.retain(|_, (set, _)| !set.is_empty());
    }

    fn write(&self, resource: &Resource, value: &mut Value) {
        let entries: Vec<Value> = self
            .0
            .iter()
            .map(|(manager, (set, time))| {
                let mut entry = json!({
                    "manager": manager.name, "operation": manager.operation, "apiVersion": resource.api_version(),
                    "time": time, "fieldsType": "FieldsV1", "fieldsV1": set.encode(),
                });
                if !manager.subresource.is_empty() {
                    entry["subresource"] = json!(manager.subresource);
                }
                entry
            })
            .collect();
        let field = if entries.is_empty() { Value::Null } else { json!(entries) };
        object::set_metadata(value, "managedFields", field);
    }
}

fn subresource_of(part: Part) -> &'static str {
    match part {
        Part::Status => "status",
        _ => "",
    }
}

/// What a write to a part of an object may own.
fn within(part: Part, resource: &Resource, set: FieldSet) -> FieldSet {
    let set = set.without_identity();
    match part {
        Part::Status => set.only("status"),
        _ if resource.has(Subresource::Status) => set.without("status"),
        _ => set,
    }
}

/// Records who changed what in an ordinary write, where ownership is recorded at all.
pub(crate) fn track_update(
    resource: &Resource,
    part: Part,
    manager: &str,
    current: &Value,
    new: &mut Value,
    now: Timestamp,
) {
    let mut managers = Managers::read(current);
    let cleared = object::at(new, "/metadata/managedFields") == Some(&json!([]));
    if managers.is_empty() || cleared {
        object::set_metadata(new, "managedFields", Value::Null);
        return;
    }
    let before = FieldSet::of(current, &resource.schema).without_identity();
    let after = FieldSet::of(new, &resource.schema).without_identity();
    let own = Manager {
        name: manager.to_owned(),
        operation: "Update",
        subresource: subresource_of(part).to_owned(),
    };
    let mut set = managers.set(&own);
    for path in after.paths() {
        let is_same = before.contains(&path)
            && fields::get(current, &path, &resource.schema) == fields::get(new, &path, &resource.schema);
        let is_container = fields::get(new, &path, &resource.schema).is_some_and(|value| {
            value.is_object() && !value.as_object().is_some_and(serde_json::Map::is_empty)
        });
        // A container changes with what is in it, which is counted by itself.
        if is_same || (is_container && before.contains(&path)) {
            continue;
        }
        managers.take_from_others(&own, &path);
        set.insert(&path);
    }
    for path in before.paths() {
        if !after.contains(&path) {
            set.remove(&path);
            managers.take_from_others(&own, &path);
        }
    }
    managers.put(own, set, now);
    managers.write(resource, new);
}

/// Applies a configuration.
pub(crate) fn apply(
    core: &mut Core,
    target: &Target,
    part: Part,
    request: &Request,
    query: &Query,
    options: &Options,
    environment: &mut Environment<'_>,
) -> Result<(StatusCode, Arc<Stored>), Refusal> {
    let resource = &target.resource;
    let manager = query.text("fieldManager");
    let applied = request.value()?;
    core::check_type(resource, &applied)?;
    if applied.get("apiVersion").is_none() || applied.get("kind").is_none() {
        return Err(Refusal::bad_request("couldn't get version/kind; invalid object"));
    }
    if object::at(&applied, "/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    declared::check(&resource.schema, &applied).map_err(|why| {
        Refusal::internal_plain(&format!(
            "failed to create typed patch object ({}/{}; {}/{}, Kind={}): {why}",
            object::namespace(&applied),
            object::name(&applied),
            resource.group,
            resource.version,
            resource.kind
        ))
    })?;
    let mut applied = sparse(resource, &applied)?;
    crate::metadata::check_place(&mut applied, resource, &target.namespace, &target.name)?;
    let own = Manager {
        name: manager.to_owned(),
        operation: "Apply",
        subresource: subresource_of(part).to_owned(),
    };
    let owned = within(part, resource, FieldSet::of(&applied, &resource.schema));
    let Some(current) = core.present(resource, &target.namespace, &target.name) else {
        if part != Part::Whole {
            return Err(Refusal::not_found(resource, &target.name));
        }
        let mut fresh = applied;
        let uid = object::uid(&fresh);
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Refusal::conflict(resource, &target.name, &why));
        }
        // A revision says nothing about what is not there.
        object::set_metadata(&mut fresh, "resourceVersion", Value::Null);
        let mut managers = Managers::default();
        managers.put(own, owned, environment.now);
        let mut unknown = Vec::new();
        fresh = core::normalise(resource, fresh, &mut unknown)?;
        managers.write(resource, &mut fresh);
        let options = Options { applies: true, ..options.clone() };
        let stored = write::create(core, resource, &target.namespace, fresh, &options, environment)?;
        return Ok((StatusCode::CREATED, stored));
    };
    write::check_uid(resource, &target.name, current.value(), &applied)?;
    let live = current.value();
    let mut managers = Managers::read(live);
    if managers.is_empty() {
        let everything = FieldSet::of(live, &resource.schema).without_identity();
        let nobody =
            Manager { name: BEFORE_FIRST_APPLY.to_owned(), operation: "Update", subresource: String::new() };
        managers.put(nobody, everything, environment.now);
    }
    let mut merged = live.clone();
    fields::merge(&mut merged, &applied, &resource.schema);
    if part == Part::Status {
        // Only the status is applied, whatever else the configuration says.
        let mut kept = live.clone();
        object::carry(&merged, &mut kept, "status");
        merged = kept;
    }
    drop_what_was_left_out(resource, &managers, &own, &owned, &mut merged);
    resolve_conflicts(resource, &mut managers, &own, &owned, live, &merged, query.flag("force"))?;
    managers.put(own, owned, environment.now);
    let mut ignored = Vec::new();
    let mut new = core::normalise(resource, merged, &mut ignored)?;
    managers.write(resource, &mut new);
    let version = object::text(&applied, "/metadata/resourceVersion");
    let version = if version.is_empty() { object::text(live, "/metadata/resourceVersion") } else { version };
    object::set_metadata(&mut new, "resourceVersion", json!(version));
    let options = Options { applies: true, ..options.clone() };
    let stored = write::update(core, target, part, &current, new, &options, environment)?;
    Ok((StatusCode::OK, stored))
}

/// The configuration with known fields in canonical form, and nothing that the client did not say.
fn sparse(resource: &Resource, applied: &Value) -> Result<Value, Refusal> {
    let mut whole = applied.clone();
    if resource.custom.is_none() {
        let mut unknown = Vec::new();
        whole = core::normalise(resource, whole, &mut unknown)?;
    } else {
        whole = crate::custom::prune_noting(resource, whole, &mut Vec::new());
    }
    let mut said = keep_said(&whole, applied);
    if let Some(members) = said.as_object_mut() {
        members.remove("apiVersion");
        members.remove("kind");
    }
    Ok(said)
}

/// Of a decoded value, only what the client wrote: decoding also adds what Go always prints.
fn keep_said(decoded: &Value, said: &Value) -> Value {
    match (decoded, said) {
        (Value::Object(decoded), Value::Object(said)) => decoded
            .iter()
            .filter_map(|(key, value)| said.get(key).map(|said| (key.clone(), keep_said(value, said))))
            .collect(),
        (Value::Array(decoded), Value::Array(said)) if decoded.len() == said.len() => {
            decoded.iter().zip(said).map(|(value, said)| keep_said(value, said)).collect()
        }
        _ => decoded.clone(),
    }
}

/// What this manager applied last time and leaves out now goes, unless somebody else owns it too.
fn drop_what_was_left_out(
    resource: &Resource,
    managers: &Managers,
    own: &Manager,
    owned: &FieldSet,
    merged: &mut Value,
) {
    let mut dropped: Vec<Path> = managers.set(own).paths();
    dropped.retain(|path| {
        let elsewhere = managers.0.iter().any(|(manager, (set, _))| manager != own && set.contains(path));
        !owned.contains(path) && !elsewhere
    });
    // From the outside in: a container that nobody needs takes what is in it along.
    dropped.sort_by_key(Vec::len);
    for path in dropped {
        let is_container = fields::get(merged, &path, &resource.schema).is_some_and(|value| match value {
            Value::Object(members) => !members.is_empty(),
            Value::Array(elements) => !elements.is_empty(),
            _ => false,
        });
        if !(is_container && is_needed(managers, own, owned, &path)) {
            fields::remove(merged, &path, &resource.schema);
        }
    }
}

/// Whether anybody owns something below a place.
fn is_needed(managers: &Managers, own: &Manager, owned: &FieldSet, path: &[String]) -> bool {
    let below =
        |set: &FieldSet| set.paths().iter().any(|known| known.len() > path.len() && known.starts_with(path));
    below(owned) || managers.0.iter().any(|(manager, (set, _))| manager != own && below(set))
}

/// A field that changes and that somebody else owns is a conflict, unless it is forced.
fn resolve_conflicts(
    resource: &Resource,
    managers: &mut Managers,
    own: &Manager,
    owned: &FieldSet,
    live: &Value,
    merged: &Value,
    force: bool,
) -> Result<(), Refusal> {
    let mut conflicts: Vec<(String, Path)> = Vec::new();
    for path in owned.paths() {
        let new = fields::get(merged, &path, &resource.schema);
        let is_leaf = !owned.paths().iter().any(|other| other.len() > path.len() && other.starts_with(&path));
        if !is_leaf || new == fields::get(live, &path, &resource.schema) {
            continue;
        }
        for (manager, (set, _)) in &managers.0 {
            if manager != own && set.contains(&path) {
                conflicts.push((manager.shown(&resource.api_version()), path.clone()));
            }
        }
        if force {
            managers.take_from_others(own, &path);
        }
    }
    if conflicts.is_empty() || force {
        return Ok(());
    }
    conflicts.sort();
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|(manager, path)| {
            json!({
                "reason": "FieldManagerConflict", "message": format!("conflict with {manager}"),
                "field": fields::shown(path),
            })
        })
        .collect();
    Err(Refusal::new(409, "Conflict", summary(&conflicts)).with_causes(json!(causes)))
}

fn summary(conflicts: &[(String, Path)]) -> String {
    if let [(manager, path)] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {manager}: {}", fields::shown(path));
    }
    let mut text = format!("Apply failed with {} conflicts: ", conflicts.len());
    let mut by_manager: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
    for (manager, path) in conflicts {
        by_manager.entry(manager).or_default().push(path);
    }
    let parts: Vec<String> = by_manager
        .iter()
        .map(|(manager, paths)| {
            let listed: Vec<String> =
                paths.iter().map(|path| format!("\n- {}", fields::shown(path))).collect();
            format!("conflicts with {manager}:{}", listed.concat())
        })
        .collect();
    text.push_str(&parts.join("\n"));
    text
}
