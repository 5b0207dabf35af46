//! The objects of a kind that may not be served, as its watch last delivered them.

pub(super) mod owners;
pub(super) mod pods;
pub(super) mod pods_on_nodes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use salvor_recovery::ids::Uid;

use crate::{
    client::revision::{Revision, Told},
    watch_set::{
        feeds::{KindLost, OfKind},
        packed::packed,
        watch::{Change, Moment},
    },
};

/// Number of deleted UIDs to remember, for answers that arrive after the deletion.
const GONE: usize = 1024;

pub(super) trait Kept {
    fn uid(&self) -> &Uid;
    fn revision(&self) -> Revision;
}

#[derive(Debug)]
pub(super) struct Store<T> {
    state: State,
    /// Boxed, because the leaves of such a map are half empty.
    objects: BTreeMap<Uid, Box<T>>,
    gone: VecDeque<Uid>,
    was_listed: bool,
}

#[derive(Debug)]
enum State {
    /// Not listed yet.
    Awaited,
    /// All its objects are known.
    Listed,
    Lost(KindLost),
}

#[derive(Debug)]
pub(super) struct Turn<T> {
    /// The states that were deleted or replaced.
    pub(super) before: Vec<T>,
    /// UIDs of new or changed objects.
    pub(super) changed: BTreeSet<Uid>,
    /// UIDs of deleted objects.
    pub(super) gone: BTreeSet<Uid>,
    /// True if everything may have changed.
    pub(super) all: bool,
}

impl<T> Turn<T> {
    pub(super) fn nothing() -> Self {
        Self { before: Vec::new(), changed: BTreeSet::new(), gone: BTreeSet::new(), all: false }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.before.is_empty() && self.changed.is_empty() && self.gone.is_empty() && !self.all
    }
}

impl<T: Kept> Store<T> {
    pub(super) fn new() -> Self {
        Self { state: State::Awaited, objects: BTreeMap::new(), gone: VecDeque::new(), was_listed: false }
    }

    /// True if all its objects are known, or there can be none.
    pub(super) fn is_settled(&self) -> bool {
        match &self.state {
            State::Listed | State::Lost(KindLost::NotServed) => true,
            State::Awaited | State::Lost(KindLost::Unserved | KindLost::Failed(_)) => false,
        }
    }

    /// True if all its objects are known: the kind is served.
    pub(super) fn is_listed(&self) -> bool {
        matches!(&self.state, State::Listed)
    }

    /// True if nothing has been received yet.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(&self.state, State::Awaited)
    }

    pub(super) fn is_not_served(&self) -> bool {
        matches!(&self.state, State::Lost(KindLost::NotServed))
    }

    /// Why its objects are unknown.
    pub(super) fn unknown(&self) -> Option<String> {
        match &self.state {
            State::Listed | State::Lost(KindLost::NotServed) => None,
            State::Awaited => Some("they are not listed yet".to_owned()),
            State::Lost(lost @ (KindLost::Unserved | KindLost::Failed(_))) => Some(lost.to_string()),
        }
    }

    pub(super) fn get(&self, uid: &Uid) -> Option<&T> {
        self.objects.get(uid).map(Box::as_ref)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values().map(Box::as_ref)
    }

    pub(super) fn on_change(&mut self, news: OfKind<T>) -> Turn<T> {
        match news {
            OfKind::Served(_) => Turn::nothing(),
            OfKind::Lost(lost) => {
                let lost = match lost {
                    // A kind that was just served may be served again in a moment: its objects still exist.
                    KindLost::Unserved if self.was_listed => KindLost::Failed(lost.to_string()),
                    KindLost::Unserved | KindLost::NotServed => KindLost::NotServed,
                    KindLost::Failed(_) => lost,
                };
                if lost == KindLost::NotServed {
                    self.objects.clear();
                }
                self.state = State::Lost(lost);
                Turn { all: true, ..Turn::nothing() }
            }
            OfKind::Change(Change::Applied(object)) => {
                // The watch is authoritative: an object that was filtered out may matter again.
                self.gone.retain(|gone| gone != object.uid());
                self.take(object, Told::Alone)
            }
            OfKind::Change(Change::Gone(uid)) => self.drop(&uid),
            OfKind::Change(Change::Reset { all, revision, .. }) => self.list(all, &revision),
        }
    }

    /// Applies an object unless a later state or its deletion is known.
    pub(super) fn take(&mut self, object: T, told: Told) -> Turn<T> {
        let uid = object.uid().clone();
        let known = self.get(&uid).map(Kept::revision);
        let old = known.is_some_and(|known| !told.replaces(object.revision(), known));
        let mut turn = Turn::nothing();
        if old || self.gone.contains(&uid) {
            return turn;
        }
        turn.before.extend(self.objects.insert(uid.clone(), Box::new(object)).map(|before| *before));
        turn.changed.insert(uid);
        turn
    }

    fn drop(&mut self, uid: &Uid) -> Turn<T> {
        if self.gone.len() >= GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(uid.clone());
        let before: Vec<T> = self.objects.remove(uid).into_iter().map(|before| *before).collect();
        let gone = BTreeSet::from([uid.clone()]);
        Turn { gone, before, ..Turn::nothing() }
    }

    /// Applies a list of all objects. Objects that are not in it are gone, unless they are known to be later than the
    /// list.
    fn list(&mut self, all: Vec<T>, moment: &Moment) -> Turn<T> {
        if moment.new_history {
            // State from another history is not comparable with this one.
            self.objects.clear();
            self.gone.clear();
        }
        let listed: BTreeSet<&Uid> = all.iter().map(Kept::uid).collect();
        let is_missing =
            |uid: &Uid, object: &T| !listed.contains(uid) && !object.revision().is_after(moment.revision);
        let missing = self.objects.iter().filter(|(uid, object)| is_missing(uid, object));
        let missing: Vec<Uid> = missing.map(|(uid, _)| uid.clone()).collect();
        let mut turn = Turn { all: true, ..Turn::nothing() };
        for uid in missing {
            let one = self.drop(&uid);
            turn.before.extend(one.before);
            turn.gone.extend(one.gone);
        }
        for object in all {
            self.take(object, Told::ByListAt(moment.revision));
        }
        packed(&mut self.objects);
        (self.state, self.was_listed) = (State::Listed, true);
        turn
    }
}
