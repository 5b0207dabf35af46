//! Wall-clock time that follows tokio's clock, so that it works under a paused clock too.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The time source of the simulation: wall time on a normal runtime, virtual time on a paused one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Timestamp,
    origin: Instant,
}

impl Clock {
    /// A clock that agrees with the machine's wall clock now and advances with tokio's.
    #[expect(
        clippy::disallowed_methods,
        reason = "where nodes that are not simulated in virtual time get theirs"
    )]
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// A clock that shows `epoch` now and advances with tokio's.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self { epoch, origin: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        self.epoch + self.origin.elapsed()
    }

    /// The tokio instant of a timestamp; a past one is "now".
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        let ahead: SignedDuration = at.duration_since(self.now());
        Instant::now() + Duration::try_from(ahead).unwrap_or_default()
    }
}
