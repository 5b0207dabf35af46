//! Revisions of objects and lists, and the history that they count.
//!
//! An etcd that is restored from a backup goes on counting from an earlier revision. What was seen before then belongs to
//! another history: its numbers say nothing about the new one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

pub use salvor_recovery::ids::Revision;
use tokio::sync::Notify;

/// The source from which a state of an object is known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// By itself: a watch told it, or the server answered a write with it.
    Alone,
    /// By a list that was read at this revision.
    ByListAt(Revision),
}

impl Told {
    /// True if a state replaces the one that is known. An answer to a write of ours may be here before what the watch has
    /// to say of the time before it. A list shows every object as it was at the list's own revision, so only what is known
    /// to be later than the whole list stays.
    pub(crate) fn replaces(self, new: Revision, known: Revision) -> bool {
        match self {
            Self::Alone => new != known && !known.is_after(new),
            Self::ByListAt(list) => !known.is_after(list),
        }
    }
}

/// Which history the server is in, as far as anybody here has noticed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    epoch: AtomicU64,
    changed: Notify,
}

impl History {
    /// The number of the history that is known.
    pub(crate) fn epoch(&self) -> u64 {
        self.0.epoch.load(SeqCst)
    }

    /// A revision was lower than one that was seen before, by somebody who knew of this history: another one has begun.
    /// Several who notice the same are heard once. The number of the new history.
    pub(crate) fn ends(&self, known: u64) -> u64 {
        if self.0.epoch.compare_exchange(known, known + 1, SeqCst, SeqCst).is_ok() {
            tracing::warn!(
                "revisions of the API server go backwards, as after the restore of a backup: everything is read anew, and \
                 nothing is done until all watches have come to the present"
            );
            self.0.changed.notify_waiters();
        }
        known + 1
    }

    /// Waits until somebody notices that another history than this one has begun.
    pub(crate) async fn is_over(&self, known: u64) {
        loop {
            // Changes from here on are not missed.
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
            // A watch, or an answer: only what is later, or what cannot be compared.
            (Told::Alone, "10", "9", true),
            (Told::Alone, "9", "10", false),
            (Told::Alone, "9", "9", false),
            (Told::Alone, "odd", "9", true),
            (Told::Alone, "9", "odd", true),
            (Told::Alone, "odd", "another", true),
            (Told::Alone, "odd", "odd", true),
            // A list: all, also what is earlier than what was known at its time, but not what is known since.
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

    #[test]
    fn several_who_notice_the_same_are_heard_once() {
        let history = History::default();
        assert_eq!((history.ends(0), history.ends(0), history.epoch()), (1, 1, 1));
        assert_eq!((history.ends(1), history.epoch()), (2, 2));
        // A task that missed one of them does not hide the other.
        assert_eq!((history.ends(0), history.epoch()), (1, 2));
    }
}
