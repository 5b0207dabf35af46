//! State of a subject between two decisions.

use std::time::Duration;

use crate::engine::shared::{FIRST_RETRY, LONGEST_RETRY};
use jiff::Timestamp;
use salvor_recovery::event::EventNote;
use tokio::time::Instant;

/// Up to this many refusals per second, the recovery handles them itself. Beyond that the subject backs off as after
/// any failure; otherwise two writes that are refused in turn would be sent for ever.
const REFUSALS_AT_ONCE: u32 = 64;
const REFUSALS_IN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Tracked {
    /// The last verdict and reason, so that only changes are counted.
    pub(super) verdict: Option<(&'static str, &'static str)>,
    /// Boxed, because there are many subjects and most have nothing pending.
    pub(super) pending: Option<Box<Pending>>,
}

/// State of a subject that has something pending.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) due: Option<Timestamp>,
    pub(super) attempts: u32,
    /// Consecutive attempts that ended with an unanswered write.
    pub(super) unanswered: u32,
    pub(super) not_before: Option<Instant>,
    /// When the brake admitted it. While that counts, a retry is not counted again.
    pub(super) admitted: Option<Timestamp>,
    /// Waiting until then for the watch to show our write or another change, or for the time that the live objects
    /// implied.
    pub(super) synced_by: Option<Instant>,
    /// True if a change arrived since the last attempt began.
    pub(super) heard: bool,
    /// When the current burst of refusals began, and how many there were since.
    pub(super) refused: Option<(Instant, u32)>,
    /// The event that could not be recorded. Boxed, because few subjects have one.
    pub(super) unrecorded: Option<Box<EventNote>>,
}

impl Tracked {
    pub(super) fn unrecorded(self) -> Option<Box<EventNote>> {
        self.pending?.unrecorded
    }

    /// The part that stays valid in a new term. The previous leader may have written and counted meanwhile, so our own
    /// retry state is void.
    pub(super) fn in_a_new_term(&self) -> Self {
        let due = self.pending.as_ref().and_then(|pending| pending.due);
        let pending = due.map(|due| Box::new(Pending { due: Some(due), ..Pending::default() }));
        Self { verdict: self.verdict, pending }
    }
}

impl Pending {
    /// Records a refusal after which the subject should be decided again at once. Returns false if there were so many
    /// that it backs off.
    pub(super) fn may_go_on_at_once(&mut self, now: Instant) -> bool {
        let (since, times) = match self.refused {
            Some((since, times)) if now - since < REFUSALS_IN => (since, times + 1),
            _ => (now, 1),
        };
        self.refused = Some((since, times));
        times <= REFUSALS_AT_ONCE
    }

    /// The backoff after one more failed attempt.
    pub(super) fn next_retry(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        FIRST_RETRY.saturating_mul(2u32.saturating_pow(self.attempts.min(20) - 1)).min(LONGEST_RETRY)
    }

    /// The backoff after one more unanswered write, on a lane that reads its outcome before it sends again.
    pub(super) fn next_look(&self) -> Duration {
        Duration::from_secs(1u64 << self.unanswered.saturating_sub(1).min(10)).min(LONGEST_RETRY)
    }

    /// Until when it must not be acted on, whatever its verdict.
    pub(super) fn waits_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.max(self.synced_by).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_without_end_waits_whatever_its_recovery_says() {
        let (mut pending, began) = (Pending::default(), Instant::now());
        let mut refused = |millis: u64| pending.may_go_on_at_once(began + Duration::from_millis(millis));
        assert!((0..u64::from(REFUSALS_AT_ONCE)).all(&mut refused));
        assert!(!refused(500) && !refused(999));
        assert!(refused(1000), "it has waited");
        assert!((0..100).all(|times| refused(2000 + times * 1000)), "one now and then");
    }
}
