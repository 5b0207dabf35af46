//! The work of a scenario.

use std::{collections::BTreeMap, time::Duration};

use salvor_api::names::repair;
use serde::Serialize;
use serde_json::Value;

use super::{ACCELERATOR, GPU_POOL, file};

/// In the short form pods tolerate an unreachable node for this long: short, so that the story does not take long.
const TOLERATED: Duration = Duration::from_secs(30);
/// The grace period of pods in the short form.
const GRACE: Duration = Duration::from_secs(10);
/// The queue of the short form is worked off in this many batches.
const BATCH_TURNS: u32 = 4;
/// A batch pod of the short form runs for this long.
const BATCH_TAKES: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Also the value of the label `app` of its pods.
    pub name: String,
    pub shape: Shape,
    /// The number of pods; of a JobSet, of each of its Jobs; of a Job, its completions.
    pub pods: u32,
    /// The time that one pod needs; `None` if it runs forever.
    pub takes: Option<Duration>,
    /// The work of a pod is saved this often.
    pub checkpoint_every: Option<Duration>,
    /// The time between the admission of a pod and its start.
    pub start_delay: Option<Duration>,
    /// What its owner consents to.
    pub consent: Consent,
    /// How long after the loss of their node its pods are given up: the annotation salvor.dev/evict-after.
    pub evict_after: Option<Duration>,
    /// The grace period of its pods.
    pub grace: Duration,
    /// How long its pods tolerate an unreachable or not ready node; `None` means the cluster's default of five minutes.
    pub tolerates: Option<Duration>,
    /// The resource requests of each pod.
    pub requests: BTreeMap<String, String>,
    /// If set, its pods run only on nodes of this pool.
    pub pool: Option<String>,
    /// Annotations of its pods; for an AppWrapper, of the AppWrapper itself.
    pub annotations: BTreeMap<String, String>,
    pub budget: Option<Budget>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    Job {
        /// True for completionMode Indexed.
        indexed: bool,
        parallelism: u32,
        /// True if a pod is replaced only after it has failed.
        waits_for_the_end: bool,
    },
    /// Indexed Jobs that belong together.
    JobSet {
        jobs: u32,
        /// True if a pod is replaced only after it has failed.
        waits_for_the_end: bool,
    },
    StatefulSet {
        /// The size of the volume of each pod.
        volume: Option<String>,
    },
    Deployment,
    /// An AppWrapper around an Indexed Job.
    AppWrapper,
}

/// What the owner of a pod consents to when its node is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Consent {
    /// Nothing: its work must not run twice.
    None,
    /// The pod may be marked Failed.
    Terminate,
    /// The pod may be marked Failed and deleted.
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    MinAvailable(Amount),
    MaxUnavailable(Amount),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Pods(u32),
    Percent(u32),
}

impl Amount {
    /// The amount in the form of the API.
    pub(super) fn value(self) -> Value {
        match self {
            Self::Pods(pods) => pods.into(),
            Self::Percent(percent) => format!("{percent}%").into(),
        }
    }
}

impl Shape {
    /// Parses a podReplacementPolicy. True if pods are replaced only after they have failed.
    pub(super) fn waits(policy: &str) -> Result<bool, String> {
        match policy {
            "TerminatingOrFailed" => Ok(false),
            "Failed" => Ok(true),
            other => Err(format!("{other:?} is no policy: write Failed or TerminatingOrFailed")),
        }
    }
}

impl Consent {
    /// Parses the name in a file.
    pub(super) fn read(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Self::None),
            "terminate" => Ok(Self::Terminate),
            "delete" => Ok(Self::Delete),
            other => Err(format!("{other:?} is not known: write none, terminate or delete")),
        }
    }
}

impl Workload {
    /// The number of units of work: what must run, or must complete, in total.
    pub fn units(&self) -> u32 {
        match self.shape {
            Shape::JobSet { jobs, .. } => self.pods.saturating_mul(jobs),
            Shape::Job { .. } | Shape::StatefulSet { .. } | Shape::Deployment | Shape::AppWrapper => {
                self.pods
            }
        }
    }

    /// The name of its kind in a file.
    pub fn kind(&self) -> &'static str {
        match self.shape {
            Shape::Job { indexed: true, .. } => "IndexedJob",
            Shape::Job { indexed: false, .. } => "Job",
            Shape::JobSet { .. } => "JobSet",
            Shape::StatefulSet { .. } => "StatefulSet",
            Shape::Deployment => "Deployment",
            Shape::AppWrapper => "AppWrapper",
        }
    }

    /// True if the progress of its pods accumulates, so that it is lost when they die.
    pub fn accumulates(&self) -> bool {
        match self.shape {
            Shape::Job { .. } | Shape::JobSet { .. } | Shape::AppWrapper => true,
            Shape::StatefulSet { .. } | Shape::Deployment => false,
        }
    }
}

pub(super) fn of_short_form(work: &file::Work) -> Vec<Workload> {
    let indexed = |parallelism| Shape::Job { indexed: true, parallelism, waits_for_the_end: true };
    let file::Work { training, database, website, batch, simulation, tuning } = *work;
    let mut all = vec![
        short("training", indexed(training), training, "3", Consent::Terminate),
        short(
            "database",
            Shape::StatefulSet { volume: Some("10Gi".to_owned()) },
            database,
            "1",
            Consent::Delete,
        ),
        short("website", Shape::Deployment, website, "500m", Consent::None),
        Workload {
            takes: Some(BATCH_TAKES),
            ..short("batch", indexed(batch.div_ceil(BATCH_TURNS)), batch, "1", Consent::Terminate)
        },
        // With the cluster's default toleration pods stay for five minutes; the AppWrapper is reset long before.
        Workload {
            tolerates: None,
            annotations: reset_timers(),
            ..short("simulation", Shape::AppWrapper, simulation, "500m", Consent::None)
        },
    ];
    let mut tuner = short("tuning", indexed(tuning), tuning, "4", Consent::Terminate);
    tuner.requests.insert(ACCELERATOR.to_owned(), "1".to_owned());
    tuner.pool = Some(GPU_POOL.to_owned());
    all.push(tuner);
    all.retain(|workload| workload.pods > 0);
    all
}

/// A reset waits for a minute for pods on unreachable nodes before it force-deletes them, and pauses for 15 seconds:
/// short, so that the story does not take long.
fn reset_timers() -> BTreeMap<String, String> {
    use salvor_api::names::appwrapper::annotations::{FORCEFUL_DELETION_GRACE_PERIOD, RETRY_PAUSE_PERIOD};
    [(FORCEFUL_DELETION_GRACE_PERIOD, "1m"), (RETRY_PAUSE_PERIOD, "15s")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn short(name: &str, shape: Shape, pods: u32, cpu: &str, consent: Consent) -> Workload {
    Workload {
        name: name.to_owned(),
        shape,
        pods,
        takes: None,
        checkpoint_every: None,
        start_delay: None,
        consent,
        evict_after: None,
        grace: GRACE,
        tolerates: Some(TOLERATED),
        requests: [("cpu".to_owned(), cpu.to_owned())].into(),
        pool: None,
        annotations: BTreeMap::new(),
        budget: None,
    }
}

/// The label by which pods select a pool: a pool with machines has Karpenter's.
pub(super) fn pool_label(has_machines: bool) -> &'static str {
    if has_machines { repair::labels::NODE_POOL } else { "pool" }
}
