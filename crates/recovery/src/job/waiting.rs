//! What each index of a Job waits for, from the same facts that [`decide`](super::decide()) uses.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::indexes::Indexes;
use super::job_end::JobEnd;
use super::memory::Memory;
use super::missing_pods::{MissingPods, free_indexes};
use super::policy::JobPolicy;
use super::read_back::ReadBack;
use super::reasons::JobWhy;
use super::tally::Tally;
use super::views::{CompletionMode, JobView, PodView};
use crate::ids::NodeName;
use crate::objects::PodPhase;

/// Indexes that wait for the same thing, or pods of a Job without indexes that do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The indexes, as a status writes them; none in a Job without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexes: Option<String>,
    #[serde(flatten)]
    pub waits_for: WaitsFor,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "waitsFor", rename_all_fields = "camelCase")]
pub enum WaitsFor {
    /// A pod that is being deleted must end: its replacement, or the end of the Job, comes after it.
    Termination { pod: String, node: Option<NodeName> },
    /// A pod must start; without a node it must first be scheduled.
    Start { pod: String, node: Option<NodeName> },
    /// The backoff after a failure.
    Backoff { until: Timestamp },
    /// The delay after the API refused a pod.
    Refusal { until: Timestamp },
    /// A pod is created now.
    Creation,
    /// Other indexes must make room: as many pods exist as are allowed.
    Turn,
    /// The owner must resume the Job.
    Resumption,
    /// Only for its pod, which runs.
    Work,
}

impl WaitsFor {
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Backoff { until } | Self::Refusal { until } => Some(*until),
            _ => None,
        }
    }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Termination { pod, node: Some(node) } => write!(f, "pod {pod} on node {node} to end"),
            Self::Termination { pod, node: None } => write!(f, "pod {pod} on no node to end"),
            Self::Start { pod, node: Some(node) } => write!(f, "pod {pod} on node {node} to start"),
            Self::Start { pod, node: None } => write!(f, "pod {pod} to be given a node"),
            Self::Backoff { .. } => f.write_str("its backoff"),
            Self::Refusal { .. } => f.write_str("a pause, because the API server refused a pod"),
            Self::Creation => f.write_str("its pod to be created"),
            Self::Turn => f.write_str("its turn: the Job runs as many pods as it may"),
            Self::Resumption => f.write_str("the Job to be resumed"),
            Self::Work => f.write_str("its work to be done"),
        }
    }
}

/// What each index of a Job waits for, lowest first; empty for a Job that is not ours, is blocked or has finished.
pub fn waiting(
    job: &JobView,
    pods: &[PodView],
    memory: &Memory,
    policy: &JobPolicy,
    now: Timestamp,
) -> Vec<Waiting> {
    let ours = policy.enabled && policy.manages(job.spec.managed_by.as_deref());
    let known = !matches!(job.spec.completion_mode, CompletionMode::Unknown(_));
    if !ours || !known || job.status.finished().is_some() {
        return Vec::new();
    }
    let Ok(read) = ReadBack::of(job, pods) else { return Vec::new() };
    let tally = Tally::of(job, &read, pods, memory, policy);
    let ends = JobEnd::of(&tally, now).or_else(|| JobEnd::by_completions(&tally)).is_some() || job.deleting;
    let mut all = Places::default();
    for pod in &tally.active {
        let starts = WaitsFor::Start { pod: pod.pod.name.clone(), node: pod.node.clone() };
        all.add(pod.index, if pod.phase == PodPhase::Pending { starts } else { WaitsFor::Work });
    }
    // Otherwise nothing waits for them: their places are already filled.
    if tally.only_failed || ends {
        for pod in &tally.terminating {
            let termination = WaitsFor::Termination { pod: pod.pod.name.clone(), node: pod.node.clone() };
            all.add(pod.index, termination);
        }
    }
    if !ends {
        all.add_those_without_pods(&tally, memory, policy, now);
    }
    all.into_waiting()
}

/// Indexes grouped by what they wait for; no indexes in a Job without.
#[derive(Default)]
struct Places(BTreeMap<WaitsFor, Vec<u32>>);

impl Places {
    fn add(&mut self, index: Option<u32>, waits_for: WaitsFor) {
        self.0.entry(waits_for).or_default().extend(index);
    }

    fn add_those_without_pods(
        &mut self,
        tally: &Tally<'_>,
        memory: &Memory,
        policy: &JobPolicy,
        now: Timestamp,
    ) {
        let spec = &tally.job.spec;
        let mut rest = if spec.is_indexed() { free_indexes(tally) } else { Indexes::NONE };
        let missing_pods =
            MissingPods::of(tally, memory, policy, now).filter(|missing_pods| missing_pods.room > 0);
        if let Some(MissingPods { pause, turns, .. }) = missing_pods {
            let waits_for = |rests_until: Option<Timestamp>| match (&pause, rests_until) {
                (Some((until, JobWhy::CreationRefused { .. })), _) => WaitsFor::Refusal { until: *until },
                (Some((until, _)), _) => WaitsFor::Backoff { until: *until },
                (None, Some(until)) if now < until => WaitsFor::Backoff { until },
                (None, _) => WaitsFor::Creation,
            };
            match turns {
                None => self.add(None, waits_for(None)),
                Some(turns) => {
                    rest = rest.minus(&turns.iter().map(|turn| turn.index).collect());
                    for turn in turns {
                        self.add(Some(turn.index), waits_for(turn.rests_until));
                    }
                }
            }
        }
        let none = if spec.suspend { WaitsFor::Resumption } else { WaitsFor::Turn };
        for index in rest.iter() {
            self.add(Some(index), none.clone());
        }
    }

    fn into_waiting(self) -> Vec<Waiting> {
        let mut places: Vec<(WaitsFor, Vec<u32>)> = self.0.into_iter().collect();
        places.sort_by_key(|(_, indexes)| indexes.iter().min().copied());
        let told = places.into_iter().map(|(waits_for, indexes)| {
            let indexes: Indexes = indexes.into_iter().collect();
            Waiting { indexes: (!indexes.is_empty()).then(|| indexes.to_string()), waits_for }
        });
        told.collect()
    }
}
