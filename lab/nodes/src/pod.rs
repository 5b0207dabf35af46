//! The fields of a Pod that a kubelet needs, taken from the API object.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as ApiContainer, Pod, Toleration};

use crate::{
    script::{ContainerScript, FOREVER, PodScript, ScriptError},
    truth::Work,
};

/// A kubelet sets it on the mirror of a static pod.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

const JOB_INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";

/// The identity of a pod: a name alone may be reused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodId {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: started in turn, then runs beside the others.
    Sidecar,
    Main,
}

#[derive(Clone, Debug)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) role: Role,
    pub(crate) script: ContainerScript,
}

/// The fields of a pod that never change once it is bound.
#[derive(Clone, Debug)]
pub(crate) struct PodSpecView {
    pub(crate) containers: Vec<ContainerSpec>,
    pub(crate) restart_policy: RestartPolicy,
    pub(crate) grace: Duration,
    pub(crate) active_deadline: Option<Duration>,
    pub(crate) claims: Vec<String>,
    pub(crate) work: Vec<Work>,
    pub(crate) script_error: Option<ScriptError>,
}

/// The fields of a pod that may change while it is bound.
#[derive(Clone, Debug)]
pub(crate) struct PodState {
    pub(crate) resource_version: u64,
    pub(crate) terminal: Option<TerminalPhase>,
    /// The grace period of a deletion in progress.
    pub(crate) deletion: Option<Duration>,
    pub(crate) ready: Option<bool>,
    pub(crate) tolerations: Arc<[Toleration]>,
    pub(crate) start_time: Option<Timestamp>,
    /// The address in the API: after a restore, of a pod that its kubelet has forgotten.
    pub(crate) pod_ip: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalPhase {
    Succeeded,
    Failed,
}

/// A bound pod as its kubelet sees it.
#[derive(Clone, Debug)]
pub(crate) struct PodView {
    pub(crate) id: PodId,
    pub(crate) node: String,
    pub(crate) is_mirror: bool,
    pub(crate) spec: Arc<PodSpecView>,
    pub(crate) state: PodState,
}

impl PodView {
    /// `None` for a pod that is not bound or has no identity yet: no kubelet handles it.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let id = PodId {
            namespace: pod.metadata.namespace.clone()?,
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
        };
        let none = BTreeMap::new();
        let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
        let (script, script_error) = match PodScript::parse(annotations) {
            Ok(script) => (script, None),
            Err(error) => (PodScript::default(), Some(error)),
        };
        let container = |role, c: &ApiContainer| ContainerSpec {
            script: script.container(&c.name),
            name: c.name.clone(),
            image: c.image.clone().unwrap_or_default(),
            role,
        };
        let init = spec.init_containers.iter().flatten().map(|c| {
            let sidecar = c.restart_policy.as_deref() == Some("Always");
            container(if sidecar { Role::Sidecar } else { Role::Init }, c)
        });
        let main = spec.containers.iter().map(|c| container(Role::Main, c));
        let status = pod.status.as_ref();
        Some(Self {
            node: spec.node_name.clone().filter(|n| !n.is_empty())?,
            is_mirror: annotations.contains_key(MIRROR_ANNOTATION),
            spec: Arc::new(PodSpecView {
                containers: init.chain(main).collect(),
                restart_policy: match spec.restart_policy.as_deref() {
                    Some("Never") => RestartPolicy::Never,
                    Some("OnFailure") => RestartPolicy::OnFailure,
                    _ => RestartPolicy::Always,
                },
                grace: seconds(spec.termination_grace_period_seconds.unwrap_or(30)),
                active_deadline: spec.active_deadline_seconds.map(seconds),
                claims: spec
                    .volumes
                    .iter()
                    .flatten()
                    .filter_map(|v| v.persistent_volume_claim.as_ref())
                    .map(|c| c.claim_name.clone())
                    .collect(),
                work: work(pod, &id, annotations),
                script_error,
            }),
            state: PodState {
                resource_version: resource_version(pod.metadata.resource_version.as_deref()),
                terminal: match status.and_then(|s| s.phase.as_deref()) {
                    Some("Succeeded") => Some(TerminalPhase::Succeeded),
                    Some("Failed") => Some(TerminalPhase::Failed),
                    _ => None,
                },
                deletion: pod
                    .metadata
                    .deletion_timestamp
                    .as_ref()
                    .map(|_| seconds(pod.metadata.deletion_grace_period_seconds.unwrap_or(0))),
                ready: status
                    .and_then(|s| s.conditions.as_ref())
                    .and_then(|all| all.iter().find(|c| c.type_ == "Ready"))
                    .map(|c| c.status == "True"),
                tolerations: spec.tolerations.as_deref().unwrap_or_default().into(),
                start_time: status.and_then(|s| s.start_time.as_ref()).map(|t| t.0),
                pod_ip: status.and_then(|s| s.pod_ip.clone()),
            },
            id,
        })
    }
}

/// Revisions of one server are comparable numbers; anything else sorts before them all.
pub(crate) fn resource_version(text: Option<&str>) -> u64 {
    text.and_then(|t| t.parse().ok()).unwrap_or(0)
}

/// API seconds as a duration. Anything longer than a lifetime is capped, so that it can still be added to a time.
fn seconds(s: i64) -> Duration {
    Duration::from_secs(u64::try_from(s).unwrap_or(0)).min(FOREVER)
}

fn work(pod: &Pod, id: &PodId, annotations: &BTreeMap<String, String>) -> Vec<Work> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    let index = annotations.get(JOB_INDEX_ANNOTATION).and_then(|i| i.parse().ok());
    vec![match owner {
        Some(job) if job.kind == "Job" => match index {
            Some(index) => Work::JobIndex { job: job.uid.clone(), index },
            None => Work::Job { job: job.uid.clone() },
        },
        Some(set) if set.kind == "StatefulSet" => {
            Work::Ordinal { set: set.uid.clone(), pod: id.name.clone() }
        }
        _ => Work::Pod { uid: id.uid.clone() },
    }]
}
