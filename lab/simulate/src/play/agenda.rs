//! Makes nodes fail and heal on schedule. Failures of one node may overlap: the worst of them counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use salvor_nodes::{Fault as MachineFault, Fleet, FleetError};

use crate::scenario::{Fault, Incident, tell_condition};

/// The pending actions, and the failures of each node.
#[derive(Debug)]
pub struct Agenda<'a> {
    incidents: &'a [Incident],
    /// The time, whether the failure begins, and its index. Ends sort first, so that one failure can follow another at
    /// once.
    todo: BTreeSet<(Duration, bool, usize)>,
    /// The active failures of each node.
    active: BTreeMap<&'a str, BTreeSet<usize>>,
    /// The fault that was last applied to the machine of each node.
    done: BTreeMap<&'a str, MachineFault>,
}

impl<'a> Agenda<'a> {
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

    pub fn next(&self) -> Option<Duration> {
        self.todo.first().map(|(at, ..)| *at)
    }

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
                    // Fails if the node has been replaced since.
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
            // Names were checked against the list that the nodes were made from. A node that was replaced since is
            // gone.
            let _ = struck;
        }
    }

    /// Applies the worst of a node's active failures to its machine.
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
                    // A machine that is switched on while it is partitioned.
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

/// The fault of the machine, and its severity.
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
