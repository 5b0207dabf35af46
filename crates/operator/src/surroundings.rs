//! Everything that an operator gets from outside. Nothing else differs between a real cluster and a simulated one.

use bytes::Bytes;
use http::{Request, Response};
use jiff::Timestamp;
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use tokio::runtime::Handle;
use tower::{BoxError, Service};

use crate::{
    client::{connect, observe},
    engine::notices::Notices,
    time::Time,
    webhooks::Keyring,
};

/// An API server, the time, and an identity among replicas.
pub struct Surroundings {
    pub(crate) client: Client,
    pub(crate) time: Time,
    pub(crate) identity: String,
    pub(crate) notices: Notices,
    /// The keys that webhooks sign with; empty where there are none.
    pub(crate) keyring: Keyring,
    /// Where the election runs, if not on the working thread.
    pub(crate) aside: Option<Aside>,
}

/// A runtime on another thread, and a client whose connections belong to it.
pub(crate) struct Aside {
    pub(crate) runtime: Handle,
    pub(crate) client: Client,
}

impl Surroundings {
    /// A real cluster, the machine's clock, and a unique identity. The election runs on the runtime of another thread.
    ///
    /// # Errors
    /// If the configuration yields no client.
    pub(crate) fn of(config: kube::Config, runtime: Handle) -> kube::Result<Self> {
        let time = Time::system();
        let aside = {
            // A client belongs to the runtime in which it is created.
            let _inside = runtime.enter();
            connect(config.clone(), &time)?
        };
        let client = connect(config, &time)?;
        let aside = Some(Aside { runtime, client: aside });
        let (identity, notices) = (identity(time.local()), Notices::default());
        Ok(Self { client, identity, time, notices, keyring: Keyring::default(), aside })
    }

    /// A cluster in this process. The operator's own clock starts at `now` and advances with tokio's; it learns the
    /// server's clock from the `Date` of answers, as everywhere. No two replicas may have the same identity.
    pub fn in_process<S, B>(service: S, now: Timestamp, identity: impl Into<String>) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError> + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let time = Time::starting_at(now);
        let client = observe(ClientBuilder::new(service, "default"), &time);
        let (notices, keyring) = (Notices::default(), Keyring::default());
        Self { client, time, identity: identity.into(), notices, keyring, aside: None }
    }

    /// Sends notices about verdicts and writes.
    #[must_use]
    pub fn telling(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }

    /// Uses the keys that webhooks of this process sign with.
    #[must_use]
    pub(crate) fn believing(self, keyring: Keyring) -> Self {
        Self { keyring, ..self }
    }
}

/// Our identity among replicas: the name of the pod or machine, and a part that distinguishes two processes on it.
fn identity(now: Timestamp) -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "salvor".to_owned());
    format!("{host}_{}_{}", std::process::id(), now.as_millisecond())
}
