//! Advances a paused clock at a chosen speed, so that people can watch a cluster with production timers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use salvor_apiserver::Cluster;
use tokio::sync::mpsc;

/// How often the clock advances. A timer fires late by at most this, times the speed.
const TICK: Duration = Duration::from_millis(5);
/// Limits the step after the machine slept or was busy. Otherwise all nodes would look dead at once.
const LONGEST_LEAP: Duration = Duration::from_millis(250);

/// The cluster's time, for threads with another tokio clock.
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
        // Only valid timestamps are stored.
        Timestamp::from_millisecond(self.0.load(Ordering::Relaxed)).unwrap_or_default()
    }
}

/// Advances the paused clock of this runtime forever.
///
/// The ticker is a blocking task on purpose: while one runs, tokio does not auto-advance a paused clock.
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
