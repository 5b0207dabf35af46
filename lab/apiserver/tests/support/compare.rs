//! Compares two answers field by field, without values that always differ.

use std::fmt;

use serde_json::Value;

use super::player::Answer;

/// One field in which two answers differ.
#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) path: String,
    ours: Value,
    theirs: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "  {}\n    embedded: {}\n    real:     {}", self.path, self.ours, self.theirs)
    }
}

pub(crate) fn differences(ours: &Answer, theirs: &Answer) -> Vec<Difference> {
    let mut found = Vec::new();
    let heads = [
        ("status", Value::from(ours.status), Value::from(theirs.status)),
        ("content-type", Value::from(ours.content_type.clone()), Value::from(theirs.content_type.clone())),
        ("retry-after", Value::from(ours.retry_after.clone()), Value::from(theirs.retry_after.clone())),
        ("warnings", Value::from(ours.warnings.clone()), Value::from(theirs.warnings.clone())),
    ];
    for (path, ours, theirs) in heads {
        compare(path, &ours, &theirs, &mut found);
    }
    let (left, right) = (normal(ours), normal(theirs));
    if ours.status != theirs.status {
        // The bodies of a success and a failure have nothing in common.
        found.truncate(1);
        found[0].ours = left;
        found[0].theirs = right;
        return found;
    }
    if ours.only.is_empty() {
        compare("", &left, &right, &mut found);
    } else {
        for pointer in &ours.only {
            let pick = |value: &Value| value.pointer(pointer).cloned().unwrap_or(Value::Null);
            compare(pointer, &pick(&left), &pick(&right), &mut found);
        }
    }
    found
}

fn compare(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let get = |members: &serde_json::Map<String, Value>| {
                    members.get(key).cloned().unwrap_or(Value::from("<absent>"))
                };
                compare(&format!("{path}/{}", key.replace('/', "~1")), &get(left), &get(right), found);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path}/{index}"), left, right, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push(Difference { path: path.to_owned(), ours: ours.clone(), theirs: theirs.clone() }),
    }
}

fn normal(answer: &Answer) -> Value {
    let mut value = answer.body.clone();
    for pointer in &answer.ignore {
        remove(&mut value, pointer);
    }
    normalise(&mut value, answer);
    value
}

fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.remove(&key.replace("~1", "/"));
        }
        Some(Value::Array(elements)) => {
            if let Ok(index) = key.parse::<usize>()
                && index < elements.len()
            {
                elements[index] = Value::Null;
            }
        }
        _ => {}
    }
}

/// Replaces revisions, UIDs, times and addresses by placeholders, and removes `managedFields`.
fn normalise(value: &mut Value, answer: &Answer) {
    match value {
        Value::Object(members) => {
            members.remove("managedFields");
            // The help texts of columns are not imitated.
            if let Some(Value::Array(columns)) = members.get_mut("columnDefinitions") {
                columns.iter_mut().for_each(|column| remove(column, "/description"));
            }
            for (key, member) in members.iter_mut() {
                match (key.as_str(), &*member) {
                    ("uid" | "resourceVersion" | "continue", Value::String(text)) if !text.is_empty() => {
                        *member = Value::from(format!("<{key}>"));
                    }
                    ("clusterIP", Value::String(text)) if text != "None" => {
                        *member = Value::from("<address>");
                    }
                    ("clusterIPs", Value::Array(list)) if list.first() != Some(&Value::from("None")) => {
                        *member = Value::from("<address>");
                    }
                    ("cells", Value::Array(cells)) => {
                        let cells = cells.iter().map(|cell| match cell.as_str() {
                            Some(text) if is_age(text) => Value::from("<age>"),
                            Some(text) if is_time(text) => Value::from("<time>"),
                            _ => cell.clone(),
                        });
                        *member = cells.collect();
                    }
                    ("message", Value::String(text)) => {
                        // The diff of two pods is only for users.
                        let text = text.split("\n@@").next().unwrap_or(text).trim_end_matches('\n');
                        *member = Value::from(without_known(&without_pods(text), answer));
                    }
                    _ => normalise(member, answer),
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(|element| normalise(element, answer)),
        Value::String(text) if is_time(text) => "<time>".clone_into(text),
        // Labels and references contain UIDs as well.
        Value::String(text) if text.len() == UID_LENGTH && answer.known.contains_key(text.as_str()) => {
            "<uid>".clone_into(text);
        }
        _ => {}
    }
}

/// Messages show an immutable pod template in Go's own form, only for users.
fn without_pods(text: &str) -> String {
    const SHOWN: &str = "Invalid value: {";
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(SHOWN) {
        let (before, value) = rest.split_at(start + SHOWN.len() - 1);
        let mut stream = serde_json::Deserializer::from_str(value).into_iter::<Value>();
        let is_json = matches!(stream.next(), Some(Ok(_)));
        let end = if is_json { stream.byte_offset() } else { 1 };
        let (value, after) = value.split_at(end);
        out.push_str(before);
        let is_pod = value.contains("\"containers\"") || value.contains("\"Containers\"");
        out.push_str(if is_pod { "<pod>" } else { value });
        rest = after;
    }
    out.push_str(rest);
    out
}

const UID_LENGTH: usize = 36;

/// The age of an object depends on the time of the request.
fn is_age(text: &str) -> bool {
    text.strip_suffix('s')
        .is_some_and(|seconds| !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Times of this decade come from the clock; transcripts use others.
fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.ends_with('Z') && text.starts_with("202") && text.as_bytes()[10] == b'T'
}

fn is_uid(text: &str) -> bool {
    text.len() == UID_LENGTH
        && text.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// Replaces UIDs and known values inside a message, such as revisions in brackets: they differ between servers.
fn without_known(text: &str, answer: &Answer) -> String {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let may_stand = word.len() > 8 || out.ends_with('(');
        let known = answer.known.get(word).filter(|_| may_stand);
        out.push_str(known.map_or(if is_uid(word) { "<uid>" } else { word }, String::as_str));
        let skip = after.chars().next().map_or(0, char::len_utf8);
        out.push_str(&after[..skip]);
        rest = &after[skip..];
    }
    out
}
