//! The settings of a configuration that are not at their defaults.

use salvor_api::config::Configuration;
use serde_json::{Map, Value};

/// The settings that differ from the defaults, in the structure of the file.
pub(crate) fn changes(configuration: &Configuration) -> Map<String, Value> {
    let as_json = |configuration| serde_json::to_value(configuration).unwrap_or_default();
    difference(as_json(configuration), &as_json(&Configuration::default()))
}

fn difference(value: Value, default: &Value) -> Map<String, Value> {
    let Value::Object(fields) = value else {
        return Map::new();
    };
    let changed = |(name, value): (String, Value)| {
        let default = &default[&name];
        if value == *default {
            return None;
        }
        if default.is_object() && value.is_object() {
            return Some((name, Value::Object(difference(value, default))));
        }
        Some((name, value))
    };
    fields.into_iter().filter_map(changed).collect()
}
