//! The configuration of the Job recovery.

use jiff::SignedDuration;
use salvor_api::config::{Configuration, DisruptedPods};
use salvor_api::names::job::{BUILT_IN_CONTROLLER, CONTROLLER_NAME};
use salvor_api::{Controller, Gate};

/// The part of the configuration that the Job recovery needs.
#[derive(Clone, Debug)]
pub struct JobPolicy {
    /// True if the list of controllers contains it.
    pub enabled: bool,
    /// Feature gate `JobPodReplacementPolicy`.
    pub replacement_policy: bool,
    /// True if Salvor also runs Jobs of the built-in controller: without `spec.managedBy`, or with its name there.
    pub unmanaged_jobs: bool,
    /// True if finished Jobs are deleted after their time to live.
    pub delete_finished: bool,
    /// How many pods the status lists at once before their finalizers are removed.
    pub max_uncounted_pods: usize,
    /// How many pods are created or deleted together.
    pub max_pods_at_once: usize,
    /// The least time between two status writes that only change counters.
    pub batch_period: SignedDuration,
    /// The backoff after the first failure.
    pub backoff_base: SignedDuration,
    /// The longest backoff.
    pub backoff_max: SignedDuration,
    /// Whether failures by disruption count.
    pub disrupted_pods: DisruptedPods,
}

impl JobPolicy {
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
            // The reserved name means the same as no name.
            None | Some(BUILT_IN_CONTROLLER) => self.unmanaged_jobs,
            Some(_) => false,
        }
    }
}
