//! The rules for the pods of a node that is replaced. They are drained while the node exists, and freed once the node
//! and its machine are gone.
//!
//! **At most once.** A node that is not Ready may still run its pods. A NodeClaim or Machine that is being deleted does
//! not prove that its machine is off: its finalizer stays until the provider confirms that. So no pod is forced before
//! a live read shows that both the Node and its NodeClaim or Machine are gone. From then on Pod GC would force the same
//! pods within a minute.

use std::fmt;

use jiff::Timestamp;
use salvor_api::names::conditions::DISRUPTION_TARGET;
use salvor_api::names::repair::{REPAIR_CONTROLLER, REPAIR_NODE, reasons};

use super::steps::Step;
use super::views::{PodView, Refusal, Stays};
use crate::event::{Condition, EventNote, EventType};
use crate::gate::{Gate, GatePolicy, Kubelet, may_be_forced};
use crate::moments::to_the_second;
use crate::objects::{NodeRef, ObjectRef};
use crate::proof::{Machine, Proof};
use crate::step::Grace;
use crate::verdict::{Decision, Reason, Trace, Verdict, judge};

/// A node that was replaced and is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grave {
    pub node: NodeRef,
    /// The NodeClaim or Machine of the node.
    pub owner: ObjectRef,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodPlace {
    Replaced {
        grave: Grave,
        /// True if a node with that name exists.
        node_is_there: bool,
        /// True if the NodeClaim or Machine exists.
        owner_is_there: bool,
    },
    Drained {
        node: NodeRef,
        /// True if its pods are to be evicted now.
        is_drained: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodWhy {
    /// A node with that name exists, so its kubelet decides.
    NodeIsThere,
    MachineMayRun {
        /// The NodeClaim or Machine that still exists.
        owner: Box<ObjectRef>,
    },
    Ended,
    /// It is already being deleted.
    Going,
    /// A drain does not evict it.
    Stays(Stays),
    NotDrained,
    Refused(Box<Refusal>),
    Drained {
        node: Box<NodeRef>,
    },
    /// The node and its machine are gone.
    Orphaned(Box<Grave>),
}

impl fmt::Display for PodWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeIsThere => f.write_str("a node of that name is there, and its kubelet decides"),
            Self::MachineMayRun { owner } => write!(f, "{owner} is there, so its machine may still run"),
            Self::Ended => f.write_str("it has ended"),
            Self::Going => f.write_str("it is going already"),
            Self::Stays(Stays::Mirror) => f.write_str("it is a static pod"),
            Self::Stays(Stays::DaemonSet) => f.write_str("its DaemonSet would make it again"),
            Self::NotDrained => f.write_str("its node is not drained (any more)"),
            Self::Refused(refusal) => {
                let Refusal { words, until } = &**refusal;
                write!(f, "the API server refused it, and is asked again at {until}: {words}")
            }
            Self::Drained { node } => write!(f, "node {node} is drained"),
            Self::Orphaned(grave) => {
                let Grave { node, owner } = &**grave;
                write!(f, "node {node} was replaced, and both the Node and its {owner} are gone")
            }
        }
    }
}

impl Reason for PodWhy {
    fn code(&self) -> &'static str {
        match self {
            Self::NodeIsThere => "NodeIsThere",
            Self::MachineMayRun { .. } => "MachineMayRun",
            Self::Ended => "Ended",
            Self::Going => "Going",
            Self::Stays(_) => "Stays",
            Self::NotDrained => "NotDrained",
            Self::Refused(_) => "EvictionRefused",
            Self::Drained { .. } => "Drained",
            Self::Orphaned(_) => "Orphaned",
        }
    }

    fn what_would_change_it(&self) -> String {
        match self {
            Self::NodeIsThere => "The node goes.".into(),
            Self::MachineMayRun { owner } => format!("{owner} is gone."),
            Self::Ended | Self::Going | Self::Stays(_) => "Nothing.".into(),
            Self::NotDrained => "Its node is drained.".into(),
            Self::Refused(_) => "The API server, or the pod's PodDisruptionBudget, allows it.".into(),
            Self::Drained { .. } => "The node is healthy.".into(),
            Self::Orphaned(_) => "A node of that name is there.".into(),
        }
    }
}

/// Decides whether a pod is evicted or freed.
pub fn decide_pod(
    pod: &PodView,
    place: &PodPlace,
    refused: Option<&Refusal>,
    gate: &GatePolicy,
    now: Timestamp,
) -> Decision<PodWhy, Step> {
    judge(|ask| match place {
        PodPlace::Replaced { grave, node_is_there, owner_is_there } => {
            let (node_is_there, owner_is_there) = (*node_is_there, *owner_is_there);
            free(ask, pod, &Remains { grave, node_is_there, owner_is_there, gate }, refused, now)
        }
        PodPlace::Drained { node, is_drained } => {
            // The kubelet always counts as silent: on a silent kubelet, deleting a pod without grace period amounts to
            // force.
            let gate = may_be_forced(&pod.work, pod.phase, Kubelet::Silent, &Machine::MayRun, gate);
            let grace = match gate {
                Gate::No(_) if pod.without_grace => Grace::ASecond,
                Gate::No(_) | Gate::Yes(_) => Grace::Own,
            };
            drain(ask, pod, node, grace, *is_drained, refused, now)
        }
    })
}

type PodVerdict = Verdict<PodWhy, Step>;

struct Remains<'a> {
    grave: &'a Grave,
    node_is_there: bool,
    owner_is_there: bool,
    gate: &'a GatePolicy,
}

fn free(
    ask: &mut Trace,
    pod: &PodView,
    remains: &Remains<'_>,
    refused: Option<&Refusal>,
    now: Timestamp,
) -> Result<PodVerdict, PodVerdict> {
    let Remains { grave, node_is_there, owner_is_there, gate } = *remains;
    let yes_no = |there: bool| if there { "it is there" } else { "it is gone" };
    ask.that("Is its Node gone?", yes_no(node_is_there), !node_is_there)
        .ok_or(Verdict::Ignore(PodWhy::NodeIsThere))?;
    ask.that("Is the machine's NodeClaim or Machine gone?", yes_no(owner_is_there), !owner_is_there)
        .ok_or_else(|| Verdict::Ignore(PodWhy::MachineMayRun { owner: Box::new(grave.owner.clone()) }))?;
    let machine = Machine::Off(Proof::MachineGone(grave.owner.clone()));
    let (seen, may_be) = match may_be_forced(&pod.work, pod.phase, Kubelet::Silent, &machine, gate) {
        Gate::Yes(by) => (by.to_string(), true),
        Gate::No(why) => (why, false),
    };
    ask.that("May it be forced?", seen, may_be)
        .ok_or_else(|| Verdict::Ignore(PodWhy::MachineMayRun { owner: Box::new(grave.owner.clone()) }))?;
    // Pods that have ended are deleted too, as Pod GC does. A pod with grace period zero that only finalizers keep was
    // already force deleted.
    let is_held = pod.deletion.is_some_and(|it| it.grace_seconds == Some(0)) && pod.has_ended();
    let seen = if is_held { "yes, and finalizers hold it" } else { "no" };
    ask.that("Is it still to be deleted?", seen, !is_held).ok_or(Verdict::Ignore(PodWhy::Going))?;
    not_refused(ask, refused, now)?;
    let why = PodWhy::Orphaned(Box::new(grave.clone()));
    let (object, resource_version) = (pod.pod.clone(), pod.resource_version.clone());
    let mut actions = Vec::new();
    if !pod.has_ended() {
        let condition = Condition {
            kind: DISRUPTION_TARGET,
            reason: reasons::NODE_REPLACED,
            message: format!("Salvor: {why}"),
            last_transition_time: to_the_second(now),
        };
        actions.push(Step::FailPod {
            pod: object.clone(),
            resource_version: resource_version.clone(),
            condition,
        });
        actions.push(Step::Mention(EventNote {
            name: format!("salvor-repair-pod.{}", object.uid),
            regarding: ObjectRef::from(&object),
            kind: EventType::Normal,
            reason: reasons::NODE_REPLACED.into(),
            action: REPAIR_NODE,
            reporting_controller: REPAIR_CONTROLLER,
            message: why.to_string(),
        }));
    }
    actions.push(Step::ForceDeletePod { pod: object, resource_version });
    Ok(Verdict::Act { actions, why })
}

/// A write that the API server refused is retried after a while.
fn not_refused(ask: &mut Trace, refused: Option<&Refusal>, now: Timestamp) -> Result<(), PodVerdict> {
    let refused = refused.filter(|refusal| now < refusal.until);
    let seen = refused.map_or("no".to_owned(), |refusal| refusal.words.clone());
    ask.none("Did the API server allow it, or was it not asked lately?", seen, refused).map_err(|refusal| {
        Verdict::Wait { until: refusal.until, why: PodWhy::Refused(Box::new(refusal.clone())) }
    })
}

fn drain(
    ask: &mut Trace,
    pod: &PodView,
    node: &NodeRef,
    grace: Grace,
    is_drained: bool,
    refused: Option<&Refusal>,
    now: Timestamp,
) -> Result<PodVerdict, PodVerdict> {
    ask.none("Does a drain evict such pods?", if pod.stays.is_some() { "no" } else { "yes" }, pod.stays)
        .map_err(|stays| Verdict::Ignore(PodWhy::Stays(stays)))?;
    ask.that("Has it not ended?", pod.phase.as_str(), !pod.has_ended())
        .ok_or(Verdict::Ignore(PodWhy::Ended))?;
    let is_going = pod.deletion.is_some();
    ask.that("Is it not going already?", if is_going { "it is" } else { "it is not" }, !is_going)
        .ok_or(Verdict::Ignore(PodWhy::Going))?;
    ask.that("Is its node drained?", if is_drained { "yes" } else { "no" }, is_drained)
        .ok_or(Verdict::Ignore(PodWhy::NotDrained))?;
    not_refused(ask, refused, now)?;
    let why = PodWhy::Drained { node: Box::new(node.clone()) };
    let step = Step::EvictPod { pod: pod.pod.clone(), resource_version: pod.resource_version.clone(), grace };
    Ok(Verdict::Act { actions: vec![step], why })
}
