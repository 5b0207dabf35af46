//! Fields of a template that are created if missing, and refused if they are of another type.

use serde_json::{Map, Value, json};

use crate::appwrapper::podsets::FieldError;

pub(super) fn place_of(outer: &str, field: &str) -> String {
    if outer.is_empty() { field.to_owned() } else { format!("{outer}.{field}") }
}

/// The object in a field, created if missing.
pub(super) fn object_in<'v>(
    value: &'v mut Value,
    field: &str,
    outer: &str,
) -> Result<&'v mut Map<String, Value>, FieldError> {
    let Value::Object(object) = value else {
        return Err(FieldError::invalid(outer, value, "must be an object"));
    };
    object_at(object, field, outer)
}

pub(super) fn object_at<'v>(
    object: &'v mut Map<String, Value>,
    field: &str,
    outer: &str,
) -> Result<&'v mut Map<String, Value>, FieldError> {
    let inner = object.entry(field).or_insert(Value::Null);
    if inner.is_null() {
        *inner = json!({});
    }
    match inner {
        Value::Object(object) => Ok(object),
        other => Err(FieldError::invalid(place_of(outer, field), other, "must be an object")),
    }
}

/// The list in a field, created if missing.
pub(super) fn list_in<'v>(
    object: &'v mut Map<String, Value>,
    field: &str,
    outer: &str,
) -> Result<&'v mut Vec<Value>, FieldError> {
    let inner = object.entry(field).or_insert(Value::Null);
    if inner.is_null() {
        *inner = json!([]);
    }
    match inner {
        Value::Array(list) => Ok(list),
        other => Err(FieldError::invalid(place_of(outer, field), other, "must be a list")),
    }
}
