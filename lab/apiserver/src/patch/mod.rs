//! Patches: what a client sends instead of a whole object.

pub(crate) mod declared;
pub(crate) mod fields;
pub(crate) mod json_patch;
pub(crate) mod managers;
pub(crate) mod strategic;

use serde_json::Value;

/// RFC 7386: members of the patch replace members of the target, `null` removes them.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(members) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn merge_follows_rfc_7386() {
        let mut target = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x"});
        super::merge(&mut target, &json!({"a": {"b": null, "c": [3], "e": {"f": null, "g": 1}}, "d": null}));
        assert_eq!(target, json!({"a": {"c": [3], "e": {"g": 1}}}));
    }
}
