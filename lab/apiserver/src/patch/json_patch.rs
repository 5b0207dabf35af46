//! RFC 6902, with the messages of the library that the real server uses.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The patch itself is malformed: a bad request.
    Malformed(String),
    /// The patch does not match the object.
    DoesNotApply,
}

/// Applies all operations, or none.
pub(crate) fn apply(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    let operations = patch.as_array().ok_or_else(|| {
        Failure::Malformed("json: cannot unmarshal object into Go value of type jsonpatch.Patch".to_owned())
    })?;
    let mut work = target.clone();
    for operation in operations {
        let text = |key: &str| operation.get(key).and_then(Value::as_str).unwrap_or("");
        let path = text("path");
        let value = || operation.get("value").cloned().unwrap_or(Value::Null);
        let outcome = match text("op") {
            "add" => add(&mut work, path, value()),
            "remove" => remove(&mut work, path).map(|_| ()),
            "replace" => replace(&mut work, path, value()),
            "test" => {
                let found = work.pointer(path).unwrap_or(&Value::Null);
                (*found == value()).then_some(())
            }
            "move" => remove(&mut work, text("from")).and_then(|moved| add(&mut work, path, moved)),
            "copy" => work.pointer(text("from")).cloned().and_then(|copied| add(&mut work, path, copied)),
            _ => None,
        };
        outcome.ok_or(Failure::DoesNotApply)?;
    }
    *target = work;
    Ok(())
}

fn split(path: &str) -> Option<(&str, String)> {
    let (parent, key) = path.rsplit_once('/')?;
    Some((parent, key.replace("~1", "/").replace("~0", "~")))
}

fn add(document: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        *document = value;
        return Some(());
    }
    let (parent, key) = split(path)?;
    match document.pointer_mut(parent)? {
        Value::Object(members) => {
            members.insert(key, value);
        }
        Value::Array(elements) => {
            let index = if key == "-" { elements.len() } else { key.parse().ok()? };
            if index > elements.len() {
                return None;
            }
            elements.insert(index, value);
        }
        _ => return None,
    }
    Some(())
}

/// Replaces a value. Adds a member that an object lacks, as the real server does.
fn replace(document: &mut Value, path: &str, value: Value) -> Option<()> {
    if let Some(place) = document.pointer_mut(path) {
        *place = value;
        return Some(());
    }
    let (parent, _) = split(path)?;
    document.pointer(parent)?.is_object().then(|| add(document, path, value))?
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    let (parent, key) = split(path)?;
    match document.pointer_mut(parent)? {
        Value::Object(members) => members.remove(&key),
        Value::Array(elements) => {
            let index: usize = key.parse().ok()?;
            (index < elements.len()).then(|| elements.remove(index))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::apply;

    #[test]
    fn operations_apply_in_order() {
        let mut object = json!({"a": {"b/c": 1}, "l": [1, 2]});
        let patch = json!([
            {"op": "test", "path": "/a/b~1c", "value": 1},
            {"op": "replace", "path": "/a/b~1c", "value": 2},
            {"op": "add", "path": "/l/-", "value": 3},
            {"op": "add", "path": "/l/0", "value": 0},
            {"op": "remove", "path": "/l/1"},
            {"op": "move", "from": "/a/b~1c", "path": "/m"},
            {"op": "copy", "from": "/m", "path": "/n"},
        ]);
        apply(&mut object, &patch).unwrap();
        assert_eq!(object, json!({"a": {}, "l": [0, 2, 3], "m": 2, "n": 2}));
    }

    #[test]
    fn a_patch_that_fails_changes_nothing() {
        let before = json!({"a": 1});
        for patch in [
            json!([{"op": "replace", "path": "/a", "value": 2}, {"op": "test", "path": "/a", "value": 1}]),
            json!([{"op": "remove", "path": "/b"}]),
            json!([{"op": "replace", "path": "/b/c", "value": 1}]),
            json!([{"op": "add", "path": "/b/c", "value": 1}]),
            json!([{"op": "conjure", "path": "/b"}]),
        ] {
            let mut object = before.clone();
            assert!(apply(&mut object, &patch).is_err(), "{patch}");
            assert_eq!(object, before, "{patch}");
        }
    }
}
