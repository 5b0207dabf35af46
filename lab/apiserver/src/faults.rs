//! Faults: what a network and a busy server do to requests, switched on and off while the cluster runs.
//!
//! No fault produces an answer that a real server cannot: a fault delays, refuses, loses or cuts, and never invents or
//! reorders.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use http::Method;
use http::header::DATE;
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use jiff::{SignedDuration, fmt::rfc2822};
use tokio::time::Instant;
use tower::Service;

use crate::cluster;
use crate::object;
use crate::protocol::render;
use crate::protocol::request::{Behind, Query};
use crate::protocol::response::Reply;
use crate::protocol::status::Refusal;
use crate::signal::Signal;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer that may be cut off.
pub type FaultyBody = UnsyncBoxBody<Bytes, BoxError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection was closed by a fault")]
pub struct Cut;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Delay(Duration),
    /// 409: another client was faster.
    Conflict,
    /// 403: an admission webhook denies it.
    Denied,
    /// 429, with a Retry-After in seconds.
    TooManyRequests(u32),
    InternalError,
    Unavailable,
    /// The request was carried out, but the answer is lost: the client does not know the result.
    AnswerLost,
    /// The request is lost: the client does not know the result.
    RequestLost,
    /// No answer ever comes; only the client's own time-out ends its wait. It cannot know whether the request was
    /// carried out.
    Unanswered {
        /// True if the request was carried out.
        carried_out: bool,
    },
    /// A read by a client that accepts a stale answer (`resourceVersion=0`) returns the state this many revisions ago,
    /// but never an older one than the client asked for. A client that names no revision gets the newest state, as it
    /// must.
    Stale(u64),
    /// Revisions go backwards: a list returns the state this many revisions ago, with that resourceVersion, although
    /// its client has seen later ones. An API server does this if its etcd member has fallen behind or was restored.
    Backwards(u64),
    /// Events of a watch come this much later, in order.
    Lag(Duration),
    /// A watch is cut after this many lines.
    CutAfter(usize),
    /// The server's clock is this many seconds ahead, as the Date header of its answers shows.
    ClockAhead(i64),
    /// 410: a watch begins with the error that its revision is gone, and so does the next page of a list.
    Expired,
}

/// Which requests fail, how, and how often.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Only requests with this method.
    pub method: Option<Method>,
    /// Only requests whose path and query contain this text.
    pub path: String,
    /// Only requests of a client whose user agent contains this text.
    pub user_agent: String,
    pub effect: Effect,
    /// The number of requests that fail before the fault is over; `None` for no end.
    pub times: Option<u32>,
}

impl Fault {
    /// A fault that affects every request until it is cleared.
    pub fn new(effect: Effect) -> Self {
        Self { method: None, path: String::new(), user_agent: String::new(), effect, times: None }
    }

    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    #[must_use]
    pub fn user_agent(mut self, user_agent: &str) -> Self {
        user_agent.clone_into(&mut self.user_agent);
        self
    }

    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    fn strikes(&self, request: &http::request::Parts) -> bool {
        let agent = request.headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
        self.method.as_ref().is_none_or(|method| *method == request.method)
            && request.uri.path_and_query().is_some_and(|path| path.as_str().contains(&self.path))
            && agent.unwrap_or("").contains(&self.user_agent)
            && match self.effect {
                Effect::Lag(_) | Effect::CutAfter(_) => is_watch(request),
                Effect::Expired => is_watch(request) || continues(request),
                Effect::Stale(_) => takes_old(request),
                Effect::Backwards(_) => is_list(request),
                _ => true,
            }
    }
}

fn query(request: &http::request::Parts) -> &str {
    request.uri.query().unwrap_or("")
}

fn is_watch(request: &http::request::Parts) -> bool {
    Query::parse(query(request)).flag("watch")
}

/// True if the client accepts a stale answer.
fn takes_old(request: &http::request::Parts) -> bool {
    let has = |key: &str| query(request).split('&').any(|pair| pair.starts_with(key) && pair != key);
    request.method == Method::GET
        && has("resourceVersion=")
        && !query(request).split('&').any(|pair| pair == "resourceVersionMatch=Exact")
        && !continues(request)
}

/// True for a list, or its first page, by a client that wants the newest state.
fn is_list(request: &http::request::Parts) -> bool {
    request.method == Method::GET
        && Query::parse(query(request)).number("limit").is_ok_and(|limit| limit.is_some())
        && !is_watch(request)
        && !takes_old(request)
        && !continues(request)
}

/// The same request by a client that accepts a stale answer.
fn taking_old(uri: &http::Uri) -> http::Uri {
    let (path, query) = (uri.path(), uri.query().unwrap_or(""));
    let rest: Vec<&str> =
        query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("resourceVersion")).collect();
    let query = [&rest[..], &["resourceVersion=0"]].concat().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = format!("{path}?{query}").parse().ok();
    http::Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

fn continues(request: &http::request::Parts) -> bool {
    query(request).split('&').any(|pair| pair.starts_with("continue=") && pair != "continue=")
}

/// Controls the faults of a [`Faulty`] service. Clones share the same faults.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    faults: Mutex<Vec<Fault>>,
    paused: Signal<bool>,
    cuts: Signal<()>,
}

impl Faults {
    /// Puts the faults in front of a service.
    pub fn before<S>(&self, service: S) -> Faulty<S> {
        Faulty { service, faults: self.clone() }
    }

    /// Adds a fault. If several match a request, the first that was added applies.
    pub fn add(&self, fault: Fault) {
        self.list().push(fault);
    }

    pub fn retain(&self, keep: impl FnMut(&Fault) -> bool) {
        self.list().retain(keep);
    }

    /// Ends all faults, and a pause.
    pub fn clear(&self) {
        self.list().clear();
        self.resume();
    }

    /// Blocks all answers and watches until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.0.paused.set(true);
    }

    pub fn resume(&self) {
        self.0.paused.set(false);
    }

    pub fn cut_watches(&self) {
        self.0.cuts.set(());
    }

    fn list(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, request: &http::request::Parts) -> Option<Effect> {
        let mut faults = self.list();
        let fault = faults.iter_mut().find(|fault| fault.times != Some(0) && fault.strikes(request))?;
        if let Some(times) = &mut fault.times {
            *times -= 1;
        }
        let effect = fault.effect;
        faults.retain(|fault| fault.times != Some(0));
        Some(effect)
    }

    async fn while_paused(&self) {
        self.0.paused.wait_for(|paused| !paused).await;
    }

    /// Passes a body through, unless a pause blocks it or a cut ends it.
    fn guard(&self, body: FaultyBody, frames: Option<usize>) -> FaultyBody {
        let faults = self.clone();
        let cuts = self.0.cuts.listen();
        let state = (body, faults, cuts, frames, false);
        let stream = stream::unfold(state, |(mut body, faults, mut cuts, mut frames, over)| async move {
            if over {
                return None;
            }
            if frames == Some(0) {
                return Some((Err(BoxError::from(Cut)), (body, faults, cuts, frames, true)));
            }
            let next = tokio::select! {
                biased;
                () = cuts.changed() => Some(Err(BoxError::from(Cut))),
                frame = body.frame() => frame,
            };
            faults.while_paused().await;
            let over = matches!(next, Some(Err(_)));
            if let Some(left) = &mut frames {
                *left = left.saturating_sub(1);
            }
            next.map(|frame| (frame, (body, faults, cuts, frames, over)))
        });
        StreamBody::new(stream.boxed()).boxed_unsync()
    }
}

#[derive(Debug, Clone)]
pub struct Faulty<S> {
    service: S,
    faults: Faults,
}

impl<S> Faulty<S> {
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}

fn refusal(effect: Effect, request: &http::request::Parts) -> Option<http::Response<FaultyBody>> {
    let refusal = match effect {
        Effect::Conflict => Refusal::new(
            409,
            "Conflict",
            "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version and try again",
        ),
        Effect::Denied => Refusal::new(
            403,
            "Forbidden",
            "admission webhook \"policy.example.com\" denied the request: a fault was switched on",
        ),
        Effect::TooManyRequests(seconds) => Refusal::too_many_requests(
            "The server has received too many requests and has asked us to try again later",
        )
        .retry_after(seconds),
        Effect::InternalError => Refusal::internal("a fault was switched on"),
        Effect::Unavailable => {
            Refusal::new(503, "ServiceUnavailable", "The server is currently unable to handle the request")
        }
        Effect::Expired => {
            let refusal = Refusal::expired("too old resource version: a fault was switched on");
            if is_watch(request) {
                let line = render::line("ERROR", &object::encode(&refusal.to_value()));
                let reply = Reply::new(http::StatusCode::OK, line);
                return Some(cluster::whole(reply).map(open));
            }
            refusal
        }
        _ => return None,
    };
    Some(cluster::whole(Reply::refusal(&refusal)).map(open))
}

fn open(body: cluster::Body) -> FaultyBody {
    body.map_err(|never| match never {}).boxed_unsync()
}

/// Shifts the Date header of an answer.
fn move_clock(headers: &mut http::HeaderMap, seconds: i64) {
    let told = headers.get(DATE).and_then(|date| rfc2822::parse(date.to_str().ok()?).ok());
    let Some(told) = told.map(|told| told.timestamp()) else { return };
    let moved = told.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(told);
    let text = moved.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(date) = http::HeaderValue::from_str(&text) {
        headers.insert(DATE, date);
    }
}

/// Delays every part of a body by the same time. Reading continues meanwhile.
fn late(body: FaultyBody, lag: Duration) -> FaultyBody {
    let state = (body, VecDeque::new(), false);
    let stream = stream::unfold(state, move |(mut body, mut waiting, mut over)| async move {
        loop {
            let first = waiting.front().map(|(due, _)| *due);
            if first.is_none() && over {
                return None;
            }
            let due = async {
                match first {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = due => {
                    let (_, frame) = waiting.pop_front()?;
                    return Some((frame, (body, waiting, over)));
                }
                frame = body.frame(), if !over => match frame {
                    Some(frame) => waiting.push_back((Instant::now() + lag, frame)),
                    None => over = true,
                },
            }
        }
    });
    StreamBody::new(stream.boxed()).boxed_unsync()
}

impl<S, Q, B> Service<http::Request<Q>> for Faulty<S>
where
    S: Service<http::Request<Q>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    Q: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<FaultyBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Q>) -> Self::Future {
        let mut service = self.service.clone();
        let faults = self.faults.clone();
        Box::pin(async move {
            faults.while_paused().await;
            let (mut head, body) = request.into_parts();
            let effect = faults.strike(&head);
            if let Some(effect) = effect {
                if let Some(response) = refusal(effect, &head) {
                    return Ok(response);
                }
                match effect {
                    Effect::Delay(duration) => tokio::time::sleep(duration).await,
                    Effect::RequestLost => return Err(Cut.into()),
                    Effect::Unanswered { carried_out: false } => std::future::pending().await,
                    Effect::Stale(revisions) => {
                        head.extensions.insert(Behind(revisions));
                    }
                    Effect::Backwards(revisions) => {
                        head.extensions.insert(Behind(revisions));
                        head.uri = taking_old(&head.uri);
                    }
                    _ => {}
                }
            }
            let watches = is_watch(&head);
            let response = service.call(http::Request::from_parts(head, body)).await.map_err(Into::into)?;
            match effect {
                Some(Effect::AnswerLost) => return Err(Cut.into()),
                Some(Effect::Unanswered { .. }) => std::future::pending().await,
                _ => {}
            }
            let mut response = response.map(|body| body.map_err(Into::into).boxed_unsync());
            if let Some(Effect::ClockAhead(seconds)) = effect {
                move_clock(response.headers_mut(), seconds);
            }
            if !watches {
                return Ok(response);
            }
            Ok(response.map(|body| match effect {
                Some(Effect::CutAfter(frames)) => faults.guard(body, Some(frames)),
                Some(Effect::Lag(lag)) => faults.guard(late(body, lag), None),
                _ => faults.guard(body, None),
            }))
        })
    }
}
