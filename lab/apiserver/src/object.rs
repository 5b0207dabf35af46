//! Reads and writes the parts of an object that every kind has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// An object as it is stored, shared by the store, the event log and all watches: JSON text, since the value of a pod
/// takes ten times as much memory.
#[derive(Debug)]
pub(crate) struct Stored {
    text: Bytes,
    revision: u64,
    fresh: Mutex<Fresh>,
    /// The value cannot be restored exactly from the text.
    is_inexact: bool,
}

/// The forms of an object that are needed repeatedly right after it was written.
#[derive(Debug, Default)]
struct Fresh {
    value: Option<Arc<Value>>,
    /// The line that the first watcher received, with the options that it depends on: watchers with the same options
    /// get the same line.
    line: Option<(String, Bytes)>,
}

impl Stored {
    pub(crate) fn new(value: Value) -> Arc<Self> {
        Arc::new(Self {
            text: encode(&value),
            revision: resource_version(&value),
            is_inexact: has_fraction(&value),
            fresh: Mutex::new(Fresh { value: Some(Arc::new(value)), line: None }),
        })
    }

    /// The object itself, parsed from its text if the value was dropped.
    pub(crate) fn value(&self) -> Arc<Value> {
        let kept = self.fresh().value.clone();
        kept.unwrap_or_else(|| {
            Arc::new(serde_json::from_slice(&self.text).expect("the text was made from a value"))
        })
    }

    /// The revision at which the object was last written.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Drops the value and keeps the text.
    pub(crate) fn forget(&self) {
        let mut fresh = self.fresh();
        fresh.line = None;
        if !self.is_inexact {
            fresh.value = None;
        }
    }

    /// A line of a watch, built once for all watchers with the same options at the time of the write.
    pub(crate) fn line(&self, seen_as: String, make: impl FnOnce() -> Bytes) -> Bytes {
        if let Some((known, line)) = &self.fresh().line
            && *known == seen_as
        {
            return line.clone();
        }
        let line = make();
        let mut fresh = self.fresh();
        if fresh.value.is_some() && fresh.line.is_none() {
            fresh.line = Some((seen_as, line.clone()));
        }
        line
    }

    pub(crate) fn encoded(&self) -> &Bytes {
        &self.text
    }

    fn fresh(&self) -> MutexGuard<'_, Fresh> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if there is a number with a fraction. Its text may be parsed as a neighbouring number.
fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(elements) => elements.iter().any(has_fraction),
        Value::Object(members) => members.values().any(has_fraction),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// The JSON text of a value.
pub fn encode(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

/// The value at a JSON pointer to fields without escapes. `Value::pointer` allocates two strings per step, and this is
/// called many times in every request.
pub(crate) fn at<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    pointer.split('/').skip(1).try_fold(value, |value, field| value.get(field))
}

/// The text at a JSON pointer, or "".
pub fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    at(value, pointer).and_then(Value::as_str).unwrap_or("")
}

pub(crate) fn name(value: &Value) -> &str {
    text(value, "/metadata/name")
}

pub(crate) fn namespace(value: &Value) -> &str {
    text(value, "/metadata/namespace")
}

/// `metadata.uid`, or "".
pub fn uid(value: &Value) -> &str {
    text(value, "/metadata/uid")
}

/// The revision at which the object was last written.
pub(crate) fn resource_version(value: &Value) -> u64 {
    text(value, "/metadata/resourceVersion").parse().unwrap_or(0)
}

pub(crate) fn is_terminating(value: &Value) -> bool {
    at(value, "/metadata/deletionTimestamp").is_some_and(|time| !time.is_null())
}

/// The list at a JSON pointer, or an empty one.
pub fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    at(value, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts in the list at a JSON pointer; other elements are left out.
pub fn strings(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(crate) fn finalizers(value: &Value) -> Vec<String> {
    strings(value, "/metadata/finalizers")
}

/// The object at `key`, created if it is missing.
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
pub fn time(at: Timestamp) -> String {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    seconds.to_string()
}

/// Copies a field of `from` to `to`, or removes it there if `from` has none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_forgotten_is_read_again_and_is_the_same() {
        let inexact = (1_u64..1 << 20)
            .map(|number| f64::from_bits((0x3ff << 52) | (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12)));
        let values =
            [json!({ "metadata": { "resourceVersion": "7" }, "a": [1, -1, u64::MAX, "\u{0}\"", null] })];
        for value in values.into_iter().chain(inexact.take(1000).map(|number| json!({ "number": number }))) {
            let stored = Stored::new(value.clone());
            let text = stored.encoded().clone();
            stored.forget();
            assert_eq!(*stored.value(), value);
            assert_eq!(*stored.encoded(), text);
        }
        assert_eq!(Stored::new(json!({ "metadata": { "resourceVersion": "7" } })).revision(), 7);
    }

    #[test]
    fn lines_are_shared_while_the_write_is_fresh() {
        let stored = Stored::new(json!({}));
        let line = |seen_as: &str, text: &'static str| {
            stored.line(seen_as.to_owned(), || Bytes::from_static(text.as_bytes()))
        };
        assert_eq!(line("ADDED v1", "first"), "first");
        assert_eq!(line("ADDED v1", "second"), "first");
        assert_eq!(line("DELETED v1", "another"), "another");
        stored.forget();
        assert_eq!(line("ADDED v1", "third"), "third");
    }
}
