//! Jobs and pods as the API sends them, and what is kept of them.

use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::{Labels, names::job::TRACKING_FINALIZER};
use salvor_recovery::{
    action::{JobRef, PodPhase, PodRef},
    job::{Deletion, IndexFailures, JobSpec, JobStatus, JobView, PodView, Ready},
};
use serde::Deserialize;

use crate::watch::Identified;

/// The finalizer by which the built-in controller marks pods as its own.
const BUILT_IN_FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// A pod and the Job that controls it.
#[derive(Clone, Debug)]
pub(crate) struct SeenPod {
    pub(crate) pod: PodView,
    pub(crate) owner: Option<Arc<JobRef>>,
}

#[derive(Deserialize)]
pub(super) struct JobWire {
    metadata: MetaWire,
    #[serde(default)]
    spec: JobSpec,
    #[serde(default)]
    status: JobStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaWire {
    #[serde(default)]
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    labels: Labels,
    #[serde(default)]
    annotations: AnnotationsWire,
    #[serde(default)]
    finalizers: Vec<String>,
    #[serde(default)]
    owner_references: Vec<OwnerWire>,
    deletion_timestamp: Option<Timestamp>,
    deletion_grace_period_seconds: Option<i64>,
}

/// Those that matter: others may be long.
#[derive(Deserialize, Default)]
#[serde(default)]
struct AnnotationsWire {
    #[serde(rename = "batch.kubernetes.io/job-completion-index")]
    index: Option<String>,
    #[serde(rename = "batch.kubernetes.io/job-index-failure-count")]
    failures: Option<String>,
    #[serde(rename = "batch.kubernetes.io/job-index-ignored-failure-count")]
    ignored_failures: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct OwnerWire {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    controller: bool,
}

#[derive(Deserialize)]
pub(super) struct PodWire {
    metadata: MetaWire,
    #[serde(default)]
    spec: PodSpecWire,
    #[serde(default)]
    status: PodStatusWire,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecWire {
    node_name: Option<String>,
    init_containers: Vec<ContainerWire>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerWire {
    name: String,
    restart_policy: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodStatusWire {
    phase: String,
    conditions: Vec<ConditionWire>,
    container_statuses: Vec<ContainerStatusWire>,
    init_container_statuses: Vec<ContainerStatusWire>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ConditionWire {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<Timestamp>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatusWire {
    name: String,
    restart_count: u32,
    state: StateWire,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StateWire {
    terminated: Option<TerminatedWire>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TerminatedWire {
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
    /// Whether it may be one of ours: a Job's that the built-in controller does not track, or nobody's.
    pub(super) fn may_be_ours(&self) -> bool {
        let has = |finalizer: &str| self.metadata.finalizers.iter().any(|f| f == finalizer);
        has(TRACKING_FINALIZER)
            || match self.metadata.owner_references.iter().find(|owner| owner.controller) {
                Some(owner) => is_job(owner) && !has(BUILT_IN_FINALIZER),
                None => self.metadata.owner_references.is_empty(),
            }
    }
}

impl Identified for JobWire {
    fn uid(&self) -> &str {
        &self.metadata.uid
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl Identified for PodWire {
    fn uid(&self) -> &str {
        &self.metadata.uid
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

fn is_job(owner: &OwnerWire) -> bool {
    owner.kind == "Job" && owner.api_version == "batch/v1"
}

pub(super) fn read_pod(object: &str) -> Result<SeenPod, serde_json::Error> {
    serde_json::from_str::<PodWire>(object).map(SeenPod::from)
}

impl From<PodWire> for SeenPod {
    fn from(PodWire { metadata, spec, status }: PodWire) -> Self {
        let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        let phase = PodPhase::from_api(&status.phase);
        let ready = status.conditions.iter().find(|c| c.kind == "Ready");
        let owner = metadata.owner_references.iter().find(|owner| owner.controller && is_job(owner));
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
            tracked: metadata.finalizers.iter().any(|f| f == TRACKING_FINALIZER),
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
            conditions: if phase == PodPhase::Failed {
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
fn finished(spec: &PodSpecWire, status: &PodStatusWire) -> Option<Timestamp> {
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let sidecars: Vec<&str> = sidecars.map(|c| c.name.as_str()).collect();
    let sidecar_ends = status.init_container_statuses.iter().filter(|c| sidecars.contains(&c.name.as_str()));
    let mut last = None;
    for container in status.container_statuses.iter().chain(sidecar_ends) {
        last = last.max(Some(container.state.terminated.as_ref()?.finished_at?));
    }
    last
}
