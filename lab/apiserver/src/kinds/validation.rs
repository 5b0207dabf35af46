//! Validation of objects of single kinds.

mod pods;
mod workloads;

use serde_json::{Value, json};

use super::CheckUpdate;
use super::metadata::{check_finalizer, is_subdomain, qualified_name_problems};
use super::table::Resource;
use crate::object;
use crate::protocol::status::Cause;

pub(crate) use pods::pod_spec;
pub(super) use pods::{node_update, pod_update, taints};
pub(super) use workloads::{budget, deployment, stateful_set, stateful_set_update, workload};
pub(crate) use workloads::{mismatch, selector};

pub(super) const IMMUTABLE: &str = "field is immutable";

/// Warnings to a client that creates or changes an object of a built-in kind.
pub(crate) fn warnings(resource: &Resource, value: &Value) -> Vec<String> {
    resource.built_in.map_or_else(Vec::new, |kind| (kind.warnings)(value))
}

pub(crate) fn create(resource: &Resource, value: &Value) -> Vec<Cause> {
    resource.built_in.map_or_else(Vec::new, |kind| (kind.check)(value))
}

/// Checks an update of a built-in kind, beyond the checks on creation.
pub(crate) fn update(resource: &Resource, current: &Value, new: &Value) -> Vec<Cause> {
    let Some(kind) = resource.built_in else { return Vec::new() };
    match kind.check_update {
        CheckUpdate::Only(check) => check(current, new),
        CheckUpdate::Also(check) => {
            let mut causes = (kind.check)(new);
            causes.extend(check(current, new));
            causes
        }
    }
}

/// What keeps a text from being a qualified name.
pub(crate) fn named(field: impl Into<String>, name: &str) -> impl Iterator<Item = Cause> {
    let (field, name) = (field.into(), json!(name));
    let problems = qualified_name_problems(name.as_str().unwrap_or("")).into_iter();
    problems.map(move |why| Cause::invalid(field.clone(), &name, why))
}

/// Checks an update of a namespace's own finalizers.
pub(crate) fn finalize(namespace: &Value) -> Vec<Cause> {
    let finalizers = object::strings(namespace, "/spec/finalizers");
    let checked = finalizers.iter().enumerate().flat_map(|(index, finalizer)| {
        let field = format!("spec.finalizers[{index}]");
        named(field.clone(), finalizer).chain(check_finalizer(&field, finalizer))
    });
    checked.collect()
}

pub(super) fn namespace(value: &Value) -> Vec<Cause> {
    let field = "spec.finalizers";
    let finalizers = object::strings(value, "/spec/finalizers");
    finalizers
        .iter()
        .flat_map(|finalizer| named(field, finalizer).chain(check_finalizer(field, finalizer)))
        .collect()
}

/// The phase of a namespace must show whether it is being deleted, and nothing else.
pub(super) fn namespace_phase(_: &Value, namespace: &Value) -> Vec<Cause> {
    let (phase, why) = if object::is_terminating(namespace) {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    let stated = object::text(namespace, "/status/phase");
    if stated == phase { Vec::new() } else { vec![Cause::invalid("status.Phase", &json!(stated), why)] }
}

pub(crate) fn update_status(resource: &Resource, current: &Value, new: &Value) -> Vec<Cause> {
    resource.built_in.map_or_else(Vec::new, |kind| (kind.check_status)(current, new))
}

pub(super) fn budget_status_update(_: &Value, new: &Value) -> Vec<Cause> {
    ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"]
        .iter()
        .filter_map(|key| {
            let field = new.pointer(&format!("/status/{key}"))?;
            (field.as_i64()? < 0).then(|| negative(format!("status.{key}"), field))
        })
        .collect()
}

/// Fields that must be present, by their dotted paths.
pub(super) fn required(value: &Value, fields: &[&str]) -> Vec<Cause> {
    let is_missing = |field: &str| match object::at(value, &format!("/{}", field.replace('.', "/"))) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    let missing = fields.iter().copied().filter(|field| is_missing(field));
    missing.map(|field| Cause::required(field, "")).collect()
}

pub(super) fn pod(value: &Value) -> Vec<Cause> {
    pod_spec(value.get("spec").unwrap_or(&Value::Null), "spec")
}

/// The real server's message for a field that may not change.
pub(super) enum Style<'s> {
    /// With the new value.
    Immutable,
    /// Without the new value.
    Unshown,
    /// As something forbidden. `{}` is the field.
    Forbidden(&'s str),
}

pub(crate) fn immutable(current: &Value, new: &Value, fields: &[&str]) -> Vec<Cause> {
    immutable_with(current, new, fields, &Style::Immutable)
}

pub(super) fn immutable_with(current: &Value, new: &Value, fields: &[&str], style: &Style<'_>) -> Vec<Cause> {
    let pointer = |field: &str| format!("/{}", field.replace('.', "/"));
    fields
        .iter()
        .filter(|field| current.pointer(&pointer(field)) != new.pointer(&pointer(field)))
        .map(|&field| match style {
            Style::Immutable => {
                let shown = new.pointer(&pointer(field)).unwrap_or(&Value::Null);
                Cause::invalid(field, shown, IMMUTABLE)
            }
            Style::Unshown => Cause::invalid(field, &Value::Null, IMMUTABLE),
            Style::Forbidden(why) => Cause::forbidden(field, &why.replace("{}", field)),
        })
        .collect()
}

/// For fields whose new value the real server does not show.
pub(super) fn immutable_unshown(current: &Value, new: &Value, fields: &[&str]) -> Vec<Cause> {
    immutable_with(current, new, fields, &Style::Unshown)
}

pub(crate) fn negative(field: String, value: &Value) -> Cause {
    Cause::invalid(field, value, "must be greater than or equal to 0")
}

pub(super) fn frozen(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if current.get("immutable") == Some(&json!(true)) {
        if new.get("immutable") != Some(&json!(true)) {
            causes.push(Cause::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
        for key in ["data", "binaryData"] {
            if current.get(key) != new.get(key) {
                causes.push(Cause::forbidden(key, "field is immutable when `immutable` is set"));
            }
        }
    }
    causes
}

pub(super) fn secret_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = frozen(current, new);
    causes.extend(immutable(current, new, &["type"]));
    causes
}

pub(super) fn data_keys(value: &Value, maps: &[&str]) -> Vec<Cause> {
    let mut causes = Vec::new();
    for map in maps {
        for key in value.get(*map).and_then(Value::as_object).into_iter().flat_map(serde_json::Map::keys) {
            let fits = !key.is_empty()
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if !fits {
                causes.push(Cause::invalid(
                    format!("{map}[{key}]"),
                    &json!(key),
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                ));
            }
        }
    }
    causes
}

pub(super) fn config_map(value: &Value) -> Vec<Cause> {
    let mut causes = data_keys(value, &["data"]);
    let keys = |map: &str| value.get(map).and_then(Value::as_object);
    for key in keys("data").into_iter().flat_map(serde_json::Map::keys) {
        if keys("binaryData").is_some_and(|binary| binary.contains_key(key)) {
            let why = "duplicate of key present in binaryData";
            causes.push(Cause::invalid(format!("data[{key}]"), &json!(key), why));
        }
    }
    causes.extend(data_keys(value, &["binaryData"]));
    causes
}

pub(crate) fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_subdomain(name)
}

pub(super) fn lease(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(duration) = value.pointer("/spec/leaseDurationSeconds")
        && duration.as_i64().is_some_and(|seconds| seconds <= 0)
    {
        causes.push(Cause::invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"));
    }
    if let Some(transitions) = value.pointer("/spec/leaseTransitions")
        && transitions.as_i64().is_some_and(|transitions| transitions < 0)
    {
        causes.push(Cause::invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        ));
    }
    causes
}

pub(super) fn event(value: &Value) -> Vec<Cause> {
    let about = object::text(value, "/involvedObject/namespace");
    let namespace = object::namespace(value);
    let fits =
        about == namespace || (about.is_empty() && ["", "default", "kube-system"].contains(&namespace));
    if fits {
        Vec::new()
    } else {
        vec![Cause::invalid("involvedObject.namespace", &json!(about), "does not match event.namespace")]
    }
}

/// Events of the newer group have more required fields: the time, the reporter, and the action. They are stored under
/// the older names.
pub(super) fn new_event(value: &Value) -> Vec<Cause> {
    let mut causes = event(value);
    let text = |key: &str| object::text(value, &format!("/{key}"));
    if text("eventTime").is_empty() {
        causes.push(Cause::required("eventTime", ""));
    }
    let controller = text("reportingComponent");
    if controller.is_empty() {
        causes.push(Cause::required("reportingController", ""));
    }
    causes.extend(named("reportingController", controller));
    for key in ["reportingInstance", "action", "reason"] {
        if text(key).is_empty() {
            causes.push(Cause::required(key, ""));
        }
    }
    if !["Normal", "Warning"].contains(&text("type")) {
        causes.push(Cause::invalid("type", &json!(""), &format!("has invalid value: {}", text("type"))));
    }
    causes
}

pub(super) fn claim(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if object::list(value, "/spec/accessModes").is_empty() {
        causes.push(Cause::required("spec.accessModes", "at least 1 access mode is required"));
    }
    if value.pointer("/spec/resources/requests/storage").is_none() {
        causes.push(Cause::required("spec.resources[storage]", ""));
    }
    causes
}

pub(super) fn volume(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if object::list(value, "/spec/accessModes").is_empty() {
        causes.push(Cause::required("spec.accessModes", ""));
    }
    if value.pointer("/spec/capacity").is_none() {
        causes.push(Cause::required("spec.capacity", ""));
    }
    causes
}

pub(super) fn service(value: &Value) -> Vec<Cause> {
    let headless = object::text(value, "/spec/clusterIP") == "None";
    let external = object::text(value, "/spec/type") == "ExternalName";
    if object::list(value, "/spec/ports").is_empty() && !headless && !external {
        return vec![Cause::required("spec.ports", "")];
    }
    Vec::new()
}

pub(super) fn priority_class(value: &Value) -> Vec<Cause> {
    let name = object::name(value);
    let number = value.get("value").and_then(Value::as_i64).unwrap_or(0);
    if name.starts_with("system-") && !["system-node-critical", "system-cluster-critical"].contains(&name) {
        return vec![Cause::forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only. error: ",
        )];
    }
    if number > 1_000_000_000 && !name.starts_with("system-") {
        return vec![Cause::forbidden(
            "value",
            "maximum allowed value of a user defined priority is 1000000000",
        )];
    }
    Vec::new()
}
