//! Deletes everything that an AppWrapper created: first with grace periods, then by force as far as the gate allows,
//! until nothing is left.

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::{conditions, reasons};

use super::health::own_pods;
use super::names::conditions::DELETING_RESOURCES;
use super::policy::{AppWrapperPolicy, Timers};
use super::status::AppWrapperStatus;
use super::steps::{Manner, Step};
use super::views::{AppWrapperView, FoundComponent, NodeView, PodView, Seen};
use crate::event::Condition;
use crate::gate::{By, Copies, Gate, GatePolicy, Kubelet, MachineMayRun, may_be_forced};
use crate::ids::NodeName;
use crate::moments::{after, to_the_second};
use crate::objects::POD;
use crate::proof::Machine;

/// The maximum number of deletions at a time. The rest follow once these are observed.
const AT_ONCE: usize = 50;
/// The maximum number of objects named in a message.
const NAMED: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Progress {
    Done,
    /// Objects or pods are left.
    UnderWay {
        plan: Plan,
        left: Left,
    },
}

/// The next deletions, and what the others wait for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// The writes that are due.
    pub(super) steps: Vec<Step>,
    /// True if the grace period before force is over.
    pub(super) forced: bool,
    /// When the next deletion is due if nothing changes.
    pub(super) next: Option<Timestamp>,
    /// The pods that are not forced because their machines may run, sorted by name.
    pub(super) held: Vec<MachineMayRun>,
    /// The number of pods that wait until their claims and Jobs are read.
    pub(super) unread: usize,
}

/// The pods that a deletion does not force because their machines may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The first pod, by name.
    pub first: MachineMayRun,
    /// The number of other such pods.
    pub more: usize,
    /// The number of pods whose claims and Jobs are not read yet.
    pub unread: usize,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, more, unread } = self;
        write!(f, "{first}.")?;
        if *more > 0 {
            write!(f, " The same holds for {more} more.")?;
        }
        if *unread > 0 {
            write!(f, " Of {unread} more the claims and Jobs are still to be read.")?;
        }
        Ok(())
    }
}

/// The objects that a deletion still waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The number of objects and pods.
    pub count: usize,
    /// The first of them, each with what blocks its deletion.
    pub named: Vec<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = self.count.saturating_sub(self.named.len());
        write!(f, "{} left: {}", self.count, self.named.join("; "))?;
        if more > 0 { write!(f, "; and {more} more") } else { Ok(()) }
    }
}

/// The objects that the AppWrapper owns, by UID: its components, and any others.
pub(super) fn own_objects(view: &AppWrapperView) -> impl Iterator<Item = &FoundComponent> {
    let components = (0..view.components.len()).filter_map(|index| view.own_component(index));
    components.chain(view.strays.iter().filter(|it| view.owns(it)))
}

/// Pods of components that are gone: controllers and kubelets need a while to delete them. Anyone may set the label, so
/// only pods count that belong to a known component or are being deleted.
pub(super) fn pods_left_over(view: &AppWrapperView) -> impl Iterator<Item = &PodView> {
    let ours = |pod: &&PodView| pod.component.is_some() || pod.deletion.is_some();
    own_pods(view).filter(ours).filter(|pod| !is_object(view, pod))
}

/// Everything the AppWrapper created that exists or may exist.
pub(super) fn left(view: &AppWrapperView) -> Left {
    let unknown = view.components.iter().filter_map(|it| match &it.seen {
        Seen::Unknown(why) => Some(format!("{} {}: {why}", it.kind, it.name)),
        Seen::Found(_) | Seen::Absent { .. } | Seen::NoSuchKind => None,
    });
    let pods = own_pods(view).filter(|pod| !is_object(view, pod));
    let all: Vec<String> =
        unknown.chain(own_objects(view).map(name_object)).chain(pods.map(name_pod)).collect();
    Left { count: all.len(), named: all.into_iter().take(NAMED).collect() }
}

/// The next deletions. Records their start and end in `status`.
pub(super) fn advance(
    view: &AppWrapperView,
    status: &mut AppWrapperStatus,
    timers: &Timers,
    policy: &AppWrapperPolicy,
    now: Timestamp,
) -> Progress {
    let left = left(view);
    if left.count == 0 {
        status.set_deleted(now);
        return Progress::Done;
    }
    let begun = status.set_deleting(now);
    let force = Force::of(view, policy, begun, timers, now);
    Progress::UnderWay { plan: force.plan(own_objects(view), own_pods(view)), left }
}

/// The deletions of these objects that were not requested yet, all at once and with grace periods: an object that the
/// server refuses to delete does not block the others. Pods are left to the controllers of the objects.
pub(super) fn deletions<'a>(
    view: &'a AppWrapperView,
    objects: impl Iterator<Item = &'a FoundComponent>,
    policy: &AppWrapperPolicy,
    timers: &Timers,
    now: Timestamp,
) -> Plan {
    let force = Force::of(view, policy, now, timers, now);
    let mut plan = Plan::default();
    for object in objects.filter(|it| !it.is_deleting()) {
        force.ask_to_end(object, &mut plan);
    }
    plan.close()
}

/// The deletions that end pods of components that are done, begun at `begun`. A component stays if all its pods are
/// being deleted, because it holds the record of its success. `done` has the indexes of the components that are done.
pub(super) fn endings(
    view: &AppWrapperView,
    done: &BTreeSet<usize>,
    pods: &[&PodView],
    begun: Timestamp,
    timers: &Timers,
    policy: &AppWrapperPolicy,
    now: Timestamp,
) -> Plan {
    // A pod whose component is unknown may belong to any of them.
    let holds = |index: usize, pod: &PodView| pod.component.is_none_or(|of| of == index);
    let lingers = |index: &usize| pods.iter().any(|pod| pod.deletion.is_none() && holds(*index, pod));
    let objects = done.iter().copied().filter(lingers).filter_map(|index| view.own_component(index));
    Force::of(view, policy, begun, timers, now).plan(objects, pods.iter().copied())
}

/// The pods whose claims and Jobs must be read now, because they decide whether a deletion in progress forces them or
/// removes them with their component. Those that were never read come first: unreadable ones are read again and
/// again, and must not starve the others.
pub fn works_to_read<'a>(
    view: &'a AppWrapperView,
    policy: &AppWrapperPolicy,
    now: Timestamp,
) -> Vec<&'a PodView> {
    let timers = Timers::of(&view.annotations, policy);
    let begun = view.status.condition(DELETING_RESOURCES).filter(|it| it.is_true());
    let begun = begun.map(|it| it.last_transition_time);
    let force = Force::of(view, policy, begun.unwrap_or(now), &timers, now);
    let is_forced = |pod: &PodView| begun.is_some() && matches!(force.turn(pod), Turn::Asks { .. });
    let is_freed = |pod: &PodView| force.hold(pod).is_some() && !is_object(view, pod);
    let decides = |pod: &&PodView| force.gate.must_read(&pod.work) && (is_forced(pod) || is_freed(pod));
    let mut pods = in_order(own_pods(view).filter(decides));
    pods.sort_by_key(|pod| pod.work.copies != Copies::Unread);
    pods
}

/// Everything that decides whether pods are forced.
struct Force<'a> {
    view: &'a AppWrapperView,
    gate: &'a GatePolicy,
    /// When the deletion began.
    begun: Timestamp,
    /// How long the deletion may take without force.
    grace: SignedDuration,
    now: Timestamp,
}

/// The state of the kubelet that has to end a pod.
enum Host<'a> {
    /// The pod is bound to no node, so nothing of it runs.
    None,
    /// The kubelet lives, as far as the control plane knows, and carries out a deletion itself.
    Alive { node: &'a NodeView },
    /// The Lease was not read yet, or the node is not known.
    Unclear,
    /// The kubelet is silent, or its Node does not exist.
    Silent { name: &'a NodeName, node: Option<&'a NodeView> },
}

/// The next action for a pod.
enum Turn<'a> {
    /// Nothing, before that time or before something changes.
    Waits(Option<Timestamp>),
    /// Nothing of it runs.
    HasEnded,
    /// It was not deleted yet, and its kubelet lives.
    IsAsked,
    /// The gate decides.
    Asks { host: Host<'a> },
}

/// Why an object is not deleted: the garbage collector would remove one of its pods at once.
enum Hold {
    /// Its claims, its Job or its node are not read yet.
    Unclear,
    /// The machine may run, and the pod must not run twice.
    Machine(MachineMayRun),
}

impl<'a> Force<'a> {
    fn of(
        view: &'a AppWrapperView,
        policy: &'a AppWrapperPolicy,
        begun: Timestamp,
        timers: &Timers,
        now: Timestamp,
    ) -> Self {
        Self { view, gate: policy.eviction.gate(), begun, grace: timers.forceful_deletion_grace, now }
    }

    fn plan(
        &self,
        objects: impl Iterator<Item = &'a FoundComponent>,
        pods: impl Iterator<Item = &'a PodView>,
    ) -> Plan {
        let by_force = after(self.begun, self.grace);
        let forced = self.now >= by_force;
        let mut plan = Plan { forced, next: (!forced).then_some(by_force), ..Plan::default() };
        let mut unasked = BTreeSet::new();
        for object in objects {
            match object.deletion {
                None => {
                    unasked.insert(&object.object.uid);
                    self.ask_to_end(object, &mut plan);
                }
                // A bare Pod is handled as a pod below. With a grace period of 0 only finalizers keep an object:
                // another delete changes nothing.
                Some(deletion) if forced && !is_pod(object) && deletion.grace_seconds != Some(0) => {
                    plan.steps.push(delete_object(object, Manner::Forceful));
                }
                Some(_) => {}
            }
        }
        // Objects are deleted before their pods, so that their controllers do not replace deleted pods.
        let is_too_early = |pod: &PodView| {
            let object = pod.component.and_then(|index| self.view.own_component(index));
            object.is_some_and(|it| unasked.contains(&it.object.uid))
        };
        for pod in in_order(pods.filter(|pod| !is_too_early(pod))) {
            self.add(pod, &mut plan);
        }
        plan.close()
    }

    /// Deletes an object with its grace period, unless that would remove a pod that may still run.
    fn ask_to_end(&self, object: &FoundComponent, plan: &mut Plan) {
        if is_pod(object) {
            let pod = self.view.pods.iter().find(|pod| pod.pod.uid == object.object.uid);
            // A pod that has lost its label is not in the view, so nothing allows to remove it at once.
            let unknown = if object.without_grace { Manner::Briefly } else { Manner::Graceful };
            let manner = pod.map_or(unknown, |pod| self.manner(pod));
            return plan.steps.push(delete_object(object, manner));
        }
        let index = (0..self.view.components.len()).find(|index| {
            self.view.own_component(*index).is_some_and(|it| it.object.uid == object.object.uid)
        });
        // A pod whose object is unknown may belong to any of them.
        let is_of_it = |pod: &&PodView| pod.component.is_none() || pod.component == index;
        let pods = own_pods(self.view).filter(|pod| pod.goes_at_once()).filter(is_of_it);
        let pods = pods.filter(|pod| !is_object(self.view, pod));
        let holds: Vec<Hold> = pods.filter_map(|pod| self.hold(pod)).collect();
        if holds.is_empty() {
            return plan.steps.push(delete_object(object, Manner::Graceful));
        }
        plan.held.extend(holds.into_iter().filter_map(|hold| match hold {
            Hold::Machine(machine) => Some(machine),
            Hold::Unclear => None,
        }));
    }

    /// The garbage collector deletes the pods of a deleted object, each with the grace period of its spec. If that is
    /// 0 and the kubelet is silent, the pod is removed from the API while it may still run.
    fn hold(&self, pod: &'a PodView) -> Option<Hold> {
        if !pod.goes_at_once() {
            return None;
        }
        let host = self.host(pod);
        let Gate::No(because) = self.ask(pod, &host) else { return None };
        match host {
            Host::None => None,
            Host::Alive { node } if node.is_heard(self.now) => None,
            Host::Alive { .. } | Host::Unclear => Some(Hold::Unclear),
            Host::Silent { .. } if self.is_to_be_read(pod) => Some(Hold::Unclear),
            Host::Silent { name, node } => Some(Hold::Machine(may_run(pod, name, node, because))),
        }
    }

    /// How a pod is deleted gracefully. The kubelet's heartbeat is not read for this: on a living node a second costs
    /// nothing.
    fn manner(&self, pod: &PodView) -> Manner {
        match self.ask(pod, &self.host(pod)) {
            Gate::No(_) if pod.without_grace => Manner::Briefly,
            Gate::No(_) | Gate::Yes(_) => Manner::Graceful,
        }
    }

    /// True if a pod waits until its claims and its Job are read for the first time.
    fn is_to_be_read(&self, pod: &PodView) -> bool {
        pod.work.copies == Copies::Unread && self.gate.must_read(&pod.work)
    }

    fn add(&self, pod: &PodView, plan: &mut Plan) {
        match self.turn(pod) {
            Turn::Waits(until) => plan.wake(until),
            Turn::HasEnded => plan.steps.push(delete_pod(pod, Manner::Afterwards)),
            Turn::IsAsked if is_object(self.view, pod) => {}
            Turn::IsAsked => plan.steps.push(delete_pod(pod, self.manner(pod))),
            Turn::Asks { host } => match (self.ask(pod, &host), host) {
                (Gate::Yes(by), Host::Silent { name, node }) => {
                    plan.steps.push(self.fail_pod(pod, name, node, &by));
                }
                (Gate::Yes(_), Host::None | Host::Alive { .. } | Host::Unclear) => {
                    plan.steps.push(delete_pod(pod, Manner::Forceful));
                }
                // The reader of its claims and its Job triggers a new decision.
                (Gate::No(_), _) if self.is_to_be_read(pod) => plan.unread += 1,
                (Gate::No(because), Host::Silent { name, node }) => {
                    plan.held.push(may_run(pod, name, node, because));
                }
                // The kubelet ends it.
                (Gate::No(_), Host::Alive { node }) => plan.wake(node.alive_until(self.now)),
                (Gate::No(_), Host::None | Host::Unclear) => {}
            },
        }
    }

    /// The next action for a pod. The time until force counts from the loss of the node, if that was before the
    /// deletion. On a living node, force never comes before the pod's own grace period is over.
    fn turn(&self, pod: &'a PodView) -> Turn<'a> {
        if pod.deletion.is_some_and(|deletion| deletion.grace_seconds == Some(0)) {
            // Only finalizers keep it: another delete changes nothing.
            return Turn::Waits(None);
        }
        let host = self.host(pod);
        let by_force = after(self.begun, self.grace);
        let is_heard = matches!(host, Host::Alive { node } if node.is_heard(self.now));
        let is_stopped = is_heard && pod.deletion.is_some() && pod.terminated;
        let has_ended = pod.phase.is_terminal() || is_stopped || matches!(host, Host::None);
        let due = match (&host, pod.deletion) {
            (Host::Silent { node: Some(node), .. }, Some(_)) => {
                let lost = node.silent_since().map_or(self.begun, |since| since.min(self.begun));
                after(lost, self.grace)
            }
            (Host::Alive { .. }, Some(deletion)) if !has_ended => by_force.max(deletion.timestamp),
            (Host::None | Host::Alive { .. } | Host::Unclear | Host::Silent { .. }, _) => by_force,
        };
        let changes = match host {
            Host::Alive { node } => node.alive_until(self.now),
            Host::None | Host::Unclear | Host::Silent { .. } => None,
        };
        if self.now < due {
            return Turn::Waits(Some(changes.map_or(due, |until| until.min(due))));
        }
        if has_ended {
            return Turn::HasEnded;
        }
        match host {
            Host::Unclear => Turn::Waits(None),
            Host::Alive { .. } if pod.deletion.is_none() => Turn::IsAsked,
            Host::None | Host::Alive { .. } | Host::Silent { .. } => Turn::Asks { host },
        }
    }

    fn host(&self, pod: &'a PodView) -> Host<'a> {
        let Some(name) = &pod.node_name else { return Host::None };
        match self.view.nodes.get(name) {
            None if self.view.nodes_known => Host::Silent { name, node: None },
            None => Host::Unclear,
            Some(node) if node.is_silent(self.now) => Host::Silent { name, node: Some(node) },
            Some(node) if !node.unreachable || node.alive_until(self.now).is_some() => Host::Alive { node },
            Some(_) => Host::Unclear,
        }
    }

    /// A kubelet that seems alive may have been cut off a moment ago, so it does not justify freeing a name or a
    /// volume. A pod that it has not ended waits for it, unless the pod may run twice.
    fn ask(&self, pod: &PodView, host: &Host<'_>) -> Gate {
        let machine = match host {
            Host::Silent { node: Some(node), .. } => node.machine.clone(),
            Host::None | Host::Alive { .. } | Host::Unclear | Host::Silent { node: None, .. } => {
                Machine::MayRun
            }
        };
        may_be_forced(&pod.work, pod.phase, Kubelet::Silent, &machine, self.gate)
    }

    /// The status is written before the deletion, so that every watcher of the pod sees the disruption. An existing
    /// DisruptionTarget condition stays.
    fn fail_pod(&self, pod: &PodView, name: &NodeName, node: Option<&NodeView>, by: &By) -> Step {
        let since = node.and_then(NodeView::silent_since);
        let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
        let message = format!(
            "AppWrapper {} deletes the pod; node {name} does not answer{since}, and {by}",
            self.view.appwrapper
        );
        let condition = pod.disruption.is_none().then(|| Condition {
            kind: conditions::DISRUPTION_TARGET,
            reason: reasons::APPWRAPPER_DELETION_BY_SALVOR,
            message,
            last_transition_time: to_the_second(self.now),
        });
        Step::FailPod {
            pod: pod.pod.clone(),
            resource_version: pod.resource_version.clone(),
            conditions: condition.into_iter().collect(),
        }
    }
}

impl Plan {
    /// The pods that wait for a machine, if there are any.
    pub(super) fn held(&self) -> Option<Held> {
        let (first, more) = self.held.split_first()?;
        Some(Held { first: first.clone(), more: more.len(), unread: self.unread })
    }

    /// In the order of reports and writes, capped at what is done at a time.
    fn close(mut self) -> Self {
        self.held.sort_by(|a, b| (&a.pod.name, &a.pod.uid).cmp(&(&b.pod.name, &b.pod.uid)));
        self.held.dedup();
        self.steps.truncate(AT_ONCE);
        self.steps = Step::at_once(self.steps);
        self
    }

    fn wake(&mut self, at: Option<Timestamp>) {
        self.next = self.next.into_iter().chain(at).min();
    }
}

/// Sorts pods in an order that all decisions share, so that each of them selects the same first pods.
fn in_order<'a>(pods: impl Iterator<Item = &'a PodView>) -> Vec<&'a PodView> {
    let mut pods: Vec<&PodView> = pods.collect();
    pods.sort_by(|a, b| a.pod.uid.cmp(&b.pod.uid));
    pods
}

fn may_run(pod: &PodView, node: &NodeName, of: Option<&NodeView>, because: String) -> MachineMayRun {
    let since = of.and_then(NodeView::silent_since);
    MachineMayRun { pod: pod.pod.clone(), node: node.clone(), since, because }
}

fn delete_object(object: &FoundComponent, manner: Manner) -> Step {
    Step::DeleteComponent {
        object: (&object.object).into(),
        resource_version: object.resource_version.clone(),
        manner,
    }
}

fn delete_pod(pod: &PodView, manner: Manner) -> Step {
    Step::DeletePod { pod: pod.pod.clone(), resource_version: pod.resource_version.clone(), manner }
}

fn is_pod(object: &FoundComponent) -> bool {
    object.object.kind.group == POD.group && object.object.kind.kind == POD.kind
}

/// True if the pod itself is a component.
fn is_object(view: &AppWrapperView, pod: &PodView) -> bool {
    own_objects(view).any(|it| it.object.uid == pod.pod.uid)
}

fn name_object(object: &FoundComponent) -> String {
    format!("{}{}", object.object, held_by(object.is_deleting(), &object.finalizers))
}

fn name_pod(pod: &PodView) -> String {
    let node = pod.node_name.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
    format!("pod {}{node}{}", pod.pod.name, held_by(pod.deletion.is_some(), &pod.finalizers))
}

fn held_by(deleting: bool, finalizers: &[String]) -> String {
    match (deleting, finalizers) {
        (false, _) => " (not deleted yet)".into(),
        (true, []) => " (terminating)".into(),
        (true, finalizers) => format!(" (terminating, held by finalizers {})", finalizers.join(", ")),
    }
}
