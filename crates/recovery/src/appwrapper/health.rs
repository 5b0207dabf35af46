//! Decides whether a running workload is healthy, by its components, its pods and their nodes.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;

use super::components::ComponentState;
use super::policy::{AppWrapperPolicy, Timers};
use super::resets::{Cause, Evidence};
use super::status::{AppWrapperStatus, ComponentStatus, PodRecord, PodSet};
use super::views::{AppWrapperView, End, FoundComponent, Last, NodeView, PodView, Seen};
use crate::ids::NodeName;
use crate::moments::after;
use crate::objects::PodPhase;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub expected: usize,
    /// Without pods that are being deleted.
    pub pending: usize,
    /// Without pods that are being deleted. Readiness probes do not count.
    pub running: usize,
    pub succeeded: usize,
    pub failed: usize,
}

impl Counts {
    /// True if enough pods run or have succeeded.
    pub fn are_sufficient(&self) -> bool {
        self.running + self.succeeded >= self.expected
    }

    /// True if enough pods exist that have not failed.
    pub fn all_exist(&self) -> bool {
        self.pending + self.running + self.succeeded >= self.expected
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pending, running, succeeded, .. } = self;
        write!(f, "{pending} pods pending; {running} pods running; {succeeded} pods succeeded")
    }
}

/// Why a component that was created is gone or is being deleted. Ordered by severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    /// Its pod was evicted, or its node is lost.
    Evicted,
    /// Its deletion was not observed.
    Unexplained,
    /// A user deleted it.
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The component failed by itself.
    Failed,
    /// A user stopped the component.
    Stopped,
}

/// The state of a running workload, component by component.
pub(super) struct Picture<'a> {
    view: &'a AppWrapperView,
    status: &'a AppWrapperStatus,
    timers: &'a Timers,
    policy: &'a AppWrapperPolicy,
    now: Timestamp,
    done: Vec<bool>,
    /// The pods by phase, without pods of components that are done: those may already be gone.
    pub(super) counts: Counts,
}

impl<'a> Picture<'a> {
    pub(super) fn of(
        view: &'a AppWrapperView,
        status: &'a AppWrapperStatus,
        timers: &'a Timers,
        policy: &'a AppWrapperPolicy,
        now: Timestamp,
    ) -> Self {
        let done: Vec<bool> = (0..view.components.len()).map(|index| is_done(view, status, index)).collect();
        let mut counts = Counts::default();
        let open = (0..status.component_status.len()).filter(|index| done.get(*index) == Some(&false));
        counts.expected = open.map(|index| expected(view, status, index)).sum();
        for pod in own_pods(view).filter(|pod| is_open(pod, &done)) {
            match (pod.phase, pod.deletion.is_some()) {
                (PodPhase::Pending, false) => counts.pending += 1,
                (PodPhase::Running, false) => counts.running += 1,
                (PodPhase::Succeeded, _) => counts.succeeded += 1,
                (PodPhase::Failed, _) => counts.failed += 1,
                (PodPhase::Pending | PodPhase::Running, true) | (PodPhase::Unknown, _) => {}
            }
        }
        Self { view, status, timers, policy, now, done, counts }
    }

    /// The components that have reported that they are done.
    pub(super) fn done(&self) -> impl Iterator<Item = usize> + '_ {
        self.done.iter().enumerate().filter_map(|(index, done)| done.then_some(index))
    }

    // ---- without grace ------------------------------------------------------------------------------

    /// Components that are gone, or are being deleted by another client. Components that were done before do not count.
    pub(super) fn missing(&self) -> Option<Evidence> {
        let all = self.view.components.len();
        let losses: Vec<Loss> =
            (0..all).filter(|index| !self.done[*index]).filter_map(|index| self.loss(index)).collect();
        let worst = losses.iter().max()?;
        let found = all - losses.len();
        let message = format!("Only found {found} deployed components, but was expecting {all}");
        let mut evidence = Evidence::new(Cause::MissingComponent, message);
        // A user who deletes a component does not want it back. A pod that was evicted is different.
        evidence.terminal = *worst == Loss::Deleted;
        evidence.own_fault = *worst != Loss::Evicted;
        let lost = self.view.components.iter().filter_map(|it| match &it.seen {
            Seen::Absent { last } => last.as_ref().map(|last| &*last.object),
            Seen::Found(found) => Some(&**found).filter(|it| it.is_deleting() && self.view.owns(it)),
            Seen::NoSuchKind | Seen::Unknown(_) => None,
        });
        for object in lost {
            evidence.nodes.extend(object.node_name.clone());
            evidence.pods.extend(PodRecord::of_object(object));
        }
        if *worst != Loss::Evicted {
            return Some(evidence);
        }
        // The node is the cause, or was before its pod was evicted.
        let nodes: BTreeSet<NodeName> =
            evidence.nodes.iter().filter(|name| self.is_lost(name)).cloned().collect();
        let node_lost = self.node_was_lost().or_else(|| {
            let message = lost_nodes(UNREACHABLE, &nodes);
            (!nodes.is_empty()).then(|| Evidence::new(Cause::NodeLost, message))
        });
        let Some(node_lost) = node_lost else { return Some(evidence) };
        Some(Evidence {
            cause: node_lost.cause,
            condition: node_lost.condition,
            event: node_lost.event,
            nodes: &evidence.nodes | &node_lost.nodes,
            ..evidence
        })
    }

    fn loss(&self, index: usize) -> Option<Loss> {
        let explain = |it: &FoundComponent| {
            let evicted =
                it.disruption.is_some() || it.node_name.as_ref().is_some_and(|name| self.is_lost(name));
            if evicted { Loss::Evicted } else { Loss::Deleted }
        };
        if self.failure(index).is_some() {
            return None;
        }
        match &self.view.components[index].seen {
            Seen::Found(found) if self.view.owns(found) => found.is_deleting().then(|| explain(found)),
            // Another owner's object has the name, so the AppWrapper's own is gone.
            Seen::Found(_) | Seen::Absent { last: None } => Some(Loss::Unexplained),
            // While a pod may belong to it, the component may still exist.
            Seen::NoSuchKind => (!self.may_have_pods(index)).then_some(Loss::Unexplained),
            Seen::Absent { last: Some(Last { object, end }) } => Some(match (end, explain(object)) {
                // It may have ended, or have been evicted, after it was last seen.
                (End::Missed, Loss::Deleted) if !object.is_deleting() => Loss::Unexplained,
                (End::Told | End::Missed, loss) => loss,
            }),
            Seen::Unknown(_) => None,
        }
    }

    /// True if a pod with the AppWrapper's label may belong to this component.
    fn may_have_pods(&self, index: usize) -> bool {
        own_pods(self.view).any(|pod| pod.component.is_none_or(|of| of == index))
    }

    /// The failure that a component reports, or reported when it was last seen: its own time to live may have deleted
    /// it since.
    fn failure(&self, index: usize) -> Option<Failure> {
        let object = match &self.view.components[index].seen {
            Seen::Found(found) => found,
            Seen::Absent { last } => &last.as_ref()?.object,
            Seen::NoSuchKind | Seen::Unknown(_) => return None,
        };
        let failure = match &object.state {
            ComponentState::Failed { .. } => Failure::Failed,
            ComponentState::Stopped { .. } => Failure::Stopped,
            ComponentState::Silent | ComponentState::Active | ComponentState::Succeeded => return None,
        };
        self.view.owns(object).then_some(failure)
    }

    /// True if a node does not exist any more, or the control plane has lost it. Then it was no user who deleted a pod
    /// on it.
    fn is_lost(&self, name: &NodeName) -> bool {
        self.view.nodes.get(name).map_or(self.view.nodes_known, |node| node.unreachable || node.force_evicted)
    }

    /// Components that report that they failed or that a user stopped them.
    pub(super) fn failed_components(&self) -> Option<Evidence> {
        let failures: Vec<Failure> =
            (0..self.view.components.len()).filter_map(|index| self.failure(index)).collect();
        let stopped = failures.iter().filter(|it| **it == Failure::Stopped).count();
        let mut message = format!("Found {} failed components", failures.len());
        if stopped > 0 {
            message.push_str(&format!("; {stopped} of them were stopped by somebody"));
        }
        (!failures.is_empty()).then(|| {
            let mut evidence = self.by_failed_pods(Evidence::new(Cause::FailedComponent, message));
            // A user who stops a component does not want it to run again.
            evidence.terminal |= stopped > 0;
            evidence
        })
    }

    /// Pods that run on a node that must be left at once.
    pub(super) fn nodes_to_leave(&self) -> Option<Evidence> {
        let flagged =
            self.running_on(|pod, node| node.no_execute.iter().any(|it| pod.resources.contains(it)));
        if self.policy.autopilot.monitor_nodes && !flagged.is_empty() {
            let nodes: BTreeSet<NodeName> = flagged.iter().filter_map(|it| it.node_name.clone()).collect();
            let message =
                format!("Workload contains pods using NoExecute resources on Nodes: {}", go_set(&nodes));
            let mut evidence = on_nodes(Cause::AutopilotNoExecute, message, &flagged);
            // Existing tools expect this event without its prefix.
            evidence.event.clone_from(&evidence.condition);
            return Some(evidence);
        }
        let evicted = self.held_by(|node| self.policy.force_evicted_nodes && node.force_evicted);
        (!evicted.is_empty()).then(|| on_lost_nodes(FORCE_EVICTED, &evicted))
    }

    // ---- with grace ---------------------------------------------------------------------------------

    /// Pods that failed and were not replaced, or pods on a node whose kubelet is silent.
    ///
    /// If unreachable nodes alone do not count as a cause, such a node is still reported as the cause of pods that
    /// failed or are missing because of it.
    pub(super) fn pods_to_mend(&self) -> Option<Evidence> {
        let lost = self.held_by(|node| node.is_silent(self.now));
        let failed = self.failed_pods().any(|pod| !lost.iter().any(|it| it.pod == pod.pod));
        if failed && !self.counts.all_exist() {
            let mut evidence =
                Evidence::new(Cause::FoundFailedPods, format!("{} failed pods", self.counts.failed));
            // The number changes, and each change would be a new message.
            evidence.condition = String::new();
            return Some(self.by_failed_pods(evidence));
        }
        let known = self.node_was_lost().filter(|_| !self.counts.all_exist());
        let has_failed = || lost.iter().any(|pod| pod.phase == PodPhase::Failed);
        if !lost.is_empty() && (self.policy.unreachable_nodes || known.is_some() || has_failed()) {
            return Some(on_lost_nodes(UNREACHABLE, &lost));
        }
        known
    }

    /// The cause in the condition `Unhealthy`, if it is a lost node. The node's pods may be gone by now, and with them
    /// all other evidence.
    fn node_was_lost(&self) -> Option<Evidence> {
        let known = self.status.condition(super::names::conditions::UNHEALTHY)?;
        let told = known.is_true() && known.reason == Cause::NodeLost.as_str();
        let nodes = named_nodes(&known.message).filter(|_| told)?;
        let mut evidence = Evidence::new(Cause::NodeLost, known.message.clone());
        evidence.own_fault = false;
        evidence.nodes = nodes;
        Some(evidence)
    }

    /// When the Lease of an unreachable node with pods of this workload may expire.
    pub(super) fn next_silence(&self) -> Option<Timestamp> {
        let nodes = own_pods(self.view)
            .filter(|pod| pod.is_active())
            .filter_map(|pod| self.view.nodes.get(pod.node_name.as_ref()?));
        let until = nodes.filter_map(|node| node.alive_until(self.now)).min();
        until.filter(|_| self.policy.unreachable_nodes)
    }

    /// Until when pods may be missing or not running.
    ///
    /// The time counts from the creation of the components. If all pods were ready since, it counts from the loss of
    /// the first one.
    pub(super) fn ready_by(&self) -> (Timestamp, Stage) {
        use super::names::conditions::PODS_READY;
        let deployed = deployed_since(self.view, self.status);
        let lost =
            self.status.condition(PODS_READY).filter(|it| it.is_false()).map(|it| it.last_transition_time);
        let start = lost.map_or(deployed, |lost| lost.max(deployed));
        if self.counts.all_exist() {
            (after(start, self.timers.warmup_grace), Stage::Warmup)
        } else {
            (after(start, self.timers.admission_grace), Stage::Admission)
        }
    }

    /// When a pod of a Job that has more pods to run last ended. The next pod gets a moment to start.
    pub(super) fn last_wave(&self) -> Option<Timestamp> {
        let runs_on =
            |index| self.view.own_component(index).and_then(|it| it.waves).is_some_and(|it| it.wanted(0) > 0);
        let ended = own_pods(self.view)
            .filter(|pod| pod.phase == PodPhase::Succeeded && pod.component.is_some_and(runs_on));
        ended.filter_map(|pod| pod.ended).filter(|ended| *ended <= self.now).max()
    }

    /// Not all pods exist, or not all run, and their time is over. If enough of them are on lost nodes, the nodes are
    /// the cause.
    pub(super) fn insufficient(&self) -> Evidence {
        let evidence = Evidence::new(Cause::InsufficientPodsReady, self.counts.to_string());
        let mut evidence = self.by_failed_pods(evidence);
        let pending: Vec<&PodView> = own_pods(self.view)
            .filter(|pod| pod.phase == PodPhase::Pending && pod.deletion.is_none())
            .collect();
        let no_room =
            self.counts.all_exist() && pending.iter().all(|pod| pod.unschedulable) && !pending.is_empty();
        evidence.own_fault = !no_room;
        evidence.pods.extend(pending.iter().map(|it| PodRecord::of(it)));
        let lost: Vec<&PodView> = self.lost_pods().collect();
        let by_node = on_lost_nodes(UNREACHABLE, &lost);
        evidence.pods.extend(by_node.pods);
        evidence.nodes.extend(by_node.nodes);
        let Counts { expected, running, succeeded, .. } = self.counts;
        if no_room || lost.is_empty() || running + succeeded + lost.len() < expected {
            return evidence;
        }
        let Evidence { cause, condition, event, own_fault, .. } = by_node;
        Evidence { cause, condition, event, own_fault, ..evidence }
    }

    /// The pods that do not run because their node is lost, whether they were replaced or not.
    fn lost_pods(&self) -> impl Iterator<Item = &'a PodView> + '_ {
        let is_silent = |name: &NodeName| self.view.nodes.get(name).is_some_and(|it| it.is_silent(self.now));
        own_pods(self.view)
            .filter(|pod| is_open(pod, &self.done))
            .filter(|pod| match (pod.phase, pod.deletion.is_some()) {
                (PodPhase::Running, false) | (PodPhase::Succeeded, _) => false,
                (PodPhase::Failed, _) => pod.was_evicted(),
                (PodPhase::Pending | PodPhase::Unknown, _) | (PodPhase::Running, true) => true,
            })
            .filter(move |pod| pod.node_name.as_ref().is_some_and(is_silent))
    }

    // ---- the end ------------------------------------------------------------------------------------

    /// True if the work is done: each component reports it, or, if its kind has no such report, all its pods have
    /// ended.
    pub(super) fn is_successful(&self) -> bool {
        let all_ended =
            (0..self.view.components.len()).all(|index| self.done[index] || self.is_silent(index));
        let works = |pod: &PodView| match pod.component {
            Some(index) => self.done.get(index) != Some(&true),
            None => self.counts.expected > 0,
        };
        all_ended && self.counts.succeeded >= self.counts.expected && !self.active_pods().any(works)
    }

    fn is_silent(&self, index: usize) -> bool {
        self.view.own_component(index).is_some_and(|it| it.state == ComponentState::Silent)
    }

    pub(super) fn active_pods(&self) -> impl Iterator<Item = &'a PodView> + use<'a> {
        own_pods(self.view).filter(|pod| pod.is_active())
    }

    /// The number of ended pods of all components.
    pub(super) fn totals(&self) -> Counts {
        let count = |phase| own_pods(self.view).filter(|it| it.phase == phase).count();
        Counts { succeeded: count(PodPhase::Succeeded), failed: count(PodPhase::Failed), ..self.counts }
    }

    // ---- evidence -----------------------------------------------------------------------------------

    fn running_on(&self, which: impl Fn(&PodView, &NodeView) -> bool) -> Vec<&'a PodView> {
        own_pods(self.view)
            .filter(|pod| pod.phase == PodPhase::Running && pod.deletion.is_none())
            .filter(|pod| {
                let node = pod.node_name.as_ref().and_then(|name| self.view.nodes.get(name));
                node.is_some_and(|node| which(pod, node))
            })
            .collect()
    }

    /// The pods affected by a lost node: those that should run there, and, until they are replaced, those evicted from
    /// it.
    fn held_by(&self, lost: impl Fn(&NodeView) -> bool) -> Vec<&'a PodView> {
        let replaced = self.counts.all_exist();
        own_pods(self.view)
            .filter(|pod| is_open(pod, &self.done))
            .filter(|pod| match (pod.phase, pod.deletion.is_some()) {
                (PodPhase::Running, false) => true,
                (PodPhase::Pending | PodPhase::Running | PodPhase::Unknown, true) => !replaced,
                (PodPhase::Failed, _) => !replaced && pod.was_evicted(),
                (PodPhase::Pending | PodPhase::Unknown, false) | (PodPhase::Succeeded, _) => false,
            })
            .filter(|pod| {
                pod.node_name.as_ref().and_then(|name| self.view.nodes.get(name)).is_some_and(&lost)
            })
            .collect()
    }

    fn failed_pods(&self) -> impl Iterator<Item = &'a PodView> + '_ {
        own_pods(self.view).filter(|pod| pod.phase == PodPhase::Failed && is_open(pod, &self.done))
    }

    /// Adds the evidence from failed pods: names, nodes and exit codes, whether another attempt would help, and whether
    /// all of them were evicted.
    fn by_failed_pods(&self, mut evidence: Evidence) -> Evidence {
        let failed: Vec<&PodView> = self.failed_pods().collect();
        evidence.pods.extend(failed.iter().map(|it| PodRecord::of(it)));
        evidence.nodes.extend(failed.iter().filter_map(|it| it.node_name.clone()));
        evidence.exit_codes.extend(failed.iter().flat_map(|it| it.exit_codes.iter().copied()));
        evidence.terminal = evidence.exit_codes.iter().any(|code| self.timers.is_terminal(*code));
        evidence.own_fault = failed.is_empty() || failed.iter().any(|it| it.disruption.is_none());
        evidence
    }
}

/// What a workload whose pods do not all run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Until all pods exist.
    Admission,
    /// Until all pods run.
    Warmup,
}

/// True if a component reports that it is done, now or before.
fn is_done(view: &AppWrapperView, status: &AppWrapperStatus, index: usize) -> bool {
    let recorded = status.component_status.get(index).is_some_and(ComponentStatus::has_succeeded);
    let says_so = |it: &FoundComponent| view.owns(it) && it.state == ComponentState::Succeeded;
    recorded
        || match &view.components[index].seen {
            Seen::Found(found) => says_so(found),
            Seen::Absent { last: Some(last) } => says_so(&last.object),
            Seen::Absent { last: None } | Seen::NoSuchKind | Seen::Unknown(_) => false,
        }
}

/// How many pods of a component should run or have succeeded. A Job runs its pods in waves, so pods of earlier waves do
/// not replace those that should run now.
fn expected(view: &AppWrapperView, status: &AppWrapperStatus, index: usize) -> usize {
    let at_once = status.component_status[index].pod_sets.iter().map(PodSet::expected).sum();
    let Some(waves) = view.own_component(index).and_then(|it| it.waves) else { return at_once };
    let is_over = |pod: &&PodView| pod.component == Some(index) && pod.phase == PodPhase::Succeeded;
    let succeeded = own_pods(view).filter(is_over).count();
    succeeded + waves.wanted(succeeded).min(at_once)
}

/// True if a pod's component is not done yet, or is not known.
fn is_open(pod: &PodView, done: &[bool]) -> bool {
    pod.component.is_none_or(|index| done.get(index) != Some(&true))
}

/// The AppWrapper's own pods. An older pod with the same label belongs to a previous AppWrapper with the same name.
pub(super) fn own_pods(view: &AppWrapperView) -> impl Iterator<Item = &PodView> {
    view.pods.iter().filter(|pod| pod.created >= view.created)
}

/// Since when components may exist.
pub(super) fn deployed_since(view: &AppWrapperView, status: &AppWrapperStatus) -> Timestamp {
    use super::names::conditions::RESOURCES_DEPLOYED;
    let deployed = status.condition(RESOURCES_DEPLOYED).filter(|it| it.is_true());
    deployed.map_or(view.created, |it| it.last_transition_time)
}

fn on_nodes(cause: Cause, message: String, pods: &[&PodView]) -> Evidence {
    let mut evidence = Evidence::new(cause, message);
    evidence.own_fault = false;
    evidence.pods = pods.iter().map(|it| PodRecord::of(it)).collect();
    evidence.nodes = pods.iter().filter_map(|it| it.node_name.clone()).collect();
    evidence
}

const UNREACHABLE: &str = "Workload contains pods on unreachable Nodes: ";
const FORCE_EVICTED: &str = "Workload contains pods on force-evicted Nodes: ";

fn on_lost_nodes(sentence: &str, pods: &[&PodView]) -> Evidence {
    let nodes = pods.iter().filter_map(|it| it.node_name.clone()).collect();
    on_nodes(Cause::NodeLost, lost_nodes(sentence, &nodes), pods)
}

fn lost_nodes(sentence: &str, nodes: &BTreeSet<NodeName>) -> String {
    let nodes: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    format!("{sentence}{}", nodes.join(", "))
}

/// The nodes named in a message about lost nodes.
fn named_nodes(message: &str) -> Option<BTreeSet<NodeName>> {
    let names = [UNREACHABLE, FORCE_EVICTED].iter().find_map(|sentence| message.strip_prefix(sentence))?;
    Some(names.split(", ").map(NodeName::from).collect())
}

/// A set in Go's format, because users search for it in this form.
fn go_set(names: &BTreeSet<NodeName>) -> String {
    let all: Vec<String> = names.iter().map(|name| format!("{name}:{{}}")).collect();
    format!("map[{}]", all.join(" "))
}
