//! The API client: kube's own layers, without hidden retries, and with an observer of the server's clock.

#[cfg_attr(not(test), allow(dead_code, reason = "see `feeds::kind`"))]
pub(crate) mod discovery;
pub(crate) mod incoming;
pub(crate) mod live;
pub(crate) mod recent_reads;
pub(crate) mod revision;
pub(crate) mod send_guard;
pub mod wire;

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Request, Response, header::DATE};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use jiff::{Timestamp, fmt::rfc2822};
use kube::{
    Client,
    client::{Body, ClientBuilder, ConfigExt},
};
use tower::{BoxError, Layer, Service, ServiceBuilder};

use crate::{
    client::{incoming::Budget, send_guard::GuardedBody},
    time::Time,
};

/// The size in which TLS delivers data. By default a connection keeps the largest buffer that it ever filled: 400 kB
/// for each watch that ever had a burst.
const READ_BUFFER: usize = 16 * 1024;

/// Creates a client whose answers update `time` with the server's clock.
///
/// It uses HTTP/1.1 and one connection per request in flight, so that no request waits for another's answer. (On one
/// HTTP/2 connection the server's limit on streams would be a shared queue.)
pub(crate) fn connect(mut config: kube::Config, time: &Time) -> kube::Result<Client> {
    // The executor retries: retries must be counted, bounded and visible.
    config.default_retry = false;
    if config.proxy_url.is_some() {
        return Ok(observe(ClientBuilder::try_from(config)?, time));
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    // Otherwise the first request of a new connection waits 40 ms for the server to acknowledge the end of the
    // handshake.
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let mut http = legacy::Client::builder(TokioExecutor::new());
    let http = http.http1_read_buf_exact_size(READ_BUFFER).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(GuardedBody::request)
        .service(http);
    Ok(observe(ClientBuilder::new(service, config.default_namespace), time))
}

/// For any service that answers as an API server does.
pub(crate) fn observe<S, B>(builder: ClientBuilder<S>, time: &Time) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    observe_within(builder, time, &Budget::default())
}

/// As `observe`, reading answers within this budget.
pub(crate) fn observe_within<S, B>(builder: ClientBuilder<S>, time: &Time, budget: &Budget) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    builder.with_layer(&Observe { time: time.clone(), budget: budget.clone() }).build()
}

#[derive(Clone)]
struct Observe {
    time: Time,
    budget: Budget,
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, time: self.time.clone(), budget: self.budget.clone(), last: Arc::default() }
    }
}

#[derive(Clone)]
struct Observed<S> {
    inner: S,
    time: Time,
    /// Bounds the memory for all answers.
    budget: Budget,
    /// The last date, as text and parsed: in a storm hundreds of answers carry the same one.
    last: Arc<Mutex<Option<(HeaderValue, Timestamp)>>>,
}

/// Parses a date, or reuses the last result.
fn read_date(date: &HeaderValue, last: &Mutex<Option<(HeaderValue, Timestamp)>>) -> Option<Timestamp> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((text, read)) = &*last
        && text == date
    {
        return Some(*read);
    }
    let read = rfc2822::parse(date.to_str().ok()?).ok()?.timestamp();
    *last = Some((date.clone(), read));
    Some(read)
}

impl<S, B, R> Service<Request<B>> for Observed<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (time, last, budget) = (self.time.clone(), self.last.clone(), self.budget.clone());
        let sent = time.local();
        let answer = self.inner.call(request);
        async move {
            let mut answer = answer.await?;
            answer.extensions_mut().insert(budget);
            if let Some(date) = answer.headers().get(DATE).and_then(|date| read_date(date, &last)) {
                time.learn(sent, time.local(), date);
            }
            Ok(answer)
        }
        .boxed()
    }
}
