//! Decides where a Job lacks pods, and what delays them.

use jiff::Timestamp;

use super::backoff::index_over_at;
use super::indexes::Indexes;
use super::memory::Memory;
use super::policy::JobPolicy;
use super::reasons::JobWhy;
use super::tally::Tally;

pub(super) struct MissingPods {
    /// The number that may be created; zero if pods that are still terminating occupy all places.
    pub(super) room: usize,
    /// The delay that applies to all of them: until when, and why.
    pub(super) pause: Option<(Timestamp, JobWhy)>,
    /// The indexes that get them, in an Indexed Job.
    pub(super) turns: Option<Vec<Turn>>,
}

/// An index that should get a pod.
pub(super) struct Turn {
    pub(super) index: u32,
    /// Under `backoffLimitPerIndex`: until when the index backs off because its last pod failed.
    pub(super) rests_until: Option<Timestamp>,
}

impl MissingPods {
    /// None if the Job has all the pods that it wants.
    pub(super) fn of(tally: &Tally<'_>, memory: &Memory, policy: &JobPolicy, now: Timestamp) -> Option<Self> {
        let spec = &tally.job.spec;
        let wanted = if spec.suspend { 0 } else { usize::try_from(wanted(tally)).unwrap_or(usize::MAX) };
        let missing = wanted.checked_sub(tally.active.len()).filter(|missing| *missing > 0)?;
        // This is all of KEP-3939: under `Failed` a pod that is still terminating keeps its place.
        let held = if tally.only_failed { tally.terminating.len() } else { 0 };
        let room = missing.saturating_sub(held).min(policy.max_pods_at_once);
        let pause = memory.creation_paused_until.map(|until| (until, JobWhy::CreationRefused { until }));
        let backoff = tally.backoff.over_at(policy).filter(|_| spec.backoff_limit_per_index.is_none());
        let backoff = backoff.map(|until| (until, JobWhy::BackingOff { until }));
        let pauses = [pause, backoff].into_iter().flatten().filter(|(until, _)| now < *until);
        let pause = pauses.max_by_key(|(until, _)| *until);
        // The lowest indexes first, even if they have to wait: as in the built-in controller, later ones wait with
        // them.
        let turn = |index| Turn {
            index,
            rests_until: tally
                .awaiting_replacement
                .get(&index)
                .filter(|pod| !tally.is_spared(pod))
                .map(|pod| index_over_at(pod, policy)),
        };
        let turns = spec.is_indexed().then(|| match room {
            0 => Vec::new(),
            room => free_indexes(tally).iter().take(room).map(turn).collect(),
        });
        Some(Self { room, pause, turns })
    }
}

/// The number of pods that should be active now.
pub(super) fn wanted(tally: &Tally<'_>) -> u32 {
    let parallelism = tally.job.spec.parallelism();
    match tally.job.spec.completions() {
        Some(completions) => completions.saturating_sub(tally.succeeded).min(parallelism),
        None if tally.succeeded > 0 => u32::try_from(tally.active.len()).unwrap_or(u32::MAX),
        None => parallelism,
    }
}

/// Indexes that have no pod, need one, and may have it.
pub(super) fn free_indexes(tally: &Tally<'_>) -> Indexes {
    let mut free = Indexes::below(tally.job.spec.index_bound())
        .minus(&tally.completed_indexes)
        .minus(&tally.active_indexes())
        .minus(&tally.failed_indexes);
    if tally.only_failed {
        free = free.minus(&tally.terminating_indexes());
    }
    free
}
