//! The owners of the fields of an object (`managedFields`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fields::{self, FieldSet};
use crate::kinds::part::Part;
use crate::kinds::table::Resource;
use crate::object;

/// The writer, and the kind of write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) operation: &'static str,
    pub(crate) subresource: String,
}

impl Manager {
    pub(crate) fn shown(&self, api_version: &str) -> String {
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

#[derive(Debug, Clone, Default)]
pub(crate) struct Managers(pub(crate) BTreeMap<Manager, (FieldSet, String)>);

impl Managers {
    pub(crate) fn read(value: &Value) -> Self {
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

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn set(&self, manager: &Manager) -> FieldSet {
        self.0.get(manager).map(|(set, _)| set.clone()).unwrap_or_default()
    }

    /// Sets the fields of a manager; the time is that of their last change.
    pub(crate) fn put(&mut self, manager: Manager, set: FieldSet, now: Timestamp) {
        if set.is_empty() {
            self.0.remove(&manager);
        } else if self.set(&manager) != set {
            self.0.insert(manager, (set, object::time(now)));
        }
    }

    /// Removes a field from all managers but one.
    pub(crate) fn take_from_others(&mut self, but: &Manager, path: &[String]) {
        for (manager, (set, _)) in &mut self.0 {
            if manager != but {
                set.remove(path);
            }
        }
        self.0.retain(|_, (set, _)| !set.is_empty());
    }

    pub(crate) fn write(&self, resource: &Resource, value: &mut Value) {
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

pub(crate) fn subresource_of(part: Part) -> &'static str {
    match part {
        Part::Status => "status",
        _ => "",
    }
}

/// True for Leases. Their writers are always recorded, because clients learn from that when a Lease was renewed by the
/// server's clock.
pub(crate) fn is_lease(resource: &Resource) -> bool {
    resource.is("coordination.k8s.io", "Lease")
}

/// Records who wrote a Lease, and when its renew time last changed.
pub(crate) fn track_renewal(
    resource: &Resource,
    manager: &str,
    current: Option<&Value>,
    new: &mut Value,
    now: Timestamp,
) {
    const RENEWED: &str = "/spec/renewTime";
    let before = current.filter(|current| object::at(current, RENEWED) == object::at(new, RENEWED));
    let same = before.map(|current| object::list(current, "/metadata/managedFields")).unwrap_or_default();
    if !same.is_empty() {
        let same = json!(same);
        object::set_metadata(new, "managedFields", same);
        return;
    }
    let fields =
        object::at(new, "/spec").and_then(Value::as_object).into_iter().flat_map(serde_json::Map::keys);
    let fields: serde_json::Map<String, Value> = fields.map(|key| (format!("f:{key}"), json!({}))).collect();
    let entry = json!({
        "manager": manager, "operation": "Update", "apiVersion": resource.api_version(), "time": object::time(now),
        "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": fields },
    });
    object::set_metadata(new, "managedFields", json!([entry]));
}

/// Records the fields that an ordinary write changed, if ownership of the object is recorded at all.
pub(crate) fn track_update(
    resource: &Resource,
    part: Part,
    manager: &str,
    current: &Value,
    new: &mut Value,
    now: Timestamp,
) {
    let mut managers = Managers::read(current);
    if is_lease(resource) && managers.0.keys().all(|manager| manager.operation == "Update") {
        track_renewal(resource, manager, Some(current), new, now);
        return;
    }
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
        // A container changes with its content, which is counted by itself.
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
