//! Reading and writing the parts of an object that every kind has.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// An object as it is stored: shared by the store, the event log and all who watch, and encoded at most once.
#[derive(Debug)]
pub(crate) struct Stored {
    value: Value,
    encoded: OnceLock<Bytes>,
    /// The line in which the first watcher was told of it, with what made it so: the others are told the same.
    line: OnceLock<(String, Bytes)>,
}

impl Stored {
    pub(crate) fn new(value: Value) -> Arc<Self> {
        Arc::new(Self { value, encoded: OnceLock::new(), line: OnceLock::new() })
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// A line of a watch, made once for all watchers that see the same.
    pub(crate) fn line(&self, seen_as: String, make: impl FnOnce() -> Bytes) -> Bytes {
        if let Some((known, line)) = self.line.get() {
            return if *known == seen_as { line.clone() } else { make() };
        }
        let line = make();
        // Whoever comes second makes a line of its own.
        let _ = self.line.set((seen_as, line.clone()));
        line
    }

    pub(crate) fn encoded(&self) -> &Bytes {
        self.encoded.get_or_init(|| encode(&self.value))
    }
}

/// JSON text.
pub(crate) fn encode(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

/// The value at a JSON pointer to fields without escapes. `Value::pointer` makes two strings of every step, and this is
/// asked many times in every request.
pub(crate) fn at<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    pointer.split('/').skip(1).try_fold(value, |value, field| value.get(field))
}

/// The text at a JSON pointer, or "".
pub(crate) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    at(value, pointer).and_then(Value::as_str).unwrap_or("")
}

pub(crate) fn name(value: &Value) -> &str {
    text(value, "/metadata/name")
}

pub(crate) fn namespace(value: &Value) -> &str {
    text(value, "/metadata/namespace")
}

pub(crate) fn uid(value: &Value) -> &str {
    text(value, "/metadata/uid")
}

/// The revision at which the object was last written.
pub(crate) fn resource_version(value: &Value) -> u64 {
    text(value, "/metadata/resourceVersion").parse().unwrap_or(0)
}

pub(crate) fn is_terminating(value: &Value) -> bool {
    at(value, "/metadata/deletionTimestamp").is_some_and(|time| !time.is_null())
}

pub(crate) fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    at(value, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(crate) fn strings(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(crate) fn finalizers(value: &Value) -> Vec<String> {
    strings(value, "/metadata/finalizers")
}

/// The object at `key`, made if it is not there.
pub(crate) fn object_at<'v>(value: &'v mut Value, key: &str) -> &'v mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    let entry =
        value.as_object_mut().expect("it was made an object above").entry(key).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("it was made an object above")
}

pub(crate) fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    object_at(value, "metadata")
}

/// Sets a field of the metadata, or removes it for `Null`.
pub(crate) fn set_metadata(value: &mut Value, key: &str, field: Value) {
    if field.is_null() {
        metadata(value).remove(key);
    } else {
        metadata(value).insert(key.to_owned(), field);
    }
}

pub(crate) fn set_finalizers(value: &mut Value, finalizers: &[String]) {
    let field = if finalizers.is_empty() { Value::Null } else { json!(finalizers) };
    set_metadata(value, "finalizers", field);
}

/// The time as `metav1.Time` prints it: whole seconds.
pub(crate) fn time(at: Timestamp) -> String {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    seconds.to_string()
}

/// Moves a field of `from` to `to`, or removes it there if `from` has none.
pub(crate) fn carry(from: &Value, to: &mut Value, key: &str) {
    let Some(to) = to.as_object_mut() else { return };
    match from.get(key) {
        Some(field) => {
            to.insert(key.to_owned(), field.clone());
        }
        None => {
            to.remove(key);
        }
    }
}
