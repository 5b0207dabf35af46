//! The metrics of the eviction recovery.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::metrics::{as_gauge, descriptions};

descriptions! { METRICS;
    EVICTIONS = "salvor_eviction_nodes", "gauge", "state", "Nodes under eviction, by state: requested, started, or finished and waiting until the node is Ready";
    EVICTION_PODS = "salvor_eviction_pods", "gauge", "", "Pods on nodes under eviction, including pods that stay";
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvictionMetrics {
    nodes: Family<StateLabel, Gauge>,
    pods: Gauge,
}

impl EvictionMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(EVICTIONS.name, EVICTIONS.help, metrics.nodes.clone());
        registry.register(EVICTION_PODS.name, EVICTION_PODS.help, metrics.pods.clone());
        metrics
    }

    /// Sets how many nodes are in which state of their eviction, and how many pods are on them.
    pub(crate) fn evictions(&self, nodes: &[(&'static str, usize)], pods: usize) {
        for (state, nodes) in nodes {
            self.nodes.get_or_create(&StateLabel { state }).set(as_gauge(*nodes));
        }
        self.pods.set(as_gauge(pods));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics::Metrics, time::Time};

    #[test]
    fn every_metric_is_described_and_served() {
        let metrics = Metrics::new(&Time::system());
        metrics.own(EvictionMetrics::register).evictions(&[("started", 1)], 10);
        let text = metrics.render();
        for line in ["salvor_eviction_nodes{state=\"started\"} 1", "salvor_eviction_pods 10"] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        crate::metrics::check::described(&text, METRICS, "salvor_eviction_");
    }
}
