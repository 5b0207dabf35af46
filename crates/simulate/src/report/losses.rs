//! Each piece of work that a failure hit, and how it came back.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Percentiles;
use crate::{
    play::{Ended, IncidentRecord, Millis, PodLife, Record},
    scenario::Fault,
};

/// A piece of work that ran on a node when the node failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The position of the failure.
    pub incident: usize,
    /// The position of the workload.
    pub workload: usize,
    /// The position of the pod.
    pub pod: usize,
    /// The end of it.
    pub outcome: Outcome,
}

/// How a piece of work came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Another pod does it.
    Replaced {
        /// The position of that pod.
        by: usize,
        /// The time until it ran.
        after: Millis,
        /// The same in phases.
        phases: Phases,
    },
    /// The machine came back, and the same pod went on.
    Resumed {
        /// The time until that.
        after: Millis,
    },
    /// It did not run again before the end.
    NotRecovered,
}

impl Outcome {
    /// The time to recovery.
    pub fn after(&self) -> Option<Millis> {
        match self {
            Self::Replaced { after, .. } | Self::Resumed { after } => Some(*after),
            Self::NotRecovered => None,
        }
    }
}

/// The way of a piece of work to another node, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Until the node was marked unreachable.
    pub detect: Millis,
    /// Until the deletion of the pod was asked for.
    pub evict: Millis,
    /// Until Salvor had something to do: grace periods and other waits of the rules.
    pub wait: Millis,
    /// Until the pod was over for its controller: limits that held Salvor back, and its writes.
    pub decide: Millis,
    /// Until the new pod was created.
    pub replace: Millis,
    /// Until it had a node.
    pub schedule: Millis,
    /// Until it ran: volumes, images and the kubelet.
    pub start: Millis,
}

impl Phases {
    /// The names of all phases, in order.
    pub const NAMES: [&'static str; 7] =
        ["detect", "evict", "wait", "decide", "replace", "schedule", "start"];

    /// All of them, in order.
    pub fn all(&self) -> [Millis; 7] {
        let Self { detect, evict, wait, decide, replace, schedule, start } = *self;
        [detect, evict, wait, decide, replace, schedule, start]
    }

    /// Of the moments at which each phase ended. One that is not known ended with the one before; none ends after `limits` says.
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

    /// The mean of each.
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

/// Percentiles of each phase. They are each phase's own, so they do not sum up to those of the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasePercentiles {
    /// The medians.
    pub p50: Phases,
    /// 90 of 100 took no longer.
    pub p90: Phases,
    /// 99 of 100 took no longer.
    pub p99: Phases,
    /// The longest.
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
                // Pods that are alike replace one each.
                taken.insert(by);
            }
            losses.push(Loss { incident: position, workload: record.pods[pod].workload, pod, outcome });
        }
    }
    losses
}

/// A slow kubelet keeps its pods running.
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

/// A record, by what is looked for.
struct Index<'a> {
    record: &'a Record,
    /// By node: runs.
    on_node: BTreeMap<&'a str, Vec<usize>>,
    /// By pod: runs, in order.
    of_pod: BTreeMap<usize, Vec<usize>>,
    /// By workload and unit: pods, in order of creation. Pods that are alike have no unit.
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

    /// Pods that ran on these nodes at this time, and that nobody had begun to delete.
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

/// When the same pod went on, or was found to be done.
fn resumed(index: &Index<'_>, incident: &IncidentRecord, pod: usize) -> Option<Millis> {
    let until = incident.until.filter(|until| *until <= index.record.end)?;
    let life = &index.record.pods[pod];
    let node = life.node.as_deref()?;
    // It was still marked when the failure was over: then it is back when the mark is gone.
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
    // Whoever asked for its deletion before that has given it up.
    let is_given_up = life.deleted.is_some_and(|deleted| deleted >= incident.at && deleted <= by);
    // It ended its work while nobody heard of it, or after its deletion was asked for. One that ends long after had resumed before.
    let mut own = index.runs(pod).filter(|run| run.from <= incident.at);
    let was_done = own.any(|run| matches!(run.ended, Some((at, 0)) if at >= incident.at && at <= by));
    if let Some((at, Ended::Succeeded)) =
        life.over.filter(|(at, _)| *at >= until && (was_done || is_given_up))
    {
        return Some(at);
    }
    let back = back?;
    // A failure that comes long after is another story.
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
    // A pod that is over need not be evicted.
    let deleted = [old.deleted, over].into_iter().flatten().filter(after).min();
    let since = deleted.unwrap_or(incident.at);
    let due = index
        .record
        .due
        .get(&format!("pod default/{}", old.name))
        .and_then(|times| times.iter().copied().find(|at| *at >= since));
    let created = new.created;
    // Without Salvor nobody decides: the controller acts as soon as the pod is over.
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
