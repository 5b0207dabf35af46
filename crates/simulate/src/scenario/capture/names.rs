//! Names, as they are or as hashes.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::names::repair::labels::NODE_POOL;
use serde_json::{Map, Value, json};

use super::{list, text};

/// Keys of labels, taints and resources under these domains are the same everywhere, so they tell nothing about a cluster. So do
/// their values, except for the name of a NodePool.
const PUBLIC: [&str; 9] = [
    "kubernetes.io",
    "k8s.io",
    "karpenter.sh",
    "nvidia.com",
    "amd.com",
    "intel.com",
    "habana.ai",
    "k8s.aws",
    "azure.com",
];

/// How names are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As they are.
    Plain,
    /// As hashes, so that the file can be shown to others.
    Hashed,
}

impl Names {
    /// The name of an object, of at most so many characters.
    pub(super) fn of(self, name: &str, most: usize) -> String {
        match self {
            Self::Plain => plain(name, most),
            Self::Hashed => format!("h{}", &hash(name)[8..]),
        }
    }

    /// The key of a label, a taint or a resource. A key with a domain keeps one, because resources are told from others by it.
    pub(super) fn key(self, key: &str) -> String {
        match (self, key.split_once('/')) {
            (Self::Plain, _) => key.to_owned(),
            (Self::Hashed, _) if is_public(key) => key.to_owned(),
            (Self::Hashed, Some(_)) => format!("example.com/h{}", &hash(key)[8..]),
            // What the scheduler counts without a domain is the same everywhere.
            (Self::Hashed, None) => format!("h{}", &hash(key)[8..]),
        }
    }

    /// The value of a label or a taint.
    pub(super) fn value(self, key: &str, value: &str) -> String {
        let tells = !value.is_empty() && (!is_public(key) || key == NODE_POOL);
        if self == Self::Hashed && tells { format!("h{}", &hash(value)[8..]) } else { value.to_owned() }
    }

    /// The resources that a node has or a pod asks for.
    pub(super) fn resources(self, amounts: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let name = |name: String| if name.contains('/') { self.key(&name) } else { name };
        amounts.into_iter().map(|(key, amount)| (name(key), amount)).collect()
    }

    /// Writes the names in all label selectors of a document as they are in the scenario, where a NodePool may be several pools.
    pub(super) fn in_selectors(self, document: &mut Value, pools: &BTreeMap<String, BTreeSet<String>>) {
        match document {
            Value::Object(fields) => {
                if fields.contains_key("matchLabels") || fields.contains_key("matchExpressions") {
                    self.in_selector(fields, pools);
                    return;
                }
                fields.values_mut().for_each(|field| self.in_selectors(field, pools));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.in_selectors(item, pools)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn in_selector(self, selector: &mut Map<String, Value>, pools: &BTreeMap<String, BTreeSet<String>>) {
        let values = |key: &str, value: &str| match pools.get(value).filter(|_| key == NODE_POOL) {
            Some(pools) => pools.iter().cloned().collect(),
            None => vec![self.value(key, value)],
        };
        let (mut labels, mut expressions) = (Map::new(), Vec::new());
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            match values(key, &text(value)).as_slice() {
                [one] => {
                    labels.insert(self.key(key), one.as_str().into());
                }
                several => expressions.push(json!({ "key": key, "operator": "In", "values": several })),
            }
        }
        for requirement in selector.get("matchExpressions").into_iter().flat_map(list) {
            let key = text(&requirement["key"]);
            let mut new = requirement.clone();
            new["key"] = self.key(&key).into();
            if !requirement["values"].is_null() {
                new["values"] =
                    list(&requirement["values"]).flat_map(|value| values(&key, &text(value))).collect();
            }
            expressions.push(new);
        }
        for (field, empty, new) in [
            ("matchLabels", labels.is_empty(), Value::from(labels)),
            ("matchExpressions", expressions.is_empty(), Value::from(expressions)),
        ] {
            if empty {
                selector.remove(field);
            } else {
                selector.insert(field.to_owned(), new);
            }
        }
    }
}

fn is_public(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    PUBLIC
        .iter()
        .any(|public| domain.strip_suffix(public).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// A name that a scenario may have.
pub(super) fn plain(name: &str, most: usize) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let safe: String = name.to_lowercase().chars().map(|c| if fits(c) { c } else { '-' }).collect();
    let safe = safe.trim_matches('-');
    if safe.is_empty() {
        return "none".to_owned();
    }
    if safe.len() <= most {
        return safe.to_owned();
    }
    format!("{}-{}", safe[..most - 9].trim_end_matches('-'), &hash(name)[8..])
}

/// FNV-1a: the same in every build.
pub(in crate::scenario) fn hash(name: &str) -> String {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
