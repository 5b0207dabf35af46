//! The common part of workloads that create pods.

use serde_json::{Value, json};

use crate::world::collection::Kind;
use crate::world::views::Meta;

/// A controller reference to the workload.
pub(crate) fn owner(kind: Kind, owner: &Meta) -> Value {
    json!({
        "apiVersion": kind.api_version(), "kind": kind.name(), "name": owner.name, "uid": owner.uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A pod from a template, with a given or a generated name.
pub(crate) fn pod(kind: Kind, of: &Meta, template: &Value, name: Option<&str>) -> Value {
    let mut metadata = json!({ "ownerReferences": [owner(kind, of)] });
    for key in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template["metadata"].get(key) {
            metadata[key] = value.clone();
        }
    }
    match name {
        Some(name) => metadata["name"] = json!(name),
        None => metadata["generateName"] = json!(format!("{}-", of.name)),
    }
    json!({ "metadata": metadata, "spec": template["spec"] })
}

/// The wanted number of pods; one by default.
pub(crate) fn replicas(spec: &Value) -> usize {
    spec["replicas"].as_u64().and_then(|wanted| usize::try_from(wanted).ok()).unwrap_or(1)
}

/// True if a status lacks any of these values. A missing count is zero.
pub(crate) fn differs(status: &Value, wanted: &Value) -> bool {
    let fields = wanted.as_object().into_iter().flatten();
    let empty = |value: &Value| value.is_null() || *value == json!(0) || *value == json!("");
    fields.into_iter().any(|(key, value)| {
        let known = &status[key];
        known != value && !(empty(known) && empty(value))
    })
}

/// A number or a percentage of `total`, for example of `maxSurge` and `minAvailable`.
pub(crate) fn share(of: &Value, total: usize, round_up: bool) -> Option<usize> {
    if let Some(number) = of.as_u64() {
        return usize::try_from(number).ok();
    }
    let percent: usize = of.as_str()?.strip_suffix('%')?.parse().ok()?;
    let hundredfold = total.checked_mul(percent)?;
    Some(if round_up { hundredfold.div_ceil(100) } else { hundredfold / 100 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_ten_and_seven() {
        for (of, total, round_up, expected) in [
            (json!(3), 10, true, Some(3)),
            (json!("25%"), 10, true, Some(3)),
            (json!("25%"), 10, false, Some(2)),
            (json!("100%"), 7, false, Some(7)),
            (json!("half"), 7, false, None),
            (Value::Null, 7, false, None),
        ] {
            assert_eq!(share(&of, total, round_up), expected, "{of}");
        }
    }

    #[test]
    fn a_status_differs_by_what_is_wanted_only() {
        let status = json!({"replicas": 2, "other": 1});
        assert!(!differs(&status, &json!({"replicas": 2})));
        assert!(!differs(&status, &json!({"replicas": 2, "readyReplicas": 0})));
        assert!(differs(&status, &json!({"replicas": 3})));
    }
}
