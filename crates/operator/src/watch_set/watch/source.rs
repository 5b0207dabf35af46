//! What is watched, what is kept of each object, and the changes that a watch delivers.

use std::{borrow::Cow, sync::Arc};

use kube::Client;
use salvor_recovery::ids::{ResourceVersion, Uid};
use serde::de::DeserializeOwned;

use super::health::Moment;
use crate::client::revision::History;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Used in metrics and logs.
    pub resource: &'static str,
    pub path: Cow<'static, str>,
    pub field_selector: Option<Cow<'static, str>>,
    pub label_selector: Option<Cow<'static, str>>,
}

impl Target {
    pub const fn all(resource: &'static str, path: &'static str) -> Self {
        Self { resource, path: Cow::Borrowed(path), field_selector: None, label_selector: None }
    }

    pub fn fields(
        resource: &'static str,
        path: &'static str,
        selector: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field_selector: Some(selector.into()), ..Self::all(resource, path) }
    }
}

/// The API server that watches read from. Watches of one source share the history of its revisions. Clones share it
/// too.
#[derive(Clone)]
pub struct Source {
    pub(crate) client: Client,
    pub(crate) history: History,
}

impl Source {
    pub fn new(client: Client) -> Self {
        Self { client, history: History::default() }
    }
}

/// The projection of an object that a recovery keeps.
pub trait Project: Send + Sync + 'static {
    /// Decodes all fields that may be needed in one pass.
    type Wire: DeserializeOwned + Identified + Send;
    type Kept: Send + 'static;

    /// `None` if the object cannot matter in its present state.
    fn keep(&self, wire: Self::Wire) -> Option<Self::Kept>;
}

impl<P: Project> Project for Arc<P> {
    type Wire = P::Wire;
    type Kept = P::Kept;

    fn keep(&self, wire: P::Wire) -> Option<P::Kept> {
        (**self).keep(wire)
    }
}

pub trait Identified {
    fn uid(&self) -> &Uid;
    fn resource_version(&self) -> &ResourceVersion;
}

#[derive(Clone, Debug)]
pub enum Change<T> {
    /// All objects at one revision.
    Reset {
        all: Vec<T>,
        /// When the list was read, as the server counts.
        revision: Moment,
        /// How many lists had been requested when this one began.
        asked: u64,
    },
    Applied(T),
    /// The object with this UID was deleted or no longer matters.
    Gone(Uid),
}

impl<T> Change<T> {
    pub(crate) fn map<U>(self, mut form: impl FnMut(T) -> U) -> Change<U> {
        match self {
            Self::Reset { all, revision, asked } => {
                Change::Reset { all: all.into_iter().map(form).collect(), revision, asked }
            }
            Self::Applied(one) => Change::Applied(form(one)),
            Self::Gone(uid) => Change::Gone(uid),
        }
    }
}
