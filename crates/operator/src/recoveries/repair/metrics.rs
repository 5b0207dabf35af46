//! The metrics of the repair recovery.

use std::collections::BTreeMap;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use salvor_recovery::repair::Survey;

use crate::metrics::{as_gauge, descriptions};

descriptions! { METRICS;
    NODES = "salvor_repair_nodes", "gauge", "policy, state", "Nodes of a repair policy, by state: healthy, waiting for the end of their toleration, vetoed, blocked, or being repaired";
    BLOCKED = "salvor_repair_blocked_nodes", "gauge", "policy, cause", "Nodes past their toleration whose repair is blocked, by cause";
    STARTED = "salvor_repair_started", "counter", "policy, action, condition", "Repairs started, by action: Replace or Reboot, and Drain or DeleteNode for nodes without an owner";
    REPAIRED = "salvor_repair_repaired", "counter", "policy, action", "Repairs that succeeded: machines replaced or rebooted";
    SECONDS = "salvor_repair_seconds", "histogram", "", "Seconds from when a node became unhealthy until its repair ended";
}

/// Causes that are shown even while they block nothing.
const CAUSES: [&str; 17] = [
    "TooManyUnhealthy",
    "BudgetExhausted",
    "ZoneOutage",
    "PoolOutage",
    "RepairsDoNotHelp",
    "LaunchFailures",
    "Paused",
    "NoBackend",
    "AnotherRecovery",
    "BackendFailed",
    "LadderExhausted",
    "MachineMayRun",
    "AnnotationUnreadable",
    "MaxNodesPerMinute",
    "MaxUnreachablePercent",
    "ZoneDown",
    "Gradual",
];

/// Seconds, from half a minute to a day: most of it is tolerations.
const BUCKETS: [f64; 10] = [30.0, 60.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    policy: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    policy: String,
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartedLabels {
    policy: String,
    action: String,
    condition: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairedLabels {
    policy: String,
    action: String,
}

/// Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RepairMetrics {
    nodes: Family<StateLabels, Gauge>,
    blocked: Family<CauseLabels, Gauge>,
    started: Family<StartedLabels, Counter>,
    repaired: Family<RepairedLabels, Counter>,
    seconds: Histogram,
}

impl RepairMetrics {
    /// Metrics that are not exported.
    pub(super) fn unread() -> Self {
        Self {
            nodes: Family::default(),
            blocked: Family::default(),
            started: Family::default(),
            repaired: Family::default(),
            seconds: Histogram::new(BUCKETS),
        }
    }

    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unread();
        registry.register(NODES.name, NODES.help, metrics.nodes.clone());
        registry.register(BLOCKED.name, BLOCKED.help, metrics.blocked.clone());
        registry.register(STARTED.name, STARTED.help, metrics.started.clone());
        registry.register(REPAIRED.name, REPAIRED.help, metrics.repaired.clone());
        registry.register(SECONDS.name, SECONDS.help, metrics.seconds.clone());
        metrics
    }

    pub(super) fn show(&self, policy: &str, survey: &Survey, repairing: usize) {
        let begun_and_held = survey.begun_and_held.len();
        let held = survey.held.values().sum::<usize>() + begun_and_held;
        let states = [
            ("healthy", survey.healthy),
            ("waiting", survey.waiting),
            ("vetoed", survey.vetoed),
            ("blocked", held),
            ("repairing", repairing.saturating_sub(begun_and_held)),
        ];
        for (state, nodes) in states {
            self.nodes.get_or_create(&StateLabels { policy: policy.to_owned(), state }).set(as_gauge(nodes));
        }
        let mut causes: BTreeMap<String, usize> = BTreeMap::new();
        causes.extend(survey.held.iter().map(|(cause, nodes)| ((*cause).to_owned(), *nodes)));
        for cause in &survey.begun_and_held {
            *causes.entry(cause.clone()).or_default() += 1;
        }
        for cause in CAUSES {
            causes.entry(cause.to_owned()).or_default();
        }
        for (cause, nodes) in causes {
            self.blocked
                .get_or_create(&CauseLabels { policy: policy.to_owned(), cause })
                .set(as_gauge(nodes));
        }
    }

    pub(super) fn forget(&self, policy: &str) {
        for state in ["healthy", "waiting", "vetoed", "blocked", "repairing"] {
            self.nodes.remove(&StateLabels { policy: policy.to_owned(), state });
        }
        for cause in CAUSES {
            self.blocked.remove(&CauseLabels { policy: policy.to_owned(), cause: cause.to_owned() });
        }
    }

    pub(super) fn started(&self, policy: &str, action: &str, condition: &str) {
        let (policy, action, condition) = (policy.to_owned(), action.to_owned(), condition.to_owned());
        self.started.get_or_create(&StartedLabels { policy, action, condition }).inc();
    }

    pub(super) fn repaired(&self, policy: &str, action: &str, seconds: Option<f64>) {
        let (policy, action) = (policy.to_owned(), action.to_owned());
        self.repaired.get_or_create(&RepairedLabels { policy, action }).inc();
        if let Some(seconds) = seconds {
            self.seconds.observe(seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics::Metrics, time::Time};

    #[test]
    fn every_metric_is_described_and_served() {
        let metrics = Metrics::new(&Time::system());
        let own = metrics.own(RepairMetrics::register);
        let held = vec!["MaxNodesPerMinute".to_owned()];
        own.show("gpu", &Survey { healthy: 3, vetoed: 1, begun_and_held: held, ..Survey::default() }, 3);
        own.started("gpu", "Replace", "Ready=False");
        own.repaired("gpu", "Replace", Some(700.0));
        let text = metrics.render();
        for line in [
            "salvor_repair_nodes{policy=\"gpu\",state=\"healthy\"} 3",
            "salvor_repair_nodes{policy=\"gpu\",state=\"vetoed\"} 1",
            "salvor_repair_nodes{policy=\"gpu\",state=\"blocked\"} 1",
            "salvor_repair_nodes{policy=\"gpu\",state=\"repairing\"} 2",
            "salvor_repair_blocked_nodes{policy=\"gpu\",cause=\"ZoneOutage\"} 0",
            "salvor_repair_blocked_nodes{policy=\"gpu\",cause=\"MaxNodesPerMinute\"} 1",
            "salvor_repair_started_total{policy=\"gpu\",action=\"Replace\",condition=\"Ready=False\"} 1",
            "salvor_repair_repaired_total{policy=\"gpu\",action=\"Replace\"} 1",
            "salvor_repair_seconds_count 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        crate::metrics::check::described(&text, METRICS, "salvor_repair_");
    }
}
