//! Objects inside of objects (`x-kubernetes-embedded-resource`): each must state its type.

use serde_json::{Map, Value, json};

use crate::kinds::metadata;
use crate::protocol::status::Cause;

pub(crate) fn check(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    match value {
        Value::Object(members) => {
            if !path.is_empty() && schema.get("x-kubernetes-embedded-resource") == Some(&json!(true)) {
                check_one(value, members, path, causes);
            }
            let properties = schema.get("properties").and_then(Value::as_object);
            let values = schema.get("additionalProperties");
            for (key, member) in members {
                let field = properties.and_then(|properties| properties.get(key)).or(values);
                if let Some(field) = field {
                    let place = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    check(field, member, &place, causes);
                }
            }
        }
        Value::Array(elements) => {
            if let Some(items) = schema.get("items") {
                for (index, element) in elements.iter().enumerate() {
                    check(items, element, &format!("{path}[{index}]"), causes);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_one(value: &Value, members: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    for key in ["apiVersion", "kind"] {
        let field = format!("{path}.{key}");
        match members.get(key) {
            None => causes.push(Cause::required(field, "")),
            Some(Value::String(text)) if text.is_empty() => {
                causes.push(Cause::invalid(field, &json!(text), "must not be empty"));
            }
            Some(Value::String(text)) => {
                let problem = if key == "kind" { kind_problem(text) } else { version_problem(text) };
                causes.extend(problem.map(|why| Cause::invalid(field, &json!(text), &why)));
            }
            Some(other) => causes.push(Cause::invalid(field, other, "must be a string")),
        }
    }
    causes.extend(metadata::check_maps(value, "/metadata", &format!("{path}.metadata")));
}

fn version_problem(version: &str) -> Option<String> {
    (version.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {version}"))
}

fn kind_problem(kind: &str) -> Option<String> {
    let problem = metadata::dns_1035_label_problem(&kind.to_lowercase())?;
    Some(format!("may have mixed case, but should otherwise match: {problem}"))
}
