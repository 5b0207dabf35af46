//! What AppWrapper recovery looks at: only the fields that it judges by.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::appwrapper as names;
use serde::Serialize;

use super::admitted::Comparison;
use super::components::{ComponentState, Waves};
use super::policy::Annotations;
use super::status::AppWrapperStatus;
use crate::gate::{Machine, Work};
use crate::ids::{NodeName, ResourceVersion, Uid};
use crate::liveness::{Lease, Pulse};
use crate::moments::after;
use crate::objects::{self, Deletion, Kind, Object, PodPhase, PodRef};

/// AppWrappers.
pub static APPWRAPPER: Kind = Kind::known(names::GROUP, names::VERSION, names::KIND, names::PLURAL);

/// An AppWrapper, and no other AppWrapper of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppWrapperRef {
    /// Its UID; first, because it alone tells any two apart.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl AppWrapperRef {
    /// The object.
    pub fn object(&self) -> Object<'_> {
        Object { kind: &APPWRAPPER, namespace: Some(&self.namespace), name: &self.name, uid: &self.uid }
    }
}

impl From<&AppWrapperRef> for objects::ObjectRef {
    fn from(object: &AppWrapperRef) -> Self {
        object.object().to_ref()
    }
}

impl fmt::Display for AppWrapperRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A kind of component, as the API server serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentKind {
    /// Its API group, empty for the core group.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Its kind.
    pub kind: String,
    /// Its resource as paths have it; empty if the API server does not serve the kind.
    pub resource: String,
}

impl ComponentKind {
    /// Group and version, as `apiVersion` has them.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl From<&ComponentKind> for Kind {
    fn from(kind: &ComponentKind) -> Self {
        let ComponentKind { group, version, kind, resource } = kind.clone();
        Self { group: group.into(), version: version.into(), kind: kind.into(), resource: resource.into() }
    }
}

impl fmt::Display for ComponentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

/// An object of any kind that an AppWrapper made, and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its UID.
    pub uid: Uid,
    /// Its kind.
    #[serde(flatten)]
    pub kind: ComponentKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl From<&ObjectRef> for objects::ObjectRef {
    fn from(object: &ObjectRef) -> Self {
        Self {
            uid: object.uid.clone(),
            kind: (&object.kind).into(),
            namespace: Some(object.namespace.clone()),
            name: object.name.clone(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Everything that a judgement about one AppWrapper rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct AppWrapperView {
    /// Which AppWrapper.
    pub appwrapper: AppWrapperRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// When it was created. Pods that are older are not its own, whatever their label says.
    pub created: Timestamp,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether our finalizer is on it.
    pub has_finalizer: bool,
    /// The finalizers of others.
    pub other_finalizers: Vec<String>,
    /// `spec.suspend`.
    pub suspend: bool,
    /// `spec.managedBy`.
    pub managed_by: Option<String>,
    /// The annotations that change timers.
    pub annotations: Annotations,
    /// Why the admission rules refuse it now: no webhook asked them, or they were others then. Nothing is created for it.
    pub refused: Option<String>,
    /// What is known of who wrote its components.
    pub authorship: Authorship,
    /// The spec beside what was admitted.
    pub admitted: Comparison,
    /// `spec.components`, in order, each with what there is of it in the cluster.
    pub components: Vec<ComponentView>,
    /// Objects whose controller is this AppWrapper, by UID, and that are none of `components`.
    pub strays: Vec<FoundComponent>,
    /// The pods in its namespace that have its label.
    pub pods: Vec<PodView>,
    /// Whether `pods` is all there are: a list of them was read since we watch. Without it nothing is judged.
    pub pods_known: bool,
    /// The nodes that `pods` and bare Pods among `components` are on. A node that is not in here does not exist.
    pub nodes: BTreeMap<NodeName, NodeView>,
    /// Whether `nodes` is all there are.
    pub nodes_known: bool,
    /// Its status as it was read.
    pub status: AppWrapperStatus,
    /// What this process knows that the objects do not tell.
    pub memory: Memory,
}

/// What is known of who wrote the components, and of what they may create. It is asked for only where something is to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorship {
    /// It does not stand in the way: no review is needed, or none was made yet; the look right before a creation makes them.
    #[default]
    Fine,
    /// Their author is not known, or may not create them.
    Refused(String),
    /// The keys of stamps were not read yet.
    NoKeys,
    /// The author is known, and it could not be asked what they may create.
    Unanswered {
        /// Why not.
        message: String,
        /// When to ask again.
        retry_at: Timestamp,
    },
}

/// One of `spec.components`, and what there is of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ComponentView {
    /// Its kind, by its template.
    pub kind: ComponentKind,
    /// The name that it is created with: the template's, or one that follows from `generateName`, the UID of the AppWrapper
    /// and the component's index, so that a second attempt makes the same object.
    pub name: String,
    /// Its PodSets: the declared ones, or the inferred ones.
    pub pod_sets: Vec<super::status::PodSet>,
    /// What there is of it. It is looked up by [`AppWrapperView::name_of`].
    pub seen: Seen,
}

/// What was seen of a component.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// It is there; or somebody else's object has its name.
    Found(Box<FoundComponent>),
    /// There is no such object.
    Absent {
        /// The object as it was last seen by this process, if it ever was and the AppWrapper owned it.
        last: Option<Last>,
    },
    /// The API server does not serve the kind, in no version. It said so more than once: a definition that is changed is not served for a
    /// moment.
    NoSuchKind,
    /// Nobody can tell: its kind is not watched yet, may not be read, or is not served for the moment. With the reason.
    Unknown(String),
}

/// An object that is gone, as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Last {
    /// Its last known state.
    pub object: Box<FoundComponent>,
    /// How its end became known.
    pub end: End,
}

/// How the end of an object became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The watch told of it: the last known state is its final one.
    Told,
    /// A later list does not have it: anything may have happened to it after the last known state.
    Missed,
}

/// An object that an AppWrapper owns, or that has the name of one of its components.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundComponent {
    /// Which object.
    pub object: ObjectRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// When it was created.
    pub created: Timestamp,
    /// UID of its controller by `ownerReferences`, if it has one.
    pub owner_uid: Option<Uid>,
    /// Its deletion mark.
    pub deletion: Option<Deletion>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// What it says of itself.
    pub state: ComponentState,
    /// Of a Job: the pods that it still has to run.
    pub waves: Option<Waves>,
    /// Of a bare Pod: the reason of its condition `DisruptionTarget`, if that is True.
    pub disruption: Option<String>,
    /// Of a bare Pod: its node.
    pub node_name: Option<NodeName>,
}

/// A pod that has the AppWrapper's label.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// Which pod.
    pub pod: PodRef,
    /// The state that is judged.
    pub resource_version: ResourceVersion,
    /// When it was created.
    pub created: Timestamp,
    /// Its phase.
    pub phase: PodPhase,
    /// Its deletion mark.
    pub deletion: Option<Deletion>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Its node.
    pub node_name: Option<NodeName>,
    /// Index of the component that it belongs to, where [`component_of`](super::components::component_of) can tell.
    pub component: Option<usize>,
    /// When the last of its containers that have ended did so.
    pub ended: Option<Timestamp>,
    /// Exit codes other than 0 of its containers that have ended, init containers left out.
    pub exit_codes: Vec<i32>,
    /// The resources of which its containers request or may use some, init containers left out.
    pub resources: BTreeSet<String>,
    /// Whether the scheduler says that it finds no node for it, or a scheduling gate holds it.
    pub unschedulable: bool,
    /// The reason of its condition `DisruptionTarget`, if that is True.
    pub disruption: Option<String>,
    /// True if its kubelet has reported every container as terminated.
    pub terminated: bool,
    /// What decides whether two of it may run.
    pub work: Work,
}

/// A node, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// The resources that Autopilot wants to be left, by the node's labels: see
    /// [`Autopilot::no_execute`](super::policy::Autopilot::no_execute).
    pub no_execute: BTreeSet<String>,
    /// Whether the control plane has lost it: taint `node.kubernetes.io/unreachable`, or `Ready` is `Unknown`; and its kubelet
    /// does not say that it is ready.
    pub unreachable: bool,
    /// The pulse of its kubelet, by its Lease. It is read only while the control plane has lost the node.
    pub pulse: Pulse,
    /// Since when the control plane has lost it, if it has.
    pub lost: Option<Timestamp>,
    /// Whether it is out of service, or its eviction is asked for or under way.
    pub force_evicted: bool,
    /// Whether its machine is known to be off.
    pub machine: Machine,
}

impl Default for NodeView {
    /// A node that is well, as far as anybody knows.
    fn default() -> Self {
        Self {
            no_execute: BTreeSet::new(),
            unreachable: false,
            pulse: Pulse::UNREAD,
            lost: None,
            force_evicted: false,
            machine: Machine::MayRun,
        }
    }
}

impl NodeView {
    /// Whether its kubelet is silent for everybody: the control plane has lost it, and its Lease is not renewed. A Lease that
    /// was not read yet tells nothing.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.unreachable && self.pulse.lease != Lease::Unread && self.pulse.alive_until(now).is_none()
    }

    /// Since when its kubelet is silent: the control plane has lost it, and it was not heard of later.
    pub fn silent_since(&self) -> Option<Timestamp> {
        self.lost.map(|lost| self.pulse.heard().map_or(lost, |heard| heard.max(lost)))
    }

    /// Until when the kubelet of a node that the control plane has lost may be alive, by its Lease.
    pub fn alive_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.pulse.alive_until(now).filter(|_| self.unreachable)
    }
}

/// What this process knows and no object tells. All of it may be lost: then steps are tried once more, with the same end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// For each component by index: its last creation, if that failed.
    pub creation: BTreeMap<usize, CreateFailure>,
    /// For components by index: since when the API server does not serve their kind.
    pub unserved: BTreeMap<usize, Timestamp>,
    /// The names of the events that are known to be recorded.
    pub told: BTreeSet<String>,
    /// The moment at which the workload was found unhealthy.
    pub unhealthy: Option<Moment>,
    /// True if the API server drops the record of what was admitted: its definition of AppWrappers is an older one. Then it is
    /// not written again and again.
    pub record_is_dropped: bool,
}

/// The moment behind the time of a condition, which has whole seconds and is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time of the condition.
    shown: Timestamp,
    /// The moment itself, at most a second before.
    exact: Timestamp,
}

impl Memory {
    /// Takes in a status that was written just now.
    pub fn wrote(&mut self, status: &AppWrapperStatus, now: Timestamp) {
        let shown = status.unhealthy_since();
        if self.unhealthy.map(|moment| moment.shown) != shown {
            let second = SignedDuration::from_secs(1);
            self.unhealthy =
                shown.map(|shown| Moment { shown, exact: now.min(shown).max(after(shown, -second)) });
        }
    }

    /// The moment behind the time of the condition that the workload is unhealthy.
    pub(super) fn moment_behind(&self, shown: Timestamp) -> Timestamp {
        self.unhealthy.filter(|moment| moment.shown == shown).map_or(shown, |moment| moment.exact)
    }
}

/// A creation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateFailure {
    /// The error, for people.
    pub message: String,
    /// Whether another attempt is of no use.
    pub fatal: bool,
    /// Whether it may have taken effect: nobody answered.
    pub unanswered: bool,
    /// When.
    pub at: Timestamp,
    /// So many attempts have failed in a row, this one counted.
    pub attempts: u32,
}

impl CreateFailure {
    /// The longest time between two attempts.
    const LONGEST_PAUSE: i64 = 16;

    /// An answer of the API server to the creation of a component. Another attempt is of no use if the object is invalid. A kind that is
    /// not served may be in a moment.
    pub fn is_fatal_answer(code: u16) -> bool {
        code == 422
    }

    /// When to try again: after 1, 2, 4, 8, then always 16 seconds. That holds for a creation without an answer too: a server that has
    /// too much to do must not be sent the same again and again.
    pub fn retry_at(&self) -> Timestamp {
        let seconds = 1i64.checked_shl(self.attempts.saturating_sub(1)).unwrap_or(Self::LONGEST_PAUSE);
        after(self.at, SignedDuration::from_secs(seconds.clamp(1, Self::LONGEST_PAUSE)))
    }
}

impl AppWrapperView {
    /// The name by which component `index` is looked up: the recorded one while it is in use, else the one to create it with.
    ///
    /// An AppWrapper that another controller started may have recorded a random name.
    pub fn name_of(&self, index: usize) -> Option<&str> {
        let component = self.components.get(index)?;
        let recorded = self.status.component_status.get(index).and_then(|it| it.name_in_use());
        Some(recorded.unwrap_or(&component.name))
    }

    /// Whether an object is the AppWrapper's own, by UID.
    pub fn owns(&self, object: &FoundComponent) -> bool {
        object.owner_uid.as_ref() == Some(&self.appwrapper.uid)
    }

    /// The object of component `index`, if it is there and the AppWrapper's own.
    pub fn own_component(&self, index: usize) -> Option<&FoundComponent> {
        match &self.components.get(index)?.seen {
            Seen::Found(found) => self.owns(found).then_some(&**found),
            Seen::Absent { .. } | Seen::NoSuchKind | Seen::Unknown(_) => None,
        }
    }
}

impl FoundComponent {
    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion.is_some()
    }
}

impl PodView {
    /// Whether it uses, or may use, what its AppWrapper has quota for.
    pub fn is_active(&self) -> bool {
        !self.phase.is_terminal()
    }

    /// Whether it did not fail by itself: it was disrupted, and no container of it told an exit code.
    pub(super) fn was_evicted(&self) -> bool {
        self.disruption.is_some() && self.exit_codes.is_empty()
    }
}
