//! Changes a node's taints. The API treats them as one list, so Salvor reads, changes and writes it back whole.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::ids::ResourceVersion;
use crate::objects::{NodeRef, Taint};
use crate::step::{Changed, Patch};

#[derive(Debug)]
pub struct Taints(Vec<Value>);

impl Taints {
    pub fn of(node: &Value) -> Self {
        Self(node["spec"]["taints"].as_array().cloned().unwrap_or_default())
    }

    /// The taints of a node, if it is still in the state that the decision rests on.
    ///
    /// # Errors
    /// The node is another one, has changed, or is gone.
    pub fn judged(
        read: &[Option<Value>],
        node: &NodeRef,
        resource_version: &ResourceVersion,
    ) -> Result<Self, Changed> {
        let Some(Some(object)) = read.first() else { return Err(Changed) };
        let metadata = &object["metadata"];
        let is_judged =
            metadata["uid"] == node.uid.as_str() && metadata["resourceVersion"] == resource_version.as_str();
        if is_judged { Ok(Self::of(object)) } else { Err(Changed) }
    }

    /// Adds a taint, replacing one with its key and effect.
    #[must_use]
    pub fn with(mut self, taint: &Taint, since: Option<Timestamp>) -> Self {
        self.0.retain(|t| !is(t, taint));
        let mut added = json!({ "key": taint.key, "effect": taint.effect });
        if let Some(since) = since {
            added["timeAdded"] = json!(since);
        }
        if !taint.value.is_empty() {
            added["value"] = taint.value.as_str().into();
        }
        self.0.push(added);
        self
    }

    /// Removes a taint. One that has another value by now is not ours, and stays.
    #[must_use]
    pub fn without(mut self, taint: &Taint) -> Self {
        self.0.retain(|t| !(is(t, taint) && t["value"].as_str().unwrap_or("") == taint.value));
        self
    }

    /// Removes every taint with that key.
    #[must_use]
    pub fn without_key(mut self, key: &str) -> Self {
        self.0.retain(|t| t["key"] != key);
        self
    }

    pub fn into_list(self) -> Vec<Value> {
        self.0
    }

    /// The patch of the node that writes them back.
    ///
    /// # Errors
    /// Never: a list of JSON values has a JSON form.
    pub fn patch(self) -> Result<Patch, Changed> {
        Patch::spec(&json!({ "taints": self.0 }))
    }
}

fn is(taint: &Value, wanted: &Taint) -> bool {
    taint["key"] == wanted.key.as_str() && taint["effect"] == wanted.effect.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: effect.into() }
    }

    #[test]
    fn only_what_is_named_changes_and_the_rest_is_written_back_as_it_was() {
        let theirs =
            json!({"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z", "unknown": 1});
        let ours = json!({"key": "k", "value": "v", "effect": "NoExecute"});
        let twin = json!({"key": "k", "effect": "NoSchedule"});
        let taints = || Taints::of(&json!({"spec": {"taints": [theirs, ours, twin]}}));
        let at: Timestamp = "2026-11-15T05:00:00Z".parse().unwrap();
        let timed =
            json!({"key": "n", "value": "v", "effect": "NoExecute", "timeAdded": "2026-11-15T05:00:00Z"});
        let replaced = json!({"key": "k", "value": "w", "effect": "NoExecute"});
        type Case<'a> = (&'a str, Taints, Vec<&'a Value>);
        let cases: [Case<'_>; 7] = [
            (
                "added with its time",
                taints().with(&taint("n", "v", "NoExecute"), Some(at)),
                vec![&theirs, &ours, &twin, &timed],
            ),
            (
                "replaced, so that the API takes the list",
                taints().with(&taint("k", "w", "NoExecute"), None),
                vec![&theirs, &twin, &replaced],
            ),
            ("all of a key are taken off", taints().without_key("k"), vec![&theirs]),
            (
                "exactly one is taken off",
                taints().without(&taint("k", "v", "NoExecute")),
                vec![&theirs, &twin],
            ),
            (
                "an absent value is an empty one",
                taints().without(&taint("k", "", "NoSchedule")),
                vec![&theirs, &ours],
            ),
            (
                "another value is somebody else's",
                taints().without(&taint("k", "x", "NoExecute")),
                vec![&theirs, &ours, &twin],
            ),
            ("no list of taints", Taints::of(&json!({"spec": {"taints": "x"}})), vec![]),
        ];
        for (case, taints, expected) in cases {
            assert_eq!(taints.into_list().iter().collect::<Vec<_>>(), expected, "{case}");
        }
    }
}
