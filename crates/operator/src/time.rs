//! Which time it is: here, and at the API server.

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

use crate::{revision::History, shared::Bell};

/// The first answer with the server's time is awaited for this long.
const CLOCK_UNKNOWN_PAUSE: Duration = Duration::from_secs(1);
/// An alarm never rings at once: two clocks that disagree by a rounding must not make a loop of it.
const SHORTEST_ALARM: Duration = Duration::from_millis(5);
/// Not knowing the server's clock better than this is worth a second alarm.
const ROUGHLY: SignedDuration = SignedDuration::from_millis(200);
/// A later time is checked again after this: the server's clock may have been set forward meanwhile.
const LONGEST_ALARM: Duration = Duration::from_secs(600);

/// What comes of a future, if that is within this time. Unlike with tokio's own, the time is looked at first: after a pause of
/// the whole process, or of the thread, nothing more is done by a future whose time was over meanwhile.
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

/// A configured duration as the standard library has it; none of ours may be negative.
pub(crate) fn std_duration(duration: GoDuration) -> Duration {
    Duration::try_from(SignedDuration::from(duration)).unwrap_or_default()
}

/// A clock that never jumps, together with what is known of the API server's. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Time(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoch: Timestamp,
    origin: Instant,
    server: Mutex<ServerClock>,
    /// Alarms by the server's clock are wrong: it went forward by more than the time that passed.
    skipped: Bell,
    /// Which history the server is in.
    history: History,
}

impl Time {
    /// Starts from the machine's wall clock and goes on by tokio's, so that paused time moves it too.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where a process that is not simulated gets its time"
    )]
    pub(crate) fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// Shows `epoch` now, and goes on by tokio's clock.
    pub(crate) fn starting_at(epoch: Timestamp) -> Self {
        Self(Arc::new(Inner {
            epoch,
            origin: Instant::now(),
            server: Mutex::default(),
            skipped: Bell::default(),
            history: History::default(),
        }))
    }

    /// The history that the server is in, for whoever reads revisions.
    pub(crate) fn history(&self) -> &History {
        &self.0.history
    }

    /// The time here.
    pub(crate) fn local(&self) -> Timestamp {
        self.0.epoch + self.0.origin.elapsed()
    }

    /// The earliest time that the API server's clock can show now; before its first answer, nothing is known to be due.
    pub(crate) fn server(&self) -> Timestamp {
        self.server_clock().now(self.local()).unwrap_or(Timestamp::MIN)
    }

    /// The server's time as far as it is known, and ours before its first answer: for what only has to be near.
    pub(crate) fn roughly(&self) -> Timestamp {
        let local = self.local();
        self.server_clock().now(local).unwrap_or(local)
    }

    /// When the API server's clock will have reached a time, as an instant to sleep until.
    pub(crate) fn instant_when_server_shows(&self, at: Timestamp) -> Instant {
        // Before the server's clock is known nothing is due; it is looked at again soon, not at once.
        let Some(local) = self.server_clock().local_when(at) else {
            return Instant::now() + CLOCK_UNKNOWN_PAUSE;
        };
        let now = self.local();
        // A clock that is known only roughly will be known better by then: an alarm for the earliest possible time is set
        // anew when it rings, one for the latest would come late.
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
        tracing::warn!("{change}");
        match change {
            ClockChange::Adopted(_) => self.0.skipped.tell(),
            ClockChange::FarFromOurs(_) | ClockChange::Disputed(_) => {}
        }
    }

    /// Tells that the server's clock went forward, because an earlier one does not count any more. Alarms that were set before come
    /// too late, by up to [`LONGEST_ALARM`].
    pub(crate) fn skipped(&self) -> &Bell {
        &self.0.skipped
    }

    /// The hold on irreversible steps while it is not certain which time it is, or how old the state of the API is.
    pub(crate) fn unsettled(&self) -> Option<Held> {
        self.clocks_disagree().or_else(|| self.just_restored())
    }

    /// The hold after the API has gone back to an earlier state.
    pub(crate) fn just_restored(&self) -> Option<Held> {
        let left = self.0.history.settles_in()?;
        let until = self.roughly().checked_add(left).unwrap_or(Timestamp::MAX);
        Some(Held::JustRestored { until })
    }

    /// The hold while it is not certain which of several clocks is right.
    pub(crate) fn clocks_disagree(&self) -> Option<Held> {
        let (local, clock) = (self.local(), self.server_clock());
        let left = clock.settles_in(local)?;
        let until = clock.now(local)?.checked_add(left).unwrap_or(Timestamp::MAX);
        Some(Held::ClockUnsettled { clocks: clock.clocks(), until })
    }

    /// The number of different clocks the server's answers told lately.
    pub(crate) fn clocks(&self) -> usize {
        self.server_clock().clocks()
    }

    /// The server's clock is ahead of ours by this many seconds, at least and at most.
    pub(crate) fn offset_seconds(&self) -> Option<(f64, f64)> {
        let (least, most) = self.server_clock().offset(self.local())?;
        Some((least.as_secs_f64(), most.as_secs_f64()))
    }

    fn server_clock(&self) -> MutexGuard<'_, ServerClock> {
        // Every change is a whole one: a panic elsewhere leaves no half of it.
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
        // The thread stands still between the future's first step and its second one.
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
        // Ahead of ours by nothing to a second: a `Date` has no more.
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
