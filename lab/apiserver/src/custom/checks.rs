//! Checks an object of a custom resource against its schema, with the messages of the real server.

use serde_json::{Map, Value, json};

use super::{formats, nested, patterns, rules};
use crate::object;
use crate::protocol::status::Cause;

const NOT_CHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// Errors that prevent the evaluation of CEL rules.
const BLOCKING: [&str; 5] = [
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
];

/// Checks an object, and its changes since `old`: a value that was wrong before may stay so.
pub(crate) fn check(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_value(schema, value, old, "", &mut causes);
    nested::check(schema, value, "", &mut causes);
    check_lists(schema, value, "", &mut causes);
    if rules::has_rules(schema) {
        if causes.iter().any(|cause| BLOCKING.contains(&cause.reason)) {
            causes.push(Cause::invalid("<nil>", &Value::Null, NOT_CHECKED));
        } else {
            causes.extend(rules::check(schema, value, old));
        }
    }
    causes
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key) == Some(&json!(true))
}

fn at(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn check_value(schema: &Value, value: &Value, old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    if old == Some(value) || (value.is_null() && flag(schema, "nullable")) {
        return;
    }
    let found = type_name(value);
    let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("");
    let fits = if flag(schema, "x-kubernetes-int-or-string") {
        ["integer", "string"].contains(&found)
    } else {
        wanted.is_empty() || wanted == found || (wanted == "number" && found == "integer")
    };
    if !fits {
        let wanted = if wanted.is_empty() { "integer,string" } else { wanted };
        causes.push(Cause::type_invalid(
            at(path),
            format!("Invalid value: {found:?}: {path} in body must be of type {wanted}: {found:?}"),
        ));
        if (wanted, found) == ("integer", "number") {
            let format = schema.get("format").and_then(Value::as_str);
            let format = format
                .map_or_else(|| "(default format)".to_owned(), |format| format!("with format {format}"));
            let why = format!("Checked value must be of type integer {format} in {path}");
            causes.push(Cause::invalid("<nil>", &json!(""), &why));
        }
        return;
    }
    check_alternatives(schema, value, path, causes);
    match value {
        Value::String(text) => check_text(schema, text, path, causes),
        Value::Number(number) => check_number(schema, value, number.as_f64().unwrap_or(0.0), path, causes),
        Value::Array(elements) => check_list(schema, elements, old, path, causes),
        _ => {}
    }
    if let Some(Value::Array(allowed)) = schema.get("enum")
        && !allowed.contains(value)
    {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let supported: Vec<String> = allowed.iter().map(text).collect();
        let supported: Vec<&str> = supported.iter().map(String::as_str).collect();
        causes.push(Cause::unsupported(at(path), &text(value), &supported));
    }
    if let Value::Object(members) = value {
        check_object(schema, members, old, path, causes);
    }
}

/// `anyOf`, `oneOf`, `allOf` and `not`, each with the problems of the first alternative.
fn check_alternatives(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let list = |key: &str| schema.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let against = |schema: &Value| {
        let mut causes = Vec::new();
        check_value(schema, value, None, path, &mut causes);
        causes
    };
    let composite = |why: &str| Cause::invalid("<nil>", &json!(""), &format!("{path:?} must {why}"));
    let failures: Vec<Vec<Cause>> = list("anyOf").iter().map(against).collect();
    if !failures.is_empty() && failures.iter().all(|causes| !causes.is_empty()) {
        causes.push(composite("validate at least one schema (anyOf)"));
        causes.extend(failures.into_iter().next().unwrap_or_default());
    }
    let failures: Vec<Vec<Cause>> = list("oneOf").iter().map(against).collect();
    let valid = failures.iter().filter(|causes| causes.is_empty()).count();
    if !failures.is_empty() && valid != 1 {
        let count = if valid == 0 {
            "Found none valid".to_owned()
        } else {
            format!("Found {valid} valid alternatives")
        };
        causes.push(composite(&format!("validate one and only one schema (oneOf). {count}")));
        if valid == 0 {
            causes.extend(failures.into_iter().next().unwrap_or_default());
        }
    }
    let failures: Vec<Vec<Cause>> = list("allOf").iter().map(against).collect();
    let valid = failures.iter().filter(|causes| causes.is_empty()).count();
    if valid != failures.len() {
        let none = if valid == 0 { ". None validated" } else { "" };
        causes.extend(failures.into_iter().flatten());
        causes.push(composite(&format!("validate all the schemas (allOf){none}")));
    }
    if let Some(not) = schema.get("not")
        && against(not).is_empty()
    {
        causes.push(composite("not validate the schema (not)"));
    }
}

fn check_text(schema: &Value, text: &str, path: &str, causes: &mut Vec<Cause>) {
    let length = text.chars().count();
    let limit =
        |key: &str| schema.get(key).and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok());
    if let Some(most) = limit("maxLength").filter(|most| length > *most) {
        causes.push(Cause::too_long(at(path), most));
    }
    if let Some(least) = limit("minLength").filter(|least| length < *least) {
        let why = format!("{path} in body should be at least {least} chars long");
        causes.push(Cause::invalid(at(path), &json!(text), &why));
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Ok(regex) = patterns::compile(pattern)
        && !regex.is_match(text)
    {
        let why = format!("{path} in body should match '{pattern}'");
        causes.push(Cause::invalid(at(path), &json!(text), &why));
    }
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && !formats::fits(format, text)
    {
        causes.push(Cause::type_invalid(
            at(path),
            format!("Invalid value: {text:?}: {path} in body must be of type {format}: {text:?}"),
        ));
    }
}

fn check_number(schema: &Value, value: &Value, number: f64, path: &str, causes: &mut Vec<Cause>) {
    let limit = |key: &str| schema.get(key).and_then(Value::as_f64);
    let mut refuse = |why: String| {
        causes.push(Cause::invalid(at(path), value, &format!("{path} in body should be {why}")));
    };
    if let Some(factor) = limit("multipleOf")
        && factor > 0.0
        && (number / factor).fract() != 0.0
    {
        refuse(format!("a multiple of {factor}"));
    }
    if let Some(most) = limit("maximum") {
        let excluded = flag(schema, "exclusiveMaximum");
        if number > most || (excluded && number >= most) {
            refuse(format!("less than{} {most}", if excluded { "" } else { " or equal to" }));
        }
    }
    if let Some(least) = limit("minimum") {
        let excluded = flag(schema, "exclusiveMinimum");
        if number < least || (excluded && number <= least) {
            refuse(format!("greater than{} {least}", if excluded { "" } else { " or equal to" }));
        }
    }
}

fn check_list(schema: &Value, elements: &[Value], old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    bounds(schema, elements.len(), ("minItems", "maxItems"), "items", path, causes);
    let Some(items) = schema.get("items") else { return };
    let keys = object::strings(schema, "/x-kubernetes-list-map-keys");
    let former = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, element) in elements.iter().enumerate() {
        // Only elements with a key can be matched between one state and the next.
        let before = former
            .iter()
            .find(|before| !keys.is_empty() && keys.iter().all(|key| before.get(key) == element.get(key)));
        check_value(items, element, before, &format!("{path}[{index}]"), causes);
    }
}

fn check_object(
    schema: &Value,
    members: &Map<String, Value>,
    old: Option<&Value>,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    bounds(schema, members.len(), ("minProperties", "maxProperties"), "properties", path, causes);
    let before = |key: &str| old.and_then(|old| old.get(key));
    let properties = schema.get("properties").and_then(Value::as_object);
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        for (key, member) in members {
            if properties.is_none_or(|properties| !properties.contains_key(key)) {
                check_value(values, member, before(key), &join(path, key), causes);
            }
        }
    }
    for (key, field) in properties.into_iter().flatten() {
        if let Some(member) = members.get(key)
            && !(path.is_empty() && key == "metadata")
        {
            check_value(field, member, before(key), &join(path, key), causes);
        }
    }
    for required in object::strings(schema, "/required") {
        if !members.contains_key(&required) {
            causes.push(Cause::required(join(path, &required), ""));
        }
    }
}

fn bounds(schema: &Value, count: usize, keys: (&str, &str), what: &str, path: &str, causes: &mut Vec<Cause>) {
    let limit =
        |key: &str| schema.get(key).and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok());
    if let Some(least) = limit(keys.0).filter(|least| count < *least) {
        let why = format!("{path} in body should have at least {least} {what}");
        causes.push(Cause::invalid(at(path), &json!(count), &why));
    }
    if let Some(most) = limit(keys.1).filter(|most| count > *most) {
        causes.push(Cause::too_many(at(path), count, most));
    }
}

/// Elements of sets and maps must be unique, at any depth.
fn check_lists(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    match value {
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let values = schema.get("additionalProperties");
            for (key, member) in members {
                let field = properties.and_then(|properties| properties.get(key)).or(values);
                if let Some(field) = field {
                    check_lists(field, member, &join(path, key), causes);
                }
            }
        }
        Value::Array(elements) => {
            let identity = |element: &Value| match object::text(schema, "/x-kubernetes-list-type") {
                "set" => Some(element.clone()),
                "map" => Some(
                    object::strings(schema, "/x-kubernetes-list-map-keys")
                        .into_iter()
                        .filter_map(|key| element.get(&key).map(|value| (key.clone(), value.clone())))
                        .collect(),
                ),
                _ => None,
            };
            let identities: Vec<Option<Value>> = elements.iter().map(identity).collect();
            for (index, identity) in identities.iter().enumerate() {
                let same = identities[..index].iter().filter(|known| *known == identity).count();
                // A value that occurs three times is reported once.
                if let (Some(identity), 1) = (identity, same) {
                    causes.push(Cause::duplicate(format!("{path}[{index}]"), identity));
                }
            }
            if let Some(items) = schema.get("items") {
                for (index, element) in elements.iter().enumerate() {
                    check_lists(items, element, &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}
