//! Which components are to be created, and what stands in the way.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::health::deployed_since;
use super::steps::Step;
use super::views::{AppWrapperView, ComponentKind, FoundComponent, Seen};
use crate::ids::Uid;
use crate::moments::after;
use crate::objects::ObjectRef;

/// How far the creation of the components has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Creation {
    /// One of them can never be created.
    Impossible {
        /// Its index.
        index: usize,
        /// Why not.
        error: String,
    },
    /// One of them cannot be created now.
    Hindered {
        /// Its index.
        index: usize,
        /// Why not.
        error: String,
        /// What it waits for.
        hindrance: Hindrance,
    },
    /// These can be created now, in this order.
    Due {
        /// Their indexes.
        indexes: Vec<usize>,
    },
    /// All exist.
    Complete {
        /// When the last of them was created.
        since: Timestamp,
    },
}

/// What the creation of a component waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// The server refused it, and is asked again at that time.
    Refused(Timestamp),
    /// The server did not answer, so that it may have been created. What came of it is read at that time.
    Unanswered(Timestamp),
    /// The server has not served its kind since then.
    Unserved(Timestamp),
    /// Something else must change.
    Other,
}

impl fmt::Display for Creation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Impossible { index, error } | Self::Hindered { index, error, .. } => {
                write!(f, "component {index}: {error}")
            }
            Self::Due { indexes } => write!(f, "{} are missing", indexes.len()),
            Self::Complete { since } => write!(f, "yes, since {since}"),
        }
    }
}

/// What there is of one component.
enum One {
    Exists(Timestamp),
    Missing,
    Waits { error: String, hindrance: Hindrance },
    Never { error: String },
}

impl Creation {
    pub(super) fn of(view: &AppWrapperView, now: Timestamp) -> Self {
        let mut due = Vec::new();
        let mut since = Timestamp::MIN;
        let mut hindered = None;
        for index in 0..view.components.len() {
            match one(view, index, now) {
                One::Exists(created) => since = since.max(created),
                One::Never { error } => return Self::Impossible { index, error },
                // Each is created only when those before it are.
                One::Missing if hindered.is_none() => due.push(index),
                One::Missing => {}
                One::Waits { error, hindrance } => {
                    hindered.get_or_insert(Self::Hindered { index, error, hindrance });
                }
            }
        }
        match hindered {
            Some(hindered) if due.is_empty() => hindered,
            _ if !due.is_empty() => Self::Due { indexes: due },
            _ => Self::Complete { since },
        }
    }
}

fn one(view: &AppWrapperView, index: usize, now: Timestamp) -> One {
    let component = &view.components[index];
    let what = format!("{} {}", component.kind, view.name_of(index).unwrap_or(&component.name));
    let no_match = || {
        let kind = &component.kind;
        format!("no matches for kind {:?} in version {:?}", kind.kind, kind.api_version())
    };
    let unserved = view.memory.unserved.get(&index).copied();
    match &component.seen {
        Seen::Found(found) if !view.owns(found) => {
            One::Never { error: format!("{what} exists and is not owned by this AppWrapper") }
        }
        Seen::Found(found) if found.is_deleting() => {
            One::Waits { error: format!("{what} is still being deleted"), hindrance: Hindrance::Other }
        }
        Seen::Found(found) => One::Exists(found.created),
        Seen::NoSuchKind | Seen::Unknown(_) if unserved.is_some() => One::Waits {
            error: no_match(),
            hindrance: unserved.map_or(Hindrance::Other, Hindrance::Unserved),
        },
        // Its template names no kind.
        Seen::NoSuchKind => One::Never { error: no_match() },
        Seen::Unknown(why) => One::Waits { error: format!("{what}: {why}"), hindrance: Hindrance::Other },
        // It may have ended already, and its own time to live with it. Running tells how it ended.
        Seen::Absent { last: Some(last) } if is_of_this_attempt(view, &last.object) => {
            One::Exists(last.object.created)
        }
        Seen::Absent { .. } => match view.memory.creation.get(&index) {
            Some(failure) if failure.fatal => One::Never { error: failure.message.clone() },
            Some(failure) if now < failure.retry_at() => {
                let kind = if failure.unanswered { Hindrance::Unanswered } else { Hindrance::Refused };
                One::Waits { error: failure.message.clone(), hindrance: kind(failure.retry_at()) }
            }
            Some(_) | None => One::Missing,
        },
    }
}

/// Whether an object was created since the components were last about to be: then another one would do its work twice.
///
/// Both times are kept to the second, one rounded down and one up.
fn is_of_this_attempt(view: &AppWrapperView, object: &FoundComponent) -> bool {
    let since = after(deployed_since(view, &view.status), SignedDuration::from_secs(-1));
    view.owns(object) && object.created >= since
}

/// The creation of one component.
pub(super) fn create(view: &AppWrapperView, index: usize) -> Step {
    let component = &view.components[index];
    Step::CreateComponent {
        appwrapper: view.appwrapper.clone(),
        resource_version: view.resource_version.clone(),
        index,
        object: ObjectRef {
            uid: Uid::default(),
            kind: (&component.kind).into(),
            namespace: Some(view.appwrapper.namespace.clone()),
            name: view.name_of(index).unwrap_or(&component.name).to_owned(),
        },
        body: None,
    }
}

/// The object that was created for a component of which no name is recorded: another controller crashed in between. It is the
/// only one of its kind, or nobody can tell.
pub(super) fn adoptable<'a>(
    view: &AppWrapperView,
    strays: &[&'a FoundComponent],
) -> Option<(usize, &'a FoundComponent)> {
    let nameless = |index: usize| {
        let status = view.status.component_status.get(index);
        let unnamed = status.is_some_and(|it| it.name.is_empty() && !it.conditions.is_empty());
        unnamed && view.own_component(index).is_none()
    };
    let mut found = (0..view.components.len()).filter(|index| nameless(*index)).filter_map(|index| {
        let kind = &view.components[index].kind;
        // Its version may be another one than the template's.
        let is_same = |it: &ComponentKind| it.group == kind.group && it.kind == kind.kind;
        let mut same = strays.iter().filter(|it| is_same(&it.object.kind) && !it.is_deleting());
        let only = same.next().filter(|_| same.next().is_none());
        only.map(|only| (index, *only))
    });
    let only = found.next()?;
    found.next().is_none().then_some(only)
}
