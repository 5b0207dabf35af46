//! Counts the requests of a process.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use http::{Method, Request};
use tower::Service;

use super::record::Calls;

/// The requests of one process so far. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct Count(Arc<Mutex<Calls>>);

impl Count {
    pub(super) fn so_far(&self) -> Calls {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the counter in front of a service.
    pub(super) fn before<S>(&self, service: S) -> Counted<S> {
        Counted { service, count: self.clone() }
    }

    fn note<B>(&self, request: &Request<B>) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        match *request.method() {
            Method::GET | Method::HEAD if is_watch => calls.watches += 1,
            Method::GET | Method::HEAD => calls.reads += 1,
            _ => calls.writes += 1,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    service: S,
    count: Count,
}

impl<S, B> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        self.count.note(&request);
        self.service.call(request)
    }
}
