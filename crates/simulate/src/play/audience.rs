//! Whoever looks on while a scenario is played.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use salvor_embedded::Change;
use salvor_operator::Notice;
use salvor_why::Overview;

/// Somebody who sees all that happens in a play. It is told within the calls that make it happen, so no task and no timer comes to
/// those of the play: the history is the same with and without it.
pub trait Audience: Send + 'static {
    /// An object was written or removed.
    fn change(&mut self, change: &Change<'_>);
    /// The operator judged or did something.
    fn notice(&mut self, at: Timestamp, notice: &Notice);
    /// All work runs: the time of the report begins.
    fn began(&mut self, at: Timestamp);
    /// The play is over. This does not come back.
    fn ended(&mut self, at: Timestamp, missing: &Overview);
}

/// Nobody looks on.
pub(super) struct Nobody;

impl Audience for Nobody {
    fn change(&mut self, _: &Change<'_>) {}
    fn notice(&mut self, _: Timestamp, _: &Notice) {}
    fn began(&mut self, _: Timestamp) {}
    fn ended(&mut self, _: Timestamp, _: &Overview) {}
}

/// An audience that the play shares with whoever started it.
pub type Seat<A> = Arc<Mutex<A>>;

/// Tells the audience something.
pub(super) fn tell<A: Audience>(seat: &Seat<A>, tell: impl FnOnce(&mut A)) {
    tell(&mut seat.lock().unwrap_or_else(PoisonError::into_inner));
}
