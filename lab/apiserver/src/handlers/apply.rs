//! Server-side apply: a client declares the fields that it cares about, and owns them.
//!
//! Ownership is recorded in `managedFields` from the first apply of an object on. Before that no owners are recorded,
//! and the first apply assigns all fields to `before-first-apply`.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::write::{self, Options};
use crate::environment::Environment;
use crate::kinds::metadata;
use crate::kinds::part::Part;
use crate::kinds::table::{Resource, Subresource};
use crate::object::{self, Stored};
use crate::patch::declared;
use crate::patch::fields::{self, FieldSet, Path};
use crate::patch::managers::{Manager, Managers, subresource_of};
use crate::protocol::request::{Query, Request, Target};
use crate::protocol::status::Refusal;
use crate::state::{self, Core};

/// The owner of fields that were not applied.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The fields that a write to a part of an object may own.
fn within(part: Part, resource: &Resource, set: FieldSet) -> FieldSet {
    let set = set.without_identity();
    match part {
        Part::Status => set.only("status"),
        _ if resource.has(Subresource::Status) => set.without("status"),
        _ => set,
    }
}

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
    state::check_type(resource, &applied)?;
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
    metadata::check_place(&mut applied, resource, &target.namespace, &target.name)?;
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
        // A resourceVersion is meaningless for an object that does not exist.
        object::set_metadata(&mut fresh, "resourceVersion", Value::Null);
        let mut managers = Managers::default();
        managers.put(own, owned, environment.now);
        let mut unknown = Vec::new();
        fresh = state::normalise(resource, fresh, &mut unknown)?;
        managers.write(resource, &mut fresh);
        let options = Options { applies: true, ..options.clone() };
        let stored = write::create(core, resource, &target.namespace, fresh, &options, environment)?;
        return Ok((StatusCode::CREATED, stored));
    };
    let live = &*current.value();
    write::check_uid(resource, &target.name, live, &applied)?;
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
        // Only the status is applied, whatever else the configuration contains.
        let mut kept = live.clone();
        object::carry(&merged, &mut kept, "status");
        merged = kept;
    }
    drop_what_was_left_out(resource, &managers, &own, &owned, &mut merged);
    resolve_conflicts(resource, &mut managers, &own, &owned, live, &merged, query.flag("force"))?;
    managers.put(own, owned, environment.now);
    let mut ignored = Vec::new();
    let mut new = state::normalise(resource, merged, &mut ignored)?;
    managers.write(resource, &mut new);
    let version = object::text(&applied, "/metadata/resourceVersion");
    let version = if version.is_empty() { object::text(live, "/metadata/resourceVersion") } else { version };
    object::set_metadata(&mut new, "resourceVersion", json!(version));
    let options = Options { applies: true, ..options.clone() };
    let stored = write::update(core, target, part, &current, new, &options, environment)?;
    Ok((StatusCode::OK, stored))
}

/// The configuration with known fields in canonical form, and nothing that the client did not set.
fn sparse(resource: &Resource, applied: &Value) -> Result<Value, Refusal> {
    let mut whole = applied.clone();
    if resource.custom.is_none() {
        let mut unknown = Vec::new();
        whole = state::normalise(resource, whole, &mut unknown)?;
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

/// Keeps only what the client wrote: decoding also adds the fields that Go always prints.
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

/// Removes fields that this manager applied last time and leaves out now, unless another manager owns them, too.
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
    // From the outside in: removing an unused container also removes its content.
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

/// True if any manager owns something below a path.
fn is_needed(managers: &Managers, own: &Manager, owned: &FieldSet, path: &[String]) -> bool {
    let below =
        |set: &FieldSet| set.paths().iter().any(|known| known.len() > path.len() && known.starts_with(path));
    below(owned) || managers.0.iter().any(|(manager, (set, _))| manager != own && below(set))
}

/// A field that changes and that another manager owns is a conflict, unless the apply is forced.
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
