//! Feeds node changes to the brake, and reports when the brake engages or releases. One instance serves all recoveries
//! of an operator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use salvor_recovery::brake::{Brake, Transition};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    engine::shared::{Shared, tell},
    lead::Term,
    watch_set::{
        nodes::table::{Node, Table},
        watch::Change,
    },
};

/// Clones share the state.
#[derive(Clone)]
pub(crate) struct BrakeKeeper {
    shared: Shared,
    ready_within: SignedDuration,
    state: Arc<Mutex<State>>,
    /// Notified when the time of the next recount changes.
    rescheduled: Arc<Notify>,
}

#[derive(Default)]
struct State {
    nodes: Table,
    /// The term in which we record events; `None` while we follow.
    led: Option<Term>,
    /// When the nodes are counted again without a change.
    recount_at: Option<Instant>,
}

impl BrakeKeeper {
    /// Counts nodes that are Ready, or were within this time.
    pub(crate) fn new(shared: Shared, ready_within: SignedDuration) -> Self {
        Self { shared, ready_within, state: Arc::default(), rescheduled: Arc::default() }
    }

    /// Applies changes of nodes, and updates the brake.
    pub(crate) fn apply(&self, changes: &[Change<Arc<Node>>]) {
        let mut changed = false;
        for change in changes {
            changed |= self.state().nodes.apply(change);
        }
        if changed {
            self.update_brake();
        }
    }

    /// Follows leadership, and recounts when time alone changes the count.
    pub(crate) async fn run(&self) {
        let leadership = self.shared.leadership.clone();
        let clock_skipped = self.shared.time.skipped().listen();
        loop {
            let (led, recount_at) = {
                let state = self.state();
                (state.led, state.recount_at)
            };
            let recount = async {
                match recount_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = leadership.changed(led) => self.lead(leadership.term()),
                () = self.rescheduled.notified() => {}
                () = clock_skipped.notified() => drop(self.update_brake()),
                () = recount => {
                    self.update_brake();
                    // Nodes that are lost for too long no longer count and block nothing.
                    self.shared.released.tell();
                }
            }
        }
    }

    /// A term begins or ends. A new leader records the current state again, because it may have changed while this
    /// replica followed. The event has a fixed name, so it is stored once.
    fn lead(&self, term: Option<Term>) {
        self.state().led = term;
        if term.is_none() {
            return;
        }
        if !self.update_brake()
            && let Some(engaged) = self.brake().engaged()
        {
            self.announce(&Transition::Engaged(engaged));
        }
        let now = self.shared.time.server();
        let lost = self.brake().lost(now).map(|lost| lost.event(self.shared.home.clone()));
        if let Some(event) = lost {
            tell(&self.shared, term, event);
        }
    }

    /// Returns whether the brake engaged or released.
    fn update_brake(&self) -> bool {
        let now = self.shared.time.server();
        let Some(tally) = self.state().nodes.tally(now, self.ready_within) else { return false };
        let tallied_until = tally.changes_at;
        let (transition, zone_let_go, holds_all, changes_at) = {
            let mut brake = self.brake();
            let down = brake.zones_down();
            let transition = brake.observe(now, tally);
            let zone_let_go = !down.is_subset(&brake.zones_down());
            (transition, zone_let_go, brake.holds_all(now), brake.changes_at(now))
        };
        if zone_let_go {
            // The cluster as a whole does not change, but subjects that the zone blocked must be decided again.
            self.shared.save_brake_state_soon();
            self.shared.released.tell();
        }
        let next = [tallied_until, changes_at].into_iter().flatten().min();
        self.state().recount_at = next.map(|at| self.shared.time.instant_when_server_shows(at));
        self.rescheduled.notify_one();
        self.shared.metrics.brake_engaged(holds_all);
        let Some(transition) = transition else { return false };
        self.shared.save_brake_state_soon();
        match transition {
            Transition::Engaged(_) => {}
            // Decide blocked subjects again: now it is known how long they wait.
            Transition::Settling { .. } | Transition::Released(_) => self.shared.released.tell(),
        }
        self.announce(&transition);
        true
    }

    fn announce(&self, transition: &Transition) {
        let led = self.state().led;
        if led.is_some() {
            let why = transition.to_string();
            match transition {
                Transition::Engaged(_) => tracing::warn!(why, "brake engaged"),
                Transition::Settling { .. } => tracing::warn!(why, "brake settling"),
                Transition::Released(_) => tracing::warn!(why, "brake released"),
            }
        }
        if let Some(event) = transition.event(self.shared.home.clone()) {
            tell(&self.shared, led, event);
        }
    }

    fn brake(&self) -> MutexGuard<'_, Brake> {
        self.shared.brake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn holds_all(&self) -> bool {
        self.brake().holds_all(self.shared.time.server())
    }

    /// Sets the zones: the name, the lost nodes and the total nodes of each.
    #[cfg(test)]
    pub(crate) fn see(&self, zones: &[(&str, u32, u32)]) {
        self.state().nodes = Table::of(zones);
        self.update_brake();
    }
}
