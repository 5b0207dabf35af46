//! The writes of zombie recovery.

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use salvor_api::names::annotations;
use serde::Serialize;
use serde_json::{Value, json};

use super::job_facts::Raised;
use crate::event::{Condition, EventNote};
use crate::ids::ResourceVersion;
use crate::objects::{JobRef, NodeRef, Object, PodPhase, PodRef, Taint};
use crate::pod_writes;
use crate::step::{
    Changed, Delete, Disrupts, EMIT_EVENT, Effect, Guard, MENTION, Patch, SecondLook, StepEvent, Verb, Write,
};
use crate::taints::Taints;

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
        /// When its work ended, if it is known: since then it is not Ready. Job controllers count from there.
        #[serde(skip_serializing_if = "Option::is_none")]
        ended: Option<Timestamp>,
    },
    /// Raises the `backoffLimit` of a Job and records for which pods, if the Job is still in the state that was read.
    RaiseBackoffLimit {
        job: JobRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        backoff_limit: u32,
        raised: Raised,
    },
    EmitEvent(EventNote),
    /// Records an event on a best-effort basis: nothing waits for it.
    Mention(EventNote),
    /// Deletes a pod with grace period zero, if it is still in the state that the decision rests on.
    ForceDeletePod {
        pod: PodRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
    },
    /// Adds a taint to a node, and an annotation that marks it as ours, if the node is still in the state that the
    /// decision rests on.
    TaintNode {
        node: NodeRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        taint: Taint,
        /// The key of the annotation.
        mark: &'static str,
        /// The value of the annotation.
        since: Timestamp,
        /// The machine's boot ID, if it is known: another annotation.
        boot: Option<String>,
    },
    /// Removes a taint that Salvor added to a node, and the annotation with it, if the node is still in the state that
    /// the decision rests on.
    UntaintNode {
        node: NodeRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        /// The taint to remove, if it is there.
        taint: Taint,
        /// The key of the annotation.
        mark: &'static str,
    },
}

impl crate::step::Step for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::PatchPodStatus { .. } => "PatchPodStatus",
            Self::RaiseBackoffLimit { .. } => "RaiseBackoffLimit",
            Self::EmitEvent(_) => EMIT_EVENT,
            Self::Mention(_) => MENTION,
            Self::ForceDeletePod { .. } => "ForceDeletePod",
            Self::TaintNode { .. } => "TaintNode",
            Self::UntaintNode { .. } => "UntaintNode",
        }
    }

    fn object(&self) -> Object<'_> {
        match self {
            Self::PatchPodStatus { pod, .. } | Self::ForceDeletePod { pod, .. } => pod.object(),
            Self::RaiseBackoffLimit { job, .. } => job.object(),
            Self::TaintNode { node, .. } | Self::UntaintNode { node, .. } => node.object(),
            Self::EmitEvent(note) | Self::Mention(note) => note.regarding.as_object(),
        }
    }

    fn effect(&self) -> Effect<'_> {
        match self {
            // Phase Failed is never undone, and the node may have recovered unnoticed.
            Self::PatchPodStatus { .. } => {
                Effect { second_look: SecondLook::AllButTheObject, ..Effect::takes(Disrupts::Pods(1)) }
            }
            // The limit is never lowered again, so an outage that blocks the pods blocks this too. The pods count with
            // their status patches. The decision is about the pod, not the Job.
            Self::RaiseBackoffLimit { .. } => {
                Effect { changes_what_was_judged: false, ..Effect::takes(Disrupts::WhatWasBegun) }
            }
            // The pod counts with its status patch.
            Self::ForceDeletePod { .. } => Effect::takes(Disrupts::WhatWasBegun),
            // On an out-of-service node Kubernetes itself force deletes pods and detaches volumes.
            Self::TaintNode { .. } => Effect::takes(Disrupts::NodeWithAllPods),
            // Leases are not watched.
            Self::UntaintNode { .. } => Effect { second_look: SecondLook::Everything, ..Effect::WRITES_DOWN },
            Self::EmitEvent(_) | Self::Mention(_) => Effect::TELLS,
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            // The name of the event may contain a time that another decision computes differently.
            Self::EmitEvent(note) | Self::Mention(note) => Cow::Borrowed(&note.reason),
            Self::PatchPodStatus { .. }
            | Self::RaiseBackoffLimit { .. }
            | Self::ForceDeletePod { .. }
            | Self::TaintNode { .. }
            | Self::UntaintNode { .. } => Cow::Borrowed(""),
        }
    }

    fn tells(&self) -> Option<StepEvent<'_>> {
        match self {
            Self::EmitEvent(note) => Some(StepEvent::Recorded(note)),
            Self::Mention(note) => Some(StepEvent::BestEffort(note)),
            Self::PatchPodStatus { .. }
            | Self::RaiseBackoffLimit { .. }
            | Self::ForceDeletePod { .. }
            | Self::TaintNode { .. }
            | Self::UntaintNode { .. } => None,
        }
    }

    fn headline(&self) -> Option<&'static str> {
        match self {
            Self::PatchPodStatus { .. } => Some("marked Failed"),
            Self::RaiseBackoffLimit { .. } => Some("backoffLimit raised"),
            Self::ForceDeletePod { .. } => Some("force deleted"),
            Self::TaintNode { .. } => Some("tainted out-of-service"),
            Self::UntaintNode { .. } => Some("untainted"),
            Self::EmitEvent(_) | Self::Mention(_) => None,
        }
    }

    fn reads(&self) -> Vec<Object<'_>> {
        match self {
            Self::TaintNode { node, .. } | Self::UntaintNode { node, .. } => vec![node.object()],
            Self::PatchPodStatus { .. }
            | Self::RaiseBackoffLimit { .. }
            | Self::ForceDeletePod { .. }
            | Self::EmitEvent(_)
            | Self::Mention(_) => Vec::new(),
        }
    }

    fn write(&self, read: &[Option<Value>]) -> Result<Write<'_>, Changed> {
        match self {
            Self::PatchPodStatus { pod, resource_version, phase, conditions, ended } => {
                let guard = Guard::Judged { uid: &pod.uid, resource_version };
                pod_writes::patch_status(self, guard, *phase, conditions, *ended)
            }
            Self::RaiseBackoffLimit { job, resource_version, backoff_limit, raised } => {
                let guard = Guard::Judged { uid: &job.uid, resource_version };
                let record = serde_json::to_string(raised).map_err(|_| Changed)?;
                let patch = Patch::spec(&json!({ "backoffLimit": backoff_limit }))?
                    .annotated(annotations::BACKOFF_LIMIT_RAISED, Some(record));
                Ok(Write::of(self, guard, Verb::Patch(patch)))
            }
            Self::ForceDeletePod { pod, resource_version } => {
                let guard = Guard::Judged { uid: &pod.uid, resource_version };
                Ok(pod_writes::delete(self, guard, Delete::NO_GRACE))
            }
            Self::TaintNode { node, resource_version, taint, mark, since, boot } => {
                let taints = Taints::judged(read, node, resource_version)?.with(taint, Some(*since));
                let patch = taints.patch()?.annotated(mark, Some(since.to_string()));
                let patch = patch.annotated(annotations::OUT_OF_SERVICE_BOOT, boot.clone());
                let guard = Guard::Judged { uid: &node.uid, resource_version };
                Ok(Write::of(self, guard, Verb::Patch(patch)))
            }
            Self::UntaintNode { node, resource_version, taint, mark } => {
                let taints = Taints::judged(read, node, resource_version)?.without(taint);
                let guard = Guard::Judged { uid: &node.uid, resource_version };
                let patch = taints.patch()?.annotated(mark, None);
                let patch = patch.annotated(annotations::OUT_OF_SERVICE_BOOT, None);
                Ok(Write::of(self, guard, Verb::Patch(patch)))
            }
            Self::EmitEvent(note) | Self::Mention(note) => Ok(Write::event(note)),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchPodStatus { pod, phase, conditions, .. } => {
                pod_writes::tell_patch(f, pod, *phase, conditions)
            }
            Self::RaiseBackoffLimit { job, backoff_limit, .. } => {
                write!(f, "raise the backoffLimit of job {job} to {backoff_limit}")
            }
            Self::EmitEvent(note) | Self::Mention(note) => note.fmt(f),
            Self::ForceDeletePod { pod, .. } => write!(f, "delete pod {pod} with no grace"),
            Self::TaintNode { node, taint, .. } => write!(f, "taint node {node} with {taint}"),
            Self::UntaintNode { node, taint, .. } => write!(f, "take the taint {taint} off node {node}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventType;
    use crate::step::Step as _;

    fn pod() -> PodRef {
        PodRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() }
    }

    fn event(name: &str, reason: &'static str) -> Step {
        Step::EmitEvent(EventNote {
            name: name.into(),
            regarding: (&pod()).into(),
            kind: EventType::Normal,
            reason: reason.into(),
            action: "Tell",
            reporting_controller: "test",
            message: String::new(),
        })
    }

    fn force_delete(revision: &str) -> Step {
        Step::ForceDeletePod { pod: pod(), resource_version: revision.into() }
    }

    #[test]
    fn a_step_is_the_same_whatever_state_it_names_and_another_for_another_event() {
        assert!(force_delete("1").is_same_step(&force_delete("2")));
        assert!(event("a.1", "Started").is_same_step(&event("a.2", "Started")));
        assert!(!event("a.1", "Started").is_same_step(&event("a.1", "Ended")));
        assert!(!event("a.1", "Started").is_same_step(&force_delete("1")));
    }

    #[test]
    fn what_is_taken_away_is_looked_at_again_and_telling_is_not() {
        for (step, expected) in [(force_delete("1"), true), (event("a", "Told"), false)] {
            let found = [
                step.is_disruptive(),
                step.needs_a_second_look(),
                step.needs_a_fresh_view(),
                step.is_irreversible(),
            ];
            assert_eq!(found, [expected; 4], "{step}");
        }
    }

    #[test]
    fn taints_are_written_only_to_the_node_that_was_judged() {
        let node = NodeRef { name: "n".into(), uid: "u".into() };
        let taint = Taint { key: "k".into(), value: String::new(), effect: "NoExecute".into() };
        let step = Step::UntaintNode { node, resource_version: "7".into(), taint, mark: "mark" };
        let read = |uid: &str, revision: &str| {
            Some(serde_json::json!({ "metadata": { "uid": uid, "resourceVersion": revision } }))
        };
        assert!(step.write(&[read("u", "7")]).is_ok());
        for read in [vec![read("other", "7")], vec![read("u", "8")], vec![None], vec![]] {
            assert_eq!(step.write(&read).err(), Some(Changed));
        }
    }
}
