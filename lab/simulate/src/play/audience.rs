//! Observers of a play.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use salvor_apiserver::Change;
use salvor_operator::Notice;
use salvor_why::Overview;

/// An observer that sees all that happens in a play. It is called synchronously, so it adds no task and no timer to the
/// play: the history is the same with and without it.
pub trait Audience: Send + 'static {
    fn change(&mut self, change: &Change<'_>);
    /// The operator decided or did something.
    fn notice(&mut self, at: Timestamp, notice: &Notice);
    /// All work runs: the reported time begins here.
    fn began(&mut self, at: Timestamp);
    /// The play is over. `missing` lists what does not come back.
    fn ended(&mut self, at: Timestamp, missing: &Overview);
}

pub(super) struct Nobody;

impl Audience for Nobody {
    fn change(&mut self, _: &Change<'_>) {}
    fn notice(&mut self, _: Timestamp, _: &Notice) {}
    fn began(&mut self, _: Timestamp) {}
    fn ended(&mut self, _: Timestamp, _: &Overview) {}
}

/// An observer that the play shares with its caller.
pub type Seat<A> = Arc<Mutex<A>>;

pub(super) fn tell<A: Audience>(seat: &Seat<A>, tell: impl FnOnce(&mut A)) {
    tell(&mut seat.lock().unwrap_or_else(PoisonError::into_inner));
}
