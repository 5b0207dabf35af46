//! The cluster of an incident: the true state of each node, and what its kubelet and agents report.

use std::collections::{BTreeMap, BTreeSet};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use salvor_apiserver::Cluster;
use salvor_simulate::{Beat, Karpenter, Machine};
use serde_json::json;

use super::outcome::Outcome;
use super::script::{Cause, Condition, Event, Incident, LOST, NOT_READY, STARTUP};

/// Seconds from a NodeClaim to its Node.
const REGISTERS: u64 = 120;
/// Seconds from there until the Node is ready, by default.
const BOOTS: u64 = 60;
/// Seconds after which a failed launch is retried.
const RETRIED: u64 = 60;

/// A period in which a node is unhealthy.
struct Ailment {
    /// The condition that reports it; `None` if nothing does.
    condition: Option<&'static Condition>,
    cause: Cause,
    /// The second at which the toleration ends, however often the condition is rewritten.
    tolerated_until: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The machine is being launched, and its node registers at this second.
    Launched(u64),
    /// The node has registered, and is ready at this second.
    Boots(u64),
    Up,
}

/// The time that a node needs to boot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Boot {
    Seconds(u64),
    /// It reports Ready, and is never initialized.
    Never,
}

/// The true state of a node.
pub(super) struct Node {
    pub(super) machine: Machine,
    phase: Phase,
    boot: Boot,
    ailments: Vec<Ailment>,
    /// True if its NodeClaim is being deleted.
    pub(super) told_to_go: bool,
    /// True if its machine never terminates.
    sticks: bool,
    /// True if its kill was needless.
    killed_in_vain: bool,
    replaces: Option<Killed>,
}

/// A node that was killed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Killed {
    /// True if its machine was broken.
    broken: bool,
    in_vain: bool,
}

impl Node {
    pub(super) fn is_going(&self) -> bool {
        self.told_to_go && !self.sticks
    }

    /// True if it is unhealthy for this cause.
    pub(super) fn is(&self, cause: Cause) -> bool {
        self.ailments.iter().any(|ailment| ailment.cause == cause)
    }

    /// True if it has been unhealthy for longer than tolerated.
    pub(super) fn is_past_toleration(&self, now: u64) -> bool {
        self.ailments.iter().any(|ailment| ailment.tolerated_until <= now)
    }
}

/// A machine that is to be launched.
struct Order {
    at: u64,
    machine: Machine,
    replaces: Killed,
}

/// The cluster, and the truth about it.
pub(super) struct World {
    karpenter: Karpenter,
    api: Api<k8s_openapi::api::core::v1::Node>,
    nodes: BTreeMap<String, Node>,
    orders: Vec<Order>,
    /// NodeClaims for which there is no machine.
    failed: Vec<String>,
    new_ones_ail: BTreeMap<&'static str, &'static Condition>,
    lost_zones: BTreeSet<&'static str>,
    zones: Vec<String>,
    /// True if the cloud has machines.
    pub(super) has_capacity: bool,
    /// Nodes that were killed for a good reason, and are not replaced.
    pub(super) missing: u64,
    /// The same for needless kills.
    pub(super) lost: u64,
    pub(super) outcome: Outcome,
}

fn name(number: usize) -> String {
    format!("node-{number}")
}

impl World {
    /// The cluster before the incident.
    pub(super) async fn new(cluster: &Cluster, incident: &Incident) -> Result<Self, kube::Error> {
        let zones: BTreeSet<&String> = incident.nodes.iter().map(|machine| &machine.zone).collect();
        let mut world = Self {
            karpenter: Karpenter::install(cluster, "aws").await?,
            api: Api::all(cluster.client()),
            nodes: BTreeMap::new(),
            orders: Vec::new(),
            failed: Vec::new(),
            new_ones_ail: BTreeMap::new(),
            lost_zones: BTreeSet::new(),
            zones: zones.into_iter().cloned().collect(),
            has_capacity: true,
            missing: 0,
            lost: 0,
            outcome: Outcome::default(),
        };
        for machine in &incident.nodes {
            let name = world.launch(machine.clone(), 0, Boot::Seconds(0), None).await?;
            world.karpenter.register(&name).await?;
            world.karpenter.initialize(&name).await?;
            world.nodes.entry(name).and_modify(|node| node.phase = Phase::Up);
        }
        Ok(world)
    }

    /// All nodes that exist, or are being launched.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    async fn launch(
        &mut self,
        machine: Machine,
        registers: u64,
        boot: Boot,
        replaces: Option<Killed>,
    ) -> Result<String, kube::Error> {
        let name = self.karpenter.order(machine.clone()).await?;
        let node = Node {
            machine,
            phase: Phase::Launched(registers),
            boot,
            ailments: Vec::new(),
            told_to_go: false,
            sticks: false,
            killed_in_vain: false,
            replaces,
        };
        self.nodes.insert(name.clone(), node);
        Ok(name)
    }

    /// Launches and terminates machines.
    pub(super) async fn look(&mut self, now: u64) -> Result<(), kube::Error> {
        for name in std::mem::take(&mut self.failed) {
            self.karpenter.give_up(&name).await?;
        }
        let Beat { told_to_go, gone } = self.karpenter.beat().await?;
        for name in told_to_go {
            self.killed(&name);
        }
        for (name, machine) in gone {
            let Some(node) = self.nodes.remove(&name) else { continue };
            let replaces = Killed { broken: node.is(Cause::Machine), in_vain: node.killed_in_vain };
            self.orders.push(Order { at: now, machine: self.elsewhere(machine), replaces });
        }
        self.serve_orders(now).await?;
        self.boot(now).await
    }

    fn killed(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.told_to_go = true;
        node.killed_in_vain = !node.is(Cause::Machine) || !self.has_capacity;
        if node.killed_in_vain {
            self.outcome.in_vain += 1;
            self.lost += 1;
        } else {
            self.missing += 1;
        }
    }

    /// The same machine in a zone that is not lost.
    fn elsewhere(&self, machine: Machine) -> Machine {
        if !self.lost_zones.contains(machine.zone.as_str()) {
            return machine;
        }
        let zone = self.zones.iter().find(|zone| !self.lost_zones.contains(zone.as_str()));
        Machine { zone: zone.cloned().unwrap_or_default(), ..machine }
    }

    async fn serve_orders(&mut self, now: u64) -> Result<(), kube::Error> {
        for order in std::mem::take(&mut self.orders) {
            if now < order.at {
                self.orders.push(order);
            } else if self.has_capacity {
                let boot = Boot::Seconds(BOOTS);
                self.launch(order.machine, now + REGISTERS, boot, Some(order.replaces)).await?;
            } else {
                self.failed.push(self.karpenter.order(order.machine.clone()).await?);
                self.orders.push(Order { at: now + RETRIED, ..order });
            }
        }
        Ok(())
    }

    async fn boot(&mut self, now: u64) -> Result<(), kube::Error> {
        let mut ailing = Vec::new();
        for (name, node) in &mut self.nodes {
            match (node.phase, node.boot) {
                (Phase::Launched(at), Boot::Seconds(seconds)) if at <= now => {
                    self.karpenter.register(name).await?;
                    self.karpenter.condition(name, NOT_READY.kind, NOT_READY.sick).await?;
                    node.phase = Phase::Boots(now + seconds);
                }
                (Phase::Launched(at), Boot::Never) if at <= now => {
                    self.karpenter.register(name).await?;
                    self.karpenter.condition(name, "Ready", "True").await?;
                    node.phase = Phase::Up;
                    let tolerated_until = now + STARTUP * 60;
                    node.ailments.push(Ailment { condition: None, cause: Cause::Machine, tolerated_until });
                    self.outcome.broken += 1;
                }
                (Phase::Boots(at), _) if at <= now => {
                    self.karpenter.initialize(name).await?;
                    node.phase = Phase::Up;
                    if let Some(Killed { broken, in_vain }) = node.replaces {
                        let gap = if in_vain { &mut self.lost } else { &mut self.missing };
                        *gap -= 1;
                        self.outcome.replaced += u64::from(broken);
                    }
                    let pool = node.machine.pool.as_str();
                    ailing.extend(self.new_ones_ail.get(pool).map(|condition| (name.clone(), *condition)));
                }
                (Phase::Launched(_) | Phase::Boots(_) | Phase::Up, _) => {}
            }
        }
        for (name, condition) in ailing {
            self.ails(&name, condition, Cause::Elsewhere, now).await?;
        }
        Ok(())
    }

    async fn ails(
        &mut self,
        name: &str,
        condition: &'static Condition,
        cause: Cause,
        now: u64,
    ) -> Result<(), kube::Error> {
        let Some(node) = self.nodes.get_mut(name) else { return Ok(()) };
        let tolerated_until = now + condition.minutes * 60;
        node.ailments.push(Ailment { condition: Some(condition), cause, tolerated_until });
        self.outcome.broken += u64::from(cause == Cause::Machine);
        self.karpenter.condition(name, condition.kind, condition.sick).await
    }

    async fn passes(&mut self, condition: &'static Condition) -> Result<(), kube::Error> {
        self.new_ones_ail.retain(|_, it| *it != condition);
        if condition == LOST {
            self.lost_zones.clear();
        }
        self.heal(condition, |_| true).await
    }

    /// Nodes with this condition are healthy again.
    async fn heal(
        &mut self,
        condition: &'static Condition,
        is_meant: impl Fn(&str) -> bool,
    ) -> Result<(), kube::Error> {
        for (name, node) in self.nodes.iter_mut().filter(|(name, _)| is_meant(name)) {
            let before = node.ailments.len();
            node.ailments.retain(|it| it.cause == Cause::Machine || it.condition != Some(condition));
            let still =
                node.ailments.iter().filter_map(|it| it.condition).any(|it| it.kind == condition.kind);
            if node.ailments.len() < before && !still {
                self.karpenter.condition(name, condition.kind, "True").await?;
            }
        }
        Ok(())
    }

    pub(super) async fn happens(&mut self, event: Event, now: u64) -> Result<(), kube::Error> {
        match event {
            Event::Breaks(number, condition) => {
                self.ails(&name(number), condition, Cause::Machine, now).await
            }
            Event::Ails(numbers, condition) => {
                for number in numbers {
                    self.ails(&name(number), condition, Cause::Elsewhere, now).await?;
                }
                Ok(())
            }
            Event::NewOnesAil(pool, condition) => {
                self.new_ones_ail.insert(pool, condition);
                Ok(())
            }
            Event::Passes(condition) => self.passes(condition).await,
            Event::Heals(number, condition) => self.heal(condition, |node| node == name(number)).await,
            Event::ZoneLost(zone, cause) => {
                self.lost_zones.insert(zone);
                let lost = self.nodes.iter().filter(|(_, node)| node.machine.zone == zone);
                let lost: Vec<String> = lost.map(|(name, _)| name.clone()).collect();
                for name in lost {
                    self.ails(&name, LOST, cause, now).await?;
                }
                Ok(())
            }
            Event::Rewritten(number, condition) => self.agent_says(number, condition, condition.sick).await,
            Event::AgentRestarts(number, condition) => self.agent_says(number, condition, "True").await,
            Event::Cordoned(numbers) => {
                let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
                for number in numbers {
                    self.api.patch(&name(number), &PatchParams::default(), &patch).await?;
                }
                Ok(())
            }
            Event::ScaleUp(machine, nodes, minutes) => {
                for _ in 0..nodes {
                    let boot = Boot::Seconds(minutes * 60);
                    self.launch(machine.clone(), now + REGISTERS, boot, None).await?;
                }
                Ok(())
            }
            Event::NeverInitialized(machine) => {
                self.launch(machine, now + REGISTERS, Boot::Never, None).await.map(|_| ())
            }
            Event::Sticks(number) => {
                self.karpenter.stick(&name(number));
                self.nodes.entry(name(number)).and_modify(|node| node.sticks = true);
                Ok(())
            }
            Event::Capacity(has_capacity) => {
                self.has_capacity = has_capacity;
                Ok(())
            }
        }
    }

    /// The agent of a node that still exists writes a condition.
    async fn agent_says(
        &self,
        number: usize,
        condition: &Condition,
        status: &str,
    ) -> Result<(), kube::Error> {
        let name = name(number);
        match self.nodes.contains_key(&name) {
            true => self.karpenter.condition(&name, condition.kind, status).await,
            false => Ok(()),
        }
    }
}
