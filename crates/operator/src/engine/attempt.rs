//! One attempt to carry out a verdict: permit, second look, gate, write.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use salvor_recovery::{
    Decision, Reason, Step, Verdict,
    brake::{Brake, Outage},
    event::EventNote,
    objects::Object,
    step::{Changed, SecondLook, StepEvent},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    client::recent_reads::{READ_AGAIN_AFTER, READ_VALID_FOR, ReadAge},
    engine::recovery::{Known, LiveRecheck},
    execute::{Basis, Executor, Failure, Lane, Permit, Written},
    lead::Term,
    time::Time,
    watch_set::watch::WatchSet,
};

/// Limit on second looks for one step when each expires before the write can be sent.
const LOOKS: u32 = 3;
/// After a look has expired once, steps share only looks that stay valid for this much longer.
const TIME_FOR_A_WRITE: Duration = Duration::from_millis(500);

pub(super) enum Outcome<S> {
    Done,
    /// The live objects differ from the view. The time is set if the step is due later.
    Changed(String, Option<Timestamp>),
    /// The brake engaged, or the view became stale, before the write.
    HeldBack,
    Failed(Box<S>, Failure),
}

impl<S: Step> Outcome<S> {
    /// The event that could not be recorded, if recording it is what failed.
    pub(super) fn unrecorded(&self) -> Option<&EventNote> {
        match self {
            Self::Failed(step, _) => match step.tells() {
                Some(StepEvent::Recorded(note)) => Some(note),
                Some(StepEvent::BestEffort(_)) | None => None,
            },
            Self::Done | Self::Changed(..) | Self::HeldBack => None,
        }
    }
}

/// The conditions that must hold right before a step is written, however long it has waited.
pub(super) struct Gate {
    pub(super) time: Time,
    pub(super) brake: Arc<Mutex<Brake>>,
    pub(super) watches: WatchSet,
    pub(super) freshness: Duration,
    /// Whether an outage around the subject blocks it.
    pub(super) outage: Outage,
}

impl Gate {
    /// True if a step may be written now. The brake already counted it when it was decided.
    fn lets_through<S: Step>(&self, step: &S) -> bool {
        if self.watches.is_outdated() || (step.needs_a_fresh_view() && self.watches.is_stale(self.freshness))
        {
            return false;
        }
        let brake = self.brake.lock().unwrap_or_else(PoisonError::into_inner);
        brake.check_again(self.time.server(), std::slice::from_ref(step), self.outage).is_ok()
    }
}

pub(super) struct Attempt<I: LiveRecheck> {
    pub(super) executor: Executor,
    pub(super) lane: Lane,
    pub(super) time: Time,
    pub(super) gate: Gate,
    pub(super) term: Term,
    /// True if a write of the last attempt was not answered. Its outcome is read before anything is sent again.
    pub(super) reads_back: bool,
    /// Present if any step, or the whole attempt, needs a second look.
    pub(super) recheck: Option<I>,
    /// The last look. Steps share it while it is valid.
    pub(super) look: tokio::sync::Mutex<Option<Look<I::Step>>>,
    pub(super) actions: Vec<I::Step>,
    pub(super) why: String,
}

pub(super) struct Look<S> {
    /// When the read was sent.
    taken: Instant,
    /// True if our own write has changed the objects since.
    is_past: bool,
    /// The steps that the live objects require.
    steps: Vec<S>,
    /// Index at which the next step is expected. This avoids comparing each of ten thousand steps with all others.
    next: usize,
    /// Why there is nothing to do, and until when, if that is known.
    why: String,
    until: Option<Timestamp>,
}

impl<S: Step> Look<S> {
    pub(super) fn new<Why: Reason>(taken: Instant, decision: Option<Decision<Why, S>>) -> Self {
        let Some(Decision { verdict, .. }) = decision else {
            let why = "it is not there any more".to_owned();
            return Self { taken, is_past: false, steps: Vec::new(), next: 0, why, until: None };
        };
        let why = verdict.why().to_string();
        let (steps, until) = match verdict {
            Verdict::Act { actions, .. } => (actions.into_iter().flat_map(Step::into_steps).collect(), None),
            Verdict::Wait { until, .. } => (Vec::new(), Some(until)),
            Verdict::Ignore(_) | Verdict::Blocked { .. } => (Vec::new(), None),
        };
        Self { taken, is_past: false, steps, next: 0, why, until }
    }

    /// True if the look is still valid.
    fn counts(&self) -> bool {
        !self.is_past && self.taken.elapsed() < READ_AGAIN_AFTER
    }

    /// The step as the live objects require it, or what they require instead.
    pub(super) fn step(&mut self, judged: &S) -> Result<S, Stop> {
        let next = self.next.min(self.steps.len());
        let mut places = (next..self.steps.len()).chain(0..next);
        match places.find(|place| self.steps[*place].is_same_step(judged)) {
            Some(place) => {
                self.next = place + 1;
                Ok(self.steps[place].clone())
            }
            None => Err(Stop::Changed(self.why.clone(), self.until)),
        }
    }
}

pub(super) enum Stop {
    Changed(String, Option<Timestamp>),
    HeldBack,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<I: LiveRecheck> Attempt<I> {
    pub(super) async fn run(
        mut self,
        recovery: &str,
        subject: &(impl Display + Sync),
        unrecorded: &mut Option<EventNote>,
    ) -> (Vec<(I::Step, Written)>, Outcome<I::Step>) {
        let actions = std::mem::take(&mut self.actions);
        let mut done: Vec<(I::Step, Written)> = Vec::with_capacity(actions.len());
        let mut not_told = None;
        for action in actions {
            let written = done.iter().rev().find_map(|(step, answer)| match answer {
                Written::Object(object) if step.changes_what_was_judged() => Some(object.as_str()),
                _ => None,
            });
            let results = join_all(action.steps().iter().map(|step| self.carry_out(step, written))).await;
            if results.iter().all(Result::is_ok) && !matches!(action.tells(), Some(StepEvent::BestEffort(_)))
            {
                tracing::info!(recovery, %subject, %action, why = self.why, "write succeeded");
            }
            if action.changes_what_was_judged()
                && let Some(look) = self.look.get_mut()
            {
                look.is_past = true;
            }
            let mut stopped: Option<Outcome<I::Step>> = None;
            for (step, result) in action.steps().iter().zip(results) {
                match result {
                    Ok(one) => done.push(one),
                    Err(Stop::Changed(verdict, until)) => {
                        stopped.get_or_insert(Outcome::Changed(verdict, until));
                    }
                    Err(Stop::HeldBack) => {
                        stopped.get_or_insert(Outcome::HeldBack);
                    }
                    // If several steps fail, report the failure that the recovery may have to handle.
                    Err(Stop::Failed(failure)) => {
                        let has_failed = matches!(stopped, Some(Outcome::Failed(..)));
                        if !has_failed || failure.refusal_of(step).is_some() {
                            stopped = Some(Outcome::Failed(Box::new(step.clone()), failure));
                        }
                    }
                }
            }
            if let Some(stopped) = stopped {
                // A failed event must not stop the work; it is recorded afterwards.
                let Some(note) = stopped.unrecorded() else { return (done, stopped) };
                *unrecorded = Some(note.clone());
                not_told = Some(stopped);
            }
        }
        (done, not_told.unwrap_or(Outcome::Done))
    }

    /// Carries out one step: first the permit, which may take any time, then the reads for the write, then the second
    /// look, then the write.
    async fn carry_out(&self, step: &I::Step, written: Option<&str>) -> Result<(I::Step, Written), Stop> {
        if let Some(StepEvent::BestEffort(note)) = step.tells() {
            self.executor.record_in_background(note.clone(), self.term);
            return Ok((step.clone(), Written::Nothing));
        }
        let _turn = if self.reads_back { Some(self.executor.turn_again().await?) } else { None };
        let permit = self.executor.permit(self.lane, self.term).await?;
        let reads = step.reads();
        let read = permit.read(step.name(), &reads).await?;
        for looks in 0..LOOKS {
            let is_looked_at = step.needs_a_second_look() || (self.reads_back && step.tells().is_none());
            let (step, looked) = if is_looked_at {
                let (step, taken) = self.look_again(step, written, looks).await?;
                (step, Some(taken))
            } else {
                (self.as_last_judged(step).await, None)
            };
            match self.write(&permit, &step, &reads, &read, looked).await {
                // Something took too long and the look expired. Look again.
                Err(Stop::Failed(Failure::LookTooOld)) => {}
                other => return other.map(|answer| (step, answer)),
            }
        }
        Err(Failure::LookTooOld.into())
    }

    /// A step that needs no look, as the last look required it: an event describes what was written by then.
    async fn as_last_judged(&self, step: &I::Step) -> I::Step {
        let mut look = self.look.lock().await;
        look.as_mut().and_then(|look| look.step(step).ok()).unwrap_or_else(|| step.clone())
    }

    async fn write(
        &self,
        permit: &Permit<'_>,
        step: &I::Step,
        reads: &[Object<'_>],
        read: &[Option<Value>],
        looked: Option<Instant>,
    ) -> Result<Written, Stop> {
        if !self.gate.lets_through(step) {
            return Err(Stop::HeldBack);
        }
        // The second look may require a write that depends on other objects than those that were read.
        if step.reads() != reads {
            return Err(Failure::Stale.into());
        }
        let write = step.write(read).map_err(|_: Changed| Failure::Stale)?;
        Ok(permit.write(&write, Basis { term: self.term, looked }).await?)
    }

    /// The step as the live objects require it, and when they were read.
    async fn look_again(
        &self,
        step: &I::Step,
        written: Option<&str>,
        looks: u32,
    ) -> Result<(I::Step, Instant), Stop> {
        let mut look = self.look.lock().await;
        if looks == 0
            && let Some(look) = look.as_mut().filter(|look| look.counts())
        {
            return Ok((look.step(step)?, look.taken));
        }
        if let Some(left) = self.executor.pause(self.lane) {
            return Err(Failure::Throttled(left).into());
        }
        let Some(recheck) = &self.recheck else { return Err(Failure::LookTooOld.into()) };
        let known = match (step.effect().second_look, written) {
            (SecondLook::AllButTheObject, _) => Known::Guarded,
            (SecondLook::Everything | SecondLook::No, Some(object)) => Known::Written(object),
            (SecondLook::Everything | SecondLook::No, None) => Known::Nothing,
        };
        let mut sight =
            if looks == 0 { ReadAge::default() } else { ReadAge::with_time_for(TIME_FOR_A_WRITE) };
        let asked = recheck.ask(self.executor.client(), known, self.time.server(), &mut sight);
        // A look that takes longer than its validity is useless.
        let decision = match tokio::time::timeout(READ_VALID_FOR, asked).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(error)) => return Err(self.executor.failed_to_read(error, self.lane).into()),
            Err(_) => return Err(Failure::LookTooOld.into()),
        };
        let look = look.insert(Look::new(sight.taken(), decision));
        Ok((look.step(step)?, look.taken))
    }
}
