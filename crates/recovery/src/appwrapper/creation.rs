//! Decides which components to create, and what prevents that.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::components::ComponentKind;
use super::health::deployed_since;
use super::steps::Step;
use super::views::{AppWrapperView, FoundComponent, Seen};
use crate::ids::Uid;
use crate::moments::after;
use crate::objects::ObjectRef;

/// How far the creation of the components has come. `Impossible` names a component that can never be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Creation {
    Impossible {
        index: usize,
        error: String,
    },
    /// This component cannot be created now.
    Hindered {
        index: usize,
        error: String,
        hindrance: Hindrance,
    },
    /// These components can be created now, in this order.
    Due {
        indexes: Vec<usize>,
    },
    Complete {
        /// When the last component was created.
        since: Timestamp,
    },
}

/// What the creation of a component waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// The server refused it. It is retried at that time.
    Refused(Timestamp),
    /// The server did not answer, so the object may exist. It is read at that time.
    Unanswered(Timestamp),
    /// The server does not serve the kind, since that time.
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

/// The state of one component.
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
                // A component is created only after the ones before it.
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
        // It may have ended already and been deleted by its own time to live. The phase Running decides how it ended.
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

/// True if an object was created since the current attempt began. Creating another one would do its work twice.
///
/// Both times have whole seconds, one rounded down and one rounded up.
fn is_of_this_attempt(view: &AppWrapperView, object: &FoundComponent) -> bool {
    let since = after(deployed_since(view, &view.status), SignedDuration::from_secs(-1));
    view.owns(object) && object.created >= since
}

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

/// The object that was created for a component without a recorded name, because another controller crashed in between.
/// It must be the only one of its kind, otherwise the match is ambiguous.
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
        // Its version may differ from the template's.
        let is_same = |it: &ComponentKind| it.group == kind.group && it.kind == kind.kind;
        let mut same = strays.iter().filter(|it| is_same(&it.object.kind) && !it.is_deleting());
        let only = same.next().filter(|_| same.next().is_none());
        only.map(|only| (index, *only))
    });
    let only = found.next()?;
    found.next().is_none().then_some(only)
}
