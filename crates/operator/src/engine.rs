//! Drives one recovery: news in, judgements, actions out. Level-triggered: a subject is judged from the state it is in
//! now, right before it is acted on, however it came to be looked at.
//!
//! # The life of a subject, from news to rest
//!
//! 1. **News.** A feed tells a change (`feeds.rs`). The recovery takes it in and names the subjects that it concerns
//!    ([`Recovery::hear`]). Each of them goes to the end of the queue, once (`agenda.rs`). Also put into the queue are: subjects
//!    whose time has come; those that the brake or the pause held back, when that ends; those whose attempt ended; and all
//!    subjects when a term begins.
//! 2. **Its turn.** A round judges at most [`LOOKS_IN_A_ROUND`], so that others on this thread have their turn. At most `at_once`
//!    subjects are acted on at a time. While there is no room for one more, all others are judged all the same: whoever has to be
//!    acted on waits for room, and is then judged again. So writes hold up no verdict. A subject under way keeps its place until its
//!    attempt has ended. A judgement slower than [`LONG_LOOK`] is not repeated for [`REST_AFTER_LOOK`] times its duration. In a new
//!    term nobody is judged before the watches that must be listed for it
//!    ([`Feed::listed_to_lead`](crate::feeds::Feed::listed_to_lead)) were listed.
//! 3. **Judgement.** The recovery judges by what it has seen ([`Recovery::judge`]). No judgement: the subject is gone and is
//!    forgotten. A process that does not lead stops here.
//! 4. **Held back.** The pause, an unsettled clock and the brake may turn a verdict to act into one that waits. What the brake
//!    lets through counts from then on; a retry of it does not count again.
//! 5. **Verdict.** Ignore: it rests until there is news. Wait: it wakes at that time. Blocked: it wakes when what blocks it ends.
//!    Act: if it waits for an echo or a retry, it wakes then; if the view is too old, a second later; otherwise an attempt begins.
//! 6. **Attempt** (`attempt.rs`), as a task of its own: a permit, the second look, the gate, the write, step by step. What it waits
//!    for holds up no other subject.
//! 7. **End.** The recovery is told what was done and what was refused. Done: it is judged again when the watch shows what was
//!    written, or at once if the recovery has taken it from the answer or the watch was quicker, or after [`ECHO_WITHIN`] anyhow.
//!    Failed: it is retried, later each time. Changed: the live objects said otherwise, so it waits for news, or until the time that they named.
//!
//! The memory of a subject between judgements is in `tracked.rs`. It is dropped with the subject, and mostly with the term.

mod agenda;
mod attempt;
mod standing;
mod tracked;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use salvor_api::names::{events, reasons};
use salvor_recovery::{
    Judgement, Reason, Step, Verdict,
    brake::{self, Brake, Held},
    event::{EventNote, EventType},
    objects::ObjectRef,
    pause::{Pause, pause_token},
    step::Tells,
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
    executor::{Failure, Written},
    feeds::{Feeds, Inbox, Item},
    leader::Term,
    notices::Notice,
    packed::packed,
    recovery::{After, Ended, Recovery, View},
    shared::{Shared, tell},
    tasks,
};

/// After our own writes the watch should show them; if it does not by then, the subject is judged all the same.
const ECHO_WITHIN: Duration = Duration::from_secs(10);
/// A conflict means that our view is behind, and so may one that asks for the same again; news end the wait earlier.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(2);
/// An old view is logged at most this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(30);
/// A subject that waits because of a stale view is judged again this often.
const STALE_PAUSE: Duration = Duration::from_secs(1);
/// A subject that takes longer than this to judge is not judged again for so many times that long.
const LONG_LOOK: Duration = Duration::from_micros(500);
const REST_AFTER_LOOK: u32 = 10;
/// While lists are awaited, whether they are taken in is checked so often.
const LISTS_ASKED_FOR_EVERY: Duration = Duration::from_secs(1);
/// The name of the limit, in metrics, that holds actions back while a watch is silent.
const STALE_VIEW: &str = "StaleView";
/// The memory of subjects is swept when it has grown by this much and has doubled.
const SWEEP: usize = 1024;
/// News taken in at once before anything is judged.
const BATCH: usize = 256;
/// Subjects looked at before others on this thread have their turn.
const LOOKS_IN_A_ROUND: usize = 128;

/// One recovery being driven.
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
    /// The term of which everything has been looked at; none while we follow.
    led: Option<Term>,
    complained_of_age: Option<Instant>,
    /// The number of subjects that are remembered before those that are gone are looked for.
    sweep_at: usize,
    /// The position of the pause switch that was heeded last.
    pause_heeded: u64,
    /// Its value then.
    paused: Option<String>,
}

/// The outcome of acting on a subject.
struct End<R: Recovery> {
    subject: R::Subject,
    done: Vec<(R::Step, Written)>,
    untold: Option<EventNote>,
    outcome: Outcome<R::Step>,
    began: Instant,
    term: Term,
    /// The number of the history that was known then.
    epoch: u64,
}

impl<R: Recovery> Engine<R> {
    /// An engine whose feeds run from now on.
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
            complained_of_age: None,
            sweep_at: SWEEP,
            pause_heeded: 0,
            paused: None,
        };
        engine.see_to_feeds();
        engine
    }

    /// Runs what the recovery wants to listen to.
    fn see_to_feeds(&mut self) {
        if let Some(wanted) = self.recovery.watches() {
            self.feeds.declare(wanted);
        }
    }

    /// Runs until told to stop, then until what is under way has ended.
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
                () = clock_skipped.notified() => self.set_alarms_anew(),
                version = leadership.pause().changed(self.pause_heeded) => self.heed_the_pause(version),
                Some(end) = self.ends.1.recv() => {
                    self.ended(end);
                    self.see_to_feeds();
                }
                Some(first) = news.recv() => {
                    self.hear_item(first);
                    for _ in 0..BATCH {
                        let Ok(next) = news.try_recv() else { break };
                        self.hear_item(next);
                    }
                }
                () = std::future::ready(()), if more => {}
                () = sleep_until(wake.unwrap_or_else(far_away)), if wake.is_some() => {}
            }
            // In every round, so that a flood of news cannot hold alarms up.
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

    /// When something is to be done without any news.
    fn next_wake(&mut self) -> Option<Instant> {
        let due = self.agenda.next_wake();
        if self.feeds.are_listed() {
            return due;
        }
        // A list in doubt counts when its watch has come to the present, and that is no news.
        let lists_may_count = Instant::now() + LISTS_ASKED_FOR_EVERY;
        Some(due.map_or(lists_may_count, |due| due.min(lists_may_count)))
    }

    // ---- what happens -------------------------------------------------------------------------

    /// A term begins or ends. A term may follow another without a gap that anybody here saw: a process that slept learns of
    /// both at once.
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

    /// Takes in news, unless they are of a feed that is wanted no more.
    fn hear_item(&mut self, item: Item<R::News>) {
        if let Some(news) = self.feeds.open(item) {
            self.hear(news);
            self.see_to_feeds();
        }
    }

    fn hear(&mut self, news: R::News) {
        let now = self.shared.time.server();
        for subject in self.recovery.hear(news, now) {
            if let Some(pending) = self.tracked.get_mut(&subject).and_then(|it| it.pending.as_mut()) {
                pending.echo_by = None;
                pending.heard = true;
            }
            self.agenda.enqueue(subject);
        }
    }

    /// The server's clock went forward: whoever waits for a time of it is judged again, and waits for as long as is right now.
    fn set_alarms_anew(&mut self) {
        let soon = Instant::now() + ECHO_WITHIN;
        for pending in self.tracked.values_mut().filter_map(|it| it.pending.as_mut()) {
            pending.echo_by = pending.echo_by.map(|at| at.min(soon));
        }
        self.agenda.wake_all();
    }

    /// A person has stopped everything, or lets it go on.
    fn heed_the_pause(&mut self, version: u64) {
        let held = self.shared.leadership.pause().held();
        self.pause_heeded = version;
        if held.is_none() {
            for subject in std::mem::take(&mut self.held) {
                self.agenda.enqueue(subject);
            }
        }
        let is_said = |held: &Held| !matches!(held, Held::Paused { pause } if **pause == Pause::Unread);
        let said = held.filter(is_said);
        let said = said.map(|held| held.to_string());
        self.shared.notices.say(|| Notice::Paused(said.clone()));
        let before = std::mem::replace(&mut self.paused, said);
        if let Some(term) = self.led.filter(|_| !self.shared.dry_run) {
            for note in pause_events(&self.shared.home, before.as_deref(), self.paused.as_deref()) {
                self.shared.executor.mention(note, term);
            }
        }
    }

    /// Records an event that stands by itself.
    fn tell(&self, note: EventNote) {
        tell(&self.shared, self.led, note);
    }

    // ---- judging ------------------------------------------------------------------------------

    /// Looks at those whose turn it is; whether there are more of them than one round has time for.
    fn pump(&mut self) -> bool {
        // Whoever led before us wrote until now, and one watch may show one write of it and another watch not yet another.
        if !self.feeds.are_listed() {
            return false;
        }
        // A subject under way is looked at again when it ends.
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
        self.agenda.give_back(later);
        more
    }

    /// True if one more subject may be acted on.
    fn has_room(&self) -> bool {
        self.in_flight.len() < self.shared.at_once
    }

    /// Looks at a subject, unless that took long a moment ago: one with thousands of parts, each of which has news, would
    /// otherwise be all that is ever looked at.
    fn look_in_turn(&mut self, subject: R::Subject) {
        let began = Instant::now();
        if let Some(until) = self.agenda.rests_until(&subject, began) {
            return self.agenda.wake_at(subject, until);
        }
        self.look_at(subject.clone());
        let took = began.elapsed().max(self.recovery.effort(&subject));
        // Whatever it led to is followed up at once, and what is gone is not judged again.
        let is_followed_up = self.in_flight.contains(&subject) || self.agenda.is_queued(&subject);
        if took >= LONG_LOOK && !is_followed_up && self.tracked.contains_key(&subject) {
            self.agenda.rest(subject, began + took * REST_AFTER_LOOK);
        }
    }

    /// Forgets what is remembered of subjects that are gone without a word: a list does not tell what is not in it.
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
            if let Some(note) = self.tracked.remove(&subject).and_then(Tracked::untold) {
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
        let Some(judgement) = self.recovery.judge(&subject, now) else {
            self.agenda.forget(&subject);
            self.held.remove(&subject);
            self.standings.set(&subject, None);
            let gone = || Notice::Forgotten { recovery: R::NAME, subject: subject.to_string() };
            self.shared.notices.say(gone);
            // No judgement of it will ask for the event any more.
            if let Some(note) = self.tracked.remove(&subject).and_then(Tracked::untold) {
                self.tell(*note);
            }
            return;
        };
        self.agenda.let_sleep(&subject);
        let Some(term) = self.led else { return };
        if self.shared.leadership.term() != Some(term) {
            // Everything is looked at again in the next term, however short the gap.
            return;
        }
        let acts = !judgement.verdict.actions().is_empty();
        if acts && !self.has_room() {
            // It is judged again right before it is acted on, and only then is the brake asked, which counts what it lets through.
            if !judgement.verdict.actions().iter().any(Step::is_disruptive) {
                self.note(&subject, &judgement);
                self.standings.set(&subject, None);
            }
            return self.agenda.wait_for_room(subject);
        }
        let mut judgement = self.hold_back(&subject, judgement, now);
        if acts
            && let Verdict::Blocked { by, .. } = &judgement.verdict
            && self.recovery.held(&subject, by, now)
            && let Some(again) = self.recovery.judge(&subject, now)
        {
            judgement = self.hold_back(&subject, again, now);
        }
        self.shared.notices.say(|| Notice::Judged {
            recovery: R::NAME,
            subject: subject.to_string(),
            report: judgement.report(),
        });
        let is_new = self.note(&subject, &judgement);
        self.standings.set(&subject, standing_of::<R>(&judgement.verdict));
        if judgement.verdict.actions().is_empty() {
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
        match judgement.verdict {
            Verdict::Ignore(_) => {
                let verdict = self.tracked.get(&subject).and_then(|t| t.verdict);
                let before = self.tracked.insert(subject, Tracked { verdict, pending: None });
                // Nor will this judgement ask for the event again.
                if let Some(note) = before.and_then(Tracked::untold) {
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
                        tracing::info!(recovery = R::NAME, %subject, %action, why = %why, "dry run: would be done");
                    }
                }
            }
            Verdict::Act { actions, why } => self.act(subject, actions, &why, now, term),
        }
    }

    /// The brake's word on a verdict to act. What it lets pass counts from then on, and a retry of it not again.
    fn hold_back(
        &mut self,
        subject: &R::Subject,
        judgement: Judgement<R::Why, R::Step>,
        now: Timestamp,
    ) -> Judgement<R::Why, R::Step> {
        if !judgement.verdict.actions().is_empty()
            && let Some(held) = self.shared.leadership.pause().held()
        {
            self.shared.metrics.held(R::NAME, held.code());
            return judgement.held_back(held);
        }
        // Steps that are not carried out now must not count against the budget of the minute.
        if self.is_waiting(subject) || self.is_stale() {
            return judgement;
        }
        if judgement.verdict.actions().iter().any(Step::is_irreversible)
            && let Some(held) = self.shared.time.unsettled()
        {
            self.shared.metrics.held(R::NAME, held.code());
            return judgement.held_back(held);
        }
        let disruptive = judgement.verdict.actions().iter().any(Step::is_disruptive);
        let outage = self.recovery.outage(subject, now);
        let admitted = self.known(subject).and_then(|pending| pending.admitted);
        if admitted.is_some_and(|at| now < brake::counts_until(at)) {
            // Counted already; but what holds everything holds this too.
            return self.brake().pass_again(now, judgement, outage);
        }
        let judgement = self.brake().pass(now, judgement, outage);
        match &judgement.verdict {
            Verdict::Blocked { by, .. } => self.shared.metrics.held(R::NAME, by.code()),
            Verdict::Act { .. } => {
                self.held.remove(subject);
                if disruptive {
                    self.pending(subject).admitted = Some(now);
                    self.shared.remember_the_brake();
                }
            }
            Verdict::Ignore(_) | Verdict::Wait { .. } => {}
        }
        judgement
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
            if self.complained_of_age.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
                self.complained_of_age = Some(instant);
                tracing::warn!(recovery = R::NAME, %subject, "held, as all others: a watch has been silent for too long");
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
            inquiry: (reads_back || actions.iter().any(Step::needs_a_second_look))
                .then(|| self.recovery.inquiry(&subject, now)),
            look: tokio::sync::Mutex::default(),
            actions,
            why: why.to_string(),
        };
        let (ends, epoch) = (self.ends.0.clone(), self.epoch());
        tasks::spawn(async move {
            let mut untold = None;
            let (done, outcome) = attempt.run(R::NAME, &subject, &mut untold).await;
            // The engine waits for every end before it goes.
            let _ = ends.send(End { subject, done, untold, outcome, began: instant, term, epoch });
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

    /// The number of the history that the watches know of.
    fn epoch(&self) -> u64 {
        self.feeds.watches().epoch()
    }

    fn ended(&mut self, End { subject, done, untold, outcome, began, term, epoch }: End<R>) {
        self.in_flight.remove(&subject);
        let (local, server) = (Instant::now(), self.shared.time.server());
        if let Some(admitted) = self.known(&subject).and_then(|pending| pending.admitted) {
            let steps: Vec<R::Step> = done.iter().map(|(step, _)| step.clone()).collect();
            if self.brake().carried_out(admitted, server, &steps) {
                self.shared.remember_the_brake();
            }
        }
        let worked = !matches!(outcome, Outcome::Failed(..));
        let refusal = match &outcome {
            Outcome::Failed(step, failure) => failure.refusal_of(&**step).map(|refusal| (step, refusal)),
            Outcome::Done | Outcome::Changed(..) | Outcome::HeldBack => None,
        };
        let refused = refusal.as_ref().map(|(step, refusal)| (&***step, refusal));
        let failed = match &outcome {
            Outcome::Failed(step, failure) => Some((&**step, failure)),
            Outcome::Done | Outcome::Changed(..) | Outcome::HeldBack => None,
        };
        let unanswered = matches!(&outcome, Outcome::Failed(_, failure) if failure.is_unanswered());
        let is_current = epoch == self.epoch();
        let end = Ended { done: &done, is_current, refused, failed, worked, took: local - began };
        let After { view, tell, judged_again } = self.recovery.ended(&subject, end, server);
        for note in tell {
            self.shared.executor.mention(note, term);
        }
        for (step, _) in &done {
            self.shared.notices.say(|| Notice::Did {
                recovery: R::NAME,
                subject: subject.to_string(),
                headline: step.headline(),
                object: step.object().to_ref(),
            });
        }
        let told = done.iter().any(|(step, _)| matches!(step.tells(), Some(Tells::Recorded(_))));
        if told || untold.is_some() {
            self.pending(&subject).untold = untold.map(Box::new);
        }
        let pending = self.pending(&subject);
        pending.unanswered = if unanswered { pending.unanswered.saturating_add(1) } else { 0 };
        if let Outcome::Failed(step, failure) = &outcome
            && judged_again
            && self.pending(&subject).may_go_on_at_once(local)
        {
            tracing::warn!(recovery = R::NAME, %subject, %step, %failure, "refused");
            return self.agenda.enqueue(subject);
        }
        let time = self.shared.time.clone();
        let echo_within = self.echo_within(&subject, view, &done, server);
        let pending = self.pending(&subject);
        if let Some(wait) = echo_within {
            pending.echo_by = Some(local + wait);
        }
        let retry = match outcome {
            Outcome::Done => {
                pending.attempts = 0;
                pending.admitted = None;
                let seconds = pending.due.take().map(|due| server.duration_since(due).as_secs_f64().max(0.0));
                self.shared.metrics.done(R::NAME, seconds.unwrap_or(0.0));
                None
            }
            Outcome::Changed(verdict, until) => {
                tracing::info!(recovery = R::NAME, %subject, verdict, "not done: the live objects say otherwise");
                // News that came in meanwhile may be those that the wait is for, and nobody tells them again.
                match until.filter(|until| *until > server && !pending.heard) {
                    // Objects that are not watched are read again when they are due. News end the wait earlier.
                    Some(until) => {
                        pending.echo_by = Some(time.instant_when_server_shows(until));
                        None
                    }
                    None => Some(pending.next_retry()),
                }
            }
            // The next judgement says what holds it.
            Outcome::HeldBack | Outcome::Failed(_, Failure::NotLeading | Failure::Paused) => None,
            Outcome::Failed(_, Failure::Stale | Failure::Gone) => {
                tracing::debug!(recovery = R::NAME, %subject, "it changed since it was judged; judged again");
                // Our view is behind. If news came in meanwhile it is not any more.
                pending.echo_by = (!pending.heard).then(|| local + CATCH_UP_WITHIN);
                None
            }
            Outcome::Failed(_, failure) => {
                let wait = match &failure {
                    Failure::Throttled(pause) => pending.next_retry().max(*pause),
                    _ if unanswered && R::LANE.reads_back() => pending.next_retry().max(pending.next_look()),
                    _ => pending.next_retry(),
                };
                let attempts = pending.attempts;
                tracing::warn!(recovery = R::NAME, %subject, attempts, %failure, retry_in = ?wait, "not done");
                self.shared.metrics.retried(R::NAME);
                Some(wait)
            }
        };
        if let Some(wait) = retry {
            let pending = self.pending(&subject);
            pending.not_before = Some(local + wait);
            pending.echo_by = None;
        }
        self.agenda.enqueue(subject);
    }

    /// How long the watch has to show what was written; none if nothing is to be waited for.
    ///
    /// The echo of a write may come before the answer to it, or before the attempt has ended with others, and does not
    /// come again: so after news that came meanwhile, what is asked for now says whether they showed it. What asks for a step that
    /// was just done is behind, or asks for more of the same, and is not believed for long.
    fn echo_within(
        &self,
        subject: &R::Subject,
        view: View,
        done: &[(R::Step, Written)],
        now: Timestamp,
    ) -> Option<Duration> {
        if view == View::Shows {
            return None;
        }
        if !self.known(subject).is_some_and(|pending| pending.heard) {
            return Some(ECHO_WITHIN);
        }
        let judgement = self.recovery.judge(subject, now);
        let asked = judgement.iter().flat_map(|judgement| judgement.verdict.actions()).flat_map(Step::steps);
        let mut again = asked.filter(|asked| done.iter().any(|(step, _)| step.is_same_step(asked)));
        again.next().map(|_| CATCH_UP_WITHIN)
    }

    /// Counts a verdict that differs from the last one; whether it did.
    fn note(&mut self, subject: &R::Subject, judgement: &Judgement<R::Why, R::Step>) -> bool {
        let verdict = (judgement.verdict.name(), judgement.verdict.why().code());
        let tracked = self.tracked.entry(subject.clone()).or_default();
        let is_new = tracked.verdict.replace(verdict) != Some(verdict);
        if is_new {
            self.shared.metrics.verdict(R::NAME, verdict.0, verdict.1);
            tracing::debug!(recovery = R::NAME, %subject, verdict = verdict.0, why = %judgement.verdict.why());
        }
        is_new
    }

    /// What is remembered of a subject, if it does not rest.
    fn known(&self, subject: &R::Subject) -> Option<&Pending> {
        self.tracked.get(subject)?.pending.as_deref()
    }

    /// What is remembered of a subject that does not rest.
    fn pending(&mut self, subject: &R::Subject) -> &mut Pending {
        self.tracked.entry(subject.clone()).or_default().pending.get_or_insert_default()
    }

    fn brake(&self) -> MutexGuard<'_, Brake> {
        self.shared.brake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The standing that follows from a verdict.
fn standing_of<R: Recovery>(verdict: &Verdict<R::Why, R::Step>) -> Option<Standing> {
    match verdict {
        Verdict::Wait { why, .. } => Some(Standing::Waits(why.code())),
        Verdict::Blocked { by, .. } => Some(Standing::Blocked(by.code())),
        Verdict::Ignore(why) => R::lacks_consent(why).then_some(Standing::WithoutConsent),
        Verdict::Act { .. } => None,
    }
}

/// The event about a pause or its end. Every recovery records it, so its name is the same for all.
fn pause_events(home: &ObjectRef, before: Option<&str>, now: Option<&str>) -> Vec<EventNote> {
    let note = |verb: &str, reason: &'static str, kind, of: &str, message: &str| EventNote {
        name: format!("salvor-{verb}.{}", pause_token(of)),
        regarding: home.clone(),
        kind,
        reason: reason.into(),
        action: events::HOLD_RECOVERIES,
        reporting_controller: events::POD_TERMINATION_CONTROLLER,
        message: message.to_owned(),
    };
    let resumed =
        |of| note("resumed", reasons::RESUMED, EventType::Normal, of, "Salvor is not paused any more");
    let paused = |of| note("paused", reasons::PAUSED, EventType::Warning, of, of);
    match now {
        Some(of) => vec![paused(of)],
        None => before.map(resumed).into_iter().collect(),
    }
}

fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

#[cfg(test)]
mod tests;
