//! Records what each process sends and what arrives: every write is known with its sender and the time at which it was
//! sent.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use salvor_apiserver::{Body, Cluster};
use serde_json::Value;
use tower::{BoxError, Service};

/// A process that reads this often in a minute gets no more answers: a busy loop would stop virtual time, and the seed
/// would never end.
const ENDLESS: u32 = 5_000;

#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The identity of the process.
    pub(super) by: Arc<str>,
    /// When it was sent.
    pub(super) at: Timestamp,
    pub(super) method: Method,
    /// Without the query.
    pub(super) path: String,
}

/// A write of a process, as it arrives.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) sent: Sent,
    /// The body; null if it is no JSON.
    pub(super) body: Value,
}

/// Who is writing at this moment, and what each process has read. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    /// The write that the server carries out at this moment.
    current: Option<Arc<Write>>,
    /// When the last read that arrived was sent, by process and path.
    looks: BTreeMap<(Arc<str>, String), Timestamp>,
    /// The number of reads of single objects, by process and minute.
    reads: BTreeMap<(Arc<str>, i64), u32>,
}

impl Ledger {
    /// The write that the server carries out at this moment, if a process sent it.
    pub(super) fn current(&self) -> Option<Arc<Write>> {
        self.entries().current.clone()
    }

    /// When a process last sent a read of this path that has arrived.
    pub(super) fn last_look(&self, by: &Arc<str>, path: &str) -> Option<Timestamp> {
        self.entries().looks.get(&(by.clone(), path.to_owned())).copied()
    }

    /// The most reads of single objects that a process has made in one minute, and which process it was.
    pub(super) fn most_reads(&self) -> Option<(u32, Arc<str>, Timestamp)> {
        let entries = self.entries();
        let ((by, minute), reads) = entries.reads.iter().max_by_key(|(_, reads)| **reads)?;
        Some((*reads, by.clone(), Timestamp::from_second(minute * 60).unwrap_or_default()))
    }

    /// Records a read. Returns the number of reads of this process in this minute.
    fn looked(&self, sent: &Sent) -> u32 {
        let mut entries = self.entries();
        let reads = entries.reads.entry((sent.by.clone(), sent.at.as_second() / 60)).or_default();
        *reads += 1;
        let reads = *reads;
        let last = entries.looks.entry((sent.by.clone(), sent.path.clone())).or_insert(sent.at);
        *last = sent.at.max(*last);
        reads
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outer end of a process's connection: records who sends each request, and when.
#[derive(Clone, Debug)]
pub(super) struct Departures<S> {
    pub(super) service: S,
    pub(super) by: Arc<str>,
    pub(super) cluster: Cluster,
}

impl<S, B> Service<Request<B>> for Departures<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let sent = Sent {
            by: self.by.clone(),
            at: self.cluster.now(),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
        };
        request.extensions_mut().insert(sent);
        self.service.call(request)
    }
}

/// The inner end, right before the server: every change while a write is carried out is caused by that write.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    pub(super) cluster: Cluster,
    pub(super) ledger: Ledger,
}

impl<B> Service<Request<B>> for Arrivals
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut cluster, ledger) = (self.cluster.clone(), self.ledger.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
            let sent = head.extensions.get::<Sent>().cloned();
            let reads = matches!(head.method, Method::GET | Method::HEAD);
            let write = match sent {
                Some(sent) if reads => {
                    if head.uri.query().is_none_or(str::is_empty) && ledger.looked(&sent) > ENDLESS {
                        std::future::pending::<()>().await;
                    }
                    None
                }
                Some(sent) => {
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    Some(Arc::new(Write { sent, body }))
                }
                None => None,
            };
            let request = Request::from_parts(head, Full::new(body));
            let answer = CarriedOut { answer: cluster.call(request), ledger, write }.await;
            answer.map_err(|never| match never {})
        })
    }
}

/// The answer to a request; while it is computed, the ledger knows who sent the request.
struct CarriedOut<F> {
    answer: F,
    ledger: Ledger,
    write: Option<Arc<Write>>,
}

impl<F: Future + Unpin> Future for CarriedOut<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let write = self.write.clone();
        self.ledger.entries().current = write;
        let answer = Pin::new(&mut self.answer).poll(context);
        self.ledger.entries().current = None;
        answer
    }
}
