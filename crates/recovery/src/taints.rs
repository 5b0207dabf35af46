//! Changing a node's taints. To the API they are one list, so it is read, changed and written back whole.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::objects::{NodeRef, Taint};
use crate::step::{Changed, Patch};

/// A node's taints as they were read, to be changed.
#[derive(Debug)]
pub struct Taints(Vec<Value>);

impl Taints {
    /// The taints of a node that was read.
    pub fn of(node: &Value) -> Self {
        Self(node["spec"]["taints"].as_array().cloned().unwrap_or_default())
    }

    /// The taints of a node, if it is still exactly as it was judged.
    ///
    /// # Errors
    /// It is another node, or has changed, or is gone.
    pub fn judged(read: &[Option<Value>], node: &NodeRef, resource_version: &str) -> Result<Self, Changed> {
        let Some(Some(object)) = read.first() else { return Err(Changed) };
        let metadata = &object["metadata"];
        let is_judged =
            metadata["uid"] == node.uid.as_str() && metadata["resourceVersion"] == resource_version;
        if is_judged { Ok(Self::of(object)) } else { Err(Changed) }
    }

    /// The same with a taint, in the place of one with its key and effect.
    #[must_use]
    pub fn with(mut self, taint: &Taint, since: Timestamp) -> Self {
        self.0.retain(|t| !is(t, taint));
        let mut added = json!({ "key": taint.key, "effect": taint.effect, "timeAdded": since });
        if !taint.value.is_empty() {
            added["value"] = taint.value.as_str().into();
        }
        self.0.push(added);
        self
    }

    /// The same without a taint. One that has another value by now is somebody else's, and stays.
    #[must_use]
    pub fn without(mut self, taint: &Taint) -> Self {
        self.0.retain(|t| !(is(t, taint) && t["value"].as_str().unwrap_or("") == taint.value));
        self
    }

    /// The same without any taint of that key.
    #[must_use]
    pub fn without_key(mut self, key: &str) -> Self {
        self.0.retain(|t| t["key"] != key);
        self
    }

    /// The taints with a key.
    pub fn with_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |t| t["key"] == key)
    }

    /// The change of the node that writes them back.
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
