//! The writes of the Job recovery.

use std::{borrow::Cow, fmt, sync::Arc};

use salvor_api::names::job::{
    USED_NAMES,
    conditions::{FAILED, FAILURE_TARGET},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::views::JobStatus;
use crate::event::EventNote;
use crate::ids::{ResourceVersion, Uid};
use crate::objects::{JobRef, Object, POD, PodRef};
use crate::pod_writes;
use crate::step::{
    Changed, Delete, Disrupts, Effect, Errors, Guard, MENTION, Merge, Owned, Patch, SecondLook, StepEvent,
    Verb, Write,
};

/// Why a Job gets another pod, as the metric of Kubernetes' own controller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CreationReason {
    /// It is not a replacement.
    New,
    /// It replaces a pod that is being deleted or has failed.
    RecreateTerminatingOrFailed,
    /// It replaces a pod that has failed, and only those are replaced.
    RecreateFailed,
}

impl CreationReason {
    /// The metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::RecreateTerminatingOrFailed => "recreate_terminating_or_failed",
            Self::RecreateFailed => "recreate_failed",
        }
    }
}

/// The object of an empty list of steps.
const NO_POD: Object<'static> = Object { kind: &POD, namespace: None, name: "", uid: Uid::unknown() };

/// One guarded write of the Job recovery, or several that may run together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Steps in any order and concurrently; all are tried, and what follows is done only if all succeed.
    AtOnce {
        /// Never empty.
        steps: Vec<Step>,
    },
    /// Records an event on a best-effort basis: nothing waits for it.
    Mention(EventNote),
    /// Creates a pod of a Job. Its name is chosen so that the API server refuses a repeated request.
    CreatePod {
        job: Arc<JobRef>,
        name: String,
        /// The pod, as JSON.
        #[serde(skip)]
        body: String,
        reason: CreationReason,
        /// True if an event is recorded for it.
        told: bool,
    },
    /// Replaces a Job's status, if the Job is still in the state that the decision rests on.
    PatchJobStatus {
        job: Arc<JobRef>,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        /// The whole new status.
        status: Box<JobStatus>,
        /// The used names for the Job's annotation, if that changes.
        #[serde(skip_serializing_if = "Option::is_none")]
        used_names: Option<String>,
    },
    /// Removes a finalizer from a pod, if it still has that UID.
    RemoveFinalizer {
        pod: PodRef,
        finalizer: &'static str,
        /// True if this relies on a Job being gone, so that its absence must be confirmed by a live read.
        owner_gone: bool,
    },
    /// Deletes a pod with its own grace period, if it still has that UID.
    DeletePod {
        /// Its UID is the precondition.
        pod: PodRef,
    },
    /// Makes a Job the owner of a pod that has none, and adds a finalizer.
    AdoptPod {
        pod: PodRef,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
        job: Arc<JobRef>,
        finalizer: &'static str,
    },
    /// Removes a Job's ownership and a finalizer from a pod.
    ReleasePod {
        pod: PodRef,
        job: Arc<JobRef>,
        /// The finalizer that tracks the pod for its Job.
        finalizer: &'static str,
    },
    /// Deletes a Job and everything that it owns, if it is still in the state that the decision rests on.
    DeleteJob {
        job: Arc<JobRef>,
        /// The resourceVersion that the decision rests on.
        resource_version: ResourceVersion,
    },
}

impl crate::step::Step for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::AtOnce { .. } => "AtOnce",
            Self::Mention(_) => MENTION,
            Self::CreatePod { .. } => "CreatePod",
            Self::PatchJobStatus { .. } => "PatchJobStatus",
            Self::RemoveFinalizer { .. } => "RemoveFinalizer",
            Self::DeletePod { .. } => "DeletePod",
            Self::AdoptPod { .. } => "AdoptPod",
            Self::ReleasePod { .. } => "ReleasePod",
            Self::DeleteJob { .. } => "DeleteJob",
        }
    }

    fn object(&self) -> Object<'_> {
        match self {
            Self::CreatePod { job, name, .. } => {
                Object { kind: &POD, namespace: Some(&job.namespace), name, uid: Uid::unknown() }
            }
            Self::RemoveFinalizer { pod, .. }
            | Self::DeletePod { pod }
            | Self::AdoptPod { pod, .. }
            | Self::ReleasePod { pod, .. } => pod.object(),
            Self::PatchJobStatus { job, .. } | Self::DeleteJob { job, .. } => job.object(),
            Self::AtOnce { steps } => steps.first().map_or(NO_POD, Self::object),
            Self::Mention(note) => note.regarding.as_object(),
        }
    }

    /// A Job controller acts on the Job's own pods because the Job's spec says so, not because of a failure. So none of
    /// its steps counts as a disruption.
    fn effect(&self) -> Effect<'_> {
        let looked_at = Effect { second_look: SecondLook::Everything, ..Effect::WRITES_DOWN };
        match self {
            Self::AtOnce { steps, .. } => Effect::of_all(steps),
            Self::Mention(_) => Effect::TELLS,
            // Rechecked, because a Job that was deleted meanwhile must get no pod.
            Self::CreatePod { .. } => Effect {
                disrupts: Disrupts::Nothing,
                starts_work: true,
                changes_what_was_judged: false,
                errors: Errors::HoldTheStep,
                ..looked_at
            },
            // A failed Job stays failed, and the failure may follow from its deadline.
            Self::PatchJobStatus { status, .. } => Effect {
                irreversible: status.conditions.iter().any(|condition| {
                    condition.status == "True" && [FAILED, FAILURE_TARGET].contains(&condition.kind.as_str())
                }),
                ..Effect::WRITES_DOWN
            },
            // A Job missing from the watch cache may only be late in it, and one that is being deleted must not adopt.
            Self::RemoveFinalizer { owner_gone: true, .. } | Self::AdoptPod { .. } => looked_at,
            Self::RemoveFinalizer { owner_gone: false, .. } | Self::ReleasePod { .. } => Effect::WRITES_DOWN,
            Self::DeletePod { .. } => {
                Effect { irreversible: true, errors: Errors::HoldTheStep, ..Effect::WRITES_DOWN }
            }
            Self::DeleteJob { .. } => Effect { irreversible: true, ..looked_at },
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            // The name of the event may contain a time that another decision computes differently.
            Self::Mention(note) => Cow::Borrowed(&note.reason),
            Self::RemoveFinalizer { finalizer, .. }
            | Self::AdoptPod { finalizer, .. }
            | Self::ReleasePod { finalizer, .. } => Cow::Borrowed(finalizer),
            Self::AtOnce { .. }
            | Self::CreatePod { .. }
            | Self::PatchJobStatus { .. }
            | Self::DeletePod { .. }
            | Self::DeleteJob { .. } => Cow::Borrowed(""),
        }
    }

    fn tells(&self) -> Option<StepEvent<'_>> {
        match self {
            Self::Mention(note) => Some(StepEvent::BestEffort(note)),
            Self::AtOnce { .. }
            | Self::CreatePod { .. }
            | Self::PatchJobStatus { .. }
            | Self::RemoveFinalizer { .. }
            | Self::DeletePod { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::DeleteJob { .. } => None,
        }
    }

    /// A Job controller's work is routine.
    fn headline(&self) -> Option<&'static str> {
        match self {
            Self::AtOnce { .. }
            | Self::Mention(_)
            | Self::CreatePod { .. }
            | Self::PatchJobStatus { .. }
            | Self::RemoveFinalizer { .. }
            | Self::DeletePod { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::DeleteJob { .. } => None,
        }
    }

    fn write(&self, _: &[Option<Value>]) -> Result<Write<'_>, Changed> {
        Ok(match self {
            // Each of its steps is written on its own.
            Self::AtOnce { .. } => return Err(Changed),
            Self::Mention(note) => Write::event(note),
            Self::CreatePod { body, .. } => {
                Write::of(self, Guard::None, Verb::Create { body: Cow::Borrowed(body) })
            }
            Self::PatchJobStatus { job, resource_version, status, used_names } => {
                // Not strategic: the whole status was decided on, and null fields must go.
                let mut patch = Patch::status(Merge::Plain, status)?;
                if let Some(names) = used_names {
                    patch = patch.annotated(USED_NAMES, Some(names.clone()));
                }
                let guard = Guard::Judged { uid: &job.uid, resource_version };
                Write::of(self, guard, Verb::Patch(patch))
            }
            Self::RemoveFinalizer { pod, finalizer, .. } => {
                let metadata = Map::from_iter([without_finalizer(finalizer)]);
                let patch = Patch::metadata(Merge::Strategic, metadata).unless_gone();
                Write::of(self, Guard::Uid(&pod.uid), Verb::Patch(patch))
            }
            Self::DeletePod { pod } => {
                // The pod may take some time to end, so its present state must be known.
                let how = Delete { answer_is_read: true, ..Delete::OWN_GRACE };
                pod_writes::delete(self, Guard::Uid(&pod.uid), how)
            }
            Self::AdoptPod { pod, resource_version, job, finalizer } => {
                let owner = json!({
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": job.name,
                    "uid": job.uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                });
                let metadata = Map::from_iter([
                    ("finalizers".to_owned(), json!([finalizer])),
                    ("ownerReferences".to_owned(), json!([owner])),
                ]);
                let patch = Patch::metadata(Merge::Strategic, metadata).unless_gone();
                let guard = Guard::Judged { uid: &pod.uid, resource_version };
                Write::of(self, guard, Verb::Patch(patch))
            }
            Self::ReleasePod { pod, job, finalizer } => {
                let owner = json!([{ "$patch": "delete", "uid": job.uid }]);
                let metadata =
                    Map::from_iter([without_finalizer(finalizer), ("ownerReferences".to_owned(), owner)]);
                let patch = Patch::metadata(Merge::Strategic, metadata).unless_gone();
                Write::of(self, Guard::Uid(&pod.uid), Verb::Patch(patch))
            }
            Self::DeleteJob { job, resource_version } => {
                let how = Delete { owned: Owned::First, ..Delete::OWN_GRACE };
                let guard = Guard::Judged { uid: &job.uid, resource_version };
                Write::of(self, guard, Verb::Delete(how))
            }
        })
    }

    fn steps(&self) -> &[Self] {
        match self {
            Self::AtOnce { steps, .. } => steps,
            Self::Mention(_)
            | Self::CreatePod { .. }
            | Self::PatchJobStatus { .. }
            | Self::RemoveFinalizer { .. }
            | Self::DeletePod { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::DeleteJob { .. } => std::slice::from_ref(self),
        }
    }

    fn into_steps(self) -> Vec<Self> {
        match self {
            Self::AtOnce { steps, .. } => steps,
            one @ (Self::Mention(_)
            | Self::CreatePod { .. }
            | Self::PatchJobStatus { .. }
            | Self::RemoveFinalizer { .. }
            | Self::DeletePod { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::DeleteJob { .. }) => vec![one],
        }
    }
}

/// A strategic merge patch that removes one finalizer and leaves foreign ones without reading them.
fn without_finalizer(finalizer: &str) -> (String, Value) {
    ("$deleteFromPrimitiveList/finalizers".to_owned(), json!([finalizer]))
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtOnce { steps, .. } => {
                let Some(first) = steps.first() else { return f.write_str("nothing") };
                write!(f, "{first}")?;
                if steps.len() > 1 { write!(f, ", and {} more like it", steps.len() - 1) } else { Ok(()) }
            }
            Self::Mention(note) => note.fmt(f),
            Self::CreatePod { job, name, .. } => write!(f, "create pod {}/{name}", job.namespace),
            Self::PatchJobStatus { job, status, .. } => {
                write!(f, "write the status of job {job}: ")?;
                let JobStatus { active, succeeded, failed, terminating, .. } = &**status;
                write!(f, "active {active}, succeeded {succeeded}, failed {failed}")?;
                if let Some(terminating) = terminating {
                    write!(f, ", terminating {terminating}")?;
                }
                status
                    .conditions
                    .iter()
                    .filter(|c| c.status == "True")
                    .try_for_each(|c| write!(f, ", {}", c.kind))
            }
            Self::RemoveFinalizer { pod, finalizer, .. } => write!(f, "take {finalizer} off pod {pod}"),
            Self::DeletePod { pod } => write!(f, "delete pod {pod}"),
            Self::AdoptPod { pod, job, .. } => write!(f, "adopt pod {pod} into job {job}"),
            Self::ReleasePod { pod, job, .. } => write!(f, "release pod {pod} from job {job}"),
            Self::DeleteJob { job, .. } => write!(f, "delete job {job}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Step as _;

    fn pod() -> PodRef {
        PodRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() }
    }

    fn create(name: &str) -> Step {
        Step::CreatePod {
            job: Arc::new(JobRef { namespace: "ns".into(), name: "j".into(), uid: "j".into() }),
            name: name.into(),
            body: String::new(),
            reason: CreationReason::New,
            told: false,
        }
    }

    #[test]
    fn steps_at_once_need_what_any_of_them_needs() {
        let at_once = |steps: &[Step]| Step::AtOnce { steps: steps.to_vec() };
        let delete = Step::DeletePod { pod: pod() };
        // Columns: disruptive, needs a second look, needs a fresh view, irreversible.
        let cases = [
            (create("a"), [false, true, true, false]),
            (delete.clone(), [false, false, false, true]),
            (at_once(&[delete.clone(), create("a")]), [false, true, true, true]),
            (at_once(&[create("a"), create("b")]), [false, true, true, false]),
            (at_once(&[delete]), [false, false, false, true]),
        ];
        for (step, expected) in cases {
            let asked_one_by_one = [
                step.is_disruptive(),
                step.needs_a_second_look(),
                step.needs_a_fresh_view(),
                step.is_irreversible(),
            ];
            assert_eq!(asked_one_by_one, expected, "{step}");
            let effect = step.effect();
            let asked_at_once =
                [effect.second_look != SecondLook::No, effect.starts_work, effect.irreversible];
            assert_eq!(asked_at_once, expected[1..], "{step}");
        }
    }

    #[test]
    fn a_step_is_the_same_for_the_same_pod_and_another_for_another() {
        assert!(create("a").is_same_step(&create("a")));
        assert!(!create("a").is_same_step(&create("b")));
        assert!(!create("p").is_same_step(&Step::DeletePod { pod: pod() }));
    }

    #[test]
    fn several_steps_have_a_json_form() {
        let steps = Step::AtOnce { steps: vec![create("a"), create("b")] };
        let shown = serde_json::to_value(&steps).unwrap();
        assert_eq!((&shown["verb"], &shown["steps"][1]["name"]), (&json!("atOnce"), &json!("b")));
    }
}
