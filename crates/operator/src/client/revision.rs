//! Revisions of objects and lists, and the history that they belong to.
//!
//! An etcd that is restored from a backup continues from an earlier revision. Anything seen before that belongs to
//! another history: its revisions are not comparable with new ones.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

pub use salvor_recovery::ids::Revision;
use tokio::{sync::Notify, time::Instant};

/// If a history ends this soon after another one, the server flaps between states, and no backup was restored.
const BACK_AND_FORTH: Duration = Duration::from_secs(60);
/// Within this time after the end of a history, every live kubelet has renewed its Lease. It is the default Lease
/// duration.
const KUBELETS_RENEW_WITHIN: Duration = Duration::from_secs(40);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The backoff before reading again after this many consecutive failures.
pub(crate) fn backoff(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(20))).min(LONGEST_PAUSE)
}

/// Where the state of an object comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// From a watch event or from the answer to a write.
    Alone,
    /// From a list that was read at this revision.
    ByListAt(Revision),
}

impl Told {
    /// True if a state replaces the known one. The answer to our own write may arrive before the watch delivers earlier
    /// events. A list shows every object as of the list's revision, so only a state known to be later than the whole
    /// list stays.
    pub(crate) fn replaces(self, new: Revision, known: Revision) -> bool {
        match self {
            Self::Alone => new != known && !known.is_after(new),
            Self::ByListAt(list) => !known.is_after(list),
        }
    }
}

/// The history that the server is in, as far as this process has noticed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    epoch: AtomicU64,
    changed: Notify,
    ends: Mutex<Option<Ends>>,
}

/// When a history last ended, and how many ended in quick succession.
#[derive(Clone, Copy, Debug)]
struct Ends {
    last: Instant,
    in_a_row: u32,
}

impl History {
    pub(crate) fn epoch(&self) -> u64 {
        self.0.epoch.load(SeqCst)
    }

    /// Ends the history `known`, because a revision was lower than one seen before. Several observers of the same end
    /// count once. Returns the number of the new history.
    pub(crate) fn ends(&self, known: u64) -> u64 {
        if self.0.epoch.compare_exchange(known, known + 1, SeqCst, SeqCst).is_ok() {
            tracing::warn!(
                "resource versions went backwards, relisting; writes blocked until all watches are synced"
            );
            let mut ends = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
            let before = ends.filter(|ends| ends.last.elapsed() < BACK_AND_FORTH);
            let in_a_row = before.map_or(1, |ends| ends.in_a_row.saturating_add(1));
            *ends = Some(Ends { last: Instant::now(), in_a_row });
            drop(ends);
            self.0.changed.notify_waiters();
        }
        known + 1
    }

    /// When lists may be read again: at once after the first end of a history, and with backoff while the server flaps.
    /// Otherwise every observation would make all watches relist without a pause.
    pub(crate) fn may_be_read_at(&self) -> Option<Instant> {
        let ends = (*self.0.ends.lock().unwrap_or_else(PoisonError::into_inner))?;
        let doublings = ends.in_a_row.checked_sub(2)?;
        Some(ends.last + backoff(doublings.saturating_add(1)))
    }

    /// How much longer Leases may look expired only because the server went back to an earlier state.
    pub(crate) fn settles_in(&self) -> Option<Duration> {
        let ends = (*self.0.ends.lock().unwrap_or_else(PoisonError::into_inner))?;
        KUBELETS_RENEW_WITHIN.checked_sub(ends.last.elapsed()).filter(|left| !left.is_zero())
    }

    /// Waits until this history has ended.
    pub(crate) async fn is_over(&self, known: u64) {
        loop {
            // Register before reading the epoch, so that no change is missed.
            let changed = self.0.changed.notified();
            if self.epoch() != known {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use salvor_recovery::ids::ResourceVersion;

    use super::*;

    #[test]
    fn what_replaces_what_is_known() {
        let revision = |text: &str| ResourceVersion::from(text).revision();
        let list = Told::ByListAt(revision("50"));
        let cases = [
            // A watch or an answer: only a later state, or one that cannot be compared.
            (Told::Alone, "10", "9", true),
            (Told::Alone, "9", "10", false),
            (Told::Alone, "9", "9", false),
            (Told::Alone, "odd", "9", true),
            (Told::Alone, "9", "odd", true),
            (Told::Alone, "odd", "another", true),
            (Told::Alone, "odd", "odd", true),
            // A list: all states, even earlier ones than were known at its time, but none that is known since.
            (list, "40", "45", true),
            (list, "40", "40", true),
            (list, "40", "51", false),
            (list, "40", "odd", true),
            (Told::ByListAt(revision("odd")), "40", "51", true),
        ];
        for (told, new, known, replaces) in cases {
            let found = told.replaces(revision(new), revision(known));
            assert_eq!(found, replaces, "{told:?} {new} {known}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_back_and_forth_is_not_asked_without_a_pause() {
        let history = History::default();
        let pause = |history: &History| {
            history.may_be_read_at().map_or(Duration::ZERO, |at| at.duration_since(Instant::now()))
        };
        let ends = |history: &History| {
            history.ends(history.epoch());
            pause(history)
        };
        let millis = Duration::from_millis;
        assert_eq!(pause(&history), millis(0), "nothing has ended");
        assert_eq!(history.settles_in(), None);
        let first: Vec<Duration> = (0..4).map(|_| ends(&history)).collect();
        assert_eq!(history.settles_in(), Some(KUBELETS_RENEW_WITHIN));
        assert_eq!(first, [millis(0), millis(250), millis(500), millis(1000)]);
        tokio::time::advance(millis(1000)).await;
        assert_eq!(pause(&history), millis(0), "it is over");
        let pauses: Vec<Duration> = (0..40).map(|_| ends(&history)).collect();
        assert_eq!(pauses[39], LONGEST_PAUSE);
        tokio::time::advance(KUBELETS_RENEW_WITHIN).await;
        assert_eq!(history.settles_in(), None);
        tokio::time::advance(BACK_AND_FORTH).await;
        assert_eq!(ends(&history), millis(0), "a restore, long after");
    }

    #[test]
    fn several_who_notice_the_same_are_heard_once() {
        let history = History::default();
        assert_eq!((history.ends(0), history.ends(0), history.epoch()), (1, 1, 1));
        assert_eq!((history.ends(1), history.epoch()), (2, 2));
        // A task that missed one of them does not hide the other.
        assert_eq!((history.ends(0), history.epoch()), (1, 2));
    }
}
