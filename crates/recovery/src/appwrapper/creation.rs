//! Which components are to be created, and what stands in the way.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::health::deployed_since;
use super::steps::Step;
use super::views::{AppWrapperView, FoundComponent, Seen};
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
        /// When to try again; none if something must change before.
        retry_at: Option<Timestamp>,
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
    Waits { error: String, retry_at: Option<Timestamp> },
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
                One::Waits { error, retry_at } => {
                    hindered.get_or_insert(Self::Hindered { index, error, retry_at });
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
    match &component.seen {
        Seen::Found(found) if !view.owns(found) => {
            One::Never { error: format!("{what} exists and is not owned by this AppWrapper") }
        }
        Seen::Found(found) if found.is_deleting() => {
            One::Waits { error: format!("{what} is still being deleted"), retry_at: None }
        }
        Seen::Found(found) => One::Exists(found.created),
        Seen::NoSuchKind => {
            let kind = &component.kind;
            One::Never {
                error: format!("no matches for kind {:?} in version {:?}", kind.kind, kind.api_version()),
            }
        }
        Seen::Unknown(why) => One::Waits { error: format!("{what}: {why}"), retry_at: None },
        // It may have ended already, and its own time to live with it. Running tells how it ended.
        Seen::Absent { last: Some(last) } if is_of_this_attempt(view, &last.object) => {
            One::Exists(last.object.created)
        }
        Seen::Absent { .. } => match view.memory.creation.get(&index) {
            Some(failure) if failure.fatal => One::Never { error: failure.message.clone() },
            Some(failure) if now < failure.retry_at() => {
                One::Waits { error: failure.message.clone(), retry_at: Some(failure.retry_at()) }
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
        let mut same = strays.iter().filter(|it| it.object.kind == *kind && !it.is_deleting());
        let only = same.next().filter(|_| same.next().is_none());
        only.map(|only| (index, *only))
    });
    let only = found.next()?;
    found.next().is_none().then_some(only)
}
