//! The metrics that all recoveries share: name, labels, meaning. Those of one recovery are in its own folder. The
//! reference page is generated from these tables.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::Ordering},
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

use crate::{
    lead::watchdog::Watchdog,
    time::Time,
    watch_set::watch::{WatchHealth, WatchSet},
};

pub(crate) mod reference;

/// Seconds from due to done. The buckets cover a lone pod as well as the tail of a storm.
const DUE_TO_DONE_BUCKETS: [f64; 11] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Seconds of a phase. By default a recovery takes seven minutes, and with a volume thirteen.
const PHASE_BUCKETS: [f64; 12] =
    [1.0, 5.0, 15.0, 30.0, 60.0, 80.0, 120.0, 300.0, 450.0, 600.0, 900.0, 3600.0];

/// One metric, as the reference page describes it.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) labels: &'static str,
    pub(crate) help: &'static str,
}

/// Defines a constant for every description, and a table of all of them.
macro_rules! descriptions {
    ($table:ident; $($constant:ident = $name:literal, $kind:literal, $labels:literal, $help:literal;)*) => {
        $(const $constant: $crate::metrics::Description =
            $crate::metrics::Description { name: $name, kind: $kind, labels: $labels, help: $help };)*
        pub(crate) const $table: &[$crate::metrics::Description] = &[$($constant),*];
    };
}

pub(crate) use descriptions;

descriptions! { FIRST;
    BUILD_INFO = "salvor_build_info", "gauge", "version", "Always 1. The label is the version of Salvor";
    LEADER = "salvor_leader", "gauge", "", "1 while this replica leads and may write, 0 while it follows";
    VERDICTS = "salvor_verdicts", "counter", "recovery, verdict, reason", "Verdicts, counted when the verdict or the reason of a subject changes";
    DUE_TO_DONE = "salvor_due_to_done_seconds", "histogram", "recovery", "Seconds from when an action was due until its write succeeded";
    PHASES = "salvor_recovery_seconds", "histogram", "recovery, phase", "Seconds that each phase of a recovery took, by the names of `salvor simulate`: detect (the node is marked unreachable), evict (the deletion is requested), wait (it is due) and decide (the write succeeded). total is all of them";
    WRITES = "salvor_writes", "counter", "action, result", "Writes to the API server, by action and result";
    RETRIES = "salvor_retries", "counter", "recovery", "Retries of subjects after a failed write";
    QUEUE = "salvor_queue_depth", "gauge", "recovery", "Subjects in the work queue";
    IN_FLIGHT = "salvor_actions_in_flight", "gauge", "recovery", "Subjects with writes in progress";
    WAITING = "salvor_waiting", "gauge", "recovery, reason", "Subjects that wait for a point in time, by the reason of their verdict. Only the leader reports it";
    BLOCKED = "salvor_blocked", "gauge", "recovery, by", "Subjects that are due and blocked, by the limit that blocks them. Only the leader reports it";
    WITHOUT_CONSENT = "salvor_stuck_without_consent", "gauge", "recovery", "Pods that stay because consent is missing. zombie: terminating pods on unreachable nodes whose owner did not opt in. eviction: pods that must never run twice, on nodes without proof that the machine is off";
    BRAKE = "salvor_brake_engaged", "gauge", "", "1 while the brake blocks all recoveries because too many nodes are unreachable, or were during the settle period";
    PAUSED = "salvor_paused", "gauge", "", "1 while Salvor is paused by `salvor pause`. Every replica reports it";
    HELD = "salvor_held", "counter", "recovery, by", "Actions that were blocked, by the limit that blocked them";
    STALENESS = "salvor_watch_staleness_seconds", "gauge", "resource", "Seconds since the API server last sent anything on this watch, bookmarks included";
    WATCH_RESTARTS = "salvor_watch_restarts", "counter", "resource", "Restarts of a watch after a failure";
    WATCH_LISTS = "salvor_watch_lists", "counter", "resource", "Full lists of a resource";
    UNREADABLE = "salvor_watch_unreadable_objects", "counter", "resource", "Objects that were skipped because they are unreadable";
}

// The reference page lists the metrics of the recoveries in between.
descriptions! { LAST;
    ADMISSIONS = "salvor_admission_requests", "counter", "webhook, outcome", "Admission requests, by webhook and outcome: allowed, patched, denied, bad_request, timed_out or error";
    CERTIFICATE = "salvor_webhook_certificate_expiry_timestamp_seconds", "gauge", "", "Expiry of the webhook serving certificate, in seconds since 1970; 0 if no webhooks are served";
    SILENCE = "salvor_working_thread_silent_seconds", "gauge", "", "Seconds since the last heartbeat of the working thread, which watches, decides and writes. After 60 the Lease is released";
    CLOCK = "salvor_server_clock_offset_seconds", "gauge", "bound", "How far the API server's clock is ahead of the local clock: lower and upper bound";
    CLOCKS = "salvor_server_clocks", "gauge", "", "Number of different clocks in recent answers of the API server. The earliest one counts";
    DOCTOR = "salvor_doctor_errors", "gauge", "", "Errors found by `salvor doctor` when this process started. Absent until the check has ended";
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
struct PhaseLabels {
    recovery: &'static str,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitingLabels {
    recovery: &'static str,
    reason: &'static str,
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
    phases: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    writes: Family<WriteLabels, Counter>,
    retries: Family<RecoveryLabel, Counter>,
    queue: Family<RecoveryLabel, Gauge>,
    in_flight: Family<RecoveryLabel, Gauge>,
    waiting: Family<WaitingLabels, Gauge>,
    blocked: Family<HeldLabels, Gauge>,
    without_consent: Family<RecoveryLabel, Gauge>,
    held: Family<HeldLabels, Counter>,
    admissions: Family<AdmissionLabels, Counter>,
    certificate: Gauge,
}

impl Metrics {
    pub(crate) fn new(time: &Time) -> Self {
        let inner = Inner {
            registry: Mutex::new(Registry::default()),
            leader: Gauge::default(),
            brake: Gauge::default(),
            paused: Gauge::default(),
            verdicts: Family::default(),
            due_to_done: Family::new_with_constructor(|| Histogram::new(DUE_TO_DONE_BUCKETS)),
            phases: Family::new_with_constructor(|| Histogram::new(PHASE_BUCKETS)),
            writes: Family::default(),
            retries: Family::default(),
            queue: Family::default(),
            in_flight: Family::default(),
            waiting: Family::default(),
            blocked: Family::default(),
            without_consent: Family::default(),
            held: Family::default(),
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
            registry.register(PHASES.name, PHASES.help, metrics.0.phases.clone());
            registry.register(WRITES.name, WRITES.help, metrics.0.writes.clone());
            registry.register(RETRIES.name, RETRIES.help, metrics.0.retries.clone());
            registry.register(QUEUE.name, QUEUE.help, metrics.0.queue.clone());
            registry.register(IN_FLIGHT.name, IN_FLIGHT.help, metrics.0.in_flight.clone());
            registry.register(WAITING.name, WAITING.help, metrics.0.waiting.clone());
            registry.register(BLOCKED.name, BLOCKED.help, metrics.0.blocked.clone());
            registry.register(WITHOUT_CONSENT.name, WITHOUT_CONSENT.help, metrics.0.without_consent.clone());
            registry.register(HELD.name, HELD.help, metrics.0.held.clone());
            registry.register(ADMISSIONS.name, ADMISSIONS.help, metrics.0.admissions.clone());
            registry.register(CERTIFICATE.name, CERTIFICATE.help, metrics.0.certificate.clone());
            registry.register_collector(Box::new(ClockMetrics(time.clone())));
        }
        metrics
    }

    pub(crate) fn show_watches(&self, watches: WatchSet) {
        self.registry().register_collector(Box::new(WatchMetrics(watches)));
    }

    pub(crate) fn show_watchdog(&self, watchdog: Watchdog) {
        self.registry().register_collector(Box::new(WatchdogMetrics(watchdog)));
    }

    pub(crate) fn show_check(&self, check: CheckAtStart) {
        self.registry().register_collector(Box::new(check));
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

    pub(crate) fn took(&self, recovery: &'static str, phase: &'static str, seconds: f64) {
        self.0.phases.get_or_create(&PhaseLabels { recovery, phase }).observe(seconds);
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

    pub(crate) fn waiting(&self, recovery: &'static str, reason: &'static str, subjects: usize) {
        self.0.waiting.get_or_create(&WaitingLabels { recovery, reason }).set(as_gauge(subjects));
    }

    pub(crate) fn blocked(&self, recovery: &'static str, by: &'static str, subjects: usize) {
        self.0.blocked.get_or_create(&HeldLabels { recovery, by }).set(as_gauge(subjects));
    }

    pub(crate) fn without_consent(&self, recovery: &'static str, subjects: usize) {
        self.0.without_consent.get_or_create(&RecoveryLabel { recovery }).set(as_gauge(subjects));
    }

    pub(crate) fn own<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry())
    }

    pub(crate) fn queue(&self, recovery: &'static str, waiting: usize, in_flight: usize) {
        self.0.queue.get_or_create(&RecoveryLabel { recovery }).set(as_gauge(waiting));
        self.0.in_flight.get_or_create(&RecoveryLabel { recovery }).set(as_gauge(in_flight));
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry()) {
            Ok(()) => prometheus_text(&text),
            Err(error) => {
                tracing::error!(%error, "metrics encoding failed");
                String::new()
            }
        }
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn as_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// OpenMetrics names a counter without its suffix in HELP and TYPE; Prometheus' own text format, which most tools check
/// against, uses the name of the sample. Our help texts have no full stop, so the one that the library appends is
/// removed.
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

/// The number of errors that the check of the cluster found when the process started. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CheckAtStart(Arc<OnceLock<usize>>);

impl CheckAtStart {
    /// Records the result of the check. Only the first call counts.
    pub fn found(&self, errors: usize) {
        // The check runs only once.
        let _ = self.0.set(errors);
    }
}

impl Collector for CheckAtStart {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(errors) = self.0.get() else { return Ok(()) };
        let errors = ConstGauge::new(as_gauge(*errors));
        errors.encode(encoder.encode_descriptor(DOCTOR.name, DOCTOR.help, None, errors.metric_type())?)
    }
}

#[derive(Debug)]
struct WatchMetrics(WatchSet);

impl Collector for WatchMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let watches = self.0.all();
        let gauge = ConstGauge::new(0f64);
        let mut staleness =
            encoder.encode_descriptor(STALENESS.name, STALENESS.help, None, gauge.metric_type())?;
        for watch in &watches {
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
            for watch in &watches {
                let labels = [("resource", watch.resource)];
                let value = of(watch).load(Ordering::Relaxed);
                ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct WatchdogMetrics(Watchdog);

impl Collector for WatchdogMetrics {
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

/// Checks for the tests of every table of metrics.
#[cfg(test)]
pub(crate) mod check {
    use super::Description;

    /// Fails unless a table has exactly those metrics of a text whose names start with `prefix`, each named and
    /// described as `promtool check metrics` requires: help for every metric, counters end in `_total` and nothing else
    /// does, no colons.
    pub(crate) fn described(text: &str, table: &[Description], prefix: &str) {
        let mut served = 0;
        for line in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.strip_prefix(prefix)) {
            let line = format!("{prefix}{line}");
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(!name.contains(':'), "{line}");
            let help = format!("# HELP {name} ");
            assert!(text.lines().any(|l| l.starts_with(&help) && l.len() > help.len()), "no help for {name}");
            let described = |it: &Description| it.name == name.strip_suffix("_total").unwrap_or(name);
            assert!(table.iter().any(described), "{name} is not described");
            served += 1;
        }
        for Description { name, .. } in table {
            assert!(text.contains(&format!("# TYPE {name}")), "{name} is not served");
        }
        assert_eq!(served, table.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> String {
        let time = Time::system();
        time.learn(time.local(), time.local(), time.local());
        let metrics = Metrics::new(&time);
        metrics.show_watches(vec![WatchHealth::new("pods")].into());
        metrics.show_watchdog(Watchdog::of_this_thread());
        metrics.verdict("zombie", "Act", "Zombie");
        metrics.done("zombie", 0.2);
        metrics.took("zombie", "detect", 47.0);
        metrics.wrote("PatchPodStatus", "ok");
        metrics.retried("zombie");
        metrics.held("zombie", "MaxPodsPerMinute");
        metrics.queue("zombie", 1, 2);
        metrics.waiting("zombie", "GraceRunning", 1);
        metrics.blocked("zombie", "ZoneDown", 1);
        metrics.without_consent("zombie", 1);
        metrics.admitted("a.salvor.dev", "allowed");
        metrics.certificate_expires(Timestamp::UNIX_EPOCH);
        let check = CheckAtStart::default();
        metrics.show_check(check.clone());
        assert!(!metrics.render().contains(DOCTOR.name), "nothing is known yet");
        check.found(0);
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
    fn every_metric_is_described_and_every_description_is_a_metric() {
        let table: Vec<Description> = FIRST.iter().chain(LAST).map(|it| Description { ..*it }).collect();
        check::described(&sample(), &table, "");
    }
}
