//! The writes of the repair recovery.

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use salvor_api::names::repair::{REBOOT_CONDITION, annotations, reasons};
use serde::Serialize;
use serde_json::{Value, json};

use super::kept::{self, Kept};
use super::progress::Progress;
use super::status::{Ended, PolicyStatus};
use super::views::NODE_POOL;
use crate::event::{Condition, EventNote, NodeCondition};
use crate::ids::{ResourceVersion, Uid};
use crate::objects::{NodeRef, Object, ObjectRef, PodPhase, PodRef};
use crate::pod_writes;
use crate::step::{
    Changed, Delete, Disrupts, Effect, Errors, Grace, Guard, MENTION, Merge, Patch, SecondLook, StepEvent,
    Verb, Write,
};

/// A repair that begins, with its metric labels. When the API server answers, the node may be gone and its policy
/// changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The policy's name in metrics.
    pub policy: String,
    /// The condition that makes the node sick.
    pub condition: String,
}

/// One guarded write. The API server refuses it if the object is not in the version on which the decision is based.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Writes the state of a repair and the memory to a node.
    Report {
        node: NodeRef,
        resource_version: ResourceVersion,
        /// None if the condition does not change.
        condition: Option<NodeCondition>,
        /// Ends the condition that requested a reboot.
        rebooted: Option<Timestamp>,
        /// None removes the memory.
        progress: Option<Progress>,
    },
    /// Writes a condition to a node, and leaves the memory as it is.
    Tell {
        node: NodeRef,
        /// The write fails if the object has a newer version.
        resource_version: ResourceVersion,
        condition: NodeCondition,
    },
    /// Writes the repairs under way, the counts and the conditions to a policy's status.
    WritePolicy {
        /// A NodeRepairPolicy or a NodePool.
        policy: ObjectRef,
        resource_version: ResourceVersion,
        status: Box<PolicyStatus>,
        /// True if repairs begin with this write.
        begins: bool,
        /// Repairs that end with this write.
        over: Vec<Ended>,
    },
    /// Sets the time from which Karpenter terminates a NodeClaim by force. It is only ever moved earlier.
    TightenTermination {
        claim: ObjectRef,
        resource_version: ResourceVersion,
        at: Timestamp,
        /// The value before Salvor set one; empty if there was none.
        before: String,
        /// True if the NodeClaim is already being deleted, so that this ends its drain.
        hastens: bool,
        /// The node's zone, for the brake.
        zone: String,
    },
    /// Removes the forced termination time set for a repair that is no longer needed. A deletion still in flight names
    /// an older resourceVersion of the NodeClaim, so it is refused from then on.
    TakeBackTermination {
        claim: ObjectRef,
        resource_version: ResourceVersion,
        /// The value before Salvor set one; empty if there was none.
        before: String,
    },
    /// Deletes a NodeClaim or Machine.
    DeleteOwner {
        owner: ObjectRef,
        resource_version: ResourceVersion,
        /// The node's zone, for the brake.
        zone: String,
        #[serde(skip)]
        begun: Begun,
    },
    /// Asks the owner of a Machine to replace it.
    RemediateMachine {
        machine: ObjectRef,
        resource_version: ResourceVersion,
        /// The node's zone, for the brake.
        zone: String,
        #[serde(skip)]
        begun: Begun,
    },
    /// Cordons a node, and records that Salvor did it.
    Cordon {
        node: NodeRef,
        resource_version: ResourceVersion,
        progress: Progress,
        #[serde(skip)]
        begun: Begun,
    },
    /// Uncordons a node that Salvor cordoned.
    Uncordon {
        node: NodeRef,
        resource_version: ResourceVersion,
        /// None removes the memory.
        progress: Option<Progress>,
    },
    /// Removes everything of Salvor's from a node that no policy selects any more.
    Forget {
        node: NodeRef,
        resource_version: ResourceVersion,
        /// Salvor's conditions on the node.
        conditions: Vec<&'static str>,
        /// True if the node requests a reboot.
        rebooting: bool,
    },
    /// Evicts a pod from a drained node, as PodDisruptionBudgets allow.
    EvictPod {
        pod: PodRef,
        resource_version: ResourceVersion,
        #[serde(skip)]
        grace: Grace,
    },
    /// Marks a pod Failed whose node and machine are gone.
    FailPod {
        pod: PodRef,
        /// The write fails if the object has a newer version.
        resource_version: ResourceVersion,
        condition: Condition,
    },
    /// Deletes a pod whose node and machine are gone, without a grace period.
    ForceDeletePod {
        pod: PodRef,
        /// The write fails if the object has a newer version.
        resource_version: ResourceVersion,
    },
    /// Deletes a Node that nothing owns.
    DeleteNode {
        node: NodeRef,
        resource_version: ResourceVersion,
        /// The node's zone, for the brake.
        zone: String,
        #[serde(skip)]
        begun: Begun,
    },
    /// Saves the metadata of a Node that is deleted next.
    KeepNode {
        policy: ObjectRef,
        resource_version: ResourceVersion,
        node: NodeRef,
        node_version: ResourceVersion,
        /// The saved metadata of other Nodes.
        #[serde(skip)]
        kept: Vec<Kept>,
        /// Taint keys that declare a machine lost.
        #[serde(skip)]
        lost: Vec<String>,
        at: Timestamp,
    },
    /// Drops the saved metadata of a deleted Node.
    ForgetNode {
        policy: ObjectRef,
        resource_version: ResourceVersion,
        /// The saved metadata of other Nodes.
        #[serde(skip)]
        kept: Vec<Kept>,
    },
    /// Restores the saved metadata of a deleted Node, as far as it is missing.
    PutBack {
        node: NodeRef,
        /// The write fails if the object has a newer version.
        resource_version: ResourceVersion,
        kept: Box<Kept>,
    },
    /// Asks an agent to reboot a node.
    RequestReboot {
        node: NodeRef,
        resource_version: ResourceVersion,
        at: Timestamp,
        progress: Progress,
        /// The node's zone, for the brake.
        zone: String,
        #[serde(skip)]
        begun: Begun,
    },
    /// Records an event on a best-effort basis.
    Mention(EventNote),
}

impl crate::step::Step for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::Report { .. } | Self::Tell { .. } => "ReportRepair",
            Self::WritePolicy { .. } => "WriteRepairPolicy",
            Self::TightenTermination { .. } => "TightenTermination",
            Self::TakeBackTermination { .. } => "TakeBackTermination",
            Self::DeleteOwner { .. } => "DeleteNodeOwner",
            Self::RemediateMachine { .. } => "RemediateMachine",
            Self::Cordon { .. } => "CordonNode",
            Self::Uncordon { .. } => "UncordonNode",
            Self::Forget { .. } => "ForgetRepair",
            Self::EvictPod { .. } => "EvictPodFromSickNode",
            Self::FailPod { .. } => "FailOrphanedPod",
            Self::ForceDeletePod { .. } => "DeleteOrphanedPod",
            Self::DeleteNode { .. } => "DeleteNode",
            Self::KeepNode { .. } => "KeepNodeMetadata",
            Self::ForgetNode { .. } => "ForgetNodeMetadata",
            Self::PutBack { .. } => "PutBackNodeMetadata",
            Self::RequestReboot { .. } => "RequestReboot",
            Self::Mention(_) => MENTION,
        }
    }

    fn object(&self) -> Object<'_> {
        match self {
            Self::Report { node, .. }
            | Self::Tell { node, .. }
            | Self::Cordon { node, .. }
            | Self::Uncordon { node, .. }
            | Self::Forget { node, .. }
            | Self::DeleteNode { node, .. }
            | Self::PutBack { node, .. }
            | Self::RequestReboot { node, .. } => node.object(),
            Self::EvictPod { pod, .. } | Self::FailPod { pod, .. } | Self::ForceDeletePod { pod, .. } => {
                pod.object()
            }
            Self::WritePolicy { policy, .. }
            | Self::KeepNode { policy, .. }
            | Self::ForgetNode { policy, .. } => policy.as_object(),
            Self::TightenTermination { claim: object, .. }
            | Self::TakeBackTermination { claim: object, .. }
            | Self::DeleteOwner { owner: object, .. }
            | Self::RemediateMachine { machine: object, .. } => object.as_object(),
            Self::Mention(note) => note.regarding.as_object(),
        }
    }

    fn effect(&self) -> Effect<'_> {
        // A server error is reported on the node, and the step backs off.
        let errors = Errors::HoldTheStep;
        match self {
            Self::Report { .. }
            | Self::Tell { .. }
            | Self::TakeBackTermination { .. }
            | Self::KeepNode { .. }
            | Self::ForgetNode { .. }
            | Self::PutBack { .. }
            | Self::Uncordon { .. } => Effect::WRITES_DOWN,
            // A stale cache may lack a policy that selects the node, so this waits until the cache is fresh.
            Self::Forget { .. } => Effect { starts_work: true, ..Effect::WRITES_DOWN },
            // A node is touched only if the policy's status lists its repair, and this write names the resourceVersion
            // of the decision. So two writers, or a stale cache, can never begin more repairs than the budget allows.
            Self::WritePolicy { begins, .. } => Effect { starts_work: *begins, ..Effect::WRITES_DOWN },
            // Preparations do not count against the brake's rates: a node counts once, with the write that ends it.
            Self::TightenTermination { hastens: false, .. } | Self::Cordon { .. } => {
                Effect { errors, ..Effect::takes(Disrupts::WhatWasBegun) }
            }
            Self::TightenTermination { zone, .. }
            | Self::DeleteOwner { zone, .. }
            | Self::RemediateMachine { zone, .. }
            | Self::DeleteNode { zone, .. }
            | Self::RequestReboot { zone, .. } => Effect { errors, ..Effect::takes(Disrupts::Node { zone }) },
            Self::EvictPod { .. } => Effect {
                second_look: SecondLook::AllButTheObject,
                errors,
                ..Effect::takes(Disrupts::Pods(1))
            },
            // The brake counted the machine when it was ended.
            Self::FailPod { .. } => Effect {
                second_look: SecondLook::AllButTheObject,
                errors,
                ..Effect::takes(Disrupts::WhatWasBegun)
            },
            Self::ForceDeletePod { .. } => Effect { errors, ..Effect::takes(Disrupts::WhatWasBegun) },
            Self::Mention(_) => Effect::TELLS,
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            // The event's name may contain a time that differs between decisions.
            Self::Mention(note) => Cow::Borrowed(&note.reason),
            Self::Report { .. }
            | Self::Tell { .. }
            | Self::WritePolicy { .. }
            | Self::TightenTermination { .. }
            | Self::TakeBackTermination { .. }
            | Self::DeleteOwner { .. }
            | Self::RemediateMachine { .. }
            | Self::Cordon { .. }
            | Self::Uncordon { .. }
            | Self::Forget { .. }
            | Self::EvictPod { .. }
            | Self::FailPod { .. }
            | Self::ForceDeletePod { .. }
            | Self::DeleteNode { .. }
            | Self::KeepNode { .. }
            | Self::ForgetNode { .. }
            | Self::PutBack { .. }
            | Self::RequestReboot { .. } => Cow::Borrowed(""),
        }
    }

    fn tells(&self) -> Option<StepEvent<'_>> {
        match self {
            Self::Mention(note) => Some(StepEvent::BestEffort(note)),
            Self::Report { .. }
            | Self::Tell { .. }
            | Self::WritePolicy { .. }
            | Self::TightenTermination { .. }
            | Self::TakeBackTermination { .. }
            | Self::DeleteOwner { .. }
            | Self::RemediateMachine { .. }
            | Self::Cordon { .. }
            | Self::Uncordon { .. }
            | Self::Forget { .. }
            | Self::EvictPod { .. }
            | Self::FailPod { .. }
            | Self::ForceDeletePod { .. }
            | Self::DeleteNode { .. }
            | Self::KeepNode { .. }
            | Self::ForgetNode { .. }
            | Self::PutBack { .. }
            | Self::RequestReboot { .. } => None,
        }
    }

    fn headline(&self) -> Option<&'static str> {
        match self {
            Self::DeleteOwner { .. } | Self::DeleteNode { .. } | Self::RemediateMachine { .. } => {
                Some("began to replace")
            }
            Self::TightenTermination { .. } => Some("ends by force"),
            Self::Cordon { .. } => Some("cordoned"),
            Self::Uncordon { .. } => Some("uncordoned"),
            Self::EvictPod { .. } => Some("evicted"),
            Self::FailPod { .. } => Some("marked Failed"),
            Self::ForceDeletePod { .. } => Some("force deleted"),
            Self::RequestReboot { .. } => Some("requested a reboot of"),
            Self::Report { .. }
            | Self::Tell { .. }
            | Self::WritePolicy { .. }
            | Self::TakeBackTermination { .. }
            | Self::Forget { .. }
            | Self::KeepNode { .. }
            | Self::ForgetNode { .. }
            | Self::PutBack { .. }
            | Self::Mention(_) => None,
        }
    }

    fn reads(&self) -> Vec<Object<'_>> {
        match self {
            Self::KeepNode { node, .. } | Self::PutBack { node, .. } => vec![node.object()],
            Self::Report { .. }
            | Self::Tell { .. }
            | Self::WritePolicy { .. }
            | Self::TightenTermination { .. }
            | Self::TakeBackTermination { .. }
            | Self::DeleteOwner { .. }
            | Self::RemediateMachine { .. }
            | Self::Cordon { .. }
            | Self::Uncordon { .. }
            | Self::Forget { .. }
            | Self::EvictPod { .. }
            | Self::FailPod { .. }
            | Self::ForceDeletePod { .. }
            | Self::DeleteNode { .. }
            | Self::ForgetNode { .. }
            | Self::RequestReboot { .. }
            | Self::Mention(_) => Vec::new(),
        }
    }

    fn write(&self, read: &[Option<Value>]) -> Result<Write<'_>, Changed> {
        let (guard, verb) = match self {
            Self::Report { node, resource_version, condition, rebooted, progress } => {
                let mut conditions: Vec<Value> = condition.iter().map(node_condition).collect();
                conditions.extend(rebooted.map(|at| reboot_condition(false, at)));
                let mut patch = match conditions.as_slice() {
                    [] => Patch::metadata(Merge::Strategic, serde_json::Map::new()),
                    // A strategic merge patch merges conditions by type.
                    conditions => Patch::status(Merge::Strategic, &json!({ "conditions": conditions }))?,
                };
                patch = patch.annotated(annotations::PROGRESS, progress.as_ref().map(annotation));
                if rebooted.is_some() {
                    patch = patch.annotated(annotations::REBOOT_REQUESTED, None);
                }
                (judged(&node.uid, resource_version), Verb::Patch(patch.unless_gone()))
            }
            Self::Tell { node, resource_version, condition } => {
                let status = json!({ "conditions": [node_condition(condition)] });
                let patch = Patch::status(Merge::Strategic, &status)?;
                (judged(&node.uid, resource_version), Verb::Patch(patch.unless_gone()))
            }
            Self::WritePolicy { policy, resource_version, status, .. } => {
                let patch = if policy.kind == NODE_POOL {
                    Patch::metadata(Merge::Plain, serde_json::Map::new())
                        .annotated(annotations::REPAIRS, status.annotation())
                } else {
                    Patch::status(Merge::Plain, status)?
                };
                (judged(&policy.uid, resource_version), Verb::Patch(patch))
            }
            Self::TightenTermination { claim, resource_version, at, before, .. } => {
                let patch = Patch::metadata(Merge::Plain, serde_json::Map::new())
                    .annotated(annotations::TERMINATION_TIMESTAMP, Some(at.to_string()))
                    .annotated(annotations::TERMINATION_BEFORE, Some(before.clone()));
                (judged(&claim.uid, resource_version), Verb::Patch(patch))
            }
            Self::TakeBackTermination { claim, resource_version, before } => {
                let before = Some(before).filter(|before| !before.is_empty());
                let patch = Patch::metadata(Merge::Plain, serde_json::Map::new())
                    .annotated(annotations::TERMINATION_TIMESTAMP, before.cloned())
                    .annotated(annotations::TERMINATION_BEFORE, None);
                (judged(&claim.uid, resource_version), Verb::Patch(patch.unless_gone()))
            }
            Self::RemediateMachine { machine, resource_version, .. } => {
                let patch = Patch::metadata(Merge::Plain, serde_json::Map::new())
                    .annotated(annotations::REMEDIATE_MACHINE, Some(String::new()));
                (judged(&machine.uid, resource_version), Verb::Patch(patch))
            }
            Self::DeleteOwner { owner, resource_version, .. } => {
                (judged(&owner.uid, resource_version), Verb::Delete(Delete::OWN_GRACE))
            }
            Self::KeepNode { policy, resource_version, node, node_version, kept, lost, at } => {
                let Some(Some(object)) = read.first() else { return Err(Changed) };
                let all = kept::with(kept, Kept::of(object, &node.uid, node_version, lost, *at)?);
                let patch = Patch::status(Merge::Plain, &json!({ "deletedNodes": all }))?;
                (judged(&policy.uid, resource_version), Verb::Patch(patch))
            }
            Self::ForgetNode { policy, resource_version, kept } => {
                let patch = Patch::status(Merge::Plain, &json!({ "deletedNodes": kept }))?;
                (judged(&policy.uid, resource_version), Verb::Patch(patch.unless_gone()))
            }
            Self::PutBack { node, resource_version, kept } => {
                let patch = kept.patch(read, node, resource_version)?;
                (judged(&node.uid, resource_version), Verb::Patch(patch))
            }
            Self::DeleteNode { node, resource_version, .. } => {
                (judged(&node.uid, resource_version), Verb::Delete(Delete::OWN_GRACE))
            }
            Self::Cordon { node, resource_version, progress, .. } => {
                let patch = Patch::spec(&json!({ "unschedulable": true }))?
                    .annotated(annotations::PROGRESS, Some(annotation(progress)));
                (judged(&node.uid, resource_version), Verb::Patch(patch))
            }
            Self::Uncordon { node, resource_version, progress } => {
                let patch = Patch::spec(&json!({ "unschedulable": null }))?
                    .annotated(annotations::PROGRESS, progress.as_ref().map(annotation));
                (judged(&node.uid, resource_version), Verb::Patch(patch.unless_gone()))
            }
            Self::Forget { node, resource_version, conditions, rebooting } => {
                let gone = |kind: &&str| json!({ "$patch": "delete", "type": kind });
                let mut patch = if conditions.is_empty() {
                    Patch::metadata(Merge::Strategic, serde_json::Map::new())
                } else {
                    let conditions: Vec<Value> = conditions.iter().map(gone).collect();
                    Patch::status(Merge::Strategic, &json!({ "conditions": conditions }))?
                };
                patch = patch.annotated(annotations::PROGRESS, None);
                if *rebooting {
                    patch = patch.annotated(annotations::REBOOT_REQUESTED, None);
                }
                (judged(&node.uid, resource_version), Verb::Patch(patch.unless_gone()))
            }
            Self::EvictPod { pod, resource_version, grace } => {
                (judged(&pod.uid, resource_version), Verb::Evict(*grace))
            }
            Self::FailPod { pod, resource_version, condition } => {
                let guard = judged(&pod.uid, resource_version);
                let failed = Some(PodPhase::Failed);
                return pod_writes::patch_status(self, guard, failed, std::slice::from_ref(condition), None);
            }
            Self::ForceDeletePod { pod, resource_version } => {
                let guard = judged(&pod.uid, resource_version);
                return Ok(pod_writes::delete(self, guard, Delete::NO_GRACE));
            }
            Self::RequestReboot { node, resource_version, at, progress, .. } => {
                let status = json!({ "conditions": [reboot_condition(true, *at)] });
                let patch = Patch::status(Merge::Strategic, &status)?
                    .annotated(annotations::REBOOT_REQUESTED, Some(at.to_string()))
                    .annotated(annotations::PROGRESS, Some(annotation(progress)));
                (judged(&node.uid, resource_version), Verb::Patch(patch))
            }
            Self::Mention(note) => return Ok(Write::event(note)),
        };
        Ok(Write::of(self, guard, verb))
    }
}

fn judged<'a>(uid: &'a Uid, resource_version: &'a ResourceVersion) -> Guard<'a> {
    Guard::Judged { uid, resource_version }
}

fn annotation(memory: &Progress) -> String {
    // Times and strings always serialize to JSON.
    serde_json::to_string(memory).unwrap_or_default()
}

fn node_condition(condition: &NodeCondition) -> Value {
    json!({
        "type": condition.kind,
        "status": if condition.holds { "True" } else { "False" },
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": condition.last_transition_time,
        "lastTransitionTime": condition.last_transition_time,
    })
}

fn reboot_condition(requested: bool, at: Timestamp) -> Value {
    let (reason, message) = if requested {
        (reasons::REBOOT_REQUESTED, "Salvor asks for a reboot of this node, which has been sick for too long")
    } else {
        (reasons::REBOOTED, "The node was rebooted, or needs no reboot any more")
    };
    let condition = NodeCondition {
        kind: REBOOT_CONDITION,
        holds: requested,
        reason,
        message: message.into(),
        last_transition_time: at,
    };
    node_condition(&condition)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report { node, condition: Some(condition), .. } | Self::Tell { node, condition, .. } => {
                write!(
                    f,
                    "report on node {node}: {}={} ({})",
                    condition.kind, condition.holds, condition.reason
                )
            }
            Self::Report { node, condition: None, .. } => {
                write!(f, "remember on node {node} since when it is sick")
            }
            Self::WritePolicy { policy, status, .. } => {
                write!(
                    f,
                    "write down on {policy}: {} repairs under way, {} over",
                    status.repairs.len(),
                    status.repaired
                )
            }
            Self::TightenTermination { claim, at, .. } => {
                write!(f, "terminate {claim} by force from {at} on")
            }
            Self::TakeBackTermination { claim, .. } => {
                write!(f, "take back the forced termination of {claim}")
            }
            Self::DeleteOwner { owner, .. } => write!(f, "delete {owner}"),
            Self::RemediateMachine { machine, .. } => write!(f, "ask the owner of {machine} to replace it"),
            Self::Cordon { node, .. } => write!(f, "keep new pods away from node {node}"),
            Self::Uncordon { node, .. } => write!(f, "let pods onto node {node} again"),
            Self::Forget { node, .. } => write!(f, "take all that is Salvor's off node {node}"),
            Self::EvictPod { pod, .. } => write!(f, "evict pod {pod}, as disruption budgets allow"),
            Self::FailPod { pod, condition, .. } => {
                pod_writes::tell_patch(f, pod, Some(PodPhase::Failed), std::slice::from_ref(condition))
            }
            Self::ForceDeletePod { pod, .. } => write!(f, "delete pod {pod} at once"),
            Self::DeleteNode { node, .. } => write!(f, "delete node {node}"),
            Self::KeepNode { node, policy, .. } => {
                write!(f, "write down on {policy} what stands on node {node}")
            }
            Self::ForgetNode { policy, .. } => {
                write!(f, "forget on {policy} what stood on a node that is back")
            }
            Self::PutBack { node, .. } => write!(f, "put labels, annotations and taints back on node {node}"),
            Self::RequestReboot { node, .. } => write!(f, "request a reboot of node {node}"),
            Self::Mention(note) => note.fmt(f),
        }
    }
}
