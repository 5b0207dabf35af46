//! Whether this process leads, for every writer to check.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::lead::pause::PauseSwitch;

/// Whether this process may write, and for how long that is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenure {
    Follows,
    /// No other replica can hold the Lease before this instant. The margin covers requests in flight.
    LeadsUntil(Instant),
    /// There is no election.
    LeadsAlone,
}

/// A period of uninterrupted leadership. A decision made in one term is never written in another, because another
/// replica may have led in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term(u64);

/// Whether we held the Lease before this claim without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// We held the Lease, and no other replica has held it since our last renewal.
    Renewed,
    /// The Lease was free or held by another replica.
    Acquired,
}

/// Every writer checks this first. Clones share the state.
///
/// This is not a tokio watch channel: that wakes its waiters in random order, and the simulation must be reproducible
/// from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Leadership(pub(super) Arc<Standing>);

#[derive(Debug)]
pub(super) struct Standing {
    /// The tenure and its term. While this process follows, the term is the last one that it led.
    tenure: Mutex<(Tenure, Term)>,
    pub(super) changed: Notify,
    renew: Notify,
    pause: PauseSwitch,
}

impl Leadership {
    pub(super) fn new(tenure: Tenure) -> Self {
        Self(Arc::new(Standing {
            tenure: Mutex::new((tenure, Term(0))),
            changed: Notify::new(),
            renew: Notify::new(),
            pause: PauseSwitch::default(),
        }))
    }

    /// The switch with which a user pauses every replica.
    pub(crate) fn pause(&self) -> &PauseSwitch {
        &self.0.pause
    }

    /// Leadership without an election.
    pub(crate) fn alone() -> Self {
        Self::new(Tenure::LeadsAlone)
    }

    fn standing(&self) -> MutexGuard<'_, (Tenure, Term)> {
        self.0.tenure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tenure(&self) -> Tenure {
        self.standing().0
    }

    pub(super) fn follow(&self) {
        self.standing().0 = Tenure::Follows;
        self.0.changed.notify_waiters();
    }

    /// Leads until `end`. Returns true if this begins a new term, because another replica may have led since the last
    /// one.
    pub(super) fn lead_until(&self, end: Instant, claim: Claim) -> bool {
        let begins = {
            let mut standing = self.standing();
            let begins = standing.0.time_left().is_none() || claim == Claim::Acquired;
            let Term(number) = standing.1;
            *standing = (Tenure::LeadsUntil(end), Term(number + u64::from(begins)));
            begins
        };
        self.0.changed.notify_waiters();
        begins
    }

    pub(crate) fn term(&self) -> Option<Term> {
        let (tenure, term) = *self.standing();
        tenure.time_left().map(|_| term)
    }

    /// How long a write of this term may take from now on; `None` if it must not be sent.
    pub(crate) fn time_left(&self, judged_in: Term) -> Option<Duration> {
        let (tenure, term) = *self.standing();
        tenure.time_left().filter(|_| term == judged_in)
    }

    /// Requests an early renewal, so that the next leader sees the brake's new state even if this process dies.
    pub(crate) fn renew_soon(&self) {
        self.0.renew.notify_one();
    }

    /// Waits until an early renewal is requested.
    pub(crate) async fn renewal_asked_for(&self) {
        self.0.renew.notified().await;
    }

    /// Waits until this process leads in another term or stops leading. A renewal does not count as a change.
    pub(crate) async fn changed(&self, led: Option<Term>) {
        loop {
            // Register before reading the term, so that no change is missed.
            let changed = self.0.changed.notified();
            if self.term() != led {
                return;
            }
            changed.await;
        }
    }
}

impl Tenure {
    /// How long the tenure is certain to last from now on; `None` if it is over.
    fn time_left(self) -> Option<Duration> {
        match self {
            Self::Follows => None,
            Self::LeadsUntil(end) => {
                end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            }
            Self::LeadsAlone => Some(Duration::MAX),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::LeadsUntil(end) if *end <= Instant::now())
    }
}
