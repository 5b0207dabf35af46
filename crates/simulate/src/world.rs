//! A cluster with its nodes.

use jiff::Timestamp;
use salvor_api::config::Configuration;
use salvor_embedded::{Cluster, Faults, Settings};
use salvor_nodes::{Clock, Fleet, FleetOptions, Timers};

use crate::{history::History, line::Line, process::Process};

/// How a world begins.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// What all that is random follows from.
    pub seed: u64,
    /// The time at its beginning.
    pub start: Timestamp,
    /// The clockwork of its kubelets.
    pub kubelets: Timers,
}

impl WorldOptions {
    /// A world of this seed, with a kubelet's usual timers.
    pub fn seeded(seed: u64) -> Self {
        // 2026-01-01T00:00:00Z: any time would do, as long as it is always the same.
        let start = Timestamp::constant(1_767_225_600, 0);
        Self { seed, start, kubelets: Timers::default() }
    }
}

/// An API server and simulated nodes. Make it within [`in_virtual_time`](crate::in_virtual_time).
#[derive(Debug)]
pub struct World {
    cluster: Cluster,
    fleet: Fleet,
}

impl World {
    /// Begins a world without nodes.
    pub fn new(options: &WorldOptions) -> Self {
        let WorldOptions { seed, start, kubelets } = *options;
        let cluster = Cluster::new(Settings { seed, start, ..Settings::default() });
        // Another stream of chance than the server's, so that one more node does not change every UID.
        let seed = seed.rotate_left(32) ^ 0x6e6f_6465_73;
        let clock = Clock::starting_at(cluster.now());
        let fleet = Fleet::start(cluster.client(), FleetOptions { clock, seed, timers: kubelets });
        Self { cluster, fleet }
    }

    /// The API server.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The nodes.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Records all that happens from now on.
    pub fn history(&self) -> History {
        History::of(&self.cluster)
    }

    /// Starts an operator on a line without faults.
    pub fn operator(&self, identity: &str, configuration: &Configuration) -> Process {
        Process::start(&self.cluster, identity, configuration, Line::default(), &Faults::default())
    }
}
