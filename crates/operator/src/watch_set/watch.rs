//! One watch of one resource: lists, watches, and always knows how stale its view is.
//!
//! kube's own watcher hides bookmarks (so a quiet cluster looks like a dead connection), never relists after an HTTP
//! 410, and hammers a server that closes watches at once. Irreversible actions must not depend on that. Nor may a watch
//! continue from a resourceVersion that the server has not reached: after a backup is restored, such a watch stays
//! silent and then skips everything before that resourceVersion is reached again.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::Request;
use kube::{Client, client::Body};
use salvor_recovery::ids::ResourceVersion;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{sync::mpsc, time::Instant};

use self::{
    end::{SILENCE_ALLOWED, WATCH_SECONDS, WatchEnd, expired_or_api, refused},
    identity::Identity,
};
use crate::{
    client::{
        incoming::{Incoming, Line, Page, PageSize, ReadError},
        live,
        revision::{History, backoff},
    },
    tasks,
};

mod end;
mod health;
mod identity;
mod set;
mod source;

pub use crate::client::revision::Revision;
pub use health::{Moment, WatchHealth};
pub(crate) use set::WatchSet;
pub use source::{Change, Identified, Project, Source, Target};

/// The same while the server may have more events to send: it sends a bookmark two seconds before the end.
const CATCHING_UP_SECONDS: u64 = 5;
/// Timeout of one page of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// A watch that ends sooner than this counts as refused.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Time within which the changes of a watch are processed.
const TAKING_IN: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Event<'a, T> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    object: T,
}

/// Follows a resource until the receiver is gone.
pub async fn follow<P: Project>(
    source: Source,
    target: Target,
    projection: P,
    health: Arc<WatchHealth>,
    changes: mpsc::Sender<Change<P::Kept>>,
) {
    follow_with(Patience::Endless, source, target, projection, health, changes).await;
}

/// Follows a resource that a cluster may lack. Ends when the receiver is gone, when the server does not serve the
/// resource, or when we may not read it.
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

/// How long a failing watch is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For ever; its view counts as stale meanwhile.
    Endless,
    /// Until its view is this stale, or the server says that the resource does not exist or that we may not read it.
    Until(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// The receiver is gone.
    Unheard,
    NotServed,
    /// The server refused, or could not be reached.
    Failed(String),
}

impl Patience {
    /// Whether a failure ends the watch, given how long the server has sent nothing.
    fn ends_with(self, end: &WatchEnd, silence: Duration) -> Option<GivenUp> {
        let Self::Until(limit) = self else { return None };
        let code = match end {
            WatchEnd::Api(kube::Error::Api(status)) => status.code,
            WatchEnd::Refused { code, .. } => *code,
            WatchEnd::Api(_) | WatchEnd::Read(_) | WatchEnd::Silent | WatchEnd::Mute => 0,
            // A list follows, and its result decides.
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

/// Follows a resource until `patience` ends.
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
    // True if the server may be a different one, or in a different state, than when it sent the revision.
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
            // The revision advances with every event, so no event is repeated however the watch ends.
            Some(seen) => {
                // A watch that ends sooner than this did not end by its timeout.
                let whole = Duration::from_secs(follower.watch_seconds() - 1);
                let watched = follower.watch(seen).await;
                if watched.is_ok() && began.elapsed() >= whole {
                    // The server had time to send everything.
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
        // A list alone is no success: a server that refuses every watch would be listed all the time.
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
            follower.health.mark_not_served();
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
                tracing::debug!(resource, %end, "watch restarted: relisting");
                revision = None;
            }
            Err(WatchEnd::Rewound) => {
                if let Some(listed) = follower.listed {
                    follower.history.ends(listed);
                }
                revision = None;
            }
            Err(WatchEnd::ClosedAtOnce) => {
                tracing::debug!(resource, "watch restarted: closed at once");
                in_doubt = true;
            }
            Err(error) => {
                tracing::warn!(resource, %error, "watch restarted: interrupted");
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
    /// The epoch of the history in which the last list was read.
    listed: Option<u64>,
    /// A list read after revisions went backwards, until the server has provably nothing more to send.
    unconfirmed: Option<Unconfirmed>,
}

/// A list that may be old: its server may have sent later events before. No action depends on it until the watch from
/// it reaches the last known revision, or reaches the present, which a bookmark or a full watch proves. Otherwise the
/// views of two resources could be from different times.
struct Unconfirmed {
    known: Revision,
    /// All lists read since.
    lists: Vec<Moment>,
}

/// Whether a watch sent anything, be it an event or a bookmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Something,
    Nothing,
}

impl Heard {
    /// How a watch ends that stays silent from now on.
    fn silence(self) -> WatchEnd {
        match self {
            Self::Something => WatchEnd::Silent,
            Self::Nothing => WatchEnd::Mute,
        }
    }
}

impl<P: Project> Follower<P> {
    /// True if the resource may depend on a CustomResourceDefinition or an aggregated API: it is not in the core group.
    fn is_defined(&self) -> bool {
        self.target.path.starts_with("/apis/")
    }

    /// Reads all pages and passes them on as one list. Returns the revision to watch from.
    async fn list(&mut self, mut size: PageSize) -> Result<ResourceVersion, WatchEnd> {
        self.health.lists.fetch_add(1, Ordering::Relaxed);
        let asked = self.health.asked.load(Ordering::SeqCst);
        let epoch = self.history.epoch();
        // The same server never answers a list older than what it has sent before.
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
            // All pages must be of one revision.
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
            // The history ended during this list, and the list may be from before or after that.
            _ => return Err(WatchEnd::Asked),
        };
        let new_history = self.listed.is_some_and(|listed| listed != epoch);
        let doubtful = self.unconfirmed.take();
        let doubtful = doubtful
            .or_else(|| new_history.then(|| Unconfirmed { known: self.health.newest(), lists: Vec::new() }));
        if new_history {
            self.health.begin_history_at(seen);
        }
        self.health.saw(seen);
        self.listed = Some(epoch);
        let moment = Moment::of(seen, new_history, &self.health, epoch, asked);
        self.unconfirmed = doubtful.filter(|it| is_behind(seen, it.known));
        if let Some(doubtful) = &mut self.unconfirmed {
            doubtful.lists.push(moment.clone());
        }
        self.send(Change::Reset { all: kept, revision: moment, asked }).await?;
        Ok(revision)
    }

    /// Reads one page of a list and passes each of its objects to `each`.
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

    /// Checks that the server's revision has not gone backwards before a watch resumes where another broke off.
    async fn check_the_server(&self) -> Result<(), WatchEnd> {
        let floor = self.health.newest();
        let page = self.page(&[("limit", "1".to_owned())], |_| {}).await?;
        if is_behind(page.revision.revision(), floor) { Err(WatchEnd::Rewound) } else { Ok(()) }
    }

    /// Watches from a revision, which advances with every event, until the server ends the watch.
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
            () = self.health.relist_requested.notified() => return Err(WatchEnd::Asked),
        };
        let epoch = self.history.epoch();
        let mut heard = Heard::Nothing;
        loop {
            let line = body.line(|line| self.read_line(line));
            let line = tokio::select! {
                biased;
                line = tokio::time::timeout(SILENCE_ALLOWED, line) => line.map_err(|_| heard.silence())?,
                () = self.health.relist_requested.notified() => return Err(WatchEnd::Asked),
                () = self.history.is_over(epoch) => return Err(WatchEnd::Asked),
                () = self.changes.closed() => return Err(WatchEnd::Unheard),
            };
            let told = match line? {
                None => return Ok(heard),
                Some(told) => told?,
            };
            // The connection broke within a line. The server sends the whole event again from the last revision.
            let Some(Word { seen, change }) = told else { return Ok(heard) };
            if seen.revision() < revision.revision() {
                return Err(WatchEnd::Rewound);
            }
            // Only an event or a bookmark proves that the view advances; an open connection or an error does not.
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

    /// Accepts an unconfirmed list once its watch has advanced far enough.
    fn confirm(&mut self, is_there: impl FnOnce(&Unconfirmed) -> bool) {
        if let Some(confirmed) = self.unconfirmed.take_if(|it| is_there(it)) {
            tasks::spawn(async move {
                tokio::time::sleep(TAKING_IN).await;
                drop(confirmed.lists);
            });
        }
    }

    /// The event in a line; `None` if the line is incomplete.
    fn read_line(&self, line: Line<'_>) -> Result<Option<Word<P::Kept>>, WatchEnd> {
        let line = match line {
            Line::Whole(line) => line,
            Line::Half => return Ok(None),
            // The relist shows which object it was.
            Line::TooLong => return Err(WatchEnd::Expired),
        };
        // Nearly every line holds a decodable object, so decode it only once.
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
        // The server would send an undecodable line again and again. A relist replaces it.
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
        // A deleted object need not be decodable.
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

/// True if a list is older than what was seen before. A list without a revision counts as older if other lists had one.
fn is_behind(list: Revision, floor: Revision) -> bool {
    list.number() < floor.number()
}

struct Word<T> {
    /// The revision that the watch has reached.
    seen: ResourceVersion,
    /// `None` for a bookmark.
    change: Option<Change<T>>,
}

#[cfg(test)]
mod tests;
