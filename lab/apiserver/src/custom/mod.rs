//! Custom resources: how a definition becomes a resource, and how its objects are pruned, defaulted and validated.

mod checks;
pub(crate) mod definition;
mod formats;
mod nested;
mod patterns;
mod rules;
mod structure;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::kinds::table::{Column, Custom, Generation, Resource, Subresource};
use crate::object::{self, Stored};
use crate::protocol::status::Cause;
use crate::schema::{self, Schema, Shape};

/// The resource that a version of a definition describes.
pub(crate) fn resource(
    definition_name: &str,
    definition: &Value,
    version: &Value,
    revision: u64,
) -> Resource {
    let text = |pointer: &str| object::text(definition, pointer).to_owned();
    let group = text("/spec/group");
    let plural = text("/spec/names/plural");
    let source = version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or(json!({}));
    let mut parsed = Schema::parse(&source);
    if let Shape::Object { fields, .. } = &mut parsed.shape {
        for (name, field) in schema::object_fields() {
            fields.insert(name, field);
        }
    }
    let mut subresources = Vec::new();
    if version.pointer("/subresources/status").is_some() {
        subresources.push(Subresource::Status);
    }
    let scale = version.pointer("/subresources/scale").cloned();
    if scale.is_some() {
        subresources.push(Subresource::Scale);
    }
    let pointer = |path: &str| path.replace('.', "/");
    Resource {
        stored_as: (group.clone(), plural.clone()),
        group,
        version: object::text(version, "/name").to_owned(),
        kind: text("/spec/names/kind"),
        list_kind: text("/spec/names/listKind"),
        plural,
        singular: text("/spec/names/singular"),
        short_names: object::strings(definition, "/spec/names/shortNames"),
        categories: object::strings(definition, "/spec/names/categories"),
        namespaced: text("/spec/scope") == "Namespaced",
        subresources,
        generation: Generation::Everything,
        unconditional_update: false,
        create_on_update: false,
        returns_deleted: false,
        selectable: object::list(version, "/selectableFields")
            .iter()
            .map(|field| {
                let path = object::text(field, "/jsonPath");
                (path.trim_start_matches('.').to_owned(), pointer(path))
            })
            .collect(),
        columns: object::list(version, "/additionalPrinterColumns")
            .iter()
            .map(|column| Column {
                name: object::text(column, "/name").to_owned(),
                kind: object::text(column, "/type").to_owned(),
                format: object::text(column, "/format").to_owned(),
                description: object::text(column, "/description").to_owned(),
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
                path: object::text(column, "/jsonPath").to_owned(),
            })
            .collect(),
        schema: Arc::new(parsed),
        built_in: None,
        custom: Some(Arc::new(Custom {
            definition: definition_name.to_owned(),
            schema: source,
            scale,
            // An object is written in one version and read in all of them, and each has its own schema.
            fits_after: if object::list(definition, "/spec/versions").len() > 1 {
                u64::MAX
            } else {
                revision
            },
        })),
    }
}

/// Drops the fields that the schema does not know, and adds their names to `dropped`.
pub(crate) fn prune_noting(resource: &Resource, mut value: Value, dropped: &mut Vec<String>) -> Value {
    prune(&resource.schema, &mut value, "", dropped);
    dropped.sort();
    value
}

fn prune(schema: &Schema, value: &mut Value, path: &str, dropped: &mut Vec<String>) {
    let resolved = schema.resolve();
    match (&resolved.shape, value) {
        (Shape::Object { fields, preserves_unknown, .. }, Value::Object(members)) => {
            let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            if !preserves_unknown {
                let unknown: Vec<String> =
                    members.keys().filter(|key| !fields.contains_key(*key)).cloned().collect();
                for key in unknown {
                    members.remove(&key);
                    dropped.push(join(&key));
                }
            }
            for (key, member) in members.iter_mut() {
                if let Some(field) = fields.get(key)
                    && key != "managedFields"
                {
                    prune(field, member, &join(key), dropped);
                }
            }
        }
        (Shape::Map(values), Value::Object(members)) => {
            for (key, member) in members.iter_mut() {
                prune(values, member, &format!("{path}.{key}"), dropped);
            }
        }
        (Shape::List(element), Value::Array(elements)) => {
            for (index, member) in elements.iter_mut().enumerate() {
                prune(element, member, &format!("{path}[{index}]"), dropped);
            }
        }
        _ => {}
    }
}

/// An object in the form of the current schema, if it was written under a different one.
pub(crate) fn as_read(resource: &Resource, stored: &Stored) -> Option<Arc<Stored>> {
    let custom = resource.custom.as_ref()?;
    if stored.revision() > custom.fits_after {
        return None;
    }
    let written = stored.value();
    let mut value = (*written).clone();
    prune(&resource.schema, &mut value, "", &mut Vec::new());
    default(custom, &mut value);
    (value != *written).then(|| Stored::new(value))
}

/// Fills in the defaults of the schema, and removes nulls that have no default and are not allowed.
pub(crate) fn default(custom: &Custom, value: &mut Value) {
    drop_nulls(&custom.schema, value);
    fill(&custom.schema, value);
}

fn drop_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let values = schema.get("additionalProperties").filter(|values| values.is_object());
            let field = |key: &str| properties.and_then(|properties| properties.get(key)).or(values);
            members.retain(|key, member| {
                !member.is_null()
                    || field(key).is_none_or(|field| {
                        field.get("nullable") == Some(&json!(true)) || field.get("default").is_some()
                    })
            });
            for (key, member) in members.iter_mut() {
                if let Some(field) = field(key) {
                    drop_nulls(field, member);
                }
            }
        }
        Value::Array(elements) => {
            if let Some(items) = schema.get("items") {
                elements.iter_mut().for_each(|element| drop_nulls(items, element));
            }
        }
        _ => {}
    }
}

fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (key, field) in properties.into_iter().flatten() {
                let nullable = field.get("nullable") == Some(&json!(true));
                let missing = match members.get(key) {
                    None => true,
                    // A null that is not allowed is replaced by the default.
                    Some(Value::Null) => !nullable && field.get("default").is_some(),
                    Some(_) => false,
                };
                if missing && let Some(default) = field.get("default") {
                    members.insert(key.clone(), default.clone());
                }
                if let Some(member) = members.get_mut(key) {
                    fill(field, member);
                }
            }
            if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
                let known: Vec<&String> = properties.into_iter().flat_map(Map::keys).collect();
                for (_, member) in members.iter_mut().filter(|(key, _)| !known.contains(key)) {
                    fill(values, member);
                }
            }
        }
        Value::Array(elements) => {
            if let Some(items) = schema.get("items") {
                for element in elements {
                    fill(items, element);
                }
            }
        }
        _ => {}
    }
}

/// Checks an object against its schema, where it differs from its old state.
pub(crate) fn validate(resource: &Resource, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let Some(custom) = &resource.custom else { return Vec::new() };
    let mut causes = checks::check(&custom.schema, value, old);
    causes.extend(custom.scale.iter().flat_map(|scale| check_scale(scale, value)));
    causes
}

/// The problems of the numbers in a scale.
fn check_scale(scale: &Value, value: &Value) -> Vec<Cause> {
    let paths = ["specReplicasPath", "statusReplicasPath"];
    let paths = paths.iter().filter_map(|key| scale.get(*key).and_then(Value::as_str));
    paths
        .filter_map(|path| match replicas_at(value, path) {
            Err(why) => Some(Cause::invalid(path, &json!(0), &why)),
            Ok(replicas) if replicas < 0 => {
                Some(Cause::invalid(path, &json!(replicas), "should be a non-negative integer"))
            }
            Ok(replicas) if replicas > i64::from(i32::MAX) => {
                let why = format!("should be less than or equal to {}", i32::MAX);
                Some(Cause::invalid(path, &json!(replicas), &why))
            }
            Ok(_) => None,
        })
        .collect()
}

/// The number at a path of fields, zero if there is none, or why there cannot be one.
fn replicas_at(value: &Value, path: &str) -> Result<i64, String> {
    let wrong = |to_here: &str, found: &Value, wanted: &str| {
        let (shown, kind) = match found {
            Value::Null => ("<nil>".to_owned(), "<nil>"),
            Value::Bool(flag) => (flag.to_string(), "bool"),
            Value::Number(number) => (number.to_string(), if number.is_i64() { "int64" } else { "float64" }),
            Value::String(text) => (text.clone(), "string"),
            Value::Array(_) => (found.to_string(), "[]interface {}"),
            Value::Object(_) => (found.to_string(), "map[string]interface {}"),
        };
        format!("{to_here} accessor error: {shown} is of the type {kind}, expected {wanted}")
    };
    let mut place = value;
    let mut to_here = String::new();
    for field in path.trim_start_matches('.').split('.') {
        to_here = format!("{to_here}.{field}");
        let members = match place {
            Value::Null => return Ok(0),
            Value::Object(members) => members,
            other => return Err(wrong(&to_here, other, "map[string]interface{}")),
        };
        match members.get(field) {
            Some(member) => place = member,
            None => return Ok(0),
        }
    }
    place.as_i64().ok_or_else(|| wrong(&to_here, place, "int64"))
}

/// Warnings to the author of a definition.
pub(crate) fn warnings(definition: &Value) -> Vec<String> {
    object::list(definition, "/spec/versions")
        .iter()
        .filter_map(|version| version.pointer("/schema/openAPIV3Schema"))
        .flat_map(formats::unknown)
        .map(|format| format!("unrecognized format {format:?}"))
        .collect()
}
