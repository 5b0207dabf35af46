//! Pauses Salvor by hand: sets an annotation on the election's Lease, and waits for the leader's acknowledgement.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use salvor_api::{config::LeaderElection, names::annotations};
use salvor_recovery::pause::{Pause, Said, pause_token};
use serde_json::json;

use crate::{
    client::live,
    lead::{pause::paused, published::acknowledged},
    time::Time,
};

/// Interval at which the Lease is read for an acknowledgement.
const PERIOD: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    #[error("cannot read {what}: {}", live::in_full(.error))]
    Read {
        /// The object that was read.
        what: String,
        error: kube::Error,
    },
    #[error("cannot write {what}: {}", live::in_full(.error))]
    Write {
        /// The object that was written.
        what: String,
        error: kube::Error,
    },
}

/// Access to a cluster in which Salvor may be paused.
#[derive(Clone)]
pub struct PauseClient {
    leases: Api<Lease>,
    client: Client,
    settings: LeaderElection,
    time: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// The user, the time and the reason.
    pub pause: Pause,
    /// True if it was already paused.
    pub already: bool,
    token: String,
}

impl PauseClient {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// If the configuration yields no client.
    pub fn open(config: kube::Config, settings: &LeaderElection) -> Result<Self, PauseError> {
        let time = Time::system();
        let client = crate::client::connect(config, &time)
            .map_err(|error| PauseError::Read { what: "the API".to_owned(), error })?;
        let leases = Api::namespaced(client.clone(), &settings.lease_namespace);
        Ok(Self { leases, client, settings: settings.clone(), time })
    }

    /// Pauses Salvor, for a time or until it is resumed, unless it is already paused.
    ///
    /// # Errors
    /// If the Lease cannot be read or written.
    pub fn pause<'a>(
        &'a self,
        by: &'a str,
        reason: &'a str,
        lasts: Option<SignedDuration>,
    ) -> BoxFuture<'a, Result<Paused, PauseError>> {
        async move {
            let found = self.lease().await?;
            let since = self.time.roughly();
            if let Some(annotation) = found.as_ref().and_then(|lease| paused(lease, since))
                && let pause @ Pause::Said(_) = Pause::read(annotation)
            {
                return Ok(Paused { pause, already: true, token: pause_token(annotation) });
            }
            // A time that no clock reaches is no end.
            let until = lasts.and_then(|lasts| since.checked_add(lasts).ok());
            let said = Said { since, by: by.to_owned(), reason: reason.to_owned(), until };
            // Strings and times always serialize to JSON.
            let annotation = serde_json::to_string(&said).unwrap_or_default();
            if found.is_none() || !self.annotate(json!({ annotations::PAUSED: annotation })).await? {
                self.create(&annotation).await?;
            }
            Ok(Paused { pause: Pause::Said(said), already: false, token: pause_token(&annotation) })
        }
        .boxed()
    }

    /// The leader that acknowledges a pause within a time. Failed reads are retried.
    pub fn acknowledged<'a>(&'a self, paused: &'a Paused, within: Duration) -> BoxFuture<'a, Option<String>> {
        async move {
            let answer = async {
                loop {
                    let lease = self.lease().await.ok().flatten();
                    let acknowledged = lease.as_ref().and_then(acknowledged);
                    if let Some(acknowledged) = acknowledged.filter(|it| it.of == paused.token) {
                        return acknowledged.by;
                    }
                    tokio::time::sleep(PERIOD).await;
                }
            };
            tokio::time::timeout(within, answer).await.ok()
        }
        .boxed()
    }

    /// Resumes Salvor. Returns the pause that ended, if there was one.
    ///
    /// # Errors
    /// If the Lease cannot be read or written.
    pub fn resume(&self) -> BoxFuture<'_, Result<Option<Pause>, PauseError>> {
        async move {
            let found = self.lease().await?;
            let said = found.as_ref().and_then(|lease| paused(lease, Timestamp::MIN)).map(Pause::read);
            // The annotation of a pause that has ended is removed as well.
            let Some(pause) = said else { return Ok(None) };
            let nothing = json!({ annotations::PAUSED: null, annotations::PAUSED_ACKNOWLEDGED: null });
            let removed = self.annotate(nothing).await?;
            Ok((removed && !pause.is_over(self.time.roughly())).then_some(pause))
        }
        .boxed()
    }

    async fn lease(&self) -> Result<Option<Lease>, PauseError> {
        let found = self.leases.get_opt(&self.settings.lease_name).await;
        found.map_err(|error| PauseError::Read { what: self.subject(), error })
    }

    /// Changes annotations of the Lease. Returns whether the Lease exists.
    async fn annotate(&self, annotations: serde_json::Value) -> Result<bool, PauseError> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let parameters =
            PatchParams { field_manager: Some("salvor-pause".to_owned()), ..PatchParams::default() };
        match self.leases.patch(&self.settings.lease_name, &parameters, &patch).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(PauseError::Write { what: self.subject(), error }),
        }
    }

    /// Creates the Lease, and its namespace if that is allowed.
    async fn create(&self, annotation: &str) -> Result<(), PauseError> {
        let LeaderElection { lease_name, lease_namespace, .. } = &self.settings;
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(lease_name.clone()),
                annotations: Some([(annotations::PAUSED.to_owned(), annotation.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        let parameters = PostParams::default();
        let create = || self.leases.create(&parameters, &lease);
        let created = match create().await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let metadata = ObjectMeta { name: Some(lease_namespace.clone()), ..ObjectMeta::default() };
                let namespace = Namespace { metadata, ..Namespace::default() };
                let made = Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await;
                made.map_err(|error| PauseError::Write {
                    what: format!(
                        "{}: there is no namespace {lease_namespace} (leaderElection.leaseNamespace; is --config that of \
                         the operator?), and it cannot be made",
                        self.subject()
                    ),
                    error,
                })?;
                create().await
            }
            other => other,
        };
        created.map(drop).map_err(|error| PauseError::Write { what: self.subject(), error })
    }

    fn subject(&self) -> String {
        format!("Lease {}/{}", self.settings.lease_namespace, self.settings.lease_name)
    }
}
