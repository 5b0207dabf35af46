//! One watch of one resource: lists, watches, and always knows how old its view is.
//!
//! kube's own watcher hides bookmarks (so nobody can tell a quiet cluster from a dead connection), never relists after
//! an HTTP 410, and hammers a server that closes watches at once. What irreversible actions rest on must not do that.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{AsyncBufRead, AsyncBufReadExt};
use http::Request;
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::live;

/// Objects a list brings at a time: ten-kilobyte pods, so a page is a few megabytes.
const PAGE: usize = 200;
/// How long a watch is asked to last. The server ends it then, which also proves that it is there.
const WATCH_SECONDS: u64 = 60;
/// Silence beyond the asked duration after which a connection is given up as half open.
const SILENCE_ALLOWED: Duration = Duration::from_secs(WATCH_SECONDS + 15);
/// How long a list may take for one page.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch that ends sooner than this was refused in all but name.
const SHORT_WATCH: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// Which objects are watched.
#[derive(Clone, Debug)]
pub struct Target {
    /// The resource, for metrics and logs.
    pub resource: &'static str,
    /// Its path in the API.
    pub path: &'static str,
    /// Server-side selection, if the API allows one.
    pub field_selector: Option<Cow<'static, str>>,
}

/// What a recovery keeps of an object.
pub trait Project: Send + Sync + 'static {
    /// What is decoded of an object: all that may be needed, in the one pass that a watch has time for.
    type Wire: DeserializeOwned + Identified + Send;
    /// The slim form.
    type Kept: Send + 'static;

    /// What is kept of an object. `None`: it can never matter as it is now.
    fn keep(&self, wire: Self::Wire) -> Option<Self::Kept>;
}

/// Every object that is watched says which it is, and in which state.
pub trait Identified {
    /// Its UID.
    fn uid(&self) -> &str;
    /// Its state.
    fn resource_version(&self) -> &str;
}

/// A change of the watched set.
#[derive(Debug)]
pub enum Change<T> {
    /// This is all there was at a revision; it was read after so many lists had been asked for.
    Reset {
        /// The objects.
        all: Vec<T>,
        /// The revision.
        revision: String,
        /// How many lists had been asked for.
        asked: u64,
    },
    /// An object appeared or changed.
    Applied(T),
    /// The object with this UID is gone, or does not matter any more.
    Gone(String),
}

/// How a watch is doing. Shared with metrics, health and the engine.
#[derive(Debug)]
pub struct WatchHealth {
    pub(crate) resource: &'static str,
    origin: Instant,
    last_word: AtomicU64,
    synced: AtomicBool,
    pub(crate) restarts: Arc<AtomicU64>,
    pub(crate) lists: Arc<AtomicU64>,
    pub(crate) unreadable: Arc<AtomicU64>,
    complained: Mutex<BTreeSet<String>>,
    /// There if this stands for many watches.
    members: Option<Mutex<Vec<Weak<Self>>>>,
    asked: AtomicU64,
    bell: Notify,
}

impl WatchHealth {
    /// A watch that has not begun.
    pub fn new(resource: &'static str) -> Arc<Self> {
        Arc::new(Self::begin(resource))
    }

    /// Many watches that come and go: as old as the oldest of them, and never old while there is none.
    pub(crate) fn of_many(resource: &'static str) -> Arc<Self> {
        Arc::new(Self {
            synced: AtomicBool::new(true),
            members: Some(Mutex::default()),
            ..Self::begin(resource)
        })
    }

    /// One more of many watches.
    pub(crate) fn member(&self) -> Arc<Self> {
        let member = Arc::new(Self {
            restarts: self.restarts.clone(),
            lists: self.lists.clone(),
            unreadable: self.unreadable.clone(),
            ..Self::begin(self.resource)
        });
        if let Some(members) = &self.members {
            let mut members = members.lock().unwrap_or_else(PoisonError::into_inner);
            members.retain(|member| member.strong_count() > 0);
            members.push(Arc::downgrade(&member));
        }
        member
    }

    fn begin(resource: &'static str) -> Self {
        Self {
            resource,
            origin: Instant::now(),
            last_word: AtomicU64::new(0),
            synced: AtomicBool::new(false),
            restarts: Arc::default(),
            lists: Arc::default(),
            unreadable: Arc::default(),
            complained: Mutex::default(),
            members: None,
            asked: AtomicU64::new(0),
            bell: Notify::new(),
        }
    }

    /// Asks for everything to be read anew, however good the watch; how many times that was asked for by now.
    pub(crate) fn ask_for_list(&self) -> u64 {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.bell.notify_one();
        asked
    }

    /// How long ago the server last said anything, a bookmark included.
    pub fn staleness(&self) -> Duration {
        if let Some(members) = &self.members {
            let members = members.lock().unwrap_or_else(PoisonError::into_inner);
            let ages = members.iter().filter_map(Weak::upgrade).map(|member| member.staleness());
            return ages.max().unwrap_or_default();
        }
        let last = Duration::from_millis(self.last_word.load(Ordering::Relaxed));
        self.origin.elapsed().saturating_sub(last)
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    /// As if the whole list had been read, and the server had said something just now.
    #[cfg(test)]
    pub(crate) fn is_up_to_date(&self) {
        self.synced.store(true, Ordering::Relaxed);
        self.heard();
    }

    fn heard(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_word.store(now, Ordering::Relaxed);
    }

    fn cannot_read(&self, object: &Identity, error: &serde_json::Error) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{}/{}", object.metadata.namespace, object.metadata.name);
        if complained.len() < 1000 && complained.insert(name.clone()) {
            tracing::warn!(resource = self.resource, object = name, %error, "an object cannot be read and is left alone");
        }
    }
}

/// What even an unreadable object has.
#[derive(Deserialize, Default)]
struct Identity {
    #[serde(default)]
    metadata: IdentityMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct IdentityMeta {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

#[derive(Deserialize)]
struct ListPage<T> {
    metadata: ListMeta,
    #[serde(default = "Option::default")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Line<'a, T> {
    #[serde(rename = "type", borrow)]
    kind: &'a str,
    object: T,
}

#[derive(Debug, thiserror::Error)]
enum WatchEnd {
    #[error("the revision is too old")]
    Expired,
    #[error("{}", live::brief(.0))]
    Api(kube::Error),
    #[error("the server says {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    #[error("nothing was heard for {} seconds", SILENCE_ALLOWED.as_secs())]
    Silent,
    #[error("the server closed the watch at once")]
    ClosedAtOnce,
    #[error("everything is to be read anew")]
    Asked,
    #[error("nobody listens any more")]
    Unheard,
}

/// Follows a resource for ever; ends only when nobody listens any more.
pub async fn follow<P: Project>(
    client: Client,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
) {
    let follower = Follower { client, target, projection, health, changes };
    let mut failures: u32 = 0;
    let mut revision: Option<String> = None;
    loop {
        let began = Instant::now();
        let was_watching = revision.is_some();
        let result = match &mut revision {
            None => follower.list().await.map(|listed| revision = Some(listed)),
            // What was seen stays seen, however the watch ends: the revision moves with every event.
            Some(seen) => follower.watch(seen).await.and_then(|()| {
                if began.elapsed() < SHORT_WATCH { Err(WatchEnd::ClosedAtOnce) } else { Ok(()) }
            }),
        };
        // A list alone is no success: a server that refuses every watch would be asked for one all the time.
        if was_watching && began.elapsed() >= SHORT_WATCH {
            failures = 0;
        }
        match result {
            Ok(()) => continue,
            Err(WatchEnd::Unheard) => return,
            Err(WatchEnd::Asked) => {
                failures = 0;
                revision = None;
                continue;
            }
            Err(WatchEnd::Expired) => {
                tracing::debug!(resource = follower.target.resource, "revision expired; listing again");
                revision = None;
            }
            Err(WatchEnd::ClosedAtOnce) => {
                tracing::debug!(resource = follower.target.resource, "the server closed the watch at once");
            }
            Err(error) => {
                tracing::warn!(resource = follower.target.resource, %error, "watch interrupted; it goes on from where it was");
            }
        }
        follower.health.restarts.fetch_add(1, Ordering::Relaxed);
        failures = failures.saturating_add(1);
        tokio::select! {
            biased;
            () = tokio::time::sleep(backoff(failures)) => {}
            () = follower.changes.closed() => return,
        }
    }
}

fn backoff(failures: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(20))).min(LONGEST_BACKOFF)
}

struct Follower<P: Project> {
    client: Client,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
}

impl<P: Project> Follower<P> {
    /// Reads everything page by page and hands it on as one; the revision to watch from.
    async fn list(&self) -> Result<String, WatchEnd> {
        self.health.lists.fetch_add(1, Ordering::Relaxed);
        let asked = self.health.asked.load(Ordering::SeqCst);
        let mut kept = Vec::new();
        let mut next = String::new();
        loop {
            let mut query = vec![("limit", PAGE.to_string())];
            if !next.is_empty() {
                query.push(("continue", next));
            }
            let answer = self.client.request_text(self.request(&query)?);
            let text = tokio::time::timeout(LIST_TIMEOUT, answer)
                .await
                .map_err(|_| WatchEnd::Silent)?
                .map_err(expired_or_api)?;
            self.health.heard();
            let page = self.read_page(&text)?;
            drop(text);
            let objects = page.items.into_iter().flatten();
            kept.extend(objects.filter_map(|wire| self.projection.keep(wire)));
            next = page.metadata.next;
            if next.is_empty() {
                let revision = page.metadata.resource_version;
                self.send(Change::Reset { all: kept, revision: revision.clone(), asked }).await?;
                self.health.synced.store(true, Ordering::Relaxed);
                return Ok(revision);
            }
        }
    }

    /// Decodes a page in one pass; if an object in it cannot be read, in two, without that object.
    fn read_page(&self, text: &str) -> Result<ListPage<P::Wire>, WatchEnd> {
        if let Ok(page) = serde_json::from_str(text) {
            return Ok(page);
        }
        let ListPage { metadata, items }: ListPage<&RawValue> = serde_json::from_str(text)?;
        let read = |item: &RawValue| {
            let unreadable = |error| self.health.cannot_read(&identify(item), &error);
            serde_json::from_str(item.get()).map_err(unreadable).ok()
        };
        Ok(ListPage { metadata, items: items.map(|items| items.into_iter().filter_map(read).collect()) })
    }

    /// Watches from a revision, which moves with what is seen, until the server ends it.
    async fn watch(&self, revision: &mut String) -> Result<(), WatchEnd> {
        let query = [
            ("watch", "true".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("timeoutSeconds", WATCH_SECONDS.to_string()),
            ("resourceVersion", revision.clone()),
        ];
        let opened = self.client.request_stream(self.request(&query)?);
        let body = tokio::time::timeout(SILENCE_ALLOWED, opened)
            .await
            .map_err(|_| WatchEnd::Silent)?
            .map_err(expired_or_api)?;
        let mut body = std::pin::pin!(body);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = next_line(&mut body, &mut line);
            let read = tokio::select! {
                biased;
                read = tokio::time::timeout(SILENCE_ALLOWED, read) => read.map_err(|_| WatchEnd::Silent)?,
                () = self.health.bell.notified() => return Err(WatchEnd::Asked),
                () = self.changes.closed() => return Err(WatchEnd::Unheard),
            };
            if !read? {
                return Ok(());
            }
            // Nearly every line is about an object that can be read, and that is read once.
            let unreadable = match serde_json::from_slice::<Line<'_, P::Wire>>(&line) {
                Ok(Line { kind, object }) if !matches!(kind, "BOOKMARK" | "ERROR") => {
                    self.health.heard();
                    let seen = object.resource_version().to_owned();
                    self.pass_on(kind, object).await?;
                    *revision = seen;
                    continue;
                }
                Ok(_) => None,
                Err(error) => Some(error),
            };
            let event = match serde_json::from_slice::<Line<'_, &RawValue>>(&line) {
                Ok(event) => event,
                // Half a line at the end of a broken connection: the whole one comes again from the last revision.
                Err(_) if !line.ends_with(b"\n") => return Ok(()),
                // A whole line that nobody can read would come again and again: what it was, a list tells.
                Err(_) => return Err(WatchEnd::Expired),
            };
            // Only an event or a bookmark proves that the view moves; an opened connection or an error does not.
            if event.kind == "ERROR" {
                return Err(refused(event.object));
            }
            self.health.heard();
            let object = identify(event.object);
            if event.kind != "BOOKMARK" {
                // An object that is gone need not be readable.
                if let Some(error) = unreadable.filter(|_| event.kind != "DELETED") {
                    self.health.cannot_read(&object, &error);
                }
                self.send(Change::Gone(object.metadata.uid)).await?;
            }
            if !object.metadata.resource_version.is_empty() {
                *revision = object.metadata.resource_version;
            }
        }
    }

    async fn pass_on(&self, kind: &str, object: P::Wire) -> Result<(), WatchEnd> {
        let uid = object.uid().to_owned();
        let kept = if kind == "DELETED" { None } else { self.projection.keep(object) };
        self.send(kept.map_or(Change::Gone(uid), Change::Applied)).await
    }

    async fn send(&self, change: Change<P::Kept>) -> Result<(), WatchEnd> {
        self.changes.send(change).await.map_err(|_| WatchEnd::Unheard)
    }

    fn request(&self, query: &[(&str, String)]) -> Result<Request<Vec<u8>>, WatchEnd> {
        let selector = self.target.field_selector.as_deref().map(|s| ("fieldSelector", s.to_owned()));
        let pairs = query.iter().cloned().chain(selector);
        let query: Vec<String> = pairs.map(|(k, v)| format!("{k}={}", percent_encode(&v))).collect();
        let uri = format!("{}?{}", self.target.path, query.join("&"));
        Request::get(uri).body(Vec::new()).map_err(|e| WatchEnd::Api(kube::Error::HttpError(e)))
    }
}

async fn next_line(body: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> std::io::Result<bool> {
    Ok(body.read_until(b'\n', line).await? > 0)
}

fn identify(object: &RawValue) -> Identity {
    serde_json::from_str(object.get()).unwrap_or_default()
}

fn expired_or_api(error: kube::Error) -> WatchEnd {
    match error {
        kube::Error::Api(status) if status.code == 410 => WatchEnd::Expired,
        other => WatchEnd::Api(other),
    }
}

fn refused(status: &RawValue) -> WatchEnd {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        code: u16,
        message: String,
    }
    let Status { code, message } = serde_json::from_str(status.get()).unwrap_or_default();
    if code == 410 { WatchEnd::Expired } else { WatchEnd::Refused { code, message } }
}

fn percent_encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
