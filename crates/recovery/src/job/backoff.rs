//! The backoff before a failed pod is replaced. It grows with every failure since the last success.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::policy::JobPolicy;
use super::views::{IndexFailures, PodView};
use crate::ids::Uid;

/// How many failures are stored one by one. The backoff reaches its maximum after a few, and a Job may fail forever.
const MOST_FAILURES: usize = 1000;

/// Failures since the last success, by pod UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackoffRecord {
    failures: BTreeMap<Uid, Timestamp>,
    /// The time of the last failure beyond `MOST_FAILURES`.
    last_of_many: Option<Timestamp>,
    last_success: Option<Timestamp>,
    /// The least number of failures, if some of their pods are gone.
    at_least: u32,
}

impl BackoffRecord {
    /// Records a pod that succeeded, and drops the failures before it.
    pub fn succeeded(&mut self, pod: &PodView) {
        let end = finish_time(pod);
        if self.last_success < Some(end) {
            self.last_success = Some(end);
            self.failures.retain(|_, failure| *failure > end);
            self.last_of_many = self.last_of_many.filter(|failure| *failure > end);
        }
    }

    /// Records a pod that failed, whether or not the failure counts. The first record of a pod stays.
    pub fn failed(&mut self, pod: &PodView) {
        let end = finish_time(pod);
        if self.last_success.is_some_and(|success| end <= success) || self.failures.contains_key(&pod.pod.uid)
        {
            return;
        }
        if self.failures.len() < MOST_FAILURES {
            self.failures.insert(pod.pod.uid.clone(), end);
        } else {
            self.last_of_many = self.last_of_many.max(Some(end));
        }
    }

    /// Records how many pods have failed, unless one succeeded: then the number since that success is unknown.
    pub fn at_least(&mut self, failures: u32) {
        if self.last_success.is_none() {
            self.at_least = failures;
        }
    }

    /// When a replacement may be created; none if nothing failed.
    pub fn over_at(&self, policy: &JobPolicy) -> Option<Timestamp> {
        let last = self.failures.values().copied().max().max(self.last_of_many)?;
        let failures = u32::try_from(self.failures.len()).unwrap_or(u32::MAX).max(self.at_least);
        Some(later(last, delay(failures, policy)))
    }
}

/// When the index of this failed pod may get another one.
pub(super) fn index_over_at(pod: &PodView, policy: &JobPolicy) -> Timestamp {
    let IndexFailures { counted, ignored } = pod.earlier_failures;
    later(finish_time(pod), delay(counted.saturating_add(ignored).saturating_add(1), policy))
}

fn delay(failures: u32, policy: &JobPolicy) -> SignedDuration {
    if failures == 0 {
        return SignedDuration::ZERO;
    }
    // Thirty doublings take every sensible base past its maximum.
    let factor = 1i32 << (failures - 1).min(30);
    policy.backoff_base.checked_mul(factor).map_or(policy.backoff_max, |d| d.min(policy.backoff_max))
}

fn later(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// When a pod ended, or began to: by its containers; else by its readiness; else by its deletion; else it never ran.
pub(super) fn finish_time(pod: &PodView) -> Timestamp {
    pod.finished
        .or_else(|| pod.ready.filter(|ready| !ready.is_true).and_then(|ready| ready.since))
        .or_else(|| {
            pod.deletion.map(|deletion| {
                let grace = SignedDuration::from_secs(deletion.grace_seconds.max(0));
                deletion.timestamp.checked_sub(grace).unwrap_or(deletion.timestamp)
            })
        })
        .unwrap_or(pod.created)
}
