//! A webhook together with the function that answers it.

use std::{fmt, future::Future, sync::Arc};

use futures::{FutureExt, future::BoxFuture};

use super::{
    declaration::Webhook,
    review::{AdmissionRequest, Answer},
};

type Handle = dyn Fn(AdmissionRequest) -> BoxFuture<'static, Answer> + Send + Sync;

#[derive(Clone)]
pub struct Registration {
    pub webhook: Webhook,
    handle: Arc<Handle>,
}

impl Registration {
    /// A webhook with its handler. The handler must not panic, must have no side effects, and is dropped when the
    /// webhook times out. It may run for many requests at once.
    pub fn new<F, A>(webhook: Webhook, handler: F) -> Self
    where
        F: Fn(AdmissionRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Answer> + Send + 'static,
    {
        Self { webhook, handle: Arc::new(move |request| handler(request).boxed()) }
    }

    pub(super) fn answer(&self, request: AdmissionRequest) -> BoxFuture<'static, Answer> {
        (self.handle)(request)
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}
