//! Whose turn it is: a queue of subjects to be judged, another of those that wait for room to be acted on, the times at which others
//! wake, and those that rest.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use tokio::time::Instant;

use crate::recovery::Subject;

/// An empty queue keeps room for so many.
const ROOM: usize = 1024;

/// Subjects in the order of their turns. Each is in one queue at most, and there once, and has at most one time at which it wakes.
pub(super) struct Agenda<S> {
    /// To be judged.
    ready: VecDeque<S>,
    /// To be acted on: judged again as soon as there is room for that.
    waiting: VecDeque<S>,
    /// All in these two.
    queued: BTreeSet<S>,
    timers: BinaryHeap<Reverse<(Instant, S)>>,
    pub(super) wakes: BTreeMap<S, Instant>,
    /// Subjects that took long to judge, and until when they are left alone.
    pub(super) resting: BTreeMap<S, Instant>,
}

impl<S: Subject> Agenda<S> {
    pub(super) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            queued: BTreeSet::new(),
            timers: BinaryHeap::new(),
            wakes: BTreeMap::new(),
            resting: BTreeMap::new(),
        }
    }

    /// The number that wait for their turn.
    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    /// True if it is somebody's turn.
    pub(super) fn has_next(&self, has_room: bool) -> bool {
        !self.ready.is_empty() || has_room && !self.waiting.is_empty()
    }

    /// Puts a subject at the end of the queue, unless it is in it.
    pub(super) fn enqueue(&mut self, subject: S) {
        if self.queued.insert(subject.clone()) {
            self.ready.push_back(subject);
        }
    }

    /// The next one whose turn it is: of those that wait for room, if there is some. One of which `is_busy` is true keeps its
    /// place in the queue until it is not: it is collected in `later`, and must be given back.
    pub(super) fn next(
        &mut self,
        has_room: bool,
        is_busy: impl Fn(&S) -> bool,
        later: &mut Vec<S>,
    ) -> Option<S> {
        loop {
            let waiting = if has_room { self.waiting.pop_front() } else { None };
            let Some(subject) = waiting.or_else(|| self.ready.pop_front()) else { break };
            if is_busy(&subject) {
                later.push(subject);
                continue;
            }
            self.queued.remove(&subject);
            return Some(subject);
        }
        // All subjects were in it when a term began.
        self.ready.shrink_to(ROOM);
        None
    }

    /// Puts a subject at the end of those that wait for room to be acted on.
    pub(super) fn wait_for_room(&mut self, subject: S) {
        if self.queued.insert(subject.clone()) {
            self.waiting.push_back(subject);
        }
    }

    /// Gives those back that were busy.
    pub(super) fn give_back(&mut self, later: Vec<S>) {
        self.ready.extend(later);
    }

    /// Wakes a subject at a time, and at no other that was set before.
    pub(super) fn wake_at(&mut self, subject: S, at: Instant) {
        self.wakes.insert(subject.clone(), at);
        self.timers.push(Reverse((at, subject)));
        // Times that were set anew leave their old entries behind.
        if self.timers.len() > 2 * self.wakes.len() + 64 {
            self.timers = self.wakes.iter().map(|(subject, at)| Reverse((*at, subject.clone()))).collect();
        }
    }

    /// Does not wake a subject any more.
    pub(super) fn let_sleep(&mut self, subject: &S) {
        self.wakes.remove(subject);
    }

    /// When the next one wakes.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Puts all into the queue whose time has come.
    pub(super) fn wake_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now
        {
            let Some(Reverse((at, subject))) = self.timers.pop() else { return };
            // A time that was set anew meanwhile is not this one.
            if self.wakes.get(&subject) == Some(&at) {
                self.wakes.remove(&subject);
                self.enqueue(subject);
            }
        }
    }

    /// Puts all into the queue that would wake later.
    pub(super) fn wake_all(&mut self) {
        self.timers.clear();
        for subject in std::mem::take(&mut self.wakes).into_keys() {
            self.enqueue(subject);
        }
    }

    /// Leaves a subject alone until then.
    pub(super) fn rest(&mut self, subject: S, until: Instant) {
        self.resting.insert(subject, until);
    }

    /// Until when a subject rests; none if its rest is over.
    pub(super) fn rests_until(&mut self, subject: &S, now: Instant) -> Option<Instant> {
        let until = self.resting.get(subject).copied()?;
        if until <= now {
            self.resting.remove(subject);
        }
        (until > now).then_some(until)
    }

    /// Forgets a subject that is gone, unless it waits for its turn.
    pub(super) fn forget(&mut self, subject: &S) {
        self.wakes.remove(subject);
        self.resting.remove(subject);
    }

    /// True if a subject waits for its turn.
    pub(super) fn is_queued(&self, subject: &S) -> bool {
        self.queued.contains(subject)
    }

    /// Forgets those that are not there any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&S) -> bool) {
        let now = Instant::now();
        self.wakes.retain(|subject, _| is_there(subject));
        self.resting.retain(|subject, until| *until > now && is_there(subject));
    }
}
