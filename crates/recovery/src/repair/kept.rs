//! The labels, annotations and taints of Nodes that Salvor deleted. A machine that registers again gets them back: its
//! kubelet sets only some of them, and without the rest no policy would select the node any more.
//!
//! They are written into the policy's status before the Node is deleted, together with the Node's resourceVersion. If
//! the Node has changed since, they are written again first.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::repair::annotations::DO_NOT_REPAIR;
use salvor_api::names::taints::FORCE_EVICTION;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::views::NodeView;
use crate::ids::{NodeName, ResourceVersion, Uid};
use crate::moments::{CLOCKS_DIFFER, after};
use crate::objects::{NodeRef, Taint};
use crate::step::{Changed, Merge, Patch};
use crate::taints::Taints;

/// A machine that registers later than this counts as a different one.
const LASTS: SignedDuration = SignedDuration::from_hours(24);
/// The maximum number of Nodes remembered in one policy.
const MOST: usize = 32;
/// The maximum size in bytes for one Node, and for all Nodes of a policy.
const LONGEST: usize = 16 * 1024;
const LONGEST_ALL: usize = 128 * 1024;
/// Labels that a kubelet sets itself when it registers.
const OF_KUBELET: [&str; 5] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The metadata and taints of a Node that Salvor deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    pub node: NodeName,
    pub uid: Uid,
    /// Identifies the machine by its firmware.
    #[serde(default, rename = "systemUUID", skip_serializing_if = "String::is_empty")]
    pub system_uuid: String,
    /// Identifies the machine by its provider.
    #[serde(default, rename = "providerID", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// The version of the Node that was saved.
    pub resource_version: ResourceVersion,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Without Salvor's own annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Without taints that describe the state of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<KeptTaint>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTaint {
    pub key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: String,
}

/// Entries that cannot be read are dropped: losing them must not block a repair.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Kept>, D::Error> {
    let all = match Value::deserialize(from)? {
        Value::Array(all) => all,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Vec::new(),
    };
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

fn texts(of: &Value) -> BTreeMap<String, String> {
    let all = of.as_object().into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// True if a label, annotation or taint with this key is Salvor's own and therefore not restored. The exception is the
/// veto `DO_NOT_REPAIR`, which a person sets.
fn is_of_the_moment(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_ours = domain == "salvor.dev" || domain.ends_with(".salvor.dev");
    is_ours && key != DO_NOT_REPAIR
}

/// True if a taint with this key describes the node's current state, or an action in progress on it.
fn is_lifecycle(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    key == FORCE_EVICTION
        || is_of_the_moment(key)
        || domain == "node.kubernetes.io"
        || domain == "node.cloudprovider.kubernetes.io"
        || domain == "karpenter.sh"
        || key == "ToBeDeletedByClusterAutoscaler"
        || key == "DeletionCandidateOfClusterAutoscaler"
}

impl Kept {
    /// Fails if the Node is not in the given version. `lost` lists the taints that declare a node lost: they are not
    /// restored either.
    pub(super) fn of(
        node: &Value,
        uid: &Uid,
        resource_version: &ResourceVersion,
        lost: &[String],
        at: Timestamp,
    ) -> Result<Self, Changed> {
        let metadata = &node["metadata"];
        if metadata["uid"] != uid.as_str() || metadata["resourceVersion"] != resource_version.as_str() {
            return Err(Changed);
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut labels = texts(&metadata["labels"]);
        labels.retain(|key, _| !OF_KUBELET.contains(&key.as_str()) && !is_of_the_moment(key));
        let mut annotations = texts(&metadata["annotations"]);
        annotations.retain(|key, _| !is_of_the_moment(key));
        let taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let taints = taints
            .map(|taint| KeptTaint {
                key: text(&taint["key"]),
                value: text(&taint["value"]),
                effect: text(&taint["effect"]),
            })
            .filter(|taint| !is_lifecycle(&taint.key) && !lost.contains(&taint.key))
            .collect();
        let mut kept = Self {
            node: text(&metadata["name"]).into(),
            uid: uid.clone(),
            system_uuid: text(&node["status"]["nodeInfo"]["systemUUID"]),
            provider_id: text(&node["spec"]["providerID"]),
            resource_version: resource_version.clone(),
            at,
            labels,
            annotations,
            taints,
        };
        // If the entry is too large, the longest annotations are dropped first.
        while kept.size() > LONGEST {
            let longest =
                kept.annotations.iter().max_by_key(|(_, value)| value.len()).map(|(key, _)| key.clone());
            match longest {
                Some(key) => kept.annotations.remove(&key),
                None => break,
            };
        }
        Ok(kept)
    }

    fn size(&self) -> usize {
        serde_json::to_string(self).map_or(0, |text| text.len())
    }

    pub(super) fn forgotten_at(&self) -> Timestamp {
        after(self.at, LASTS)
    }

    /// True if this is the same machine, registered again. The name must match too: a kubelet may report any systemUUID
    /// or providerID, but it cannot register a Node with another name.
    pub fn is_of(&self, node: &NodeView, now: Timestamp) -> bool {
        let is = |known: &str, now: &str| !known.is_empty() && known == now;
        let is_later = node.created.is_some_and(|created| self.at <= after(created, CLOCKS_DIFFER));
        self.node == node.node.name
            && self.uid != node.node.uid
            && is_later
            && now < self.forgotten_at()
            && (is(&self.system_uuid, &node.system_uuid) || is(&self.provider_id, &node.provider_id))
    }

    /// The patch that restores whatever the Node lacks.
    ///
    /// # Errors
    /// The Node is not in the given version.
    pub(super) fn patch(
        &self,
        read: &[Option<Value>],
        node: &NodeRef,
        resource_version: &ResourceVersion,
    ) -> Result<Patch, Changed> {
        let mut taints = Taints::judged(read, node, resource_version)?;
        let Some(Some(object)) = read.first() else { return Err(Changed) };
        let metadata = &object["metadata"];
        let there = object["spec"]["taints"].as_array();
        let has = |key: &str| there.is_some_and(|all| all.iter().any(|taint| taint["key"] == key));
        let missing: Vec<&KeptTaint> = self.taints.iter().filter(|taint| !has(&taint.key)).collect();
        for KeptTaint { key, value, effect } in &missing {
            let taint = Taint { key: key.clone(), value: value.clone(), effect: effect.clone() };
            taints = taints.with(&taint, None);
        }
        let mut patch =
            if missing.is_empty() { Patch::metadata(Merge::Plain, Map::new()) } else { taints.patch()? };
        let labels: Map<String, Value> = self
            .labels
            .iter()
            .filter(|(key, _)| metadata["labels"][key.as_str()].is_null())
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
            .collect();
        if !labels.is_empty() {
            patch.metadata.insert("labels".to_owned(), Value::Object(labels));
        }
        for (key, value) in &self.annotations {
            if metadata["annotations"][key.as_str()].is_null() {
                patch = patch.annotated(key, Some(value.clone()));
            }
        }
        Ok(patch)
    }
}

/// Adds one entry and drops expired ones. Each machine has one entry. If there are too many, the oldest are dropped.
pub(super) fn with(kept: &[Kept], one: Kept) -> Vec<Kept> {
    let is_same = |other: &Kept| {
        let is = |a: &str, b: &str| !a.is_empty() && a == b;
        other.uid == one.uid
            || is(&other.system_uuid, &one.system_uuid)
            || is(&other.provider_id, &one.provider_id)
    };
    let mut all: Vec<Kept> =
        kept.iter().filter(|other| !is_same(other) && one.at < other.forgotten_at()).cloned().collect();
    all.push(one);
    all.sort_by_key(|kept| kept.at);
    while all.len() > MOST || all.len() > 1 && all.iter().map(Kept::size).sum::<usize>() > LONGEST_ALL {
        all.remove(0);
    }
    all
}
