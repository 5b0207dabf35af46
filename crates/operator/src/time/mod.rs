//! The time, here and at the API server.

pub(crate) mod broadcast;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use salvor_api::GoDuration;
use salvor_recovery::{ClockChange, ServerClock, brake::Held};
use tokio::time::{Instant, sleep};

use crate::{client::revision::History, time::broadcast::Broadcast};

/// Requeue delay while the server's clock is still unknown.
const CLOCK_UNKNOWN_PAUSE: Duration = Duration::from_secs(1);
/// Lower limit of a timer: two clocks that differ by a rounding must not cause a loop.
const SHORTEST_ALARM: Duration = Duration::from_millis(5);
/// If the server's clock is known less precisely than this, a timer is set early and then set again.
const ROUGHLY: SignedDuration = SignedDuration::from_millis(200);
/// Upper limit of a timer: the server's clock may be set forward meanwhile.
const LONGEST_ALARM: Duration = Duration::from_secs(600);

/// The output of a future, if it completes within the limit. Unlike tokio's timeout, it checks the time first: after a
/// pause of the process or the thread, an expired future is not polled again.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let end = Instant::now().checked_add(limit);
    let mut future = pin!(future);
    let mut alarm = pin!(sleep(limit));
    poll_fn(|context| {
        if end.is_some_and(|end| end <= Instant::now()) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        alarm.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// A configured duration; none of them may be negative.
pub(crate) fn std_duration(duration: GoDuration) -> Duration {
    Duration::try_from(SignedDuration::from(duration)).unwrap_or_default()
}

/// A clock that never jumps, together with what is known of the API server's clock. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Time(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoch: Timestamp,
    origin: Instant,
    server: Mutex<ServerClock>,
    /// Notified when the server's clock jumped forward, which makes timers by it wrong.
    skipped: Broadcast,
    /// The history of revisions that the server is in.
    history: History,
}

impl Time {
    /// Starts from the machine's wall clock and advances with tokio's, so that paused time moves it too.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where a process that is not simulated gets its time"
    )]
    pub(crate) fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// Shows `epoch` now, and advances with tokio's clock.
    pub(crate) fn starting_at(epoch: Timestamp) -> Self {
        Self(Arc::new(Inner {
            epoch,
            origin: Instant::now(),
            server: Mutex::default(),
            skipped: Broadcast::default(),
            history: History::default(),
        }))
    }

    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    pub(crate) fn local(&self) -> Timestamp {
        self.0.epoch + self.0.origin.elapsed()
    }

    /// The earliest time that the API server's clock can show now. Before its first answer, nothing counts as due.
    pub(crate) fn server(&self) -> Timestamp {
        self.server_clock().now(self.local()).unwrap_or(Timestamp::MIN)
    }

    /// The server's time as far as it is known, and ours before its first answer. Only for approximate uses.
    pub(crate) fn roughly(&self) -> Timestamp {
        let local = self.local();
        self.server_clock().now(local).unwrap_or(local)
    }

    /// When the API server's clock reaches a time, as an instant to sleep until.
    pub(crate) fn instant_when_server_shows(&self, at: Timestamp) -> Instant {
        // Before the server's clock is known nothing is due; check again soon, but not at once.
        let Some(local) = self.server_clock().local_when(at) else {
            return Instant::now() + CLOCK_UNKNOWN_PAUSE;
        };
        let now = self.local();
        // A clock that is known only roughly will be known better by then. A timer for the earliest possible time is
        // set again when it fires; one for the latest would be late.
        let roughly = self.server_clock().offset(now).filter(|(least, most)| *most - *least > ROUGHLY);
        let earliest = roughly.and_then(|(_, most)| at.checked_sub(most).ok());
        let local = earliest.filter(|earliest| earliest.duration_since(now) > ROUGHLY).unwrap_or(local);
        let ahead: SignedDuration = local.duration_since(now);
        let ahead = Duration::try_from(ahead).unwrap_or_default().clamp(SHORTEST_ALARM, LONGEST_ALARM);
        Instant::now() + ahead
    }

    /// Learns from the `Date` of an answer.
    pub(crate) fn learn(&self, sent: Timestamp, received: Timestamp, date: Timestamp) {
        let Some(change) = self.server_clock().learn(sent, received, date) else { return };
        tracing::warn!(%change, "server clock changed");
        match change {
            ClockChange::Adopted(_) => self.0.skipped.tell(),
            ClockChange::FarFromOurs(_) | ClockChange::Disputed(_) => {}
        }
    }

    /// Notifies when the server's clock jumped forward because an earlier clock no longer counts. Timers set before are
    /// late by up to [`LONGEST_ALARM`].
    pub(crate) fn skipped(&self) -> &Broadcast {
        &self.0.skipped
    }

    /// Blocks irreversible steps while the time, or the age of the API's state, is uncertain.
    pub(crate) fn unsettled(&self) -> Option<Held> {
        self.clocks_disagree().or_else(|| self.just_restored())
    }

    /// Blocks them for a while after the API has gone back to an earlier state.
    pub(crate) fn just_restored(&self) -> Option<Held> {
        let left = self.0.history.settles_in()?;
        let until = self.roughly().checked_add(left).unwrap_or(Timestamp::MAX);
        Some(Held::JustRestored { until })
    }

    /// Blocks them while it is uncertain which of several clocks is right.
    pub(crate) fn clocks_disagree(&self) -> Option<Held> {
        let (local, clock) = (self.local(), self.server_clock());
        let left = clock.settles_in(local)?;
        let until = clock.now(local)?.checked_add(left).unwrap_or(Timestamp::MAX);
        Some(Held::ClockUnsettled { clocks: clock.clocks(), until })
    }

    /// The number of different clocks in recent answers of the server.
    pub(crate) fn clocks(&self) -> usize {
        self.server_clock().clocks()
    }

    /// How many seconds the server's clock is ahead of ours, at least and at most.
    pub(crate) fn offset_seconds(&self) -> Option<(f64, f64)> {
        let (least, most) = self.server_clock().offset(self.local())?;
        Some((least.as_secs_f64(), most.as_secs_f64()))
    }

    fn server_clock(&self) -> MutexGuard<'_, ServerClock> {
        // Every change is atomic, so a panic elsewhere leaves no partial state.
        self.0.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_wakes_up_after_its_time_does_nothing_more() {
        let second = Duration::from_secs(1);
        assert_eq!(within(second, async { 7 }).await, Some(7));
        assert_eq!(within(second, sleep(second * 2)).await, None);
        assert_eq!(within(Duration::MAX, sleep(second)).await, Some(()));
        // The thread hangs between the first and the second poll of the future.
        let sent = std::cell::Cell::new(false);
        let write = async {
            tokio::task::yield_now().await;
            sent.set(true);
        };
        let (written, ()) = tokio::join!(within(second, write), tokio::time::advance(second * 2));
        assert_eq!((written, sent.get()), (None, false));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_comes_early_while_the_servers_clock_is_known_only_roughly() {
        let time = Time::starting_at(Timestamp::UNIX_EPOCH);
        let deadline = Timestamp::from_second(60).unwrap();
        let ahead = |time: &Time| time.instant_when_server_shows(deadline).duration_since(Instant::now());
        assert_eq!(ahead(&time), CLOCK_UNKNOWN_PAUSE);
        // Ahead of ours by 0 to 1 second: a `Date` is no more precise.
        time.learn(time.local(), time.local(), time.local());
        assert_eq!(ahead(&time), Duration::from_secs(59));
        // Known better: then the latest possible time counts.
        time.learn(time.local(), time.local(), time.local() - Duration::from_millis(950));
        assert!((Duration::from_secs(60)..Duration::from_secs(61)).contains(&ahead(&time)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_forward_is_noticed_by_what_waits_for_long() {
        let time = Time::starting_at(Timestamp::UNIX_EPOCH);
        let deadline = Timestamp::from_second(1_000_000).unwrap();
        let wake = |time: &Time| time.instant_when_server_shows(deadline);
        let answer = |time: &Time, ahead: u64| {
            time.learn(time.local(), time.local(), time.local() + Duration::from_secs(ahead));
        };
        answer(&time, 0);
        let mut looks = 0;
        let set = Instant::now() + Duration::from_secs(3_600);
        while time.server() < deadline {
            tokio::time::sleep_until(wake(&time).min(Instant::now() + Duration::from_secs(60))).await;
            answer(&time, if Instant::now() < set { 0 } else { 1_000_000 });
            looks += 1;
        }
        let late = Instant::now() - set;
        assert!(late < Duration::from_secs(1_000), "{late:?} after {looks} looks");
        assert!(time.unsettled().is_some(), "and nothing irreversible is done at once");
    }
}
