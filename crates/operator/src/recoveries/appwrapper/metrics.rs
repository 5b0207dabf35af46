//! The metrics of the AppWrapper recovery, under the names that dashboards for CodeFlare's controller use.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use salvor_recovery::appwrapper::Phase;

use crate::metrics::descriptions;

descriptions! { METRICS;
    PHASES = "appwrapper_phase", "counter", "namespace, phase", "Transitions of AppWrappers into a phase, without Terminating";
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    namespace: String,
    phase: String,
}

/// Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppWrapperMetrics {
    phases: Family<PhaseLabels, Counter>,
}

impl AppWrapperMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(PHASES.name, PHASES.help, metrics.phases.clone());
        metrics
    }

    pub(super) fn entered(&self, namespace: &str, phase: &Phase) {
        let counts = match phase {
            Phase::Suspended
            | Phase::Resuming
            | Phase::Running
            | Phase::Resetting
            | Phase::Suspending
            | Phase::Succeeded
            | Phase::Failed => true,
            Phase::Empty | Phase::Terminating | Phase::Unknown(_) => false,
        };
        if counts {
            let labels = PhaseLabels { namespace: namespace.to_owned(), phase: phase.to_string() };
            self.phases.get_or_create(&labels).inc();
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
        let own = metrics.own(AppWrapperMetrics::register);
        own.entered("ns", &Phase::Running);
        own.entered("ns", &Phase::Terminating);
        let text = metrics.render();
        let line = "appwrapper_phase_total{namespace=\"ns\",phase=\"Running\"} 1";
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        assert!(!text.contains("phase=\"Terminating\""));
        crate::metrics::check::described(&text, METRICS, "appwrapper_");
    }
}
