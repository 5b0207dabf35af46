//! Tables, as `kubectl get` shows them.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::render;
use super::request::Include;
use crate::kinds::events;
use crate::kinds::table::Resource;
use crate::object;

pub(crate) const NONE: &str = "<none>";
pub(crate) const UNKNOWN: &str = "<unknown>";
pub(crate) const UNSET: &str = "<unset>";

/// A column of a built-in kind's table, and its content.
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    priority: i64,
    cell: Cell,
    is_named: bool,
}

enum Cell {
    /// The text at a JSON pointer, or a default.
    Text(&'static str, &'static str),
    /// The number at a JSON pointer, or 0.
    Number(&'static str),
    /// The boolean at a JSON pointer.
    Flag(&'static str),
    /// The age of the time at a JSON pointer.
    Age(&'static str),
    /// The length of the list at a JSON pointer.
    Count(&'static str),
    Made(fn(&Row<'_>) -> Value),
}

const fn column(name: &'static str, kind: &'static str, cell: Cell) -> Column {
    Column { name, kind, format: "", priority: 0, cell, is_named: true }
}

pub(crate) const fn text(name: &'static str, pointer: &'static str) -> Column {
    column(name, "string", Cell::Text(pointer, ""))
}

pub(crate) const fn text_or(name: &'static str, pointer: &'static str, otherwise: &'static str) -> Column {
    column(name, "string", Cell::Text(pointer, otherwise))
}

pub(crate) const fn number(name: &'static str, pointer: &'static str) -> Column {
    column(name, "integer", Cell::Number(pointer))
}

pub(crate) const fn flag(name: &'static str, pointer: &'static str) -> Column {
    column(name, "boolean", Cell::Flag(pointer))
}

pub(crate) const fn count(name: &'static str, pointer: &'static str) -> Column {
    column(name, "integer", Cell::Count(pointer))
}

/// A column that needs more than one field of the object.
pub(crate) const fn made(name: &'static str, cell: fn(&Row<'_>) -> Value) -> Column {
    column(name, "string", Cell::Made(cell))
}

pub(crate) const NAME: Column = text("Name", "/metadata/name").formatted("name");

pub(crate) const AGE: Column = column("Age", "string", Cell::Age("/metadata/creationTimestamp"));

pub(crate) const CREATED_AT: Column =
    column("Created At", "date", Cell::Text("/metadata/creationTimestamp", ""));

/// The columns of a kind that defines none.
const PLAIN: &[Column] = &[NAME, CREATED_AT];

impl Column {
    /// Shown by `-o wide` only.
    pub(crate) const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }

    /// Declares another type for the column than its content has.
    pub(crate) const fn declared(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    pub(crate) const fn formatted(self, format: &'static str) -> Self {
        Self { format, ..self }
    }

    /// The real server has a cell here without a column definition.
    pub(crate) const fn unnamed(self) -> Self {
        Self { is_named: false, ..self }
    }

    fn definition(&self) -> Value {
        definition(self.name, self.kind, self.format, "", self.priority)
    }

    fn cell(&self, row: &Row<'_>) -> Value {
        match self.cell {
            Cell::Text(pointer, otherwise) => json!(or(row.text(pointer), otherwise)),
            Cell::Number(pointer) => json!(row.number(pointer)),
            Cell::Flag(pointer) => json!(row.flag(pointer)),
            Cell::Age(pointer) => json!(row.age(pointer)),
            Cell::Count(pointer) => json!(row.list(pointer).len()),
            Cell::Made(make) => make(row),
        }
    }
}

pub(crate) struct Row<'v> {
    pub(crate) item: &'v Value,
    pub(crate) now: Timestamp,
    /// All objects of the list; empty where a single object is shown.
    pub(crate) all: &'v [&'v Value],
}

impl<'v> Row<'v> {
    pub(crate) fn at(&self, pointer: &str) -> Option<&'v Value> {
        object::at(self.item, pointer).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, pointer: &str) -> &'v str {
        object::text(self.item, pointer)
    }

    pub(crate) fn number(&self, pointer: &str) -> i64 {
        integer(self.item, pointer)
    }

    pub(crate) fn flag(&self, pointer: &str) -> bool {
        self.at(pointer) == Some(&Value::Bool(true))
    }

    pub(crate) fn list(&self, pointer: &str) -> &'v [Value] {
        object::list(self.item, pointer)
    }

    /// The age of the time at a JSON pointer.
    pub(crate) fn age(&self, pointer: &str) -> String {
        since(self.text(pointer), self.now)
    }

    /// The status of the first condition of a type.
    pub(crate) fn condition(&self, kind: &str) -> Option<&'v str> {
        let conditions = self.list("/status/conditions").iter();
        conditions
            .filter(|condition| object::text(condition, "/type") == kind)
            .map(|condition| object::text(condition, "/status"))
            .next()
    }
}

pub(crate) fn integer(value: &Value, pointer: &str) -> i64 {
    object::at(value, pointer).and_then(Value::as_i64).unwrap_or(0)
}

pub(crate) fn or<'t>(text: &'t str, otherwise: &'t str) -> &'t str {
    if text.is_empty() { otherwise } else { text }
}

pub(crate) fn since(time: &str, now: Timestamp) -> String {
    time.parse::<Timestamp>().map_or_else(|_| UNKNOWN.to_owned(), |then| human(now.duration_since(then)))
}

/// `a=b,c=d`.
pub(crate) fn pairs(map: Option<&Value>) -> String {
    let shown: Vec<String> = map
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    or(&shown.join(","), NONE).to_owned()
}

/// The first elements of a list, and the number of the others.
pub(crate) fn first_of(list: &[String], shown: usize, none: &str) -> String {
    let first = list[..list.len().min(shown)].join(",");
    match list.len().checked_sub(shown) {
        Some(more @ 1..) => format!("{first} + {more} more..."),
        _ => or(&first, none).to_owned(),
    }
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({ "name": name, "type": kind, "format": format, "description": description, "priority": priority })
}

fn built_in(resource: &Resource) -> &'static [Column] {
    match resource.built_in {
        Some(kind) if !kind.columns.is_empty() => kind.columns,
        _ => PLAIN,
    }
}

fn columns(resource: &Resource) -> Vec<Value> {
    if resource.custom.is_none() {
        let named = built_in(resource).iter().filter(|column| column.is_named);
        return named.map(Column::definition).collect();
    }
    let mut columns = vec![NAME.definition()];
    columns.extend(
        resource
            .columns
            .iter()
            .map(|own| definition(&own.name, &own.kind, &own.format, &own.description, own.priority)),
    );
    if resource.columns.is_empty() {
        columns.push(AGE.declared("date").definition());
    }
    columns
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    One,
    List,
}

pub(crate) fn table<'v>(
    resource: &Resource,
    items: impl Iterator<Item = &'v Value>,
    extent: Extent,
    metadata: &Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let items: Vec<&Value> = items.collect();
    let all = match extent {
        Extent::One => &[],
        Extent::List => items.as_slice(),
    };
    let rows: Vec<Value> = items
        .iter()
        .map(|&item| {
            let cells = if resource.custom.is_some() {
                custom_cells(resource, item, now)
            } else {
                let row = Row { item, now, all };
                built_in(resource).iter().map(|column| column.cell(&row)).collect()
            };
            let mut row = json!({ "cells": cells });
            if resource.is_pod()
                && let Some(message) = match object::text(item, "/status/phase") {
                    "Succeeded" => Some("The pod has completed successfully."),
                    "Failed" => Some("The pod failed."),
                    _ => None,
                }
            {
                let reason = object::text(item, "/status/phase");
                row["conditions"] =
                    json!([{ "type": "Completed", "status": "True", "reason": reason, "message": message }]);
            }
            match include {
                Include::None => row["object"] = Value::Null,
                Include::Metadata => {
                    row["object"] = json!({
                        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": item.get("metadata"),
                    });
                }
                Include::Object => {
                    row["object"] = render::typed(resource, &events::from_stored(resource, item.clone()));
                }
            }
            row
        })
        .collect();
    // For kinds without columns, the real server has no list of rows before the first.
    let is_plain = resource.custom.is_none() && built_in(resource).iter().any(|column| column.kind == "date");
    let rows = if rows.is_empty() && is_plain { Value::Null } else { json!(rows) };
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns(resource), "rows": rows,
    })
}

/// A duration as kubectl prints it: two units at most, fewer the longer it is.
pub(crate) fn human(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let years = days / 365;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 | 0 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => two(years, "y", days % 365, "d"),
        _ => format!("{years}y"),
    }
}

/// The cells that a definition asks for, by its simple JSON paths.
fn custom_cells(resource: &Resource, item: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![json!(object::name(item))];
    if resource.columns.is_empty() {
        cells.push(json!(object::text(item, "/metadata/creationTimestamp")));
        return cells;
    }
    for column in &resource.columns {
        let found = at_path(item, &column.path);
        let cell = match (column.kind.as_str(), found) {
            (_, None) => Value::Null,
            ("date", Some(Value::String(time))) => json!(since(time, now)),
            ("string", Some(Value::String(text))) => json!(text),
            ("string", Some(other)) => json!(other.to_string()),
            (_, Some(other)) => other.clone(),
        };
        cells.push(cell);
    }
    cells
}

/// Resolves `.a.b[0]` and `.a[?(@.type=="Ready")].b`, which are the paths that definitions use.
fn at_path<'v>(item: &'v Value, path: &str) -> Option<&'v Value> {
    let mut place = item;
    let mut rest = path.trim_start_matches('.');
    while !rest.is_empty() {
        if let Some(filter) = rest.strip_prefix("[?(@.") {
            let (condition, after) = filter.split_once(")]")?;
            let (key, wanted) = condition.split_once("==")?;
            let wanted = wanted.trim().trim_matches(['"', '\'']);
            let key = key.trim();
            place = place
                .as_array()?
                .iter()
                .find(|element| object::text(element, &format!("/{key}")) == wanted)?;
            rest = after.trim_start_matches('.');
        } else if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']')?;
            place = match index.parse::<usize>() {
                Ok(index) => place.get(index)?,
                Err(_) => place.get(index.trim_matches(['"', '\'']))?,
            };
            rest = after.trim_start_matches('.');
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (key, after) = rest.split_at(end);
            place = place.get(key)?;
            rest = after.strip_prefix('.').unwrap_or(after);
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use serde_json::json;

    use super::{at_path, human};

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (100_000, "27h"),
            (200_000, "2d7h"),
            (864_000, "10d"),
            (100_000_000, "3y62d"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn paths_of_printer_columns_are_followed() {
        let item = json!({"a": {"b": [{"type": "X", "v": 1}, {"type": "Ready", "v": 2}], "c.d": 3}});
        assert_eq!(at_path(&item, ".a.b[0].v"), Some(&json!(1)));
        assert_eq!(at_path(&item, ".a.b[?(@.type==\"Ready\")].v"), Some(&json!(2)));
        assert_eq!(at_path(&item, ".a['c.d']"), Some(&json!(3)));
        assert_eq!(at_path(&item, ".a.none"), None);
    }
}
