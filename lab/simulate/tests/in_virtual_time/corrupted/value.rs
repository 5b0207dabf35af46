//! Corrupt values.

use jiff::Timestamp;
use serde_json::{Value, json};

const GARBAGE: &str = "{\"cut\": [short, \u{1f6a2}\u{0}";
/// With the six fractional digits that a Lease needs; other fields accept them.
const OLD: &str = "1970-01-01T00:00:00.000000Z";
const FUTURE: &str = "9999-12-30T22:00:00.000000Z";
/// The longest value that still leaves room for others on an object.
const LONG: usize = 100_000;

/// What happens to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corruption {
    /// Unparsable text.
    Garbage,
    /// 100 kB of unparsable text.
    Huge,
    Empty,
    /// All times in it are long ago. A value without times becomes one.
    Old,
    /// All times in it are far in the future.
    Future,
}

impl Corruption {
    pub(crate) const ALL: [Self; 5] = [Self::Garbage, Self::Huge, Self::Empty, Self::Old, Self::Future];
    /// Those that are not about times.
    pub(crate) const UNREADABLE: &'static [Self] = &[Self::Garbage, Self::Huge, Self::Empty];

    /// The value after this corruption.
    pub(crate) fn of(self, value: &Value) -> Value {
        match (self, value) {
            (Self::Old, value) => at(value, OLD),
            (Self::Future, value) => at(value, FUTURE),
            (Self::Garbage, Value::Number(_)) => json!(-7),
            (Self::Huge, Value::Number(_)) => json!(i32::MAX),
            (Self::Empty, Value::Number(_)) => json!(0),
            (Self::Garbage, Value::Array(_)) => json!([{"name": GARBAGE}]),
            // The original comes first, so that only the length differs.
            (Self::Huge, Value::Array(items)) => {
                let more = items.last().cloned().unwrap_or_else(|| "x".into());
                Value::Array(items.iter().cloned().chain(vec![more; 1000]).collect())
            }
            (Self::Empty, Value::Array(_)) => json!([]),
            // An entry of a list keeps its key, and its times.
            (_, Value::Object(fields)) => {
                let corrupted = fields.iter().map(|(key, value)| {
                    let stays = matches!(key.as_str(), "type" | "status" | "key" | "effect");
                    let is_text = value.as_str().is_some_and(|text| text.parse::<Timestamp>().is_err());
                    let value = if stays || !is_text { value.clone() } else { self.of(value) };
                    (key.clone(), value)
                });
                Value::Object(corrupted.collect())
            }
            (Self::Garbage, _) => GARBAGE.into(),
            (Self::Huge, _) => "x".repeat(LONG).into(),
            (Self::Empty, _) => "".into(),
        }
    }
}

/// Replaces all times in a value, also those in JSON that is embedded in a text.
fn at(value: &Value, time: &str) -> Value {
    match value {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ (Value::Object(_) | Value::Array(_))) => inside(&inner, time).to_string().into(),
            Ok(_) | Err(_) => time.into(),
        },
        Value::Object(_) | Value::Array(_) => inside(value, time),
        Value::Number(_) => {
            if time == OLD {
                json!(1)
            } else {
                json!(1_000_000)
            }
        }
        Value::Bool(_) | Value::Null => time.into(),
    }
}

fn inside(value: &Value, time: &str) -> Value {
    match value {
        Value::String(text) if text.parse::<Timestamp>().is_ok() => time.into(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), inside(value, time))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| inside(item, time)).collect()),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => value.clone(),
    }
}
