//! Reads the history of a cluster, revision by revision, and reports what a repair must never do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use salvor_apiserver::ChangeKind;
use serde_json::Value;

use super::world::By;
use crate::stage::Happening;

#[derive(Debug, Default)]
pub(super) struct Audit {
    /// All problems, one line each.
    pub(super) wrong: Vec<String>,
    /// NodeClaims that were deleted, in order.
    pub(super) deleted: Vec<String>,
    /// The most that were being deleted at once.
    pub(super) most: usize,
}

/// Reads a history.
///
/// At no time are more NodeClaims being deleted, nor more repairs recorded, than the budget allows. No NodeClaim is
/// deleted twice, and none whose node was not unhealthy for the toleration, by the times that the node itself reported.
pub(super) fn audit(history: &[Happening], by: By, budget: usize, toleration: Duration) -> Audit {
    let mut audit = Audit::default();
    // Since when each node is unhealthy.
    let mut sick: BTreeMap<String, Timestamp> = BTreeMap::new();
    let mut going: BTreeSet<String> = BTreeSet::new();
    let mut asked: BTreeSet<String> = BTreeSet::new();
    let toleration = SignedDuration::try_from(toleration).unwrap();
    for Happening { at, change, resource, object } in history {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        match (resource.as_str(), change) {
            ("nodes", ChangeKind::Removed) => {
                sick.remove(&name);
            }
            ("nodes", _) => match is_sick(object, by.condition()) {
                true => {
                    sick.entry(name).or_insert(*at);
                }
                false => {
                    sick.remove(&name);
                }
            },
            ("nodeclaims", ChangeKind::Removed) => {
                going.remove(&uid);
            }
            ("nodeclaims", _)
                if !object["metadata"]["deletionTimestamp"].is_null() && asked.insert(uid.clone()) =>
            {
                going.insert(uid);
                audit.deleted.push(name.clone());
                audit.most = audit.most.max(going.len());
                if going.len() > budget {
                    audit
                        .wrong
                        .push(format!("at {at}: {} NodeClaims are being deleted at once", going.len()));
                }
                match sick.get(&name) {
                    None => audit.wrong.push(format!("at {at}: {name} is deleted, and is not sick")),
                    Some(since) if at.duration_since(*since) < toleration => {
                        audit
                            .wrong
                            .push(format!("at {at}: {name} is deleted, and is sick only since {since}"));
                    }
                    Some(_) => {}
                }
                let termination =
                    &object["metadata"]["annotations"]["karpenter.sh/nodeclaim-termination-timestamp"];
                if termination.as_str().and_then(|it| it.parse::<Timestamp>().ok()).is_none_or(|it| it > *at)
                {
                    audit.wrong.push(format!("at {at}: {name} is deleted without force: {termination}"));
                }
            }
            ("noderepairpolicies" | "nodepools", _) => {
                let kept = object["metadata"]["annotations"]["repair.salvor.dev/repairs"].as_str();
                // The story may have corrupted it.
                let kept: Value = kept
                    .map_or(object["status"].clone(), |text| serde_json::from_str(text).unwrap_or_default());
                let repairs = kept["repairs"].as_array().map_or(0, Vec::len);
                if repairs > budget {
                    audit.wrong.push(format!("at {at}: {repairs} repairs are written down"));
                }
            }
            _ => {}
        }
    }
    audit
}

pub(super) fn is_sick(node: &Value, condition: &str) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == condition && it["status"] == "False")
}
