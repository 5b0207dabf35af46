//! Every metric there is: name, labels, meaning. The reference page is made from this table.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text::encode},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

pub(crate) use self::job::{JobMetrics, SyncAction};
use crate::{pulse::Pulse, time::Time, watch::WatchHealth};

mod job;

/// Seconds from due to done: a storm's tail is as interesting as a lone pod's head.
const DUE_TO_DONE_BUCKETS: [f64; 11] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// One metric, as the reference page describes it.
struct Description {
    name: &'static str,
    kind: &'static str,
    labels: &'static str,
    help: &'static str,
}

macro_rules! descriptions {
    ($($constant:ident = $name:literal, $kind:literal, $labels:literal, $help:literal;)*) => {
        $(const $constant: Description = Description { name: $name, kind: $kind, labels: $labels, help: $help };)*
        const ALL: &[Description] = &[$($constant),*];
    };
}

descriptions! {
    BUILD_INFO = "salvor_build_info", "gauge", "version", "Always 1; which version of Salvor this is";
    LEADER = "salvor_leader", "gauge", "", "1 while this replica may write, 0 while it follows";
    VERDICTS = "salvor_verdicts", "counter", "recovery, verdict, reason", "Verdicts reached; counted when a subject's verdict or its reason changes";
    DUE_TO_DONE = "salvor_due_to_done_seconds", "histogram", "recovery", "Seconds from the moment an action was due until it was done";
    WRITES = "salvor_writes", "counter", "action, result", "Writes to the API by what they were and how they ended";
    RETRIES = "salvor_retries", "counter", "recovery", "Subjects that were tried again after a write failed";
    QUEUE = "salvor_queue_depth", "gauge", "recovery", "Subjects that wait to be judged or acted on";
    IN_FLIGHT = "salvor_actions_in_flight", "gauge", "recovery", "Subjects that are being acted on";
    BRAKE = "salvor_brake_engaged", "gauge", "", "1 while nothing is recovered because too many nodes are unreachable, or were within the settle period";
    PAUSED = "salvor_paused", "gauge", "", "1 while somebody has paused everything with `salvor pause`, on every replica";
    HELD = "salvor_held", "counter", "recovery, by", "Actions held back, by what held them";
    STALENESS = "salvor_watch_staleness_seconds", "gauge", "resource", "Seconds since the API server last said anything on this watch, bookmarks included";
    WATCH_RESTARTS = "salvor_watch_restarts", "counter", "resource", "Times a watch had to be opened again after a failure";
    WATCH_LISTS = "salvor_watch_lists", "counter", "resource", "Times a resource was listed in full";
    UNREADABLE = "salvor_watch_unreadable_objects", "counter", "resource", "Objects that could not be read, and were left alone";
    JOBS_FINISHED = "job_controller_jobs_finished", "counter", "completion_mode, result, reason", "Jobs that came to their end";
    JOB_PODS_FINISHED = "job_controller_job_pods_finished", "counter", "completion_mode, result", "Pods of Jobs that were counted";
    JOB_SYNC_DURATION = "job_controller_job_sync_duration_seconds", "histogram", "completion_mode, result, action", "Seconds from looking at a Job until all that it needed then was done";
    JOB_SYNCS = "job_controller_job_syncs", "counter", "completion_mode, result, action", "Times a Job was looked at: reconciling, tracking, pods_created or pods_deleted";
    POD_FAILURES_BY_POLICY = "job_controller_pod_failures_handled_by_failure_policy", "counter", "action", "Failed pods for which the Job's pod failure policy had a rule: FailJob, FailIndex, Ignore or Count";
    TERMINATED_PODS = "job_controller_terminated_pods_tracking_finalizer", "counter", "event", "Ended pods that were seen with our finalizer (add) and then without it (delete); apart, pods wait to be counted";
    JOB_FINISHED_INDEXES = "job_controller_job_finished_indexes", "counter", "status, backoffLimit", "Indexes of Indexed Jobs that came to their end, with a backoff limit of their own (perIndex) or not (global)";
    EXTERNAL_JOBS = "job_controller_jobs_by_external_controller", "counter", "controller_name", "Jobs that name another controller in spec.managedBy, counted when they are first seen; a controller that is not known is other";
    JOB_PODS_CREATION = "job_controller_job_pods_creation", "counter", "reason, status", "Pods made for Jobs: new, recreate_terminating_or_failed or recreate_failed, and whether the server took them";
    EVICTIONS = "salvor_eviction_nodes", "gauge", "state", "Nodes whose eviction is requested, started, or finished and waiting for the node's return";
    EVICTION_PODS = "salvor_eviction_pods", "gauge", "", "Pods on nodes that are being emptied, those that stay included";
    ADMISSIONS = "salvor_admission_requests", "counter", "webhook, outcome", "Admission requests answered, by webhook: allowed, patched, denied, bad_request, timed_out or error";
    CERTIFICATE = "salvor_webhook_certificate_expiry_timestamp_seconds", "gauge", "", "When the certificate expires with which webhooks are served, in seconds since 1970; 0 where none are";
    SILENCE = "salvor_working_thread_silent_seconds", "gauge", "", "Seconds since the thread that watches, judges and writes last made a turn; past 60 the lease is given up";
    CLOCK = "salvor_server_clock_offset_seconds", "gauge", "bound", "How far the API server's clock is ahead of ours, at least and at most";
    CLOCKS = "salvor_server_clocks", "gauge", "", "Different clocks that answers of the API server told lately; of several, the earliest counts";
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    recovery: &'static str,
    verdict: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecoveryLabel {
    recovery: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    action: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    webhook: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeldLabels {
    recovery: &'static str,
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// The metrics of one process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Mutex<Registry>,
    leader: Gauge,
    brake: Gauge,
    paused: Gauge,
    verdicts: Family<VerdictLabels, Counter>,
    due_to_done: Family<RecoveryLabel, Histogram, fn() -> Histogram>,
    writes: Family<WriteLabels, Counter>,
    retries: Family<RecoveryLabel, Counter>,
    queue: Family<RecoveryLabel, Gauge>,
    in_flight: Family<RecoveryLabel, Gauge>,
    held: Family<HeldLabels, Counter>,
    job: JobMetrics,
    evictions: Family<StateLabel, Gauge>,
    eviction_pods: Gauge,
    admissions: Family<AdmissionLabels, Counter>,
    certificate: Gauge,
}

impl Metrics {
    pub(crate) fn new(time: &Time) -> Self {
        let mut registry = Registry::default();
        let job = JobMetrics::register(&mut registry);
        let inner = Inner {
            registry: Mutex::new(registry),
            leader: Gauge::default(),
            brake: Gauge::default(),
            paused: Gauge::default(),
            verdicts: Family::default(),
            due_to_done: Family::new_with_constructor(|| Histogram::new(DUE_TO_DONE_BUCKETS)),
            writes: Family::default(),
            retries: Family::default(),
            queue: Family::default(),
            in_flight: Family::default(),
            held: Family::default(),
            job,
            evictions: Family::default(),
            eviction_pods: Gauge::default(),
            admissions: Family::default(),
            certificate: Gauge::default(),
        };
        let metrics = Self(Arc::new(inner));
        let build = Family::<[(&str, &str); 1], Gauge>::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        {
            let mut registry = metrics.registry();
            registry.register(BUILD_INFO.name, BUILD_INFO.help, build);
            registry.register(LEADER.name, LEADER.help, metrics.0.leader.clone());
            registry.register(BRAKE.name, BRAKE.help, metrics.0.brake.clone());
            registry.register(PAUSED.name, PAUSED.help, metrics.0.paused.clone());
            registry.register(VERDICTS.name, VERDICTS.help, metrics.0.verdicts.clone());
            registry.register(DUE_TO_DONE.name, DUE_TO_DONE.help, metrics.0.due_to_done.clone());
            registry.register(WRITES.name, WRITES.help, metrics.0.writes.clone());
            registry.register(RETRIES.name, RETRIES.help, metrics.0.retries.clone());
            registry.register(QUEUE.name, QUEUE.help, metrics.0.queue.clone());
            registry.register(IN_FLIGHT.name, IN_FLIGHT.help, metrics.0.in_flight.clone());
            registry.register(HELD.name, HELD.help, metrics.0.held.clone());
            registry.register(EVICTIONS.name, EVICTIONS.help, metrics.0.evictions.clone());
            registry.register(EVICTION_PODS.name, EVICTION_PODS.help, metrics.0.eviction_pods.clone());
            registry.register(ADMISSIONS.name, ADMISSIONS.help, metrics.0.admissions.clone());
            registry.register(CERTIFICATE.name, CERTIFICATE.help, metrics.0.certificate.clone());
            registry.register_collector(Box::new(ClockMetrics(time.clone())));
        }
        metrics
    }

    /// Shows these watches too.
    pub(crate) fn show_watches(&self, watches: Vec<Arc<WatchHealth>>) {
        self.registry().register_collector(Box::new(WatchMetrics(watches)));
    }

    /// Shows whether the working thread turns.
    pub(crate) fn show_pulse(&self, pulse: Pulse) {
        self.registry().register_collector(Box::new(PulseMetrics(pulse)));
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.0.leader.set(i64::from(leads));
    }

    pub(crate) fn brake_engaged(&self, engaged: bool) {
        self.0.brake.set(i64::from(engaged));
    }

    pub(crate) fn paused(&self, paused: bool) {
        self.0.paused.set(i64::from(paused));
    }

    pub(crate) fn verdict(&self, recovery: &'static str, verdict: &'static str, reason: &'static str) {
        self.0.verdicts.get_or_create(&VerdictLabels { recovery, verdict, reason }).inc();
    }

    pub(crate) fn done(&self, recovery: &'static str, seconds: f64) {
        self.0.due_to_done.get_or_create(&RecoveryLabel { recovery }).observe(seconds);
    }

    pub(crate) fn wrote(&self, action: &'static str, result: &'static str) {
        self.0.writes.get_or_create(&WriteLabels { action, result }).inc();
    }

    pub(crate) fn admitted(&self, webhook: &'static str, outcome: &'static str) {
        self.0.admissions.get_or_create(&AdmissionLabels { webhook, outcome }).inc();
    }

    pub(crate) fn certificate_expires(&self, at: Timestamp) {
        self.0.certificate.set(at.as_second());
    }

    pub(crate) fn retried(&self, recovery: &'static str) {
        self.0.retries.get_or_create(&RecoveryLabel { recovery }).inc();
    }

    pub(crate) fn held(&self, recovery: &'static str, by: &'static str) {
        self.0.held.get_or_create(&HeldLabels { recovery, by }).inc();
    }

    /// Those of the Job recovery.
    pub(crate) fn job(&self) -> &JobMetrics {
        &self.0.job
    }

    /// How many nodes are in which state of their eviction, and how many pods are on them.
    pub(crate) fn evictions(&self, nodes: &[(&'static str, usize)], pods: usize) {
        for (state, nodes) in nodes {
            self.0.evictions.get_or_create(&StateLabel { state }).set(as_gauge(*nodes));
        }
        self.0.eviction_pods.set(as_gauge(pods));
    }

    pub(crate) fn queue(&self, recovery: &'static str, waiting: usize, in_flight: usize) {
        self.0.queue.get_or_create(&RecoveryLabel { recovery }).set(as_gauge(waiting));
        self.0.in_flight.get_or_create(&RecoveryLabel { recovery }).set(as_gauge(in_flight));
    }

    /// All metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry()) {
            Ok(()) => prometheus_text(&text),
            Err(error) => {
                tracing::error!(%error, "metrics cannot be written");
                String::new()
            }
        }
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn as_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// OpenMetrics names a counter without its suffix in HELP and TYPE; Prometheus' own text format, which most tools check
/// against, names it as its sample. Help texts get no full stop from us, so the one that is appended goes.
fn prometheus_text(open_metrics: &str) -> String {
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        let described = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        match described.and_then(|rest| rest.split_once(' ')) {
            Some((name, rest)) => {
                let suffix = if counters.contains(&name) { "_total" } else { "" };
                let keyword = &line[..7];
                let rest = rest.strip_suffix('.').unwrap_or(rest);
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{keyword}{name}{suffix} {rest}");
            }
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[derive(Debug)]
struct WatchMetrics(Vec<Arc<WatchHealth>>);

impl Collector for WatchMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauge = ConstGauge::new(0f64);
        let mut staleness =
            encoder.encode_descriptor(STALENESS.name, STALENESS.help, None, gauge.metric_type())?;
        for watch in &self.0 {
            let labels = [("resource", watch.resource)];
            ConstGauge::new(watch.staleness().as_secs_f64()).encode(staleness.encode_family(&labels)?)?;
        }
        let counters = [
            (WATCH_RESTARTS, (|w| &w.restarts) as fn(&WatchHealth) -> &std::sync::atomic::AtomicU64),
            (WATCH_LISTS, |w| &w.lists),
            (UNREADABLE, |w| &w.unreadable),
        ];
        for (description, of) in counters {
            let kind = ConstCounter::new(0u64).metric_type();
            let mut family = encoder.encode_descriptor(description.name, description.help, None, kind)?;
            for watch in &self.0 {
                let labels = [("resource", watch.resource)];
                let value = of(watch).load(Ordering::Relaxed);
                ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct PulseMetrics(Pulse);

impl Collector for PulseMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let silence = ConstGauge::new(self.0.silence().as_secs_f64());
        silence.encode(encoder.encode_descriptor(SILENCE.name, SILENCE.help, None, silence.metric_type())?)
    }
}

#[derive(Debug)]
struct ClockMetrics(Time);

impl Collector for ClockMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let clocks = ConstGauge::new(i64::try_from(self.0.clocks()).unwrap_or(i64::MAX));
        clocks.encode(encoder.encode_descriptor(CLOCKS.name, CLOCKS.help, None, clocks.metric_type())?)?;
        let Some((least, most)) = self.0.offset_seconds() else { return Ok(()) };
        let kind = ConstGauge::new(0f64).metric_type();
        let mut family = encoder.encode_descriptor(CLOCK.name, CLOCK.help, None, kind)?;
        for (bound, value) in [("least", least), ("most", most)] {
            ConstGauge::new(value).encode(family.encode_family(&[("bound", bound)])?)?;
        }
        Ok(())
    }
}

/// A reference page of every metric, as markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# Metrics\n\nServed at `/metrics` on the address given by `bind`. Made from the code by `salvor`; do not edit.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for Description { name, kind, labels, help } in ALL {
        let suffix = if *kind == "counter" { "_total" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{name}{suffix}` | {kind} | {labels} | {help}. |");
    }
    page
}

#[cfg(test)]
mod tests {
    use salvor_recovery::job::{CompletionMode, FailureAction, JobCondition, JobSpec, JobStatus};

    use super::*;

    fn sample() -> String {
        let time = Time::system();
        time.learn(time.local(), time.local(), time.local());
        let metrics = Metrics::new(&time);
        metrics.show_watches(vec![WatchHealth::new("pods")]);
        metrics.show_pulse(Pulse::of_this_thread());
        metrics.verdict("zombie", "Act", "Zombie");
        metrics.done("zombie", 0.2);
        metrics.wrote("PatchPodStatus", "ok");
        metrics.retried("zombie");
        metrics.held("zombie", "MaxPodsPerMinute");
        metrics.queue("zombie", 1, 2);
        metrics.evictions(&[("started", 1)], 10);
        metrics.admitted("a.salvor.dev", "allowed");
        metrics.certificate_expires(Timestamp::UNIX_EPOCH);
        metrics.job().pod_created("new", "succeeded");
        metrics.job().synced(
            &CompletionMode::Indexed,
            true,
            SyncAction::PodsCreated,
            std::time::Duration::from_millis(5),
        );
        metrics.job().failure_handled(FailureAction::Ignore);
        metrics.job().ended_pod_tracked("add");
        metrics.job().external_job("other");
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
        metrics.job().status_written(&spec, &JobStatus::default(), &done);
        metrics.render()
    }

    #[test]
    fn the_text_is_prometheus_own_format() {
        let text = sample();
        assert!(text.contains("# TYPE salvor_writes_total counter\n"), "{text}");
        assert!(text.contains("salvor_writes_total{action=\"PatchPodStatus\",result=\"ok\"} 1\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn jobs_are_counted_under_the_names_and_labels_of_the_built_in_controller() {
        let text = sample();
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
    }

    /// What `promtool check metrics` asks: help for every metric, counters end in `_total` and nothing else does,
    /// no colons, no abbreviated units.
    #[test]
    fn names_and_help_follow_the_rules_of_promtool() {
        let text = sample();
        for line in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            // What a Job controller counts has the names that dashboards know from the built-in one.
            let ours = name.starts_with("salvor_") || name.starts_with("job_controller_");
            assert!(!name.contains(':') && ours, "{line}");
            let help = format!("# HELP {name} ");
            assert!(text.lines().any(|l| l.starts_with(&help) && l.len() > help.len()), "no help for {name}");
        }
    }

    #[test]
    fn every_metric_is_described_and_every_description_is_a_metric() {
        let text = sample();
        for description in ALL {
            assert!(
                text.contains(&format!("# TYPE {}", description.name)),
                "{} is not served",
                description.name
            );
        }
        let served = text.lines().filter(|l| l.starts_with("# TYPE ")).count();
        assert_eq!(served, ALL.len());
    }
}
