//! Steps: the writes that a recovery requests, as plain values.
//!
//! Each recovery has an enum of steps beside its rules. A [`Step`] states its object, its effect on others ([`Effect`])
//! and the request to send ([`Write`]). The executor of steps knows nothing else of the recovery.

use std::{
    borrow::Cow,
    fmt::{self, Debug, Display},
};

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use crate::event::EventNote;
use crate::ids::{ResourceVersion, Uid};
use crate::objects::Object;

/// One guarded write of a recovery, or several that may run together.
///
/// `Display` is the sentence for people, and the JSON form is what `explain` prints.
pub trait Step: Clone + Debug + Display + PartialEq + Serialize + Send + Sync + 'static {
    /// A stable name for metrics and logs.
    fn name(&self) -> &'static str;

    /// The object that the step writes, or that its event is about.
    fn object(&self) -> Object<'_>;

    fn effect(&self) -> Effect<'_>;

    /// Distinguishes two steps of one name on one object; empty if there is no difference.
    fn detail(&self) -> Cow<'_, str>;

    /// The event that the step records, if any.
    fn tells(&self) -> Option<StepEvent<'_>>;

    /// The step in the words of a timeline, such as "marked Failed"; `None` for routine work.
    fn headline(&self) -> Option<&'static str>;

    /// Objects to read before the step can be written, because the API takes some lists only whole.
    fn reads(&self) -> Vec<Object<'_>> {
        Vec::new()
    }

    /// The request, from the step and the objects read for it, in the order of [`Step::reads`].
    ///
    /// # Errors
    /// The object that was read is not in the state that the decision rests on.
    fn write(&self, read: &[Option<Value>]) -> Result<Write<'_>, Changed>;

    /// The steps in it, which may run together. All are tried; what follows is done only if all succeed.
    fn steps(&self) -> &[Self] {
        std::slice::from_ref(self)
    }

    fn into_steps(self) -> Vec<Self> {
        vec![self]
    }

    /// True if another decision requests this very step.
    fn is_same_step(&self, other: &Self) -> bool {
        self.name() == other.name() && self.object() == other.object() && self.detail() == other.detail()
    }

    /// True if the step takes something away from a workload. The brake must allow it.
    fn is_disruptive(&self) -> bool {
        self.steps().iter().any(|step| step.effect().disrupts != Disrupts::Nothing)
    }

    /// True if the live objects are read and decided on again right before the step.
    fn needs_a_second_look(&self) -> bool {
        self.steps().iter().any(|step| step.effect().second_look != SecondLook::No)
    }

    /// True if the step waits while a watch has been silent for too long.
    fn needs_a_fresh_view(&self) -> bool {
        self.is_disruptive() || self.steps().iter().any(|step| step.effect().starts_work)
    }

    /// True if the step cannot be undone, so that it waits while the server's time is uncertain.
    fn is_irreversible(&self) -> bool {
        self.steps().iter().any(|step| step.effect().irreversible)
    }

    /// True if the step changes the object that the decision is about, so that an earlier read of it is stale.
    fn changes_what_was_judged(&self) -> bool {
        self.steps().iter().any(|step| step.effect().changes_what_was_judged)
    }
}

/// The object that was read for a step is not in the state that the decision rests on: decide again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed;

/// The effect of a step on others. There is no default: each step states all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    pub disrupts: Disrupts<'a>,
    /// The objects that are read live and decided on again right before the step.
    pub second_look: SecondLook,
    /// True if the step starts work that may not be wanted any more, so that it waits while the watch cache is stale.
    pub starts_work: bool,
    /// True if the step cannot be undone.
    pub irreversible: bool,
    /// True if the step changes the object that the decision is about.
    pub changes_what_was_judged: bool,
    /// What an error of the API server blocks.
    pub errors: Errors,
}

impl Effect<'_> {
    /// Only records an event.
    pub const TELLS: Effect<'static> = Effect {
        disrupts: Disrupts::Nothing,
        second_look: SecondLook::No,
        starts_work: false,
        irreversible: false,
        changes_what_was_judged: false,
        errors: Errors::HoldTheSubject,
    };

    /// Writes something that can be written again, and takes nothing away.
    pub const WRITES_DOWN: Effect<'static> = Effect { changes_what_was_judged: true, ..Self::TELLS };
}

impl<'a> Effect<'a> {
    /// Takes something away for good.
    pub const fn takes(disrupts: Disrupts<'a>) -> Self {
        Self {
            disrupts,
            second_look: SecondLook::Everything,
            starts_work: false,
            irreversible: true,
            changes_what_was_judged: true,
            errors: Errors::HoldTheSubject,
        }
    }
}

impl<'a> Effect<'a> {
    pub fn of_all<S: Step>(steps: &'a [S]) -> Self {
        steps.iter().map(Step::effect).fold(Effect::TELLS, |all, one| Effect {
            disrupts: all.disrupts.and(one.disrupts),
            second_look: all.second_look.max(one.second_look),
            starts_work: all.starts_work || one.starts_work,
            irreversible: all.irreversible || one.irreversible,
            changes_what_was_judged: all.changes_what_was_judged || one.changes_what_was_judged,
            errors: one.errors,
        })
    }
}

/// The disruption of workloads by a step, as the brake counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disrupts<'a> {
    /// Nothing, or only what the workload's own spec asks for.
    Nothing,
    /// An earlier step began this disruption and was counted. An outage blocks it, but no budget does.
    WhatWasBegun,
    Pods(u32),
    /// A node whose eviction begins. Its pods count one by one.
    Node {
        /// The node's zone.
        zone: &'a str,
    },
    /// A node that Kubernetes itself drains afterwards, so that all its pods count at once.
    NodeWithAllPods,
    /// A whole workload of so many pods.
    Workload {
        /// The number of its pods.
        pods: u32,
    },
}

impl Disrupts<'_> {
    /// Shows only that something is disrupted at all: the brake counts steps one by one.
    fn and(self, other: Self) -> Self {
        if self == Self::Nothing { other } else { self }
    }
}

/// The objects that are read live and decided on again right before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecondLook {
    No,
    /// Everything that the verdict rests on except the object itself: the write has its resourceVersion as a
    /// precondition.
    AllButTheObject,
    /// Everything that the verdict rests on.
    Everything,
}

/// What an error of the API server blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// All work on the subject, unless the server says that the request itself is invalid.
    HoldTheSubject,
    /// Only this step: the recovery gets the error and decides again. A refusal of one pod, also by a webhook that is
    /// unavailable, must not block the other pods.
    HoldTheStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvent<'a> {
    /// As a step of its own, retried until it is recorded.
    Recorded(&'a EventNote),
    /// Best effort: nothing waits for it.
    BestEffort(&'a EventNote),
}

#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// For metrics.
    pub step: &'static str,
    pub object: Object<'a>,
    /// The state that the object must still have.
    pub guard: Guard<'a>,
    pub verb: Verb<'a>,
    pub effect: Effect<'a>,
}

impl<'a> Write<'a> {
    pub fn of<S: Step>(step: &'a S, guard: Guard<'a>, verb: Verb<'a>) -> Self {
        Self { step: step.name(), object: step.object(), guard, verb, effect: step.effect() }
    }

    /// An event that is recorded once.
    pub fn event(note: &'a EventNote) -> Self {
        Self {
            step: EMIT_EVENT,
            object: note.regarding.as_object(),
            guard: Guard::None,
            verb: Verb::Record(note),
            effect: Effect::TELLS,
        }
    }
}

/// The name of the step that records an event, the same in every recovery.
pub const EMIT_EVENT: &str = "EmitEvent";
/// The name of the step that records an event on a best-effort basis.
pub const MENTION: &str = "Mention";

/// The precondition of a write. The API server refuses the write if it does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard<'a> {
    /// None: the object does not exist yet, or has a name that is never reused.
    None,
    /// The object of that UID.
    Uid(&'a Uid),
    /// The object of that UID, in the state that the decision rests on.
    Judged {
        uid: &'a Uid,
        /// The resourceVersion that the decision rests on.
        resource_version: &'a ResourceVersion,
    },
}

#[derive(Clone, Debug)]
pub enum Verb<'a> {
    /// Creates the object. If the name exists already, that object is the answer: ours from an earlier attempt, or a
    /// foreign one.
    Create {
        /// The object, as JSON.
        body: Cow<'a, str>,
    },
    Patch(Patch),
    /// Deletes the object. An object that is already gone counts as deleted.
    Delete(Delete),
    /// Evicts a pod through the Eviction API, which respects disruption budgets. A pod that is already gone counts as
    /// evicted.
    Evict(Grace),
    /// Records an event. If the name exists already, the event is recorded.
    Record(&'a EventNote),
}

#[derive(Clone, Debug)]
pub struct Patch {
    /// How lists are merged.
    pub merge: Merge,
    pub part: Part,
    /// Changes of the metadata, besides the precondition.
    pub metadata: Map<String, Value>,
    /// The new content, under `spec` or `status`.
    pub content: Option<(&'static str, Box<RawValue>)>,
    /// True if the change is needless once the object is gone.
    pub gone_is_fine: bool,
}

impl Patch {
    /// A change of the status.
    ///
    /// # Errors
    /// The status has no JSON form.
    pub fn status(merge: Merge, status: &impl Serialize) -> Result<Self, Changed> {
        Ok(Self {
            part: Part::Status,
            content: content("status", status)?,
            ..Self::metadata(merge, Map::new())
        })
    }

    /// A change of the spec.
    ///
    /// # Errors
    /// The spec has no JSON form.
    pub fn spec(spec: &impl Serialize) -> Result<Self, Changed> {
        Ok(Self { content: content("spec", spec)?, ..Self::metadata(Merge::Plain, Map::new()) })
    }

    /// A change of the metadata alone.
    pub fn metadata(merge: Merge, metadata: Map<String, Value>) -> Self {
        Self { merge, part: Part::Object, metadata, content: None, gone_is_fine: false }
    }

    /// Adds an annotation; `None` removes it.
    #[must_use]
    pub fn annotated(mut self, key: &str, value: Option<String>) -> Self {
        let annotations = self.metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(annotations) = annotations {
            annotations.insert(key.to_owned(), value.map_or(Value::Null, Value::String));
        }
        self
    }

    /// Treats an object that is gone as success.
    #[must_use]
    pub fn unless_gone(self) -> Self {
        Self { gone_is_fine: true, ..self }
    }
}

fn content(
    part: &'static str,
    value: &impl Serialize,
) -> Result<Option<(&'static str, Box<RawValue>)>, Changed> {
    // Only a map with keys that are not strings has no JSON form, and nothing that is written contains one.
    serde_json::value::to_raw_value(value).map(|value| Some((part, value))).map_err(|_| Changed)
}

/// How a patch merges lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// By their keys, so that foreign items stay without being read. Only built-in kinds of Kubernetes support this.
    Strategic,
    /// Not at all: a list is replaced whole, and `null` removes a field.
    Plain,
}

/// A part of an object that is written on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything except the status.
    Object,
    /// The status subresource, and the annotations with it.
    Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    pub grace: Grace,
    /// The propagation policy.
    pub owned: Owned,
    /// True if the caller reads the object in the response.
    pub answer_is_read: bool,
}

impl Delete {
    /// With the object's own grace period, ignoring the response.
    pub const OWN_GRACE: Self = Self { grace: Grace::Own, owned: Owned::AsUsual, answer_is_read: false };
    pub const NO_GRACE: Self = Self { grace: Grace::None, ..Self::OWN_GRACE };
}

/// The grace period of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// As the object's spec says.
    Own,
    /// One second: a pod whose spec has a grace period of zero would vanish from the API before its kubelet has stopped
    /// it.
    ASecond,
    /// Zero: the object vanishes from the API at once, unless it has a finalizer.
    None,
}

/// The propagation policy of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// The default of its kind.
    AsUsual,
    /// Foreground: dependents are deleted first.
    First,
    /// Background: dependents are deleted afterwards.
    Afterwards,
}

/// A step as it is shown, in the same form for every recovery.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ShownStep {
    /// Its fields, as `explain` prints them.
    pub fields: Value,
    /// The step as a sentence for people.
    #[serde(skip)]
    pub sentence: String,
}

impl ShownStep {
    pub fn of(step: &impl Step) -> Self {
        // A step without a JSON form still has its sentence.
        Self { fields: serde_json::to_value(step).unwrap_or_default(), sentence: step.to_string() }
    }
}

impl Display for ShownStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}
