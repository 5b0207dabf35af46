//! What a component says of itself, and which component a pod belongs to.

use std::fmt;

use serde_json::Value;

use super::views::ComponentKind;
use crate::ids::Uid;

/// What a component says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentState {
    /// Its kind has no word for success or failure that is known here: its pods tell.
    Silent,
    /// It is neither done nor failed.
    Active,
    /// It is done.
    Succeeded,
    /// It has failed, and its own controller does nothing more about it.
    Failed {
        /// What it says about that.
        message: String,
    },
    /// Somebody has stopped it before it was done, and does not want it to run again.
    Stopped {
        /// What it says about that.
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

/// A kind whose status is understood.
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
            // RayCluster, LeaderWorkerSet, Deployment and StatefulSet serve and do not end; `failed` of a RayCluster passes
            // by itself. Of other kinds only the metadata is read.
            _ => None,
        }
    }
}

impl ComponentState {
    /// Reads `status` of an object of this kind. A status that is not as the kind has it says nothing yet.
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
            // A failed Pod is a failed pod, and has its grace period as such.
            Some(Known::Pod) if text(status, "phase") == "Succeeded" => Self::Succeeded,
            Some(Known::Pod) => Self::Active,
            Some(Known::Job) => by_conditions("Complete", "Failed"),
            Some(Known::JobSet) => by_conditions("Completed", "Failed"),
            Some(Known::PyTorchJob) => by_conditions("Succeeded", "Failed"),
            Some(Known::RayJob) => match (text(status, "jobDeploymentStatus"), text(status, "jobStatus")) {
                ("Complete", "SUCCEEDED") => Self::Succeeded,
                // `jobStatus` alone passes by itself while KubeRay retries.
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

/// The pods that a Job with `completions` still has to run. It may run them in several waves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waves {
    /// So many of its pods run at once.
    parallelism: usize,
    /// So many must succeed. Indexes that have failed for good are left out.
    completions: usize,
    /// So many have succeeded, by the Job's own count.
    succeeded: usize,
}

impl Waves {
    /// Reads a Job. None for other kinds, and for a Job without `completions`: it starts no more pods once one has succeeded.
    pub fn read(kind: &ComponentKind, object: &Value) -> Option<Self> {
        match Known::of(kind)? {
            Known::Job => {}
            Known::Pod | Known::JobSet | Known::PyTorchJob | Known::RayJob => return None,
        }
        let (spec, status) = (object.get("spec")?, object.get("status").unwrap_or(&Value::Null));
        let number = |of: &Value, field: &str| {
            of.get(field).and_then(Value::as_u64).map(|it| usize::try_from(it).unwrap_or(usize::MAX))
        };
        // Such a Job starts no more pods, and its end is about to be told.
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

    /// How many pods should run now. `ended` pods are seen to have succeeded: the Job may not have counted them yet.
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

/// The message of a condition that is `True`.
fn has_condition(status: &Value, kind: &str) -> Option<String> {
    let conditions = status.get("conditions")?.as_array()?;
    let found = conditions.iter().find(|it| text(it, "type") == kind && text(it, "status") == "True")?;
    Some(cut(text(found, "message")))
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Messages are other people's, and may be long.
fn cut(message: &str) -> String {
    message.chars().take(128).collect()
}

/// Who a pod says that it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct PodOrigin<'a> {
    /// The pod's own UID.
    pub uid: &'a Uid,
    /// UID of its controller by `ownerReferences`.
    pub controller_uid: Option<&'a Uid>,
    /// The pod's labels that name an owner further up: see [`ORIGIN_LABELS`].
    pub named: Option<(&'static str, &'a str)>,
}

/// Labels by which pods name an owner that is not their controller, with the owner's kind.
pub const ORIGIN_LABELS: [(&str, &str); 4] = [
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("ray.io/originated-from-cr-name", "RayJob"),
    ("ray.io/cluster", "RayCluster"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
];

/// Index of the component that a pod belongs to, if that can be told. `components` are kind, name and UID of each that exists.
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
