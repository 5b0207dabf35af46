//! `/metrics`, `/healthz` and `/readyz`. Served on another thread than the working one, where there is one.

use std::{future::Future, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{
    lead::watchdog::{Condition, Watchdog},
    metrics::Metrics,
    serve::{Limits, serve},
    watch_set::watch::WatchSet,
    webhooks::Readiness,
};

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone)]
pub(crate) struct Endpoints {
    pub(crate) metrics: Metrics,
    pub(crate) watches: WatchSet,
    /// A watch that is silent for longer makes `/readyz` fail.
    pub(crate) ready_limit: Duration,
    pub(crate) watchdog: Watchdog,
    /// Present if webhooks are served.
    pub(crate) webhooks: Option<Readiness>,
}

impl Endpoints {
    pub(crate) async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()> + Send + 'static) {
        let (metrics, watchdog) = (self.metrics.clone(), self.watchdog.clone());
        let router = Router::new()
            .route("/healthz", get(move || std::future::ready(liveness(&watchdog))))
            .route("/readyz", get(move || std::future::ready(self.readiness())))
            .route("/metrics", get(async move || ([(CONTENT_TYPE, METRICS_TYPE)], metrics.render())));
        serve(listener, router, Limits::default(), stop).await;
    }

    /// Ready when every watch of a served resource has its first list and received something from the server lately,
    /// and the API server can call our webhooks. A follower is ready too.
    fn readiness(&self) -> (StatusCode, String) {
        let mut problems = String::new();
        for watch in self.watches.all() {
            // Only the recovery whose definition is missing waits for it; the others and the webhooks work.
            if watch.is_not_served() {
                continue;
            }
            if !watch.is_synced() {
                problems.push_str(&format!(
                    "watch of {}: not listed yet, or not since revisions went backwards\n",
                    watch.resource
                ));
            } else if watch.staleness() > self.ready_limit {
                let silent = watch.staleness().as_secs();
                problems.push_str(&format!("watch of {}: nothing heard for {silent} s\n", watch.resource));
            }
        }
        if let Some(problem) = self.webhooks.as_ref().and_then(Readiness::problem) {
            problems.push_str(&format!("webhooks: {problem}\n"));
        }
        if problems.is_empty() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, problems)
        }
    }
}

/// Alive while the working thread makes progress, or may still finish a long turn.
fn liveness(watchdog: &Watchdog) -> (StatusCode, String) {
    match watchdog.condition() {
        Condition::Well => (StatusCode::OK, "ok\n".to_owned()),
        Condition::Busy(silence) => {
            (StatusCode::OK, format!("ok; the working thread has been busy for {} s\n", silence.as_secs()))
        }
        Condition::Stuck(silence) => {
            let text = format!("the working thread has not made a turn for {} s\n", silence.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch_set::watch::WatchHealth;

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_work_stands_still_says_so_and_is_not_alive_for_ever() {
        let watchdog = Watchdog::new();
        let says = |watchdog: &Watchdog| (liveness(watchdog).0.as_u16(), liveness(watchdog).1);
        assert_eq!(says(&watchdog), (200, "ok\n".to_owned()));
        tokio::time::sleep(Duration::from_secs(45)).await;
        assert_eq!(says(&watchdog), (200, "ok; the working thread has been busy for 45 s\n".to_owned()));
        tokio::time::sleep(Duration::from_secs(45)).await;
        assert_eq!(says(&watchdog), (503, "the working thread has not made a turn for 90 s\n".to_owned()));
        assert_eq!(says(&Watchdog::of_this_thread()).0, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_definition_that_is_missing_is_not_waited_for() {
        let (missing, awaited) = (WatchHealth::new("appwrappers"), WatchHealth::new("pods"));
        let endpoints = Endpoints {
            metrics: Metrics::new(&crate::time::Time::system()),
            watches: vec![missing.clone(), awaited.clone()].into(),
            ready_limit: Duration::from_secs(1),
            watchdog: Watchdog::of_this_thread(),
            webhooks: None,
        };
        let problems = || endpoints.readiness().1.lines().count();
        assert_eq!(problems(), 2);
        missing.mark_not_served();
        assert_eq!(problems(), 1);
        awaited.is_up_to_date();
        assert_eq!(endpoints.readiness().0, StatusCode::OK);
        missing.is_up_to_date();
        assert_eq!(endpoints.readiness().0, StatusCode::OK);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(problems(), 2, "it is served now, and counts");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_ready_whose_webhooks_cannot_be_called() {
        let webhooks = Readiness::new();
        let endpoints = Endpoints {
            metrics: Metrics::new(&crate::time::Time::system()),
            watches: WatchSet::default(),
            ready_limit: Duration::from_secs(1),
            watchdog: Watchdog::of_this_thread(),
            webhooks: Some(webhooks),
        };
        assert_eq!(
            endpoints.readiness(),
            (StatusCode::SERVICE_UNAVAILABLE, "webhooks: not begun yet\n".to_owned())
        );
        assert_eq!(Endpoints { webhooks: None, ..endpoints }.readiness().0, StatusCode::OK);
    }
}
