//! The metrics of a Job controller, under the names and labels that dashboards for the built-in one use.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use salvor_api::names::job::{conditions, reasons};
use salvor_recovery::job::{CompletionMode, FailureAction, Indexes, JobSpec, JobStatus};

use crate::metrics::descriptions;

descriptions! { METRICS;
    JOBS_FINISHED = "job_controller_jobs_finished", "counter", "completion_mode, result, reason", "Finished Jobs";
    JOB_PODS_FINISHED = "job_controller_job_pods_finished", "counter", "completion_mode, result", "Finished pods of Jobs";
    JOB_SYNC_DURATION = "job_controller_job_sync_duration_seconds", "histogram", "completion_mode, result, action", "Seconds of one sync of a Job, until all its writes succeeded";
    JOB_SYNCS = "job_controller_job_syncs", "counter", "completion_mode, result, action", "Syncs of Jobs: reconciling, tracking, pods_created or pods_deleted";
    POD_FAILURES_BY_POLICY = "job_controller_pod_failures_handled_by_failure_policy", "counter", "action", "Failed pods that matched a rule of the Job's pod failure policy: FailJob, FailIndex, Ignore or Count";
    TERMINATED_PODS = "job_controller_terminated_pods_tracking_finalizer", "counter", "event", "Finished pods with the tracking finalizer (add) and after its removal (delete). The difference is pods that are not counted yet";
    JOB_FINISHED_INDEXES = "job_controller_job_finished_indexes", "counter", "status, backoffLimit", "Finished indexes of Indexed Jobs, with a backoff limit of their own (perIndex) or not (global)";
    EXTERNAL_JOBS = "job_controller_jobs_by_external_controller", "counter", "controller_name", "Jobs that name another controller in spec.managedBy, counted once. Unknown controllers are counted as other";
    JOB_PODS_CREATION = "job_controller_job_pods_creation", "counter", "reason, status", "Pods created for Jobs, by reason (new, recreate_terminating_or_failed or recreate_failed) and by whether the API server accepted them";
}

/// From 4 milliseconds, doubled 14 times.
const SYNC_BUCKETS: (f64, f64, u16) = (0.004, 2.0, 15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncAction {
    /// The Job is ending or being deleted: its pods are no longer managed.
    Reconciling,
    /// Its pods are as they should be.
    Tracking,
    PodsCreated,
    PodsDeleted,
}

impl SyncAction {
    fn as_str(self) -> &'static str {
        match self {
            Self::Reconciling => "reconciling",
            Self::Tracking => "tracking",
            Self::PodsCreated => "pods_created",
            Self::PodsDeleted => "pods_deleted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SyncLabels {
    completion_mode: &'static str,
    result: &'static str,
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishedLabels {
    completion_mode: &'static str,
    result: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodsLabels {
    completion_mode: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CreationLabels {
    reason: &'static str,
    status: &'static str,
}

/// Keep the label values few, whatever users write into Jobs: a series, once created, stays.
fn mode_label(mode: &CompletionMode) -> &'static str {
    match mode {
        CompletionMode::NonIndexed => "NonIndexed",
        CompletionMode::Indexed => "Indexed",
        CompletionMode::Unknown(_) => "other",
    }
}

/// Any client that may write a Job's status can set the reason of its end.
fn reason_label(reason: &str) -> &'static str {
    const KNOWN: [&str; 7] = [
        reasons::BACKOFF_LIMIT_EXCEEDED,
        reasons::DEADLINE_EXCEEDED,
        reasons::POD_FAILURE_POLICY,
        reasons::FAILED_INDEXES,
        reasons::MAX_FAILED_INDEXES_EXCEEDED,
        reasons::SUCCESS_POLICY,
        reasons::COMPLETIONS_REACHED,
    ];
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("other")
}

/// Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct JobMetrics {
    sync_duration: Family<SyncLabels, Histogram, fn() -> Histogram>,
    syncs: Family<SyncLabels, Counter>,
    finished: Family<FinishedLabels, Counter>,
    pods_finished: Family<PodsLabels, Counter>,
    pods_creation: Family<CreationLabels, Counter>,
    failures_by_policy: Family<[(&'static str, &'static str); 1], Counter>,
    terminated_pods: Family<[(&'static str, &'static str); 1], Counter>,
    // The label `backoffLimit` is not in the style of Rust fields.
    finished_indexes: Family<[(&'static str, &'static str); 2], Counter>,
    external: Family<[(&'static str, &'static str); 1], Counter>,
}

impl JobMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            sync_duration: Family::new_with_constructor(|| {
                let (first, factor, count) = SYNC_BUCKETS;
                Histogram::new(exponential_buckets(first, factor, count))
            }),
            syncs: Family::default(),
            finished: Family::default(),
            pods_finished: Family::default(),
            pods_creation: Family::default(),
            failures_by_policy: Family::default(),
            terminated_pods: Family::default(),
            finished_indexes: Family::default(),
            external: Family::default(),
        };
        let of = &metrics;
        registry.register(JOB_SYNC_DURATION.name, JOB_SYNC_DURATION.help, of.sync_duration.clone());
        registry.register(JOB_SYNCS.name, JOB_SYNCS.help, of.syncs.clone());
        registry.register(JOBS_FINISHED.name, JOBS_FINISHED.help, of.finished.clone());
        registry.register(JOB_PODS_FINISHED.name, JOB_PODS_FINISHED.help, of.pods_finished.clone());
        registry.register(JOB_PODS_CREATION.name, JOB_PODS_CREATION.help, of.pods_creation.clone());
        registry.register(
            POD_FAILURES_BY_POLICY.name,
            POD_FAILURES_BY_POLICY.help,
            of.failures_by_policy.clone(),
        );
        registry.register(TERMINATED_PODS.name, TERMINATED_PODS.help, of.terminated_pods.clone());
        registry.register(JOB_FINISHED_INDEXES.name, JOB_FINISHED_INDEXES.help, of.finished_indexes.clone());
        registry.register(EXTERNAL_JOBS.name, EXTERNAL_JOBS.help, of.external.clone());
        metrics
    }

    pub(crate) fn synced(&self, mode: &CompletionMode, worked: bool, action: SyncAction, took: Duration) {
        let labels = SyncLabels {
            completion_mode: mode_label(mode),
            result: if worked { "success" } else { "error" },
            action: action.as_str(),
        };
        self.sync_duration.get_or_create(&labels).observe(took.as_secs_f64());
        self.syncs.get_or_create(&labels).inc();
    }

    pub(crate) fn pod_created(&self, reason: &'static str, status: &'static str) {
        self.pods_creation.get_or_create(&CreationLabels { reason, status }).inc();
    }

    /// Counts a pod failure that matched a rule of the Job's pod failure policy.
    pub(crate) fn failure_handled(&self, action: FailureAction) {
        let action = match action {
            FailureAction::FailJob => "FailJob",
            FailureAction::FailIndex => "FailIndex",
            FailureAction::Ignore => "Ignore",
            FailureAction::Count => "Count",
        };
        self.failures_by_policy.get_or_create(&[("action", action)]).inc();
    }

    /// Counts a terminated pod that is seen with our finalizer (add), or without it or gone (delete).
    pub(crate) fn ended_pod_tracked(&self, event: &'static str) {
        self.terminated_pods.get_or_create(&[("event", event)]).inc();
    }

    pub(crate) fn external_job(&self, controller: &'static str) {
        self.external.get_or_create(&[("controller_name", controller)]).inc();
    }

    /// Counts the difference between two statuses of a Job.
    pub(crate) fn status_written(&self, spec: &JobSpec, old: &JobStatus, new: &JobStatus) {
        let mode = mode_label(&spec.completion_mode);
        let more = |before: u32, after: u32| u64::from(after.saturating_sub(before));
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let succeeded = if spec.is_indexed() {
            // Indexes that a Job lost by getting smaller are not subtracted.
            let indexes = |text: &str| Indexes::parse(text, spec.index_bound()).map_or(0, |set| set.len());
            let limit = if spec.backoff_limit_per_index.is_some() { "perIndex" } else { "global" };
            let succeeded = more(indexes(&old.completed_indexes), indexes(&new.completed_indexes));
            let failed = |status: &JobStatus| indexes(status.failed_indexes.as_deref().unwrap_or_default());
            for (status, more) in [("succeeded", succeeded), ("failed", more(failed(old), failed(new)))] {
                self.finished_indexes
                    .get_or_create(&[("status", status), ("backoffLimit", limit)])
                    .inc_by(more);
            }
            succeeded
        } else {
            more(count(old.succeeded), count(new.succeeded))
        };
        let failed = more(count(old.failed), count(new.failed));
        for (result, more) in [("succeeded", succeeded), ("failed", failed)] {
            let labels = PodsLabels { completion_mode: mode, result };
            self.pods_finished.get_or_create(&labels).inc_by(more);
        }
        let Some(end) = new.finished().filter(|_| old.finished().is_none()) else { return };
        let result = if end.kind == conditions::COMPLETE { "succeeded" } else { "failed" };
        let labels = FinishedLabels { completion_mode: mode, result, reason: reason_label(&end.reason) };
        self.finished.get_or_create(&labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use salvor_recovery::job::JobCondition;

    use super::*;
    use crate::{
        metrics::{Metrics, check},
        time::Time,
    };

    #[test]
    fn jobs_are_counted_under_the_names_and_labels_of_the_built_in_controller() {
        let metrics = Metrics::new(&Time::system());
        let job = metrics.own(JobMetrics::register);
        job.pod_created("new", "succeeded");
        job.synced(
            &CompletionMode::Indexed,
            true,
            SyncAction::PodsCreated,
            std::time::Duration::from_millis(5),
        );
        job.failure_handled(FailureAction::Ignore);
        job.ended_pod_tracked("add");
        job.external_job("other");
        let spec = JobSpec {
            completion_mode: CompletionMode::Indexed,
            completions: Some(4),
            backoff_limit_per_index: Some(1),
            ..JobSpec::default()
        };
        let end = JobCondition { kind: "Complete".into(), status: "True".into(), ..JobCondition::default() };
        let done = JobStatus {
            succeeded: 2,
            completed_indexes: "0,3".into(),
            failed_indexes: Some("1".into()),
            conditions: vec![end],
            ..JobStatus::default()
        };
        job.status_written(&spec, &JobStatus::default(), &done);
        let text = metrics.render();
        for line in [
            "job_controller_job_syncs_total{completion_mode=\"Indexed\",result=\"success\",action=\"pods_created\"} 1",
            "job_controller_job_sync_duration_seconds_bucket{le=\"0.008\",completion_mode=\"Indexed\",result=\"success\",action=\"pods_created\"} 1",
            "job_controller_job_sync_duration_seconds_bucket{le=\"65.536\",completion_mode=\"Indexed\",result=\"success\",action=\"pods_created\"} 1",
            "job_controller_job_finished_indexes_total{status=\"succeeded\",backoffLimit=\"perIndex\"} 2",
            "job_controller_job_finished_indexes_total{status=\"failed\",backoffLimit=\"perIndex\"} 1",
            "job_controller_job_pods_finished_total{completion_mode=\"Indexed\",result=\"succeeded\"} 2",
            "job_controller_pod_failures_handled_by_failure_policy_total{action=\"Ignore\"} 1",
            "job_controller_terminated_pods_tracking_finalizer_total{event=\"add\"} 1",
            "job_controller_jobs_by_external_controller_total{controller_name=\"other\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        // The names are those of the built-in controller's metrics.
        check::described(&text, METRICS, "job_controller_");
    }
}
