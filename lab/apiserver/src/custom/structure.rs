//! Checks that a schema is structural: it gives the type of everything, so that objects can be pruned and defaulted.

use serde_json::{Map, Value, json};

use super::{checks, patterns};
use crate::object;
use crate::protocol::status::Cause;
use crate::schema::Schema;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The keywords that a schema may not use below `anyOf` and the like, because they define the shape of values.
const SHAPE_BELOW_ALTERNATIVES: [(&str, &str); 13] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

/// Where in a schema a part of it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

pub(crate) fn check(schema: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    invariants(schema, Level::Root, at, &mut causes);
    complete(schema, Some(schema), at, at, &mut causes);
    causes.sort_by_key(|cause| format!("{}: {}", cause.field, cause.message));
    if causes.is_empty() {
        defaults(schema, at, &mut causes);
    }
    extensions(schema, at, &mut causes);
    causes
}

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key) == Some(&json!(true))
}

fn text<'s>(schema: &'s Value, key: &str) -> &'s str {
    schema.get(key).and_then(Value::as_str).unwrap_or("")
}

/// The fields of a schema by name, each with its path.
fn properties<'s>(schema: &'s Value, at: &str) -> impl Iterator<Item = (&'s String, &'s Value, String)> {
    let members = schema.get("properties").and_then(Value::as_object);
    let at = at.to_owned();
    members.into_iter().flatten().map(move |(name, field)| (name, field, format!("{at}.properties[{name}]")))
}

/// The schemas below `anyOf` and the like, each with its path.
fn alternatives<'s>(schema: &'s Value, at: &str) -> Vec<(&'static str, &'s Value, String)> {
    let lists = ["anyOf", "allOf", "oneOf"].into_iter().flat_map(|key| {
        let list = schema.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(move |(index, one)| (key, one, format!("{at}.{key}[{index}]")))
    });
    lists.chain(schema.get("not").map(|not| ("not", not, format!("{at}.not")))).collect()
}

/// The only form in which alternatives may name types: "a number or a text".
fn is_int_or_string(schema: &Value) -> bool {
    schema.get("anyOf") == Some(&json!([{ "type": "integer" }, { "type": "string" }]))
}

fn invariants(schema: &Value, level: Level, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(schema, "type");
    let items = schema.get("items");
    if kind == "array" && items.is_none() {
        causes.push(Cause::required(format!("{at}.items"), "must be specified"));
    }
    if let Some(items) = items {
        invariants(items, Level::Item, &format!("{at}.items"), causes);
    }
    for (_, field, at) in properties(schema, at) {
        invariants(field, Level::Field, &at, causes);
    }
    if let Some(values) = schema.get("additionalProperties") {
        let at = format!("{at}.additionalProperties");
        if level == Level::Root {
            causes.push(Cause::forbidden(at.clone(), "must not be used at the root"));
        }
        if values.is_object() {
            invariants(values, Level::Field, &at, causes);
        }
    }
    values(schema, is_int_or_string(schema), at, causes);
    let is_embedded = flag(schema, "x-kubernetes-embedded-resource");
    let is_free =
        flag(schema, "x-kubernetes-int-or-string") || flag(schema, "x-kubernetes-preserve-unknown-fields");
    if is_embedded && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        causes.push(wrong_type(at, kind, why));
    } else if kind.is_empty() && !is_free {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        causes.push(Cause::required(format!("{at}.type"), why));
    }
    if level == Level::Root && !["", "object"].contains(&kind) {
        causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), "must be object at the root"));
    }
    if level == Level::Root || is_embedded {
        for (name, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
            let found = schema.pointer(&format!("/properties/{name}")).map(|field| text(field, "type"));
            if let Some(found) = found.filter(|found| *found != wanted) {
                let field = format!("{at}.properties[{name}].type");
                causes.push(Cause::invalid(field, &json!(found), &format!("must be {wanted}")));
            }
        }
    }
    if level == Level::Root
        && let Some(metadata) = schema.pointer("/properties/metadata").and_then(Value::as_object)
        && !only_names(metadata)
    {
        causes.push(Cause::forbidden(
            format!("{at}.properties[metadata]"),
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
    let has_fields = schema.get("properties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
    if is_embedded && !flag(schema, "x-kubernetes-preserve-unknown-fields") && !has_fields {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        causes.push(Cause::required(format!("{at}.properties"), why));
    }
}

/// The error for a type that contradicts another requirement.
fn wrong_type(at: &str, kind: &str, why: &str) -> Cause {
    let field = format!("{at}.type");
    if kind.is_empty() { Cause::required(field, why) } else { Cause::invalid(field, &json!(kind), why) }
}

/// Names may be restricted; the server defines everything else about metadata.
fn only_names(metadata: &Map<String, Value>) -> bool {
    metadata.iter().all(|(key, value)| match key.as_str() {
        "type" => true,
        "properties" => value.as_object().is_some_and(|fields| {
            fields.keys().all(|name| ["name", "generateName"].contains(&name.as_str()))
        }),
        _ => false,
    })
}

fn values(schema: &Value, skips_any_of: bool, at: &str, causes: &mut Vec<Cause>) {
    for (key, alternative, at) in alternatives(schema, at) {
        if !(skips_any_of && key == "anyOf") {
            let is_first_of_all = at.ends_with(".allOf[0]") && is_int_or_string(alternative);
            alternative_values(alternative, is_first_of_all, &at, causes);
        }
    }
    let pattern = text(schema, "pattern");
    if let Err(why) = patterns::compile(pattern) {
        causes.push(Cause::invalid(
            format!("{at}.pattern"),
            &json!(pattern),
            &format!("must be a valid regular expression, but isn't: {why}"),
        ));
    }
}

fn alternative_values(schema: &Value, skips_any_of: bool, at: &str, causes: &mut Vec<Cause>) {
    values(schema, skips_any_of, at, causes);
    if let Some(items) = schema.get("items") {
        alternative_values(items, false, &format!("{at}.items"), causes);
    }
    for (name, field, at) in properties(schema, at) {
        alternative_values(field, false, &at, causes);
        if name == "metadata" {
            causes.push(Cause::forbidden(at, "must not be specified in a nested context"));
        }
    }
    for (key, why) in SHAPE_BELOW_ALTERNATIVES {
        if schema.get(key).is_some_and(|value| *value != json!("") && *value != json!(false)) {
            causes.push(Cause::forbidden(format!("{at}.{key}"), why));
        }
    }
}

/// A field that alternatives mention must be declared outside of them.
fn complete(schema: &Value, shape: Option<&Value>, shape_at: &str, at: &str, causes: &mut Vec<Cause>) {
    for (_, alternative, at) in alternatives(schema, at) {
        complete_alternative(alternative, shape, shape_at, &at, causes);
    }
}

fn complete_alternative(
    schema: &Value,
    shape: Option<&Value>,
    shape_at: &str,
    at: &str,
    causes: &mut Vec<Cause>,
) {
    let Some(shape) = shape else {
        causes.push(Cause::required(shape_at, &format!("because it is defined in {at}")));
        return;
    };
    complete(schema, Some(shape), shape_at, at, causes);
    if let Some(items) = schema.get("items") {
        let (shape_at, at) = (format!("{shape_at}.items"), format!("{at}.items"));
        complete_alternative(items, shape.get("items"), &shape_at, &at, causes);
    }
    for (name, field, at) in properties(schema, at) {
        let below = shape.get("properties").and_then(|fields| fields.get(name));
        complete_alternative(field, below, &format!("{shape_at}.properties[{name}]"), &at, causes);
    }
}

/// Defaults must match the schema that they belong to.
fn defaults(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    if let Some(default) = schema.get("default") {
        let at = format!("{at}.default");
        let mut pruned = default.clone();
        super::prune(&Schema::parse(schema), &mut pruned, "", &mut Vec::new());
        if pruned != *default {
            causes.push(Cause::invalid(at.clone(), default, "must not have unknown fields"));
        }
        causes.extend(checks::check(schema, default, None).into_iter().map(|cause| Cause {
            field: match cause.field.as_str() {
                "<nil>" => at.clone(),
                field => format!("{at}.{field}"),
            },
            ..cause
        }));
    }
    if let Some(items) = schema.get("items") {
        defaults(items, &format!("{at}.items"), causes);
    }
    for (_, field, at) in properties(schema, at) {
        defaults(field, &at, causes);
    }
}

fn extensions(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let kind = text(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        causes.push(Cause::unsupported(format!("{at}.type"), kind, &TYPES));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if schema.get(key).is_some() {
            causes.push(Cause::forbidden(format!("{at}.{key}"), &format!("{key} is not supported")));
        }
    }
    if flag(schema, "uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(Cause::forbidden(format!("{at}.uniqueItems"), why));
    }
    if let Some(values) = schema.get("additionalProperties") {
        let at = format!("{at}.additionalProperties");
        let has_fields =
            schema.get("properties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        if has_fields && *values != json!(true) {
            let why = "additionalProperties and properties are mutual exclusive";
            causes.push(Cause::forbidden(at.clone(), why));
        }
        extensions(values, &at, causes);
    }
    for (_, field, at) in properties(schema, at) {
        extensions(field, &at, causes);
    }
    for (_, alternative, at) in alternatives(schema, at) {
        extensions(alternative, &at, causes);
    }
    if let Some(items) = schema.get("items") {
        extensions(items, &format!("{at}.items"), causes);
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
        causes.push(Cause::invalid(field, &json!(false), "must be true or undefined"));
    }
    let map_type = text(schema, "x-kubernetes-map-type");
    if !map_type.is_empty() {
        if kind != "object" {
            causes.push(wrong_type(at, kind, "must be object if x-kubernetes-map-type is specified"));
        }
        if !["atomic", "granular"].contains(&map_type) {
            let field = format!("{at}.x-kubernetes-map-type");
            causes.push(Cause::unsupported(field, map_type, &["atomic", "granular"]));
        }
    }
    list_type(schema, at, causes);
}

fn list_type(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let list = text(schema, "x-kubernetes-list-type");
    let keys = object::strings(schema, "/x-kubernetes-list-map-keys");
    let field = format!("{at}.x-kubernetes-list-type");
    let kind = text(schema, "type");
    if !list.is_empty() && kind != "array" {
        causes.push(wrong_type(at, kind, "must be array if x-kubernetes-list-type is specified"));
    }
    if !["", "atomic", "set", "map"].contains(&list) {
        causes.push(Cause::unsupported(field.clone(), list, &["atomic", "set", "map"]));
    }
    if !keys.is_empty() && list != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        causes.push(if list.is_empty() {
            Cause::required(field, why)
        } else {
            Cause::invalid(field, &json!(list), why)
        });
    }
    if list == "map" {
        let field = format!("{at}.x-kubernetes-list-map-keys");
        if keys.is_empty() {
            let why = "must not be empty if x-kubernetes-list-type is map";
            causes.push(Cause::required(field.clone(), why));
        }
        match schema.get("items") {
            None => causes.push(Cause::required(
                format!("{at}.items"),
                "must have a schema if x-kubernetes-list-type is map",
            )),
            Some(items) if text(items, "type") != "object" => causes.push(Cause::invalid(
                format!("{at}.items.type"),
                &json!(text(items, "type")),
                "must be object if parent array's x-kubernetes-list-type is map",
            )),
            Some(items) => map_keys(items, &keys, &field, at, causes),
        }
    }
    let items = schema.get("items").unwrap_or(&Value::Null);
    if ["set", "map"].contains(&list) && flag(items, "nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list}");
        causes.push(Cause::forbidden(format!("{at}.items.nullable"), &why));
    }
    if list == "map" {
        let required = object::strings(items, "/required");
        for key in &keys {
            let Some(member) = items.get("properties").and_then(|fields| fields.get(key)) else { continue };
            let at = format!("{at}.items.properties[{key}]");
            if !required.contains(key) && member.get("default").is_none() {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                causes.push(Cause::required(format!("{at}.default"), why));
            }
            if flag(member, "nullable") {
                let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                causes.push(Cause::forbidden(format!("{at}.nullable"), why));
            }
        }
    }
}

fn map_keys(items: &Value, keys: &[String], field: &str, at: &str, causes: &mut Vec<Cause>) {
    for (index, key) in keys.iter().enumerate() {
        match items.get("properties").and_then(|fields| fields.get(key)) {
            Some(member) if ["array", "object"].contains(&text(member, "type")) => {
                causes.push(Cause::invalid(
                    format!("{at}.items.properties[{key}].type"),
                    &json!("object"),
                    "must be a scalar type if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                causes.push(Cause::invalid(field, &json!(keys), why));
            }
        }
        if keys[..index].contains(key) {
            causes.push(Cause::invalid(field, &json!(keys), "must not contain duplicate entries"));
        }
    }
}
