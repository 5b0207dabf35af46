//! What is installed, and what no installation can be made of.

use std::net::SocketAddr;

use salvor_api::config::{ConfigError, Configuration};
use salvor_operator::{webhooks::Webhook, webhooks_in_effect};

/// The input of all objects of an installation.
#[derive(Clone, Debug)]
pub(super) struct Installation {
    pub(super) namespace: String,
    pub(super) image: String,
    pub(super) configuration: Configuration,
    pub(super) webhooks: Vec<Webhook>,
}

impl Installation {
    pub(super) fn new(
        namespace: Option<String>,
        image: String,
        configuration: Configuration,
    ) -> Result<Self, ManifestsError> {
        let webhooks = webhooks_in_effect(&configuration);
        Self::with_webhooks(namespace, image, configuration, webhooks)
    }

    pub(super) fn with_webhooks(
        namespace: Option<String>,
        image: String,
        mut configuration: Configuration,
        webhooks: Vec<Webhook>,
    ) -> Result<Self, ManifestsError> {
        let namespace = namespace.unwrap_or_else(|| configuration.leader_election.lease_namespace.clone());
        configuration.leader_election.lease_namespace.clone_from(&namespace);
        configuration.validate()?;
        if !configuration.leader_election.enabled {
            return Err(ManifestsError::NoLeader);
        }
        let bind = configuration.bind;
        if bind.ip().is_loopback() || bind.port() == 0 {
            return Err(ManifestsError::NotProbeable(bind));
        }
        if !webhooks.is_empty() {
            let settings = &configuration.webhooks;
            if settings.url.is_some() {
                return Err(ManifestsError::WebhooksUrl);
            }
            if settings.bind.ip().is_loopback() || settings.bind.port() == 0 {
                return Err(ManifestsError::WebhooksNotReachable(settings.bind));
            }
        }
        Ok(Self { namespace, image, configuration, webhooks })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ManifestsError {
    #[error(
        "leaderElection.enabled is false, and two replicas would act at once: leave it true, or run a single process yourself"
    )]
    NoLeader,
    #[error(
        "bind {0} cannot be probed by the kubelet: bind an address that other hosts reach, for example 0.0.0.0:8080"
    )]
    NotProbeable(SocketAddr),
    #[error(
        "webhooks.url is how a Salvor outside the cluster is called: remove it, and the manifests bring a Service"
    )]
    WebhooksUrl,
    #[error(
        "webhooks.bind {0} cannot be reached by the API server: bind an address that other hosts reach, for example 0.0.0.0:9443"
    )]
    WebhooksNotReachable(SocketAddr),
    #[error("{0}")]
    Config(#[from] ConfigError),
}
