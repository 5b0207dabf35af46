//! The work queue: subjects to decide, subjects that wait for room for an attempt, timers, and subjects that rest.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

use tokio::time::Instant;

use crate::engine::recovery::Subject;

/// Capacity that an empty queue keeps.
const ROOM: usize = 1024;

/// Each subject is in at most one queue, at most once, and has at most one timer.
pub(super) struct Agenda<S> {
    /// Subjects to decide next, in order.
    ready: VecDeque<S>,
    /// To be acted on; decided again as soon as there is room.
    waiting: VecDeque<S>,
    /// All subjects in the two queues.
    queued: BTreeSet<S>,
    timers: BinaryHeap<Reverse<(Instant, S)>>,
    pub(super) wakes: BTreeMap<S, Instant>,
    /// Subjects that took long to decide, and until when they are skipped.
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

    pub(super) fn len(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    pub(super) fn has_next(&self, has_room: bool) -> bool {
        !self.ready.is_empty() || has_room && !self.waiting.is_empty()
    }

    /// Appends a subject to the queue, unless it is queued already.
    pub(super) fn enqueue(&mut self, subject: S) {
        if self.queued.insert(subject.clone()) {
            self.ready.push_back(subject);
        }
    }

    /// The next subject: first one that waits for room, if there is room. A subject for which `is_busy` is true keeps
    /// its place: it is collected in `later`, and the caller must give it back.
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
        // The queue held all subjects when the term began.
        self.ready.shrink_to(ROOM);
        None
    }

    /// Appends a subject to those that wait for room for an attempt.
    pub(super) fn wait_for_room(&mut self, subject: S) {
        if self.queued.insert(subject.clone()) {
            self.waiting.push_back(subject);
        }
    }

    /// Returns the busy subjects to the queue.
    pub(super) fn requeue(&mut self, later: Vec<S>) {
        self.ready.extend(later);
    }

    /// Sets the timer of a subject and replaces an earlier one.
    pub(super) fn wake_at(&mut self, subject: S, at: Instant) {
        self.wakes.insert(subject.clone(), at);
        self.timers.push(Reverse((at, subject)));
        // Replaced timers leave their entries in the heap; rebuild it when they prevail.
        if self.timers.len() > 2 * self.wakes.len() + 64 {
            self.timers = self.wakes.iter().map(|(subject, at)| Reverse((*at, subject.clone()))).collect();
        }
    }

    pub(super) fn let_sleep(&mut self, subject: &S) {
        self.wakes.remove(subject);
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Queues all subjects whose timer has fired.
    pub(super) fn wake_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, _))) = self.timers.peek()
            && *at <= now
        {
            let Some(Reverse((at, subject))) = self.timers.pop() else { return };
            // Skip the entry of a timer that was replaced.
            if self.wakes.get(&subject) == Some(&at) {
                self.wakes.remove(&subject);
                self.enqueue(subject);
            }
        }
    }

    /// Fires all timers now.
    pub(super) fn wake_all(&mut self) {
        self.timers.clear();
        for subject in std::mem::take(&mut self.wakes).into_keys() {
            self.enqueue(subject);
        }
    }

    /// Skips a subject until then.
    pub(super) fn rest(&mut self, subject: S, until: Instant) {
        self.resting.insert(subject, until);
    }

    /// Until when a subject rests; `None` if its rest is over.
    pub(super) fn rests_until(&mut self, subject: &S, now: Instant) -> Option<Instant> {
        let until = self.resting.get(subject).copied()?;
        if until <= now {
            self.resting.remove(subject);
        }
        (until > now).then_some(until)
    }

    /// Drops the timer and rest of a subject that is gone. It stays in the queue if it is there.
    pub(super) fn forget(&mut self, subject: &S) {
        self.wakes.remove(subject);
        self.resting.remove(subject);
    }

    pub(super) fn is_queued(&self, subject: &S) -> bool {
        self.queued.contains(subject)
    }

    /// Drops the timers and rests of subjects that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&S) -> bool) {
        let now = Instant::now();
        self.wakes.retain(|subject, _| is_there(subject));
        self.resting.retain(|subject, until| *until > now && is_there(subject));
    }
}
