//! Checks whether a value is a pod template: its `spec` must be a PodSpec and nothing else.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::field_error::{FieldError, shorten};

/// The allowed type of a field.
#[derive(Debug)]
enum Shape {
    Any,
    Bool,
    Whole,
    Text,
    /// For example a quantity or a port.
    NumberOrText,
    Object(&'static str),
    List(Box<Shape>),
    Map(Box<Shape>),
}

type Types = BTreeMap<&'static str, BTreeMap<&'static str, Shape>>;

static TYPES: LazyLock<Types> = LazyLock::new(|| {
    let lines = include_str!("pod_spec.txt").lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let fields =
            words.filter_map(|word| word.split_once(':')).map(|(field, shape)| (field, shape_of(shape)));
        (name, fields.collect())
    };
    lines.map(read).collect()
});

fn shape_of(text: &'static str) -> Shape {
    let inner = |open, close| text.strip_prefix(open)?.strip_suffix(close);
    if let Some(inner) = inner('[', ']') {
        return Shape::List(Box::new(shape_of(inner)));
    }
    if let Some(inner) = inner('{', '}') {
        return Shape::Map(Box::new(shape_of(inner)));
    }
    match text {
        "any" => Shape::Any,
        "bool" => Shape::Bool,
        "int" => Shape::Whole,
        "string" => Shape::Text,
        "number-or-string" => Shape::NumberOrText,
        name => Shape::Object(name),
    }
}

/// Refuses a value that is not a pod template. The error names the wrong field, relative to the value.
pub(in super::super) fn check(value: &Value) -> Result<(), FieldError> {
    let Some(object) = value.as_object() else {
        return Err(FieldError::invalid("", value, "is no pod template: it is no object"));
    };
    match object.get("spec") {
        Some(spec @ Value::Object(_)) => fits(spec, &Shape::Object("PodSpec"), "spec"),
        Some(other) => Err(FieldError::invalid("spec", other, "is no pod spec: it is no object")),
        None => Err(FieldError::required("spec", "a pod template has a spec")),
    }
}

/// The recursion ends, because types nest to a limited depth, and values only as deep as types.
fn fits(value: &Value, shape: &Shape, at: &str) -> Result<(), FieldError> {
    let wrong = |expected: &str| Err(FieldError::invalid(at, value, format!("must be {expected}")));
    match (shape, value) {
        // As in Go, null means that a field is not set.
        (Shape::Any, _) | (_, Value::Null) => Ok(()),
        (Shape::Bool, Value::Bool(_)) | (Shape::Text, Value::String(_)) => Ok(()),
        (Shape::NumberOrText, Value::Number(_) | Value::String(_)) => Ok(()),
        (Shape::Whole, Value::Number(number)) => {
            let whole = number.is_i64() || number.as_f64().is_some_and(|number| number.fract() == 0.0);
            if whole { Ok(()) } else { wrong("a whole number") }
        }
        (Shape::List(shape), Value::Array(items)) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| fits(item, shape, &format!("{at}[{index}]"))),
        (Shape::Map(shape), Value::Object(entries)) => {
            entries.iter().try_for_each(|(key, item)| fits(item, shape, &format!("{at}[{}]", shorten(key))))
        }
        (Shape::Object(name), Value::Object(entries)) => {
            // A test ensures that every type is in the table.
            let Some(fields) = TYPES.get(name) else { return Ok(()) };
            entries.iter().try_for_each(|(key, item)| {
                let field = format!("{at}.{}", shorten(key));
                match fields.get(key.as_str()) {
                    Some(shape) => fits(item, shape, &field),
                    None => Err(FieldError::forbidden(field, format!("{name} has no such field"))),
                }
            })
        }
        (Shape::Bool, _) => wrong("true or false"),
        (Shape::Whole, _) => wrong("a whole number"),
        (Shape::Text, _) => wrong("a string"),
        (Shape::NumberOrText, _) => wrong("a number or a string"),
        (Shape::List(_), _) => wrong("a list"),
        (Shape::Map(_) | Shape::Object(_), _) => wrong("an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(shape: &Shape) -> Option<&'static str> {
        match shape {
            Shape::List(inner) | Shape::Map(inner) => leaf(inner),
            Shape::Object(name) => Some(name),
            Shape::Any | Shape::Bool | Shape::Whole | Shape::Text | Shape::NumberOrText => None,
        }
    }

    #[test]
    fn every_type_that_a_field_has_is_in_the_table() {
        assert!(TYPES.len() > 100 && TYPES["PodSpec"].len() > 40);
        for (name, fields) in TYPES.iter() {
            for (field, shape) in fields {
                assert!(leaf(shape).is_none_or(|name| TYPES.contains_key(name)), "{name}.{field}");
            }
        }
    }
}
