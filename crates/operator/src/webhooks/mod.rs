//! Admission webhooks: a TLS server that every replica runs, and what the API server needs in order to call it.
//!
//! ```text
//! API server ──TLS──► serve/ ────► endpoint.rs ──► a recovery's handler
//!     ▲ trusts              ▲ shows
//! webhook configurations ◄── reconciler.rs ──► certificate ◄── authority, shared in a Secret
//! ```
//!
//! Only the API server gets an answer: it alone knows the token at the end of the path, which the reconciler writes into
//! the webhook configurations.
//!
//! No code here depends on a recovery. A recovery declares its webhooks in its registry entry: as plain data for the
//! manifests, and with their handlers.

mod authority;
mod configurations;
mod declaration;
mod endpoint;
mod keyring;
mod reconciler;
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

pub use self::keyring::Keyring;
pub(crate) use self::reconciler::Readiness;
pub use self::{
    declaration::{
        CONFIGURATION, FailurePolicy, Operation, Rule, SERVICE, SERVICE_PORT, Target, Webhook, WebhookKind,
        configuration,
    },
    registration::Registration,
    review::{AdmissionRequest, Answer, Change, GroupVersionKind, GroupVersionResource, Ruling},
    serving::ServingError,
};
use self::{
    endpoint::router,
    reconciler::{Origin, Reconciler},
    serving::{Files, Shown},
};
use crate::{
    client::connect,
    lead::watchdog::OwnThread,
    metrics::Metrics,
    serve::{Limits, serve_tls},
    time::Time,
};

/// The user who sent the request.
pub type User = UserInfo;

/// Grace period for requests in flight when the process stops.
const DRAIN: Duration = Duration::from_secs(5);

/// An API server keeps idle connections for 90 seconds. We must not be the side that closes them: a request that is
/// just being sent would fail, and with it the user's write. The API server opens one connection per request in flight,
/// and has at most some hundreds of them.
const LIMITS: Limits = Limits {
    connections: 512,
    request_within: Duration::from_secs(120),
    still_for: Duration::from_secs(130),
};

#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("cannot listen on {address} (webhooks.bind): {source}")]
    Bind {
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    #[error("webhooks cannot be served: {0}")]
    Certificates(ServingError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot make a client for the API server: {0}")]
    Client(kube::Error),
}

/// What handlers may use.
#[derive(Clone)]
pub(crate) struct HandlerContext {
    pub(crate) client: Client,
    pub(crate) time: Time,
    pub(crate) keyring: Keyring,
}

/// A server that is bound but does not serve yet.
pub(crate) struct BoundWebhooks {
    thread: OwnThread,
    listener: TcpListener,
    address: SocketAddr,
    pub(crate) handler_context: HandlerContext,
    shown: Shown,
    acceptor: TlsAcceptor,
}

impl BoundWebhooks {
    /// Binds the address, on a thread of its own: an admission must not wait for recoveries, nor the Lease for an
    /// admission.
    pub(crate) async fn new(
        config: kube::Config,
        configuration: &Configuration,
    ) -> Result<Self, WebhookError> {
        let thread = OwnThread::start("webhooks").map_err(WebhookError::Thread)?;
        let address = configuration.webhooks.bind;
        let bound = thread.handle.spawn(async move {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let bound = bound.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let (listener, address) = bound.map_err(|source| WebhookError::Bind { address, source })?;
        let time = Time::system();
        let client = {
            // A client belongs to the runtime in which it is created.
            let _inside = thread.handle.enter();
            connect(config, &time).map_err(WebhookError::Client)?
        };
        if let Some(folder) = &configuration.webhooks.cert_dir {
            Files::new(folder).read().map_err(WebhookError::Certificates)?;
        }
        let shown = Shown::default();
        let tls = shown.tls().map_err(|error| WebhookError::Certificates(ServingError::Pair(error)))?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let handler_context = HandlerContext { client, time, keyring: Keyring::default() };
        Ok(Self { thread, listener, address, handler_context, shown, acceptor })
    }

    pub(crate) fn serve(
        self,
        registrations: Vec<Registration>,
        configuration: &Configuration,
        metrics: Metrics,
    ) -> WebhookServer {
        let Self { thread, listener, address, handler_context, shown, acceptor } = self;
        let readiness = Readiness::new();
        let keyring = handler_context.keyring.clone();
        let reconciler = reconciler(
            &registrations,
            configuration,
            handler_context,
            metrics.clone(),
            shown,
            readiness.clone(),
        );
        let stop = CancellationToken::new();
        let router = router(registrations, keyring, metrics);
        let serve = serve_tls(acceptor, listener, router, LIMITS, stop.clone().cancelled_owned());
        let serving = thread.handle.spawn(serve);
        thread.handle.spawn(reconciler.run());
        tracing::info!(bind = %address, "webhooks served");
        WebhookServer { address, readiness, serving, stop, _thread: thread }
    }
}

fn reconciler(
    registrations: &[Registration],
    configuration: &Configuration,
    handler_context: HandlerContext,
    metrics: Metrics,
    shown: Shown,
    readiness: Readiness,
) -> Reconciler {
    let settings = &configuration.webhooks;
    let namespace = configuration.leader_election.lease_namespace.clone();
    let mut names =
        vec![format!("{SERVICE}.{namespace}.svc"), format!("{SERVICE}.{namespace}.svc.cluster.local")];
    names.extend(settings.url_host().map(str::to_owned));
    let HandlerContext { client, time, keyring } = handler_context;
    Reconciler {
        client,
        time,
        keyring,
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
        kept: None,
        alone: false,
        trouble: None,
    }
}

/// A running webhook server, on a thread of its own. Dropping it stops it at once.
pub struct WebhookServer {
    address: SocketAddr,
    readiness: Readiness,
    serving: JoinHandle<()>,
    stop: CancellationToken,
    _thread: OwnThread,
}

impl WebhookServer {
    /// Serves these webhooks beside a cluster, whatever the recoveries, with metrics that are not exported. For tests.
    pub fn start(
        config: kube::Config,
        configuration: Configuration,
        registrations: impl FnOnce(&Client) -> Vec<Registration> + Send + 'static,
    ) -> BoxFuture<'static, Result<Self, WebhookError>> {
        async move {
            let bound = BoundWebhooks::new(config, &configuration).await?;
            let registrations = registrations(&bound.handler_context.client);
            let metrics = Metrics::new(&bound.handler_context.time);
            Ok(bound.serve(registrations, &configuration, metrics))
        }
        .boxed()
    }

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

    /// Answers the requests in flight, and accepts no more.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        async move {
            self.stop.cancel();
            // A client that never finishes must not block the process.
            let _ = tokio::time::timeout(DRAIN, self.serving).await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
