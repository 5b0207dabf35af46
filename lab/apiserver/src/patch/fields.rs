//! Sets of fields with their owners, in the form of `fieldsV1`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::schema::{ListType, Schema, Shape};

/// A set of paths in an object, as a tree of path elements: `f:name`, `k:{"name":"a"}` or `v:"x"`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// True if the path itself is in the set.
    here: bool,
    below: BTreeMap<String, FieldSet>,
}

pub(crate) type Path = Vec<String>;

impl FieldSet {
    /// The fields that an object sets.
    pub(crate) fn of(value: &Value, schema: &Schema) -> Self {
        let mut set = Self::default();
        let resolved = schema.resolve();
        match (&resolved.shape, value) {
            _ if schema.is_atomic() => set.here = true,
            (Shape::Object { .. } | Shape::Map(_) | Shape::Any, Value::Object(members)) => {
                for (key, member) in members {
                    let field = schema.field(key);
                    let mut child = Self::of(member, field.unwrap_or(&UNTYPED));
                    let is_item = !matches!(resolved.shape, Shape::Object { .. }) || field.is_none();
                    let is_empty = member.is_null() || member.as_object().is_some_and(Map::is_empty);
                    child.here |= is_item || is_empty;
                    set.below.insert(format!("f:{key}"), child);
                }
            }
            (Shape::List(element), Value::Array(elements)) if schema.list_type() != &ListType::Atomic => {
                for value in elements {
                    let mut child = Self::of(value, element);
                    child.here = true;
                    set.below.insert(element_of(value, schema), child);
                }
            }
            _ => set.here = true,
        }
        set
    }

    pub(crate) fn decode(fields: &Value) -> Self {
        let mut set = Self::default();
        let members = fields.as_object();
        for (key, member) in members.into_iter().flatten() {
            if key == "." {
                set.here = true;
            } else {
                set.below.insert(key.clone(), Self::decode(member));
            }
        }
        // A leaf is written as an empty object.
        if members.is_some_and(Map::is_empty) {
            set.here = true;
        }
        set
    }

    pub(crate) fn encode(&self) -> Value {
        let mut fields = Map::new();
        if self.here && !self.below.is_empty() {
            fields.insert(".".to_owned(), json!({}));
        }
        for (key, child) in &self.below {
            fields.insert(key.clone(), child.encode());
        }
        Value::Object(fields)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.here && self.below.values().all(Self::is_empty)
    }

    pub(crate) fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, path: &mut Path, paths: &mut Vec<Path>) {
        if self.here && !path.is_empty() {
            paths.push(path.clone());
        }
        for (key, child) in &self.below {
            path.push(key.clone());
            child.collect(path, paths);
            path.pop();
        }
    }

    pub(crate) fn contains(&self, path: &[String]) -> bool {
        match path.split_first() {
            None => self.here,
            Some((first, rest)) => self.below.get(first).is_some_and(|child| child.contains(rest)),
        }
    }

    pub(crate) fn insert(&mut self, path: &[String]) {
        match path.split_first() {
            None => self.here = true,
            Some((first, rest)) => self.below.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub(crate) fn remove(&mut self, path: &[String]) {
        match path.split_first() {
            None => self.here = false,
            Some((first, rest)) => {
                if let Some(child) = self.below.get_mut(first) {
                    child.remove(rest);
                    if child.is_empty() {
                        self.below.remove(first);
                    }
                }
            }
        }
    }

    /// Leaves out everything below a top-level field.
    pub(crate) fn without(mut self, field: &str) -> Self {
        self.below.remove(&format!("f:{field}"));
        self
    }

    /// Leaves out all top-level fields but one.
    pub(crate) fn only(mut self, field: &str) -> Self {
        let wanted = format!("f:{field}");
        self.below.retain(|key, _| *key == wanted);
        self
    }

    /// Leaves out metadata that cannot be owned.
    pub(crate) fn without_identity(mut self) -> Self {
        self.here = false;
        for key in ["f:apiVersion", "f:kind"] {
            self.below.remove(key);
        }
        if let Some(metadata) = self.below.get_mut("f:metadata") {
            metadata.here = false;
            for key in [
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            ] {
                metadata.below.remove(&format!("f:{key}"));
            }
            if metadata.is_empty() {
                self.below.remove("f:metadata");
            }
        }
        self
    }
}

static UNTYPED: Schema = Schema::untyped();

/// The path element of an element of a list.
pub(crate) fn element_of(value: &Value, schema: &Schema) -> String {
    match schema.list_type() {
        ListType::Map(keys) => {
            let mut identity = Map::new();
            for key in keys {
                let default = || {
                    schema
                        .element()
                        .and_then(|element| element.field(key))
                        .and_then(|field| field.default.clone())
                };
                if let Some(part) = value.get(key).cloned().or_else(default) {
                    identity.insert(key.clone(), part);
                }
            }
            format!("k:{}", Value::Object(identity))
        }
        _ => format!("v:{value}"),
    }
}

pub(crate) fn get<'v>(value: &'v Value, path: &[String], schema: &Schema) -> Option<&'v Value> {
    let Some((first, rest)) = path.split_first() else {
        return Some(value);
    };
    if let Some(name) = first.strip_prefix("f:") {
        return get(value.get(name)?, rest, schema.field(name).unwrap_or(&UNTYPED));
    }
    let found = value.as_array()?.iter().find(|element| element_of(element, schema) == *first)?;
    get(found, rest, schema.element().unwrap_or(&UNTYPED))
}

pub(crate) fn remove(value: &mut Value, path: &[String], schema: &Schema) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if let Some(name) = first.strip_prefix("f:") {
        let Some(members) = value.as_object_mut() else { return };
        if rest.is_empty() {
            members.remove(name);
        } else if let Some(member) = members.get_mut(name) {
            remove(member, rest, schema.field(name).unwrap_or(&UNTYPED));
        }
        return;
    }
    let Some(elements) = value.as_array_mut() else { return };
    let Some(index) = elements.iter().position(|element| element_of(element, schema) == *first) else {
        return;
    };
    if rest.is_empty() {
        elements.remove(index);
    } else {
        remove(&mut elements[index], rest, schema.element().unwrap_or(&UNTYPED));
    }
}

/// Merges an applied object into the present one.
pub(crate) fn merge(present: &mut Value, applied: &Value, schema: &Schema) {
    let resolved = schema.resolve();
    match (&resolved.shape, applied) {
        (Shape::Object { .. } | Shape::Map(_) | Shape::Any, Value::Object(members))
            if !schema.is_atomic() && present.is_object() =>
        {
            let Some(target) = present.as_object_mut() else { return };
            for (key, member) in members {
                let field = schema.field(key).unwrap_or(&UNTYPED);
                match target.get_mut(key) {
                    Some(place) => merge(place, member, field),
                    None => {
                        target.insert(key.clone(), member.clone());
                    }
                }
            }
        }
        (Shape::List(element), Value::Array(elements))
            if schema.list_type() != &ListType::Atomic && present.is_array() =>
        {
            let Some(target) = present.as_array_mut() else { return };
            for value in elements {
                let identity = element_of(value, schema);
                match target.iter_mut().find(|known| element_of(known, schema) == identity) {
                    Some(place) => merge(place, value, element),
                    None => target.push(value.clone()),
                }
            }
        }
        _ => *present = applied.clone(),
    }
}

/// A path in the form of conflict messages: `.spec.containers[name="a"].image`.
pub(crate) fn shown(path: &[String]) -> String {
    let mut out = String::new();
    for element in path {
        if let Some(name) = element.strip_prefix("f:") {
            out.push('.');
            out.push_str(name);
        } else if let Some(key) = element.strip_prefix("k:") {
            let identity: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
            let parts: Vec<String> = identity.iter().map(|(key, value)| format!("{key}={value}")).collect();
            out.push_str(&format!("[{}]", parts.join(",")));
        } else if let Some(value) = element.strip_prefix("v:") {
            out.push_str(&format!("[={value}]"));
        }
    }
    out
}
