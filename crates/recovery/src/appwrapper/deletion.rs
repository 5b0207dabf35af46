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
use crate::gate::{By, Copies, Gate, GatePolicy, Kubelet, Machine, MachineMayRun, may_be_forced};
use crate::ids::NodeName;
use crate::moments::{after, to_the_second};
use crate::objects::POD;

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
    /// So many pods wait until their claims and Jobs are read.
    pub(super) unread: usize,
}

/// The pods for whose machines a deletion waits. Prints as sentences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The first of them, by name.
    pub first: MachineMayRun,
    /// So many others.
    pub more: usize,
    /// So many pods besides, whose claims and Jobs are still to be read.
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
    let force =
        Force { view, gate: policy.eviction.gate(), begun, grace: timers.forceful_deletion_grace, now };
    Progress::UnderWay { plan: force.plan(own_objects(view), own_pods(view)), left }
}

/// The deletions that were not requested yet, all at once and with grace periods: an object that the server refuses to
/// delete does not block the others. Pods are left to the controllers of the objects.
pub(super) fn deletions(view: &AppWrapperView) -> Vec<Step> {
    let due = own_objects(view).filter(|it| !it.is_deleting());
    Step::at_once(due.map(|it| delete_object(it, Manner::Graceful)).take(AT_ONCE).collect())
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
    let force =
        Force { view, gate: policy.eviction.gate(), begun, grace: timers.forceful_deletion_grace, now };
    force.plan(objects, pods.iter().copied())
}

/// The pods of a deletion that is under way whose claims and Jobs decide now whether they are forced, and are not known for sure.
/// Those that were never read come first: what cannot be read is read again and again, and must not keep others from their turn.
pub fn works_to_read<'a>(
    view: &'a AppWrapperView,
    policy: &AppWrapperPolicy,
    now: Timestamp,
) -> Vec<&'a PodView> {
    let begun = view.status.condition(DELETING_RESOURCES).filter(|it| it.is_true());
    let Some(begun) = begun.map(|it| it.last_transition_time) else { return Vec::new() };
    let grace = Timers::of(&view.annotations, policy).forceful_deletion_grace;
    let force = Force { view, gate: policy.eviction.gate(), begun, grace, now };
    let decides = |pod: &&PodView| {
        matches!(force.turn(pod), Turn::Asks { .. }) && policy.eviction.gate().must_read(&pod.work)
    };
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
    /// The kubelet lives, at least until then, and carries out a deletion itself.
    Alive { until: Option<Timestamp> },
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

impl<'a> Force<'a> {
    fn plan(
        &self,
        objects: impl Iterator<Item = &'a FoundComponent>,
        pods: impl Iterator<Item = &'a PodView>,
    ) -> Plan {
        let by_force = after(self.begun, self.grace);
        let forced = self.now >= by_force;
        let mut plan = Plan { forced, next: (!forced).then_some(by_force), ..Plan::default() };
        let mut asked = BTreeSet::new();
        for object in objects {
            match object.deletion {
                None => {
                    asked.insert(&object.object.uid);
                    plan.steps.push(delete_object(object, Manner::Graceful));
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
            object.is_some_and(|it| asked.contains(&it.object.uid))
        };
        for pod in in_order(pods.filter(|pod| !is_too_early(pod))) {
            self.add(pod, &mut plan);
        }
        plan.held.sort_by(|a, b| a.pod.name.cmp(&b.pod.name));
        plan.steps.truncate(AT_ONCE);
        plan.steps = Step::at_once(plan.steps);
        plan
    }

    fn add(&self, pod: &PodView, plan: &mut Plan) {
        match self.turn(pod) {
            Turn::Waits(until) => plan.wake(until),
            Turn::HasEnded => plan.steps.push(delete_pod(pod, Manner::Afterwards)),
            Turn::IsAsked if is_object(self.view, pod) => {}
            Turn::IsAsked => plan.steps.push(delete_pod(pod, Manner::Graceful)),
            Turn::Asks { host } => match (self.ask(pod, &host), host) {
                (Gate::Yes(by), Host::Silent { name, node }) => {
                    plan.steps.push(self.fail_pod(pod, name, node, &by));
                }
                (Gate::Yes(_), Host::None | Host::Alive { .. } | Host::Unclear) => {
                    plan.steps.push(delete_pod(pod, Manner::Forceful));
                }
                // Whoever reads its claims and its Job wakes us.
                (Gate::No(_), _) if pod.work.copies == Copies::Unread && self.gate.must_read(&pod.work) => {
                    plan.unread += 1;
                }
                (Gate::No(because), Host::Silent { name, node }) => plan.held.push(MachineMayRun {
                    pod: pod.pod.clone(),
                    node: name.clone(),
                    since: node.and_then(NodeView::silent_since),
                    because,
                }),
                // The kubelet ends it.
                (Gate::No(_), Host::Alive { until }) => plan.wake(until),
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
        let is_alive = matches!(host, Host::Alive { .. });
        let is_stopped = is_alive && pod.deletion.is_some() && pod.terminated;
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
            Host::Alive { until } => until,
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
            Some(node) if !node.unreachable => Host::Alive { until: None },
            Some(node) if node.is_silent(self.now) => Host::Silent { name, node: Some(node) },
            Some(node) => {
                let until = node.alive_until(self.now);
                until.map_or(Host::Unclear, |until| Host::Alive { until: Some(until) })
            }
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
    /// What it waits for, if that is a machine.
    pub(super) fn held(&self) -> Option<Held> {
        let (first, more) = self.held.split_first()?;
        Some(Held { first: first.clone(), more: more.len(), unread: self.unread })
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
