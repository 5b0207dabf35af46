//! Jobs and pods as the API sends them, and the fields that are kept.

use std::sync::Arc;

use jiff::Timestamp;
use salvor_api::names::job::{INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT};
use salvor_recovery::{
    ids::{NodeName, Uid},
    job::{
        Deletion, IndexFailures, JobSpec, JobStatus, JobView, PodView, Ready, Selected, Stray, Tracking,
        Unreadable,
    },
    objects::{JobRef, PodPhase, PodRef},
};
use serde::Deserialize;

use crate::client::{
    revision::Revision,
    wire::{Condition, ContainerStatus, Object, bad_exits, condition},
};

/// A pod, classified by its relation to our Jobs.
#[derive(Clone, Debug)]
pub(crate) enum SeenPod {
    /// A Job controls it.
    OfJob { owner: Arc<JobRef>, pod: Box<PodView> },
    /// No Job controls it. One may adopt it, or it still has our finalizer.
    Stray(Box<Stray>),
    /// No Job controls it, and none may adopt it.
    Bare { uid: Uid, revision: Revision },
}

impl SeenPod {
    pub(super) fn uid(&self) -> &Uid {
        match self {
            Self::OfJob { pod, .. } => &pod.pod.uid,
            Self::Stray(stray) => &stray.pod.uid,
            Self::Bare { uid, .. } => uid,
        }
    }

    pub(super) fn is_of(&self, job: &JobRef) -> bool {
        matches!(self, Self::OfJob { owner, .. } if owner.uid == job.uid)
    }

    pub(super) fn revision(&self) -> Revision {
        match self {
            Self::OfJob { pod, .. } => pod.resource_version.revision(),
            Self::Stray(stray) => stray.resource_version.revision(),
            Self::Bare { revision, .. } => *revision,
        }
    }
}

pub(super) type JobWire = Object<JobSpec, JobStatus, JobAnnotations>;

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct JobAnnotations {
    #[serde(rename = "job.salvor.dev/used-pod-names")]
    used_names: Option<Box<str>>,
}

/// Only those that matter: others may be long.
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
    node_name: Option<NodeName>,
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
            used_names: metadata.annotations.used_names,
        }
    }
}

impl PodWire {
    /// True if it may be ours: a Job's pod without the built-in controller's finalizer, unless we replace that
    /// controller, or a pod without a controller.
    pub(super) fn may_be_ours(&self, stands_in: bool) -> bool {
        let Some(owner) = self.metadata.controller() else { return true };
        match Tracking::of(&self.metadata.finalizers, true) {
            Some(Tracking::Ours) => true,
            Some(Tracking::BuiltIn) => owner.is_job() && stands_in,
            None => owner.is_job(),
        }
    }
}

/// Decodes a pod. `stands_in` is true if we replace the built-in controller.
pub(super) fn read_pod(object: &str, stands_in: bool) -> Result<SeenPod, serde_json::Error> {
    serde_json::from_str::<PodWire>(object).map(|wire| SeenPod::new(wire, stands_in))
}

impl SeenPod {
    pub(super) fn new(wire: PodWire, stands_in: bool) -> Self {
        let controller = wire.metadata.controller();
        match controller.filter(|owner| owner.is_job()) {
            Some(owner) => {
                let (name, uid) = (owner.name.clone(), owner.uid.clone());
                let owner = Arc::new(JobRef { namespace: wire.metadata.namespace.clone(), name, uid });
                Self::OfJob { owner, pod: Box::new(pod_view(wire, stands_in)) }
            }
            None => {
                let adoptable = controller.is_none() && wire.metadata.deletion_timestamp.is_none();
                Self::Stray(Box::new(stray(wire, stands_in, adoptable)))
            }
        }
    }
}

fn stray(PodWire { metadata, .. }: PodWire, stands_in: bool, adoptable: bool) -> Stray {
    Stray {
        resource_version: metadata.resource_version,
        labels: metadata.labels,
        tracking: Tracking::of(&metadata.finalizers, stands_in),
        adoptable,
        pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
    }
}

fn pod_view(PodWire { metadata, spec, status }: PodWire, stands_in: bool) -> PodView {
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
    let phase = PodPhase::from_api(&status.phase);
    let ready = condition(&status.conditions, "Ready");
    let all = || status.container_statuses.iter().chain(&status.init_container_statuses);
    let Annotations { index, failures, ignored_failures } = &metadata.annotations;
    let counts = [(INDEX_FAILURE_COUNT, failures), (INDEX_IGNORED_FAILURE_COUNT, ignored_failures)];
    let unreadable = counts.into_iter().find_map(|(key, text)| {
        let text = text.as_deref().filter(|text| text.parse::<u32>().is_err())?;
        let field = format!("metadata.annotations[{key}] of pod {}", metadata.name);
        Some(Box::new(Unreadable::new(field, text, "a number of failures is right, such as 0")))
    });
    PodView {
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
        index: number(index),
        earlier_failures: IndexFailures {
            counted: number(failures).unwrap_or(0),
            ignored: number(ignored_failures).unwrap_or(0),
        },
        unreadable,
        restarts: all().map(|c| c.restart_count).fold(0, u32::saturating_add),
        finished: finished(&spec, &status),
        exit_codes: bad_exits(all()),
        conditions: if phase == PodPhase::Failed || metadata.deletion_timestamp.is_some() {
            status.conditions.into_iter().map(|c| (c.kind, c.status)).collect()
        } else {
            Vec::new()
        },
        selected: Selected::Unasked(metadata.labels),
        pod: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
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
