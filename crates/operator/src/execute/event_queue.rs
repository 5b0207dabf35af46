//! Events that are recorded in the background. No work waits for them.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use salvor_recovery::{event::EventNote, step::Write};

use super::{Basis, EVENTS_AT_ONCE, EventQueue, Executor, Failure, Lane};
use crate::{lead::Term, tasks};

/// Limit on queued events. A user could not read more anyway.
pub(super) const MAX_QUEUED_EVENTS: usize = 1000;
/// Delays before an event is retried, if the server did not accept it.
pub(super) const EVENT_RETRIES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

impl Executor {
    /// Records an event of a term in the background, without a guarantee.
    pub(crate) fn record_in_background(&self, note: EventNote, term: Term) {
        {
            let mut event_queue = self.event_queue();
            if event_queue.waiting.len() >= MAX_QUEUED_EVENTS {
                return tracing::debug!(event = note.name, "event dropped: queue full");
            }
            event_queue.waiting.push_back((note, term));
            if event_queue.recorders >= EVENTS_AT_ONCE {
                return;
            }
            event_queue.recorders += 1;
        }
        let this = self.clone();
        tasks::spawn(async move {
            while let Some((note, term)) = this.next_event() {
                this.tell(&note, term).await;
            }
        });
    }

    /// Records an event, and retries if that may help. The name is fixed, so a retry never duplicates it.
    async fn tell(&self, note: &EventNote, term: Term) {
        let mut pauses = EVENT_RETRIES.into_iter();
        while let Err(failure) =
            self.perform(Lane::Events, &Write::event(note), Basis { term, looked: None }).await
        {
            tracing::debug!(%failure, "event write failed");
            let may_help =
                matches!(failure, Failure::Throttled(_) | Failure::Unanswered(_) | Failure::Api(_));
            match pauses.next().filter(|_| may_help && failure.refusal().is_none()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return,
            }
        }
    }

    /// The next queued event. Without one, the calling task ends.
    fn next_event(&self) -> Option<(EventNote, Term)> {
        let mut event_queue = self.event_queue();
        let next = event_queue.waiting.pop_front();
        if next.is_none() {
            event_queue.recorders -= 1;
            event_queue.waiting.shrink_to_fit();
        }
        next
    }

    fn event_queue(&self) -> MutexGuard<'_, EventQueue> {
        self.0.event_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
