//! What follows from the end of an attempt: what is recorded, and when its subject is decided again.

use std::time::Duration;

use jiff::Timestamp;
use salvor_recovery::{Step, step::StepEvent};
use tokio::time::Instant;

use super::{ECHO_WITHIN, End, Engine, attempt::Outcome};
use crate::{
    engine::{
        notices::Notice,
        recovery::{After, Ended, Recovery, View},
    },
    execute::{Failure, Written},
};

/// A conflict means that our view is behind, and so may a decision that repeats a step that was just done. A change
/// ends this wait earlier.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(2);

impl<R: Recovery> Engine<R> {
    pub(super) fn ended(&mut self, End { subject, done, unrecorded, outcome, began, term, epoch }: End<R>) {
        self.in_flight.remove(&subject);
        let (local, server) = (Instant::now(), self.shared.time.server());
        if let Some(admitted) = self.known(&subject).and_then(|pending| pending.admitted) {
            let steps: Vec<R::Step> = done.iter().map(|(step, _)| step.clone()).collect();
            if self.brake().carried_out(admitted, server, &steps) {
                self.shared.save_brake_state_soon();
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
        let After { view, tell, decide_again } = self.recovery.ended(&subject, end, server);
        for note in tell {
            self.shared.executor.record_in_background(note, term);
        }
        for (step, _) in &done {
            self.shared.notices.say(|| Notice::Did {
                recovery: R::NAME,
                subject: subject.to_string(),
                headline: step.headline(),
                object: step.object().to_ref(),
            });
        }
        let told = done.iter().any(|(step, _)| matches!(step.tells(), Some(StepEvent::Recorded(_))));
        if told || unrecorded.is_some() {
            self.pending(&subject).unrecorded = unrecorded.map(Box::new);
        }
        let pending = self.pending(&subject);
        pending.unanswered = if unanswered { pending.unanswered.saturating_add(1) } else { 0 };
        if let Outcome::Failed(step, failure) = &outcome
            && decide_again
            && self.pending(&subject).may_go_on_at_once(local)
        {
            tracing::warn!(recovery = R::NAME, %subject, %step, %failure, "write rejected");
            return self.agenda.enqueue(subject);
        }
        let time = self.shared.time.clone();
        let sync_within = self.sync_within(&subject, view, &done, server);
        let pending = self.pending(&subject);
        if let Some(wait) = sync_within {
            pending.synced_by = Some(local + wait);
        }
        let retry = match outcome {
            Outcome::Done => {
                pending.attempts = 0;
                pending.admitted = None;
                let due = pending.due.take();
                let seconds = due.map(|due| server.duration_since(due).as_secs_f64().max(0.0));
                self.shared.metrics.done(R::NAME, seconds.unwrap_or(0.0));
                if done.iter().any(|(step, _)| step.is_disruptive()) {
                    for (phase, seconds) in self.recovery.course(&subject).phases(due, server) {
                        self.shared.metrics.took(R::NAME, phase, seconds);
                    }
                }
                None
            }
            Outcome::Changed(verdict, until) => {
                tracing::info!(recovery = R::NAME, %subject, verdict, "write skipped: live objects differ");
                // A change that arrived meanwhile may be the one to wait for, and it does not come again.
                match until.filter(|until| *until > server && !pending.heard) {
                    // Objects without a watch are read again when they are due. A change ends the wait earlier.
                    Some(until) => {
                        pending.synced_by = Some(time.instant_when_server_shows(until));
                        None
                    }
                    None => Some(pending.next_retry()),
                }
            }
            // The next decision reports what blocks it.
            Outcome::HeldBack | Outcome::Failed(_, Failure::NotLeading | Failure::Paused) => None,
            Outcome::Failed(_, Failure::Stale | Failure::Gone) => {
                tracing::debug!(recovery = R::NAME, %subject, "write conflict, deciding again");
                // Our view is behind, unless a change arrived meanwhile.
                pending.synced_by = (!pending.heard).then(|| local + CATCH_UP_WITHIN);
                None
            }
            Outcome::Failed(_, failure) => {
                let wait = match &failure {
                    Failure::Throttled(pause) => pending.next_retry().max(*pause),
                    _ if unanswered && R::LANE.reads_back() => pending.next_retry().max(pending.next_look()),
                    _ => pending.next_retry(),
                };
                let attempts = pending.attempts;
                tracing::warn!(
                    recovery = R::NAME,
                    %subject,
                    attempts,
                    %failure,
                    retry_in = ?wait,
                    "write failed, retrying"
                );
                self.shared.metrics.retried(R::NAME);
                Some(wait)
            }
        };
        if let Some(wait) = retry {
            let pending = self.pending(&subject);
            pending.not_before = Some(local + wait);
            pending.synced_by = None;
        }
        self.agenda.enqueue(subject);
    }

    /// How long to wait for the watch to show the write; `None` to decide again at once.
    ///
    /// The watch may show a write before its answer arrives, or before the other steps of the attempt end, and it does
    /// not show it twice. So if a change arrived meanwhile, a fresh decision reveals whether it included the write. A
    /// decision that repeats a step that was just done is behind, or wants more of the same, and waits only briefly.
    fn sync_within(
        &self,
        subject: &R::Subject,
        view: View,
        done: &[(R::Step, Written)],
        now: Timestamp,
    ) -> Option<Duration> {
        if view == View::Synced {
            return None;
        }
        if !self.known(subject).is_some_and(|pending| pending.heard) {
            return Some(ECHO_WITHIN);
        }
        let decision = self.recovery.judge(subject, now);
        let asked = decision.iter().flat_map(|decision| decision.verdict.actions()).flat_map(Step::steps);
        let mut again = asked.filter(|asked| done.iter().any(|(step, _)| step.is_same_step(asked)));
        again.next().map(|_| CATCH_UP_WITHIN)
    }
}
