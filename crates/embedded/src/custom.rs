//! Custom resources: how a definition becomes a resource, and how its objects are pruned, defaulted and validated.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::core::Core;
use crate::environment::Environment;
use crate::object;
use crate::schema::{self, Schema, Shape};
use crate::status::Cause;
use crate::table::{Column, Custom, Generation, Resource, ResourceKey, Subresource};

fn definitions() -> ResourceKey {
    ("apiextensions.k8s.io".to_owned(), "customresourcedefinitions".to_owned())
}

/// Serves what a definition describes, and says so in its status.
pub(crate) fn register(core: &mut Core, name: &str, environment: &Environment<'_>) {
    let Some(stored) = core.store.get(&definitions(), name).cloned() else {
        return;
    };
    let definition = stored.value();
    core.table.remove_defined_by(name);
    let served = object::list(definition, "/spec/versions")
        .iter()
        .filter(|version| version.get("served") == Some(&json!(true)));
    for version in served {
        core.table.insert(resource(name, definition, version));
    }
    let mut new = definition.clone();
    new["status"]["acceptedNames"] = definition.pointer("/spec/names").cloned().unwrap_or_default();
    let now = object::time(environment.now);
    let known = object::list(definition, "/status/conditions").to_vec();
    let condition = |kind: &str, reason: &str, message: &str| {
        let same = known
            .iter()
            .find(|known| object::text(known, "/type") == kind && object::text(known, "/status") == "True");
        same.cloned().unwrap_or_else(|| json!({
            "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now,
        }))
    };
    new["status"]["conditions"] = json!([
        condition("NamesAccepted", "NoConflicts", "no conflicts found"),
        condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ]);
    if new != *definition {
        core.store.put(&definitions(), name.to_owned(), new);
    }
}

/// Stops serving what a definition described, and forgets its objects.
pub(crate) fn unregister(core: &mut Core, name: &str) {
    let key = core
        .table
        .iter()
        .find(|resource| resource.custom.as_ref().is_some_and(|custom| custom.definition == name))
        .map(|resource| resource.key().clone());
    if let Some(key) = key {
        let objects: Vec<String> = core.store.scan(&key, "").map(|(key, _)| key.clone()).collect();
        for object in objects {
            core.store.remove(&key, &object);
        }
    }
    core.table.remove_defined_by(name);
}

fn resource(definition_name: &str, definition: &Value, version: &Value) -> Resource {
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
        custom: Some(Arc::new(Custom { definition: definition_name.to_owned(), schema: source, scale })),
    }
}

/// Drops the fields that the schema does not know, and names them.
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

/// Fills in the defaults of the schema.
pub(crate) fn default(custom: &Custom, value: &mut Value) {
    fill(&custom.schema, value);
}

fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (key, field) in properties.into_iter().flatten() {
                let nullable = field.get("nullable") == Some(&json!(true));
                let missing = match members.get(key) {
                    None => true,
                    // A null where none may stand gives way to the default.
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

/// Checks an object against its schema.
pub(crate) fn validate(resource: &Resource, value: &Value) -> Vec<Cause> {
    let Some(custom) = &resource.custom else {
        return Vec::new();
    };
    let mut causes = Vec::new();
    check(&custom.schema, value, "", &mut causes);
    causes.sort_by(|one, other| one.field.cmp(&other.field));
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

fn check(schema: &Value, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let flag = |key: &str| schema.get(key) == Some(&json!(true));
    let at = || if path.is_empty() { "<nil>".to_owned() } else { path.to_owned() };
    if value.is_null() && flag("nullable") {
        return;
    }
    let found = type_name(value);
    let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("");
    let fits = if flag("x-kubernetes-int-or-string") {
        ["integer", "string"].contains(&found)
    } else {
        wanted.is_empty() || wanted == found || (wanted == "number" && found == "integer")
    };
    if !fits {
        let wanted = if wanted.is_empty() { "integer,string" } else { wanted };
        causes.push(Cause::type_invalid(
            at(),
            format!("Invalid value: {found:?}: {path} in body must be of type {wanted}: {found:?}"),
        ));
        return;
    }
    if let Some(Value::Array(allowed)) = schema.get("enum")
        && !allowed.contains(value)
    {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let supported: Vec<String> = allowed
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        let supported: Vec<&str> = supported.iter().map(String::as_str).collect();
        causes.push(Cause::unsupported(at(), &shown, &supported));
    }
    match value {
        Value::Object(members) => check_object(schema, members, path, causes),
        Value::Array(elements) => {
            bounds(schema, elements.len(), ("minItems", "maxItems"), "items", path, causes);
            if let Some(items) = schema.get("items") {
                for (index, element) in elements.iter().enumerate() {
                    check(items, element, &format!("{path}[{index}]"), causes);
                }
            }
        }
        Value::String(text) => {
            let length = text.chars().count();
            if let Some(most) = schema.get("maxLength").and_then(Value::as_u64)
                && length as u64 > most
            {
                causes.push(Cause {
                    reason: "FieldValueTooLong",
                    message: format!("Too long: may not be more than {most} bytes"),
                    field: at(),
                });
            }
            if let Some(least) = schema.get("minLength").and_then(Value::as_u64)
                && (length as u64) < least
            {
                let why = format!("{path} in body should be at least {least} chars long");
                causes.push(Cause::invalid(at(), value, &why));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(0.0);
            if let Some(least) = schema.get("minimum").and_then(Value::as_f64) {
                let excluded = flag("exclusiveMinimum");
                if number < least || (excluded && number <= least) {
                    let sign = if excluded { "greater than" } else { "greater than or equal to" };
                    causes.push(Cause::invalid(
                        at(),
                        value,
                        &format!("{path} in body should be {sign} {least}"),
                    ));
                }
            }
            if let Some(most) = schema.get("maximum").and_then(Value::as_f64) {
                let excluded = flag("exclusiveMaximum");
                if number > most || (excluded && number >= most) {
                    let sign = if excluded { "less than" } else { "less than or equal to" };
                    causes.push(Cause::invalid(
                        at(),
                        value,
                        &format!("{path} in body should be {sign} {most}"),
                    ));
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn check_object(schema: &Value, members: &Map<String, Value>, path: &str, causes: &mut Vec<Cause>) {
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for required in object::strings(schema, "/required") {
        if !members.contains_key(&required) {
            causes.push(Cause::required(join(&required), ""));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (key, field) in properties.into_iter().flatten() {
        if let Some(member) = members.get(key)
            && !(path.is_empty() && key == "metadata")
        {
            check(field, member, &join(key), causes);
        }
    }
    bounds(schema, members.len(), ("minProperties", "maxProperties"), "properties", path, causes);
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        for (key, member) in members {
            if properties.is_none_or(|properties| !properties.contains_key(key)) {
                check(values, member, &join(key), causes);
            }
        }
    }
}

fn bounds(schema: &Value, count: usize, keys: (&str, &str), what: &str, path: &str, causes: &mut Vec<Cause>) {
    let shown = json!(count);
    if let Some(least) = schema.get(keys.0).and_then(Value::as_u64)
        && (count as u64) < least
    {
        causes.push(Cause::invalid(
            path,
            &shown,
            &format!("{path} in body should have at least {least} {what}"),
        ));
    }
    if let Some(most) = schema.get(keys.1).and_then(Value::as_u64)
        && count as u64 > most
    {
        causes.push(Cause {
            reason: "FieldValueTooMany",
            message: format!("Too many: {count}: must have at most {most} items"),
            field: path.to_owned(),
        });
    }
}
