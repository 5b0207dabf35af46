//! Objects as they are sent: whole, as metadata only, or as rows of a table.

use std::ops::Deref;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::printing::{self, Extent};
use super::request::Representation;
use crate::custom;
use crate::kinds::events;
use crate::kinds::table::Resource;
use crate::object::{self, Stored};

/// The object with its type, which the store omits.
pub(crate) fn typed(resource: &Resource, value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(members) = value.as_object_mut() {
        members.insert("apiVersion".to_owned(), json!(resource.api_version()));
        members.insert("kind".to_owned(), json!(resource.kind));
    }
    value
}

/// The encoded object with its type, built without parsing the rest.
fn with_type(resource: &Resource, stored: &Stored) -> Bytes {
    if resource.group == "events.k8s.io" {
        let value = events::from_stored(resource, Arc::unwrap_or_clone(stored.value()));
        return object::encode(&typed(resource, &value));
    }
    let inner = stored.encoded();
    let head =
        format!("{{\"apiVersion\":{},\"kind\":{}", json!(resource.api_version()), json!(resource.kind));
    let mut out = BytesMut::with_capacity(head.len() + inner.len());
    out.put_slice(head.as_bytes());
    if inner.len() > 2 {
        out.put_u8(b',');
    }
    out.put_slice(&inner[1..]);
    out.freeze()
}

fn only_metadata(value: &Value, kind: &str) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": kind,
        "metadata": value.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// An object as it is sent: as it is stored, unless its definition has changed since.
enum Shown<'s> {
    AsStored(&'s Stored),
    Otherwise(Arc<Stored>),
}

impl<'s> Shown<'s> {
    fn of(resource: &Resource, stored: &'s Stored) -> Self {
        custom::as_read(resource, stored).map_or(Self::AsStored(stored), Self::Otherwise)
    }
}

impl Deref for Shown<'_> {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        match self {
            Self::AsStored(stored) => stored,
            Self::Otherwise(stored) => stored,
        }
    }
}

pub(crate) fn one(resource: &Resource, stored: &Stored, form: Representation, now: Timestamp) -> Bytes {
    let stored = &*Shown::of(resource, stored);
    match form {
        Representation::Full => with_type(resource, stored),
        Representation::Metadata => object::encode(&only_metadata(&stored.value(), "PartialObjectMetadata")),
        Representation::Table(include) => {
            let value = stored.value();
            let version = object::text(&value, "/metadata/resourceVersion");
            let table = printing::table(
                resource,
                std::iter::once(&*value),
                Extent::One,
                &json!({ "resourceVersion": version }),
                include,
                now,
            );
            object::encode(&table)
        }
    }
}

pub(crate) fn list<'s>(
    resource: &Resource,
    items: impl Iterator<Item = &'s Stored>,
    metadata: &Value,
    form: Representation,
    now: Timestamp,
) -> Bytes {
    match form {
        Representation::Full => {
            let head = format!(
                "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
                json!(resource.list_kind),
                json!(resource.api_version()),
            );
            let mut out = BytesMut::with_capacity(head.len() + 2);
            out.put_slice(head.as_bytes());
            for (index, item) in items.enumerate() {
                if index > 0 {
                    out.put_u8(b',');
                }
                // Items of built-in lists do not repeat their type.
                if resource.custom.is_some() {
                    out.put_slice(&with_type(resource, &Shown::of(resource, item)));
                } else if resource.group == "events.k8s.io" {
                    let value = events::from_stored(resource, Arc::unwrap_or_clone(item.value()));
                    out.put_slice(&object::encode(&value));
                } else {
                    out.put_slice(item.encoded());
                }
            }
            out.put_slice(b"]}");
            out.freeze()
        }
        Representation::Metadata => {
            let items: Vec<Value> =
                items.map(|item| only_metadata(&item.value(), "PartialObjectMetadata")).collect();
            object::encode(&json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata, "items": items,
            }))
        }
        Representation::Table(include) => {
            let items: Vec<Arc<Value>> = items.map(|item| Shown::of(resource, item).value()).collect();
            let values = items.iter().map(Arc::as_ref);
            let table = printing::table(resource, values, Extent::List, metadata, include, now);
            object::encode(&table)
        }
    }
}

/// A line of a watch.
pub(crate) fn event(
    resource: &Resource,
    kind: &str,
    stored: &Stored,
    form: Representation,
    now: Timestamp,
) -> Bytes {
    if form != Representation::Full {
        return line(kind, &one(resource, stored, form, now));
    }
    let seen_as = format!("{kind} {}", resource.api_version());
    stored.line(seen_as, || line(kind, &one(resource, stored, form, now)))
}

/// A line of a watch with some JSON as its object.
pub(crate) fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}
