//! The health of a watch.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use salvor_recovery::ids::ResourceVersion;
use tokio::{sync::Notify, time::Instant};

use super::identity::Identity;
use crate::client::revision::{History, Revision};

/// Metrics, probes and the engine share it.
#[derive(Debug)]
pub struct WatchHealth {
    pub(crate) resource: &'static str,
    origin: Instant,
    last_word: AtomicU64,
    /// One more than the epoch of the last processed list; 0 before the first one.
    listed_in: AtomicU64,
    /// The highest revision seen in this history, on the watch or elsewhere.
    newest: AtomicU64,
    history: OnceLock<History>,
    pub(crate) restarts: Arc<AtomicU64>,
    pub(crate) lists: Arc<AtomicU64>,
    pub(crate) unreadable: Arc<AtomicU64>,
    complained: Mutex<BTreeSet<String>>,
    /// Present if this stands for many watches.
    members: Option<Mutex<Vec<Weak<Self>>>>,
    pub(super) asked: AtomicU64,
    /// How many lists had been requested when the last processed list began.
    taken_in: AtomicU64,
    pub(super) relist_requested: Notify,
    not_served: AtomicBool,
}

impl WatchHealth {
    pub fn new(resource: &'static str) -> Arc<Self> {
        Arc::new(Self::begin(resource))
    }

    /// Many watches that come and go. They are as stale as the stalest of them, and never stale while there is none.
    pub(crate) fn of_many(resource: &'static str) -> Arc<Self> {
        Arc::new(Self { members: Some(Mutex::default()), ..Self::begin(resource) })
    }

    /// A new watch that shares the counters. It counts as a member once it is admitted.
    pub(crate) fn candidate(&self) -> Arc<Self> {
        Arc::new(Self {
            restarts: self.restarts.clone(),
            lists: self.lists.clone(),
            unreadable: self.unreadable.clone(),
            ..Self::begin(self.resource)
        })
    }

    /// A new watch that counts at once.
    pub(crate) fn member(&self) -> Arc<Self> {
        let member = self.candidate();
        self.admit(&member);
        member
    }

    /// Counts a candidate as a member for as long as any reference to it exists.
    pub(crate) fn admit(&self, candidate: &Arc<Self>) {
        if let Some(members) = &self.members {
            let mut members = members.lock().unwrap_or_else(PoisonError::into_inner);
            members.retain(|member| member.strong_count() > 0);
            if !members.iter().any(|member| member.as_ptr() == Arc::as_ptr(candidate)) {
                members.push(Arc::downgrade(candidate));
            }
        }
    }

    fn begin(resource: &'static str) -> Self {
        Self {
            resource,
            origin: Instant::now(),
            last_word: AtomicU64::new(0),
            listed_in: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            history: OnceLock::new(),
            restarts: Arc::default(),
            lists: Arc::default(),
            unreadable: Arc::default(),
            complained: Mutex::default(),
            members: None,
            asked: AtomicU64::new(0),
            taken_in: AtomicU64::new(0),
            relist_requested: Notify::new(),
            not_served: AtomicBool::new(false),
        }
    }

    /// The members that still exist, if this stands for many watches.
    fn members(&self) -> Option<Vec<Arc<Self>>> {
        let members = self.members.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(members.iter().filter_map(Weak::upgrade).collect())
    }

    /// Requests a relist, however healthy the watch is. Returns how many relists were requested so far.
    pub(crate) fn ask_for_list(&self) -> u64 {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.relist_requested.notify_one();
        for member in self.members().into_iter().flatten() {
            member.ask_for_list();
        }
        asked
    }

    /// True if a list was processed that began after this many requests.
    pub(crate) fn has_taken_in(&self, asked: u64) -> bool {
        self.taken_in.load(Ordering::SeqCst) >= asked
    }

    /// Time since the server last sent anything, including bookmarks.
    pub fn staleness(&self) -> Duration {
        if let Some(members) = self.members() {
            return members.iter().map(|member| member.staleness()).max().unwrap_or_default();
        }
        let last = Duration::from_millis(self.last_word.load(Ordering::Relaxed));
        self.origin.elapsed().saturating_sub(last)
    }

    /// True if a full list was processed since revisions last went backwards.
    pub fn is_synced(&self) -> bool {
        match self.members() {
            // Users of a group of watches track themselves which of them have not been listed yet.
            Some(members) => !members.iter().any(|member| member.is_outdated()),
            None => self.listed_in() == self.epoch() + 1,
        }
    }

    /// True if revisions have gone backwards since the last processed list.
    pub(crate) fn is_outdated(&self) -> bool {
        match self.members() {
            Some(members) => members.iter().any(|member| member.is_outdated()),
            None => self.listed_in() != 0 && !self.is_synced(),
        }
    }

    fn listed_in(&self) -> u64 {
        self.listed_in.load(Ordering::SeqCst)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.history().epoch()
    }

    /// Shared by all watches of an operator once this watch runs.
    pub(crate) fn history(&self) -> &History {
        self.history.get_or_init(History::default)
    }

    pub(super) fn belongs_to(&self, history: &History) {
        // Only a test that follows the same watch twice sets this twice.
        let _ = self.history.set(history.clone());
    }

    /// Records a revision seen elsewhere than on this watch: in the server's answer to a write.
    pub(crate) fn saw(&self, revision: Revision) {
        self.newest.fetch_max(revision.number(), Ordering::SeqCst);
    }

    pub(super) fn newest(&self) -> Revision {
        Revision::numbered(self.newest.load(Ordering::SeqCst))
    }

    /// Restarts from a lower revision after revisions went backwards.
    pub(super) fn begin_history_at(&self, revision: Revision) {
        self.newest.store(revision.number(), Ordering::SeqCst);
    }

    /// As if a full list had been processed and the server had sent something just now.
    #[cfg(test)]
    pub(crate) fn is_up_to_date(&self) {
        self.listed_in.store(self.epoch() + 1, Ordering::SeqCst);
        self.heard();
    }

    /// True if the server last reported that it does not serve the resource. Its definition is not installed, so there
    /// are no objects.
    pub(crate) fn is_not_served(&self) -> bool {
        self.not_served.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_not_served(&self) {
        self.not_served.store(true, Ordering::Relaxed);
    }

    pub(super) fn heard(&self) {
        self.not_served.store(false, Ordering::Relaxed);
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_word.store(now, Ordering::Relaxed);
    }

    pub(super) fn cannot_read(&self, object: &Identity, error: &dyn std::fmt::Display) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{}/{}", object.metadata.namespace, object.metadata.name);
        if complained.len() < 1000 && complained.insert(name.clone()) {
            tracing::warn!(resource = self.resource, object = name, %error, "object skipped: unreadable");
        }
    }
}

/// When a list was read. It accompanies the list: once it and all its clones are dropped, every receiver has processed
/// the list and the watch counts as listed.
#[derive(Clone, Debug)]
pub struct Moment {
    pub(crate) revision: Revision,
    /// True if revisions have gone backwards since the last list. Earlier state is invalid, and its revisions must not
    /// be compared with new ones.
    pub(crate) new_history: bool,
    /// The epoch of the history in which the list was read. Lists of two resources are comparable only if their epochs
    /// are equal.
    pub(crate) epoch: u64,
    taken_in: Option<Arc<TakenIn>>,
}

/// Marks the list as processed when the last reference is dropped.
#[derive(Debug)]
struct TakenIn {
    health: Arc<WatchHealth>,
    epoch: u64,
    asked: u64,
}

impl Moment {
    pub(super) fn of(
        revision: Revision,
        new_history: bool,
        health: &Arc<WatchHealth>,
        epoch: u64,
        asked: u64,
    ) -> Self {
        Self {
            revision,
            new_history,
            epoch,
            taken_in: Some(Arc::new(TakenIn { health: health.clone(), epoch, asked })),
        }
    }

    pub(crate) fn watch(&self) -> Option<&Arc<WatchHealth>> {
        self.taken_in.as_ref().map(|taken_in| &taken_in.health)
    }

    #[cfg(test)]
    pub(crate) fn new_history(revision: &str) -> Self {
        let mut moment = Self::from(revision);
        (moment.new_history, moment.epoch) = (true, 1);
        moment
    }
}

impl From<&str> for Moment {
    fn from(revision: &str) -> Self {
        Self {
            revision: ResourceVersion::from(revision).revision(),
            new_history: false,
            epoch: 0,
            taken_in: None,
        }
    }
}

impl Drop for TakenIn {
    fn drop(&mut self) {
        self.health.listed_in.fetch_max(self.epoch + 1, Ordering::SeqCst);
        self.health.taken_in.fetch_max(self.asked, Ordering::SeqCst);
    }
}
