//! Starts the engine of each recovery that is switched on.

use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    engine::Engine,
    feeds::{Feeds, Hub},
    recovery::Recovery,
    shared::Shared,
    tasks,
    webhooks::Keyring,
};

/// The recoveries that are started so far, and everything that further ones need.
pub(crate) struct Running {
    pub(crate) hub: Hub,
    /// The keys that webhooks sign with.
    pub(crate) keyring: Keyring,
    pub(crate) shared: Shared,
    pub(crate) stop: CancellationToken,
    pub(crate) engines: Vec<AbortOnDropHandle<()>>,
}

impl Running {
    /// Starts a recovery that acts on so many subjects at once.
    pub(crate) fn start<R: Recovery>(&mut self, recovery: R, at_once: usize) {
        let (feeds, inbox) = Feeds::new(self.hub.clone());
        let shared = Shared { at_once, ..self.shared.clone() };
        let engine = Engine::new(recovery, shared, feeds);
        self.engines.push(AbortOnDropHandle::new(tasks::spawn(engine.run(inbox, self.stop.clone()))));
        tracing::info!(recovery = R::NAME, "started");
    }
}

/// A setting as the number of subjects that are acted on at once.
pub(crate) fn at_once(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX).max(1)
}
