//! The next step for a node that is due, according to its ladder and its backend.
//!
//! **A node that nothing owns** cannot be replaced: nothing creates another machine, and the old one may keep running
//! after its Node is deleted. So it is cordoned and drained through the Eviction API, with either termination, and then
//! blocked. If the ladder has a reboot later, it continues with that.

use jiff::Timestamp;
use salvor_api::config::ClusterApiRepair;

use super::action::Action;
use super::holds::Hold;
use super::kept::Kept;
use super::ladder::Turn;
use super::member::Member;
use super::policy::{Policy, Termination, UnownedNodes};
use super::progress::{Progress, Tried};
use super::sickness::{Settings, Sick};
use super::status::Repair;
use super::steps::{Begun, Step};
use super::views::{Backend, PodView};
use crate::gate::{Gate, Kubelet, may_be_forced};
use crate::moments::{after, to_the_second};
use crate::proof::Machine;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    Write(Box<Step>),
    Reboot {
        /// The index in the ladder, from 0.
        rung: usize,
        /// The attempt on that rung, from 1.
        attempt: u32,
    },
    /// Nothing to write: an earlier step is in progress.
    UnderWay,
    /// Nothing to write: the repair is blocked.
    Held(Hold),
}

impl Next {
    fn write(step: Step) -> Self {
        Self::Write(Box::new(step))
    }
}

/// A node that is due, with its entry in the policy's status.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) member: &'a Member<'a>,
    pub(super) policy: &'a Policy,
    pub(super) settings: &'a Settings,
    pub(super) repair: Option<&'a Repair>,
    pub(super) now: Timestamp,
}

impl Case<'_> {
    pub(super) fn next(&self, sick: &Sick, turn: Turn) -> Next {
        match turn {
            Turn::Try { action: Action::Replace, rung, .. } => match self.replacement() {
                // A later reboot on the ladder may still cure a machine that nothing replaces.
                Next::Held(hold @ Hold::MachineMayRun { .. }) => {
                    let reboots = |(_, rung): &(usize, &super::policy::Rung)| rung.action == Action::Reboot;
                    let later = sick.ladder.iter().enumerate().skip(rung).find(reboots);
                    later.map_or(Next::Held(hold), |(rung, _)| Next::Reboot { rung, attempt: 1 })
                }
                next => next,
            },
            Turn::Try { action: Action::Reboot, rung, attempt } => Next::Reboot { rung, attempt },
            Turn::Running { .. } => Next::UnderWay,
            Turn::Exhausted => Next::Held(Hold::LadderExhausted),
        }
    }

    /// True if nothing more can be done for the node, so it must not keep other nodes from being repaired: a person
    /// vetoed it, the ladder is exhausted, or its machine may run.
    pub(super) fn is_given_up(&self, sick: &Sick, turn: Turn) -> bool {
        let is_held = || match self.next(sick, turn) {
            Next::Held(Hold::LadderExhausted | Hold::MachineMayRun { .. }) => true,
            Next::Held(_) | Next::Write(_) | Next::Reboot { .. } | Next::UnderWay => false,
        };
        !self.member.is_deleting() && (self.member.veto(self.now).is_some() || is_held())
    }

    fn begun(&self) -> Begun {
        Begun {
            policy: self.policy.name(),
            condition: self.repair.map(|repair| repair.condition.clone()).unwrap_or_default(),
        }
    }

    /// The next write of the replacement, if there is one.
    pub(super) fn replacement(&self) -> Next {
        let zone = || self.member.node.zone.to_string();
        match &self.member.backend {
            Backend::Claim(claim) => {
                let latest = after(self.now, self.policy.termination.grace());
                let set = claim.termination.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
                let (object, resource_version) = (claim.object.clone(), claim.resource_version.clone());
                if set.is_none_or(|set| set > latest) {
                    let (at, hastens) = (to_the_second(latest), claim.deleting.is_some());
                    let before = claim.termination_before.clone().or_else(|| claim.termination.clone());
                    Next::write(Step::TightenTermination {
                        claim: object,
                        resource_version,
                        at,
                        before: before.unwrap_or_default(),
                        hastens,
                        zone: zone(),
                    })
                } else if claim.deleting.is_some() {
                    Next::UnderWay
                } else {
                    let begun = self.begun();
                    Next::write(Step::DeleteOwner { owner: object, resource_version, zone: zone(), begun })
                }
            }
            Backend::Machine(machine) if machine.deleting.is_some() => Next::UnderWay,
            Backend::Machine(machine) => {
                let (object, resource_version) = (machine.object.clone(), machine.resource_version.clone());
                let (zone, begun) = (zone(), self.begun());
                match self.settings.cluster_api {
                    ClusterApiRepair::Delete => {
                        Next::write(Step::DeleteOwner { owner: object, resource_version, zone, begun })
                    }
                    ClusterApiRepair::Remediate if machine.remediated => Next::UnderWay,
                    ClusterApiRepair::Remediate => {
                        Next::write(Step::RemediateMachine { machine: object, resource_version, zone, begun })
                    }
                }
            }
            Backend::Node => self.unowned(),
            Backend::Missing(why) => Next::Held(Hold::NoBackend(why.clone())),
        }
    }

    fn unowned(&self) -> Next {
        let (node, memory) = (self.member.node, self.member.node.progress.as_deref());
        if node.deleting().is_some() {
            return Next::UnderWay;
        }
        let draining_since = memory.and_then(|memory| memory.draining_since);
        let (object, resource_version) = (node.node.clone(), node.resource_version.clone());
        let Some(since) = draining_since.filter(|_| node.unschedulable && self.repair.is_some()) else {
            let memory = memory.cloned().unwrap_or_default();
            let progress = Progress {
                cordoned: memory.cordoned || !node.unschedulable,
                draining_since: draining_since.or(Some(to_the_second(self.now))),
                ..memory
            };
            return Next::write(Step::Cordon {
                node: object,
                resource_version,
                progress,
                begun: self.begun(),
            });
        };
        let left = self.member.left.as_ref();
        let is_empty = left.is_some_and(|left| left.pods.is_empty());
        let is_over = is_empty || self.drain_ends().is_none_or(|ends| ends <= self.now);
        let once = self.must_run_once();
        let may_be_deleted =
            match (self.policy.unowned, self.member.machine(self.now), self.policy.termination) {
                (UnownedNodes::Drain, _, _) => false,
                (UnownedNodes::DeleteNode, Machine::Off(_), _) => true,
                (UnownedNodes::DeleteNode, Machine::MayRun, termination) => {
                    let is_time = is_over || termination == Termination::Forceful;
                    left.is_some() && once.is_none() && is_time
                }
            };
        if may_be_deleted {
            // The Node's metadata is saved first, in exactly the version that is deleted.
            let kept = &self.policy.status.deleted_nodes;
            let is_kept = |it: &Kept| it.uid == node.node.uid && it.resource_version == node.resource_version;
            if !kept.iter().any(is_kept) {
                return Next::write(Step::KeepNode {
                    policy: self.policy.object.clone(),
                    resource_version: self.policy.resource_version.clone(),
                    node: object,
                    node_version: resource_version,
                    kept: kept.clone(),
                    lost: self.settings.lost.clone(),
                    at: to_the_second(self.now),
                });
            }
            let zone = node.zone.to_string();
            return Next::write(Step::DeleteNode {
                node: object,
                resource_version,
                zone,
                begun: self.begun(),
            });
        }
        if !is_over {
            return Next::UnderWay;
        }
        let once = once.map(|(pod, because)| (pod.pod.clone(), because));
        let doubt = node.marks().off.as_ref().filter(|_| self.policy.unowned == UnownedNodes::DeleteNode);
        let doubt = doubt.map(|proof| Box::new((proof.clone(), self.member.lease)));
        Next::Held(Hold::MachineMayRun {
            node: node.node.name.clone(),
            since,
            left: left.cloned(),
            once,
            doubt,
        })
    }

    /// The first remaining pod that must not be ended by deleting its Node, and why. The kubelet always counts as
    /// silent here: once its Node is gone, nothing queries it.
    fn must_run_once(&self) -> Option<(&PodView, String)> {
        let (machine, gate) = (self.member.machine(self.now), &self.settings.gate);
        let pods = &self.member.left.as_ref()?.pods;
        pods.iter().find_map(|pod| {
            match may_be_forced(&pod.work, pod.phase, Kubelet::Silent, &machine, gate) {
                Gate::Yes(_) => None,
                Gate::No(because) => Some((pod, because)),
            }
        })
    }

    /// When the time for a drain in progress is over. It counts from the cordon, even if something blocked the drain
    /// meanwhile.
    pub(super) fn drain_ends(&self) -> Option<Timestamp> {
        let (node, repair) = (self.member.node, self.repair?);
        let since = node.progress.as_deref()?.draining_since?;
        // A drain from an earlier turn does not count. A time in the future counts as now.
        let from = since.max(repair.since).min(self.now);
        (self.member.backend == Backend::Node).then(|| after(from, self.policy.drain_time()))
    }

    /// Asks for a reboot. `memory` is the node's memory as it is now.
    pub(super) fn reboot(&self, memory: &Progress, sick: &Sick, rung: usize, attempt: u32) -> Step {
        let node = self.member.node;
        // Times older than the Node are rejected on reading, and an API server's clock may be behind.
        let now = to_the_second(self.now);
        let at = node.created.map_or(now, |created| now.max(created));
        let tried = Tried {
            condition: sick.key.clone(),
            action: Action::Reboot,
            rung,
            attempt,
            at,
            boot_id: node.boot_id.to_string(),
        };
        Step::RequestReboot {
            node: node.node.clone(),
            resource_version: node.resource_version.clone(),
            at,
            progress: Progress { tried: Some(tried), told: String::new(), ..memory.clone() },
            zone: node.zone.to_string(),
            begun: Begun { policy: self.policy.name(), condition: sick.key.clone() },
        }
    }
}
