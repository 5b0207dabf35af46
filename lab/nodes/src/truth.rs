//! The ground truth: what really ran, where, from when to when. No API object shows this.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

/// A unit of work that runs may share. Two pods that do the same work at once are the damage that Salvor must not
/// cause.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// One completion index of an Indexed Job.
    JobIndex {
        /// UID of the Job.
        job: String,
        index: u32,
    },
    /// Any pod of a Job without indexes; its pods are interchangeable and meant to run side by side.
    Job {
        /// UID of the Job.
        job: String,
    },
    /// One ordinal of a StatefulSet.
    Ordinal {
        /// UID of the StatefulSet.
        set: String,
        /// Name of the pod, which contains its ordinal.
        pod: String,
    },
    /// The right to write to a volume that one node at a time may mount.
    VolumeWriter {
        /// Namespace and name of the claim.
        claim: String,
    },
    /// A pod that shares its work with no other.
    Pod {
        /// UID of the pod.
        uid: String,
    },
}

impl Work {
    /// True if this work must never run in two pods at once.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Self::JobIndex { .. } | Self::Ordinal { .. } | Self::VolumeWriter { .. })
    }
}

/// One run of one container: from its start to its real end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub node: String,
    pub namespace: String,
    pub pod: String,
    pub pod_uid: String,
    pub container: String,
    pub work: Vec<Work>,
    pub from: Timestamp,
    /// When it really ended, and with which exit code; `None` while it runs.
    pub ended: Option<(Timestamp, i32)>,
}

/// Two pods that did the same exclusive work at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub work: Work,
    /// The pod that ran first, as namespace/name on node.
    pub first: String,
    /// The pod that ran beside it.
    pub second: String,
    /// How long both ran.
    pub lasted: SignedDuration,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.lasted.as_secs_f64();
        let Self { work, first, second, .. } = self;
        write!(f, "{work:?} ran twice for {seconds:.1} s: {first} and {second}")
    }
}

/// Handle of one run in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunId(usize);

#[derive(Debug, Default)]
struct Log {
    runs: Vec<Run>,
    failures: BTreeMap<(Work, String), u32>,
}

/// The log of all runs; clones share it.
#[derive(Clone, Debug, Default)]
pub struct GroundTruth(Arc<Mutex<Log>>);

impl GroundTruth {
    pub(crate) fn begin(&self, run: Run) -> RunId {
        let mut log = self.log();
        log.runs.push(run);
        RunId(log.runs.len() - 1)
    }

    pub(crate) fn end(&self, id: RunId, at: Timestamp, exit_code: i32) {
        let mut log = self.log();
        let run = &mut log.runs[id.0];
        run.ended = Some((at.max(run.from), exit_code));
        if exit_code != 0 {
            let keys: Vec<_> = run.work.iter().map(|w| (w.clone(), run.container.clone())).collect();
            for key in keys {
                *log.failures.entry(key).or_default() += 1;
            }
        }
    }

    /// The number of failures of this container at this work so far.
    pub(crate) fn failures(&self, work: &[Work], container: &str) -> u32 {
        let log = self.log();
        let of = |w: &Work| log.failures.get(&(w.clone(), container.to_owned())).copied();
        work.iter().filter_map(of).max().unwrap_or(0)
    }

    /// The work of this container that was saved before `at`, if it is saved at this interval and each run continues
    /// from the last save.
    pub(crate) fn saved(&self, work: &[Work], container: &str, every: Duration, at: Timestamp) -> Duration {
        let Some(work) = work.iter().find(|work| work.is_exclusive()) else {
            return self.left_behind(work, container, every, at);
        };
        let log = self.log();
        let own = log.runs.iter().filter(|run| run.container == container && run.work.contains(work));
        let mut runs: Vec<(Timestamp, Option<Timestamp>)> =
            own.map(|run| (run.from, run.ended.map(|(ended, _)| ended))).collect();
        runs.sort_unstable();
        let mut begun: Vec<(Timestamp, Option<Timestamp>, Duration)> = Vec::with_capacity(runs.len());
        let saved_at = |begun: &[(Timestamp, Option<Timestamp>, Duration)], at: Timestamp| {
            let each = begun.iter().map(|(from, ended, first)| {
                let ran = ended.unwrap_or(at).min(at).duration_since(*from);
                let ran = Duration::try_from(ran).unwrap_or_default();
                let periods = u32::try_from(ran.as_millis() / every.as_millis().max(1)).unwrap_or(u32::MAX);
                *first + every.saturating_mul(periods)
            });
            each.max().unwrap_or_default()
        };
        for (from, ended) in runs {
            let first = saved_at(&begun, from);
            begun.push((from, ended, first));
        }
        saved_at(&begun, at)
    }

    /// Like `saved`, for interchangeable pods: each start takes over the most that a dead pod has saved and that no
    /// other start took over.
    fn left_behind(&self, work: &[Work], container: &str, every: Duration, at: Timestamp) -> Duration {
        let Some(work) = work.iter().find(|work| matches!(work, Work::Job { .. })) else {
            return Duration::ZERO;
        };
        let log = self.log();
        let own = log.runs.iter().filter(|run| run.container == container && run.work.contains(work));
        let mut starts: Vec<(Timestamp, Option<(Timestamp, i32)>)> =
            own.map(|run| (run.from, run.ended)).collect();
        starts.sort_unstable();
        let mut dead: Vec<(Timestamp, Duration)> = Vec::new();
        let take_over = |dead: &mut Vec<(Timestamp, Duration)>, at: Timestamp| {
            let left = dead.iter().enumerate().filter(|(_, (ended, _))| *ended <= at);
            let most = left.max_by_key(|(_, (_, saved))| *saved).map(|(position, _)| position);
            most.map_or(Duration::ZERO, |position| dead.swap_remove(position).1)
        };
        for (from, ended) in starts {
            let first = take_over(&mut dead, from);
            if let Some((ended, code)) = ended
                && code != 0
            {
                let ran = Duration::try_from(ended.duration_since(from)).unwrap_or_default();
                let periods = u32::try_from(ran.as_millis() / every.as_millis().max(1)).unwrap_or(u32::MAX);
                dead.push((ended, first + every.saturating_mul(periods)));
            }
        }
        take_over(&mut dead, at)
    }

    /// Every run so far, in the order in which they were recorded.
    pub fn runs(&self) -> Vec<Run> {
        self.log().runs.clone()
    }

    /// The runs that have not ended.
    pub fn running(&self) -> Vec<Run> {
        self.log().runs.iter().filter(|r| r.ended.is_none()).cloned().collect()
    }

    /// Every pair of pods that did the same exclusive work at the same time, as of `now`.
    pub fn overlaps(&self, now: Timestamp) -> Vec<Overlap> {
        let log = self.log();
        let mut by_work: BTreeMap<&Work, BTreeMap<&str, Spell>> = BTreeMap::new();
        for run in &log.runs {
            let to = run.ended.map_or(now, |(at, _)| at);
            for work in run.work.iter().filter(|w| w.is_exclusive()) {
                by_work
                    .entry(work)
                    .or_default()
                    .entry(&run.pod_uid)
                    .and_modify(|spell| spell.include(run.from, to))
                    .or_insert_with(|| Spell::new(run, to));
            }
        }
        let mut overlaps = Vec::new();
        for (work, pods) in by_work {
            let pods: Vec<_> = pods.into_values().collect();
            for (i, a) in pods.iter().enumerate() {
                for b in &pods[i + 1..] {
                    let lasted = a.common(b);
                    if lasted.is_positive() {
                        let (first, second) = if a.from() <= b.from() { (a, b) } else { (b, a) };
                        overlaps.push(Overlap {
                            work: work.clone(),
                            first: first.pod.clone(),
                            second: second.pod.clone(),
                            lasted,
                        });
                    }
                }
            }
        }
        overlaps
    }

    /// How long, in total, exclusive work ran in two pods at once.
    pub fn ran_twice(&self, now: Timestamp) -> SignedDuration {
        self.overlaps(now).iter().map(|o| o.lasted).fold(SignedDuration::ZERO, |a, b| a + b)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A panic elsewhere cannot leave the log half written: every change is one push or one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The periods in which one pod had a container running, as disjoint intervals in order.
struct Spell {
    pod: String,
    stretches: Vec<(Timestamp, Timestamp)>,
}

impl Spell {
    fn new(run: &Run, to: Timestamp) -> Self {
        Self {
            pod: format!("{}/{} on {}", run.namespace, run.pod, run.node),
            stretches: vec![(run.from, to)],
        }
    }

    fn include(&mut self, from: Timestamp, to: Timestamp) {
        self.stretches.push((from, to));
        self.stretches.sort_unstable();
        let mut merged: Vec<(Timestamp, Timestamp)> = Vec::with_capacity(self.stretches.len());
        for (from, to) in self.stretches.drain(..) {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        self.stretches = merged;
    }

    fn from(&self) -> Timestamp {
        self.stretches[0].0
    }

    fn common(&self, other: &Self) -> SignedDuration {
        let mut sum = SignedDuration::ZERO;
        for &(a_from, a_to) in &self.stretches {
            for &(b_from, b_to) in &other.stretches {
                let shared = a_to.min(b_to).duration_since(a_from.max(b_from));
                if shared.is_positive() {
                    sum += shared;
                }
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(pod: &str, container: &str, index: u32, from: i64) -> Run {
        Run {
            node: format!("node-of-{pod}"),
            namespace: "ns".into(),
            pod: pod.into(),
            pod_uid: pod.into(),
            container: container.into(),
            work: vec![Work::JobIndex { job: "job".into(), index }],
            from: at(from),
            ended: None,
        }
    }

    #[test]
    fn the_same_index_in_two_pods_overlaps_for_the_common_seconds() {
        let truth = GroundTruth::default();
        let a = truth.begin(run("a", "main", 0, 0));
        truth.end(a, at(10), 0);
        truth.begin(run("b", "main", 0, 7));
        assert_eq!(truth.ran_twice(at(100)), SignedDuration::from_secs(3));
        let overlap = &truth.overlaps(at(100))[0];
        assert_eq!(overlap.first, "ns/a on node-of-a");
        assert!(overlap.to_string().contains("3.0 s"), "{overlap}");
    }

    #[test]
    fn work_is_saved_in_whole_periods_and_the_next_run_goes_on_from_there() {
        let truth = GroundTruth::default();
        let work = [Work::JobIndex { job: "job".into(), index: 0 }];
        let saved = |second: i64| truth.saved(&work, "main", Duration::from_secs(10), at(second)).as_secs();
        assert_eq!(saved(5), 0);
        let a = truth.begin(run("a", "main", 0, 0));
        assert_eq!((saved(9), saved(10), saved(25)), (0, 10, 20));
        truth.end(a, at(25), 137);
        truth.begin(run("b", "main", 0, 40));
        assert_eq!((saved(45), saved(50), saved(75)), (20, 30, 50));
        truth.begin(run("other", "main", 1, 0));
        assert_eq!(saved(75), 50, "another index saves its own");
    }

    #[test]
    fn a_pod_that_is_like_a_dead_one_goes_on_from_what_that_has_saved() {
        let truth = GroundTruth::default();
        let work = [Work::Job { job: "job".into() }];
        let alike = |pod: &str, from: i64| Run { work: work.to_vec(), ..run(pod, "main", 0, from) };
        let saved = |second: i64| truth.saved(&work, "main", Duration::from_secs(10), at(second)).as_secs();
        let (a, b) = (truth.begin(alike("a", 0)), truth.begin(alike("b", 0)));
        assert_eq!(saved(25), 0, "both still run");
        truth.end(a, at(25), 137);
        truth.end(b, at(30), 0);
        assert_eq!((saved(24), saved(31)), (0, 20), "what is done is left to nobody");
        truth.begin(alike("c", 40));
        assert_eq!(saved(41), 0, "it is taken over once");
    }

    #[test]
    fn containers_of_one_pod_and_other_indexes_do_not_overlap() {
        let truth = GroundTruth::default();
        truth.begin(run("a", "main", 0, 0));
        truth.begin(run("a", "side", 0, 0));
        truth.begin(run("b", "main", 1, 0));
        assert_eq!(truth.overlaps(at(50)), []);
    }

    #[test]
    fn two_containers_at_once_count_their_pod_once() {
        let truth = GroundTruth::default();
        truth.begin(run("a", "main", 0, 0));
        truth.begin(run("a", "side", 0, 2));
        truth.begin(run("b", "main", 0, 5));
        assert_eq!(truth.ran_twice(at(9)), SignedDuration::from_secs(4));
    }

    #[test]
    fn a_restart_after_the_other_ended_is_no_overlap() {
        let truth = GroundTruth::default();
        let a = truth.begin(run("a", "main", 0, 0));
        truth.end(a, at(5), 137);
        truth.begin(run("b", "main", 0, 5));
        assert_eq!(truth.overlaps(at(50)), []);
        assert_eq!(truth.failures(&[Work::JobIndex { job: "job".into(), index: 0 }], "main"), 1);
    }

    #[test]
    fn interchangeable_work_may_run_side_by_side() {
        let truth = GroundTruth::default();
        for pod in ["a", "b"] {
            let work = vec![Work::Job { job: "job".into() }];
            truth.begin(Run { work, ..run(pod, "main", 0, 0) });
        }
        assert_eq!(truth.overlaps(at(50)), []);
    }
}
