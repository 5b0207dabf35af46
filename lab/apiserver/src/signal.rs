//! A value that many tasks wait on, woken in the order in which they began to wait.
//!
//! Tokio's watch channel wakes them in a random order: then one seed would not give one history.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The value, and the tasks that wait for a change. Clones are the same signal.
#[derive(Debug, Clone, Default)]
pub struct Signal<T>(Arc<Shared<T>>);

#[derive(Debug, Default)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State<T> {
    value: T,
    version: u64,
}

/// Waits for changes that it has not seen.
#[derive(Debug)]
pub struct Listener<T> {
    signal: Signal<T>,
    seen: u64,
}

impl<T: Copy> Signal<T> {
    /// Changes the value and wakes those who wait.
    pub fn set(&self, value: T) {
        {
            let mut state = self.state();
            state.value = value;
            state.version += 1;
        }
        self.0.changed.notify_waiters();
    }

    /// A listener that has seen all changes so far.
    pub fn listen(&self) -> Listener<T> {
        let seen = self.state().version;
        Listener { signal: self.clone(), seen }
    }

    /// Waits until the value satisfies a condition.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(T) -> bool) {
        loop {
            // Register before checking, so that no change is missed.
            let changed = self.0.changed.notified();
            if wanted(self.state().value) {
                return;
            }
            changed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy> Listener<T> {
    /// Marks all changes so far as seen.
    pub fn catch_up(&mut self) {
        self.seen = self.signal.state().version;
    }

    /// Waits for an unseen change, and marks it as seen.
    pub async fn changed(&mut self) {
        loop {
            let changed = self.signal.0.changed.notified();
            let version = self.signal.state().version;
            if version != self.seen {
                self.seen = version;
                return;
            }
            changed.await;
        }
    }
}
