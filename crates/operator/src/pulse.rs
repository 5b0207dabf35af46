//! Watches whether the working thread still turns, from a thread beside it that must not wait for it.
//!
//! Watching, judging and writing share one thread. Whether this process lives, and whether it leads, is asked on another one:
//! a second of work on thousands of objects must cost neither a probe nor the lease. But a process that does not work any
//! more must not keep the lease either.

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

/// The working thread shows this often that it turns.
const BEAT: Duration = Duration::from_secs(1);
/// A turn that takes longer is worth telling of: with tens of thousands of objects, turns take tenths of a second.
const BUSY: Duration = Duration::from_secs(10);
/// A turn that takes longer will not end. The lease goes to another replica, and `/healthz` fails, so that this one is started
/// again. Not earlier: who takes over has the same objects before it, and whatever takes this one long takes that one long.
/// Four times the lease's own duration, so what was sent before has been answered or lost.
const STUCK: Duration = Duration::from_secs(60);

/// The signs of life of the working thread. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Pulse(Option<Arc<Beats>>);

#[derive(Debug)]
struct Beats {
    origin: Instant,
    /// Milliseconds from the origin to the last beat.
    last: AtomicU64,
}

/// The state of the working thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The thread turns.
    Well,
    /// The thread has not made a turn for this long.
    Busy(Duration),
    /// The thread has not made a turn for this long, and will not.
    Stuck(Duration),
}

impl Pulse {
    /// Of a thread that is looked at from another one.
    pub(crate) fn new() -> Self {
        Self(Some(Arc::new(Beats { origin: Instant::now(), last: AtomicU64::new(0) })))
    }

    /// Of a thread that is also the one that asks: it turns, or nobody would ask.
    pub(crate) fn of_this_thread() -> Self {
        Self(None)
    }

    /// Beats for as long as the thread turns on which it is run.
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

    /// The time since the thread last made a turn.
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

/// A thread with a runtime of its own. What is spawned there does not wait for what is spawned elsewhere. It ends when this
/// is dropped.
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
            // Whatever is still blocked somewhere must not hold the process up.
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
        let pulse = Pulse::new();
        let beating = tokio::spawn(pulse.clone().beat());
        sleep(STUCK * 2).await;
        assert_eq!(pulse.condition(), Condition::Well);
        beating.abort();
        sleep(BUSY + BEAT).await;
        assert!(matches!(pulse.condition(), Condition::Busy(silence) if silence > BUSY));
        sleep(STUCK).await;
        assert!(pulse.is_stuck());
        assert_eq!(Pulse::of_this_thread().condition(), Condition::Well);
    }

    /// One thread stands still, as in work without an end; the other goes on.
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
        // No await: this thread does not turn until it has the answer.
        let name = answered.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(name.as_deref(), Some("beside"));
    }
}
