//! Rules in CEL (`x-kubernetes-validations`).

use kube_cel::ErrorKind;
use serde_json::Value;

use crate::protocol::status::Cause;

pub(crate) fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => {
            members.contains_key("x-kubernetes-validations") || members.values().any(has_rules)
        }
        Value::Array(elements) => elements.iter().any(has_rules),
        _ => false,
    }
}

/// The violations of a schema's rules by an object.
pub(crate) fn check(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let Err(errors) = kube_cel::Validator::new().validate(schema, value, old) else {
        return Vec::new();
    };
    let mut errors = errors.into_vec();
    // Properties come in the order of a hash table.
    errors.sort_by(|one, other| one.field_path.cmp(&other.field_path));
    errors
        .iter()
        .map(|error| {
            let place = place(value, &error.field_path);
            let field = if error.field_path.is_empty() { "<nil>" } else { &error.field_path };
            let why = match error.kind {
                ErrorKind::ValidationFailure => error.message.trim().to_owned(),
                _ => format!("{} evaluating rule: {}", error.message, error.rule.trim()),
            };
            match (error.reason.as_deref(), place) {
                (Some("FieldValueForbidden"), _) => Cause::forbidden(field, &why),
                (Some("FieldValueRequired"), _) => Cause::required(field, &why),
                (Some("FieldValueDuplicate"), Some(shown)) => Cause::duplicate(field, shown),
                (_, Some(shown)) => Cause::invalid(field, shown, &why),
                (_, None) => Cause::invalid_whole(field, &why),
            }
        })
        .collect()
}

/// The value at a path, unless it is an object or a list, which messages do not show.
fn place<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let pointer: String = path
        .split(['.', '[', ']'])
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")))
        .collect();
    value.pointer(&pointer).filter(|place| !place.is_object() && !place.is_array())
}
