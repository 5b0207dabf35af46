//! Label and field selectors of lists and watches.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::kinds::metadata;
use crate::kinds::table::Resource;
use crate::object;
use crate::protocol::status::Refusal;

/// A label selector: all requirements must hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Labels(Vec<Requirement>);

#[derive(Debug, Clone)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl Labels {
    /// Parses `a=b,c in (d,e),!f`.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let mut rest = text.trim();
        let mut requirements = Vec::new();
        while !rest.is_empty() {
            let (requirement, after) = requirement(rest).map_err(Refusal::bad_request)?;
            requirements.push(requirement);
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(after) if !after.trim().is_empty() => rest = after.trim_start(),
                Some(_) => {
                    return Err(Refusal::bad_request("found '', expected: identifier after ','"));
                }
                None if rest.is_empty() => {}
                None => {
                    return Err(Refusal::bad_request(format!(
                        "found '{}', expected: ',' or 'end of string'",
                        first_word(rest)
                    )));
                }
            }
        }
        Ok(Self(requirements))
    }

    /// Reads a `metav1.LabelSelector`.
    pub(crate) fn of_object(selector: &Value) -> Self {
        let equal = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten().map(
            |(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::In(vec![value.as_str().unwrap_or("").to_owned()]),
            },
        );
        let expressions = object::list(selector, "/matchExpressions").iter().map(|expression| Requirement {
            key: object::text(expression, "/key").to_owned(),
            operator: match object::text(expression, "/operator") {
                "In" => Operator::In(object::strings(expression, "/values")),
                "NotIn" => Operator::NotIn(object::strings(expression, "/values")),
                "DoesNotExist" => Operator::DoesNotExist,
                _ => Operator::Exists,
            },
        });
        Self(equal.chain(expressions).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, value: &Value) -> bool {
        let labels = object::at(value, "/metadata/labels");
        self.0.iter().all(|requirement| {
            let label = labels.and_then(|labels| labels.get(&requirement.key)).and_then(Value::as_str);
            match &requirement.operator {
                Operator::In(values) => label.is_some_and(|label| values.iter().any(|value| value == label)),
                Operator::NotIn(values) => {
                    label.is_none_or(|label| values.iter().all(|value| value != label))
                }
                Operator::Exists => label.is_some(),
                Operator::DoesNotExist => label.is_none(),
                Operator::GreaterThan(bound) => number(label).is_some_and(|label| label > *bound),
                Operator::LessThan(bound) => number(label).is_some_and(|label| label < *bound),
            }
        })
    }
}

fn number(label: Option<&str>) -> Option<i64> {
    label?.parse().ok()
}

fn first_word(text: &str) -> &str {
    let end = text
        .find(|character: char| character.is_whitespace() || ",=!()<>".contains(character))
        .unwrap_or(text.len());
    if end == 0 {
        let one = text.chars().next().map_or(0, char::len_utf8);
        &text[..one]
    } else {
        &text[..end]
    }
}

fn requirement(text: &str) -> Result<(Requirement, &str), String> {
    if let Some(rest) = text.strip_prefix('!') {
        let rest = rest.trim_start();
        let key = first_word(rest);
        check_key(key)?;
        let requirement = Requirement { key: key.to_owned(), operator: Operator::DoesNotExist };
        return Ok((requirement, &rest[key.len()..]));
    }
    let key = first_word(text);
    check_key(key)?;
    let rest = text[key.len()..].trim_start();
    let of = |operator| Requirement { key: key.to_owned(), operator };
    if rest.is_empty() || rest.starts_with(',') {
        return Ok((of(Operator::Exists), rest));
    }
    for (sign, is_equal) in [("==", true), ("!=", false), ("=", true)] {
        if let Some(rest) = rest.strip_prefix(sign) {
            let (value, rest) = value(rest)?;
            let values = vec![value.to_owned()];
            check_values(key, &values)?;
            let operator = if is_equal { Operator::In(values) } else { Operator::NotIn(values) };
            return Ok((of(operator), rest));
        }
    }
    for (sign, is_greater) in [(">", true), ("<", false)] {
        if let Some(rest) = rest.strip_prefix(sign) {
            let (value, rest) = value(rest)?;
            let bound = value.parse().map_err(|_| {
                format!("unable to parse requirement: values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer")
            })?;
            let operator = if is_greater { Operator::GreaterThan(bound) } else { Operator::LessThan(bound) };
            return Ok((of(operator), rest));
        }
    }
    let word = first_word(rest);
    let is_in = match word {
        "in" => true,
        "notin" => false,
        other => {
            return Err(format!(
                "unable to parse requirement: found '{other}', expected: in, notin, =, ==, !=, gt, lt"
            ));
        }
    };
    let rest = rest[word.len()..].trim_start();
    let inside = rest
        .strip_prefix('(')
        .ok_or_else(|| format!("unable to parse requirement: found '{}' expected: '('", first_word(rest)))?;
    let (inside, rest) =
        inside.split_once(')').ok_or("unable to parse requirement: found '', expected: ',' or ')'")?;
    let values: BTreeSet<String> = inside.split(',').map(|value| value.trim().to_owned()).collect();
    let values: Vec<String> = values.into_iter().collect();
    check_values(key, &values)?;
    let operator = if is_in { Operator::In(values) } else { Operator::NotIn(values) };
    Ok((of(operator), rest))
}

/// Refuses values that no label may have.
fn check_values(key: &str, values: &[String]) -> Result<(), String> {
    let problems: Vec<String> = values
        .iter()
        .enumerate()
        .filter_map(|(index, value)| {
            let why = metadata::label_value_problem(value)?;
            Some(format!("values[{index}][{key}]: Invalid value: {value:?}: {why}"))
        })
        .collect();
    match problems.as_slice() {
        [] => Ok(()),
        [one] => Err(format!("unable to parse requirement: {one}")),
        several => Err(format!("unable to parse requirement: [{}]", several.join(", "))),
    }
}

fn value(text: &str) -> Result<(&str, &str), String> {
    let text = text.trim_start();
    if text.is_empty() || text.starts_with(',') {
        return Ok(("", text));
    }
    let word = first_word(text);
    if word.len() == 1 && ",=!()<>".contains(word) {
        return Err(format!("found '{word}', expected: identifier"));
    }
    Ok((word, &text[word.len()..]))
}

fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() || (key.len() == 1 && ",=!()<>".contains(key)) {
        return Err(format!("found '{key}', expected: !, identifier, or 'end of string'"));
    }
    match metadata::label_key_problem(key) {
        // The real server does not know the path of a key either.
        Some(why) => Err(format!("unable to parse requirement: <nil>: Invalid value: {key:?}: {why}")),
        None => Ok(()),
    }
}

/// A field selector: all terms must hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<Term>);

#[derive(Debug, Clone)]
struct Term {
    pointer: String,
    /// The value of an object without the field.
    absent: &'static str,
    value: String,
    equal: bool,
}

impl Fields {
    /// Parses `spec.nodeName=a,status.phase!=Failed`, for a resource with such fields.
    pub(crate) fn parse(text: &str, resource: &Resource) -> Result<Self, Refusal> {
        let mut terms = Vec::new();
        for part in split_terms(text) {
            let (label, value, equal) = term(&part).ok_or_else(|| {
                Refusal::bad_request(format!("invalid selector: '{text}'; can't understand '{part}'"))
            })?;
            let pointer = match label.as_str() {
                "metadata.name" => "/metadata/name",
                "metadata.namespace" if resource.namespaced || resource.custom.is_none() => {
                    "/metadata/namespace"
                }
                other => resource
                    .selectable
                    .iter()
                    .find(|(known, _)| known == other)
                    .map(|(_, pointer)| pointer.as_str())
                    .ok_or_else(|| unknown_field(resource, other))?,
            };
            let absent = match label.as_str() {
                "spec.unschedulable" | "spec.hostNetwork" => "false",
                "status.replicas" | "status.successful" => "0",
                _ => "",
            };
            terms.push(Term { pointer: pointer.to_owned(), absent, value, equal });
        }
        Ok(Self(terms))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, value: &Value) -> bool {
        self.0.iter().all(|term| {
            let is_equal = match object::at(value, &term.pointer) {
                None | Some(Value::Null) => term.absent == term.value,
                Some(Value::String(text)) => *text == term.value,
                Some(Value::Bool(flag)) => term.value.parse() == Ok(*flag),
                Some(other) => other.as_i64().is_some_and(|number| term.value.parse() == Ok(number)),
            };
            is_equal == term.equal
        })
    }
}

fn unknown_field(resource: &Resource, label: &str) -> Refusal {
    Refusal::bad_request(match resource.built_in {
        Some(kind) if !kind.selectable.is_empty() => kind.unknown_field.replace("{}", label),
        _ => {
            format!("{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        }
    })
}

/// A label selector in query form: `a=b,c in (d,e)`, sorted by key.
pub(crate) fn shown(selector: &Value) -> String {
    let equal = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), format!("{key}={}", value.as_str().unwrap_or(""))));
    let expressions = object::list(selector, "/matchExpressions").iter().map(|expression| {
        let key = object::text(expression, "/key");
        let mut values = object::strings(expression, "/values");
        values.sort();
        let values = values.join(",");
        let shown = match object::text(expression, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        (key, shown)
    });
    let mut parts: Vec<(&str, String)> = equal.chain(expressions).collect();
    parts.sort_by_key(|&(key, _)| key);
    parts.into_iter().map(|(_, shown)| shown).collect::<Vec<_>>().join(",")
}

/// Splits at commas that are not escaped.
fn split_terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for character in text.chars() {
        let last = terms.len() - 1;
        match character {
            ',' if !escaped => terms.push(String::new()),
            other => terms[last].push(other),
        }
        escaped = character == '\\' && !escaped;
    }
    terms.retain(|term| !term.is_empty());
    terms
}

fn term(text: &str) -> Option<(String, String, bool)> {
    for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((label, value)) = text.split_once(sign) {
            return Some((label.to_owned(), unescape(value), equal));
        }
    }
    None
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut escaped = false;
    for character in value.chars() {
        if character == '\\' && !escaped {
            escaped = true;
        } else {
            out.push(character);
            escaped = false;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Labels;

    #[test]
    fn label_selectors_match_as_written() {
        let object = json!({ "metadata": { "labels": { "app": "web", "tier": "3" } } });
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("app=web", true),
            ("app==web,tier=3", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("tier>2", true),
            ("tier<3", false),
            ("missing", false),
            ("! missing , app = web", true),
        ] {
            let parsed = Labels::parse(selector).expect(selector);
            assert_eq!(parsed.matches(&object), expected, "{selector}");
        }
        for wrong in ["=", "a=b,", "a in x", "a in (x", "a ~ b", "tier>x"] {
            assert!(Labels::parse(wrong).is_err(), "{wrong}");
        }
    }
}
