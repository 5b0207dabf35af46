//! Objects as the API sends them: the common fields, and type parameters for the rest.
//!
//! A reader declares which parts of `spec`, `status` and the annotations it wants; annotations may be long. All others
//! are skipped during decoding.

use jiff::Timestamp;
use salvor_api::{
    Labels,
    names::{labels, taints},
};
use salvor_recovery::{
    brake::{NodeStanding, WasReady},
    ids::{ResourceVersion, Uid},
    objects::{Deletion, Ready, Taint},
};
use serde::Deserialize;

use crate::watch_set::watch::Identified;

#[derive(Deserialize)]
#[serde(
    bound = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de> + Default, A: Deserialize<'de> + Default"
)]
pub struct Object<Spec, Status, A = Nothing> {
    pub metadata: Meta<A>,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

impl<Spec, Status, A> Identified for Object<Spec, Status, A> {
    fn uid(&self) -> &Uid {
        &self.metadata.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.metadata.resource_version
    }
}

/// A whole object, for a reader that knows only at run time which fields it wants.
#[derive(Deserialize, Debug)]
#[serde(try_from = "serde_json::Value")]
pub struct Whole {
    uid: Uid,
    resource_version: ResourceVersion,
    pub object: serde_json::Value,
}

impl TryFrom<serde_json::Value> for Whole {
    type Error = &'static str;

    fn try_from(object: serde_json::Value) -> Result<Self, Self::Error> {
        let of = |field| object.get("metadata")?.get(field)?.as_str().map(str::to_owned);
        let uid = of("uid").ok_or("it has no metadata.uid")?.into();
        let resource_version = of("resourceVersion").ok_or("it has no metadata.resourceVersion")?.into();
        Ok(Self { uid, resource_version, object })
    }
}

impl Identified for Whole {
    fn uid(&self) -> &Uid {
        &self.uid
    }

    fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }
}

#[derive(Deserialize, Default)]
pub struct Nothing {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "A: Deserialize<'de> + Default")]
pub struct Meta<A = Nothing> {
    /// Empty for cluster-scoped objects.
    #[serde(default)]
    pub namespace: String,
    /// Unique only among existing objects.
    pub name: String,
    /// Unique for ever.
    pub uid: Uid,
    pub resource_version: ResourceVersion,
    pub creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    pub labels: Labels,
    /// Those annotations that the reader wants.
    #[serde(default)]
    pub annotations: A,
    #[serde(default)]
    pub finalizers: Vec<String>,
    #[serde(default)]
    pub owner_references: Vec<Owner>,
    /// The end of the grace period, once it is being deleted.
    pub deletion_timestamp: Option<Timestamp>,
    pub deletion_grace_period_seconds: Option<i64>,
}

impl<A> Meta<A> {
    pub fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// The deletion mark of a pod.
    ///
    /// The API server deletes in two steps. A force delete whose client was killed between them leaves a pod with a
    /// grace period of 0 and no finalizer: its deletion is incomplete, and it must be deleted again.
    pub(crate) fn pod_deletion(&self) -> Option<Deletion> {
        let held = !self.finalizers.is_empty();
        let grace_seconds = self.deletion_grace_period_seconds.filter(|grace| *grace != 0 || held);
        self.deletion_timestamp.map(|timestamp| Deletion { timestamp, grace_seconds })
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: Uid,
    pub controller: bool,
}

impl Owner {
    pub(crate) fn is_job(&self) -> bool {
        self.kind == "Job" && self.api_version == "batch/v1"
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    pub(crate) restart_count: u32,
    pub(crate) state: State,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct State {
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Terminated {
    exit_code: i32,
    pub(crate) finished_at: Option<Timestamp>,
}

/// Containers that failed, with their exit codes.
pub(crate) fn bad_exits<'a>(all: impl Iterator<Item = &'a ContainerStatus>) -> Vec<(String, i32)> {
    let ended = all.filter_map(|it| it.state.terminated.as_ref().map(|end| (it.name.clone(), end.exit_code)));
    ended.filter(|(_, code)| *code != 0).collect()
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    /// When it was last confirmed; only nodes have it.
    pub last_heartbeat_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
}

pub(crate) fn condition<'a>(all: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    all.iter().find(|condition| condition.kind == kind)
}

/// The `Ready` condition that the kubelet reports.
pub(crate) fn node_ready(conditions: &[Condition]) -> Ready {
    Ready::from_api(condition(conditions, "Ready").map(|ready| ready.status.as_str()))
}

/// The fields of a node that decide whether it counts for the brake.
pub(crate) fn standing(labels: &Labels, taints: &[NodeTaint], conditions: &[Condition]) -> NodeStanding {
    let lost = || taints.iter().filter(|taint| taint.key == taints::UNREACHABLE);
    let ready = match condition(conditions, "Ready") {
        Some(ready) if ready.status == "True" => WasReady::Now,
        // Set by the node lifecycle controller if a kubelet registered a node and never updated it.
        Some(ready) if ready.reason == NEVER_UPDATED => WasReady::Never,
        found => {
            let since = found.and_then(|ready| ready.last_transition_time);
            let since = since.or_else(|| lost().filter_map(|taint| taint.time_added).min());
            since.map_or(WasReady::Sometime, WasReady::Until)
        }
    };
    NodeStanding {
        unreachable: lost().next().is_some(),
        ready,
        excluded: labels.get(labels::EXCLUDE_DISRUPTION).is_some_and(|value| value != "false"),
    }
}

const NEVER_UPDATED: &str = "NodeStatusNeverUpdated";

#[derive(Deserialize, Default)]
#[serde(default)]
pub struct NodeSpec {
    pub taints: Vec<NodeTaint>,
    /// The machine, as its provider names it.
    #[serde(rename = "providerID")]
    pub provider_id: Box<str>,
    /// True if the node is cordoned.
    pub unschedulable: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTaint {
    pub key: String,
    /// Empty if it has none.
    pub value: String,
    pub effect: String,
    /// When it was added; only some controllers set it.
    pub time_added: Option<Timestamp>,
}

impl From<&NodeTaint> for Taint {
    fn from(NodeTaint { key, value, effect, .. }: &NodeTaint) -> Self {
        Self { key: key.clone(), value: value.clone(), effect: effect.clone() }
    }
}

pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> kube::Result<T> {
    serde_json::from_str(text).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(node: Value) -> NodeStanding {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            conditions: Vec<Condition>,
        }
        let mut node = node;
        for (key, value) in [("name", "n"), ("uid", "u"), ("resourceVersion", "1")] {
            node["metadata"][key] = value.into();
        }
        let node: Object<NodeSpec, Status> = serde_json::from_value(node).unwrap();
        standing(&node.metadata.labels, &node.spec.taints, &node.status.conditions)
    }

    #[test]
    fn since_when_a_node_is_not_ready_is_told_by_its_condition_or_else_by_its_taint() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let ready = |status: &str, reason: &str, since: Value| json!({"conditions": [{"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": since}]});
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let taints = json!([
            {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": late},
        ]);
        let cases = [
            (ready("True", "KubeletReady", json!(early)), WasReady::Now),
            (ready("Unknown", "NodeStatusUnknown", json!(early)), WasReady::Until(at(early))),
            (ready("False", "KubeletNotReady", json!(early)), WasReady::Until(at(early))),
            (ready("Unknown", "NodeStatusNeverUpdated", json!(early)), WasReady::Never),
            (ready("Unknown", "NodeStatusUnknown", Value::Null), WasReady::Until(at(late))),
            (json!({}), WasReady::Until(at(late))),
        ];
        for (status, expected) in cases {
            let found = of(json!({"metadata": {}, "spec": {"taints": taints}, "status": status}));
            assert_eq!((found.ready, found.unreachable, found.excluded), (expected, true, false), "{status}");
        }
        let unknown = of(json!({"metadata": {}}));
        assert_eq!((unknown.ready, unknown.unreachable), (WasReady::Sometime, false));
    }

    #[test]
    fn a_node_is_excluded_by_the_label_unless_it_says_false() {
        for (value, excluded) in [("", true), ("true", true), ("yes", true), ("false", false)] {
            let node = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-disruption": value}}});
            assert_eq!(of(node).excluded, excluded, "{value:?}");
        }
    }
}
