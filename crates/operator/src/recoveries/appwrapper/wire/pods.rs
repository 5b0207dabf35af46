//! Pods with the label of an AppWrapper.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use salvor_api::names::appwrapper::MEMBER_LABEL;
use salvor_recovery::{
    appwrapper::{AppWrapperPolicy, PodView, components::ORIGIN_LABELS},
    ids::{NodeName, Uid},
    objects::{PodPhase, PodRef},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    client::wire::{Condition, Object, condition},
    recoveries::work::{VolumeWire, WorkAnnotations, work},
    watch_set::watch::Project,
};

#[derive(Clone, Debug)]
pub(crate) struct SeenPod {
    /// The name of its AppWrapper.
    pub(crate) app: String,
    pub(crate) view: PodView,
    pub(crate) controller_uid: Option<Uid>,
    pub(crate) named: Option<(&'static str, String)>,
}

pub(crate) struct LabelledPods(pub(crate) Arc<AppWrapperPolicy>);

pub(crate) type PodWire = Object<PodSpec, PodStatus, WorkAnnotations>;

impl Project for LabelledPods {
    type Wire = PodWire;
    type Kept = SeenPod;

    fn keep(&self, wire: PodWire) -> Option<SeenPod> {
        SeenPod::new(wire, &self.0)
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    node_name: Option<NodeName>,
    containers: Vec<Container>,
    volumes: Vec<VolumeWire>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    resources: Resources,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resources {
    requests: Option<Map<String, Value>>,
    limits: Option<Map<String, Value>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerStatus {
    state: State,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    finished_at: Option<Timestamp>,
}

impl SeenPod {
    /// `None` for a pod without the label.
    pub(crate) fn new(
        PodWire { metadata, spec, status }: PodWire,
        policy: &AppWrapperPolicy,
    ) -> Option<Self> {
        let app = metadata.labels.get(MEMBER_LABEL)?.to_owned();
        let named =
            ORIGIN_LABELS.iter().find_map(|(key, _)| Some((*key, metadata.labels.get(key)?.to_owned())));
        let scheduled = condition(&status.conditions, "PodScheduled");
        let ended = || status.container_statuses.iter().filter_map(|it| it.state.terminated.as_ref());
        let view = PodView {
            phase: PodPhase::from_api(&status.phase),
            created: metadata.creation_timestamp.unwrap_or_default(),
            deletion: metadata.pod_deletion(),
            node_name: spec.node_name.filter(|name| !name.is_empty()),
            component: None,
            ended: ended().filter_map(|it| it.finished_at).max(),
            exit_codes: ended().map(|it| it.exit_code).filter(|code| *code != 0).collect(),
            resources: spec.containers.iter().flat_map(used).collect(),
            unschedulable: scheduled.is_some_and(|it| {
                it.status == "False" && ["Unschedulable", "SchedulingGated"].contains(&it.reason.as_str())
            }),
            disruption: disruption(&status.conditions),
            terminated: status.is_terminated(spec.containers.len()),
            without_grace: spec.termination_grace_period_seconds == Some(0),
            work: work(&metadata, &spec.volumes, policy.eviction.gate()),
            resource_version: metadata.resource_version.clone(),
            finalizers: metadata.finalizers.clone(),
            pod: PodRef {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                uid: metadata.uid.clone(),
            },
        };
        let controller_uid = metadata.controller().map(|owner| owner.uid.clone());
        Some(Self { app, view, controller_uid, named })
    }
}

impl PodStatus {
    /// True if every container was reported as terminated, init and ephemeral containers included. `containers` is the
    /// number of regular ones.
    fn is_terminated(&self, containers: usize) -> bool {
        let is_over = |it: &ContainerStatus| it.state.terminated.is_some();
        let mut helpers = self.init_container_statuses.iter().chain(&self.ephemeral_container_statuses);
        self.container_statuses.len() >= containers.max(1)
            && self.container_statuses.iter().all(is_over)
            && helpers.all(is_over)
    }
}

/// The resources that a container requests or is limited to.
fn used(container: &Container) -> BTreeSet<String> {
    let Resources { requests, limits } = &container.resources;
    let all = [requests, limits].into_iter().flatten().flatten();
    all.filter(|(_, amount)| is_positive(amount)).map(|(name, _)| name.clone()).collect()
}

/// True if a quantity is more than 0: it has a digit other than 0 before its unit.
fn is_positive(amount: &Value) -> bool {
    match amount {
        Value::Number(number) => number.as_f64().is_some_and(|number| number > 0.0),
        Value::String(text) => {
            let number =
                text.trim_start_matches('+').chars().take_while(|it| it.is_ascii_digit() || *it == '.');
            number.into_iter().any(|it| ('1'..='9').contains(&it))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

/// The reason of a pod's `DisruptionTarget` condition, if that is True.
pub(super) fn disruption(conditions: &[Condition]) -> Option<String> {
    let target = condition(conditions, "DisruptionTarget").filter(|it| it.status == "True");
    target.map(|it| it.reason.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_terminated_when_every_container_was_reported_so() {
        let status = |running: bool| json!({"state": if running { json!({"running": {}}) } else { json!({"terminated": {"exitCode": 0}}) }});
        for (case, status, expected) in [
            ("nothing reported", json!({}), false),
            ("one of two", json!({"containerStatuses": [status(false)]}), false),
            ("both", json!({"containerStatuses": [status(false), status(false)]}), true),
            ("one runs", json!({"containerStatuses": [status(false), status(true)]}), false),
            (
                "a sidecar runs",
                json!({
                    "containerStatuses": [status(false), status(false)],
                    "initContainerStatuses": [status(true)],
                }),
                false,
            ),
        ] {
            let status: PodStatus = serde_json::from_value(status).unwrap();
            assert_eq!(status.is_terminated(2), expected, "{case}");
        }
    }

    #[test]
    fn a_quantity_is_positive_if_a_digit_of_its_number_is() {
        for (amount, positive) in [
            (json!("1"), true),
            (json!("100m"), true),
            (json!("0.5"), true),
            (json!("+2Gi"), true),
            (json!("0"), false),
            (json!("0e5"), false),
            (json!("0Mi"), false),
            (json!("-1"), false),
            (json!(""), false),
            (json!(3), true),
            (json!(0), false),
            (json!(null), false),
        ] {
            assert_eq!(is_positive(&amount), positive, "{amount}");
        }
    }
}
