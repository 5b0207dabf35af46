//! A webhook together with the function that answers it.

use std::{fmt, future::Future, sync::Arc};

use futures::{FutureExt, future::BoxFuture};

use super::{
    declaration::Webhook,
    review::{AdmissionRequest, Answer},
};

type Handle = dyn Fn(AdmissionRequest) -> BoxFuture<'static, Answer> + Send + Sync;

/// A webhook and who answers it.
#[derive(Clone)]
pub struct Registration {
    /// What the API server is told of it.
    pub webhook: Webhook,
    handle: Arc<Handle>,
}

impl Registration {
    /// A webhook that is answered by this function. The function must not panic, must change nothing, and is given up when
    /// the webhook's time is over. It may be called for many requests at once.
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
