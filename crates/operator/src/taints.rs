//! Changes of a node's taints. To the API they are one list, so a change of one taint writes all of them back.
//!
//! The functions here are pure: the caller reads the node, and sends the body as a merge patch ([`MERGE_PATCH`]).

use std::collections::BTreeMap;

use jiff::Timestamp;
use salvor_recovery::objects::Taint;
use serde_json::{Value, json};

/// The content type of the body that [`patch`] makes.
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";

/// One change of a node's taints, with the annotations that are written by the same request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaintChange {
    /// Taints to take off, before any is added.
    pub(crate) remove: Vec<Removal>,
    /// Taints to add.
    pub(crate) add: Vec<Addition>,
    /// Annotations to set, or to take off where there is no value.
    pub(crate) annotations: BTreeMap<String, Option<String>>,
}

/// A taint to add. It replaces one with its key and effect: the API allows no two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addition {
    /// The taint.
    pub(crate) taint: Taint,
    /// The time to write beside it.
    pub(crate) since: Option<Timestamp>,
}

/// Taints to take off. A node that has none of them is fine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the executor takes taints off, and does not use this module yet")
)]
pub(crate) enum Removal {
    /// All taints with this key.
    Key(String),
    /// The taint with this key, effect and value. The same with another value is somebody else's, and stays.
    Exactly(Taint),
}

/// The merge patch that changes a node as it was read. The API server refuses it if the node was replaced or written since.
///
/// `None` if the node as it was read has no UID or resourceVersion: a patch without them would hold for any node.
pub(crate) fn patch(node: &Value, change: &TaintChange) -> Option<Value> {
    let TaintChange { remove, add, annotations } = change;
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.retain(|taint| !remove.iter().any(|removal| removal.hits(taint)));
    for Addition { taint, since } in add {
        taints.retain(|other| !has_place_of(other, taint));
        taints.push(written(taint, *since));
    }
    let identity = |field: &str| node["metadata"][field].as_str().filter(|text| !text.is_empty());
    let mut metadata = json!({ "uid": identity("uid")?, "resourceVersion": identity("resourceVersion")? });
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    Some(json!({ "metadata": metadata, "spec": { "taints": taints } }))
}

impl Removal {
    fn hits(&self, taint: &Value) -> bool {
        match self {
            Self::Key(key) => taint["key"] == key.as_str(),
            Self::Exactly(unwanted) => {
                has_place_of(taint, unwanted) && taint["value"].as_str().unwrap_or("") == unwanted.value
            }
        }
    }
}

/// Says that a taint has the key and the effect of another, which are its identity on a node.
fn has_place_of(taint: &Value, other: &Taint) -> bool {
    taint["key"] == other.key.as_str() && taint["effect"] == other.effect.as_str()
}

fn written(taint: &Taint, since: Option<Timestamp>) -> Value {
    let mut written = json!({ "key": taint.key, "effect": taint.effect });
    if !taint.value.is_empty() {
        written["value"] = taint.value.as_str().into();
    }
    if let Some(since) = since {
        written["timeAdded"] = json!(since);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: effect.into() }
    }

    fn node(taints: &Value) -> Value {
        json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, "spec": {"podCIDR": "x", "taints": taints}})
    }

    #[test]
    fn only_what_is_named_changes_and_the_rest_is_written_back_as_it_was() {
        let stays = json!([
            {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z", "unknown": 1},
            {"key": "b", "value": "theirs", "effect": "NoExecute"},
        ]);
        let add = |taint, since: Option<&str>| Addition { taint, since: since.map(|at| at.parse().unwrap()) };
        let with = |more: Value| {
            let mut all = stays.as_array().unwrap().clone();
            all.extend(more.as_array().unwrap().iter().cloned());
            Value::Array(all)
        };
        let ours = json!([{"key": "k", "value": "v", "effect": "NoExecute"}]);
        let several = json!([
            {"key": "k", "value": "v", "effect": "NoExecute"},
            {"key": "k", "effect": "NoSchedule"},
        ]);
        let cases: &[(&str, Value, TaintChange, Value)] = &[
            (
                "added with its time",
                stays.clone(),
                TaintChange {
                    add: vec![add(taint("k", "v", "NoExecute"), Some("2026-11-15T05:00:00Z"))],
                    ..TaintChange::default()
                },
                with(
                    json!([{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-11-15T05:00:00Z"}]),
                ),
            ),
            (
                "added without a value and a time",
                stays.clone(),
                TaintChange { add: vec![add(taint("k", "", "NoSchedule"), None)], ..TaintChange::default() },
                with(json!([{"key": "k", "effect": "NoSchedule"}])),
            ),
            (
                "one of its key and effect is replaced, so that the API takes the list",
                with(ours.clone()),
                TaintChange { add: vec![add(taint("k", "w", "NoExecute"), None)], ..TaintChange::default() },
                with(json!([{"key": "k", "value": "w", "effect": "NoExecute"}])),
            ),
            (
                "all of a key are taken off",
                with(several.clone()),
                TaintChange { remove: vec![Removal::Key("k".into())], ..TaintChange::default() },
                stays.clone(),
            ),
            (
                "exactly one is taken off",
                with(several.clone()),
                TaintChange {
                    remove: vec![Removal::Exactly(taint("k", "v", "NoExecute"))],
                    ..TaintChange::default()
                },
                with(json!([{"key": "k", "effect": "NoSchedule"}])),
            ),
            (
                "an absent value is an empty one",
                with(several),
                TaintChange {
                    remove: vec![Removal::Exactly(taint("k", "", "NoSchedule"))],
                    ..TaintChange::default()
                },
                with(ours.clone()),
            ),
            (
                "one of another value is somebody else's",
                with(ours.clone()),
                TaintChange {
                    remove: vec![Removal::Exactly(taint("k", "other", "NoExecute"))],
                    ..TaintChange::default()
                },
                with(ours.clone()),
            ),
            (
                "taken off before it is added",
                with(ours.clone()),
                TaintChange {
                    remove: vec![Removal::Key("k".into())],
                    add: vec![add(taint("k", "", "NoSchedule"), None)],
                    ..TaintChange::default()
                },
                with(json!([{"key": "k", "effect": "NoSchedule"}])),
            ),
            ("no taints at all", Value::Null, TaintChange::default(), json!([])),
            ("no list of taints", json!("x"), TaintChange::default(), json!([])),
        ];
        for (case, before, change, after) in cases {
            let patch = patch(&node(before), change).unwrap();
            assert_eq!(patch["spec"], json!({"taints": after}), "{case}");
            assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}), "{case}");
        }
    }

    #[test]
    fn annotations_are_written_by_the_same_request() {
        let annotations = BTreeMap::from([
            ("salvor.dev/mark".to_owned(), Some("now".to_owned())),
            ("salvor.dev/old".to_owned(), None),
        ]);
        let change = TaintChange { annotations, ..TaintChange::default() };
        let expected = json!({"salvor.dev/mark": "now", "salvor.dev/old": null});
        let patch = patch(&node(&json!([])), &change).unwrap();
        assert_eq!(patch["metadata"]["annotations"], expected);
    }

    #[test]
    fn a_node_without_identity_is_not_patched() {
        let full = node(&json!([]));
        for (field, value) in [("uid", json!("")), ("uid", Value::Null), ("resourceVersion", json!(7))] {
            let mut broken = full.clone();
            broken["metadata"][field] = value;
            assert_eq!(patch(&broken, &TaintChange::default()), None, "{broken}");
        }
        assert_eq!(patch(&json!([]), &TaintChange::default()), None);
    }
}
