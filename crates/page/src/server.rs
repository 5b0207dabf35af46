//! Serves the page: static files, a stream of changes and, in the demo only, requests that break or heal a node.

use std::{convert::Infallible, future::Future, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY,
            X_CONTENT_TYPE_OPTIONS,
        },
        uri::Authority,
    },
    middleware::{self, Next},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use futures::Stream;
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use salvor_operator::serve::{Limits, serve};
use serde::Serialize;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

use crate::{Page, replay::Replay};

const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("../assets/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../assets/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../assets/page.js")),
    ("/map.js", "text/javascript; charset=utf-8", include_str!("../assets/map.js")),
    ("/world.js", "text/javascript; charset=utf-8", include_str!("../assets/world.js")),
    ("/missing.js", "text/javascript; charset=utf-8", include_str!("../assets/missing.js")),
    ("/parts.js", "text/javascript; charset=utf-8", include_str!("../assets/parts.js")),
    ("/replay.js", "text/javascript; charset=utf-8", include_str!("../assets/replay.js")),
    ("/repairs.js", "text/javascript; charset=utf-8", include_str!("../assets/repairs.js")),
    ("/wrappers.js", "text/javascript; charset=utf-8", include_str!("../assets/wrappers.js")),
    ("/panels.js", "text/javascript; charset=utf-8", include_str!("../assets/panels.js")),
    ("/icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
];
/// Nothing from other origins, nothing inline, and no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Changes within this time are sent together. A person does not notice, and a burst becomes a few messages per second.
const COALESCE: Duration = Duration::from_millis(100);
/// A page of another site may set this header only after a CORS preflight, which this server never allows.
const OURS: HeaderName = HeaderName::from_static("x-salvor-page");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A fault that a viewer may inject into a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Switch it off.
    Crash,
    /// Cut it off from the control plane. Its containers keep running.
    Partition,
    /// End all its faults.
    Heal,
}

impl Fault {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "crash" => Some(Self::Crash),
            "partition" => Some(Self::Partition),
            "heal" => Some(Self::Heal),
            _ => None,
        }
    }
}

/// A click on the page.
#[derive(Debug)]
pub struct Wish {
    pub node: String,
    pub fault: Fault,
    /// Receives the outcome: done, or the reason why not.
    pub done: oneshot::Sender<Result<(), String>>,
}

#[derive(Debug)]
pub struct ServeOptions {
    /// Receives the clicks. Without it the page is read-only.
    pub wishes: Option<mpsc::Sender<Wish>>,
    /// Seconds of the cluster's time per second of real time.
    pub speed: f64,
    /// Whether an operator runs and sends verdicts.
    pub has_operator: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { wishes: None, speed: 1.0, has_operator: true }
    }
}

struct Served {
    page: Page,
    /// A recorded history to show instead of the live cluster.
    replay: Option<Replay>,
    options: ServeOptions,
    /// Lets a browser that reconnects after a restart detect that its state is stale.
    epoch: i64,
    only_loopback: bool,
}

impl Page {
    /// Serves the page until `stop` completes.
    pub async fn serve(
        self,
        listener: TcpListener,
        options: ServeOptions,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        // An open stream of a browser must not keep the process running.
        tokio::select! {
            served = self.serve_forever(listener, options, None) => served,
            () = stop => Ok(()),
        }
    }

    fn serve_forever(
        self,
        listener: TcpListener,
        options: ServeOptions,
        replay: Option<Replay>,
    ) -> BoxFuture<'static, std::io::Result<()>> {
        async move {
            let only_loopback = listener.local_addr()?.ip().is_loopback();
            let epoch = Timestamp::now().as_microsecond();
            let served = Arc::new(Served { page: self, replay, options, epoch, only_loopback });
            let mut router = Router::new().route("/changes", get(changes));
            for (path, kind, text) in FILES {
                router = router.route(path, get(async || ([(CONTENT_TYPE, *kind)], *text)));
            }
            if served.replay.is_some() {
                router = router
                    .route("/replay", get(outline))
                    .route("/at/{time}", get(state_at))
                    .route("/at/{time}/since/{version}", get(changes_at));
            }
            if served.options.wishes.is_some() {
                router = router.route("/nodes/{name}/{fault}", post(wish));
            }
            let router =
                router.layer(middleware::from_fn_with_state(Arc::clone(&served), guard)).with_state(served);
            serve(listener, router, Limits::default(), std::future::pending()).await;
            Ok(())
        }
        .boxed()
    }
}

/// Adds headers to every answer, and checks every request to a page on loopback.
async fn guard(State(served): State<Arc<Served>>, request: Request, next: Next) -> Response {
    let mut response = if served.only_loopback && !is_addressed_locally(request.headers()) {
        refuse(StatusCode::MISDIRECTED_REQUEST, "this page is served to localhost only")
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    response
}

fn refuse(status: StatusCode, why: &'static str) -> Response {
    (status, format!("{why}\n")).into_response()
}

/// Another site can make its own name resolve to this machine. It cannot make a browser send this machine's address as
/// Host.
fn is_addressed_locally(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|h| h.to_str().ok()) else { return false };
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether this page itself made the request.
fn is_ours(headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).and_then(|h| h.to_str().ok());
    let same_origin = match (text(&ORIGIN), text(&HOST)) {
        (Some(origin), Some(host)) => origin.split_once("://").is_some_and(|(_, origin)| origin == host),
        (None, _) => true,
        (Some(_), None) => false,
    };
    same_origin && headers.contains_key(&OURS)
}

async fn wish(
    State(served): State<Arc<Served>>,
    Path((node, fault)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if !is_ours(&headers) {
        return refuse(StatusCode::FORBIDDEN, "only the page itself may send this request");
    }
    let Some(fault) = Fault::parse(&fault) else {
        return refuse(StatusCode::NOT_FOUND, "unknown fault: use crash, partition or heal");
    };
    let Some(wishes) = &served.options.wishes else { return StatusCode::NOT_FOUND.into_response() };
    let (done, answer) = oneshot::channel();
    let gone = || refuse(StatusCode::SERVICE_UNAVAILABLE, "the cluster has been stopped");
    if wishes.send(Wish { node, fault, done }).await.is_err() {
        return gone();
    }
    match answer.await {
        Ok(Ok(())) => StatusCode::NO_CONTENT.into_response(),
        Ok(Err(why)) => (StatusCode::CONFLICT, why).into_response(),
        Err(_) => gone(),
    }
}

impl Replay {
    /// Serves the page of this history until `stop` completes.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let began = self.began();
        let options =
            ServeOptions { wishes: None, speed: self.story().speed, has_operator: self.story().has_operator };
        tokio::select! {
            served = Page::new(move || began).serve_forever(listener, options, Some(self)) => served,
            () = stop => Ok(()),
        }
    }
}

fn json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

async fn outline(State(served): State<Arc<Served>>) -> Response {
    served.replay.as_ref().map_or_else(|| StatusCode::NOT_FOUND.into_response(), |it| json(it.outline()))
}

async fn state_at(State(served): State<Arc<Served>>, Path(time): Path<String>) -> Response {
    at(&served, &time, None)
}

async fn changes_at(
    State(served): State<Arc<Served>>,
    Path((time, version)): Path<(String, String)>,
) -> Response {
    at(&served, &time, Some(&version))
}

/// The state at a time, or the changes since the version that the browser has.
fn at(served: &Served, time: &str, version: Option<&str>) -> Response {
    let Some(replay) = &served.replay else { return StatusCode::NOT_FOUND.into_response() };
    let ends = replay.ends();
    let Some(time) = time.parse().ok().filter(|time| (0..=ends).contains(time)) else {
        let why = format!("time {time:?}: write milliseconds since the beginning, from 0 to {ends}\n");
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    let version = match version.map(str::parse::<u64>) {
        None => None,
        Some(Ok(version)) => Some(version),
        Some(Err(_)) => {
            let why = format!(
                "version {:?}: write the version of an earlier answer\n",
                version.unwrap_or_default()
            );
            return (StatusCode::BAD_REQUEST, why).into_response();
        }
    };
    json(replay.at(time, version))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hello {
    can_wish: bool,
    speed: f64,
    has_operator: bool,
    /// Whether the page shows a history at a time that the browser chooses.
    replay: bool,
}

async fn changes(State(served): State<Arc<Served>>, headers: HeaderMap) -> impl IntoResponse {
    let heard = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).and_then(|id| id.split_once('-'));
    let version = heard
        .filter(|(epoch, _)| epoch.parse() == Ok(served.epoch))
        .and_then(|(_, version)| version.parse().ok());
    Sse::new(stream(served, version)).keep_alive(KeepAlive::default())
}

/// The stream of changes for one browser.
fn stream(served: Arc<Served>, version: Option<u64>) -> impl Stream<Item = Result<Event, Infallible>> {
    enum Next {
        Hello,
        /// The first change is sent at once, even if it is empty, because it carries the time.
        First,
        Later,
    }
    let changed = served.page.0.changed.subscribe();
    futures::stream::unfold(
        (served, changed, version, Next::Hello),
        async |(served, mut changed, version, next)| {
            match next {
                Next::Hello => {
                    let hello = Hello {
                        can_wish: served.options.wishes.is_some(),
                        speed: served.options.speed,
                        has_operator: served.options.has_operator,
                        replay: served.replay.is_some(),
                    };
                    let data = serde_json::to_string(&hello).unwrap_or_default();
                    let event = Event::default().event("hello").data(data);
                    return Some((Ok(event), (served, changed, version, Next::First)));
                }
                // In a replay, each browser requests the time that it shows.
                Next::First if served.replay.is_some() => std::future::pending().await,
                Next::First => {}
                Next::Later => {
                    changed.changed().await.ok()?;
                    tokio::time::sleep(COALESCE).await;
                }
            }
            changed.mark_unchanged();
            let now = (served.page.0.clock)();
            let (delta, seen) = {
                let world = served.page.world();
                (world.delta(version, now), world.version())
            };
            let event = Event::default().id(format!("{}-{seen}", served.epoch)).data(delta);
            Some((Ok(event), (served, changed, Some(seen), Next::Later)))
        },
    )
}
