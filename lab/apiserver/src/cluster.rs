//! The server in process: a [`tower::Service`] on which a [`kube::Client`] works as on any API server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, Stream};
use http::header::{ACCEPT, CONTENT_TYPE, DATE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use crate::admission::hearing::{Call, Hearing};
use crate::admission::webhooks::{WebhookAnswer, WebhookRequest, Webhooks};
use crate::core::Heard;
use crate::environment::Environment;
use crate::protocol::request::{Behind, Request};
use crate::protocol::response::{Reply, Response};
use crate::protocol::status::Refusal;
use crate::signal::{Listener, Signal};
use crate::state::Core;
use crate::store::watch::Watch;

/// The interval of bookmarks on a quiet watch: a little under a minute, since clients rely on one a minute.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(55);
/// A watch gets one more bookmark this long before its end, so that its successor has missed little.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// The time limit of a write, with all its webhooks.
const REQUEST_BOUND: Duration = Duration::from_secs(34);

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The options of a new cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The source of UIDs and generated names: one seed, one history.
    pub seed: u64,
    /// The time at the cluster's beginning; from then on it passes with tokio's clock.
    pub start: Timestamp,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seed: 0, start: Timestamp::UNIX_EPOCH }
    }
}

/// A cluster's API in this process. Clones are the same cluster.
///
/// Time is tokio's: under a paused clock, hours pass in an instant, and one seed gives one history.
#[derive(Debug, Clone)]
pub struct Cluster {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    settings: Settings,
    began: Instant,
    webhooks: Webhooks,
}

#[derive(Debug)]
struct State {
    core: Core,
    rng: fastrand::Rng,
    /// Wakes the watches of a resource.
    bells: BTreeMap<(String, String), Signal<()>>,
    observer: Option<Observer>,
    /// The number of restored backups. A restore ends all older watches.
    restored: u64,
}

/// All that a cluster stored at a moment, like a backup of etcd.
#[derive(Debug, Clone)]
pub struct Backup(Box<Core>);

struct Observer {
    told: u64,
    tell: Box<dyn FnMut(&Change<'_>) + Send>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("told", &self.told).finish_non_exhaustive()
    }
}

/// One object was written or removed.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub at: Timestamp,
    /// The revision of the write.
    pub revision: u64,
    /// The group of the resource; empty for the core group.
    pub group: &'a str,
    /// The resource's plural name.
    pub resource: &'a str,
    pub kind: ChangeKind,
    /// The object afterwards, or its last state if it was removed. JSON, without its type.
    pub object: &'a Bytes,
    /// `object` as a value.
    pub value: &'a Arc<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Removed,
}

impl Cluster {
    /// Must be called within a tokio runtime.
    pub fn new(settings: Settings) -> Self {
        let mut rng = fastrand::Rng::with_seed(settings.seed);
        let core = Core::new(&mut Environment::new(settings.start, &mut rng));
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State { core, rng, bells: BTreeMap::new(), observer: None, restored: 0 }),
                settings,
                began: Instant::now(),
                webhooks: Webhooks::default(),
            }),
        }
    }

    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    pub fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.shared.began.elapsed()).unwrap_or(SignedDuration::MAX);
        self.shared.settings.start.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }

    pub fn revision(&self) -> u64 {
        self.state().core.revision()
    }

    /// Calls `tell` for every change from now on, in the order of revisions, before the request that made it is
    /// answered. The observer must not call this cluster.
    pub fn observe(&self, tell: impl FnMut(&Change<'_>) + Send + 'static) {
        let mut state = self.state();
        let told = state.core.revision();
        state.observer = Some(Observer { told, tell: Box::new(tell) });
    }

    /// Compacts the history, as etcd does: older watches and pages expire.
    pub fn compact(&self) {
        let mut state = self.state();
        state.core.compact();
        state.ring(self.now());
    }

    pub fn back_up(&self) -> Backup {
        Backup(Box::new(self.state().core.clone()))
    }

    /// Goes back to a backup, its revision included, as when etcd is restored and the API servers are restarted: all
    /// watches end, and the history before is gone. Observers see all changes from then on.
    pub fn restore(&self, backup: &Backup) {
        let mut state = self.state();
        state.core = (*backup.0).clone();
        state.core.compact();
        state.restored += 1;
        let told = state.core.revision();
        if let Some(observer) = &mut state.observer {
            observer.told = told;
        }
        state.ring(self.now());
        state.bells.values().for_each(|bell| bell.set(()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a handler in this process for the admission webhooks of a host (`name`, `name:port`, or
    /// `service.namespace.svc:port`), which would otherwise be called over the network. With it webhooks work under a
    /// paused clock.
    pub fn answer_webhooks<F, A>(&self, host: &str, handler: F)
    where
        F: Fn(WebhookRequest) -> A + Send + Sync + 'static,
        A: Future<Output = WebhookAnswer> + Send + 'static,
    {
        self.shared.webhooks.put(host, handler);
    }

    /// Answers a request immediately: an admission webhook that would have to be called counts as failed.
    pub fn handle(&self, request: &Request) -> http::Response<Body> {
        let now = self.now();
        let mut state = self.state();
        let State { core, rng, .. } = &mut *state;
        let response = core.handle(request, &mut Environment::new(now, rng));
        self.finish(state, now, response)
    }

    /// Answers a request, after the admission webhooks that match it.
    async fn answer(&self, request: &Request) -> http::Response<Body> {
        let mut waiting = match self.attempt(request) {
            Ok(response) => return response,
            Err(waiting) => waiting,
        };
        loop {
            let calls = match self.attempt_again(request, &mut waiting) {
                Ok(response) => return response,
                Err(calls) => calls,
            };
            let asking = futures::future::join_all(calls.iter().map(|call| self.shared.webhooks.call(call)));
            let answers = match tokio::time::timeout_at(waiting.ends, asking).await {
                Ok(answers) => answers,
                Err(_) => return whole(Reply::refusal(&Refusal::too_slow())),
            };
            for (call, answer) in calls.into_iter().zip(answers) {
                waiting.hearing.learn(call, answer);
            }
        }
    }

    /// Answers a request, unless webhooks must be called first.
    fn attempt(&self, request: &Request) -> Result<http::Response<Body>, Waiting> {
        let now = self.now();
        let mut state = self.state();
        let State { core, rng, .. } = &mut *state;
        let mut chance = rng.clone();
        match core.hear(request, &mut Environment::new(now, &mut chance)) {
            Heard::Answered(response) => {
                *rng = chance;
                Ok(self.finish(state, now, response))
            }
            // From here on the request has its own random source, since other requests interleave.
            Heard::Asks(_) => Err(Waiting {
                began: now,
                ends: Instant::now() + REQUEST_BOUND,
                seed: rng.u64(..),
                hearing: Hearing::default(),
            }),
        }
    }

    /// Starts a request again, with the answers that are known by now. Returns the calls that it waits for.
    fn attempt_again(
        &self,
        request: &Request,
        waiting: &mut Waiting,
    ) -> Result<http::Response<Body>, Vec<Call>> {
        let now = self.now();
        let mut state = self.state();
        let mut rng = fastrand::Rng::with_seed(waiting.seed);
        // A review shows the times of a new object, so they must not change between attempts. A deletion shows none,
        // and its grace period begins when it is allowed.
        let is_deletion = request.method == Method::DELETE || request.path.ends_with("/eviction");
        let at = if is_deletion { now } else { waiting.began };
        let mut environment = Environment::new(at, &mut rng);
        environment.hearing = std::mem::take(&mut waiting.hearing);
        let heard = state.core.hear(request, &mut environment);
        waiting.hearing = environment.hearing;
        match heard {
            Heard::Answered(response) => Ok(self.finish(state, now, response)),
            Heard::Asks(calls) => Err(calls),
        }
    }

    /// Notifies watches and observers of the changes of a request, and builds its answer.
    fn finish(
        &self,
        mut state: MutexGuard<'_, State>,
        now: Timestamp,
        response: Response,
    ) -> http::Response<Body> {
        state.ring(now);
        let mut response = match response {
            Response::Whole(reply) => whole(reply),
            Response::Watch(watch) => {
                let (bell, restored) = (state.bell(watch.resource()), state.restored);
                drop(state);
                streaming(self.follow(*watch, bell, restored))
            }
        };
        // Clients compare deadlines with this clock, not with their own.
        if let Ok(date) = HeaderValue::from_str(&now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()) {
            response.headers_mut().insert(DATE, date);
        }
        response
    }

    /// The lines of a watch, as they come.
    fn follow(
        &self,
        watch: Watch,
        bell: Listener<()>,
        restored: u64,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let ends = Instant::now() + watch.lasts();
        let next_bookmark = next_bookmark(ends);
        let follower = Follower { cluster: self.clone(), watch, bell, ends, next_bookmark, restored };
        stream::unfold(follower, |mut follower| async move {
            let lines = follower.next().await?;
            Some((stream::iter(lines), follower))
        })
        .flatten()
    }
}

/// A request that waits for webhooks.
struct Waiting {
    began: Timestamp,
    ends: Instant,
    seed: u64,
    hearing: Hearing,
}

/// When a watch that ends at `ends` gets its next bookmark.
fn next_bookmark(ends: Instant) -> Instant {
    let (now, periodic) = (Instant::now(), Instant::now() + BOOKMARK_PERIOD);
    match ends.checked_sub(LAST_BOOKMARK) {
        Some(last) if last > now && last < periodic => last,
        _ => periodic,
    }
}

struct Follower {
    cluster: Cluster,
    watch: Watch,
    bell: Listener<()>,
    ends: Instant,
    next_bookmark: Instant,
    restored: u64,
}

impl Follower {
    /// The next lines, or `None` when the watch is over.
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        loop {
            if self.watch.has_ended() || self.cluster.state().restored != self.restored {
                return None;
            }
            self.bell.catch_up();
            let now = self.cluster.now();
            let lines = self.cluster.state().core.news(&mut self.watch, now);
            if !lines.is_empty() {
                return Some(lines);
            }
            let bookmark_due = if self.watch.wants_bookmarks() { self.next_bookmark } else { self.ends };
            tokio::select! {
                biased;
                () = self.bell.changed() => {}
                () = tokio::time::sleep_until(self.ends.min(bookmark_due)) => {
                    if Instant::now() >= self.ends {
                        return None;
                    }
                    self.next_bookmark = next_bookmark(self.ends);
                    let lines = self.cluster.state().core.news_and_bookmark(&mut self.watch, self.cluster.now());
                    if !lines.is_empty() {
                        return Some(lines);
                    }
                }
            }
        }
    }
}

impl State {
    /// Wakes the watches of changed resources, and passes the changes to the observer.
    fn ring(&mut self, now: Timestamp) {
        let changed = self.core.store.take_changed();
        if let Some(Observer { told, tell }) = &mut self.observer {
            let news = changed.iter().flat_map(|resource| {
                // The watcher got these events before they were compacted.
                let events = self.core.store.events_after(resource, *told).into_iter().flatten();
                events.map(move |event| (resource, event))
            });
            let mut news: Vec<_> = news.collect();
            news.sort_by_key(|(_, event)| event.revision);
            for ((group, resource), event) in news {
                let kind = match (&event.before, event.removed) {
                    (_, true) => ChangeKind::Removed,
                    (None, false) => ChangeKind::Added,
                    (Some(_), false) => ChangeKind::Modified,
                };
                let (object, value) = (event.after.encoded(), &event.after.value());
                tell(&Change { at: now, revision: event.revision, group, resource, kind, object, value });
            }
            *told = self.core.revision();
        }
        for resource in changed {
            if let Some(bell) = self.bells.get(&resource) {
                bell.set(());
            }
        }
    }

    fn bell(&mut self, resource: (String, String)) -> Listener<()> {
        self.bells.entry(resource).or_default().listen()
    }
}

async fn read<B>(request: http::Request<B>) -> Result<Request, Refusal>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| Refusal::bad_request(format!("the body of the request cannot be read: {error}")))?
        .to_bytes();
    let header = |name| text(&head.headers, name);
    Ok(Request {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or("").to_owned(),
        accept: header(ACCEPT),
        content_type: header(CONTENT_TYPE),
        user_agent: header(USER_AGENT),
        body,
        behind: head.extensions.get::<Behind>().map_or(0, |behind| behind.0),
    })
}

fn text(headers: &HeaderMap, name: http::HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned()
}

pub(crate) fn whole(reply: Reply) -> http::Response<Body> {
    let mut response = http::Response::new(Full::new(reply.body).boxed_unsync());
    *response.status_mut() = reply.code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    if let Some(seconds) = reply.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    for warning in reply.warnings {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.append(http::header::WARNING, value);
        }
    }
    response
}

fn streaming(lines: impl Stream<Item = Bytes> + Send + 'static) -> http::Response<Body> {
    let frames = lines.map(|line| Ok::<_, Infallible>(http_body::Frame::data(line)));
    let mut response = http::Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl<B> tower::Service<http::Request<B>> for Cluster
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let cluster = self.clone();
        Box::pin(async move {
            Ok(match read(request).await {
                Ok(request) => cluster.answer(&request).await,
                Err(refusal) => whole(Reply::refusal(&refusal)),
            })
        })
    }
}
