//! Whether Salvor is installed in this cluster, who leads, and how it is configured.

use k8s_openapi::api::coordination::v1::Lease;
use salvor_api::{
    config::{Configuration, LeaderElection},
    names::annotations,
};
use salvor_operator::{InCluster, Published};

use crate::{
    kinds::{DEPLOYMENT, LEASE},
    world::{Seen, World},
};

/// The name of all objects of an installation.
pub(crate) const NAME: &str = "salvor";

/// The configuration that diagnoses are based on.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    /// The configuration of a file, for "what if". `None` to use the one that runs in the cluster.
    pub file: Option<Configuration>,
}

pub(crate) struct Installed {
    pub(crate) configuration: Configuration,
    pub(crate) lease: Option<Lease>,
    /// The holder of the Lease, if the Lease has not expired.
    pub(crate) leader: Option<String>,
    /// With a configuration file and no Lease this is false: "what if" assumes that a replica would lead.
    pub(crate) no_leader: bool,
}

pub(crate) enum Presence {
    Here(Box<Installed>),
    Absent,
    Unknown,
}

impl Judge {
    fn election(&self) -> LeaderElection {
        self.file.clone().unwrap_or_default().leader_election
    }

    pub(crate) fn presence(&self, world: &World) -> Presence {
        let LeaderElection { lease_namespace, lease_name, .. } = self.election();
        let lease = match world.get(&LEASE, &lease_namespace, &lease_name) {
            Seen::Here(lease) => serde_json::from_value::<Lease>(lease.clone()).ok(),
            Seen::Absent => None,
            Seen::Unknown if self.file.is_none() => return Presence::Unknown,
            Seen::Unknown => None,
        };
        let leader = lease.as_ref().and_then(|lease| Published::leader(lease, world.now));
        let leader = leader.map(str::to_owned);
        if let Some(configuration) = self.file.clone() {
            let no_leader = lease.is_some() && leader.is_none();
            return Presence::Here(Box::new(Installed { configuration, lease, leader, no_leader }));
        }
        let no_leader = leader.is_none();
        let Some(lease) = lease else {
            // It may be installed although no replica has led yet.
            if world.get(&DEPLOYMENT, &lease_namespace, NAME).here().is_none() {
                return Presence::Absent;
            }
            let configuration = Configuration::default();
            return Presence::Here(Box::new(Installed { configuration, lease: None, leader, no_leader }));
        };
        let published = Published::read(&lease).and_then(|published| published.configuration);
        let configuration = published.unwrap_or_else(|| {
            world.miss(
                "the configuration that Salvor runs with",
                format!(
                    "Lease {lease_namespace}/{lease_name} has no annotation {} that can be read: the defaults were taken",
                    annotations::STATUS
                ),
            );
            Configuration::default()
        });
        Presence::Here(Box::new(Installed { configuration, lease: Some(lease), leader, no_leader }))
    }

    /// Names the configuration that the answer is based on, and on further lines a pause and the brake while they hold.
    pub fn told(&self, world: &World) -> String {
        if self.file.is_some() {
            return "Judged by the given configuration, and not by that of a running operator".to_owned();
        }
        let election = self.election();
        let LeaderElection { lease_namespace, lease_name, .. } = &election;
        match world.get(&LEASE, lease_namespace, lease_name) {
            Seen::Unknown => {
                let why = world.refusal_of(&LEASE, lease_namespace, lease_name).unwrap_or("it was not read");
                InCluster::unseen(&election, why).told
            }
            Seen::Absent => InCluster::of(None, &election, world.now).told,
            Seen::Here(lease) => {
                let lease = serde_json::from_value::<Lease>(lease.clone()).unwrap_or_default();
                let running = InCluster::of(Some(&lease), &election, world.now);
                let paused = running.pause.map(|pause| format!("\nSalvor is {pause}"));
                let held = running.held.map(|held| format!("\nThe brake holds: {held}"));
                let zones: Vec<String> = running.zones_held.into_iter().collect();
                let zones = (held.is_none() && !zones.is_empty())
                    .then(|| format!("\nThe brake holds everything in zone {}", zones.join(", ")));
                [Some(running.told), paused, held, zones].into_iter().flatten().collect()
            }
        }
    }
}
