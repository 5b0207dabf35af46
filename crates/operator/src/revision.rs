//! Revisions of objects and lists, and the history that they count.
//!
//! An etcd that is restored from a backup goes on counting from an earlier revision. What was seen before then belongs to
//! another history: its numbers say nothing about the new one.

use std::{
    cmp::Ordering,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tokio::sync::Notify;

/// A `resourceVersion` as the number that it is. Only revisions of one history can be compared.
///
/// A server may send something that is no number: then neither is older, and whoever asks takes what comes as news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision(Option<u64>);

impl Revision {
    /// Reads it as the API writes it.
    pub fn of(text: &str) -> Self {
        // Zero is no state of any object: to the API it means "any".
        Self(text.parse().ok().filter(|number| *number > 0))
    }

    /// As a number that grows; 0 for none.
    pub(crate) fn number(self) -> u64 {
        self.0.unwrap_or(0)
    }

    /// True if it is known to be later than another.
    pub(crate) fn is_after(self, other: Self) -> bool {
        self > other
    }

    pub(crate) fn numbered(number: u64) -> Self {
        Self(Some(number).filter(|number| *number > 0))
    }
}

impl PartialOrd for Revision {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.0?.cmp(&other.0?))
    }
}

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
                 nothing is done until then"
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
    use super::*;

    #[test]
    fn revisions_are_numbers_and_anything_else_cannot_be_compared() {
        let older = |a: &str, b: &str| Revision::of(a) < Revision::of(b);
        assert!(older("9", "10") && !older("10", "9") && !older("10", "10"));
        for odd in ["", "0", "-1", "x", "1.5", "99999999999999999999999"] {
            assert!(!older(odd, "10") && !older("10", odd), "{odd:?}");
        }
    }

    #[test]
    fn what_replaces_what_is_known() {
        let list = Told::ByListAt(Revision::of("50"));
        let cases = [
            // A watch, or an answer: only what is later, or what cannot be compared.
            (Told::Alone, "10", "9", true),
            (Told::Alone, "9", "10", false),
            (Told::Alone, "9", "9", false),
            (Told::Alone, "odd", "9", true),
            (Told::Alone, "9", "odd", true),
            // A list: all, also what is earlier than what was known at its time, but not what is known since.
            (list, "40", "45", true),
            (list, "40", "40", true),
            (list, "40", "51", false),
            (list, "40", "odd", true),
            (Told::ByListAt(Revision::of("odd")), "40", "51", true),
        ];
        for (told, new, known, replaces) in cases {
            let found = told.replaces(Revision::of(new), Revision::of(known));
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
