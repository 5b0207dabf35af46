//! Steps: what a recovery asks to be written, as plain values.
//!
//! Each recovery has an enum of steps beside its rules. A [`Step`] says what it is about, what it may do to others
//! ([`Effect`]) and what is to be sent ([`Write`]). Whoever carries steps out knows nothing else of the recovery.

use std::{
    borrow::Cow,
    fmt::{self, Debug, Display},
};

use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use crate::event::EventNote;
use crate::ids::{ResourceVersion, Uid};
use crate::objects::Object;

/// One guarded write of a recovery, or several that may be under way together.
///
/// `Display` is the sentence that a person reads, and the JSON form is what `explain` prints.
pub trait Step: Clone + Debug + Display + PartialEq + Serialize + Send + Sync + 'static {
    /// A stable name for metrics and logs.
    fn name(&self) -> &'static str;

    /// The object that the step writes, or that its event is about.
    fn object(&self) -> Object<'_>;

    /// The effect of the step on others.
    fn effect(&self) -> Effect<'_>;

    /// A text that tells two steps of one name on one object apart; empty if nothing does.
    fn detail(&self) -> Cow<'_, str>;

    /// The event that the step is, if it is one.
    fn tells(&self) -> Option<Tells<'_>>;

    /// The step in the words of a timeline, such as "marked Failed"; `None` for everyday work.
    fn headline(&self) -> Option<&'static str>;

    /// Objects that are read before the step can be written, because the API takes some lists only whole.
    fn reads(&self) -> Vec<Object<'_>> {
        Vec::new()
    }

    /// The request, made of the step and of what was read for it, in the order of [`Step::reads`].
    ///
    /// # Errors
    /// The object that was read is not the judged one.
    fn write(&self, read: &[Option<Value>]) -> Result<Write<'_>, Changed>;

    /// The steps in it, which may be under way together. All are tried, and what follows is done if all succeed.
    fn steps(&self) -> &[Self] {
        std::slice::from_ref(self)
    }

    /// The same, taken out of it.
    fn into_steps(self) -> Vec<Self> {
        vec![self]
    }

    /// True if another judgement asks for this very step.
    fn is_same_step(&self, other: &Self) -> bool {
        self.name() == other.name() && self.object() == other.object() && self.detail() == other.detail()
    }

    /// True if the step takes something away from a workload. The brake must let it pass.
    fn is_disruptive(&self) -> bool {
        self.steps().iter().any(|step| step.effect().disrupts != Disrupts::Nothing)
    }

    /// True if the live objects are read and judged once more right before the step.
    fn needs_a_second_look(&self) -> bool {
        self.steps().iter().any(|step| step.effect().second_look != SecondLook::No)
    }

    /// True if the step waits while a watch has been silent for too long.
    fn needs_a_fresh_view(&self) -> bool {
        self.is_disruptive() || self.steps().iter().any(|step| step.effect().starts_work)
    }

    /// True if the step cannot be taken back, so that it waits while it is not certain what time it is.
    fn is_irreversible(&self) -> bool {
        self.steps().iter().any(|step| step.effect().irreversible)
    }

    /// True if the step changes the object that was judged, so that a look from before it does not show it as it is.
    fn changes_what_was_judged(&self) -> bool {
        self.steps().iter().any(|step| step.effect().changes_what_was_judged)
    }
}

/// The object that was read for a step is not the judged one: it must be judged again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed;

/// The effect of a step on others. There is no default: each step states all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    /// The disruption of workloads by the step.
    pub disrupts: Disrupts<'a>,
    /// The objects that are read live and judged again right before the step.
    pub second_look: SecondLook,
    /// True if the step starts work that may not be wanted any more, so that it waits while the view is old.
    pub starts_work: bool,
    /// True if the step cannot be taken back.
    pub irreversible: bool,
    /// True if the step changes the object that was judged.
    pub changes_what_was_judged: bool,
    /// Whose work an error of the API server holds up.
    pub errors: Errors,
}

impl Effect<'_> {
    /// Only tells: nothing is changed but the list of events.
    pub const TELLS: Effect<'static> = Effect {
        disrupts: Disrupts::Nothing,
        second_look: SecondLook::No,
        starts_work: false,
        irreversible: false,
        changes_what_was_judged: false,
        errors: Errors::HoldTheSubject,
    };

    /// Writes something down that can be written again, and takes nothing away.
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
    /// The combined effect of several steps.
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
    /// An earlier step has begun this, and was counted. An outage blocks it, but no budget does.
    WhatWasBegun,
    /// So many pods.
    Pods(u32),
    /// A node whose eviction begins. Its pods count one by one.
    Node {
        /// Its zone.
        zone: &'a str,
    },
    /// A node that Kubernetes itself empties afterwards, so that all its pods count at once.
    NodeWithAllPods,
    /// A whole workload of so many pods.
    Workload {
        /// Its pods.
        pods: u32,
    },
}

impl Disrupts<'_> {
    /// The larger of two, for showing that something is disrupted at all. The brake counts steps one by one.
    fn and(self, other: Self) -> Self {
        if self == Self::Nothing { other } else { self }
    }
}

/// The objects that are read live and judged again right before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecondLook {
    /// Nothing.
    No,
    /// All that the verdict rests on but the object itself: the write names its revision, and is refused if it changed.
    AllButTheObject,
    /// All that the verdict rests on.
    Everything,
}

/// Whose work an error of the API server holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// All work on the subject, unless the server says that the request itself is wrong.
    HoldTheSubject,
    /// Only this step: the recovery is told, and judges on. Whoever refuses a pod, a webhook that is away included,
    /// must not hold up the other pods.
    HoldTheStep,
}

/// The way in which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells<'a> {
    /// As a step of its own: it is tried again until it is recorded.
    Recorded(&'a EventNote),
    /// In passing: nothing waits for it.
    InPassing(&'a EventNote),
}

/// One request, as a plain value.
#[derive(Clone, Debug)]
pub struct Write<'a> {
    /// The step's name, for metrics.
    pub step: &'static str,
    /// The object that is written.
    pub object: Object<'a>,
    /// The guard: the state that the object must still have.
    pub guard: Guard<'a>,
    /// The verb.
    pub verb: Verb<'a>,
    /// The effect on others.
    pub effect: Effect<'a>,
}

impl<'a> Write<'a> {
    /// The request of a step on its object.
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
/// The name of the step that records an event in passing.
pub const MENTION: &str = "Mention";

/// The state that an object must still have for a write. Otherwise the API server refuses the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard<'a> {
    /// Nothing: the object is not there yet, or has a name that is never used twice.
    None,
    /// The object of that UID.
    Uid(&'a Uid),
    /// The object of that UID, in the state that was judged.
    Judged {
        /// The UID.
        uid: &'a Uid,
        /// The state that was judged.
        resource_version: &'a ResourceVersion,
    },
}

/// The verb of a write, with its body.
#[derive(Clone, Debug)]
pub enum Verb<'a> {
    /// The object is created. One of that name that is there already is the answer: ours, if the request was made
    /// before, or another's.
    Create {
        /// The object, as JSON.
        body: Cow<'a, str>,
    },
    /// A part of the object is changed.
    Patch(Patch),
    /// The object is deleted. One that is gone already is deleted.
    Delete(Delete),
    /// A pod is asked to go through the Eviction API, which asks disruption budgets. One that is gone already is evicted.
    Evict(Grace),
    /// An event is recorded. One of that name that is there already was recorded.
    Record(&'a EventNote),
}

/// A change of a part of an object.
#[derive(Clone, Debug)]
pub struct Patch {
    /// The way in which lists are merged.
    pub merge: Merge,
    /// The part that is written.
    pub part: Part,
    /// Changes of the metadata, besides the guard.
    pub metadata: Map<String, Value>,
    /// The new content, under `spec` or `status`.
    pub content: Option<(&'static str, Box<RawValue>)>,
    /// True if an object that is gone needs the change no more.
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

    /// A change of the object itself.
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

    /// The same, with an annotation; `None` takes it off.
    #[must_use]
    pub fn annotated(mut self, key: &str, value: Option<String>) -> Self {
        let annotations = self.metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(annotations) = annotations {
            annotations.insert(key.to_owned(), value.map_or(Value::Null, Value::String));
        }
        self
    }

    /// The same, for an object that may be gone.
    #[must_use]
    pub fn unless_gone(self) -> Self {
        Self { gone_is_fine: true, ..self }
    }
}

fn content(
    part: &'static str,
    value: &impl Serialize,
) -> Result<Option<(&'static str, Box<RawValue>)>, Changed> {
    // Only a map with keys that are no strings has no JSON form, and nothing that is written has one.
    serde_json::value::to_raw_value(value).map(|value| Some((part, value))).map_err(|_| Changed)
}

/// The way in which a patch merges lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// By their keys, so that others' items stay without being read. Only kinds of Kubernetes itself know this.
    Strategic,
    /// Not at all: a list is replaced whole, and `null` takes a field away.
    Plain,
}

/// A part of an object that is written by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Object,
    /// The status subresource, and the annotations with it.
    Status,
}

/// The options of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// The grace period.
    pub grace: Grace,
    /// The propagation policy.
    pub owned: Owned,
    /// True if anybody reads what the object is like now.
    pub answer_is_read: bool,
}

impl Delete {
    /// With the object's own grace, and with nobody reading the answer.
    pub const OWN_GRACE: Self = Self { grace: Grace::Own, owned: Owned::AsUsual, answer_is_read: false };
    /// At once.
    pub const NO_GRACE: Self = Self { grace: Grace::None, ..Self::OWN_GRACE };
}

/// The grace period of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// As its spec says.
    Own,
    /// A second: a pod whose spec asks for no time at all would be gone from the API before its kubelet has ended it.
    ASecond,
    /// No time: it is gone from the API at once, unless a finalizer holds it.
    None,
}

/// The propagation policy of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// As is usual for its kind.
    AsUsual,
    /// All of it is deleted first.
    First,
    /// All of it is deleted afterwards.
    Afterwards,
}

/// A step as it is shown: the same for every recovery.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ShownStep {
    /// Its fields, as `explain` prints them.
    pub fields: Value,
    /// The sentence.
    #[serde(skip)]
    pub sentence: String,
}

impl ShownStep {
    /// A step without its type.
    pub fn of(step: &impl Step) -> Self {
        // A step that has no JSON form is still told as a sentence.
        Self { fields: serde_json::to_value(step).unwrap_or_default(), sentence: step.to_string() }
    }
}

impl Display for ShownStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}
