//! Reads the state of a component from its status, and finds the component of a pod.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::ids::Uid;
use crate::objects::Kind;

/// A kind of component, as the API server serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentKind {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    /// The plural in request paths. Empty if the API server does not serve the kind.
    pub resource: String,
}

impl ComponentKind {
    /// Group and version in the form of `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl From<&ComponentKind> for Kind {
    fn from(kind: &ComponentKind) -> Self {
        let ComponentKind { group, version, kind, resource } = kind.clone();
        Self { group: group.into(), version: version.into(), kind: kind.into(), resource: resource.into() }
    }
}

impl fmt::Display for ComponentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

/// The components in the spec of an AppWrapper.
pub(super) fn components(object: &Value) -> &[Value] {
    object["spec"]["components"].as_array().map_or(&[], Vec::as_slice)
}

/// The state that a component reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentState {
    /// No success or failure status is known for this kind, so its pods decide.
    Silent,
    Active,
    Succeeded,
    /// It has failed, and its own controller does nothing more about it.
    Failed {
        message: String,
    },
    /// A user stopped it before it was done, and does not want it to run again.
    Stopped {
        message: String,
    },
}

impl fmt::Display for ComponentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("it does not say"),
            Self::Active => f.write_str("active"),
            Self::Succeeded => f.write_str("succeeded"),
            Self::Failed { message } if message.is_empty() => f.write_str("failed"),
            Self::Failed { message } => write!(f, "failed: {message}"),
            Self::Stopped { message } if message.is_empty() => f.write_str("stopped"),
            Self::Stopped { message } => write!(f, "stopped: {message}"),
        }
    }
}

/// A kind whose status Salvor can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Pod,
    Job,
    JobSet,
    PyTorchJob,
    RayJob,
}

impl Known {
    fn of(kind: &ComponentKind) -> Option<Self> {
        match (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()) {
            ("", "v1", "Pod") => Some(Self::Pod),
            ("batch", "v1", "Job") => Some(Self::Job),
            ("jobset.x-k8s.io", _, "JobSet") => Some(Self::JobSet),
            ("kubeflow.org", "v1", "PyTorchJob") => Some(Self::PyTorchJob),
            ("ray.io", _, "RayJob") => Some(Self::RayJob),
            // RayCluster, LeaderWorkerSet, Deployment and StatefulSet serve and do not end; `failed` of a RayCluster is
            // transient. For other kinds only the metadata is read.
            _ => None,
        }
    }
}

impl ComponentState {
    /// Reads the `status` of an object of this kind. A status without the fields of its kind counts as active.
    pub fn read(kind: &ComponentKind, status: &Value) -> Self {
        let by_conditions = |done: &str, failed: &str| {
            if has_condition(status, done).is_some() {
                Self::Succeeded
            } else if let Some(message) = has_condition(status, failed) {
                Self::Failed { message }
            } else {
                Self::Active
            }
        };
        match Known::of(kind) {
            None => Self::Silent,
            // A failed Pod counts as a failed pod, with its grace period.
            Some(Known::Pod) if text(status, "phase") == "Succeeded" => Self::Succeeded,
            Some(Known::Pod) => Self::Active,
            Some(Known::Job) => by_conditions("Complete", "Failed"),
            Some(Known::JobSet) => by_conditions("Completed", "Failed"),
            Some(Known::PyTorchJob) => by_conditions("Succeeded", "Failed"),
            Some(Known::RayJob) => match (text(status, "jobDeploymentStatus"), text(status, "jobStatus")) {
                ("Complete", "SUCCEEDED") => Self::Succeeded,
                // `jobStatus` alone is transient while KubeRay retries.
                ("Failed", _) | ("Complete", "FAILED") => {
                    Self::Failed { message: cut(text(status, "message")) }
                }
                // A suspended RayJob is STOPPED as well, but not Complete.
                ("Complete", "STOPPED") => Self::Stopped { message: cut(text(status, "message")) },
                _ => Self::Active,
            },
        }
    }
}

/// The pods that a Job with `completions` still has to run, possibly in several waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waves {
    /// The number of pods that run at once.
    parallelism: usize,
    /// The number of pods that must succeed, without indexes that have failed for good.
    completions: usize,
    /// The number of pods that have succeeded, as the Job reports.
    succeeded: usize,
}

impl Waves {
    /// None for other kinds, and for a Job without `completions`: it starts no more pods once one has succeeded.
    pub fn read(kind: &ComponentKind, object: &Value) -> Option<Self> {
        match Known::of(kind)? {
            Known::Job => {}
            Known::Pod | Known::JobSet | Known::PyTorchJob | Known::RayJob => return None,
        }
        let (spec, status) = (object.get("spec")?, object.get("status").unwrap_or(&Value::Null));
        let number = |of: &Value, field: &str| {
            of.get(field).and_then(Value::as_u64).map(|it| usize::try_from(it).unwrap_or(usize::MAX))
        };
        // Such a Job starts no more pods, and will report its end soon.
        let ends =
            ["SuccessCriteriaMet", "FailureTarget"].iter().any(|it| has_condition(status, it).is_some());
        let given_up = count_indexes(text(status, "failedIndexes"));
        let completions = number(spec, "completions")?.saturating_sub(given_up);
        Some(Self {
            parallelism: number(spec, "parallelism").unwrap_or(1),
            completions: if ends { 0 } else { completions },
            succeeded: number(status, "succeeded").unwrap_or(0),
        })
    }

    /// How many pods should run now. `ended` pods were seen to have succeeded: the Job may not have counted them yet.
    pub fn wanted(&self, ended: usize) -> usize {
        self.parallelism.min(self.completions.saturating_sub(self.succeeded.max(ended)))
    }
}

/// The number of indexes in a list such as `1,3-5,7`.
fn count_indexes(list: &str) -> usize {
    let count = |part: &str| -> Option<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').filter_map(count).fold(0, usize::saturating_add)
}

/// The message of the condition, if its status is `True`.
fn has_condition(status: &Value, kind: &str) -> Option<String> {
    let conditions = status.get("conditions")?.as_array()?;
    let found = conditions.iter().find(|it| text(it, "type") == kind && text(it, "status") == "True")?;
    Some(cut(text(found, "message")))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Shortens a message: other controllers write it, and it may be long.
fn cut(message: &str) -> String {
    message.chars().take(128).collect()
}

/// The owner that a pod names.
#[derive(Clone, Copy, Debug)]
pub struct PodOrigin<'a> {
    pub uid: &'a Uid,
    /// UID of its controller in `ownerReferences`.
    pub controller_uid: Option<&'a Uid>,
    /// The label that names an owner further up: see [`ORIGIN_LABELS`].
    pub named: Option<(&'static str, &'a str)>,
}

/// Labels with which pods name an owner that is not their controller, with the owner's kind.
pub const ORIGIN_LABELS: [(&str, &str); 4] = [
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("ray.io/originated-from-cr-name", "RayJob"),
    ("ray.io/cluster", "RayCluster"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
];

/// The index of the pod's component, if it can be determined. `components` has kind, name and UID of each existing
/// component.
pub fn component_of<'a>(
    pod: PodOrigin<'_>,
    components: impl IntoIterator<Item = (usize, &'a ComponentKind, &'a str, &'a Uid)>,
) -> Option<usize> {
    components.into_iter().find_map(|(index, kind, name, uid)| {
        let owned = uid == pod.uid || pod.controller_uid == Some(uid);
        let named = pod.named.is_some_and(|(label, value)| {
            value == name && ORIGIN_LABELS.iter().any(|(key, of)| *key == label && *of == kind.kind)
        });
        (owned || named).then_some(index)
    })
}
