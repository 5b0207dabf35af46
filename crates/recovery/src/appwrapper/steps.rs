//! The writes of AppWrapper recovery, as data. Each names exactly the object on which the decision is based.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

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
    StepEvent, Verb, Write,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Writes the whole status, with UID and resourceVersion as preconditions.
    PatchStatus {
        appwrapper: AppWrapperRef,
        resource_version: ResourceVersion,
        status: Box<AppWrapperStatus>,
        stakes: Stakes,
    },
    /// Adds Salvor's finalizer to the AppWrapper, with UID and resourceVersion as preconditions.
    AddFinalizer {
        appwrapper: AppWrapperRef,
        resource_version: ResourceVersion,
        /// The finalizers of others, which stay.
        others: Vec<String>,
    },
    /// Removes Salvor's finalizer from the AppWrapper, with UID and resourceVersion as preconditions.
    RemoveFinalizer {
        appwrapper: AppWrapperRef,
        resource_version: ResourceVersion,
        /// The finalizers of others, which stay.
        others: Vec<String>,
    },
    /// Creates a component. Its body depends only on the AppWrapper in this version, the index and the name. If an
    /// object with that name exists and its controller has the AppWrapper's UID, it is the component, and the creation
    /// has succeeded.
    CreateComponent {
        /// The AppWrapper that will own it.
        appwrapper: AppWrapperRef,
        /// The version of the AppWrapper from which the body is built.
        resource_version: ResourceVersion,
        index: usize,
        /// The object, without a UID yet. It has a name even if its template has only a `generateName`.
        object: ObjectRef,
        /// The object as JSON. Building it requires a live read of the AppWrapper.
        #[serde(skip)]
        body: Option<Arc<str>>,
    },
    /// Deletes an object that the AppWrapper owns, with the UID as precondition and propagation policy Background.
    DeleteComponent {
        object: ObjectRef,
        resource_version: ResourceVersion,
        /// With or without grace period.
        manner: Manner,
    },
    /// Deletes a pod with the AppWrapper's label, with the UID as precondition. Without a grace period the
    /// resourceVersion is a precondition too.
    DeletePod {
        pod: PodRef,
        resource_version: ResourceVersion,
        /// With or without grace period.
        manner: Manner,
    },
    /// Marks a pod Failed that its kubelet does not end, with UID and resourceVersion as preconditions. The pod is
    /// deleted once that is observed.
    FailPod {
        pod: PodRef,
        /// The write fails if the pod has a newer version.
        resource_version: ResourceVersion,
        conditions: Vec<Condition>,
    },
    /// Several writes that may be in flight together. None waits for another, so one that the server refuses does not
    /// block the rest.
    AtOnce {
        /// The deletions.
        steps: Vec<Step>,
    },
    /// Records an event about the AppWrapper.
    RecordEvent(EventNote),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Manner {
    /// With the object's own grace period.
    Graceful,
    /// With a grace period of a second: its own is none, and its kubelet may not be there to end it.
    Briefly,
    /// With a grace period of 0.
    Forceful,
    /// With a grace period of 0, because nothing of it runs any more.
    Afterwards,
}

/// What depends on a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Stakes {
    /// Nothing that the next write could not correct.
    Bookkeeping,
    /// The AppWrapper ends, or releases its quota. Everything is read live again first.
    Final,
    /// The workload is taken down because it is unhealthy. Everything is read live again first, and the brake counts
    /// it.
    TakesDown {
        /// Its pods that have not ended yet.
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

    /// The brake counts the decision to take a workload down, once. Deleting the components then carries it out, or
    /// does what the workload's own spec asks for: a suspension, a deletion, a time to live. Forced pods may still run
    /// on an unreachable node, so the brake counts each of them, once.
    fn effect(&self) -> Effect<'_> {
        let looked_at = Effect { second_look: SecondLook::Everything, ..Effect::WRITES_DOWN };
        // One second look covers all deletions of a decision.
        let deletes = Effect { irreversible: true, changes_what_was_judged: false, ..looked_at };
        match self {
            Self::PatchStatus { stakes, .. } => match stakes {
                Stakes::Bookkeeping => Effect::WRITES_DOWN,
                Stakes::Final => Effect { irreversible: true, ..looked_at },
                Stakes::TakesDown { pods } => Effect::takes(Disrupts::Workload { pods: *pods }),
            },
            Self::AddFinalizer { .. } => Effect::WRITES_DOWN,
            Self::RemoveFinalizer { .. } => Effect { irreversible: true, ..looked_at },
            // Nothing may be created for an AppWrapper that by now is gone, suspended or replaced by another one.
            Self::CreateComponent { .. } => Effect {
                starts_work: true,
                changes_what_was_judged: false,
                errors: Errors::HoldTheStep,
                ..looked_at
            },
            Self::DeletePod { manner, .. } => match manner {
                Manner::Graceful | Manner::Briefly | Manner::Afterwards => deletes,
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

    fn tells(&self) -> Option<StepEvent<'_>> {
        match self {
            Self::RecordEvent(note) => Some(StepEvent::Recorded(note)),
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
            Self::DeletePod { manner: Manner::Graceful | Manner::Briefly | Manner::Afterwards, .. } => {
                Some("deleted")
            }
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
            // A merge patch replaces lists of custom resources as a whole. The resourceVersion ensures that the list is
            // unchanged.
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
                    Manner::Graceful | Manner::Briefly => Guard::Uid(&pod.uid),
                    Manner::Forceful | Manner::Afterwards => judged(&pod.uid, resource_version),
                };
                Write::of(self, guard, Verb::Delete(manner.delete()))
            }
            Self::FailPod { pod, resource_version, conditions } => {
                let guard = judged(&pod.uid, resource_version);
                pod_writes::patch_status(self, guard, Some(PodPhase::Failed), conditions, None)?
            }
            // Each of its steps is written separately.
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
    /// Combines several steps into one that runs them together.
    pub(super) fn at_once(mut steps: Vec<Self>) -> Vec<Self> {
        if steps.len() > 1 {
            steps = vec![Self::AtOnce { steps }];
        }
        steps
    }
}

/// A placeholder for an empty `AtOnce`.
const NO_POD: Object<'static> =
    Object { kind: &crate::objects::POD, namespace: None, name: "", uid: crate::ids::Uid::unknown() };

fn finalizers(all: &[&str]) -> Patch {
    Patch::metadata(Merge::Plain, Map::from_iter([("finalizers".to_owned(), json!(all))]))
}

impl Manner {
    /// True if both are graceful deletions. Which grace period is sent, the second look decides.
    fn means_the_same(self, other: Self) -> bool {
        let asks = |it| match it {
            Self::Graceful | Self::Briefly => true,
            Self::Forceful | Self::Afterwards => false,
        };
        self == other || asks(self) && asks(other)
    }

    fn delete(self) -> Delete {
        let grace = match self {
            Self::Graceful => Grace::Own,
            Self::Briefly => Grace::ASecond,
            Self::Forceful | Self::Afterwards => Grace::None,
        };
        Delete { grace, owned: Owned::Afterwards, answer_is_read: true }
    }
}

impl Step {
    /// True if both mean the same, so that a second look confirms the first. Times and messages may differ.
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
            ) => a.uid == b.uid && m.means_the_same(*n),
            (Self::DeletePod { pod: a, manner: m, .. }, Self::DeletePod { pod: b, manner: n, .. }) => {
                a.uid == b.uid && m.means_the_same(*n)
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

/// The content of a status without times and messages.
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
            Self::Briefly => "with a grace period of a second",
            Self::Forceful => "with no grace period",
            Self::Afterwards => "with no grace period, after its end",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Step as _;

    const MANNERS: [Manner; 3] = [Manner::Graceful, Manner::Forceful, Manner::Afterwards];

    fn appwrapper() -> AppWrapperRef {
        AppWrapperRef { uid: "w".into(), namespace: "ns".into(), name: "w".into() }
    }

    fn pod() -> PodRef {
        PodRef { uid: "p".into(), namespace: "ns".into(), name: "p".into() }
    }

    fn status(stakes: Stakes) -> Step {
        let status = Box::default();
        Step::PatchStatus { appwrapper: appwrapper(), resource_version: "7".into(), status, stakes }
    }

    fn delete_pod(manner: Manner) -> Step {
        Step::DeletePod { pod: pod(), resource_version: "7".into(), manner }
    }

    fn fail_pod() -> Step {
        Step::FailPod { pod: pod(), resource_version: "7".into(), conditions: Vec::new() }
    }

    fn delete_component(manner: Manner) -> Step {
        Step::DeleteComponent { object: (&pod()).into(), resource_version: "7".into(), manner }
    }

    #[test]
    fn taking_a_workload_down_counts_and_so_does_each_pod_that_is_forced() {
        let cases = [
            (status(Stakes::Bookkeeping), Disrupts::Nothing),
            (status(Stakes::Final), Disrupts::Nothing),
            (status(Stakes::TakesDown { pods: 3 }), Disrupts::Workload { pods: 3 }),
            (delete_pod(Manner::Graceful), Disrupts::Nothing),
            (delete_pod(Manner::Afterwards), Disrupts::Nothing),
            (delete_pod(Manner::Forceful), Disrupts::Pods(1)),
            (fail_pod(), Disrupts::Pods(1)),
            (delete_component(Manner::Forceful), Disrupts::Nothing),
        ];
        for (step, disrupts) in cases {
            assert_eq!(step.effect().disrupts, disrupts, "{step}");
            let together = Step::AtOnce { steps: vec![delete_pod(Manner::Graceful), step] };
            assert_eq!(together.is_disruptive(), disrupts != Disrupts::Nothing, "{together}");
        }
    }

    #[test]
    fn what_cannot_be_taken_back_is_looked_at_live() {
        let (others, resource_version) = (Vec::new(), ResourceVersion::from("7"));
        let adds = Step::AddFinalizer {
            appwrapper: appwrapper(),
            resource_version: resource_version.clone(),
            others: others.clone(),
        };
        let removes = Step::RemoveFinalizer { appwrapper: appwrapper(), resource_version, others };
        let mut cases = vec![
            (status(Stakes::Bookkeeping), false),
            (adds, false),
            (status(Stakes::Final), true),
            (status(Stakes::TakesDown { pods: 1 }), true),
            (removes, true),
            (fail_pod(), true),
        ];
        cases.extend(MANNERS.map(|manner| (delete_pod(manner), true)));
        cases.extend(MANNERS.map(|manner| (delete_component(manner), true)));
        for (step, is_final) in cases {
            let found = [step.is_irreversible(), step.needs_a_second_look()];
            assert_eq!(found, [is_final; 2], "{step}");
        }
    }

    #[test]
    fn a_second_look_confirms_the_same_write_on_the_same_object_and_no_other() {
        let other = || PodRef { uid: "q".into(), ..pod() };
        let of_pod = |pod: PodRef, manner| Step::DeletePod { pod, resource_version: "8".into(), manner };
        let of_object = |pod: PodRef, manner| Step::DeleteComponent {
            object: (&pod).into(),
            resource_version: "8".into(),
            manner,
        };
        let fails = |pod: PodRef| Step::FailPod { pod, resource_version: "8".into(), conditions: Vec::new() };
        let asks = |manner| matches!(manner, Manner::Graceful | Manner::Briefly);
        let manners = [Manner::Graceful, Manner::Briefly, Manner::Forceful, Manner::Afterwards];
        for (one, next) in manners.into_iter().flat_map(|one| manners.map(|next| (one, next))) {
            let is_same = one == next || asks(one) && asks(next);
            for (first, second, of_other) in [
                (delete_pod(one), of_pod(pod(), next), of_pod(other(), next)),
                (delete_component(one), of_object(pod(), next), of_object(other(), next)),
            ] {
                assert_eq!(first.is_same_step(&second), is_same, "{one:?} and {next:?}: {first}");
                assert!(!first.is_same_step(&of_other), "{first} and {of_other}");
            }
        }
        assert!(fail_pod().is_same_step(&fails(pod())));
        assert!(!fail_pod().is_same_step(&fails(other())));
        assert!(!fail_pod().is_same_step(&delete_pod(Manner::Forceful)));
        let together = |steps: Vec<Step>| Step::AtOnce { steps };
        let two = || together(vec![fail_pod(), fails(other())]);
        assert!(two().is_same_step(&two()));
        for steps in
            [vec![fail_pod()], vec![fail_pod(), fail_pod()], vec![fail_pod(), fails(other()), fail_pod()]]
        {
            assert!(!two().is_same_step(&together(steps)));
        }
        let of = |uid: &str| AppWrapperRef { uid: uid.into(), ..appwrapper() };
        let adds = |uid: &str| Step::AddFinalizer {
            appwrapper: of(uid),
            resource_version: "7".into(),
            others: Vec::new(),
        };
        assert!(adds("w").is_same_step(&adds("w")) && !adds("w").is_same_step(&adds("x")));
        let creates = |uid: &str, index: usize, pod: PodRef| Step::CreateComponent {
            appwrapper: of(uid),
            resource_version: "7".into(),
            index,
            object: (&pod).into(),
            body: None,
        };
        let first = creates("w", 0, pod());
        assert!(first.is_same_step(&creates("w", 0, pod())));
        for differs in [creates("x", 0, pod()), creates("w", 1, pod()), creates("w", 0, other())] {
            assert!(!first.is_same_step(&differs), "{differs}");
        }
    }

    /// A pod that has come back to life since, or another one of its name, is not ended.
    #[test]
    fn a_pod_is_forced_only_in_the_state_that_was_judged() {
        let (uid, resource_version) = (pod().uid, ResourceVersion::from("7"));
        let judged = Guard::Judged { uid: &uid, resource_version: &resource_version };
        let cases = [
            (delete_pod(Manner::Graceful), Guard::Uid(&uid), Some(Grace::Own)),
            (delete_pod(Manner::Forceful), judged, Some(Grace::None)),
            (delete_pod(Manner::Afterwards), judged, Some(Grace::None)),
            (fail_pod(), judged, None),
            (delete_component(Manner::Graceful), Guard::Uid(&uid), Some(Grace::Own)),
            (delete_component(Manner::Forceful), Guard::Uid(&uid), Some(Grace::None)),
        ];
        for (step, guard, grace) in cases {
            let write = step.write(&[]).unwrap();
            assert_eq!(write.guard, guard, "{step}");
            let found = if let Verb::Delete(delete) = write.verb { Some(delete.grace) } else { None };
            assert_eq!(found, grace, "{step}");
        }
    }
}
