//! Whether two copies of the pods of a template may run, from the manifest alone. What it does not say counts as no, as
//! in the gate.

use std::collections::BTreeMap;

use serde_json::Value;

use super::kinds::{Template, group_and_kind};

/// Access modes that let pods on several nodes use a volume at once.
const FOR_MANY: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];
/// Disks that a pod uses without a claim: only one node at a time can attach them.
const DISKS: [&str; 8] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cinder",
    "fc",
    "gcePersistentDisk",
    "iscsi",
    "rbd",
    "vsphereVolume",
];

/// The access modes of PersistentVolumeClaims, by namespace and name as the manifests say them.
#[derive(Clone, Debug, Default)]
pub struct Claims(BTreeMap<(String, String), Vec<String>>);

impl Claims {
    /// Learns of an object, if it is a claim.
    pub fn learn(&mut self, object: &Value) {
        if group_and_kind(object) == Some(("", "PersistentVolumeClaim")) {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            self.0.insert((text("namespace"), text("name")), modes(object));
        }
    }
}

fn modes(claim: &Value) -> Vec<String> {
    let modes = claim["spec"]["accessModes"].as_array().into_iter().flatten();
    modes.filter_map(|mode| mode.as_str().map(str::to_owned)).collect()
}

fn for_one_node(modes: &[String]) -> bool {
    modes.is_empty() || !modes.iter().all(|mode| FOR_MANY.contains(&mode.as_str()))
}

/// Why two copies must not run; none if they may.
pub(super) fn why(
    object: &Value,
    template: &Template,
    at_most_one_owners: &[String],
    claims: &Claims,
) -> Option<String> {
    let is_listed = |owner: &str| at_most_one_owners.iter().any(|listed| listed == owner);
    if is_listed(&template.owner) {
        return Some(format!("it belongs to a {}", template.owner));
    }
    let at = template.at.of(object)?;
    let owners = at["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    for (group, kind) in owners.filter_map(group_and_kind) {
        let owner = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        if is_listed(&owner) {
            return Some(format!("it belongs to a {owner}"));
        }
    }
    let each = template.claims.as_ref().and_then(|list| list.of(object));
    for claim in each.and_then(Value::as_array).into_iter().flatten() {
        if for_one_node(&modes(claim)) {
            return Some(format!("each pod has a claim {} for one node", claim["metadata"]["name"]));
        }
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut volumes = at["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.find_map(|volume| of_volume(volume, namespace, claims))
}

fn of_volume(volume: &Value, namespace: &str, claims: &Claims) -> Option<String> {
    if DISKS.iter().any(|disk| !volume[*disk].is_null()) {
        return Some(format!("volume {} is a disk for one node", volume["name"]));
    }
    let name = volume["persistentVolumeClaim"]["claimName"].as_str()?;
    match claims.0.get(&(namespace.to_owned(), name.to_owned())) {
        None => Some(format!("claim {name} may be for one node: nothing here says its access modes")),
        Some(modes) if for_one_node(modes) => Some(format!("claim {name} is {}", modes.join(", "))),
        Some(_) => None,
    }
}
