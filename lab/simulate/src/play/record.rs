//! All that a report needs of a play, as plain data. Times are milliseconds after the beginning, when all work ran.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::scenario::{Consent, Fault, Incident};

pub type Millis = i64;

pub(crate) fn millis(from: Timestamp, to: Timestamp) -> Millis {
    to.as_millisecond() - from.as_millisecond()
}

pub(crate) fn span(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub seed: u64,
    pub policy: String,
    pub end: Millis,
    /// A kill is needless if the machine was back within this time.
    pub back_soon: Millis,
    pub workloads: Vec<WorkloadFacts>,
    pub incidents: Vec<IncidentRecord>,
    pub nodes: BTreeMap<String, NodeLife>,
    /// In order of creation.
    pub pods: Vec<PodLife>,
    /// What really ran, from the ground truth.
    pub runs: Vec<RunLife>,
    pub double_runs: Vec<DoubleRun>,
    /// When the operator found that a subject was due. The key is a subject, for example `pod default/a`.
    pub due: BTreeMap<String, Vec<Millis>>,
    pub calls: Calls,
    /// Writes of the operator, by action and result.
    pub writes: BTreeMap<String, u64>,
    pub held: Vec<Held>,
    pub stuck: Vec<Stuck>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFacts {
    pub name: String,
    pub kind: &'static str,
    /// The number of units of work.
    pub units: u32,
    /// The time that one pod needs.
    pub takes: Option<Millis>,
    /// The work of a pod is saved this often.
    pub checkpoint_every: Option<Millis>,
    /// True if progress accumulates, so that it is lost when a pod dies.
    pub accumulates: bool,
    pub consent: Consent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncidentRecord {
    pub at: Millis,
    /// When it was over.
    pub until: Option<Millis>,
    pub fault: Fault,
    pub nodes: Vec<String>,
    /// What failed, for display.
    pub named: String,
}

impl IncidentRecord {
    pub fn of(incident: &Incident) -> Self {
        let Incident { at, until, fault, nodes, named } = incident.clone();
        Self { at: span(at), until: until.map(span), fault, nodes, named }
    }
}

/// What the API reported about a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLife {
    pub zone: String,
    /// The periods in which it was marked unreachable.
    pub unreachable: Vec<(Millis, Option<Millis>)>,
    /// When it was declared out of service.
    pub out_of_service: Vec<Millis>,
    pub claim_deleted: Option<Millis>,
    pub added: Millis,
    pub removed: Option<Millis>,
}

/// What the API reported about a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLife {
    pub uid: String,
    pub name: String,
    /// The index of its workload.
    pub workload: usize,
    /// The unit of work that it does, which its replacement shares; `None` if all pods of the workload are
    /// interchangeable.
    pub unit: Option<String>,
    pub node: Option<String>,
    pub created: Millis,
    /// When it was assigned to a node.
    pub scheduled: Option<Millis>,
    /// When its deletion was requested.
    pub deleted: Option<Millis>,
    /// When its phase became Succeeded or Failed.
    pub over: Option<(Millis, Ended)>,
    pub removed: Option<Millis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Succeeded,
    Failed,
}

/// One run of a pod's container, from the ground truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLife {
    /// The index of its pod.
    pub pod: usize,
    pub node: String,
    pub from: Millis,
    /// When it ended, with the exit code.
    pub ended: Option<(Millis, i32)>,
}

/// The same work in two pods at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoubleRun {
    pub workload: String,
    /// True if both could write to the same volume.
    pub volume: bool,
    /// True if the owner has opted in to double runs.
    pub consented: bool,
    /// The pod that ran first, with its node.
    pub first: String,
    /// The pod that ran beside it, with its node.
    pub second: String,
    /// Milliseconds after the beginning.
    pub since: Millis,
    pub lasted: Millis,
    /// The node of the pod that ran first.
    #[serde(skip)]
    pub(crate) node: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    pub reads: u64,
    pub watches: u64,
    pub writes: u64,
}

impl Calls {
    pub fn all(&self) -> u64 {
        self.reads + self.watches + self.writes
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            watches: self.watches - before.watches,
            writes: self.writes - before.writes,
        }
    }
}

/// What a limit blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub recovery: String,
    pub by: String,
    pub times: u64,
    /// The number of pods, nodes or AppWrappers of that recovery that any limit blocked.
    pub subjects: u64,
}

/// Something that does not come back, as `salvor why` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stuck {
    /// The code of its root cause.
    pub code: String,
    /// Milliseconds after the beginning.
    pub since: Option<Millis>,
    /// The cause as a sentence.
    pub message: String,
    /// The workloads, with what each is missing.
    pub workloads: Vec<String>,
    /// When they would be back, or on what that depends.
    pub expected_back: Option<String>,
    pub remedy: Option<String>,
}
