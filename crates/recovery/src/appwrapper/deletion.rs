//! Deletes what an AppWrapper made: first with grace, then by force, until nothing is left.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;

use super::health::own_pods;
use super::policy::Timers;
use super::status::AppWrapperStatus;
use super::steps::{Manner, Step};
use super::views::{AppWrapperView, FoundComponent, PodView, Seen};
use crate::moments::after;

/// So many deletions are asked for at a time; the rest follows when these are seen.
const AT_ONCE: usize = 50;
/// So many objects are named where it is told what holds a deletion.
const NAMED: usize = 5;

/// How far a deletion has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Progress {
    /// Nothing is left.
    Done,
    /// These deletions are due.
    Due {
        /// The deletions.
        steps: Vec<Step>,
        /// With or without grace.
        manner: Manner,
        /// What is left.
        left: Left,
    },
    /// All deletions were asked for, and something is still there.
    Waiting {
        /// When the rest is deleted by force; none if that was done.
        until: Option<Timestamp>,
        /// What is left.
        left: Left,
    },
}

/// What holds a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// So many objects and pods.
    pub count: usize,
    /// The first of them, each with what holds it.
    pub named: Vec<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = self.count.saturating_sub(self.named.len());
        write!(f, "{} left: {}", self.count, self.named.join("; "))?;
        if more > 0 { write!(f, "; and {more} more") } else { Ok(()) }
    }
}

/// The objects that the AppWrapper owns, by UID: its components, and any others.
pub(super) fn own_objects(view: &AppWrapperView) -> impl Iterator<Item = &FoundComponent> {
    let components = (0..view.components.len()).filter_map(|index| view.own_component(index));
    components.chain(view.strays.iter().filter(|it| view.owns(it)))
}

/// Pods of components that are gone: controllers and kubelets need a while to delete them. A label alone is anybody's to write,
/// so only those count that are known to belong to a component, or are about to go.
pub(super) fn pods_left_over(view: &AppWrapperView) -> impl Iterator<Item = &PodView> {
    let ours = |pod: &&PodView| pod.component.is_some() || pod.deletion.is_some();
    own_pods(view).filter(ours).filter(|pod| !is_object(view, pod))
}

/// Whether anything is left of what the AppWrapper made, or may be.
pub(super) fn left(view: &AppWrapperView) -> Left {
    let unknown = view.components.iter().filter_map(|it| match &it.seen {
        Seen::Unknown(why) => Some(format!("{} {}: {why}", it.kind, it.name)),
        Seen::Found(_) | Seen::Absent { .. } | Seen::NoSuchKind => None,
    });
    let pods = own_pods(view).filter(|pod| !is_object(view, pod));
    let all: Vec<String> =
        unknown.chain(own_objects(view).map(name_object)).chain(pods.map(name_pod)).collect();
    Left { count: all.len(), named: all.into_iter().take(NAMED).collect() }
}

/// The next deletions. `status` is told when they begin and when they are done.
pub(super) fn advance(
    view: &AppWrapperView,
    status: &mut AppWrapperStatus,
    timers: &Timers,
    now: Timestamp,
) -> Progress {
    let left = left(view);
    if left.count == 0 {
        status.set_deleted(now);
        return Progress::Done;
    }
    let forced_from = after(status.set_deleting(now), timers.forceful_deletion_grace);
    let manner = if now < forced_from { Manner::Graceful } else { Manner::Forceful };
    let steps = deletions(view, manner);
    if steps.is_empty() {
        let until = (manner == Manner::Graceful).then_some(forced_from);
        Progress::Waiting { until, left }
    } else {
        Progress::Due { steps, manner, left }
    }
}

/// The deletions that were not asked for yet, all at once: an object that the server refuses to delete holds up none of the others.
/// Objects come before pods: their controllers must not replace what is deleted.
///
/// Pods are left to the controllers of the objects until force is due.
pub(super) fn deletions(view: &AppWrapperView, manner: Manner) -> Vec<Step> {
    due(own_objects(view), own_pods(view).filter(|pod| !is_object(view, pod)), manner)
}

/// The deletions that end pods of components that are done. A component all of whose pods are about to go stays, with what it
/// tells of its success. `done` are the indexes of the components that are done.
pub(super) fn endings(
    view: &AppWrapperView,
    done: &BTreeSet<usize>,
    pods: &[&PodView],
    manner: Manner,
) -> Vec<Step> {
    // Where nobody can tell which component a pod belongs to, it may be any of them.
    let holds = |index: usize, pod: &PodView| pod.component.is_none_or(|of| of == index);
    let lingers = |index: &usize| pods.iter().any(|pod| pod.deletion.is_none() && holds(*index, pod));
    let objects = done.iter().copied().filter(lingers).filter_map(|index| view.own_component(index));
    due(objects, pods.iter().copied(), manner)
}

fn due<'a>(
    objects: impl Iterator<Item = &'a FoundComponent>,
    pods: impl Iterator<Item = &'a PodView>,
    manner: Manner,
) -> Vec<Step> {
    let objects = objects.filter(|it| match (manner, it.deletion) {
        (_, None) => true,
        (Manner::Graceful, Some(_)) => false,
        // With a grace of 0 only finalizers hold it: another delete changes nothing.
        (Manner::Forceful, Some(deletion)) => deletion.grace_seconds != Some(0),
    });
    let objects = objects.map(|it| Step::DeleteComponent {
        object: (&it.object).into(),
        resource_version: it.resource_version.clone(),
        manner,
    });
    let pods = pods.filter(|pod| {
        let forced = pod.deletion.is_some_and(|deletion| deletion.grace_seconds == Some(0));
        manner == Manner::Forceful && !forced
    });
    let pods = pods.map(|it| Step::DeletePod {
        pod: it.pod.clone(),
        resource_version: it.resource_version.clone(),
        manner,
    });
    Step::at_once(objects.chain(pods).take(AT_ONCE).collect())
}

/// Whether a pod is a component itself.
fn is_object(view: &AppWrapperView, pod: &PodView) -> bool {
    own_objects(view).any(|it| it.object.uid == pod.pod.uid)
}

fn name_object(object: &FoundComponent) -> String {
    format!("{}{}", object.object, held_by(object.is_deleting(), &object.finalizers))
}

fn name_pod(pod: &PodView) -> String {
    let node = pod.node_name.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
    format!("pod {}{node}{}", pod.pod.name, held_by(pod.deletion.is_some(), &pod.finalizers))
}

fn held_by(deleting: bool, finalizers: &[String]) -> String {
    match (deleting, finalizers) {
        (false, _) => " (not deleted yet)".into(),
        (true, []) => " (terminating)".into(),
        (true, finalizers) => format!(" (terminating, held by finalizers {})", finalizers.join(", ")),
    }
}
