//! Schemas of objects: which fields a kind has, and how each merges. Read from OpenAPI, both for built-in kinds and for
//! custom resources.

pub(crate) mod structs;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::{Map, Value, json};

use crate::quantity;

/// The definitions of the built-in kinds, as the real server publishes them.
static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../data/schemas.json"))
        .expect("the definitions are checked by a test")
});

static BUILT_IN: LazyLock<BTreeMap<String, Arc<Schema>>> = LazyLock::new(|| {
    DEFINITIONS
        .iter()
        .map(|(name, definition)| {
            let mut schema = Schema::parse(definition);
            schema.name = Some(name.clone());
            if let Shape::Object { fields, .. } = &mut schema.shape {
                for (field, schema) in fields {
                    let schema = Arc::make_mut(schema);
                    let known = structs::field(name, field);
                    schema.vanishes_when_zero = known.is_some_and(structs::Field::vanishes_when_zero);
                    schema.printed_when_unset = known.is_some_and(structs::Field::is_printed_when_unset)
                        || (field == "conditions" && name.ends_with(".CustomResourceDefinitionStatus"));
                }
            }
            (name.clone(), Arc::new(schema))
        })
        .collect()
});

pub(crate) fn definitions() -> &'static Map<String, Value> {
    &DEFINITIONS
}

/// The values that are allowed at a path, and how they merge with the present ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Schema {
    /// The name of the definition, for a built-in kind.
    pub(crate) name: Option<String>,
    pub(crate) shape: Shape,
    pub(crate) default: Option<Value>,
    /// The whole value is replaced, never merged.
    pub(crate) atomic: bool,
    /// The key by which a strategic merge finds elements.
    pub(crate) merge_key: Option<String>,
    /// A strategic merge merges the elements of the list instead of replacing it.
    pub(crate) merges: bool,
    /// The list type, which defines the identity of elements in an apply.
    pub(crate) list: ListType,
    /// Zero, `false` and "" are the same as unset.
    pub(crate) vanishes_when_zero: bool,
    /// Printed as `null` while it is unset.
    printed_when_unset: bool,
}

/// The list type, which defines the identity of elements in a server-side apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Shape {
    /// No schema: anything is allowed, and nothing is pruned.
    #[default]
    Any,
    Object {
        fields: BTreeMap<String, Arc<Schema>>,
        required: Vec<String>,
        preserves_unknown: bool,
    },
    Map(Arc<Schema>),
    List(Arc<Schema>),
    Text {
        format: String,
    },
    Integer {
        format: String,
    },
    Number,
    Boolean,
    IntOrString,
    Quantity,
    /// Another definition.
    Reference(Reference),
}

/// A definition by its name, looked up once: decoding uses these all the time.
#[derive(Clone)]
pub(crate) struct Reference {
    name: String,
    definition: OnceLock<&'static Schema>,
}

impl Reference {
    fn to(name: &str) -> Self {
        Self { name: name.to_owned(), definition: OnceLock::new() }
    }

    fn definition(&self) -> Option<&'static Schema> {
        let known = self.definition.get().copied();
        known.or_else(|| {
            let definition = BUILT_IN.get(&self.name)?;
            Some(*self.definition.get_or_init(|| definition))
        })
    }
}

/// Only the name: a definition may refer to itself.
impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reference").field(&self.name).finish()
    }
}

impl Schema {
    pub(crate) fn built_in(name: &str) -> Arc<Self> {
        BUILT_IN.get(name).cloned().unwrap_or_default()
    }

    /// Reads OpenAPI v3.
    pub(crate) fn parse(source: &Value) -> Self {
        let text = |key: &str| source.get(key).and_then(Value::as_str).unwrap_or("");
        let flag = |key: &str| source.get(key).and_then(Value::as_bool).unwrap_or(false);
        let format = || text("format").to_owned();
        let preserves_unknown = flag("x-kubernetes-preserve-unknown-fields");
        let shape = if let Some(reference) = reference(source) {
            Shape::Reference(Reference::to(reference))
        } else if flag("x-kubernetes-int-or-string") || text("format") == "int-or-string" {
            Shape::IntOrString
        } else if source.get("oneOf").is_some() && source.get("type").is_none() {
            Shape::Quantity
        } else {
            match text("type") {
                "object" => {
                    let embedded = flag("x-kubernetes-embedded-resource");
                    match (source.get("properties"), source.get("additionalProperties")) {
                        (None, Some(Value::Object(values))) => {
                            Shape::Map(Arc::new(Self::parse(&Value::Object(values.clone()))))
                        }
                        (None, Some(Value::Bool(true))) => Shape::Any,
                        (None, _) if preserves_unknown && !embedded => Shape::Any,
                        // A built-in definition without properties is raw JSON.
                        (None, None) if source.get("required").is_none() && !embedded => {
                            Shape::Object { fields: BTreeMap::new(), required: Vec::new(), preserves_unknown }
                        }
                        (properties, _) => {
                            let mut fields: BTreeMap<String, Arc<Self>> = properties
                                .and_then(Value::as_object)
                                .into_iter()
                                .flatten()
                                .map(|(name, field)| (name.clone(), Arc::new(Self::parse(field))))
                                .collect();
                            if embedded {
                                for (name, field) in object_fields() {
                                    fields.entry(name).or_insert(field);
                                }
                            }
                            Shape::Object {
                                fields,
                                required: source
                                    .get("required")
                                    .and_then(Value::as_array)
                                    .into_iter()
                                    .flatten()
                                    .filter_map(Value::as_str)
                                    .map(str::to_owned)
                                    .collect(),
                                preserves_unknown,
                            }
                        }
                    }
                }
                "array" => Shape::List(Arc::new(source.get("items").map(Self::parse).unwrap_or_default())),
                "string" => Shape::Text { format: format() },
                "integer" => Shape::Integer { format: format() },
                "number" => Shape::Number,
                "boolean" => Shape::Boolean,
                _ => Shape::Any,
            }
        };
        let list = match text("x-kubernetes-list-type") {
            "set" => ListType::Set,
            "map" => ListType::Map(
                source
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => ListType::Atomic,
        };
        let strategy = text("x-kubernetes-patch-strategy");
        Self {
            name: None,
            shape,
            default: source.get("default").cloned(),
            atomic: text("x-kubernetes-map-type") == "atomic",
            merge_key: source.get("x-kubernetes-patch-merge-key").and_then(Value::as_str).map(str::to_owned),
            merges: strategy.split(',').any(|part| part == "merge"),
            list,
            vanishes_when_zero: false,
            printed_when_unset: false,
        }
    }

    /// The schema itself, or the definition that it refers to.
    pub(crate) fn resolve(&self) -> &Self {
        match &self.shape {
            Shape::Reference(reference) => reference.definition().unwrap_or(self),
            _ => self,
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        match &self.resolve().shape {
            Shape::Object { fields, .. } => fields.get(name).map(Arc::as_ref),
            Shape::Map(values) => Some(values),
            _ => None,
        }
    }

    pub(crate) fn element(&self) -> Option<&Self> {
        match &self.resolve().shape {
            Shape::List(element) => Some(element),
            _ => None,
        }
    }

    /// An empty schema: objects are maps, and lists are replaced.
    pub(crate) const fn untyped() -> Self {
        Self {
            name: None,
            shape: Shape::Any,
            default: None,
            atomic: false,
            merge_key: None,
            merges: false,
            list: ListType::Atomic,
            vanishes_when_zero: false,
            printed_when_unset: false,
        }
    }

    pub(crate) fn list_type(&self) -> &ListType {
        &self.list
    }

    /// True if an apply replaces the map as a whole.
    pub(crate) fn is_atomic(&self) -> bool {
        self.atomic || self.resolve().atomic
    }
}

/// `apiVersion`, `kind` and `metadata`, which every object has.
pub(crate) fn object_fields() -> [(String, Arc<Schema>); 3] {
    let text = || Arc::new(Schema { shape: Shape::Text { format: String::new() }, ..Schema::default() });
    let metadata = Schema { shape: Shape::Reference(Reference::to(OBJECT_META)), ..Schema::default() };
    [
        ("apiVersion".to_owned(), text()),
        ("kind".to_owned(), text()),
        ("metadata".to_owned(), Arc::new(metadata)),
    ]
}

/// The definition of `metadata`.
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn reference(source: &Value) -> Option<&str> {
    let direct = source.get("$ref").or_else(|| source.pointer("/allOf/0/$ref"));
    direct.and_then(Value::as_str).and_then(|path| path.rsplit('/').next())
}

/// Raw JSON that no schema describes.
const RAW: [&str; 3] = [
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
];

/// Brings an object of a built-in kind into the form in which the real server stores and prints it: unknown fields are
/// dropped, empty ones are removed, those that are always printed are added, and quantities become canonical.
///
/// # Errors
/// If a value has the wrong type, in the words of Go's JSON decoder.
pub(crate) fn decode(schema: &Schema, mut value: Value) -> Result<Value, String> {
    settle(schema, &mut value)?;
    Ok(value)
}

/// Like [`decode`], in place. On an error, the wrong value and everything after it stay unchanged.
pub(crate) fn settle(schema: &Schema, value: &mut Value) -> Result<(), String> {
    decoded(schema, value, &mut Vec::new())
}

/// Like [`decode`], and names the fields that were dropped because the kind does not have them.
pub(crate) fn decode_noting(
    schema: &Schema,
    mut value: Value,
    dropped: &mut Vec<String>,
) -> Result<Value, String> {
    decoded(schema, &mut value, dropped)?;
    Ok(value)
}

fn decoded(schema: &Schema, value: &mut Value, dropped: &mut Vec<String>) -> Result<(), String> {
    Decoder { fields: Vec::new(), owner: "", path: String::new(), dropped }.any(schema, value)
}

struct Decoder<'d> {
    /// Field names down to here, without indices, as Go names them.
    fields: Vec<&'d str>,
    /// The Go type whose field is being read.
    owner: &'d str,
    /// The path with indices.
    path: String,
    dropped: &'d mut Vec<String>,
}

impl<'d> Decoder<'d> {
    fn wrong(&self, value: &Value, wanted: &str) -> String {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            // Only a number of the wrong kind is shown.
            Value::Number(number) if wanted.starts_with("int") => &format!("number {number}"),
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        if self.fields.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {wanted}");
        }
        format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {wanted}",
            self.owner,
            self.fields.join(".")
        )
    }

    fn any(&mut self, schema: &'d Schema, value: &mut Value) -> Result<(), String> {
        let resolved = schema.resolve();
        if let Some(name) = &resolved.name
            && RAW.contains(&name.as_str())
        {
            return Ok(());
        }
        match (&resolved.shape, &mut *value) {
            (Shape::Any | Shape::Reference(_), _) => {}
            (Shape::Object { fields, required, .. }, Value::Object(members)) => {
                let name = resolved.name.as_deref().unwrap_or("");
                return self.object(name, fields, required, members);
            }
            (Shape::Map(values), Value::Object(members)) => {
                let holds_text = matches!(values.resolve().shape, Shape::Text { .. });
                for (key, member) in members {
                    let length = self.path.len();
                    self.path.push('.');
                    self.path.push_str(key);
                    self.any(values, member)?;
                    self.path.truncate(length);
                    if holds_text && member.is_null() {
                        *member = json!("");
                    }
                }
            }
            (Shape::List(element), Value::Array(elements)) => {
                for (index, value) in elements.iter_mut().enumerate() {
                    let length = self.path.len();
                    // Writing to a String cannot fail.
                    let _ = write!(self.path, "[{index}]");
                    self.any(element, value)?;
                    self.path.truncate(length);
                }
            }
            (Shape::Quantity, Value::Null) => *value = json!("0"),
            (_, Value::Null) => {}
            (Shape::Text { format }, Value::String(text)) => {
                if format == "date-time" {
                    let micro = resolved.name.as_deref().is_some_and(|name| name.ends_with("MicroTime"));
                    if !quantity::is_canonical_time(text, micro) {
                        *text = quantity::canonical_time(text, micro)?;
                    }
                }
            }
            (Shape::Integer { format }, Value::Number(number)) => {
                let fits = |whole: &i64| format != "int32" || i32::try_from(*whole).is_ok();
                match number.as_i64().or_else(|| whole(number)).filter(fits) {
                    Some(whole) => *value = json!(whole),
                    None => return Err(self.wrong(value, integer_type(format))),
                }
            }
            (Shape::Number, Value::Number(_))
            | (Shape::Boolean, Value::Bool(_))
            | (Shape::IntOrString, Value::Number(_) | Value::String(_)) => {}
            (Shape::Quantity, Value::String(text)) => *text = quantity::canonical(text)?,
            (Shape::Quantity, Value::Number(number)) => {
                *value = Value::String(quantity::canonical(&number.to_string())?);
            }
            _ => return Err(self.wrong(value, &go_type(schema))),
        }
        Ok(())
    }

    fn object(
        &mut self,
        name: &'d str,
        fields: &'d BTreeMap<String, Arc<Schema>>,
        required: &[String],
        members: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let outer = std::mem::replace(&mut self.owner, name.rsplit('.').next().unwrap_or(name));
        // Go prints these even if they are empty: structs, and fields without `omitempty`.
        let is_required_list = |key: &String, schema: &Schema| {
            required.contains(key) && matches!(schema.resolve().shape, Shape::List(_))
        };
        for (key, schema) in fields {
            if schema.default.is_none() && !schema.printed_when_unset && !is_required_list(key, schema) {
                continue;
            }
            if members.get(key).is_none_or(Value::is_null) {
                members.insert(key.clone(), schema.default.clone().unwrap_or(Value::Null));
            }
        }
        let mut failure = None;
        let mut unknown = Vec::new();
        members.retain(|key, member| {
            if failure.is_some() {
                return true;
            }
            let Some((key, schema)) = fields.get_key_value(key) else {
                unknown.push(key.clone());
                return false;
            };
            if member.is_null() {
                return schema.printed_when_unset || is_required_list(key, schema);
            }
            let length = self.path.len();
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(key);
            self.fields.push(key);
            if let Err(why) = self.any(schema, member) {
                failure = Some(why);
                return true;
            }
            self.fields.pop();
            self.path.truncate(length);
            let is_empty = match &*member {
                Value::Null => true,
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty() && matches!(schema.resolve().shape, Shape::Map(_)),
                Value::String(text) => text.is_empty() && schema.vanishes_when_zero,
                Value::Bool(flag) => !*flag && schema.vanishes_when_zero,
                Value::Number(number) => number.as_i64() == Some(0) && schema.vanishes_when_zero,
            };
            if !is_empty {
                return true;
            }
            let is_printed = (required.contains(key) || schema.printed_when_unset)
                && matches!(schema.resolve().shape, Shape::List(_));
            if is_printed {
                *member = Value::Null;
            }
            is_printed
        });
        if let Some(why) = failure {
            return Err(why);
        }
        for key in unknown {
            let dot = if self.path.is_empty() { "" } else { "." };
            self.dropped.push(format!("{}{dot}{key}", self.path));
        }
        self.owner = outer;
        Ok(())
    }
}

/// The integer value of a number with a point or an exponent.
fn whole(number: &serde_json::Number) -> Option<i64> {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < BEYOND)?;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the bounds")]
    Some(float as i64)
}

fn integer_type(format: &str) -> &str {
    if format.is_empty() { "int" } else { format }
}

fn go_type(schema: &Schema) -> String {
    let resolved = schema.resolve();
    match &resolved.shape {
        Shape::Text { format } if format == "byte" => "[]uint8".to_owned(),
        Shape::Text { .. } => "string".to_owned(),
        Shape::Integer { format } => integer_type(format).to_owned(),
        Shape::Number => "float64".to_owned(),
        Shape::Boolean => "bool".to_owned(),
        Shape::List(element) => format!("[]{}", go_type(element)),
        Shape::Map(values) => format!("map[string]{}", go_type(values)),
        Shape::IntOrString => "intstr.IntOrString".to_owned(),
        Shape::Quantity => "resource.Quantity".to_owned(),
        Shape::Object { .. } | Shape::Any | Shape::Reference(_) => {
            let name = resolved.name.as_deref().unwrap_or("");
            let mut parts = name.rsplit('.');
            let kind = parts.next().unwrap_or("");
            let package = parts.next().unwrap_or("");
            format!("{package}.{kind}")
        }
    }
}
