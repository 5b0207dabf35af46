//! How a watch is doing.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::Identity;
use crate::revision::{History, Revision};

/// How a watch is doing. Shared with metrics, health and the engine.
#[derive(Debug)]
pub struct WatchHealth {
    pub(crate) resource: &'static str,
    origin: Instant,
    last_word: AtomicU64,
    /// One more than the number of the history whose list is taken in; 0 before the first one.
    listed_in: AtomicU64,
    /// The highest revision that was seen in this history, in whatever way.
    newest: AtomicU64,
    history: OnceLock<History>,
    pub(crate) restarts: Arc<AtomicU64>,
    pub(crate) lists: Arc<AtomicU64>,
    pub(crate) unreadable: Arc<AtomicU64>,
    complained: Mutex<BTreeSet<String>>,
    /// There if this stands for many watches.
    members: Option<Mutex<Vec<Weak<Self>>>>,
    pub(super) asked: AtomicU64,
    pub(super) bell: Notify,
}

impl WatchHealth {
    /// A watch that has not begun.
    pub fn new(resource: &'static str) -> Arc<Self> {
        Arc::new(Self::begin(resource))
    }

    /// Many watches that come and go: as old as the oldest of them, and never old while there is none.
    pub(crate) fn of_many(resource: &'static str) -> Arc<Self> {
        Arc::new(Self { members: Some(Mutex::default()), ..Self::begin(resource) })
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
            listed_in: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            history: OnceLock::new(),
            restarts: Arc::default(),
            lists: Arc::default(),
            unreadable: Arc::default(),
            complained: Mutex::default(),
            members: None,
            asked: AtomicU64::new(0),
            bell: Notify::new(),
        }
    }

    /// The members that are still there, if this stands for many.
    fn members(&self) -> Option<Vec<Arc<Self>>> {
        let members = self.members.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(members.iter().filter_map(Weak::upgrade).collect())
    }

    /// Asks for everything to be read anew, however good the watch; how many times that was asked for by now.
    pub(crate) fn ask_for_list(&self) -> u64 {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.bell.notify_one();
        for member in self.members().into_iter().flatten() {
            member.ask_for_list();
        }
        asked
    }

    /// How long ago the server last said anything, a bookmark included.
    pub fn staleness(&self) -> Duration {
        if let Some(members) = self.members() {
            return members.iter().map(|member| member.staleness()).max().unwrap_or_default();
        }
        let last = Duration::from_millis(self.last_word.load(Ordering::Relaxed));
        self.origin.elapsed().saturating_sub(last)
    }

    /// Whether everything was listed, and the list was taken in, since revisions last went backwards.
    pub fn is_synced(&self) -> bool {
        match self.members() {
            // Whoever uses many knows by itself which of them have not begun.
            Some(members) => members.iter().all(|member| member.listed_in() == 0 || member.is_synced()),
            None => self.listed_in() == self.epoch() + 1,
        }
    }

    fn listed_in(&self) -> u64 {
        self.listed_in.load(Ordering::SeqCst)
    }

    /// The number of the history that this process knows of.
    pub(crate) fn epoch(&self) -> u64 {
        self.history().epoch()
    }

    /// Shared by all watches of an operator once it follows one with it.
    pub(crate) fn history(&self) -> &History {
        self.history.get_or_init(History::default)
    }

    pub(super) fn belongs_to(&self, history: &History) {
        // Set twice only by a test that follows the same twice.
        let _ = self.history.set(history.clone());
    }

    /// A revision of an object was seen, elsewhere than on this watch: the server answered a write.
    pub(crate) fn saw(&self, revision: Revision) {
        self.newest.fetch_max(revision.number(), Ordering::SeqCst);
    }

    /// The highest revision that was seen.
    pub(super) fn newest(&self) -> Revision {
        Revision::numbered(self.newest.load(Ordering::SeqCst))
    }

    /// Numbers begin anew.
    pub(super) fn begin_anew_from(&self, revision: Revision) {
        self.newest.store(revision.number(), Ordering::SeqCst);
    }

    /// As if the whole list had been read, and the server had said something just now.
    #[cfg(test)]
    pub(crate) fn is_up_to_date(&self) {
        self.listed_in.store(self.epoch() + 1, Ordering::SeqCst);
        self.heard();
    }

    pub(super) fn heard(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_word.store(now, Ordering::Relaxed);
    }

    pub(super) fn cannot_read(&self, object: &Identity, error: &dyn std::fmt::Display) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("{}/{}", object.metadata.namespace, object.metadata.name);
        if complained.len() < 1000 && complained.insert(name.clone()) {
            tracing::warn!(resource = self.resource, object = name, %error, "an object cannot be read and is left alone");
        }
    }
}

/// When a list was read. It goes with the list: when it is dropped, the list is taken in, and the watch counts as listed.
#[derive(Debug)]
pub struct Moment {
    /// The list's revision.
    pub(crate) revision: Revision,
    /// Whether revisions have gone backwards since the last list: nothing that was known before holds any more, and its
    /// revisions must not be compared with new ones.
    pub(crate) anew: bool,
    taken_in: Option<(Arc<WatchHealth>, u64)>,
}

impl Moment {
    pub(super) fn of(revision: Revision, anew: bool, health: &Arc<WatchHealth>, epoch: u64) -> Self {
        Self { revision, anew, taken_in: Some((health.clone(), epoch)) }
    }

    /// One after which revisions begin anew.
    #[cfg(test)]
    pub(crate) fn anew(revision: &str) -> Self {
        let mut moment = Self::from(revision);
        moment.anew = true;
        moment
    }
}

impl From<&str> for Moment {
    /// The moment of a first list at this revision.
    fn from(revision: &str) -> Self {
        Self { revision: Revision::of(revision), anew: false, taken_in: None }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        if let Some((health, epoch)) = self.taken_in.take() {
            health.listed_in.fetch_max(epoch + 1, Ordering::SeqCst);
        }
    }
}
