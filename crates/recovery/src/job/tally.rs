//! Decides what each pod means for its Job now, and adds up the totals.

use std::collections::{BTreeMap, BTreeSet};

use salvor_api::config::DisruptedPods;
use salvor_api::names::conditions::DISRUPTION_TARGET;
use salvor_api::names::job::conditions::{FAILURE_TARGET, SUCCESS_CRITERIA_MET};

use super::backoff::BackoffRecord;
use super::failure_policy::{self, Matched};
use super::indexes::Indexes;
use super::memory::Memory;
use super::notes::why_held;
use super::policy::JobPolicy;
use super::read_back::ReadBack;
use super::record;
use super::views::{FailureAction, IndexFailures, JobView, PodReplacementPolicy, PodView, Uncounted, count};
use crate::objects::PodPhase;

pub(super) struct Tally<'a> {
    pub(super) job: &'a JobView,
    pub(super) pods: &'a [PodView],
    /// True if a pod is replaced only once it has failed.
    pub(super) only_failed: bool,
    /// True if failures by disruption do not count.
    ignores_disrupted: bool,
    /// Neither ended nor being deleted.
    pub(super) active: Vec<&'a PodView>,
    /// Being deleted and not ended yet.
    pub(super) terminating: Vec<&'a PodView>,
    /// Successes: counted, listed in the status, or seen on pods. In an Indexed Job, the number of indexes.
    pub(super) succeeded: u32,
    /// Failures: counted, listed in the status, or seen on pods.
    pub(super) failed: u32,
    pub(super) completed_indexes: Indexes,
    /// Indexes that failed for good, under `backoffLimitPerIndex`.
    pub(super) failed_indexes: Indexes,
    /// Under `backoffLimitPerIndex`: the last failed pod of every index that waits for a replacement. It keeps its
    /// finalizer until then, because only its annotations record how often its index failed.
    pub(super) awaiting_replacement: BTreeMap<u32, &'a PodView>,
    /// Failures since the last success.
    pub(super) backoff: BackoffRecord,
}

/// How a pod with our finalizer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Not known yet.
    Open,
    Succeeded,
    Failed,
    /// Does not count.
    Dropped,
}

/// How a Job ends once that is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Success,
    Failure,
}

impl<'a> Tally<'a> {
    pub(super) fn of(
        job: &'a JobView,
        read: &ReadBack,
        pods: &'a [PodView],
        memory: &Memory,
        policy: &JobPolicy,
    ) -> Self {
        let none = Uncounted::default();
        let written = job.status.uncounted_terminated_pods.as_ref().unwrap_or(&none);
        let mut tally = Self {
            job,
            pods,
            only_failed: replaces_only_failed(job, policy),
            ignores_disrupted: policy.disrupted_pods == DisruptedPods::Ignore,
            active: Vec::new(),
            terminating: Vec::new(),
            succeeded: count(job.status.succeeded),
            failed: count(job.status.failed),
            completed_indexes: read.completed.clone(),
            failed_indexes: read.failed.clone(),
            awaiting_replacement: BTreeMap::new(),
            backoff: memory.backoff.clone(),
        };
        tally.failed = tally.failed.saturating_add(len(written.failed.len()));
        tally.succeeded = tally.succeeded.saturating_add(len(written.succeeded.len()));
        let (mut completed, mut failed) = (Vec::new(), Vec::new());
        for pod in pods {
            match (pod.phase.is_terminal(), pod.deletion) {
                (false, None) => tally.active.push(pod),
                (false, Some(_)) => tally.terminating.push(pod),
                (true, _) => {}
            }
            if !pod.is_tracked() || written.contains(&pod.pod.uid) || !tally.has_a_place(pod) {
                continue;
            }
            if pod.phase == PodPhase::Succeeded {
                tally.backoff.succeeded(pod);
                tally.succeeded = tally.succeeded.saturating_add(1);
                completed.extend(pod.index.filter(|_| job.spec.is_indexed()));
            } else if tally.is_failed(pod) {
                if !tally.is_spared(pod) {
                    tally.backoff.failed(pod);
                }
                if !tally.is_ignored(pod) {
                    tally.failed = tally.failed.saturating_add(1);
                }
                failed.push(pod);
            }
        }
        if job.spec.is_indexed() {
            tally.completed_indexes = tally.completed_indexes.union(&completed.into_iter().collect());
            tally.succeeded = tally.completed_indexes.len();
        }
        if let Some(limit) = job.spec.backoff_limit_per_index {
            tally.judge_indexes(&failed, count(limit));
        }
        tally
    }

    /// Finds the indexes that have failed for good, and those that wait for another pod.
    fn judge_indexes(&mut self, failed: &[&'a PodView], limit: u32) {
        let for_good = |pod: &&&PodView| {
            self.matched(pod).is_some_and(|rule| rule.action == FailureAction::FailIndex)
                || (!self.is_ignored(pod) && pod.earlier_failures.counted >= limit)
        };
        let status = &self.job.status;
        // Once the end of the Job is settled, pods end because of that: their indexes have not failed.
        let settled = status.holds(FAILURE_TARGET).or_else(|| status.holds(SUCCESS_CRITERIA_MET)).is_some();
        let failed_for_good = failed.iter().filter(|_| !settled).filter(for_good);
        let lost: Indexes = failed_for_good.filter_map(|pod| pod.index).collect();
        self.failed_indexes = self.failed_indexes.union(&lost).minus(&self.completed_indexes);
        let settled = self.failed_indexes.union(&self.completed_indexes).union(&self.active_indexes());
        for pod in failed {
            let Some(index) = pod.index.filter(|index| !settled.contains(*index)) else { continue };
            let last = self.awaiting_replacement.entry(index).or_insert(pod);
            if last.earlier_failures.total() <= pod.earlier_failures.total() {
                *last = pod;
            }
        }
    }

    /// True if the Job needs the pod's place: always without indexes, else if the index exists.
    fn has_a_place(&self, pod: &PodView) -> bool {
        !self.job.spec.is_indexed() || pod.index.is_some_and(|index| index < self.job.spec.index_bound())
    }

    pub(super) fn is_failed(&self, pod: &PodView) -> bool {
        is_failed(pod, self.only_failed)
    }

    pub(super) fn matched(&self, pod: &PodView) -> Option<Matched> {
        failure_policy::matched(self.job.spec.pod_failure_policy.as_ref(), pod)
    }

    fn is_ignored(&self, pod: &PodView) -> bool {
        self.is_spared(pod) || self.matched(pod).is_some_and(|rule| rule.action == FailureAction::Ignore)
    }

    /// True if the failure does not even delay a replacement.
    pub(super) fn is_spared(&self, pod: &PodView) -> bool {
        let rule = self.matched(pod).map(|rule| rule.action);
        self.ignores_disrupted && is_disruption(rule, pod)
    }

    /// How a pod with our finalizer counts, given the end of the Job.
    pub(super) fn outcome(&self, pod: &PodView, ending: Option<Ending>) -> Outcome {
        let deleted = pod.deletion.is_some();
        if pod.phase == PodPhase::Succeeded {
            return if self.has_a_place(pod) { Outcome::Succeeded } else { Outcome::Dropped };
        }
        // When a Job has succeeded, its other pods end because they are needless: that is no failure. Those that we
        // delete lose their finalizer first, so a tracked pod that counts as failed was ending on its own.
        if ending == Some(Ending::Success) && !pod.phase.is_terminal() && !self.is_failed(pod) {
            return Outcome::Dropped;
        }
        if self.is_failed(pod) || (ending == Some(Ending::Failure) && deleted) {
            let awaits = pod.index.and_then(|index| self.awaiting_replacement.get(&index));
            if ending.is_none()
                && !self.job.deleting
                && awaits.is_some_and(|last| last.pod.uid == pod.pod.uid)
            {
                return Outcome::Open;
            }
            let counts = self.has_a_place(pod) && !self.is_ignored(pod);
            return if counts { Outcome::Failed } else { Outcome::Dropped };
        }
        if self.job.deleting { Outcome::Dropped } else { Outcome::Open }
    }

    /// True if the status lists ended pods, and all of them have lost their finalizer.
    pub(super) fn all_listed_are_free(&self) -> bool {
        let lists = self.job.status.uncounted_terminated_pods.as_ref().filter(|lists| !lists.is_empty());
        lists.is_some_and(|lists| {
            !self.pods.iter().any(|pod| pod.is_tracked() && lists.contains(&pod.pod.uid))
        })
    }

    pub(super) fn active_indexes(&self) -> Indexes {
        self.active.iter().filter_map(|pod| pod.index).collect()
    }

    pub(super) fn terminating_indexes(&self) -> Indexes {
        self.terminating.iter().filter_map(|pod| pod.index).collect()
    }

    pub(super) fn ready(&self) -> usize {
        self.active.iter().filter(|pod| pod.ready.is_some_and(|ready| ready.is_true)).count()
    }

    /// The number of failures of an index before the pod that is created for it now.
    pub(super) fn failures_before(&self, index: u32) -> IndexFailures {
        let Some(last) = self.awaiting_replacement.get(&index) else { return IndexFailures::default() };
        let IndexFailures { counted, ignored } = last.earlier_failures;
        if self.is_ignored(last) {
            IndexFailures { counted, ignored: ignored.saturating_add(1) }
        } else {
            IndexFailures { counted: counted.saturating_add(1), ignored }
        }
    }

    /// Surplus active pods, the least useful first.
    pub(super) fn surplus(&self, wanted: u32) -> Vec<&'a PodView> {
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let mut places = BTreeSet::new();
        let is_alone = |pod: &&PodView| self.has_a_place(pod) && pod.index.is_some_and(|i| places.insert(i));
        if self.active.len() <= wanted && (!self.job.spec.is_indexed() || self.active.iter().all(is_alone)) {
            return Vec::new();
        }
        let mut chosen = Vec::new();
        let mut rest = Vec::new();
        let mut by_usefulness = self.active.clone();
        by_usefulness.sort_by(|one, other| usefulness(one).cmp(&usefulness(other)));
        if self.job.spec.is_indexed() {
            // Of several pods of one index the most useful stays; pods without a valid index go.
            let mut seen = BTreeSet::new();
            for pod in by_usefulness.into_iter().rev() {
                let kept = self.has_a_place(pod) && pod.index.is_some_and(|index| seen.insert(index));
                if kept { rest.push(pod) } else { chosen.push(pod) }
            }
            rest.reverse();
        } else {
            rest = by_usefulness;
        }
        let excess = self.active.len().saturating_sub(wanted);
        let more = excess.saturating_sub(chosen.len());
        chosen.extend(rest.into_iter().take(more));
        chosen
    }
}

/// Sorts the least useful first: unbound, not running, not ready, ready only recently, often restarted, young.
fn usefulness(pod: &PodView) -> impl Ord {
    let phase = match pod.phase {
        PodPhase::Pending => 0,
        PodPhase::Unknown => 1,
        _ => 2,
    };
    let ready = pod.ready.filter(|ready| ready.is_true);
    let ready_since = ready.and_then(|ready| ready.since).map(std::cmp::Reverse);
    let restarts = std::cmp::Reverse(pod.restarts);
    let age = std::cmp::Reverse(pod.created);
    (pod.node.is_some(), phase, ready.is_some(), ready_since, restarts, age, &pod.pod.name)
}

/// True if a pod is replaced only once it has failed: if the Job says so, and always under a pod failure policy, which
/// cannot be evaluated earlier.
pub(super) fn replaces_only_failed(job: &JobView, policy: &JobPolicy) -> bool {
    let asked = job.spec.pod_replacement_policy == Some(PodReplacementPolicy::Failed);
    job.spec.pod_failure_policy.is_some() || (policy.replacement_policy && asked)
}

/// True if a failure counts as a disruption: the pod has the condition, and no rule of the Job's policy says otherwise.
fn is_disruption(rule: Option<FailureAction>, pod: &PodView) -> bool {
    let disrupted = pod.conditions.iter().any(|(kind, status)| kind == DISRUPTION_TARGET && status == "True");
    disrupted && matches!(rule, None | Some(FailureAction::Ignore))
}

/// The same as `Tally::is_spared`, without a tally.
fn is_spared(job: &JobView, pod: &PodView, policy: &JobPolicy) -> bool {
    let rule = failure_policy::matched(job.spec.pod_failure_policy.as_ref(), pod).map(|rule| rule.action);
    policy.disrupted_pods == DisruptedPods::Ignore && is_disruption(rule, pod)
}

fn is_failed(pod: &PodView, only_failed: bool) -> bool {
    match pod.phase {
        PodPhase::Failed => true,
        PodPhase::Succeeded => false,
        _ => pod.deletion.is_some() && !only_failed,
    }
}

/// Remembers a pod's name, and how its end affects the next pod, in case the pod disappears.
pub fn remember(memory: &mut Memory, job: &JobView, pod: &PodView, policy: &JobPolicy) {
    record::remember(memory, job, pod);
    if !pod.is_tracked() {
        return;
    }
    if pod.phase == PodPhase::Succeeded {
        memory.backoff.succeeded(pod);
    } else if is_failed(pod, replaces_only_failed(job, policy)) && !is_spared(job, pod, policy) {
        memory.backoff.failed(pod);
    }
}

/// The memory of a Job, rebuilt from its status and the remaining pods.
pub fn recollect(job: &JobView, pods: &[PodView], policy: &JobPolicy) -> Memory {
    let mut memory = Memory::default();
    let none = Uncounted::default();
    let listed = job.status.uncounted_terminated_pods.as_ref().unwrap_or(&none);
    let counted = count(job.status.failed).saturating_add(len(listed.failed.len()));
    // A pod without finalizer was either counted or not needed any more. If nothing was counted, it was not needed.
    let any_counted = counted > 0 || job.spec.pod_failure_policy.is_some();
    let only_failed = replaces_only_failed(job, policy);
    let mut failures = counted;
    for pod in pods {
        if pod.phase == PodPhase::Succeeded {
            memory.backoff.succeeded(pod);
        } else if is_failed(pod, only_failed)
            && (pod.is_tracked() || any_counted)
            && !is_spared(job, pod, policy)
        {
            memory.backoff.failed(pod);
            failures += u32::from(pod.is_tracked() && !listed.contains(&pod.pod.uid));
        }
    }
    if job.status.succeeded == 0 && listed.succeeded.is_empty() {
        memory.backoff.at_least(failures);
    }
    memory.told = why_held(job, pods).map(|note| note.name);
    memory
}

fn len(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
