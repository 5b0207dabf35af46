//! Runs the checks when `salvor run` starts: in the background, with a timeout, and only those that can find errors.

use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use salvor_api::config::Configuration;
use salvor_operator::{CheckAtStart, story};
use tokio::{runtime, time};

use super::{Depth, Severity, examine};
use crate::cluster::Cluster;

/// A check that takes longer is cancelled.
const LONGEST: Duration = Duration::from_secs(60);
/// Retries, because the API server may start later than Salvor.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(30);

/// Runs the checks on a separate thread, so that recoveries, readiness and the leader election do not wait for them.
/// Skips what it may not read. The thread ends by itself or with the process.
pub(crate) fn check_in_background(cluster: &Cluster, configuration: &Configuration, told: CheckAtStart) {
    let cluster = cluster
        .calling_itself(HeaderValue::from_static(concat!("salvor-doctor/", env!("CARGO_PKG_VERSION"))));
    let configuration = configuration.clone();
    let work = move || {
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(check(&cluster, &configuration, &told));
    };
    if let Err(error) = std::thread::Builder::new().name("doctor".to_owned()).spawn(work) {
        tracing::info!(%error, "doctor check skipped: no thread");
    }
}

async fn check(cluster: &Cluster, configuration: &Configuration, told: &CheckAtStart) {
    for attempt in 1..=TRIES {
        let problem = match time::timeout(LONGEST, examine(cluster, configuration, Depth::Errors)).await {
            Ok(Ok(checkup)) => {
                let errors = checkup.findings.iter().filter(|it| it.severity == Severity::Error);
                let errors: Vec<_> = errors.collect();
                for finding in &errors {
                    let (why, fix) = (finding.why.as_str(), finding.fix.as_str());
                    tracing::error!(
                        check = finding.check.name(),
                        why,
                        fix,
                        "salvor doctor: {}",
                        finding.what
                    );
                }
                told.found(errors.len());
                return;
            }
            Ok(Err(error)) => story(&error),
            Err(_) => format!("it took longer than {LONGEST:?}"),
        };
        tracing::info!(attempt, problem, "doctor check failed");
        if attempt < TRIES {
            time::sleep(PAUSE).await;
        }
    }
}

impl Cluster {
    /// The same cluster with another user agent.
    fn calling_itself(&self, name: HeaderValue) -> Self {
        let mut config = self.config.clone();
        config.headers.retain(|(header, _)| *header != USER_AGENT);
        config.headers.push((USER_AGENT, name));
        Self { config, origin: self.origin.clone() }
    }
}
