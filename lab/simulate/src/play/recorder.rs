//! Records what happens to pods and nodes, change by change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use salvor_api::names::{job, taints};
use salvor_apiserver::{Change, ChangeKind};
use salvor_nodes::{GroundTruth, Work};
use serde::Deserialize;

use super::record::{
    DoubleRun, Ended, Millis, NodeLife, PodLife, Record, RunLife, WorkloadFacts, millis, span,
};
use crate::scenario::{Consent, Scenario};

/// The fields of an object that are recorded. Skipping all others saves most of the parsing time.
#[derive(Deserialize)]
struct Seen {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<Owner>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct Owner {
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    taints: Vec<Taint>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

/// A node with the times of its marks, as the clock showed them.
#[derive(Debug, Default)]
struct NodeNotes {
    zone: String,
    unreachable: Vec<(Timestamp, Option<Timestamp>)>,
    out_of_service: Vec<Timestamp>,
    is_out_of_service: bool,
    claim_deleted: Option<Timestamp>,
    added: Timestamp,
    removed: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct Notes {
    workloads: BTreeMap<String, usize>,
    nodes: BTreeMap<String, NodeNotes>,
    pods: Vec<PodNotes>,
    by_uid: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct PodNotes {
    life: PodLife,
    created: Timestamp,
    scheduled: Option<Timestamp>,
    deleted: Option<Timestamp>,
    over: Option<(Timestamp, Ended)>,
    removed: Option<Timestamp>,
}

/// The notes of one play, on a cluster in memory or a real one. Clones share them.
#[derive(Clone, Debug)]
pub struct Recorder {
    notes: Arc<Mutex<Notes>>,
    workloads: Vec<WorkloadFacts>,
    back_soon: Millis,
}

impl Recorder {
    pub fn new(scenario: &Scenario) -> Self {
        let facts = scenario.workloads.iter().map(|it| WorkloadFacts {
            name: it.name.clone(),
            kind: it.kind(),
            units: it.units(),
            takes: it.takes.map(span),
            checkpoint_every: it.checkpoint_every.map(span),
            accumulates: it.accumulates(),
            consent: it.consent,
        });
        let workloads: Vec<WorkloadFacts> = facts.collect();
        let by_name = workloads.iter().enumerate().map(|(index, it)| (it.name.clone(), index)).collect();
        let notes = Notes { workloads: by_name, ..Notes::default() };
        Self { notes: Arc::new(Mutex::new(notes)), workloads, back_soon: span(scenario.back_soon) }
    }

    pub(super) fn see(&self, change: &Change<'_>) {
        self.note((change.group, change.resource), change.object, change.at, change.kind);
    }

    /// Records a change of an object, given as JSON. `of` is its group and resource.
    pub fn note(&self, of: (&str, &str), object: &[u8], at: Timestamp, kind: ChangeKind) {
        let note = match of {
            ("", "pods") => Notes::pod,
            ("", "nodes") => Notes::node,
            ("karpenter.sh", "nodeclaims") => Notes::claim,
            _ => return,
        };
        // The server stores only objects that it could parse itself.
        let Ok(seen) = serde_json::from_slice::<Seen>(object) else { return };
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        note(&mut notes, &seen, at, kind);
    }

    /// The record, without the parts that are known elsewhere.
    pub fn finish(&self, began: Timestamp, now: Timestamp, truth: &GroundTruth) -> Record {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |time: Timestamp| millis(began, time);
        let pods: Vec<PodLife> = notes
            .pods
            .iter()
            .map(|pod| PodLife {
                created: at(pod.created),
                scheduled: pod.scheduled.map(at),
                deleted: pod.deleted.map(at),
                over: pod.over.map(|(time, ended)| (at(time), ended)),
                removed: pod.removed.map(at),
                ..pod.life.clone()
            })
            .collect();
        let nodes = notes.nodes.iter().map(|(name, it)| {
            let life = NodeLife {
                zone: it.zone.clone(),
                unreachable: it.unreachable.iter().map(|(from, to)| (at(*from), to.map(at))).collect(),
                out_of_service: it.out_of_service.iter().map(|time| at(*time)).collect(),
                claim_deleted: it.claim_deleted.map(at),
                added: at(it.added),
                removed: it.removed.map(at),
            };
            (name.clone(), life)
        });
        let runs = truth.runs().into_iter().filter_map(|run| {
            let pod = *notes.by_uid.get(&run.pod_uid)?;
            let ended = run.ended.map(|(time, code)| (at(time), code));
            Some(RunLife { pod, node: run.node, from: at(run.from), ended })
        });
        let mut record = Record {
            end: at(now),
            back_soon: self.back_soon,
            workloads: self.workloads.clone(),
            nodes: nodes.collect(),
            runs: runs.collect(),
            pods,
            ..Record::default()
        };
        record.double_runs = self.double_runs(&record, truth, now);
        record
    }

    /// Finds the same unit of work in two pods at once. A unit is an index of a Job, also of a Job that was recreated
    /// under the same name, or an ordinal of a StatefulSet.
    fn double_runs(&self, record: &Record, truth: &GroundTruth, now: Timestamp) -> Vec<DoubleRun> {
        let mut units: BTreeMap<(usize, &str), BTreeMap<usize, Vec<Stretch>>> = BTreeMap::new();
        for run in &record.runs {
            let pod = &record.pods[run.pod];
            let Some(unit) = pod.unit.as_deref() else { continue };
            let to = run.ended.map_or(record.end, |(at, _)| at);
            units.entry((pod.workload, unit)).or_default().entry(run.pod).or_default().push((run.from, to));
        }
        let volumes: BTreeSet<(String, String)> = truth
            .overlaps(now)
            .into_iter()
            .filter(|overlap| matches!(overlap.work, Work::VolumeWriter { .. }))
            .map(|overlap| (overlap.first, overlap.second))
            .collect();
        let named = |pod: usize| {
            let PodLife { name, node, .. } = &record.pods[pod];
            format!("default/{name} on {}", node.as_deref().unwrap_or_default())
        };
        let mut all = Vec::new();
        for ((workload, _), pods) in &units {
            let mut pods: Vec<(usize, &Vec<Stretch>)> = pods.iter().map(|(pod, it)| (*pod, it)).collect();
            pods.sort_by_key(|(pod, stretches)| (stretches.iter().map(|(from, _)| *from).min(), *pod));
            for (position, (one, own)) in pods.iter().enumerate() {
                for (other, theirs) in &pods[position + 1..] {
                    let Some((since, lasted)) = in_common(own, theirs) else { continue };
                    let (first, second) = (named(*one), named(*other));
                    let facts = &self.workloads[*workload];
                    all.push(DoubleRun {
                        workload: facts.name.clone(),
                        volume: volumes.contains(&(first.clone(), second.clone())),
                        consented: facts.consent != Consent::None,
                        first,
                        second,
                        since,
                        lasted,
                        node: record.pods[*one].node.clone().unwrap_or_default(),
                    });
                }
            }
        }
        all.sort_by(|a, b| (&a.workload, &a.first, &a.second).cmp(&(&b.workload, &b.first, &b.second)));
        all
    }
}

/// The start and end of a run.
type Stretch = (Millis, Millis);

/// When two pods first ran at the same time, and for how long in total.
fn in_common(one: &[Stretch], other: &[Stretch]) -> Option<(Millis, Millis)> {
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    let shared: Vec<Stretch> = pairs.filter(|(from, to)| from < to).collect();
    let since = shared.iter().map(|(from, _)| *from).min()?;
    Some((since, shared.iter().map(|(from, to)| to - from).sum()))
}

impl Notes {
    fn pod(&mut self, seen: &Seen, at: Timestamp, kind: ChangeKind) {
        let Seen { metadata, spec, status } = seen;
        let known = self.by_uid.get(&metadata.uid).copied();
        let position = match known {
            Some(position) => position,
            None => {
                let app = metadata.labels.get("app").and_then(|app| self.workloads.get(app)).copied();
                let Some(workload) = app else { return };
                self.by_uid.insert(metadata.uid.clone(), self.pods.len());
                let (uid, name, unit) = (metadata.uid.clone(), metadata.name.clone(), unit(metadata));
                let life = PodLife { uid, name, workload, unit, ..PodLife::default() };
                self.pods.push(PodNotes {
                    life,
                    created: at,
                    scheduled: None,
                    deleted: None,
                    over: None,
                    removed: None,
                });
                self.pods.len() - 1
            }
        };
        let pod = &mut self.pods[position];
        if let (None, Some(node)) = (pod.scheduled, &spec.node_name) {
            pod.scheduled = Some(at);
            pod.life.node = Some(node.clone());
        }
        if pod.deleted.is_none() && (metadata.deletion_timestamp.is_some() || kind == ChangeKind::Removed) {
            pod.deleted = Some(at);
        }
        let ended = match status.phase.as_deref() {
            Some("Succeeded") => Some(Ended::Succeeded),
            Some("Failed") => Some(Ended::Failed),
            _ => None,
        };
        if let (None, Some(ended)) = (pod.over, ended) {
            pod.over = Some((at, ended));
        }
        if kind == ChangeKind::Removed {
            pod.removed = Some(at);
        }
    }

    fn node(&mut self, seen: &Seen, at: Timestamp, kind: ChangeKind) {
        let Seen { metadata, spec, .. } = seen;
        let node = self
            .nodes
            .entry(metadata.name.clone())
            .or_insert_with(|| NodeNotes { added: at, ..NodeNotes::default() });
        if let Some(zone) = metadata.labels.get("topology.kubernetes.io/zone") {
            node.zone.clone_from(zone);
        }
        let has = |key: &str| spec.taints.iter().any(|taint| taint.key == key);
        let is_gone = kind == ChangeKind::Removed;
        let was_unreachable = node.unreachable.last().is_some_and(|(_, to)| to.is_none());
        match (was_unreachable, has(taints::UNREACHABLE) && !is_gone) {
            (false, true) => node.unreachable.push((at, None)),
            (true, false) => {
                if let Some((_, to)) = node.unreachable.last_mut() {
                    *to = Some(at);
                }
            }
            (true, true) | (false, false) => {}
        }
        let is_out = has(taints::OUT_OF_SERVICE);
        if is_out && !node.is_out_of_service {
            node.out_of_service.push(at);
        }
        node.is_out_of_service = is_out;
        node.removed = is_gone.then_some(at);
    }

    /// NodeClaims of the simulated Karpenter have the names of their nodes.
    fn claim(&mut self, seen: &Seen, at: Timestamp, _: ChangeKind) {
        if seen.metadata.deletion_timestamp.is_some()
            && let Some(node) = self.nodes.get_mut(&seen.metadata.name)
        {
            node.claim_deleted.get_or_insert(at);
        }
    }
}

/// The unit of work of a pod: an index of a Job, or an ordinal of a StatefulSet.
fn unit(metadata: &Metadata) -> Option<String> {
    let index = metadata.labels.get(job::COMPLETION_INDEX);
    match index {
        Some(index) => {
            let job = metadata.labels.get("batch.kubernetes.io/job-name").map_or("", String::as_str);
            Some(format!("{job}/{index}"))
        }
        None => {
            let in_order = metadata.owner_references.iter().any(|owner| owner.kind == "StatefulSet");
            in_order.then(|| metadata.name.clone())
        }
    }
}
