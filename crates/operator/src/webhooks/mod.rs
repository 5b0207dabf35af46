//! Admission webhooks: a TLS server that every replica runs, and what the API server needs in order to call it.
//!
//! ```text
//! API server ──TLS──► serve.rs ──► door.rs ──► a recovery's handler
//!     ▲ trusts              ▲ shows
//! webhook configurations ◄── keeper.rs ──► certificate ◄── authority, shared in a Secret
//! ```
//!
//! Nothing here knows a recovery. One that has webhooks has them in its entry of the registry: as plain data for the manifests,
//! and with the functions that answer.

mod authority;
mod configurations;
mod door;
mod keeper;
mod registration;
mod review;
mod serving;
mod x509;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use salvor_api::config::Configuration;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub(crate) use self::keeper::Readiness;
use self::{
    door::router,
    keeper::{Keeper, Origin},
    serving::{Files, Shown},
};
pub use self::{
    registration::{
        CONFIGURATION, FailurePolicy, Operation, Registration, Rule, SERVICE, SERVICE_PORT, Target, Webhook,
        WebhookKind, configuration,
    },
    review::{AdmissionRequest, Answer, Change, GroupVersionKind, GroupVersionResource, Ruling},
    serving::ServingError,
};
use crate::{
    client::connect,
    metrics::Metrics,
    operator::RunError,
    pulse::OwnThread,
    recoveries::{Webhooks, recoveries},
    serve::{Limits, serve_tls},
    time::Time,
};

/// Who asks for admission.
pub type User = UserInfo;

/// Requests under way when the process is told to stop get this long.
const DRAIN: Duration = Duration::from_secs(5);

/// An API server keeps idle connections for 90 seconds. Ours must not be the side that ends them: a request that is just being
/// sent would fail, and with it what somebody wants to create. It opens a connection for each request under way, and has at
/// most some hundreds of them.
const LIMITS: Limits = Limits {
    connections: 512,
    request_within: Duration::from_secs(120),
    still_for: Duration::from_secs(130),
};

/// The webhooks of the recoveries that are switched on, as plain data.
pub fn declared(configuration: &Configuration) -> Vec<Webhook> {
    of_recoveries(configuration).flat_map(|webhooks| (webhooks.declared)(configuration)).collect()
}

fn of_recoveries(configuration: &Configuration) -> impl Iterator<Item = &'static Webhooks> {
    recoveries()
        .filter(|entry| entry.off(configuration).is_none())
        .filter_map(|entry| entry.webhooks.as_ref())
}

/// The same with those who answer. They may use the client for as long as they live.
fn registrations(configuration: &Configuration, client: &Client) -> Vec<Registration> {
    of_recoveries(configuration).flat_map(|webhooks| (webhooks.handlers)(configuration, client)).collect()
}

/// The webhooks that are served and configured under this configuration: none where webhooks are switched off, and none in a
/// dry run, which must not change or refuse what others create.
pub fn in_effect(configuration: &Configuration) -> Vec<Webhook> {
    if configuration.webhooks.enabled && !configuration.dry_run {
        declared(configuration)
    } else {
        Vec::new()
    }
}

/// A server that is bound and does not serve yet.
pub(crate) struct Bound {
    thread: OwnThread,
    listener: TcpListener,
    address: SocketAddr,
    client: Client,
    time: Time,
    shown: Shown,
    acceptor: TlsAcceptor,
}

impl Bound {
    /// Takes the address, on a thread of its own: an admission must not wait for what recoveries do, nor the lease for an
    /// admission.
    async fn new(config: kube::Config, configuration: &Configuration) -> Result<Self, RunError> {
        let thread = OwnThread::start("webhooks").map_err(RunError::Thread)?;
        let address = configuration.webhooks.bind;
        let bound = thread.handle.spawn(async move {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let bound = bound.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (listener, address) = bound.map_err(|source| RunError::BindWebhooks { address, source })?;
        let time = Time::system();
        let client = {
            // A client belongs to the runtime in which it is made.
            let _inside = thread.handle.enter();
            connect(config, &time).map_err(RunError::Client)?
        };
        if let Some(folder) = &configuration.webhooks.cert_dir {
            Files::new(folder).read().map_err(RunError::Certificates)?;
        }
        let shown = Shown::default();
        let tls = shown.tls().map_err(|error| RunError::Certificates(ServingError::Pair(error)))?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        Ok(Self { thread, listener, address, client, time, shown, acceptor })
    }

    /// The server for the recoveries that are switched on; none if they have no webhooks.
    pub(crate) async fn of(
        config: &kube::Config,
        configuration: &Configuration,
    ) -> Result<Option<Self>, RunError> {
        if in_effect(configuration).is_empty() {
            return Ok(None);
        }
        Self::new(config.clone(), configuration).await.map(Some)
    }

    /// Serves the recoveries' webhooks.
    pub(crate) fn serve(self, configuration: &Configuration, metrics: &Metrics) -> WebhookServer {
        let registrations = registrations(configuration, &self.client);
        self.serve_these(registrations, configuration, metrics.clone())
    }

    fn serve_these(
        self,
        registrations: Vec<Registration>,
        configuration: &Configuration,
        metrics: Metrics,
    ) -> WebhookServer {
        let Self { thread, listener, address, client, time, shown, acceptor } = self;
        let readiness = Readiness::new();
        let keeper =
            keeper(&registrations, configuration, client, time, metrics.clone(), shown, readiness.clone());
        let stop = CancellationToken::new();
        let router = router(registrations, metrics);
        let serve = serve_tls(acceptor, listener, router, LIMITS, stop.clone().cancelled_owned());
        let serving = thread.handle.spawn(serve);
        thread.handle.spawn(keeper.run());
        tracing::info!(bind = %address, "webhooks are served");
        WebhookServer { address, readiness, serving, stop, _thread: thread }
    }
}

fn keeper(
    registrations: &[Registration],
    configuration: &Configuration,
    client: Client,
    time: Time,
    metrics: Metrics,
    shown: Shown,
    readiness: Readiness,
) -> Keeper {
    let settings = &configuration.webhooks;
    let namespace = configuration.leader_election.lease_namespace.clone();
    let mut names =
        vec![format!("{SERVICE}.{namespace}.svc"), format!("{SERVICE}.{namespace}.svc.cluster.local")];
    names.extend(settings.url_host().map(str::to_owned));
    Keeper {
        client,
        time,
        metrics,
        webhooks: registrations.iter().map(|registration| registration.webhook.clone()).collect(),
        target: match &settings.url {
            Some(url) => Target::Url(url.clone()),
            None => Target::Service { namespace: namespace.clone() },
        },
        namespace,
        names,
        origin: settings.cert_dir.as_ref().map_or(Origin::Own, |folder| Origin::Files(Files::new(folder))),
        shown,
        readiness,
        authorities: None,
        alone: false,
        trouble: None,
    }
}

/// A running webhook server, on a thread of its own. Dropping it ends it at once.
pub struct WebhookServer {
    address: SocketAddr,
    readiness: Readiness,
    serving: JoinHandle<()>,
    stop: CancellationToken,
    _thread: OwnThread,
}

impl WebhookServer {
    /// Serves these webhooks beside a cluster, whatever recoveries there are, with metrics that nobody sees. For tests.
    pub fn start(
        config: kube::Config,
        configuration: Configuration,
        registrations: impl FnOnce(&Client) -> Vec<Registration> + Send + 'static,
    ) -> BoxFuture<'static, Result<Self, RunError>> {
        async move {
            let bound = Bound::new(config, &configuration).await?;
            let registrations = registrations(&bound.client);
            let metrics = Metrics::new(&bound.time);
            Ok(bound.serve_these(registrations, &configuration, metrics))
        }
        .boxed()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is missing before the API server can call, if anything.
    pub fn problem(&self) -> Option<String> {
        self.readiness.problem()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Answers what is being asked, and nothing more.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        async move {
            self.stop.cancel();
            // A client that never ends must not keep the process.
            let _ = tokio::time::timeout(DRAIN, self.serving).await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
