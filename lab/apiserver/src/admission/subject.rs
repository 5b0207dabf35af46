//! The subject of a webhook call: a request, and its objects.

use std::sync::Arc;

use serde_json::Value;

use crate::kinds::events;
use crate::kinds::table::Resource;
use crate::object;

pub(super) const GROUP: &str = "admissionregistration.k8s.io";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    /// The kind of its options.
    pub(super) fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Subject<'s> {
    pub(crate) resource: &'s Arc<Resource>,
    pub(crate) subresource: &'s str,
    pub(crate) namespace: &'s str,
    /// Empty if the name is not generated yet.
    pub(crate) name: String,
    pub(crate) operation: Operation,
    pub(crate) body: Body,
    /// The `CreateOptions`, `UpdateOptions` or `DeleteOptions`, without their type.
    pub(crate) options: &'s Value,
    pub(crate) dry_run: bool,
}

/// The objects of a review.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Objects of the resource, in their stored form.
    Stored { object: Option<Value>, old: Option<Value> },
    /// Objects of another kind, with their type: a `Scale`, a `Binding` or an `Eviction`.
    Typed { object: Value, old: Option<Value> },
}

impl Body {
    pub(super) fn object(&self) -> Option<&Value> {
        match self {
            Self::Stored { object, .. } => object.as_ref(),
            Self::Typed { object, .. } => Some(object),
        }
    }

    pub(super) fn old(&self) -> Option<&Value> {
        match self {
            Self::Stored { old, .. } | Self::Typed { old, .. } => old.as_ref(),
        }
    }
}

impl Subject<'_> {
    /// The namespace of the request. A Namespace counts as being in itself.
    pub(super) fn namespace(&self) -> &str {
        if self.resource.is_namespace() { &self.name } else { self.namespace }
    }

    /// Webhooks and policies do not review webhooks and policies: a broken one could not be removed.
    pub(super) fn is_exempt(&self) -> bool {
        self.resource.group == GROUP
    }

    /// The object and the old object as a resource shows them.
    pub(super) fn shown_as(&self, resource: &Resource) -> (Option<Value>, Option<Value>) {
        match &self.body {
            Body::Typed { object, old } => (Some(object.clone()), old.clone()),
            Body::Stored { object, old } => {
                let shown =
                    |value: &Option<Value>| value.as_ref().map(|value| events::shown(resource, value));
                (shown(object), shown(old))
            }
        }
    }

    /// The group, version and kind of the objects, as a resource shows them.
    pub(super) fn kind_as(&self, resource: &Resource) -> (String, String, String) {
        match &self.body {
            Body::Stored { .. } => (resource.group.clone(), resource.version.clone(), resource.kind.clone()),
            Body::Typed { object, .. } => {
                let stated = object::text(object, "/apiVersion");
                let (group, version) = stated.split_once('/').unwrap_or(("", stated));
                (group.to_owned(), version.to_owned(), object::text(object, "/kind").to_owned())
            }
        }
    }
}
