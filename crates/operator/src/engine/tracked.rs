//! The memory of a subject between two judgements.

use std::time::Duration;

use crate::shared::{FIRST_RETRY, LONGEST_RETRY};
use jiff::Timestamp;
use salvor_recovery::event::EventNote;
use tokio::time::Instant;

/// So many refusals in a second are taken into account by the recovery itself. With more it waits as after any failure, whatever the
/// recovery says: two writes that are refused in turn would be sent for ever.
const REFUSALS_AT_ONCE: u32 = 64;
const REFUSALS_IN: Duration = Duration::from_secs(1);

/// What is remembered of a subject.
#[derive(Default)]
pub(super) struct Tracked {
    /// The last verdict and reason, to count changes only.
    pub(super) verdict: Option<(&'static str, &'static str)>,
    /// There are many subjects, and most of them rest.
    pub(super) pending: Option<Box<Pending>>,
}

/// What is remembered of a subject that does not rest.
#[derive(Default)]
pub(super) struct Pending {
    /// When it became due.
    pub(super) due: Option<Timestamp>,
    pub(super) attempts: u32,
    /// So many attempts in a row ended in a write that was not answered.
    pub(super) unanswered: u32,
    pub(super) not_before: Option<Instant>,
    /// When the brake let it through; as long as that counts, a retry of the same is not counted again.
    pub(super) admitted: Option<Timestamp>,
    /// Waiting for the watch to show what we wrote, or what others did, or for what the live objects named as the time.
    pub(super) echo_by: Option<Instant>,
    /// True if there was news since it was last acted on.
    pub(super) heard: bool,
    /// When the first of some refusals came after which it was judged again at once, and how many have come since.
    pub(super) refused: Option<(Instant, u32)>,
    /// The event that could not be recorded. Boxed: nearly no subject ever has one.
    pub(super) untold: Option<Box<EventNote>>,
}

impl Tracked {
    /// The event that could not be recorded.
    pub(super) fn untold(self) -> Option<Box<EventNote>> {
        self.pending?.untold
    }

    /// What still counts of it in a new term. Whoever led meanwhile has written and counted, so what we remember of our own tries
    /// is worth nothing.
    pub(super) fn in_a_new_term(&self) -> Self {
        let due = self.pending.as_ref().and_then(|pending| pending.due);
        let pending = due.map(|due| Box::new(Pending { due: Some(due), ..Pending::default() }));
        Self { verdict: self.verdict, pending }
    }
}

impl Pending {
    /// Notes a refusal after which it should be judged again at once; false if there were so many that it waits all the same.
    pub(super) fn may_go_on_at_once(&mut self, now: Instant) -> bool {
        let (since, times) = match self.refused {
            Some((since, times)) if now - since < REFUSALS_IN => (since, times + 1),
            _ => (now, 1),
        };
        self.refused = Some((since, times));
        times <= REFUSALS_AT_ONCE
    }

    /// The wait after one more failed try.
    pub(super) fn next_retry(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        FIRST_RETRY.saturating_mul(2u32.saturating_pow(self.attempts.min(20) - 1)).min(LONGEST_RETRY)
    }

    /// The wait after one more write that was not answered, where it is looked for before it is sent again.
    pub(super) fn next_look(&self) -> Duration {
        Duration::from_secs(1u64 << self.unanswered.saturating_sub(1).min(10)).min(LONGEST_RETRY)
    }

    /// Until when it must not be acted on, whatever its verdict.
    pub(super) fn waits_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.max(self.echo_by).filter(|until| *until > now)
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
