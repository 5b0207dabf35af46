//! Events that are recorded in the background. No work waits for them.

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use salvor_recovery::{event::EventNote, step::Write};

use super::{Basis, EVENTS_AT_ONCE, Executor, Failure, Lane, Mentions};
use crate::{leader::Term, tasks};

/// Limit on queued events. A user could not read more anyway.
pub(super) const MOST_MENTIONS: usize = 1000;
/// Delays before an event is retried, if the server did not accept it.
pub(super) const MENTIONED_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

impl Executor {
    /// Records an event of a term in the background, without a guarantee.
    pub(crate) fn mention(&self, note: EventNote, term: Term) {
        {
            let mut mentions = self.mentions();
            if mentions.waiting.len() >= MOST_MENTIONS {
                return tracing::debug!(event = note.name, "event dropped: queue full");
            }
            mentions.waiting.push_back((note, term));
            if mentions.tellers >= EVENTS_AT_ONCE {
                return;
            }
            mentions.tellers += 1;
        }
        let this = self.clone();
        tasks::spawn(async move {
            while let Some((note, term)) = this.next_mention() {
                this.tell(&note, term).await;
            }
        });
    }

    /// Records an event, and retries if that may help. The name is fixed, so a retry never duplicates it.
    async fn tell(&self, note: &EventNote, term: Term) {
        let mut pauses = MENTIONED_AGAIN_AFTER.into_iter();
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
    fn next_mention(&self) -> Option<(EventNote, Term)> {
        let mut mentions = self.mentions();
        let next = mentions.waiting.pop_front();
        if next.is_none() {
            mentions.tellers -= 1;
            mentions.waiting.shrink_to_fit();
        }
        next
    }

    fn mentions(&self) -> MutexGuard<'_, Mentions> {
        self.0.mentions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
