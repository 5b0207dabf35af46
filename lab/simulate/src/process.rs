//! An operator as a process that can be killed.

use bytes::Bytes;
use http::{Request, Response};
use jiff::Timestamp;
use kube::client::Body;
use salvor_api::config::Configuration;
use salvor_apiserver::{Cluster, Faults};
use salvor_operator::{Operator, Sleep, Surroundings};
use tower::{BoxError, Service};

use crate::line::Line;

/// A running operator with its connection to the API server. Dropping it is a kill: nothing that it has not sent will
/// arrive.
pub struct Process {
    operator: Option<Operator>,
    line: Line,
    sleep: Sleep,
}

impl Process {
    /// Starts an operator whose requests go over `line` and are subject to `faults`.
    pub fn start(
        cluster: &Cluster,
        identity: &str,
        configuration: &Configuration,
        line: Line,
        faults: &Faults,
    ) -> Self {
        Self::with_clock(cluster, cluster.now(), identity, configuration, line, faults)
    }

    /// Like `start`, on a machine whose clock shows `now`, independent of the server's clock.
    pub fn with_clock(
        cluster: &Cluster,
        now: Timestamp,
        identity: &str,
        configuration: &Configuration,
        line: Line,
        faults: &Faults,
    ) -> Self {
        let service = line.before(faults.before(cluster.clone()));
        Self::over(service, now, identity, configuration, line)
    }

    /// Like `start`, with a service of the caller, which contains `line`.
    pub fn over<S, B>(
        service: S,
        now: Timestamp,
        identity: &str,
        configuration: &Configuration,
        line: Line,
    ) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError> + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let sleep = Sleep::default();
        let surroundings = Surroundings::in_process(service, now, identity);
        let operator = sleep.over(|| Operator::start(surroundings, configuration));
        Self { operator: Some(operator), line, sleep }
    }

    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Pauses everything that runs in it, as SIGSTOP does, or resumes it.
    pub fn sleep(&self) -> &Sleep {
        &self.sleep
    }

    pub fn metrics(&self) -> String {
        self.operator.as_ref().map(Operator::metrics).unwrap_or_default()
    }

    /// Lets it finish work in progress and release its lease.
    pub async fn stop(mut self) {
        if let Some(operator) = self.operator.take() {
            operator.stop().await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.line.cut();
    }
}
