//! All that a report needs of a play, as plain data. Times are milliseconds after the beginning, when all work ran.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::scenario::{Consent, Fault, Incident};

/// Milliseconds.
pub type Millis = i64;

/// The time from one moment to another.
pub(crate) fn millis(from: Timestamp, to: Timestamp) -> Millis {
    to.as_millisecond() - from.as_millisecond()
}

/// A length of time.
pub(crate) fn span(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// A play.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The seed.
    pub seed: u64,
    /// The name of the policy.
    pub policy: String,
    /// When it ended.
    pub end: Millis,
    /// A kill is in vain if the machine was back within this time.
    pub back_soon: Millis,
    /// The work.
    pub workloads: Vec<WorkloadFacts>,
    /// What failed.
    pub incidents: Vec<IncidentRecord>,
    /// Every node, by name.
    pub nodes: BTreeMap<String, NodeLife>,
    /// Every pod, in the order of their creation.
    pub pods: Vec<PodLife>,
    /// What really ran.
    pub runs: Vec<RunLife>,
    /// The same work running twice.
    pub double_runs: Vec<DoubleRun>,
    /// By subject, such as `pod default/a`: when the operator found that it had something to do.
    pub due: BTreeMap<String, Vec<Millis>>,
    /// Requests of the operator.
    pub calls: Calls,
    /// Writes of the operator, by action and result.
    pub writes: BTreeMap<String, u64>,
    /// What limits held back.
    pub held: Vec<Held>,
    /// What is stuck at the end.
    pub stuck: Vec<Stuck>,
}

/// A workload, as far as a report needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadFacts {
    /// Its name.
    pub name: String,
    /// The name of its kind.
    pub kind: &'static str,
    /// The number of units of work.
    pub units: u32,
    /// The time that one pod needs.
    pub takes: Option<Millis>,
    /// The work of a pod is saved this often.
    pub checkpoint_every: Option<Millis>,
    /// True if its work adds up, so that it is lost when a pod dies.
    pub accumulates: bool,
    /// What its owner allows.
    pub consent: Consent,
}

/// A failure that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncidentRecord {
    /// When.
    pub at: Millis,
    /// When it was over.
    pub until: Option<Millis>,
    /// In which way.
    pub fault: Fault,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// What failed, in words.
    pub named: String,
}

impl IncidentRecord {
    /// Of a failure that was drawn.
    pub fn of(incident: &Incident) -> Self {
        let Incident { at, until, fault, nodes, named } = incident.clone();
        Self { at: span(at), until: until.map(span), fault, nodes, named }
    }
}

/// What the API said of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLife {
    /// Its zone.
    pub zone: String,
    /// When it was marked unreachable, and until when.
    pub unreachable: Vec<(Millis, Option<Millis>)>,
    /// When it was declared out of service.
    pub out_of_service: Vec<Millis>,
    /// When its NodeClaim was deleted.
    pub claim_deleted: Option<Millis>,
    /// When its object was created.
    pub added: Millis,
    /// When its object was removed.
    pub removed: Option<Millis>,
}

/// What the API said of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLife {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// The position of its workload.
    pub workload: usize,
    /// The unit of work that it does, which its replacement shares; none if all pods of the workload are alike.
    pub unit: Option<String>,
    /// Its node.
    pub node: Option<String>,
    /// When it was created.
    pub created: Millis,
    /// When it was given a node.
    pub scheduled: Option<Millis>,
    /// When somebody asked for its deletion.
    pub deleted: Option<Millis>,
    /// When its phase became Succeeded or Failed.
    pub over: Option<(Millis, Ended)>,
    /// When its object was removed.
    pub removed: Option<Millis>,
}

/// The way in which a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its work is done.
    Succeeded,
    /// Its work is not done.
    Failed,
}

/// One run of a pod's container, from the ground truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunLife {
    /// The position of its pod.
    pub pod: usize,
    /// The node that it ran on.
    pub node: String,
    /// When it started.
    pub from: Millis,
    /// When it ended, and with which exit code.
    pub ended: Option<(Millis, i32)>,
}

/// The same work in two pods at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoubleRun {
    /// The workload.
    pub workload: String,
    /// True if both could write to the same volume.
    pub volume: bool,
    /// True if its owner has opted in to that.
    pub consented: bool,
    /// The pod that ran first, and where.
    pub first: String,
    /// The pod that ran beside it, and where.
    pub second: String,
    /// Since when, in milliseconds after the beginning.
    pub since: Millis,
    /// For how long.
    pub lasted: Millis,
    /// The node of the pod that ran first.
    #[serde(skip)]
    pub(crate) node: String,
}

/// Requests of the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Reads of objects and lists.
    pub reads: u64,
    /// Watches that were opened.
    pub watches: u64,
    /// Writes.
    pub writes: u64,
}

impl Calls {
    /// All of them.
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

/// What a limit held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The recovery.
    pub recovery: String,
    /// The limit.
    pub by: String,
    /// How often.
    pub times: u64,
    /// Pods, nodes or AppWrappers of that recovery that any limit held back.
    pub subjects: u64,
}

/// Something that does not come back, in the words of `salvor why`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// Its root cause.
    pub code: String,
    /// Since when, in milliseconds after the beginning.
    pub since: Option<Millis>,
    /// The cause as a sentence.
    pub message: String,
    /// The workloads, with what is missing of each.
    pub workloads: Vec<String>,
    /// The first thing that can be done.
    pub remedy: Option<String>,
}
