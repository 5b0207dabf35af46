//! Live looks, shared for a moment: a storm of pods on one node asks about it once a second, not once each.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long a live look holds.
const LOOK_HOLDS: Duration = Duration::from_secs(1);

/// What was last seen of each object by name. Clones share it.
#[derive(Debug)]
pub(crate) struct Looks<T>(Arc<Mutex<BTreeMap<String, Arc<Look<T>>>>>);

type Look<T> = tokio::sync::Mutex<Option<(Instant, Option<T>)>>;

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Looks<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> Looks<T> {
    /// What is there now, or was within the last moment.
    pub(crate) async fn at(
        &self,
        name: &str,
        read: impl Future<Output = kube::Result<Option<T>>>,
    ) -> kube::Result<Option<T>> {
        let look = self.looks().entry(name.to_owned()).or_default().clone();
        // Whoever comes second waits for the first one's answer.
        let mut look = look.lock().await;
        if let Some((taken, seen)) = &*look
            && taken.elapsed() < LOOK_HOLDS
        {
            return Ok(seen.clone());
        }
        let taken = Instant::now();
        let seen = read.await?;
        *look = Some((taken, seen.clone()));
        drop(look);
        self.forget_old();
        Ok(seen)
    }

    fn forget_old(&self) {
        let fresh = |look: &Arc<Look<T>>| match look.try_lock() {
            Ok(look) => look.as_ref().is_some_and(|(taken, _)| taken.elapsed() < LOOK_HOLDS),
            Err(_) => true,
        };
        self.looks().retain(|_, look| fresh(look));
    }

    fn looks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Look<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
