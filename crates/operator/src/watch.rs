//! One watch of one resource: lists, watches, and always knows how old its view is.
//!
//! kube's own watcher hides bookmarks (so nobody can tell a quiet cluster from a dead connection), never relists after
//! an HTTP 410, and hammers a server that closes watches at once. What irreversible actions rest on must not do that.
//! Nor may it go on from a revision that the server has not reached: after the restore of a backup such a watch stays
//! silent, and then leaves out whatever happened before that revision was reached again.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::Request;
use kube::{Client, client::Body};
use salvor_recovery::ids::{ResourceVersion, Uid};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    incoming::{Incoming, Line, Page, PageSize, ReadError},
    live,
    revision::{History, backoff},
    tasks,
};

mod health;
mod set;

pub use crate::revision::Revision;
pub use health::{Moment, WatchHealth};
pub(crate) use set::WatchSet;

/// A watch is asked to last this long. The server then ends it, which also proves that the server is there.
const WATCH_SECONDS: u64 = 60;
/// The same while it is not known whether the server has more to tell: it sends a bookmark two seconds before the end.
const CATCHING_UP_SECONDS: u64 = 5;
/// Silence beyond the asked duration after which a connection is given up as half open.
const SILENCE_ALLOWED: Duration = Duration::from_secs(WATCH_SECONDS + 15);
/// One page of a list may take this long.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch that ends sooner than this was refused in all but name.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// What a watch has told is taken in by then.
const TAKING_IN: Duration = Duration::from_secs(1);

/// Which objects are watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The resource, for metrics and logs.
    pub resource: &'static str,
    /// Its path in the API.
    pub path: Cow<'static, str>,
    /// Server-side selection, if the API allows one.
    pub field_selector: Option<Cow<'static, str>>,
    /// Server-side selection by labels.
    pub label_selector: Option<Cow<'static, str>>,
}

impl Target {
    /// All objects at a path.
    pub const fn all(resource: &'static str, path: &'static str) -> Self {
        Self { resource, path: Cow::Borrowed(path), field_selector: None, label_selector: None }
    }

    /// Those objects at a path that a field selector matches.
    pub fn fields(
        resource: &'static str,
        path: &'static str,
        selector: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field_selector: Some(selector.into()), ..Self::all(resource, path) }
    }
}

/// Where watches read from. Those that share one also share what they notice about the server. Clones are the same.
#[derive(Clone)]
pub struct Source {
    pub(crate) client: Client,
    pub(crate) history: History,
}

impl Source {
    /// An API server.
    pub fn new(client: Client) -> Self {
        Self { client, history: History::default() }
    }
}

/// The projection of an object that a recovery keeps.
pub trait Project: Send + Sync + 'static {
    /// The decoded form of an object: all fields that may be needed, in one pass.
    type Wire: DeserializeOwned + Identified + Send;
    /// The slim form.
    type Kept: Send + 'static;

    /// The kept form of an object. `None`: it cannot matter in its present state.
    fn keep(&self, wire: Self::Wire) -> Option<Self::Kept>;
}

impl<P: Project> Project for Arc<P> {
    type Wire = P::Wire;
    type Kept = P::Kept;

    fn keep(&self, wire: P::Wire) -> Option<P::Kept> {
        (**self).keep(wire)
    }
}

/// Every object that is watched says which it is, and in which state.
pub trait Identified {
    /// Its UID.
    fn uid(&self) -> &Uid;
    /// Its state.
    fn resource_version(&self) -> &ResourceVersion;
}

/// A change of the watched set.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// This is all there was at a revision; it was read after so many lists had been asked for.
    Reset {
        /// The objects.
        all: Vec<T>,
        /// When it was read, by the server's count.
        revision: Moment,
        /// The number of lists that had been asked for.
        asked: u64,
    },
    /// An object appeared or changed.
    Applied(T),
    /// The object with this UID is gone, or does not matter any more.
    Gone(Uid),
}

impl<T> Change<T> {
    /// The same of another form of the objects.
    pub(crate) fn map<U>(self, mut form: impl FnMut(T) -> U) -> Change<U> {
        match self {
            Self::Reset { all, revision, asked } => {
                Change::Reset { all: all.into_iter().map(form).collect(), revision, asked }
            }
            Self::Applied(one) => Change::Applied(form(one)),
            Self::Gone(uid) => Change::Gone(uid),
        }
    }
}

/// The fields that even an unreadable object has.
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
    uid: Uid,
    resource_version: ResourceVersion,
}

#[derive(Deserialize)]
struct Event<'a, T> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    object: T,
}

#[derive(Debug, thiserror::Error)]
enum WatchEnd {
    #[error("the revision is too old")]
    Expired,
    #[error("the server has not reached the revision yet")]
    Ahead,
    #[error("a revision is lower than one that was seen before")]
    Rewound,
    #[error("{}", live::brief(.0))]
    Api(kube::Error),
    #[error("the server says {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("nothing was heard for {} seconds", SILENCE_ALLOWED.as_secs())]
    Silent,
    #[error("the watch told nothing at all")]
    Mute,
    #[error("the server closed the watch at once")]
    ClosedAtOnce,
    #[error("everything is to be read anew")]
    Asked,
    #[error("nobody listens any more")]
    Unheard,
}

/// Follows a resource for ever; ends only when nobody listens any more.
pub async fn follow<P: Project>(
    source: Source,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
) {
    follow_with(Patience::Endless, source, target, projection, health, changes).await;
}

/// Follows a resource that a cluster may lack. Ends when nobody listens any more, when the server does not serve it, or when we
/// may not read it.
pub async fn follow_while_served<P: Project>(
    source: Source,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
) {
    let patience = Patience::Until(Duration::MAX);
    follow_with(patience, source, target, projection, health, changes).await;
}

/// For how long a watch that fails is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For ever: its view counts as old meanwhile.
    Endless,
    /// Until its view is as old as this, or the server says that there is no such resource or that we may not read it.
    Until(Duration),
}

/// Why a watch was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// Nobody listens any more.
    Unheard,
    /// The server does not serve this resource.
    NotServed,
    /// The server refused, or it could not be asked.
    Failed(String),
}

impl Patience {
    /// Decides whether a failure ends the watch, after the server has sent nothing for a while.
    fn ends_with(self, end: &WatchEnd, silence: Duration) -> Option<GivenUp> {
        let Self::Until(limit) = self else { return None };
        let code = match end {
            WatchEnd::Api(kube::Error::Api(status)) => status.code,
            WatchEnd::Refused { code, .. } => *code,
            WatchEnd::Api(_) | WatchEnd::Read(_) | WatchEnd::Silent | WatchEnd::Mute => 0,
            // A list follows, and that tells.
            WatchEnd::Expired
            | WatchEnd::Ahead
            | WatchEnd::Rewound
            | WatchEnd::ClosedAtOnce
            | WatchEnd::Asked
            | WatchEnd::Unheard => return None,
        };
        match code {
            404 => Some(GivenUp::NotServed),
            401 | 403 | 405 => Some(GivenUp::Failed(end.to_string())),
            _ => (silence > limit).then(|| GivenUp::Failed(end.to_string())),
        }
    }
}

/// Follows a resource until patience with it ends.
pub(crate) async fn follow_with<P: Project>(
    patience: Patience,
    source: Source,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
) -> GivenUp {
    let Source { client, history } = source;
    health.belongs_to(&history);
    let mut follower =
        Follower { client, history, target, projection, health, changes, listed: None, unconfirmed: None };
    let mut size = PageSize::default();
    let mut failures: u32 = 0;
    let mut revision: Option<ResourceVersion> = None;
    // True if the server may be another one, or in another state, than when it told the revision.
    let mut in_doubt = false;
    loop {
        let began = Instant::now();
        if follower.listed != Some(follower.history.epoch()) {
            revision = None;
        }
        if revision.is_none()
            && let Some(at) = follower.history.may_be_read_at()
        {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(at) => {}
                () = follower.changes.closed() => return GivenUp::Unheard,
            }
        }
        let was_watching = revision.is_some() && !in_doubt;
        let result = match &mut revision {
            None => match follower.list(size).await {
                Ok(listed) => {
                    (revision, in_doubt, size) = (Some(listed), false, PageSize::default());
                    Ok(())
                }
                Err(end) => {
                    if matches!(end, WatchEnd::Expired) {
                        size = size.after_expired();
                    }
                    Err(end)
                }
            },
            Some(_) if in_doubt => follower.check_the_server().await.map(|()| in_doubt = false),
            // The revision moves with every event, so seen events stay seen, however the watch ends.
            Some(seen) => {
                // A watch that ends sooner than this did not end because its time was over.
                let whole = Duration::from_secs(follower.watch_seconds() - 1);
                let watched = follower.watch(seen).await;
                if watched.is_ok() && began.elapsed() >= whole {
                    // The server had time to tell all that it has.
                    follower.confirm(|_| true);
                }
                match watched {
                    Ok(_) if began.elapsed() < SHORT_WATCH => Err(WatchEnd::ClosedAtOnce),
                    Ok(_) if began.elapsed() < whole => {
                        in_doubt = true;
                        Ok(())
                    }
                    Ok(Heard::Something) => Ok(()),
                    // A server that knows the revision sends a bookmark before it ends the watch.
                    Ok(Heard::Nothing) => {
                        revision = None;
                        Ok(())
                    }
                    Err(end) => Err(end),
                }
            }
        };
        // A list alone is no success: a server that refuses every watch would be asked for one all the time.
        if was_watching && began.elapsed() >= SHORT_WATCH {
            failures = 0;
        }
        let resource = follower.target.resource;
        if let Err(end) = &result
            && let Some(given_up) = patience.ends_with(end, follower.health.staleness())
        {
            return given_up;
        }
        if matches!(&result, Err(WatchEnd::Api(kube::Error::Api(status))) if status.code == 404)
            && follower.is_defined()
        {
            follower.health.told_not_served();
        }
        match result {
            Ok(()) => continue,
            Err(WatchEnd::Unheard) => return GivenUp::Unheard,
            Err(WatchEnd::Asked) => {
                failures = 0;
                revision = None;
                continue;
            }
            Err(end @ (WatchEnd::Expired | WatchEnd::Ahead | WatchEnd::Mute)) => {
                tracing::debug!(resource, %end, "listing again");
                revision = None;
            }
            Err(WatchEnd::Rewound) => {
                if let Some(listed) = follower.listed {
                    follower.history.ends(listed);
                }
                revision = None;
            }
            Err(WatchEnd::ClosedAtOnce) => {
                tracing::debug!(resource, "the server closed the watch at once");
                in_doubt = true;
            }
            Err(error) => {
                tracing::warn!(resource, %error, "watch interrupted; it goes on from where it was");
                in_doubt = true;
            }
        }
        follower.health.restarts.fetch_add(1, Ordering::Relaxed);
        failures = failures.saturating_add(1);
        tokio::select! {
            biased;
            () = tokio::time::sleep(backoff(failures)) => {}
            () = follower.changes.closed() => return GivenUp::Unheard,
        }
    }
}

struct Follower<P: Project> {
    client: Client,
    history: History,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
    /// The number of the history in which the last list was read.
    listed: Option<u64>,
    /// A list from after revisions went backwards, until it is known that the server has nothing more to tell.
    unconfirmed: Option<Unconfirmed>,
}

/// A list that may only be old: its server may have told more before. Nothing is done by it until the watch from it has come as far as
/// that, or to the present, as a bookmark or the end of its time says: of two resources, one would be of an earlier time.
struct Unconfirmed {
    known: Revision,
    /// All that were read since.
    lists: Vec<Moment>,
}

/// Says whether a watch sent anything: an event or a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Something,
    Nothing,
}

impl Heard {
    /// Why a watch that stays silent from now on is given up.
    fn silence(self) -> WatchEnd {
        match self {
            Self::Something => WatchEnd::Silent,
            Self::Nothing => WatchEnd::Mute,
        }
    }
}

impl<P: Project> Follower<P> {
    /// True if a definition in the cluster decides whether the resource is there: it is not in the core group.
    fn is_defined(&self) -> bool {
        self.target.path.starts_with("/apis/")
    }

    /// Reads everything page by page and hands it on as one; the revision to watch from.
    async fn list(&mut self, mut size: PageSize) -> Result<ResourceVersion, WatchEnd> {
        self.health.lists.fetch_add(1, Ordering::Relaxed);
        let asked = self.health.asked.load(Ordering::SeqCst);
        let epoch = self.history.epoch();
        // A list is never behind what the same server has told before.
        let floor = (self.listed == Some(epoch)).then(|| self.health.newest());
        let mut kept = Vec::new();
        let mut next = String::new();
        let mut first = None;
        let revision = loop {
            let mut query = vec![("limit", size.limit().to_string())];
            if !next.is_empty() {
                query.push(("continue", next));
            }
            let page = self.page(&query, |object| kept.extend(self.read_object(object))).await?;
            self.health.heard();
            size.learn(&page);
            // All pages are of one moment.
            if *first.get_or_insert_with(|| page.revision.clone()) != page.revision {
                return Err(WatchEnd::Expired);
            }
            next = page.next;
            if next.is_empty() {
                break page.revision;
            }
        };
        let seen = revision.revision();
        let epoch = match floor {
            Some(floor) if is_behind(seen, floor) => self.history.ends(epoch),
            _ if self.history.epoch() == epoch => epoch,
            // Somebody has noticed something meanwhile: nobody knows whether before or after this was read.
            _ => return Err(WatchEnd::Asked),
        };
        let anew = self.listed.is_some_and(|listed| listed != epoch);
        let doubtful = self.unconfirmed.take();
        let doubtful =
            doubtful.or_else(|| anew.then(|| Unconfirmed { known: self.health.newest(), lists: Vec::new() }));
        if anew {
            self.health.begin_anew_from(seen);
        }
        self.health.saw(seen);
        self.listed = Some(epoch);
        let moment = Moment::of(seen, anew, &self.health, epoch, asked);
        self.unconfirmed = doubtful.filter(|it| is_behind(seen, it.known));
        if let Some(doubtful) = &mut self.unconfirmed {
            doubtful.lists.push(moment.clone());
        }
        self.send(Change::Reset { all: kept, revision: moment, asked }).await?;
        Ok(revision)
    }

    /// Reads one page of a list, and what is kept of each of its objects.
    async fn page(
        &self,
        query: &[(&str, String)],
        each: impl FnMut(Option<&[u8]>),
    ) -> Result<Page, WatchEnd> {
        let request = self.request(query)?;
        let page = async { Ok(self.open(request).await?.page(each).await?) };
        tokio::time::timeout(LIST_TIMEOUT, page).await.map_err(|_| WatchEnd::Silent)?
    }

    fn read_object(&self, object: Option<&[u8]>) -> Option<P::Kept> {
        let Some(object) = object else {
            self.health.cannot_read(&Identity::default(), &ReadError::TooLong);
            return None;
        };
        match serde_json::from_slice(object) {
            Ok(wire) => self.projection.keep(wire),
            Err(error) => {
                self.health.cannot_read(&serde_json::from_slice(object).unwrap_or_default(), &error);
                None
            }
        }
    }

    /// Checks that the server's revision has not gone back, before a watch continues where another one broke off.
    async fn check_the_server(&self) -> Result<(), WatchEnd> {
        let floor = self.health.newest();
        let page = self.page(&[("limit", "1".to_owned())], |_| {}).await?;
        if is_behind(page.revision.revision(), floor) { Err(WatchEnd::Rewound) } else { Ok(()) }
    }

    /// Watches from a revision, which moves with what is seen, until the server ends it.
    async fn watch(&mut self, revision: &mut ResourceVersion) -> Result<Heard, WatchEnd> {
        let query = [
            ("watch", "true".to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("timeoutSeconds", self.watch_seconds().to_string()),
            ("resourceVersion", revision.to_string()),
        ];
        let opened = self.open(self.request(&query)?);
        let mut body = tokio::select! {
            biased;
            opened = tokio::time::timeout(SILENCE_ALLOWED, opened) => opened.map_err(|_| WatchEnd::Silent)??,
            () = self.health.bell.notified() => return Err(WatchEnd::Asked),
        };
        let epoch = self.history.epoch();
        let mut heard = Heard::Nothing;
        loop {
            let line = body.line(|line| self.read_line(line));
            let line = tokio::select! {
                biased;
                line = tokio::time::timeout(SILENCE_ALLOWED, line) => line.map_err(|_| heard.silence())?,
                () = self.health.bell.notified() => return Err(WatchEnd::Asked),
                () = self.history.is_over(epoch) => return Err(WatchEnd::Asked),
                () = self.changes.closed() => return Err(WatchEnd::Unheard),
            };
            let told = match line? {
                None => return Ok(heard),
                Some(told) => told?,
            };
            // Half a line at the end of a broken connection: the whole one comes again from the last revision.
            let Some(Word { seen, change }) = told else { return Ok(heard) };
            if seen.revision() < revision.revision() {
                return Err(WatchEnd::Rewound);
            }
            // Only an event or a bookmark proves that the view moves; an opened connection or an error does not.
            self.health.heard();
            heard = Heard::Something;
            let is_bookmark = change.is_none();
            if let Some(change) = change {
                self.send(change).await?;
            }
            self.confirm(|it| is_bookmark || seen.revision() >= it.known);
            if !seen.is_empty() {
                self.health.saw(seen.revision());
                *revision = seen;
            }
        }
    }

    fn watch_seconds(&self) -> u64 {
        if self.unconfirmed.is_some() { CATCHING_UP_SECONDS } else { WATCH_SECONDS }
    }

    /// Lets a list count that was in doubt, if the watch from it has come far enough.
    fn confirm(&mut self, is_there: impl FnOnce(&Unconfirmed) -> bool) {
        if let Some(confirmed) = self.unconfirmed.take_if(|it| is_there(it)) {
            tasks::spawn(async move {
                tokio::time::sleep(TAKING_IN).await;
                drop(confirmed.lists);
            });
        }
    }

    /// The event in a line; none if the line is incomplete.
    fn read_line(&self, line: Line<'_>) -> Result<Option<Word<P::Kept>>, WatchEnd> {
        let line = match line {
            Line::Whole(line) => line,
            Line::Half => return Ok(None),
            // The next list tells which object it was.
            Line::TooLong => return Err(WatchEnd::Expired),
        };
        // Nearly every line is about an object that can be read, and that is read once.
        let unreadable = match serde_json::from_slice::<Event<'_, P::Wire>>(line) {
            Ok(Event { kind, object }) if !matches!(&*kind, "BOOKMARK" | "ERROR") => {
                let (seen, uid) = (object.resource_version().clone(), object.uid().clone());
                let kept = if kind == "DELETED" { None } else { self.projection.keep(object) };
                return Ok(Some(Word {
                    seen,
                    change: Some(kept.map_or(Change::Gone(uid), Change::Applied)),
                }));
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        // A whole line that nobody can read would come again and again: what it was, a list tells.
        let Ok(event) = serde_json::from_slice::<Event<'_, &RawValue>>(line) else {
            return Err(WatchEnd::Expired);
        };
        if event.kind == "ERROR" {
            return Err(refused(event.object));
        }
        let object: Identity = serde_json::from_str(event.object.get()).unwrap_or_default();
        let seen = object.metadata.resource_version.clone();
        if event.kind == "BOOKMARK" {
            return Ok(Some(Word { seen, change: None }));
        }
        // An object that is gone need not be readable.
        if let Some(error) = unreadable.filter(|_| event.kind != "DELETED") {
            self.health.cannot_read(&object, &error);
        }
        Ok(Some(Word { seen, change: Some(Change::Gone(object.metadata.uid)) }))
    }

    async fn send(&self, change: Change<P::Kept>) -> Result<(), WatchEnd> {
        self.changes.send(change).await.map_err(|_| WatchEnd::Unheard)
    }

    async fn open(&self, request: Request<Body>) -> Result<Incoming, WatchEnd> {
        live::open(&self.client, request).await.map_err(expired_or_api)
    }

    fn request(&self, query: &[(&str, String)]) -> Result<Request<Body>, WatchEnd> {
        let fields = self.target.field_selector.as_deref().map(|s| ("fieldSelector", s.to_owned()));
        let labels = self.target.label_selector.as_deref().map(|s| ("labelSelector", s.to_owned()));
        let pairs = query.iter().cloned().chain(fields).chain(labels);
        let query: Vec<String> = pairs.map(|(k, v)| format!("{k}={}", live::percent_encode(&v))).collect();
        let uri = format!("{}?{}", self.target.path, query.join("&"));
        Request::get(uri).body(Body::empty()).map_err(|e| WatchEnd::Api(kube::Error::HttpError(e)))
    }
}

/// True if a list is older than what was seen before. One that does not tell its revision may be, where others have told theirs.
fn is_behind(list: Revision, floor: Revision) -> bool {
    list.number() < floor.number()
}

/// An event in a line of a watch.
struct Word<T> {
    /// The revision that was reached.
    seen: ResourceVersion,
    /// Nothing for a bookmark.
    change: Option<Change<T>>,
}

fn expired_or_api(error: kube::Error) -> WatchEnd {
    match error {
        kube::Error::Api(status) => match end_of(status.code, &status.message) {
            Some(end) => end,
            None => WatchEnd::Api(kube::Error::Api(status)),
        },
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
    end_of(code, &message).unwrap_or(WatchEnd::Refused { code, message })
}

/// The server's refusal of a revision from which it cannot begin.
fn end_of(code: u16, message: &str) -> Option<WatchEnd> {
    match code {
        410 => Some(WatchEnd::Expired),
        // Both kinds of server say so: the one that asks its cache, and the one that asks etcd.
        _ if message.contains("Too large resource version") || message.contains("future revision") => {
            Some(WatchEnd::Ahead)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
