//! Lets nodes fail, and heals them, at their times. Failures of one node may overlap: the worst of them counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use salvor_nodes::{Fault as MachineFault, Fleet, FleetError};

use crate::scenario::{Fault, Incident, tell_condition};

/// What is to be done, and what each node suffers from.
#[derive(Debug)]
pub struct Agenda<'a> {
    incidents: &'a [Incident],
    /// The time, whether the failure begins, and which it is. Ends come first, so that a failure can follow another at once.
    todo: BTreeSet<(Duration, bool, usize)>,
    /// By node: the failures that it suffers from.
    active: BTreeMap<&'a str, BTreeSet<usize>>,
    /// By node: what was done to its machine last.
    done: BTreeMap<&'a str, MachineFault>,
}

impl<'a> Agenda<'a> {
    /// Everything that these failures do.
    pub fn new(incidents: &'a [Incident]) -> Self {
        let mut todo = BTreeSet::new();
        for (index, incident) in incidents.iter().enumerate() {
            todo.insert((incident.at, true, index));
            todo.extend(
                incident.until.filter(|until| *until > incident.at).map(|until| (until, false, index)),
            );
        }
        Self { incidents, todo, active: BTreeMap::new(), done: BTreeMap::new() }
    }

    /// When something is to be done next.
    pub fn next(&self) -> Option<Duration> {
        self.todo.first().map(|(at, ..)| *at)
    }

    /// Does the next thing, now.
    pub async fn act(&mut self, fleet: &Fleet, client: &Client, now: Timestamp) {
        let Some((_, begins, index)) = self.todo.pop_first() else { return };
        let incident = &self.incidents[index];
        for node in &incident.nodes {
            let active = self.active.entry(node).or_default();
            if begins {
                active.insert(index);
            } else {
                active.remove(&index);
            }
            let struck = match &incident.fault {
                Fault::Sick(condition) => {
                    // A node that was replaced since is gone.
                    let _ = tell_condition(client, node, condition, begins, now).await;
                    Ok(())
                }
                Fault::Reboot => {
                    active.remove(&index);
                    if self.done.contains_key(node.as_str()) { Ok(()) } else { fleet.reboot(node).await }
                }
                Fault::Crash
                | Fault::Partition
                | Fault::KubeletStop
                | Fault::Slow(_)
                | Fault::Flapping { .. } => self.settle(fleet, node).await,
            };
            // Names were checked against the list that the nodes were made from. A node that was replaced since is gone.
            let _ = struck;
        }
    }

    /// Makes the machine of a node suffer from the worst that happens to it.
    async fn settle(&mut self, fleet: &Fleet, node: &'a str) -> Result<(), FleetError> {
        let active = self.active.get(node).into_iter().flatten();
        let faults = active.filter_map(|index| machine_fault(&self.incidents[*index].fault));
        let worst = faults.max_by_key(|(weight, _)| *weight).map(|(_, fault)| fault);
        if worst == self.done.get(node).copied() {
            return Ok(());
        }
        match worst {
            Some(fault) => {
                let was_off = self.done.insert(node, fault) == Some(MachineFault::Crash);
                if was_off {
                    // A machine that is switched on while it is cut off.
                    fleet.boot_cut_off(node).await?;
                }
                fleet.inject(node, fault).await
            }
            None => {
                self.done.remove(node);
                fleet.heal(node).await
            }
        }
    }
}

/// The fault of the machine, and how bad it is.
fn machine_fault(fault: &Fault) -> Option<(u8, MachineFault)> {
    match fault {
        Fault::Crash => Some((5, MachineFault::Crash)),
        Fault::KubeletStop => Some((4, MachineFault::KubeletStop)),
        Fault::Partition => Some((3, MachineFault::Partition)),
        Fault::Flapping { down, up } => Some((2, MachineFault::Flap { down: *down, up: *up })),
        Fault::Slow(delay) => Some((1, MachineFault::Slow(*delay))),
        Fault::Sick(_) | Fault::Reboot => None,
    }
}
