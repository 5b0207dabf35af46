//! Checks that a schema declares all applied fields: an apply refuses unknown fields, other writes only warn.

use serde_json::Value;

use super::fields;
use crate::schema::{ListType, Schema, Shape};

/// The first part of a value that its schema does not declare, with the real server's message.
pub(crate) fn check(schema: &Schema, value: &Value) -> Result<(), String> {
    walk(schema, value, "")
}

fn walk(schema: &Schema, value: &Value, path: &str) -> Result<(), String> {
    match (&schema.resolve().shape, value) {
        (Shape::Object { fields, preserves_unknown, .. }, Value::Object(members)) => {
            // A type without fields is raw JSON.
            let is_closed = !fields.is_empty() && !preserves_unknown;
            for (key, member) in members {
                let path = format!("{path}.{key}");
                match fields.get(key) {
                    Some(field) => walk(field, member, &path)?,
                    None if is_closed => return Err(format!("{path}: field not declared in schema")),
                    None => {}
                }
            }
            Ok(())
        }
        (Shape::Map(values), Value::Object(members)) => {
            members.iter().try_for_each(|(key, member)| walk(values, member, &format!("{path}.{key}")))
        }
        (Shape::List(element), Value::Array(elements)) => {
            elements.iter().enumerate().try_for_each(|(index, value)| {
                let place = match schema.list_type() {
                    ListType::Atomic => format!("[{index}]"),
                    _ => fields::shown(&[fields::element_of(value, schema)]),
                };
                walk(element, value, &format!("{path}{place}"))
            })
        }
        (Shape::Integer { .. } | Shape::Number, Value::String(_)) => {
            Err(format!("{path}: expected numeric (int or float), got string"))
        }
        (Shape::Integer { .. } | Shape::Number, Value::Bool(_)) => {
            Err(format!("{path}: expected numeric (int or float), got bool"))
        }
        (Shape::Text { .. }, Value::Number(_) | Value::Bool(_)) => {
            Err(format!("{path}: expected string, got &value.valueUnstructured{{Value:{value}}}"))
        }
        // Other mismatches are found when the object is decoded.
        _ => Ok(()),
    }
}
