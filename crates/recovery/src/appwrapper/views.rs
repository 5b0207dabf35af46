//! Views of the objects: only the fields on which the decisions of AppWrapper recovery depend.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use salvor_api::names::appwrapper as names;
use serde::Serialize;

use super::admitted::Comparison;
use super::components::{ComponentKind, ComponentState, Waves};
use super::policy::Annotations;
use super::status::AppWrapperStatus;
use crate::gate::Work;
use crate::ids::{NodeName, ResourceVersion, Uid};
use crate::liveness::{Heartbeat, Lease};
use crate::moments::after;
use crate::objects::{self, Deletion, Kind, Object, PodPhase, PodRef};
use crate::proof::Machine;

pub static APPWRAPPER: Kind = Kind::known(names::GROUP, names::VERSION, names::KIND, names::PLURAL);

/// Identifies one AppWrapper, and no other one with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppWrapperRef {
    /// First, because the UID alone distinguishes any two.
    pub uid: Uid,
    pub namespace: String,
    pub name: String,
}

impl AppWrapperRef {
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

/// Identifies an object of any kind that an AppWrapper created, and no other one with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    pub uid: Uid,
    #[serde(flatten)]
    pub kind: ComponentKind,
    pub namespace: String,
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

/// Everything that a decision about one AppWrapper depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct AppWrapperView {
    pub appwrapper: AppWrapperRef,
    pub resource_version: ResourceVersion,
    /// Older pods are not its own, whatever their label says.
    pub created: Timestamp,
    pub deleting: bool,
    /// True if Salvor's finalizer is set.
    pub has_finalizer: bool,
    pub other_finalizers: Vec<String>,
    /// `spec.suspend`.
    pub suspend: bool,
    /// `spec.managedBy`.
    pub managed_by: Option<String>,
    /// The annotations that change timers.
    pub annotations: Annotations,
    /// Why the admission rules refuse it now: no webhook checked it, or the rules were different then. Nothing is
    /// created for it.
    pub refused: Option<String>,
    pub authorship: Authorship,
    /// The spec compared with what was admitted.
    pub admitted: Comparison,
    /// `spec.components`, in order, each with its state in the cluster.
    pub components: Vec<ComponentView>,
    /// Objects whose controller is this AppWrapper, by UID, and that are not among `components`.
    pub strays: Vec<FoundComponent>,
    /// The pods in its namespace with its label.
    pub pods: Vec<PodView>,
    /// True if `pods` is complete: a list was read since the watch began. Without it no decision is made.
    pub pods_known: bool,
    /// The nodes of `pods` and of bare Pods among `components`. A node that is missing here does not exist.
    pub nodes: BTreeMap<NodeName, NodeView>,
    /// True if `nodes` is complete.
    pub nodes_known: bool,
    /// The status as read from the API server.
    pub status: AppWrapperStatus,
    /// What this process knows and the objects do not show.
    pub memory: Memory,
}

/// What is known about the author of the components and their rights. It is checked only before a creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorship {
    /// No objection: no review is needed, or none was made yet. The second look right before a creation makes them.
    #[default]
    Fine,
    /// The author is not known, or may not create the components.
    Refused(String),
    /// The keys for stamps were not read yet, or not since a stamp was seen that no known key has signed.
    NoKeys,
    /// The author is known, but their rights could not be checked.
    Unanswered {
        message: String,
        /// When the reviews are made again.
        retry_at: Timestamp,
    },
}

/// One of `spec.components`, with its state in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ComponentView {
    /// The kind in its template.
    pub kind: ComponentKind,
    /// The name for its creation: the template's, or one derived from `generateName`, the UID of the AppWrapper and the
    /// component's index, so that a second attempt creates the same object.
    pub name: String,
    /// The declared PodSets, or else the inferred ones.
    pub pod_sets: Vec<super::status::PodSet>,
    /// The object under [`AppWrapperView::name_of`].
    pub seen: Seen,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// It exists, or another owner's object has its name.
    Found(Box<FoundComponent>),
    /// There is no such object.
    Absent {
        /// The object as this process last saw it, if it ever did and the AppWrapper owned it.
        last: Option<Last>,
    },
    /// The API server serves the kind in no version. It answered so more than once: a definition that is being changed
    /// is briefly not served.
    NoSuchKind,
    /// Not known: its kind is not watched yet, may not be read, or is not served at the moment. The text says why.
    Unknown(String),
}

/// An object that is gone, in its last known state.
#[derive(Clone, Debug, PartialEq)]
pub struct Last {
    pub object: Box<FoundComponent>,
    pub end: End,
}

/// How the end of an object became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// From a watch event: the last known state is the final one.
    Told,
    /// From a later list without it: anything may have happened after the last known state.
    Missed,
}

/// An object that an AppWrapper owns, or that has the name of one of its components.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundComponent {
    pub object: ObjectRef,
    pub resource_version: ResourceVersion,
    pub created: Timestamp,
    /// UID of its controller in `ownerReferences`.
    pub owner_uid: Option<Uid>,
    pub deletion: Option<Deletion>,
    pub finalizers: Vec<String>,
    pub state: ComponentState,
    /// For a Job: the pods that it still has to run.
    pub waves: Option<Waves>,
    /// For a bare Pod: the reason of its condition `DisruptionTarget`, if that is True.
    pub disruption: Option<String>,
    /// For a bare Pod: its node.
    pub node_name: Option<NodeName>,
    /// For a bare Pod: see [`PodView::without_grace`].
    pub without_grace: bool,
}

/// A pod with the AppWrapper's label.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    pub pod: PodRef,
    pub resource_version: ResourceVersion,
    pub created: Timestamp,
    pub phase: PodPhase,
    pub deletion: Option<Deletion>,
    pub finalizers: Vec<String>,
    pub node_name: Option<NodeName>,
    /// The index of its component, if [`component_of`](super::components::component_of) can determine it.
    pub component: Option<usize>,
    /// When the last of its terminated containers ended.
    pub ended: Option<Timestamp>,
    /// Nonzero exit codes of its terminated containers, without init containers.
    pub exit_codes: Vec<i32>,
    /// The resources that its containers request or have limits for, without init containers.
    pub resources: BTreeSet<String>,
    /// True if the scheduler finds no node for it, or a scheduling gate blocks it.
    pub unschedulable: bool,
    /// The reason of its condition `DisruptionTarget`, if that is True.
    pub disruption: Option<String>,
    /// True if its kubelet has reported every container as terminated.
    pub terminated: bool,
    /// True if the grace period of its spec is 0, so that a deletion removes it from the API before its kubelet has
    /// ended it.
    pub without_grace: bool,
    /// The facts that decide whether the pod may run twice.
    pub work: Work,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// The resources with a NoExecute label of Autopilot: see
    /// [`Autopilot::no_execute`](super::policy::Autopilot::no_execute).
    pub no_execute: BTreeSet<String>,
    /// True if the control plane has lost the node (taint `node.kubernetes.io/unreachable`, or `Ready` is `Unknown`)
    /// and its kubelet does not report ready.
    pub unreachable: bool,
    /// The heartbeat of its kubelet, from its Lease. It is read while the node is unreachable, and right before a
    /// write that rests on its kubelet's report.
    pub heartbeat: Heartbeat,
    /// Since when the control plane has lost it.
    pub lost: Option<Timestamp>,
    /// True if it is out of service, or its eviction is requested or in progress.
    pub force_evicted: bool,
    /// Whether its machine is known to be off.
    pub machine: Machine,
}

impl Default for NodeView {
    /// A node without known problems.
    fn default() -> Self {
        Self {
            no_execute: BTreeSet::new(),
            unreachable: false,
            heartbeat: Heartbeat::UNREAD,
            lost: None,
            force_evicted: false,
            machine: Machine::MayRun,
        }
    }
}

impl NodeView {
    /// True if its kubelet is silent: the control plane has lost the node, and its Lease is not renewed. A Lease that
    /// was not read yet proves nothing.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        self.unreachable && self.heartbeat.lease != Lease::Unread && self.heartbeat.alive_until(now).is_none()
    }

    /// Since when its kubelet is silent: the later of its loss and its last heartbeat.
    pub fn silent_since(&self) -> Option<Timestamp> {
        self.lost.map(|lost| self.heartbeat.heard().map_or(lost, |heard| heard.max(lost)))
    }

    /// True if its kubelet's report counts: its Lease is renewed, or was not read. The Lease of a node that is not
    /// unreachable is read only right before a write that rests on the report.
    pub(super) fn is_heard(&self, now: Timestamp) -> bool {
        self.heartbeat.lease == Lease::Unread || self.heartbeat.lease.is_fresh(now)
    }

    /// Until when the kubelet of an unreachable node may be alive, according to its Lease.
    pub fn alive_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.heartbeat.alive_until(now).filter(|_| self.unreachable)
    }
}

/// What this process knows and no object shows. All of it may be lost: then steps are repeated, with the same result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The last failed creation of each component, by index.
    pub creation: BTreeMap<usize, CreateFailure>,
    /// Since when the API server does not serve a component's kind, by index.
    pub unserved: BTreeMap<usize, Timestamp>,
    /// The names of events that are known to be recorded.
    pub told: BTreeSet<String>,
    /// When the workload was found unhealthy.
    pub unhealthy: Option<Moment>,
    /// True if the API server drops the record of what was admitted, because its definition of AppWrappers is older.
    /// Then it is not written again and again.
    pub record_is_dropped: bool,
}

/// The exact time behind a condition's time, which is rounded up to whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The time of the condition.
    shown: Timestamp,
    /// The exact time, at most a second earlier.
    exact: Timestamp,
}

impl Memory {
    /// Takes in a status that was just written.
    pub fn wrote(&mut self, status: &AppWrapperStatus, now: Timestamp) {
        let shown = status.unhealthy_since();
        if self.unhealthy.map(|moment| moment.shown) != shown {
            let second = SignedDuration::from_secs(1);
            self.unhealthy =
                shown.map(|shown| Moment { shown, exact: now.min(shown).max(after(shown, -second)) });
        }
    }

    /// The exact time at which the workload became unhealthy.
    pub(super) fn moment_behind(&self, shown: Timestamp) -> Timestamp {
        self.unhealthy.filter(|moment| moment.shown == shown).map_or(shown, |moment| moment.exact)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateFailure {
    pub message: String,
    /// True if another attempt would not help.
    pub fatal: bool,
    /// True if there was no answer, so it may have taken effect.
    pub unanswered: bool,
    pub at: Timestamp,
    /// Failed attempts in a row, including this one.
    pub attempts: u32,
}

impl CreateFailure {
    /// The maximum backoff, in seconds.
    const LONGEST_PAUSE: i64 = 16;

    /// True if another attempt would not help, because the object is invalid. A kind that is not served may be served
    /// soon, so that is not fatal.
    pub fn is_fatal_answer(code: u16) -> bool {
        code == 422
    }

    /// Backs off for 1, 2, 4, 8, then always 16 seconds. That applies to a creation without an answer too: an
    /// overloaded server must not get the same request again and again.
    pub fn retry_at(&self) -> Timestamp {
        let seconds = 1i64.checked_shl(self.attempts.saturating_sub(1)).unwrap_or(Self::LONGEST_PAUSE);
        after(self.at, SignedDuration::from_secs(seconds.clamp(1, Self::LONGEST_PAUSE)))
    }
}

impl AppWrapperView {
    /// The name under which component `index` is looked up: the recorded one while it is in use, else the one for its
    /// creation.
    ///
    /// An AppWrapper that another controller started may have a random name recorded.
    pub fn name_of(&self, index: usize) -> Option<&str> {
        let component = self.components.get(index)?;
        let recorded = self.status.component_status.get(index).and_then(|it| it.name_in_use());
        Some(recorded.unwrap_or(&component.name))
    }

    /// True if the AppWrapper controls the object, by UID.
    pub fn owns(&self, object: &FoundComponent) -> bool {
        object.owner_uid.as_ref() == Some(&self.appwrapper.uid)
    }

    /// The object of component `index`, if it exists and the AppWrapper owns it.
    pub fn own_component(&self, index: usize) -> Option<&FoundComponent> {
        match &self.components.get(index)?.seen {
            Seen::Found(found) => self.owns(found).then_some(&**found),
            Seen::Absent { .. } | Seen::NoSuchKind | Seen::Unknown(_) => None,
        }
    }
}

impl FoundComponent {
    pub fn is_deleting(&self) -> bool {
        self.deletion.is_some()
    }
}

impl PodView {
    /// True if it uses, or may use, the AppWrapper's quota.
    pub fn is_active(&self) -> bool {
        !self.phase.is_terminal()
    }

    /// True if a deletion with the grace period of its spec removes it from the API at once. A pod that is being
    /// deleted already keeps the grace period that it was given.
    pub fn goes_at_once(&self) -> bool {
        self.without_grace && self.deletion.is_none() && self.is_active()
    }

    /// True if the effect of a deletion depends on its kubelet's report.
    pub fn hangs_on_its_kubelet(&self) -> bool {
        let is_reported = self.deletion.is_some() && self.terminated && self.is_active();
        is_reported || self.goes_at_once()
    }

    /// True if it did not fail by itself: it was disrupted, and none of its containers reported a nonzero exit code.
    pub(super) fn was_evicted(&self) -> bool {
        self.disruption.is_some() && self.exit_codes.is_empty()
    }
}
