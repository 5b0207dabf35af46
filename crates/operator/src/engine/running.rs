//! Starts the engine of each enabled recovery.

use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    engine::{Engine, recovery::Recovery, shared::Shared},
    tasks,
    watch_set::feeds::{Feeds, Hub},
    webhooks::Keyring,
};

/// The started recoveries, and everything that further ones need.
pub(crate) struct Running {
    pub(crate) hub: Hub,
    /// The keys that webhooks sign with.
    pub(crate) keyring: Keyring,
    pub(crate) shared: Shared,
    pub(crate) stop: CancellationToken,
    pub(crate) engines: Vec<AbortOnDropHandle<()>>,
}

impl Running {
    /// Starts a recovery that acts on at most `at_once` subjects at a time.
    pub(crate) fn start<R: Recovery>(&mut self, recovery: R, at_once: usize) {
        let (feeds, inbox) = Feeds::new(self.hub.clone());
        let shared = Shared { at_once, ..self.shared.clone() };
        let engine = Engine::new(recovery, shared, feeds);
        self.engines.push(AbortOnDropHandle::new(tasks::spawn(engine.run(inbox, self.stop.clone()))));
        tracing::info!(recovery = R::NAME, "recovery started");
    }
}

/// Converts a setting to the number of concurrent attempts, at least one.
pub(crate) fn at_once(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).max(1)
}
