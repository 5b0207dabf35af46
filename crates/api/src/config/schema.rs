//! Checks a document against the table of fields, one value at a time.

use std::net::SocketAddr;

use serde_json::{Map, Number, Value as Json, json};

use super::appwrapper::AUTOPILOT;
use super::document::{Entry, Located, Value};
use super::fields::{FIELDS, SELECTOR_FIELDS, TAINT_FIELDS};
use super::problem::{Path, Problem};
use super::section::{Field, Kind, Presence};
use crate::{Gate, GoDuration};

/// Returns the part of the document that matches the table, and the problems of the rest.
pub(super) fn check(document: &Located) -> (Json, Vec<Problem>) {
    let mut check = Check { problems: Vec::new() };
    let root = Place { table: &FIELDS, prefix: String::new(), path: Path::default() };
    let value = match &document.value {
        Value::Null => check.object(&[], &root),
        Value::Map(entries) => check.object(entries, &root),
        other => {
            check.problem(
                &root.path,
                format!("{other} is not a configuration: write fields such as apiVersion and kind"),
            );
            Json::Object(Map::new())
        }
    };
    (value, check.problems)
}

struct Check {
    problems: Vec<Problem>,
}

/// The current position in the document, and the table rows that apply to it.
struct Place {
    table: &'static [Field],
    /// The path within the table, with `[]` for list entries.
    prefix: String,
    path: Path,
}

impl Place {
    fn children(&self) -> impl Iterator<Item = (&'static str, &'static Field)> + '_ {
        self.table.iter().filter_map(|field| {
            let rest = field.path.strip_prefix(self.prefix.as_str())?;
            let name = if self.prefix.is_empty() { rest } else { rest.strip_prefix('.')? };
            (!name.contains(['.', '['])).then_some((name, field))
        })
    }

    fn child(&self, name: &str, field: &'static Field) -> Self {
        Self { table: self.table, prefix: field.path.into(), path: self.path.field(name) }
    }

    fn names(&self) -> String {
        self.children().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

impl Check {
    fn problem(&mut self, path: &Path, message: impl Into<String>) {
        self.problems.push(Problem::new(path.clone(), message));
    }

    fn object(&mut self, entries: &[Entry], place: &Place) -> Json {
        let mut object = Map::new();
        for Entry { key, value, .. } in entries {
            let Some((name, field)) = place.children().find(|(name, _)| name == key) else {
                self.problem(
                    &place.path.field(key),
                    format!("is not a known field: known are {}", place.names()),
                );
                continue;
            };
            if let Some(json) = self.value(&value.value, field.kind, &place.child(name, field)) {
                object.insert(name.into(), json);
            }
        }
        for (name, field) in place.children().filter(|(_, field)| field.presence == Presence::Required) {
            if !entries.iter().any(|entry| entry.key == name && !matches!(entry.value.value, Value::Null)) {
                self.problem(
                    &place.path.field(name),
                    format!("is required: set it to {}", expectation(field.kind)),
                );
            }
        }
        Json::Object(object)
    }

    /// The value if it is valid. `None` if it is null or was reported.
    fn value(&mut self, value: &Value, kind: Kind, place: &Place) -> Option<Json> {
        match (kind, value) {
            // As in CodeFlare's configuration, where null switches Autopilot off.
            (Kind::Object, Value::Null) if place.prefix == AUTOPILOT => {
                return Some(json!({"injectAntiAffinities": false, "monitorNodes": false}));
            }
            (_, Value::Null) => return None,
            (Kind::Bool, Value::Bool(value)) => return Some(Json::Bool(*value)),
            (Kind::Integer(least, most), Value::Integer(value)) => {
                let allowed = i128::from(least)..=i128::from(most);
                if let Some(number) = u32::try_from(*value).ok().filter(|_| allowed.contains(value)) {
                    return Some(Json::Number(Number::from(number)));
                }
            }
            (Kind::Text, Value::Text(text)) if !text.is_empty() => {
                return Some(Json::String(text.clone()));
            }
            (Kind::TextOrNothing, Value::Text(text)) => return Some(Json::String(text.clone())),
            (Kind::DurationOrNanoseconds, Value::Integer(nanos)) => {
                if let Ok(nanos) = i64::try_from(*nanos) {
                    return Some(Json::String(GoDuration::from_nanos(nanos).to_string()));
                }
            }
            (Kind::Duration | Kind::DurationOrNanoseconds, Value::Text(text)) => {
                match text.parse::<GoDuration>() {
                    Ok(_) => return Some(Json::String(text.clone())),
                    Err(error) => {
                        self.problem(&place.path, error.to_string());
                        return None;
                    }
                }
            }
            (Kind::Address, Value::Text(text)) if text.parse::<SocketAddr>().is_ok() => {
                return Some(Json::String(text.clone()));
            }
            (Kind::Choice(choices), Value::Text(text)) if choices.contains(&text.as_str()) => {
                return Some(Json::String(text.clone()));
            }
            (Kind::TextList, Value::List(items)) => return Some(self.texts(items, &place.path)),
            (Kind::TextMap, Value::Map(entries)) => {
                return Some(self.text_map(entries, &place.path));
            }
            (Kind::Gates, Value::Map(entries)) => return Some(self.gates(entries, &place.path)),
            (Kind::Selector, Value::Map(entries)) => {
                let selector =
                    Place { table: SELECTOR_FIELDS, prefix: String::new(), path: place.path.clone() };
                return Some(self.object(entries, &selector));
            }
            (Kind::TaintMap, Value::Map(entries)) => return Some(self.taints(entries, &place.path)),
            (Kind::Object, Value::Map(entries)) => return Some(self.object(entries, place)),
            (Kind::OneOf, Value::Map(entries)) => return Some(self.one_of(entries, place)),
            (Kind::List, Value::List(items)) => return Some(self.list(items, place)),
            _ => {}
        }
        self.problem(&place.path, format!("{value} cannot be used: set it to {}", expectation(kind)));
        None
    }

    fn one_of(&mut self, entries: &[Entry], place: &Place) -> Json {
        let kinds: Vec<_> = entries
            .iter()
            .filter(|entry| !matches!(entry.value.value, Value::Null))
            .map(|entry| entry.key.as_str())
            .filter(|key| place.children().any(|(name, _)| name == *key))
            .collect();
        match kinds.as_slice() {
            [_] => {}
            [] => self.problem(&place.path, format!("is empty: set exactly one of {}", place.names())),
            _ => self.problem(&place.path, format!("sets {}: set exactly one of them", kinds.join(" and "))),
        }
        self.object(entries, place)
    }

    fn list(&mut self, items: &[Located], place: &Place) -> Json {
        let prefix = format!("{}[]", place.prefix);
        let kind =
            place.table.iter().find(|field| field.path == prefix).map_or(Kind::Object, |field| field.kind);
        let items = items.iter().enumerate().map(|(index, item)| {
            let place = Place { table: place.table, prefix: prefix.clone(), path: place.path.index(index) };
            if matches!(item.value, Value::Null) {
                self.problem(&place.path, "is empty: remove it or fill it in");
            }
            // An invalid entry keeps its place, so that the indices of the others stay correct.
            self.value(&item.value, kind, &place).unwrap_or_default()
        });
        Json::Array(items.collect())
    }

    fn texts(&mut self, items: &[Located], path: &Path) -> Json {
        let texts =
            items.iter().enumerate().filter_map(|(index, item)| self.text(&item.value, &path.index(index)));
        Json::Array(texts.collect())
    }

    fn text_map(&mut self, entries: &[Entry], path: &Path) -> Json {
        let texts = entries.iter().filter_map(|entry| {
            Some((entry.key.clone(), self.text(&entry.value.value, &path.key(&entry.key))?))
        });
        Json::Object(texts.collect())
    }

    /// Unlike the text of a field, an entry may be empty: the value of a label can be.
    fn text(&mut self, value: &Value, path: &Path) -> Option<Json> {
        if let Value::Text(text) = value {
            return Some(Json::String(text.clone()));
        }
        self.problem(path, format!("{value} is not a string: write it in quotes"));
        None
    }

    fn taints(&mut self, entries: &[Entry], path: &Path) -> Json {
        let mut resources = Map::new();
        for Entry { key, value, .. } in entries {
            let path = path.key(key);
            let Value::List(items) = &value.value else {
                self.problem(&path, format!("{} cannot be used: set it to a list of taints", value.value));
                continue;
            };
            let taints = items.iter().enumerate().map(|(index, item)| {
                let place = Place { table: TAINT_FIELDS, prefix: String::new(), path: path.index(index) };
                match &item.value {
                    Value::Map(fields) => self.object(fields, &place),
                    other => {
                        self.problem(
                            &place.path,
                            format!("{other} is no taint: set it to key, value and effect"),
                        );
                        Json::Null
                    }
                }
            });
            resources.insert(key.clone(), Json::Array(taints.collect()));
        }
        Json::Object(resources)
    }

    fn gates(&mut self, entries: &[Entry], path: &Path) -> Json {
        let mut gates = Map::new();
        for Entry { key, value, .. } in entries {
            match (key.parse::<Gate>(), &value.value) {
                (Err(error), _) => self.problem(&path.key(key), error.to_string()),
                (Ok(gate), Value::Bool(enabled)) => {
                    gates.insert(gate.name().into(), Json::Bool(*enabled));
                }
                (Ok(_), other) => {
                    self.problem(&path.key(key), format!("{other} cannot be used: set it to true or false"));
                }
            }
        }
        Json::Object(gates)
    }
}

fn expectation(kind: Kind) -> String {
    match kind {
        Kind::Bool => "true or false".into(),
        Kind::Integer(least, most) => format!("a whole number from {least} to {most}"),
        Kind::Text => "a string that is not empty".into(),
        Kind::TextOrNothing => "a string".into(),
        Kind::Duration => "a duration, for example 1m30s".into(),
        Kind::DurationOrNanoseconds => {
            "a duration, for example 1m30s, or a whole number of nanoseconds".into()
        }
        Kind::TaintMap => "a map from resources to lists of taints".into(),
        Kind::Address => "an IP address and port, for example 0.0.0.0:8080 or [::]:8080".into(),
        Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
        Kind::TextList => "a list of strings".into(),
        Kind::TextMap => "a map of strings".into(),
        Kind::Gates => "a map from feature gates to true or false".into(),
        Kind::Selector => "a label selector with matchLabels or matchExpressions".into(),
        Kind::Object | Kind::OneOf => "a map of fields".into(),
        Kind::List => "a list".into(),
    }
}
