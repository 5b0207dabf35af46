//! The pause switch: whether a user has paused Salvor, which writes are still in flight, and the acknowledgement.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use salvor_api::{config::LeaderElection, names::annotations};
use salvor_recovery::{
    brake::Held,
    pause::{Pause, PauseAcknowledged, pause_token},
};
use tokio::sync::Notify;

use crate::{
    client::live,
    metrics::Metrics,
    time::{Time, std_duration},
};

/// Timeout of a read or an acknowledgement, after which it is retried.
const PATIENCE: Duration = Duration::from_secs(10);

/// Every writer checks this first. Clones share it.
///
/// While it is on, no write begins. It is acknowledged only when no write is in flight any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct PauseSwitch(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    on: Option<On>,
    /// Writes in flight.
    under_way: usize,
    /// Counts changes.
    version: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct On {
    pause: Pause,
    /// The value of the annotation; `None` before it was read.
    annotation: Option<String>,
}

/// Permission for one write, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pass(PauseSwitch);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.state().under_way -= 1;
    }
}

impl PauseSwitch {
    /// Blocks all writes until the switch has been read.
    pub(crate) fn wait_until_read(&self) {
        self.put(Some(On { pause: Pause::Unread, annotation: None }));
    }

    /// Applies the annotation, or its absence.
    pub(crate) fn set(&self, annotation: Option<&str>) {
        let on = annotation.map(|text| On { pause: Pause::read(text), annotation: Some(text.to_owned()) });
        self.put(on);
    }

    fn put(&self, on: Option<On>) {
        let mut state = self.state();
        if state.on == on {
            return;
        }
        match &on {
            Some(On { pause: Pause::Unread, .. }) => {}
            Some(On { pause, .. }) => tracing::warn!(%pause, "writes paused"),
            None if state.on.as_ref().is_some_and(|on| on.annotation.is_none()) => {}
            None => tracing::info!("writes resumed"),
        }
        state.on = on;
        state.version += 1;
        drop(state);
        self.0.changed.notify_waiters();
    }

    pub(crate) fn held(&self) -> Option<Held> {
        self.state().on.as_ref().map(|on| Held::Paused { pause: Box::new(on.pause.clone()) })
    }

    /// Waits until the switch has changed since version `seen`. Returns the new version.
    pub(crate) async fn changed(&self, seen: u64) -> u64 {
        loop {
            // Register before reading the version, so that no change is missed.
            let changed = self.0.changed.notified();
            let version = self.state().version;
            if version != seen {
                return version;
            }
            changed.await;
        }
    }

    /// Permission for one write; `None` while the pause is on.
    pub(crate) fn enter(&self) -> Option<Pass> {
        let mut state = self.state();
        if state.on.is_some() {
            return None;
        }
        state.under_way += 1;
        Some(Pass(self.clone()))
    }

    pub(crate) fn annotation(&self) -> Option<String> {
        self.state().on.as_ref().and_then(|on| on.annotation.clone())
    }

    /// The token of the pause that can be acknowledged: it is on, and no write is in flight.
    fn stopped(&self) -> Option<String> {
        let state = self.state();
        let annotation = state.on.as_ref().filter(|_| state.under_way == 0)?.annotation.as_deref()?;
        Some(pause_token(annotation))
    }

    /// Writes the acknowledgement into the annotations of a Lease, or removes an old one. Returns whether that changed
    /// them.
    pub(crate) fn acknowledge(
        &self,
        annotations: &mut BTreeMap<String, String>,
        identity: &str,
        now: Timestamp,
    ) -> bool {
        let key = annotations::PAUSED_ACKNOWLEDGED;
        let known =
            annotations.get(key).and_then(|text| serde_json::from_str::<PauseAcknowledged>(text).ok());
        match self.stopped() {
            Some(token) if known.is_some_and(|known| known.of == token && known.by == identity) => false,
            Some(of) => {
                let acknowledged = PauseAcknowledged { by: identity.to_owned(), at: now, of };
                // Strings and times always serialize to JSON.
                let text = serde_json::to_string(&acknowledged).unwrap_or_default();
                annotations.insert(key.to_owned(), text);
                true
            }
            None => annotations.remove(key).is_some(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause annotation of a Lease, unless the pause has ended by itself.
pub(crate) fn paused(lease: &Lease, now: Timestamp) -> Option<&str> {
    let annotation = lease.metadata.annotations.as_ref()?.get(annotations::PAUSED)?;
    (!Pause::read(annotation).is_over(now)).then_some(annotation)
}

/// Reads and acknowledges the switch where there is no election.
pub(crate) struct SwitchWatch {
    pub(crate) client: Client,
    pub(crate) settings: LeaderElection,
    pub(crate) identity: String,
    pub(crate) time: Time,
    pub(crate) metrics: Metrics,
    pub(crate) switch: PauseSwitch,
}

impl SwitchWatch {
    /// Reads the switch every retry period, for ever.
    pub(crate) async fn run(self) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.settings.lease_namespace);
        let mut said = String::new();
        loop {
            let problem = match tokio::time::timeout(PATIENCE, self.look(&leases)).await {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => live::brief(&error),
                Err(_) => "no answer".to_owned(),
            };
            if problem != said && !problem.is_empty() {
                tracing::warn!(
                    lease = format!("{}/{}", self.settings.lease_namespace, self.settings.lease_name),
                    problem,
                    "salvor pause not read or acknowledged, retrying"
                );
            }
            said = problem;
            self.metrics.paused(self.switch.annotation().is_some());
            tokio::time::sleep(std_duration(self.settings.retry_period)).await;
        }
    }

    async fn look(&self, leases: &Api<Lease>) -> kube::Result<()> {
        let switch = &self.switch;
        let found = match leases.get_opt(&self.settings.lease_name).await {
            Ok(found) => found,
            Err(error) => {
                // A process that may not read the Lease cannot be paused through it.
                if matches!(&error, kube::Error::Api(status) if status.code == 403) {
                    switch.set(None);
                }
                return Err(error);
            }
        };
        switch.set(found.as_ref().and_then(|lease| paused(lease, self.time.server())));
        let Some(mut lease) = found else { return Ok(()) };
        let annotations = lease.metadata.annotations.get_or_insert_default();
        if !switch.acknowledge(annotations, &self.identity, self.time.roughly()) {
            return Ok(());
        }
        match leases.replace(&self.settings.lease_name, &PostParams::default(), &lease).await {
            // The Lease changed meanwhile: the next round reads it again.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"{"since":"2026-11-16T03:00:00Z","by":"jane","reason":"work"}"#;

    fn acknowledged(switch: &PauseSwitch) -> Option<String> {
        let mut annotations = BTreeMap::new();
        switch.acknowledge(&mut annotations, "us", Timestamp::UNIX_EPOCH);
        annotations.remove(annotations::PAUSED_ACKNOWLEDGED)
    }

    #[test]
    fn it_is_acknowledged_only_when_nothing_is_under_way_and_then_nothing_begins() {
        let switch = PauseSwitch::default();
        let (first, second) = (switch.enter().unwrap(), switch.enter().unwrap());
        switch.set(Some(SAID));
        assert!(switch.enter().is_none(), "no write begins from now on");
        drop(first);
        assert_eq!(acknowledged(&switch), None, "one is under way");
        drop(second);
        let acknowledged = acknowledged(&switch).unwrap();
        assert!(acknowledged.contains(&pause_token(SAID)) && acknowledged.contains("us"), "{acknowledged}");
        assert!(switch.enter().is_none());
        switch.set(None);
        assert!(switch.enter().is_some());
    }

    #[test]
    fn an_acknowledgement_is_written_once_and_taken_off_when_it_is_over() {
        let switch = PauseSwitch::default();
        let mut annotations = BTreeMap::new();
        let acknowledge =
            |annotations: &mut _, who| switch.acknowledge(annotations, who, Timestamp::UNIX_EPOCH);
        assert!(!acknowledge(&mut annotations, "us"));
        switch.set(Some(SAID));
        assert!(acknowledge(&mut annotations, "us"));
        assert!(!acknowledge(&mut annotations, "us"));
        assert!(acknowledge(&mut annotations, "next"), "whoever leads next has stopped as well");
        switch.set(Some("garbage"));
        assert!(acknowledge(&mut annotations, "next"), "another pause is another acknowledgement");
        switch.set(None);
        assert!(acknowledge(&mut annotations, "next"));
        assert_eq!(annotations.get(annotations::PAUSED_ACKNOWLEDGED), None);
    }

    #[test]
    fn before_it_is_read_nothing_is_written_and_nothing_acknowledged() {
        let switch = PauseSwitch::default();
        switch.wait_until_read();
        assert!(switch.enter().is_none());
        assert_eq!((acknowledged(&switch), switch.annotation()), (None, None));
        assert_eq!(switch.held().unwrap().to_string(), "Salvor does not know yet whether it is paused");
        switch.set(None);
        assert_eq!(switch.held(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_hears_of_every_change() {
        let switch = PauseSwitch::default();
        let waiting = tokio::spawn({
            let switch = switch.clone();
            async move { switch.changed(0).await }
        });
        tokio::task::yield_now().await;
        switch.set(None);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "nothing has changed");
        switch.set(Some(SAID));
        assert_eq!(waiting.await.unwrap(), 1);
        assert_eq!(switch.changed(0).await, 1);
    }
}
