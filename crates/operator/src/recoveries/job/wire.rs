//! Jobs and pods as the API sends them, and what is kept of them.

use std::sync::Arc;

use jiff::Timestamp;
use salvor_recovery::{
    job::{Deletion, IndexFailures, JobSpec, JobStatus, JobView, PodView, Ready, Tracking},
    objects::{JobRef, PodPhase, PodRef},
};
use serde::Deserialize;

use crate::wire::{Condition, Object, Owner, condition};

/// A pod and the Job that controls it.
#[derive(Clone, Debug)]
pub(crate) struct SeenPod {
    pub(crate) pod: PodView,
    pub(crate) owner: Option<Arc<JobRef>>,
}

pub(super) type JobWire = Object<JobSpec, JobStatus>;

/// Those that matter: others may be long.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Annotations {
    #[serde(rename = "batch.kubernetes.io/job-completion-index")]
    index: Option<String>,
    #[serde(rename = "batch.kubernetes.io/job-index-failure-count")]
    failures: Option<String>,
    #[serde(rename = "batch.kubernetes.io/job-index-ignored-failure-count")]
    ignored_failures: Option<String>,
}

pub(super) type PodWire = Object<PodSpec, PodStatus, Annotations>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    node_name: Option<String>,
    init_containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    restart_policy: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    restart_count: u32,
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

pub(super) fn read_job(object: &str) -> Result<JobView, serde_json::Error> {
    serde_json::from_str::<JobWire>(object).map(JobView::from)
}

impl From<JobWire> for JobView {
    fn from(JobWire { metadata, spec, status }: JobWire) -> Self {
        Self {
            job: JobRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid }.into(),
            resource_version: metadata.resource_version,
            deleting: metadata.deletion_timestamp.is_some(),
            spec,
            status,
        }
    }
}

impl PodWire {
    /// Whether it may be one of ours: a Job's that the built-in controller does not track unless we stand in for it, or
    /// one that nobody looks after.
    pub(super) fn may_be_ours(&self, stands_in: bool) -> bool {
        let Some(owner) = self.metadata.controller() else { return true };
        match Tracking::of(&self.metadata.finalizers, true) {
            Some(Tracking::Ours) => true,
            Some(Tracking::BuiltIn) => is_job(owner) && stands_in,
            None => is_job(owner),
        }
    }
}

fn is_job(owner: &Owner) -> bool {
    owner.kind == "Job" && owner.api_version == "batch/v1"
}

/// Reads a pod, as who stands in for the built-in controller or does not.
pub(super) fn read_pod(object: &str, stands_in: bool) -> Result<SeenPod, serde_json::Error> {
    serde_json::from_str::<PodWire>(object).map(|wire| SeenPod::new(wire, stands_in))
}

impl SeenPod {
    pub(super) fn new(PodWire { metadata, spec, status }: PodWire, stands_in: bool) -> Self {
        let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        let phase = PodPhase::from_api(&status.phase);
        let ready = condition(&status.conditions, "Ready");
        let owner = metadata.controller().filter(|owner| is_job(owner));
        let owner = owner.map(|owner| {
            let namespace = metadata.namespace.clone();
            Arc::new(JobRef { namespace, name: owner.name.clone(), uid: owner.uid.clone() })
        });
        let all = || status.container_statuses.iter().chain(&status.init_container_statuses);
        let pod = PodView {
            resource_version: metadata.resource_version,
            phase,
            created: metadata.creation_timestamp.unwrap_or_default(),
            deletion: metadata.deletion_timestamp.map(|timestamp| Deletion {
                timestamp,
                grace_seconds: metadata.deletion_grace_period_seconds.unwrap_or(0),
            }),
            tracking: Tracking::of(&metadata.finalizers, stands_in),
            ready: ready.map(|c| Ready { is_true: c.status == "True", since: c.last_transition_time }),
            node: spec.node_name.clone().filter(|name| !name.is_empty()),
            index: number(&metadata.annotations.index),
            earlier_failures: IndexFailures {
                counted: number(&metadata.annotations.failures).unwrap_or(0),
                ignored: number(&metadata.annotations.ignored_failures).unwrap_or(0),
            },
            restarts: all().map(|c| c.restart_count).fold(0, u32::saturating_add),
            finished: finished(&spec, &status),
            exit_codes: all()
                .filter_map(|c| c.state.terminated.as_ref().map(|end| (c.name.clone(), end.exit_code)))
                .filter(|(_, code)| *code != 0)
                .collect(),
            conditions: if phase == PodPhase::Failed || metadata.deletion_timestamp.is_some() {
                status.conditions.into_iter().map(|c| (c.kind, c.status)).collect()
            } else {
                Vec::new()
            },
            labels: metadata.labels,
            pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
        };
        Self { pod, owner }
    }
}

/// When the last container ended, sidecars included, if all have.
fn finished(spec: &PodSpec, status: &PodStatus) -> Option<Timestamp> {
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let sidecars: Vec<&str> = sidecars.map(|c| c.name.as_str()).collect();
    let sidecar_ends = status.init_container_statuses.iter().filter(|c| sidecars.contains(&c.name.as_str()));
    let mut last = None;
    for container in status.container_statuses.iter().chain(sidecar_ends) {
        last = last.max(Some(container.state.terminated.as_ref()?.finished_at?));
    }
    last
}
