//! The two forms of an Event: `v1` and `events.k8s.io/v1` are one object with different field names.

use serde_json::Value;

use super::table::Resource;
use crate::protocol::render;

/// The name in `events.k8s.io/v1`, and the name under which it is stored.
const NAMES: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

fn is_new_face(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

pub(crate) fn to_stored(resource: &Resource, mut value: Value) -> Value {
    if is_new_face(resource) {
        for (new, stored) in NAMES {
            rename(&mut value, new, stored);
        }
        if let Some(event) = value.as_object_mut() {
            for key in ["reportingComponent", "reportingInstance"] {
                event.entry(key).or_insert_with(|| Value::String(String::new()));
            }
            event.entry("source").or_insert_with(|| serde_json::json!({}));
            event.entry("involvedObject").or_insert_with(|| serde_json::json!({}));
        }
    }
    value
}

pub(crate) fn from_stored(resource: &Resource, mut value: Value) -> Value {
    if is_new_face(resource) {
        for (new, stored) in NAMES {
            rename(&mut value, stored, new);
        }
        if let Some(event) = value.as_object_mut() {
            for key in ["reportingController", "reportingInstance"] {
                if event.get(key).and_then(Value::as_str) == Some("") {
                    event.remove(key);
                }
            }
        }
    }
    value
}

/// An object with its type, in the form of the resource.
pub(crate) fn shown(resource: &Resource, stored: &Value) -> Value {
    if is_new_face(resource) {
        return render::typed(resource, &from_stored(resource, stored.clone()));
    }
    render::typed(resource, stored)
}

fn rename(value: &mut Value, from: &str, to: &str) {
    if let Some(members) = value.as_object_mut()
        && let Some(field) = members.remove(from)
    {
        members.insert(to.to_owned(), field);
    }
}
