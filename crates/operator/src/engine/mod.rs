//! Drives one recovery: changes in, decisions, writes out. Level-triggered: a subject is always decided from its
//! current state, right before a write, whatever triggered the reconcile.
//!
//! # The life of a subject
//!
//! 1. **Change.** A feed delivers a change (`watch_set/feeds.rs`). The recovery updates its view and names the affected
//!    subjects ([`Recovery::on_change`]). Each of them is queued once (`agenda.rs`). Subjects are also queued when
//!    their timer fires, when the brake or the pause that blocked them ends, when their attempt ends, and when a term
//!    begins (all subjects).
//! 2. **Turn.** One round decides at most [`LOOKS_IN_A_ROUND`] subjects, so that other tasks on this thread get their
//!    turn. At most `at_once` subjects have an attempt running. While there is no room for another attempt, all other
//!    subjects are still decided; those that need a write wait for room and are then decided again. So writes delay no
//!    verdict. A subject with a running attempt keeps its place in the queue until the attempt ends. A decision slower
//!    than [`LONG_LOOK`] is not repeated for [`REST_AFTER_LOOK`] times its duration. In a new term, nothing is decided
//!    before the watches that require it
//!    ([`Feed::listed_to_lead`](crate::watch_set::feeds::Feed::listed_to_lead)) are listed.
//! 3. **Decision.** The recovery decides from its view ([`Recovery::judge`]). `None` means that the subject is gone,
//!    and it is dropped. A process that does not lead stops here.
//! 4. **Limits.** The pause, an unsettled clock and the brake may turn a verdict to act into a blocked one. What the
//!    brake admits counts from then on; a retry of it does not count again.
//! 5. **Verdict.** Ignore: nothing happens until the next change. Wait: requeue at that time. Blocked: requeue when the
//!    blocker ends. Act: if the subject waits for its own write to appear on the watch or for a retry, requeue then; if
//!    the view is stale, requeue a second later; otherwise an attempt begins.
//! 6. **Attempt** (`attempt.rs`), in a task of its own: permit, second look, gate, write, step by step. Its waiting
//!    delays no other subject.
//! 7. **End** (`ends.rs`). The recovery receives what was done and what was refused. Done: the subject is decided again when the
//!    watch shows the write, or at once if the recovery has applied the answer or the watch was faster, or after
//!    [`ECHO_WITHIN`] in any case. Failed: retry with backoff. Changed: the live objects differ from the view, so the
//!    subject waits for a change, or until the time that the live objects imply.
//!
//! State that outlives a decision is in `tracked.rs`. It is dropped with the subject, and mostly with the term.

mod agenda;
mod attempt;
pub(crate) mod brake_keeper;
mod ends;
pub(crate) mod notices;
mod pause;
pub(crate) mod recovery;
pub(crate) mod running;
pub(crate) mod shared;
mod standing;
mod tracked;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use salvor_recovery::{
    Decision, Reason, Step, Verdict,
    brake::{self, Brake},
    event::EventNote,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    agenda::Agenda,
    attempt::{Attempt, Gate, Outcome},
    standing::{Standing, Standings},
    tracked::{Pending, Tracked},
};
use crate::{
    engine::{
        notices::Notice,
        recovery::{Ended, Recovery},
        shared::{Shared, tell},
    },
    execute::Written,
    lead::Term,
    tasks,
    watch_set::{
        feeds::{Feeds, Inbox, Item},
        packed::packed,
    },
};

/// The watch should show our own writes within this time; after it, the subject is decided anyway.
const ECHO_WITHIN: Duration = Duration::from_secs(10);
/// A stale view is logged at most this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(30);
/// Requeue interval of a subject that waits because of a stale view.
const STALE_PAUSE: Duration = Duration::from_secs(1);
/// A subject that takes longer than this to decide is not decided again for `REST_AFTER_LOOK` times that duration.
const LONG_LOOK: Duration = Duration::from_micros(500);
const REST_AFTER_LOOK: u32 = 10;
/// Interval at which pending relists are checked.
const LISTS_ASKED_FOR_EVERY: Duration = Duration::from_secs(1);
/// The limit, as metrics name it, that blocks actions while a watch is silent.
const STALE_VIEW: &str = "StaleView";
/// State of subjects is swept when it has grown by this much and has doubled.
const SWEEP: usize = 1024;
/// Changes processed in one go before anything is decided.
const BATCH: usize = 256;
/// Subjects decided before other tasks on this thread get their turn.
const LOOKS_IN_A_ROUND: usize = 128;

pub(crate) struct Engine<R: Recovery> {
    recovery: R,
    shared: Shared,
    feeds: Feeds<R::News>,
    agenda: Agenda<R::Subject>,
    tracked: BTreeMap<R::Subject, Tracked>,
    in_flight: BTreeSet<R::Subject>,
    held: BTreeSet<R::Subject>,
    standings: Standings<R::Subject>,
    ends: (mpsc::UnboundedSender<End<R>>, mpsc::UnboundedReceiver<End<R>>),
    /// The term in which all subjects were queued; `None` while we follow.
    led: Option<Term>,
    warned_of_stale_watch: Option<Instant>,
    /// Number of tracked subjects at which the next sweep runs.
    sweep_at: usize,
    /// Version of the pause switch that was applied last.
    pause_heeded: u64,
    /// The pause as it was last reported.
    paused: Option<String>,
}

struct End<R: Recovery> {
    subject: R::Subject,
    done: Vec<(R::Step, Written)>,
    unrecorded: Option<EventNote>,
    outcome: Outcome<R::Step>,
    began: Instant,
    term: Term,
    /// The epoch of the history when the attempt began.
    epoch: u64,
}

impl<R: Recovery> Engine<R> {
    pub(crate) fn new(recovery: R, shared: Shared, feeds: Feeds<R::News>) -> Self {
        let mut engine = Self {
            recovery,
            shared,
            feeds,
            agenda: Agenda::new(),
            tracked: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            held: BTreeSet::new(),
            standings: Standings::new(),
            ends: mpsc::unbounded_channel(),
            led: None,
            warned_of_stale_watch: None,
            sweep_at: SWEEP,
            pause_heeded: 0,
            paused: None,
        };
        engine.update_watches();
        engine
    }

    /// Runs the feeds that the recovery wants.
    fn update_watches(&mut self) {
        if let Some(wanted) = self.recovery.watches() {
            self.feeds.declare(wanted);
        }
    }

    /// Runs until `stop` is cancelled, then until all running attempts have ended.
    pub(crate) async fn run(mut self, mut news: Inbox<R::News>, stop: CancellationToken) {
        let leadership = self.shared.leadership.clone();
        let released = self.shared.released.listen();
        let clock_skipped = self.shared.time.skipped().listen();
        let mut more = false;
        loop {
            if more {
                tokio::task::yield_now().await;
            }
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = leadership.changed(self.led) => self.lead(leadership.term()),
                () = released.notified() => {
                    for subject in std::mem::take(&mut self.held) {
                        self.agenda.enqueue(subject);
                    }
                }
                () = clock_skipped.notified() => self.reset_alarms(),
                version = leadership.pause().changed(self.pause_heeded) => self.apply_pause(version),
                Some(end) = self.ends.1.recv() => {
                    self.ended(end);
                    self.update_watches();
                }
                Some(first) = news.recv() => {
                    self.on_item(first);
                    for _ in 0..BATCH {
                        let Ok(next) = news.try_recv() else { break };
                        self.on_item(next);
                    }
                }
                () = std::future::ready(()), if more => {}
                () = sleep_until(wake.unwrap_or_else(far_away)), if wake.is_some() => {}
            }
            // In every round, so that a flood of changes cannot delay timers.
            self.agenda.wake_due();
            more = self.pump() || !news.is_empty();
            self.sweep();
            self.shared.metrics.queue(R::NAME, self.agenda.len(), self.in_flight.len());
            self.standings.show(R::NAME, self.recovery.without_consent(), &self.shared.metrics);
        }
        while !self.in_flight.is_empty() {
            let Some(end) = self.ends.1.recv().await else { return };
            self.ended(end);
        }
    }

    /// When to wake up if no change arrives.
    fn next_wake(&mut self) -> Option<Instant> {
        let due = self.agenda.next_wake();
        if self.feeds.are_listed() {
            return due;
        }
        // An unconfirmed list is accepted once its watch has caught up, and no change announces that.
        let lists_may_count = Instant::now() + LISTS_ASKED_FOR_EVERY;
        Some(due.map_or(lists_may_count, |due| due.min(lists_may_count)))
    }

    // ---- inputs -------------------------------------------------------------------------------

    /// A term begins or ends. One term may follow another without a visible gap: a process that slept sees both at
    /// once.
    fn lead(&mut self, term: Option<Term>) {
        self.led = term;
        self.standings.clear();
        self.shared.notices.say(|| Notice::Leads(term.is_some()));
        for tracked in self.tracked.values_mut() {
            *tracked = tracked.in_a_new_term();
        }
        if term.is_some() {
            self.feeds.ask_for_lists();
            for subject in self.recovery.subjects() {
                self.agenda.enqueue(subject);
            }
        }
    }

    /// Processes a change, unless its feed is no longer declared.
    fn on_item(&mut self, item: Item<R::News>) {
        if let Some(news) = self.feeds.open(item) {
            self.on_change(news);
            self.update_watches();
        }
    }

    fn on_change(&mut self, news: R::News) {
        let now = self.shared.time.server();
        for subject in self.recovery.on_change(news, now) {
            if let Some(pending) = self.tracked.get_mut(&subject).and_then(|it| it.pending.as_mut()) {
                pending.synced_by = None;
                pending.heard = true;
            }
            self.agenda.enqueue(subject);
        }
    }

    /// The server's clock jumped forward: requeue every subject that waits for a server time, so that its wait is
    /// computed again.
    fn reset_alarms(&mut self) {
        let soon = Instant::now() + ECHO_WITHIN;
        for pending in self.tracked.values_mut().filter_map(|it| it.pending.as_mut()) {
            pending.synced_by = pending.synced_by.map(|at| at.min(soon));
        }
        self.agenda.wake_all();
    }

    /// Records an event that does not belong to an attempt.
    fn tell(&self, note: EventNote) {
        tell(&self.shared, self.led, note);
    }

    // ---- decisions ----------------------------------------------------------------------------

    /// Decides the subjects whose turn it is. Returns true if one round was too short for all of them.
    fn pump(&mut self) -> bool {
        // The previous leader wrote until now, and the watches may show its writes incompletely.
        if !self.feeds.are_listed() {
            return false;
        }
        // A subject with a running attempt is decided again when the attempt ends.
        let mut later = Vec::new();
        let mut looks = 0;
        while looks < LOOKS_IN_A_ROUND
            && let Some(subject) =
                self.agenda.next(self.has_room(), |subject| self.in_flight.contains(subject), &mut later)
        {
            self.look_in_turn(subject);
            looks += 1;
        }
        let more = looks == LOOKS_IN_A_ROUND && self.agenda.has_next(self.has_room());
        self.agenda.requeue(later);
        more
    }

    /// True if one more attempt may run.
    fn has_room(&self) -> bool {
        self.in_flight.len() < self.shared.at_once
    }

    /// Decides a subject, unless that took long a moment ago. Otherwise a subject with thousands of changing parts
    /// would take all the time.
    fn look_in_turn(&mut self, subject: R::Subject) {
        let began = Instant::now();
        if let Some(until) = self.agenda.rests_until(&subject, began) {
            return self.agenda.wake_at(subject, until);
        }
        self.look_at(subject.clone());
        let took = began.elapsed().max(self.recovery.effort(&subject));
        // The follow-up of this decision must not be delayed, and a subject that is gone is not decided again.
        let is_followed_up = self.in_flight.contains(&subject) || self.agenda.is_queued(&subject);
        if took >= LONG_LOOK && !is_followed_up && self.tracked.contains_key(&subject) {
            self.agenda.rest(subject, began + took * REST_AFTER_LOOK);
        }
    }

    /// Drops the state of subjects that disappeared without a deletion event: a relist does not name what it lacks.
    fn sweep(&mut self) {
        if self.tracked.len() < self.sweep_at {
            return;
        }
        let there: BTreeSet<R::Subject> = self.recovery.subjects().into_iter().collect();
        let is_there = |subject: &R::Subject| {
            there.contains(subject) || self.in_flight.contains(subject) || self.agenda.is_queued(subject)
        };
        let gone: Vec<R::Subject> =
            self.tracked.keys().filter(|subject| !is_there(subject)).cloned().collect();
        self.held.retain(is_there);
        self.standings.retain(is_there);
        for subject in gone {
            if let Some(note) = self.tracked.remove(&subject).and_then(Tracked::unrecorded) {
                self.tell(*note);
            }
        }
        let left = &self.tracked;
        self.agenda.retain(|subject| left.contains_key(subject));
        packed(&mut self.tracked);
        self.sweep_at = 2 * self.tracked.len() + SWEEP;
    }

    fn look_at(&mut self, subject: R::Subject) {
        let (now, began) = (self.shared.time.server(), Instant::now());
        let Some(decision) = self.recovery.judge(&subject, now) else {
            self.agenda.forget(&subject);
            self.held.remove(&subject);
            self.standings.set(&subject, None);
            let gone = || Notice::Forgotten { recovery: R::NAME, subject: subject.to_string() };
            self.shared.notices.say(gone);
            // No decision will request the event again.
            if let Some(note) = self.tracked.remove(&subject).and_then(Tracked::unrecorded) {
                self.tell(*note);
            }
            return;
        };
        self.agenda.let_sleep(&subject);
        let Some(term) = self.led else { return };
        if self.shared.leadership.term() != Some(term) {
            // In the next term everything is decided again, however short the gap.
            return;
        }
        let acts = !decision.verdict.actions().is_empty();
        if acts && !self.has_room() {
            // It is decided again right before the attempt. Only then is the brake asked, which counts what it admits.
            if !decision.verdict.actions().iter().any(Step::is_disruptive) {
                self.note(&subject, &decision);
                self.standings.set(&subject, None);
            }
            return self.agenda.wait_for_room(subject);
        }
        let mut decision = self.hold_back(&subject, decision, now);
        if acts
            && let Verdict::Blocked { by, .. } = &decision.verdict
            && self.recovery.held(&subject, by, now)
            && let Some(again) = self.recovery.judge(&subject, now)
        {
            decision = self.hold_back(&subject, again, now);
        }
        self.shared.notices.say(|| Notice::Judged {
            recovery: R::NAME,
            subject: subject.to_string(),
            report: decision.report(),
        });
        let is_new = self.note(&subject, &decision);
        self.standings.set(&subject, standing_of::<R>(&decision.verdict));
        if decision.verdict.actions().is_empty() {
            let none = Ended {
                done: &[],
                is_current: true,
                refused: None,
                failed: None,
                worked: true,
                took: began.elapsed(),
            };
            self.recovery.ended(&subject, none, now);
        }
        match decision.verdict {
            Verdict::Ignore(_) => {
                let verdict = self.tracked.get(&subject).and_then(|t| t.verdict);
                let before = self.tracked.insert(subject, Tracked { verdict, pending: None });
                // Nor will this decision request the event again.
                if let Some(note) = before.and_then(Tracked::unrecorded) {
                    self.tell(*note);
                }
            }
            Verdict::Wait { until, .. } => {
                self.pending(&subject).due = Some(until);
                let at = self.shared.time.instant_when_server_shows(until);
                self.agenda.wake_at(subject, at);
            }
            Verdict::Blocked { by, .. } => {
                self.pending(&subject).due.get_or_insert(now);
                if let Some(until) = by.until() {
                    let at = self.shared.time.instant_when_server_shows(until);
                    self.agenda.wake_at(subject.clone(), at);
                }
                self.held.insert(subject);
            }
            Verdict::Act { actions, why } if self.shared.dry_run => {
                if is_new {
                    for action in &actions {
                        tracing::info!(recovery = R::NAME, %subject, %action, %why, "dry run: write skipped");
                    }
                }
            }
            Verdict::Act { actions, why } => self.act(subject, actions, &why, now, term),
        }
    }

    /// Applies the pause, the clock check and the brake to a verdict to act. What the brake admits counts from then on,
    /// but its retries do not count again.
    fn hold_back(
        &mut self,
        subject: &R::Subject,
        decision: Decision<R::Why, R::Step>,
        now: Timestamp,
    ) -> Decision<R::Why, R::Step> {
        if !decision.verdict.actions().is_empty()
            && let Some(held) = self.shared.leadership.pause().held()
        {
            self.shared.metrics.held(R::NAME, held.code());
            return decision.held_back(held);
        }
        // Steps that are not carried out now must not use up the budget of this minute.
        if self.is_waiting(subject) || self.is_stale() {
            return decision;
        }
        if decision.verdict.actions().iter().any(Step::is_irreversible)
            && let Some(held) = self.shared.time.unsettled()
        {
            self.shared.metrics.held(R::NAME, held.code());
            return decision.held_back(held);
        }
        let disruptive = decision.verdict.actions().iter().any(Step::is_disruptive);
        let outage = self.recovery.outage(subject, now);
        let admitted = self.known(subject).and_then(|pending| pending.admitted);
        if admitted.is_some_and(|at| now < brake::counts_until(at)) {
            // Counted already, but a limit that blocks everything blocks this too.
            return self.brake().pass_again(now, decision, outage);
        }
        let decision = self.brake().pass(now, decision, outage);
        match &decision.verdict {
            Verdict::Blocked { by, .. } => self.shared.metrics.held(R::NAME, by.code()),
            Verdict::Act { .. } => {
                self.held.remove(subject);
                if disruptive {
                    self.pending(subject).admitted = Some(now);
                    self.shared.save_brake_state_soon();
                }
            }
            Verdict::Ignore(_) | Verdict::Wait { .. } => {}
        }
        decision
    }

    /// True if a subject must not be acted on yet, whatever its verdict.
    fn is_waiting(&self, subject: &R::Subject) -> bool {
        self.known(subject).is_some_and(|pending| pending.waits_until(Instant::now()).is_some())
    }

    fn act(&mut self, subject: R::Subject, actions: Vec<R::Step>, why: &R::Why, now: Timestamp, term: Term) {
        let instant = Instant::now();
        let pending = self.pending(&subject);
        pending.due.get_or_insert(now);
        if let Some(until) = pending.waits_until(instant) {
            return self.agenda.wake_at(subject, until);
        }
        let watches = self.feeds.watches();
        if watches.is_outdated() || (actions.iter().any(Step::needs_a_fresh_view) && self.is_stale()) {
            self.shared.metrics.held(R::NAME, STALE_VIEW);
            self.standings.set(&subject, Some(Standing::Blocked(STALE_VIEW)));
            if self.warned_of_stale_watch.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
                self.warned_of_stale_watch = Some(instant);
                tracing::warn!(recovery = R::NAME, %subject, "writes blocked: watch stale");
            }
            return self.agenda.wake_at(subject, instant + STALE_PAUSE);
        }
        self.pending(&subject).heard = false;
        self.in_flight.insert(subject.clone());
        let reads_back = R::LANE.reads_back() && self.pending(&subject).unanswered > 0;
        let attempt = Attempt {
            executor: self.shared.executor.clone(),
            lane: R::LANE,
            time: self.shared.time.clone(),
            gate: self.gate(&subject, now),
            term,
            reads_back,
            recheck: (reads_back || actions.iter().any(Step::needs_a_second_look))
                .then(|| self.recovery.recheck(&subject, now)),
            look: tokio::sync::Mutex::default(),
            actions,
            why: why.to_string(),
        };
        let (ends, epoch) = (self.ends.0.clone(), self.epoch());
        tasks::spawn(async move {
            let mut unrecorded = None;
            let (done, outcome) = attempt.run(R::NAME, &subject, &mut unrecorded).await;
            // The engine receives every end before it stops.
            let _ = ends.send(End { subject, done, unrecorded, outcome, began: instant, term, epoch });
        });
    }

    fn gate(&self, subject: &R::Subject, now: Timestamp) -> Gate {
        Gate {
            time: self.shared.time.clone(),
            brake: self.shared.brake.clone(),
            watches: self.feeds.watches().clone(),
            freshness: self.shared.freshness,
            outage: self.recovery.outage(subject, now),
        }
    }

    fn is_stale(&self) -> bool {
        self.feeds.watches().is_stale(self.shared.freshness)
    }

    fn epoch(&self) -> u64 {
        self.feeds.watches().epoch()
    }

    /// Counts a verdict in the metrics if it differs from the last one. Returns whether it did.
    fn note(&mut self, subject: &R::Subject, decision: &Decision<R::Why, R::Step>) -> bool {
        let verdict = (decision.verdict.name(), decision.verdict.why().code());
        let tracked = self.tracked.entry(subject.clone()).or_default();
        let is_new = tracked.verdict.replace(verdict) != Some(verdict);
        if is_new {
            self.shared.metrics.verdict(R::NAME, verdict.0, verdict.1);
            let why = decision.verdict.why();
            tracing::debug!(recovery = R::NAME, %subject, verdict = verdict.0, %why, "verdict changed");
        }
        is_new
    }

    fn known(&self, subject: &R::Subject) -> Option<&Pending> {
        self.tracked.get(subject)?.pending.as_deref()
    }

    fn pending(&mut self, subject: &R::Subject) -> &mut Pending {
        self.tracked.entry(subject.clone()).or_default().pending.get_or_insert_default()
    }

    fn brake(&self) -> MutexGuard<'_, Brake> {
        self.shared.brake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the gauges show for a verdict.
fn standing_of<R: Recovery>(verdict: &Verdict<R::Why, R::Step>) -> Option<Standing> {
    match verdict {
        Verdict::Wait { why, .. } => Some(Standing::Waits(why.code())),
        Verdict::Blocked { by, .. } => Some(Standing::Blocked(by.code())),
        Verdict::Ignore(why) => R::lacks_consent(why).then_some(Standing::WithoutConsent),
        Verdict::Act { .. } => None,
    }
}

fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

#[cfg(test)]
mod tests;
