//! Lets a paused clock pass at a speed of our choice, so that a cluster with the timers of production can be watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use salvor_embedded::Cluster;
use tokio::sync::mpsc;

/// The clock is moved this often. A timer is late by no more than this, times the speed.
const TICK: Duration = Duration::from_millis(5);
/// A machine that slept, or is very busy, must not make every node look dead at once.
const LONGEST_LEAP: Duration = Duration::from_millis(250);

/// The cluster's time, for threads on which tokio's clock is another one.
#[derive(Clone, Debug)]
pub(super) struct SharedClock(Arc<AtomicI64>);

impl SharedClock {
    pub(super) fn showing(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.as_millisecond())))
    }

    pub(super) fn set(&self, now: Timestamp) {
        self.0.store(now.as_millisecond(), Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> Timestamp {
        // The speed was one before.
        Timestamp::from_millisecond(self.0.load(Ordering::Relaxed)).unwrap_or_default()
    }
}

/// Moves the paused clock of this runtime on, for ever.
///
/// The metronome is a blocking task on purpose: while one runs, tokio does not move a paused clock by itself.
pub(super) async fn keep_pace(speed: f64, cluster: Cluster, shown: SharedClock) {
    let (beat, mut beats) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        while beat.blocking_send(()).is_ok() {
            thread::sleep(TICK);
        }
    });
    let mut last = Instant::now();
    while beats.recv().await.is_some() {
        let passed = last.elapsed();
        last += passed;
        tokio::time::advance(passed.min(LONGEST_LEAP).mul_f64(speed)).await;
        shown.set(cluster.now());
    }
}
