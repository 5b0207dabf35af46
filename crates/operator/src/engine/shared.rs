//! State that all recoveries of a process share.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use salvor_recovery::{brake::Brake, event::EventNote, objects::ObjectRef, step::Write};

use crate::{
    engine::notices::Notices,
    execute::{Basis, Executor, Failure, Lane},
    lead::{Leadership, Term},
    metrics::Metrics,
    tasks,
    time::{Time, broadcast::Broadcast},
};

/// The backoff after the first failed attempt, and its maximum.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(200);
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Attempts to record an event that no decision will request again.
const TELL_ATTEMPTS: u32 = 10;

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) time: Time,
    pub(crate) leadership: Leadership,
    pub(crate) executor: Executor,
    pub(crate) brake: Arc<Mutex<Brake>>,
    pub(crate) released: Broadcast,
    pub(crate) metrics: Metrics,
    pub(crate) dry_run: bool,
    /// The object of events about Salvor itself.
    pub(crate) home: ObjectRef,
    /// Limit on concurrent attempts of one recovery.
    pub(crate) at_once: usize,
    /// The greatest staleness of a view on which to act.
    pub(crate) freshness: Duration,
    pub(crate) notices: Notices,
}

impl Shared {
    /// Requests that the brake's state is saved soon. A dry run saves nothing.
    pub(crate) fn save_brake_state_soon(&self) {
        if !self.dry_run {
            self.leadership.renew_soon();
        }
    }
}

/// Records an event that does not belong to an attempt, if we lead.
pub(crate) fn tell(shared: &Shared, led: Option<Term>, note: EventNote) {
    let Some(term) = led.filter(|_| !shared.dry_run) else { return };
    let executor = shared.executor.clone();
    tasks::spawn(async move {
        let mut wait = FIRST_RETRY;
        // Retried, because such events often occur while the API server is unhealthy.
        for _ in 0..TELL_ATTEMPTS {
            match executor.perform(Lane::Events, &Write::event(&note), Basis { term, looked: None }).await {
                Ok(_) | Err(Failure::NotLeading) => return,
                Err(failure) => tracing::warn!(%failure, action = %note, "event write failed"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_RETRY);
        }
    });
}
