//! The writes of the eviction recovery.

use std::{borrow::Cow, fmt};

use salvor_api::names::{annotations, taints};
use serde::Serialize;
use serde_json::{Value, json};

use super::memory::{Asked, Progress};
use super::views::{AttachmentView, REPORT};
use super::volumes::{Outcome, Volumes};
use crate::event::{Condition, EventNote, NodeCondition};
use crate::gate::Claim;
use crate::ids::ResourceVersion;
use crate::objects::{NodeRef, Object, PodPhase, PodRef, Taint};
use crate::pod_writes;
use crate::step::{
    Changed, Delete, Disrupts, EMIT_EVENT, Effect, Guard, Merge, Patch, SecondLook, StepEvent, Verb, Write,
};
use crate::taints::Taints;

/// How many of the kept claims the sentence of a step names.
const CLAIMS_NAMED: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Patches a pod's status, if the pod is still in the state that the decision rests on.
    PatchPodStatus {
        pod: PodRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        /// None keeps the phase.
        phase: Option<PodPhase>,
        conditions: Vec<Condition>,
    },
    EmitEvent(EventNote),
    /// Deletes a pod with grace period zero, if it is still in the state that the decision rests on.
    ForceDeletePod {
        pod: PodRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
    },
    /// Deletes a pod with its own grace period because its node is evicted, if it is still in the state that the
    /// decision rests on.
    EvictPod {
        pod: PodRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
    },
    /// Records on a node that its eviction has begun, and taints it so that its kubelet refuses pods, if the node is
    /// still in the state that the decision rests on.
    StartEviction {
        node: NodeRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        /// The taint to add, if it is not there.
        taint: Option<Taint>,
        progress: Progress,
        /// The node's zone, for the brake.
        zone: String,
    },
    /// Writes the condition of a node's eviction, and its progress, if the node is still in the state that the decision
    /// rests on.
    ReportEviction {
        node: NodeRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        condition: NodeCondition,
        /// None if it does not change.
        progress: Option<Progress>,
    },
    /// Removes volumes from a node's `volumesInUse`, so that they are detached, if the node is still in the state that
    /// the decision rests on.
    ReleaseVolumes {
        node: NodeRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        in_use: Vec<String>,
        attached: Vec<AttachmentView>,
        /// The attached volumes in the node's status.
        attached_names: Vec<String>,
        /// Claims whose volumes stay, in order.
        keep: Vec<Claim>,
        /// The progress of the eviction; the step adds the volumes that stay, and whether all do.
        progress: Progress,
    },
    /// Removes every taint with our key from a node, if the node is still in the state that the decision rests on.
    EndEviction {
        node: NodeRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        /// The part of the progress that is kept.
        progress: Option<Progress>,
        /// The record of a request whose taint is removed early.
        asked: Option<Asked>,
    },
}

impl Step {
    fn volumes(&self) -> Option<Volumes<'_>> {
        match self {
            Self::ReleaseVolumes { in_use, attached, attached_names, keep, .. } => {
                Some(Volumes { in_use, attached, attached_names, keep })
            }
            Self::PatchPodStatus { .. }
            | Self::EmitEvent(_)
            | Self::ForceDeletePod { .. }
            | Self::EvictPod { .. }
            | Self::StartEviction { .. }
            | Self::ReportEviction { .. }
            | Self::EndEviction { .. } => None,
        }
    }
}

impl crate::step::Step for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::PatchPodStatus { .. } => "PatchPodStatus",
            Self::EmitEvent(_) => EMIT_EVENT,
            Self::ForceDeletePod { .. } => "ForceDeletePod",
            Self::EvictPod { .. } => "EvictPod",
            Self::StartEviction { .. } => "StartEviction",
            Self::ReportEviction { .. } => REPORT,
            Self::ReleaseVolumes { .. } => "ReleaseVolumes",
            Self::EndEviction { .. } => "EndEviction",
        }
    }

    fn object(&self) -> Object<'_> {
        match self {
            Self::PatchPodStatus { pod, .. }
            | Self::ForceDeletePod { pod, .. }
            | Self::EvictPod { pod, .. } => pod.object(),
            Self::StartEviction { node, .. }
            | Self::ReportEviction { node, .. }
            | Self::ReleaseVolumes { node, .. }
            | Self::EndEviction { node, .. } => node.object(),
            Self::EmitEvent(note) => note.regarding.as_object(),
        }
    }

    fn effect(&self) -> Effect<'_> {
        match self {
            // Phase Failed and a deletion are never undone, and the taint that both rest on may have been removed
            // unnoticed.
            Self::PatchPodStatus { .. } | Self::EvictPod { .. } => {
                Effect { second_look: SecondLook::AllButTheObject, ..Effect::takes(Disrupts::Pods(1)) }
            }
            // A pod counts with its status patch, and a node's volumes count with the node.
            Self::ForceDeletePod { .. } | Self::ReleaseVolumes { .. } => {
                Effect::takes(Disrupts::WhatWasBegun)
            }
            Self::StartEviction { zone, .. } => Effect::takes(Disrupts::Node { zone }),
            Self::ReportEviction { .. } => Effect::WRITES_DOWN,
            // Without the taint a kubelet accepts pods again.
            Self::EndEviction { .. } => Effect { second_look: SecondLook::Everything, ..Effect::WRITES_DOWN },
            Self::EmitEvent(_) => Effect::TELLS,
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            // A person approves the claims that stay, so another decision must name the same ones.
            Self::ReleaseVolumes { keep, .. } => {
                Cow::Owned(keep.iter().map(|claim| format!("{claim} ")).collect())
            }
            // The name of the event may contain a time that another decision computes differently.
            Self::EmitEvent(note) => Cow::Borrowed(&note.reason),
            Self::PatchPodStatus { .. }
            | Self::ForceDeletePod { .. }
            | Self::EvictPod { .. }
            | Self::StartEviction { .. }
            | Self::ReportEviction { .. }
            | Self::EndEviction { .. } => Cow::Borrowed(""),
        }
    }

    fn tells(&self) -> Option<StepEvent<'_>> {
        match self {
            Self::EmitEvent(note) => Some(StepEvent::Recorded(note)),
            Self::PatchPodStatus { .. }
            | Self::ForceDeletePod { .. }
            | Self::EvictPod { .. }
            | Self::StartEviction { .. }
            | Self::ReportEviction { .. }
            | Self::ReleaseVolumes { .. }
            | Self::EndEviction { .. } => None,
        }
    }

    fn headline(&self) -> Option<&'static str> {
        match self {
            Self::PatchPodStatus { .. } => Some("marked Failed"),
            Self::ForceDeletePod { .. } => Some("force deleted"),
            Self::EvictPod { .. } => Some("evicted"),
            Self::StartEviction { .. } => Some("began to evict"),
            Self::ReleaseVolumes { .. } => Some("released the volumes of"),
            Self::EndEviction { .. } => Some("untainted"),
            Self::EmitEvent(_) | Self::ReportEviction { .. } => None,
        }
    }

    fn reads(&self) -> Vec<Object<'_>> {
        match self {
            Self::StartEviction { node, .. } | Self::EndEviction { node, .. } => vec![node.object()],
            Self::PatchPodStatus { .. }
            | Self::EmitEvent(_)
            | Self::ForceDeletePod { .. }
            | Self::EvictPod { .. }
            | Self::ReportEviction { .. }
            | Self::ReleaseVolumes { .. } => {
                self.volumes().map(|volumes| volumes.volumes_to_read()).unwrap_or_default()
            }
        }
    }

    fn write(&self, read: &[Option<Value>]) -> Result<Write<'_>, Changed> {
        let (guard, patch) = match self {
            Self::PatchPodStatus { pod, resource_version, phase, conditions } => {
                let guard = Guard::Judged { uid: &pod.uid, resource_version };
                return pod_writes::patch_status(self, guard, *phase, conditions, None);
            }
            Self::ForceDeletePod { pod, resource_version } => {
                let guard = Guard::Judged { uid: &pod.uid, resource_version };
                return Ok(pod_writes::delete(self, guard, Delete::NO_GRACE));
            }
            Self::EvictPod { pod, resource_version } => {
                let guard = Guard::Judged { uid: &pod.uid, resource_version };
                return Ok(pod_writes::delete(self, guard, Delete::OWN_GRACE));
            }
            Self::EmitEvent(note) => return Ok(Write::event(note)),
            Self::StartEviction { node, resource_version, taint, progress, .. } => {
                let taints = Taints::judged(read, node, resource_version)?;
                let taints = match taint {
                    Some(taint) => taints.with(taint, Some(progress.started)),
                    None => taints,
                };
                let patch = taints.patch()?.annotated(annotations::EVICTION, Some(annotation(progress)));
                (Guard::Judged { uid: &node.uid, resource_version }, patch)
            }
            Self::EndEviction { node, resource_version, progress, asked } => {
                let taints = Taints::judged(read, node, resource_version)?;
                let patch = taints.without_key(taints::FORCE_EVICTION).patch()?;
                let patch = patch
                    .annotated(annotations::EVICTION, progress.as_ref().map(annotation))
                    .annotated(annotations::EVICTION_ASKED, asked.as_ref().map(annotation))
                    // A person's override for this eviction does not apply to the next one.
                    .annotated(annotations::DESPITE_ZONE_OUTAGE, None);
                (Guard::Judged { uid: &node.uid, resource_version }, patch)
            }
            Self::ReportEviction { node, resource_version, condition, progress } => {
                let status = json!({ "conditions": [node_condition(condition)] });
                // Strategic: conditions are merged by their type.
                let mut patch = Patch::status(Merge::Strategic, &status)?;
                if let Some(progress) = progress {
                    patch = patch.annotated(annotations::EVICTION, Some(annotation(progress)));
                }
                (Guard::Judged { uid: &node.uid, resource_version }, patch)
            }
            Self::ReleaseVolumes { node, resource_version, in_use, progress, .. } => {
                let Some(Outcome { left, kept }) = self.volumes().map(|volumes| volumes.settle(read)) else {
                    return Err(Changed);
                };
                let mut progress = progress.clone();
                if let Some(released) = &mut progress.released {
                    released.volumes = kept;
                    released.kept_all &= left.len() == in_use.len();
                }
                // The list of volumes is replaced whole.
                let patch = Patch::status(Merge::Strategic, &json!({ "volumesInUse": left }))?;
                let patch = patch.annotated(annotations::EVICTION, Some(annotation(&progress)));
                (Guard::Judged { uid: &node.uid, resource_version }, patch)
            }
        };
        Ok(Write::of(self, guard, Verb::Patch(patch)))
    }
}

fn annotation(memory: &impl Serialize) -> String {
    // Times and strings always have a JSON form.
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

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchPodStatus { pod, phase, conditions, .. } => {
                pod_writes::tell_patch(f, pod, *phase, conditions)
            }
            Self::EmitEvent(note) => note.fmt(f),
            Self::ForceDeletePod { pod, .. } => write!(f, "delete pod {pod} with no grace"),
            Self::EvictPod { pod, .. } => write!(f, "evict pod {pod} with its own grace"),
            Self::StartEviction { node, taint: Some(taint), .. } => {
                write!(f, "begin to evict node {node}, and taint it with {taint}")
            }
            Self::StartEviction { node, taint: None, .. } => write!(f, "begin to evict node {node}"),
            Self::ReportEviction { node, condition, .. } => {
                write!(
                    f,
                    "report on node {node}: {}={} ({})",
                    condition.kind, condition.holds, condition.reason
                )
            }
            Self::ReleaseVolumes { node, keep, .. } => {
                write!(f, "release the volumes of evicted pods that node {node} has in use")?;
                // A tenant may have thousands of claims.
                let (named, more) = keep.split_at(keep.len().min(CLAIMS_NAMED));
                named.iter().try_for_each(|claim| write!(f, ", but not that of claim {claim}"))?;
                if more.is_empty() { Ok(()) } else { write!(f, ", nor those of {} more", more.len()) }
            }
            Self::EndEviction { node, .. } => {
                write!(f, "take the taint {} off node {node}", taints::FORCE_EVICTION)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Grace, Step as _};

    /// A pod that has come back to life since, or another one of its name, is not ended.
    #[test]
    fn pods_are_ended_only_in_the_state_that_was_judged() {
        let pod = PodRef { uid: "p".into(), namespace: "ns".into(), name: "p".into() };
        let resource_version = ResourceVersion::from("7");
        let guard = Guard::Judged { uid: &pod.uid, resource_version: &resource_version };
        let fail = Step::PatchPodStatus {
            pod: pod.clone(),
            resource_version: resource_version.clone(),
            phase: Some(PodPhase::Failed),
            conditions: Vec::new(),
        };
        let force = Step::ForceDeletePod { pod: pod.clone(), resource_version: resource_version.clone() };
        let evict = Step::EvictPod { pod: pod.clone(), resource_version: resource_version.clone() };
        for (step, grace, disrupts) in [
            (fail, None, Disrupts::Pods(1)),
            (force, Some(Grace::None), Disrupts::WhatWasBegun),
            (evict, Some(Grace::Own), Disrupts::Pods(1)),
        ] {
            let write = step.write(&[]).unwrap();
            assert_eq!(write.guard, guard, "{step}");
            let found = if let Verb::Delete(delete) = write.verb { Some(delete.grace) } else { None };
            assert_eq!(found, grace, "{step}");
            assert_eq!(step.effect().disrupts, disrupts, "{step}");
            assert!(step.is_irreversible(), "{step}");
        }
    }
}
