//! The client: kube's own stack, with no retries behind our back, and an eye on the server's clock.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response, header::DATE};
use jiff::fmt::rfc2822;
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use tower::{BoxError, Layer, Service};

use crate::time::Time;

/// Makes a client whose answers teach `time` the server's clock.
pub(crate) fn connect(mut config: kube::Config, time: &Time) -> kube::Result<Client> {
    // Retries are the executor's: they must be counted, bounded and visible.
    config.default_retry = false;
    Ok(observe(ClientBuilder::try_from(config)?, time))
}

/// The same for any service that answers as an API server does.
pub(crate) fn observe<S, B>(builder: ClientBuilder<S>, time: &Time) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    builder.with_layer(&ObserveDate(time.clone())).build()
}

#[derive(Clone)]
struct ObserveDate(Time);

impl<S> Layer<S> for ObserveDate {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, time: self.0.clone() }
    }
}

#[derive(Clone)]
struct Observed<S> {
    inner: S,
    time: Time,
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
        let time = self.time.clone();
        let sent = time.local();
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await?;
            let date = answer.headers().get(DATE).and_then(|d| d.to_str().ok());
            if let Some(date) = date.and_then(|d| rfc2822::parse(d).ok()) {
                time.learn(sent, time.local(), date.timestamp());
            }
            Ok(answer)
        }
        .boxed()
    }
}
