//! `/metrics`, `/healthz` and `/readyz`.

use std::{future::Future, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{metrics::Metrics, watch::WatchHealth};

/// Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the endpoints tell.
#[derive(Clone)]
pub(crate) struct Endpoints {
    pub(crate) metrics: Metrics,
    pub(crate) watches: Vec<Arc<WatchHealth>>,
    /// A watch that is silent for longer makes `/readyz` fail.
    pub(crate) ready_limit: Duration,
}

impl Endpoints {
    /// Serves until `stop` ends.
    pub(crate) async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()> + Send + 'static) {
        let metrics = self.metrics.clone();
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(move || std::future::ready(self.readiness())))
            .route("/metrics", get(async move || ([(CONTENT_TYPE, METRICS_TYPE)], metrics.render())));
        if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stop).await {
            tracing::error!(%error, "the metrics and health server ended");
        }
    }

    /// Ready when every watch has its first list and has heard from the server lately. A follower is ready too.
    fn readiness(&self) -> (StatusCode, String) {
        let mut problems = String::new();
        for watch in &self.watches {
            if !watch.is_synced() {
                problems.push_str(&format!("watch of {}: not listed yet\n", watch.resource));
            } else if watch.staleness() > self.ready_limit {
                let silent = watch.staleness().as_secs();
                problems.push_str(&format!("watch of {}: nothing heard for {silent} s\n", watch.resource));
            }
        }
        if problems.is_empty() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, problems)
        }
    }
}
