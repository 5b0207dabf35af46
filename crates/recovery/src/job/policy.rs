//! The administrator's settings.

use jiff::SignedDuration;
use salvor_api::config::{Configuration, DisruptedPods};
use salvor_api::names::job::{BUILT_IN_CONTROLLER, CONTROLLER_NAME};
use salvor_api::{Controller, Gate};

/// The configuration as the Job recovery needs it.
#[derive(Clone, Debug)]
pub struct JobPolicy {
    /// True if the list of controllers has it.
    pub enabled: bool,
    /// Feature gate `JobPodReplacementPolicy`.
    pub replacement_policy: bool,
    /// True if Jobs are taken too that the built-in controller would run: without `spec.managedBy`, or with its name in it.
    pub unmanaged_jobs: bool,
    /// True if finished Jobs are deleted after their time to live.
    pub delete_finished: bool,
    /// Pods that are written down at once before their finalizers go.
    pub max_uncounted_pods: usize,
    /// Pods created or deleted in one go.
    pub max_pods_at_once: usize,
    /// The least time between two status writes that only move counters.
    pub batch_period: SignedDuration,
    /// The wait after the first failure.
    pub backoff_base: SignedDuration,
    /// The longest wait.
    pub backoff_max: SignedDuration,
    /// The count of pods that failed because they were disrupted.
    pub disrupted_pods: DisruptedPods,
}

impl JobPolicy {
    /// Takes what matters out of the configuration.
    pub fn new(configuration: &Configuration) -> Self {
        let job = &configuration.job;
        let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX).max(1);
        Self {
            enabled: configuration.controllers.enabled(Controller::Job),
            replacement_policy: configuration.feature_gates.enabled(Gate::JobPodReplacementPolicy),
            unmanaged_jobs: job.unmanaged_jobs,
            delete_finished: job.delete_finished_jobs,
            max_uncounted_pods: size(job.max_uncounted_pods),
            max_pods_at_once: size(job.max_pods_at_once),
            batch_period: job.batch_period.into(),
            backoff_base: job.backoff_base.into(),
            backoff_max: job.backoff_max.into(),
            disrupted_pods: job.disrupted_pods,
        }
    }

    /// True if a Job with this `managedBy` is ours.
    pub fn manages(&self, managed_by: Option<&str>) -> bool {
        match managed_by {
            Some(CONTROLLER_NAME) => true,
            // The reserved name says what no name means.
            None | Some(BUILT_IN_CONTROLLER) => self.unmanaged_jobs,
            Some(_) => false,
        }
    }
}
