//! Reads the server's answers piece by piece: a list object by object, a watch line by line. Anyone who may write to
//! the cluster decides how large these are, and a cluster may contain any number of large ones. So among all concurrent
//! reads, only one piece may be large.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::Body as _;
use kube::client::Body;
use salvor_recovery::ids::ResourceVersion;
use serde::{Deserialize, de::IgnoredAny};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use self::split::{Part, Splitter};

mod split;

/// A piece up to this size is read without waiting; nearly every pod, node and Job is smaller.
const SMALL: usize = 64 * 1024;
/// The largest piece that is read at all. etcd accepts 1.5 MB by default, and JSON may encode one byte as six.
const LARGEST: usize = 16 * 1024 * 1024;
/// Limit on the text around the objects of a list.
const LONGEST_FRAME: usize = 256 * 1024;
/// A large piece that is not complete by then gives way to the next one, so that a stalled connection blocks no other.
const LARGE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the connection broke: {0}")]
    Broken(kube::Error),
    #[error("an object of more than {} kB was not complete within {} s", SMALL / 1024, LARGE_WITHIN.as_secs())]
    Slow,
    #[error("the answer is longer than {} MB", LARGEST / 1024 / 1024)]
    TooLong,
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

impl From<ReadError> for kube::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Broken(error) => error,
            ReadError::Unreadable(error) => Self::SerdeError(error),
            other => Self::Service(Box::new(other)),
        }
    }
}

/// The memory for all concurrent reads of answers. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    large: Arc<Semaphore>,
    held: AtomicUsize,
    most: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Self {
        let large = Arc::new(Semaphore::new(1));
        Self(Arc::new(Account { large, held: AtomicUsize::new(0), most: AtomicUsize::new(0) }))
    }
}

impl Budget {
    /// The most bytes ever held at once.
    #[cfg(test)]
    pub(crate) fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    fn take(&self, bytes: usize) {
        let held = self.0.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.0.most.fetch_max(held, Ordering::SeqCst);
    }

    fn give_back(&self, bytes: usize) {
        self.0.held.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// One piece of an answer: an object or a line.
struct Piece {
    budget: Budget,
    bytes: Vec<u8>,
    /// Present while it is large: the permit for that, and its deadline.
    turn: Option<(OwnedSemaphorePermit, Instant)>,
    is_too_long: bool,
}

impl Piece {
    fn new(budget: Budget) -> Self {
        Self { budget, bytes: Vec::new(), turn: None, is_too_long: false }
    }

    async fn add(&mut self, part: &[u8]) {
        let length = self.bytes.len() + part.len();
        if length > LARGEST {
            self.clear();
            self.is_too_long = true;
        }
        if self.is_too_long {
            return;
        }
        if length > SMALL && self.turn.is_none() {
            // First come, first served. The semaphore is never closed.
            let Ok(turn) = Arc::clone(&self.budget.0.large).acquire_owned().await else { return };
            self.turn = Some((turn, Instant::now() + LARGE_WITHIN));
        }
        self.bytes.extend_from_slice(part);
        self.budget.take(part.len());
    }

    /// The piece, if it was short enough to be held.
    fn whole(&self) -> Option<&[u8]> {
        (!self.is_too_long).then_some(&self.bytes)
    }

    fn clear(&mut self) {
        self.budget.give_back(self.bytes.len());
        // Otherwise every reader would keep the buffer of its largest piece for ever.
        if self.bytes.capacity() > SMALL {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.turn = None;
        self.is_too_long = false;
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.clear();
    }
}

pub(crate) struct Incoming {
    body: Body,
    /// Bytes that have arrived and are not processed yet.
    arrived: Bytes,
    piece: Piece,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    /// The connection ended within it.
    Half,
    TooLong,
}

/// The fields of a page of a list besides its objects.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) revision: ResourceVersion,
    /// The token of the next page; empty on the last one.
    pub(crate) next: String,
    pub(crate) objects: usize,
    pub(crate) bytes: usize,
}

impl Incoming {
    /// All answers of one client share one budget, which they carry along; see `client/mod.rs`.
    pub(crate) fn of(answer: Response<Body>) -> Self {
        let budget = answer.extensions().get::<Budget>().cloned().unwrap_or_default();
        Self { body: answer.into_body(), arrived: Bytes::new(), piece: Piece::new(budget) }
    }

    /// Waits until something has arrived; false at the end.
    async fn has_more(&mut self) -> Result<bool, ReadError> {
        while self.arrived.is_empty() {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            let frame = match &self.piece.turn {
                Some((_, end)) => timeout_at(*end, frame).await.map_err(|_| ReadError::Slow)?,
                None => frame.await,
            };
            let Some(frame) = frame else { return Ok(false) };
            if let Ok(data) = frame.map_err(ReadError::Broken)?.into_data() {
                self.arrived = data;
            }
        }
        Ok(true)
    }

    /// The whole body, which must not be long.
    pub(crate) async fn whole(mut self) -> Result<Vec<u8>, ReadError> {
        while self.has_more().await? {
            let part = std::mem::take(&mut self.arrived);
            self.piece.add(&part).await;
            if self.piece.is_too_long {
                return Err(ReadError::TooLong);
            }
        }
        let whole = std::mem::take(&mut self.piece.bytes);
        self.piece.budget.give_back(whole.len());
        Ok(whole)
    }

    /// Reads the next line and passes it to `read`; `None` at the end.
    pub(crate) async fn line<T>(&mut self, read: impl FnOnce(Line<'_>) -> T) -> Result<Option<T>, ReadError> {
        let mut ended = false;
        let mut begun = false;
        while !ended {
            if !self.has_more().await? {
                if !begun {
                    return Ok(None);
                }
                let half = read(Line::Half);
                self.piece.clear();
                return Ok(Some(half));
            }
            begun = true;
            let newline = self.arrived.iter().position(|byte| *byte == b'\n');
            ended = newline.is_some();
            let part = self.arrived.split_to(newline.unwrap_or(self.arrived.len()));
            self.piece.add(&part).await;
        }
        self.arrived.advance(1);
        let line = read(self.piece.whole().map_or(Line::TooLong, Line::Whole));
        self.piece.clear();
        Ok(Some(line))
    }

    /// Reads a list, and passes each of its objects to `each` as soon as it is complete; `None` for one that is too
    /// long.
    pub(crate) async fn page(mut self, mut each: impl FnMut(Option<&[u8]>)) -> Result<Page, ReadError> {
        let (mut splitter, mut frame) = (Splitter::default(), Vec::new());
        let mut page = Page::default();
        while self.has_more().await? {
            while !self.arrived.is_empty() {
                let (length, part) = splitter.cut(&self.arrived);
                let bytes = self.arrived.split_to(length);
                match part {
                    Part::Frame => frame.extend_from_slice(&bytes),
                    Part::Between => {}
                    Part::Object { ends } => {
                        page.bytes += bytes.len();
                        self.piece.add(&bytes).await;
                        if ends {
                            page.objects += 1;
                            each(self.piece.whole());
                            self.piece.clear();
                        }
                    }
                }
                if frame.len() > LONGEST_FRAME {
                    return Err(ReadError::TooLong);
                }
            }
        }
        let list: List = serde_json::from_slice(&frame)?;
        page.revision = list.metadata.resource_version;
        page.next = list.metadata.next;
        Ok(page)
    }
}

/// All fields are required: an answer that is no list must not count as an empty one.
#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    #[serde(rename = "items")]
    _items: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: ResourceVersion,
    #[serde(rename = "continue", default)]
    next: String,
}

/// The number of objects to request at a time. The size of the next ones is unknown; the previous ones are a hint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageSize {
    limit: usize,
    bytes: usize,
}

/// The target size of a page: it bounds the server's work for one answer, and our memory.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Few enough even if each is as large as etcd accepts.
const FIRST_PAGE: usize = 20;
const LARGEST_PAGE: usize = 500;
/// A page is at most this many times as long as the previous one.
const GROWTH: usize = 4;

impl Default for PageSize {
    fn default() -> Self {
        Self { limit: FIRST_PAGE, bytes: PAGE_BYTES }
    }
}

impl PageSize {
    /// For a list of about this many objects, which should come in one page because a caller waits for it.
    pub(crate) fn expecting(objects: usize) -> Self {
        Self { limit: objects.clamp(FIRST_PAGE, LARGEST_PAGE), ..Self::default() }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Adapts the limit to the size of the last page's objects.
    pub(crate) fn learn(&mut self, page: &Page) {
        let Some(each) = page.bytes.checked_div(page.objects) else { return };
        let most = LARGEST_PAGE.saturating_mul(self.bytes / PAGE_BYTES);
        let fitting = (self.bytes / each.max(1)).clamp(1, most);
        self.limit = fitting.min(self.limit.saturating_mul(GROWTH));
    }

    /// The list took so long that its pages expired: the next attempt uses larger pages, in the end a single one.
    pub(crate) fn after_expired(self) -> Self {
        Self { limit: self.limit.saturating_mul(GROWTH), bytes: self.bytes.saturating_mul(GROWTH * GROWTH) }
    }
}

#[cfg(test)]
mod tests;
