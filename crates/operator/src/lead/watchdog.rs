//! Monitors from another thread whether the working thread makes progress.
//!
//! Watches, decisions and writes share one thread. Health probes and leader election run on another: a second of work
//! on thousands of objects must not fail a probe or lose the Lease. But a process that no longer works must not keep
//! the Lease either.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Interval at which the working thread signals progress.
const BEAT: Duration = Duration::from_secs(1);
/// A longer turn is reported: with tens of thousands of objects, turns take tenths of a second.
const BUSY: Duration = Duration::from_secs(10);
/// A longer turn is considered hung. The Lease is released, and `/healthz` fails so that this process is restarted. Not
/// earlier, because the next leader has the same objects and would take as long. Four times the Lease's duration, so
/// that requests in flight have been answered or lost.
const STUCK: Duration = Duration::from_secs(60);

/// Notices when the working thread stops making progress. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog(Option<Arc<Beats>>);

#[derive(Debug)]
struct Beats {
    origin: Instant,
    /// Milliseconds from the origin to the last beat.
    last: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Well,
    /// No progress for this long.
    Busy(Duration),
    /// No progress for this long, and none is expected.
    Stuck(Duration),
}

impl Watchdog {
    /// For a thread that is monitored from another one.
    pub(crate) fn new() -> Self {
        Self(Some(Arc::new(Beats { origin: Instant::now(), last: AtomicU64::new(0) })))
    }

    /// For a thread that monitors itself: if it runs the check, it makes progress.
    pub(crate) fn of_this_thread() -> Self {
        Self(None)
    }

    /// Beats as long as the thread that runs it makes progress.
    pub(crate) async fn beat(self) {
        loop {
            self.note();
            sleep(BEAT).await;
        }
    }

    fn note(&self) {
        if let Some(beats) = &self.0 {
            let now = u64::try_from(beats.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
            beats.last.store(now, Ordering::SeqCst);
        }
    }

    /// Time since the last beat.
    pub(crate) fn silence(&self) -> Duration {
        let Some(beats) = &self.0 else { return Duration::ZERO };
        let last = Duration::from_millis(beats.last.load(Ordering::SeqCst));
        beats.origin.elapsed().saturating_sub(last)
    }

    pub(crate) fn condition(&self) -> Condition {
        match self.silence() {
            silence if silence > STUCK => Condition::Stuck(silence),
            silence if silence > BUSY => Condition::Busy(silence),
            _ => Condition::Well,
        }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        matches!(self.condition(), Condition::Stuck(_))
    }
}

/// A thread with a runtime of its own. Tasks spawned there do not wait for tasks elsewhere. It ends when this is
/// dropped.
pub(crate) struct OwnThread {
    pub(crate) handle: Handle,
    stop: CancellationToken,
}

impl OwnThread {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(stopped.cancelled());
            // A blocked task must not delay the exit of the process.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop })
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_does_not_turn_is_busy_and_then_stuck() {
        let watchdog = Watchdog::new();
        let beating = tokio::spawn(watchdog.clone().beat());
        sleep(STUCK * 2).await;
        assert_eq!(watchdog.condition(), Condition::Well);
        beating.abort();
        sleep(BUSY + BEAT).await;
        assert!(matches!(watchdog.condition(), Condition::Busy(silence) if silence > BUSY));
        sleep(STUCK).await;
        assert!(watchdog.is_stuck());
        assert_eq!(Watchdog::of_this_thread().condition(), Condition::Well);
    }

    /// One thread hangs, as in endless work; the other goes on.
    #[tokio::test]
    async fn what_runs_on_its_own_thread_does_not_wait_for_this_one() {
        let own = OwnThread::start("beside").unwrap();
        let (asked, question) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = std::sync::mpsc::channel();
        own.handle.spawn(async move {
            while question.try_recv().is_err() {
                sleep(Duration::from_millis(1)).await;
            }
            answer.send(thread::current().name().map(str::to_owned)).unwrap();
        });
        asked.send(()).unwrap();
        // No await: this thread blocks until it has the answer.
        let name = answered.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(name.as_deref(), Some("beside"));
    }
}
