//! The writes that AppWrapper recovery asks for, as data. Each names exactly the object that was judged.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use salvor_api::GoDuration;
use salvor_api::names::appwrapper::FINALIZER;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::status::AppWrapperStatus;
use super::views::AppWrapperRef;
use crate::event::{Condition, EventNote};
use crate::ids::ResourceVersion;
use crate::objects::{Object, ObjectRef, PodPhase, PodRef};
use crate::pod_writes;
use crate::step::{
    Changed, Delete, Disrupts, EMIT_EVENT, Effect, Errors, Grace, Guard, Merge, Owned, Patch, SecondLook,
    Tells, Verb, Write,
};

/// One guarded write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Writes the whole status, if the AppWrapper is still exactly as it was judged (UID and resourceVersion).
    PatchStatus {
        /// The AppWrapper.
        appwrapper: AppWrapperRef,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// The status.
        status: Box<AppWrapperStatus>,
        /// What depends on it.
        stakes: Stakes,
    },
    /// Puts our finalizer on the AppWrapper, if it is still exactly as it was judged (UID and resourceVersion).
    AddFinalizer {
        /// The AppWrapper.
        appwrapper: AppWrapperRef,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// The finalizers of others, which stay.
        others: Vec<String>,
    },
    /// Takes our finalizer off the AppWrapper, if it is still exactly as it was judged (UID and resourceVersion).
    RemoveFinalizer {
        /// The AppWrapper.
        appwrapper: AppWrapperRef,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// The finalizers of others, which stay.
        others: Vec<String>,
    },
    /// Creates a component. Its body is a function of the AppWrapper that was judged, the index and the name; an object of that
    /// name whose controller has the AppWrapper's UID is the component, and its creation has succeeded.
    CreateComponent {
        /// The AppWrapper that will own it.
        appwrapper: AppWrapperRef,
        /// The state of the AppWrapper that the body is made from.
        resource_version: ResourceVersion,
        /// The component's index.
        index: usize,
        /// The object, which has no UID yet. It has a name also if its template has only a `generateName`.
        object: ObjectRef,
        /// The object as JSON. Only whoever has read the AppWrapper live can make it.
        #[serde(skip)]
        body: Option<Arc<str>>,
    },
    /// Deletes an object that the AppWrapper owns (UID), with propagation policy Background.
    DeleteComponent {
        /// The object.
        object: ObjectRef,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// With or without grace.
        manner: Manner,
    },
    /// Deletes a pod that has the AppWrapper's label (UID; with `Forceful` resourceVersion too).
    DeletePod {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// With or without grace.
        manner: Manner,
    },
    /// Marks a pod Failed that its kubelet does not end, if it is still exactly as it was judged (UID and resourceVersion). It is
    /// deleted when that is seen.
    FailPod {
        /// The pod.
        pod: PodRef,
        /// The state that was judged.
        resource_version: ResourceVersion,
        /// The conditions to set.
        conditions: Vec<Condition>,
    },
    /// Several of these writes that may be under way together. None of them waits for another, so one that the server refuses
    /// does not hold up the rest.
    AtOnce {
        /// The deletions.
        steps: Vec<Step>,
    },
    /// Records an event about the AppWrapper.
    RecordEvent(EventNote),
}

/// How an object is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Manner {
    /// With the grace period that it has.
    Graceful,
    /// With a grace period of 0.
    Forceful,
    /// With a grace period of 0, because nothing of it runs any more.
    Afterwards,
}

/// What depends on a write to the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Stakes {
    /// Nothing that could not be put right by the next write.
    Bookkeeping,
    /// The end of the AppWrapper's life, or the release of its quota. Everything is read live once more before.
    Final,
    /// The workload is taken down because it is unhealthy. Everything is read live once more before, and the brake counts it.
    TakesDown {
        /// So many of its pods are not at their end yet.
        pods: u32,
    },
}

impl crate::step::Step for Step {
    fn name(&self) -> &'static str {
        match self {
            Self::PatchStatus { .. } => "PatchAppWrapperStatus",
            Self::AddFinalizer { .. } => "AddFinalizer",
            Self::RemoveFinalizer { .. } => "RemoveFinalizer",
            Self::CreateComponent { .. } => "CreateComponent",
            Self::DeleteComponent { .. } => "DeleteComponent",
            Self::DeletePod { .. } => "DeletePod",
            Self::FailPod { .. } => "PatchPodStatus",
            Self::AtOnce { .. } => "AtOnce",
            Self::RecordEvent(_) => EMIT_EVENT,
        }
    }

    fn object(&self) -> Object<'_> {
        match self {
            Self::PatchStatus { appwrapper, .. }
            | Self::AddFinalizer { appwrapper, .. }
            | Self::RemoveFinalizer { appwrapper, .. } => appwrapper.object(),
            Self::CreateComponent { object, .. } | Self::DeleteComponent { object, .. } => object.as_object(),
            Self::DeletePod { pod, .. } | Self::FailPod { pod, .. } => pod.object(),
            Self::AtOnce { steps } => steps.first().map_or(NO_POD, Self::object),
            Self::RecordEvent(note) => note.regarding.as_object(),
        }
    }

    /// The decision to take a workload down counts for the brake, once. Deleting its components then carries it out, or does
    /// what the workload's own spec asks for: a suspension, a deletion, a time to live. Pods that are forced may still run on a
    /// node that nobody reaches, so each of them counts, once.
    fn effect(&self) -> Effect<'_> {
        let looked_at = Effect { second_look: SecondLook::Everything, ..Effect::WRITES_DOWN };
        // One look serves all deletions that it asks for.
        let deletes = Effect { irreversible: true, changes_what_was_judged: false, ..looked_at };
        match self {
            Self::PatchStatus { stakes, .. } => match stakes {
                Stakes::Bookkeeping => Effect::WRITES_DOWN,
                Stakes::Final => Effect { irreversible: true, ..looked_at },
                Stakes::TakesDown { pods } => Effect::takes(Disrupts::Workload { pods: *pods }),
            },
            Self::AddFinalizer { .. } => Effect::WRITES_DOWN,
            Self::RemoveFinalizer { .. } => Effect { irreversible: true, ..looked_at },
            // For an AppWrapper that is gone, suspended or another one by now nothing may be created.
            Self::CreateComponent { .. } => Effect {
                starts_work: true,
                changes_what_was_judged: false,
                errors: Errors::HoldTheStep,
                ..looked_at
            },
            Self::DeletePod { manner, .. } => match manner {
                Manner::Graceful | Manner::Afterwards => deletes,
                Manner::Forceful => Effect { disrupts: Disrupts::Pods(1), ..deletes },
            },
            Self::FailPod { .. } => Effect { disrupts: Disrupts::Pods(1), ..deletes },
            Self::DeleteComponent { .. } => deletes,
            Self::AtOnce { steps } => Effect::of_all(steps),
            Self::RecordEvent(_) => Effect::TELLS,
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        match self {
            Self::PatchStatus { status, .. } => Cow::Borrowed(status.phase.as_str()),
            Self::DeleteComponent { manner, .. } | Self::DeletePod { manner, .. } => {
                Cow::Owned(manner.to_string())
            }
            Self::RecordEvent(note) => Cow::Borrowed(&note.reason),
            Self::AddFinalizer { .. }
            | Self::RemoveFinalizer { .. }
            | Self::CreateComponent { .. }
            | Self::FailPod { .. }
            | Self::AtOnce { .. } => Cow::Borrowed(""),
        }
    }

    fn tells(&self) -> Option<Tells<'_>> {
        match self {
            Self::RecordEvent(note) => Some(Tells::Recorded(note)),
            Self::PatchStatus { .. }
            | Self::AddFinalizer { .. }
            | Self::RemoveFinalizer { .. }
            | Self::CreateComponent { .. }
            | Self::DeleteComponent { .. }
            | Self::DeletePod { .. }
            | Self::FailPod { .. }
            | Self::AtOnce { .. } => None,
        }
    }

    fn headline(&self) -> Option<&'static str> {
        match self {
            Self::PatchStatus { status, stakes, .. } => match stakes {
                Stakes::TakesDown { .. } if status.phase == super::Phase::Failed => Some("gave up"),
                Stakes::TakesDown { .. } => Some("reset"),
                Stakes::Bookkeeping | Stakes::Final => None,
            },
            Self::DeletePod { manner: Manner::Forceful, .. } => Some("force deleted"),
            Self::DeletePod { manner: Manner::Graceful | Manner::Afterwards, .. } => Some("deleted"),
            Self::FailPod { .. } => Some("marked Failed"),
            Self::AddFinalizer { .. }
            | Self::RemoveFinalizer { .. }
            | Self::CreateComponent { .. }
            | Self::DeleteComponent { .. }
            | Self::AtOnce { .. }
            | Self::RecordEvent(_) => None,
        }
    }

    fn write(&self, _: &[Option<Value>]) -> Result<Write<'_>, Changed> {
        let judged = |uid, resource_version| Guard::Judged { uid, resource_version };
        Ok(match self {
            Self::PatchStatus { appwrapper, resource_version, status, .. } => {
                let patch = Patch::status(Merge::Plain, status)?;
                Write::of(self, judged(&appwrapper.uid, resource_version), Verb::Patch(patch))
            }
            // Lists of custom resources are replaced whole; the revision tells that nobody has changed it since.
            Self::AddFinalizer { appwrapper, resource_version, others } => {
                let all: Vec<&str> = others.iter().map(String::as_str).chain([FINALIZER]).collect();
                let patch = finalizers(&all);
                Write::of(self, judged(&appwrapper.uid, resource_version), Verb::Patch(patch))
            }
            Self::RemoveFinalizer { appwrapper, resource_version, others } => {
                let all: Vec<&str> = others.iter().map(String::as_str).collect();
                let patch = finalizers(&all).unless_gone();
                Write::of(self, judged(&appwrapper.uid, resource_version), Verb::Patch(patch))
            }
            Self::CreateComponent { body, .. } => {
                let body = body.as_deref().ok_or(Changed)?;
                Write::of(self, Guard::None, Verb::Create { body: Cow::Borrowed(body) })
            }
            Self::DeleteComponent { object, manner, .. } => {
                Write::of(self, Guard::Uid(&object.uid), Verb::Delete(manner.delete()))
            }
            Self::DeletePod { pod, resource_version, manner } => {
                let guard = match manner {
                    Manner::Graceful => Guard::Uid(&pod.uid),
                    Manner::Forceful | Manner::Afterwards => judged(&pod.uid, resource_version),
                };
                Write::of(self, guard, Verb::Delete(manner.delete()))
            }
            Self::FailPod { pod, resource_version, conditions } => {
                let guard = judged(&pod.uid, resource_version);
                pod_writes::patch_status(self, guard, Some(PodPhase::Failed), conditions)?
            }
            // Each of its steps is written by itself.
            Self::AtOnce { .. } => return Err(Changed),
            Self::RecordEvent(note) => Write::event(note),
        })
    }

    fn steps(&self) -> &[Self] {
        match self {
            Self::AtOnce { steps } => steps,
            Self::PatchStatus { .. }
            | Self::AddFinalizer { .. }
            | Self::RemoveFinalizer { .. }
            | Self::CreateComponent { .. }
            | Self::DeleteComponent { .. }
            | Self::DeletePod { .. }
            | Self::FailPod { .. }
            | Self::RecordEvent(_) => std::slice::from_ref(self),
        }
    }

    fn into_steps(self) -> Vec<Self> {
        match self {
            Self::AtOnce { steps } => steps,
            one @ (Self::PatchStatus { .. }
            | Self::AddFinalizer { .. }
            | Self::RemoveFinalizer { .. }
            | Self::CreateComponent { .. }
            | Self::DeleteComponent { .. }
            | Self::DeletePod { .. }
            | Self::FailPod { .. }
            | Self::RecordEvent(_)) => vec![one],
        }
    }

    fn is_same_step(&self, other: &Self) -> bool {
        self.means_the_same(other)
    }
}

impl Step {
    /// These steps, as one if they are several.
    pub(super) fn at_once(mut steps: Vec<Self>) -> Vec<Self> {
        if steps.len() > 1 {
            steps = vec![Self::AtOnce { steps }];
        }
        steps
    }
}

/// Stands in for the object of no step.
const NO_POD: Object<'static> =
    Object { kind: &crate::objects::POD, namespace: None, name: "", uid: crate::ids::Uid::unknown() };

fn finalizers(all: &[&str]) -> Patch {
    Patch::metadata(Merge::Plain, Map::from_iter([("finalizers".to_owned(), json!(all))]))
}

impl Manner {
    fn delete(self) -> Delete {
        let grace = match self {
            Self::Graceful => Grace::Own,
            Self::Forceful | Self::Afterwards => Grace::None,
        };
        Delete { grace, owned: Owned::Afterwards, answer_is_read: true }
    }
}

impl Step {
    /// Whether both mean the same, so that a second look confirms the first. Times and wordings may differ.
    pub fn means_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::PatchStatus { appwrapper: a, status: s, stakes: x, .. },
                Self::PatchStatus { appwrapper: b, status: t, stakes: y, .. },
            ) => a == b && gist(s) == gist(t) && std::mem::discriminant(x) == std::mem::discriminant(y),
            (Self::AddFinalizer { appwrapper: a, .. }, Self::AddFinalizer { appwrapper: b, .. })
            | (Self::RemoveFinalizer { appwrapper: a, .. }, Self::RemoveFinalizer { appwrapper: b, .. }) => {
                a == b
            }
            (
                Self::CreateComponent { appwrapper: a, index: i, object: m, .. },
                Self::CreateComponent { appwrapper: b, index: j, object: n, .. },
            ) => a == b && i == j && m == n,
            (
                Self::DeleteComponent { object: a, manner: m, .. },
                Self::DeleteComponent { object: b, manner: n, .. },
            ) => a.uid == b.uid && m == n,
            (Self::DeletePod { pod: a, manner: m, .. }, Self::DeletePod { pod: b, manner: n, .. }) => {
                a.uid == b.uid && m == n
            }
            (Self::FailPod { pod: a, .. }, Self::FailPod { pod: b, .. }) => a.uid == b.uid,
            (Self::AtOnce { steps: a }, Self::AtOnce { steps: b }) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.means_the_same(b))
            }
            (Self::RecordEvent(a), Self::RecordEvent(b)) => {
                a.reason == b.reason && a.regarding == b.regarding
            }
            (
                Self::PatchStatus { .. }
                | Self::AddFinalizer { .. }
                | Self::RemoveFinalizer { .. }
                | Self::CreateComponent { .. }
                | Self::DeleteComponent { .. }
                | Self::DeletePod { .. }
                | Self::FailPod { .. }
                | Self::AtOnce { .. }
                | Self::RecordEvent(_),
                _,
            ) => false,
        }
    }
}

/// What a status says, without times and wordings.
fn gist(status: &AppWrapperStatus) -> (&str, i32, Vec<(&str, &str, &str)>) {
    let mut conditions: Vec<_> = status
        .conditions
        .iter()
        .map(|it| (it.kind.as_str(), it.status.as_str(), it.reason.as_str()))
        .collect();
    conditions.sort_unstable();
    (status.phase.as_str(), status.resetting_count, conditions)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PatchStatus { appwrapper, status, .. } => {
                write!(f, "write the status of appwrapper {appwrapper}: phase {}", status.phase)
            }
            Self::AddFinalizer { appwrapper, .. } => {
                write!(f, "add our finalizer to appwrapper {appwrapper}")
            }
            Self::RemoveFinalizer { appwrapper, .. } => {
                write!(f, "remove our finalizer from appwrapper {appwrapper}")
            }
            Self::CreateComponent { appwrapper, index, object, .. } => {
                write!(f, "create component {index} of appwrapper {appwrapper}: {object}")
            }
            Self::DeleteComponent { object, manner, .. } => write!(f, "delete {object} ({manner})"),
            Self::DeletePod { pod, manner, .. } => write!(f, "delete pod {pod} ({manner})"),
            Self::FailPod { pod, conditions, .. } => {
                pod_writes::tell_patch(f, pod, Some(PodPhase::Failed), conditions)
            }
            Self::AtOnce { steps } => {
                let Some(first) = steps.first() else { return f.write_str("nothing") };
                write!(f, "{first}")?;
                if steps.len() > 1 { write!(f, ", and {} more like it", steps.len() - 1) } else { Ok(()) }
            }
            Self::RecordEvent(note) => note.fmt(f),
        }
    }
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Graceful => "with its grace period",
            Self::Forceful => "with no grace period",
            Self::Afterwards => "with no grace period, after its end",
        })
    }
}

/// A duration as Go prints it.
pub(super) fn in_go(duration: jiff::SignedDuration) -> GoDuration {
    GoDuration::from_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}
