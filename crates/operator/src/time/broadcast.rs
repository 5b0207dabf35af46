//! Wakes all recoveries of a process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A notification to all recoveries, in the order in which they were started: the brake released, or the server's clock
/// jumped forward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Broadcast(Arc<Mutex<Vec<Arc<Notify>>>>);

impl Broadcast {
    pub(crate) fn listen(&self) -> Arc<Notify> {
        let listener = Arc::new(Notify::new());
        self.all().push(listener.clone());
        listener
    }

    pub(crate) fn tell(&self) {
        self.all().iter().for_each(|listener| listener.notify_one());
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
