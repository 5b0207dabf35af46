//! The section `job`: how Jobs are run.

use serde::{Deserialize, Serialize};

use super::found::Found;
use super::problem::Path;
use super::section::Kind::{Bool, Choice, Duration, Integer, Object};
use super::section::Presence::{self, Parent};
use super::section::{Field, Section, field};
use crate::GoDuration;

pub(super) const SECTION: Section = Section { fields: FIELDS, examples: &[] };

/// The settings of the Job controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct JobSettings {
    /// Whether Salvor also takes Jobs that the built-in controller would run.
    pub unmanaged_jobs: bool,
    /// Whether finished Jobs are deleted after their TTL.
    pub delete_finished_jobs: bool,
    /// The number of Jobs that are reconciled in parallel.
    pub concurrent_jobs: u32,
    /// The maximum number of ended pods that one status write records before their finalizers are removed.
    pub max_uncounted_pods: u32,
    /// The maximum number of pods that are created or deleted in one batch.
    pub max_pods_at_once: u32,
    /// The minimum time between two status writes that only change counters.
    pub batch_period: GoDuration,
    /// The backoff after the first failure of a pod.
    pub backoff_base: GoDuration,
    /// The maximum backoff after a failure of a pod.
    pub backoff_max: GoDuration,
    /// How pods that failed because of a disruption count.
    pub disrupted_pods: DisruptedPods,
}

/// How pods that failed with the condition `DisruptionTarget=True` count, where no rule of a podFailurePolicy matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DisruptedPods {
    /// They do not count and are replaced without backoff.
    #[default]
    Ignore,
    /// They count like any other failure.
    Count,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            unmanaged_jobs: false,
            delete_finished_jobs: false,
            concurrent_jobs: 32,
            max_uncounted_pods: 500,
            max_pods_at_once: 500,
            batch_period: GoDuration::from_secs(1),
            backoff_base: GoDuration::from_secs(10),
            backoff_max: GoDuration::from_secs(600),
            disrupted_pods: DisruptedPods::Ignore,
        }
    }
}

const FIELDS: &[Field] = &[
    field(
        "job",
        Object,
        Parent,
        "The settings for Jobs whose spec.managedBy is salvor.dev/job-controller. Each Job's own podReplacementPolicy says \
         whether a pod is replaced only after it has failed, as long as the feature gate JobPodReplacementPolicy is on.",
    ),
    field(
        "job.unmanagedJobs",
        Bool,
        Presence::Default("false"),
        "Also run Jobs that are the built-in Job controller's: those that have no spec.managedBy, or have \
         kubernetes.io/job-controller there. Only where it is switched off: two controllers on one Job undo each other's \
         work.",
    ),
    field(
        "job.deleteFinishedJobs",
        Bool,
        Presence::Default("false"),
        "Delete finished Jobs after their ttlSecondsAfterFinished. Kubernetes' own controller does that for every Job, so \
         this is for clusters without it.",
    ),
    field(
        "job.concurrentJobs",
        Integer(1, 10_000),
        Presence::Default("32"),
        "The largest number of Jobs that are synced at the same time; the others wait. All together make no more \
         requests at once than concurrency.writes allows.",
    ),
    field(
        "job.maxUncountedPods",
        Integer(1, 10_000),
        Presence::Default("500"),
        "The largest number of ended pods in one write of a Job's status, before their finalizers are removed. More \
         pods mean fewer and larger writes.",
    ),
    field(
        "job.maxPodsAtOnce",
        Integer(1, 100_000),
        Presence::Default("500"),
        "The largest number of pods of one Job that are created or deleted before the Job is judged again.",
    ),
    field(
        "job.batchPeriod",
        Duration,
        Presence::Default("1s"),
        "The least time between two writes of one Job's status that only move its counters. The first such write, and every \
         write that changes a condition, is made at once. 0s writes every change.",
    ),
    field(
        "job.backoffBase",
        Duration,
        Presence::Default("10s"),
        "The wait of a Job before it replaces a pod after the first failure; twice as long after each further \
         failure.",
    ),
    field(
        "job.backoffMax",
        Duration,
        Presence::Default("10m0s"),
        "The longest such wait. At least backoffBase.",
    ),
    field(
        "job.disruptedPods",
        Choice(&["Ignore", "Count"]),
        Presence::Default("Ignore"),
        "Whether pods that failed with the condition DisruptionTarget=True, such as those of lost nodes, count towards a Job's \
         backoffLimit. With Ignore they neither count nor delay their replacement. Count is what Kubernetes' own controller does. A \
         rule of the Job's podFailurePolicy that matches goes first, and what was counted before stays counted.",
    ),
];

pub(super) fn check(job: &JobSettings, found: &mut Found) {
    for (path, value) in [
        ("job.concurrentJobs", job.concurrent_jobs),
        ("job.maxUncountedPods", job.max_uncounted_pods),
        ("job.maxPodsAtOnce", job.max_pods_at_once),
    ] {
        if value == 0 {
            found.note(Path::of(path), "0 lets no Job go on: set it to at least 1");
        }
    }
    found.not_negative("job.batchPeriod", job.batch_period);
    found.not_negative("job.backoffBase", job.backoff_base);
    if job.backoff_max < job.backoff_base {
        let message =
            format!("{} must be at least backoffBase, which is {}", job.backoff_max, job.backoff_base);
        found.note(Path::of("job.backoffMax"), message);
    }
}
