//! Finds each unit of work that a failure hit, and how it came back.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Percentiles;
use crate::{
    play::{Ended, IncidentRecord, Millis, PodLife, Record},
    scenario::Fault,
};

/// A unit of work that ran on a node when the node failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    pub incident: usize,
    pub workload: usize,
    pub pod: usize,
    pub outcome: Outcome,
}

/// How a unit of work came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Another pod does it.
    Replaced {
        /// The index of that pod.
        by: usize,
        /// The time until it ran.
        after: Millis,
        phases: Phases,
    },
    /// The machine came back, and the same pod continued.
    Resumed {
        /// The time until it ran again.
        after: Millis,
    },
    /// It did not run again before the end.
    NotRecovered,
}

impl Outcome {
    pub fn after(&self) -> Option<Millis> {
        match self {
            Self::Replaced { after, .. } | Self::Resumed { after } => Some(*after),
            Self::NotRecovered => None,
        }
    }
}

/// How long each phase took on the way to another node, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Until the node was marked unreachable.
    pub detect: Millis,
    /// Until the deletion of the pod was requested.
    pub evict: Millis,
    /// Until Salvor had something to do: grace periods and other waits of the rules.
    pub wait: Millis,
    /// Until the pod was terminal for its controller: limits that blocked Salvor, and its writes.
    pub decide: Millis,
    /// Until the new pod was created.
    pub replace: Millis,
    /// Until it was scheduled.
    pub schedule: Millis,
    /// Until it ran: volumes, images and the kubelet.
    pub start: Millis,
}

impl Phases {
    /// The names of all phases, in order.
    pub const NAMES: [&'static str; 7] =
        ["detect", "evict", "wait", "decide", "replace", "schedule", "start"];

    pub fn all(&self) -> [Millis; 7] {
        let Self { detect, evict, wait, decide, replace, schedule, start } = *self;
        [detect, evict, wait, decide, replace, schedule, start]
    }

    /// Computes the phases from the moments at which they ended. A phase with an unknown end takes no time. Each moment
    /// is capped at its limit, the second value.
    fn between(began: Millis, moments: [(Option<Millis>, Millis); 7]) -> Self {
        let mut last = began;
        let [detect, evict, wait, decide, replace, schedule, start] = moments.map(|(moment, at_most)| {
            let ended = moment.unwrap_or(last).min(at_most).max(last);
            let took = ended - last;
            last = ended;
            took
        });
        Self { detect, evict, wait, decide, replace, schedule, start }
    }

    pub(super) fn mean<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sums = [0; 7];
        let mut count: Millis = 0;
        for phases in all {
            count += 1;
            sums.iter_mut().zip(phases.all()).for_each(|(sum, phase)| *sum += phase);
        }
        let [detect, evict, wait, decide, replace, schedule, start] = sums.map(|sum| sum / count.max(1));
        Self { detect, evict, wait, decide, replace, schedule, start }
    }
}

/// Percentiles of each phase by itself, so they do not add up to those of the total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasePercentiles {
    pub p50: Phases,
    pub p90: Phases,
    pub p99: Phases,
    pub max: Phases,
}

impl PhasePercentiles {
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a Phases>) -> Self {
        let all: Vec<[Millis; 7]> = all.map(Phases::all).collect();
        let each: [Percentiles; 7] =
            std::array::from_fn(|phase| Percentiles::of(all.iter().map(|phases| Some(phases[phase]))));
        let pick = |of: fn(&Percentiles) -> Option<Millis>| {
            let [detect, evict, wait, decide, replace, schedule, start] =
                each.each_ref().map(|it| of(it).unwrap_or_default());
            Phases { detect, evict, wait, decide, replace, schedule, start }
        };
        Self {
            p50: pick(|it| it.p50),
            p90: pick(|it| it.p90),
            p99: pick(|it| it.p99),
            max: pick(|it| it.max),
        }
    }
}

/// All losses, in the order of the failures.
pub(super) fn losses(record: &Record) -> Vec<Loss> {
    let index = Index::of(record);
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut losses = Vec::new();
    for (position, incident) in record.incidents.iter().enumerate() {
        if !is_loss(&incident.fault) || incident.at >= record.end {
            continue;
        }
        for pod in index.running_on(&incident.nodes, incident.at) {
            let outcome = outcome(&index, incident, pod, &taken);
            if let Outcome::Replaced { by, .. } = outcome
                && record.pods[by].unit.is_none()
            {
                // Each interchangeable pod replaces only one.
                taken.insert(by);
            }
            losses.push(Loss { incident: position, workload: record.pods[pod].workload, pod, outcome });
        }
    }
    losses
}

/// A slow kubelet keeps its pods running, so it causes no loss.
fn is_loss(fault: &Fault) -> bool {
    match fault {
        Fault::Slow(_) => false,
        Fault::Crash
        | Fault::Partition
        | Fault::KubeletStop
        | Fault::Flapping { .. }
        | Fault::Sick(_)
        | Fault::Reboot => true,
    }
}

/// Lookup tables for a record.
struct Index<'a> {
    record: &'a Record,
    /// Runs by node.
    on_node: BTreeMap<&'a str, Vec<usize>>,
    /// Runs by pod, in order.
    of_pod: BTreeMap<usize, Vec<usize>>,
    /// Pods by workload and unit, in order of creation. Interchangeable pods have no unit.
    of_unit: BTreeMap<(usize, Option<&'a str>), Vec<usize>>,
}

impl<'a> Index<'a> {
    fn of(record: &'a Record) -> Self {
        let (mut on_node, mut of_pod, mut of_unit) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (position, run) in record.runs.iter().enumerate() {
            on_node.entry(run.node.as_str()).or_insert_with(Vec::new).push(position);
            of_pod.entry(run.pod).or_insert_with(Vec::new).push(position);
        }
        for (position, pod) in record.pods.iter().enumerate() {
            of_unit.entry((pod.workload, pod.unit.as_deref())).or_insert_with(Vec::new).push(position);
        }
        Self { record, on_node, of_pod, of_unit }
    }

    /// Pods that ran on these nodes at this time and were not being deleted.
    fn running_on(&self, nodes: &[String], at: Millis) -> BTreeSet<usize> {
        let runs = nodes.iter().flat_map(|node| self.on_node.get(node.as_str()).into_iter().flatten());
        runs.map(|run| &self.record.runs[*run])
            .filter(|run| run.from <= at && run.ended.is_none_or(|(ended, _)| ended >= at))
            .map(|run| run.pod)
            .filter(|pod| {
                let PodLife { deleted, over, .. } = &self.record.pods[*pod];
                deleted.is_none_or(|deleted| deleted >= at) && over.is_none_or(|(over, _)| over >= at)
            })
            .collect()
    }

    fn runs(&self, pod: usize) -> impl Iterator<Item = &crate::play::RunLife> {
        self.of_pod.get(&pod).into_iter().flatten().map(|run| &self.record.runs[*run])
    }
}

fn outcome(index: &Index<'_>, incident: &IncidentRecord, pod: usize, taken: &BTreeSet<usize>) -> Outcome {
    let resumed = resumed(index, incident, pod);
    let replaced = replaced(index, incident, pod, taken);
    match (resumed, replaced) {
        (Some(at), Some((_, ran))) if at <= ran => Outcome::Resumed { after: at - incident.at },
        (_, Some((by, ran))) => {
            let phases = phases(index, incident, pod, by, ran);
            Outcome::Replaced { by, after: ran - incident.at, phases }
        }
        (Some(at), None) => Outcome::Resumed { after: at - incident.at },
        (None, None) => Outcome::NotRecovered,
    }
}

/// When the same pod continued, or was found to be done.
fn resumed(index: &Index<'_>, incident: &IncidentRecord, pod: usize) -> Option<Millis> {
    let until = incident.until.filter(|until| *until <= index.record.end)?;
    let life = &index.record.pods[pod];
    let node = life.node.as_deref()?;
    // If the node was still marked unreachable when the failure ended, it is back when the mark is removed.
    let heard = index.record.nodes.get(node).and_then(|it| {
        let mut marks = it.unreachable.iter();
        marks.find(|(from, to)| *from >= incident.at && *from < until && to.is_none_or(|to| to >= until))
    });
    let back = match heard {
        Some((_, Some(to))) => Some((*to).max(until)),
        Some((_, None)) => None,
        None => Some(until),
    };
    let by = back.unwrap_or(index.record.end);
    // A deletion request before that means that the pod was given up.
    let is_given_up = life.deleted.is_some_and(|deleted| deleted >= incident.at && deleted <= by);
    // It finished its work while the node was unreachable, or after its deletion was requested. One that ends long
    // after had resumed before.
    let mut own = index.runs(pod).filter(|run| run.from <= incident.at);
    let was_done = own.any(|run| matches!(run.ended, Some((at, 0)) if at >= incident.at && at <= by));
    if let Some((at, Ended::Succeeded)) =
        life.over.filter(|(at, _)| *at >= until && (was_done || is_given_up))
    {
        return Some(at);
    }
    let back = back?;
    // A failure of the pod long after that is unrelated.
    let has_failed = life.over.is_some_and(|(at, ended)| ended == Ended::Failed && at <= back);
    if is_given_up || has_failed {
        return None;
    }
    // A restart ends the run at the very moment at which the failure is over.
    let ran_on =
        index.runs(pod).any(|run| run.from <= incident.at && run.ended.is_none_or(|(at, _)| at > back));
    if ran_on {
        return Some(back);
    }
    index.runs(pod).map(|run| run.from).find(|from| *from >= until)
}

/// The pod that does the work now, and since when.
fn replaced(
    index: &Index<'_>,
    incident: &IncidentRecord,
    pod: usize,
    taken: &BTreeSet<usize>,
) -> Option<(usize, Millis)> {
    let life = &index.record.pods[pod];
    let alike = index.of_unit.get(&(life.workload, life.unit.as_deref()))?;
    let later = alike.iter().copied().filter(|it| {
        *it != pod
            && !taken.contains(it)
            && index.record.pods[*it].created >= incident.at.min(life.deleted.unwrap_or(incident.at))
    });
    let started = later.filter_map(|it| {
        index.runs(it).map(|run| run.from).find(|from| *from >= incident.at).map(|from| (it, from))
    });
    started.min_by_key(|(_, from)| *from)
}

fn phases(index: &Index<'_>, incident: &IncidentRecord, pod: usize, by: usize, ran: Millis) -> Phases {
    let (old, new) = (&index.record.pods[pod], &index.record.pods[by]);
    let marked = old.node.as_deref().and_then(|node| index.record.nodes.get(node)).and_then(|node| {
        let unreachable = node.unreachable.iter().map(|(from, _)| *from);
        unreachable.chain(node.claim_deleted).filter(|from| *from >= incident.at).min()
    });
    let after = |at: &Millis| *at >= incident.at;
    let over = [old.over.map(|(at, _)| at), old.removed].into_iter().flatten().filter(after).min();
    // A terminal pod need not be evicted.
    let deleted = [old.deleted, over].into_iter().flatten().filter(after).min();
    let since = deleted.unwrap_or(incident.at);
    let due = index
        .record
        .due
        .get(&format!("pod default/{}", old.name))
        .and_then(|times| times.iter().copied().find(|at| *at >= since));
    let created = new.created;
    // Without Salvor there is no decision: the controller acts as soon as the pod is terminal.
    let due = due.or(over);
    Phases::between(
        incident.at,
        [
            (marked, deleted.unwrap_or(created).min(created)),
            (deleted, created),
            (due, created),
            (over, created),
            (Some(created), ran),
            (new.scheduled, ran),
            (Some(ran), ran),
        ],
    )
}
