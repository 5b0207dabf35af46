//! Turns a write into the HTTP request: path, headers and body.

use std::fmt::Write as _;

use http::{
    Method, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use salvor_recovery::{
    event::EventNote,
    ids::{ResourceVersion, Uid},
    objects::{NODE, Object, ObjectRef},
    step::{Delete, Grace, Guard, Merge, Owned, Part, Patch, Verb, Write},
};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

use super::Failure;

const FIELD_MANAGER: &str = "salvor";
const JSON: &str = "application/json";
/// Keeps unread answers short; the answer to a delete is otherwise the whole object.
const BRIEFLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json";
/// The API's limit on the length of an event's note.
const LONGEST_NOTE: usize = 1024;

/// The writer and the time, for events.
pub(super) struct Signature<'a> {
    pub(super) instance: &'a str,
    pub(super) at: String,
}

/// The path of an object.
pub(super) fn path(object: &Object<'_>) -> String {
    format!("{}/{}", collection(object), object.name)
}

/// The path of all objects of its kind and namespace.
fn collection(object: &Object<'_>) -> String {
    let Object { kind, namespace, .. } = object;
    let mut path = match &*kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    // Writing to a String cannot fail.
    let _ = match namespace {
        Some(namespace) => write!(path, "/namespaces/{namespace}/{}", kind.resource),
        None => write!(path, "/{}", kind.resource),
    };
    path
}

/// The verb and the resource as RBAC names them.
pub(super) fn right(write: &Write<'_>) -> (&'static str, String) {
    let resource = write.object.kind.full_resource();
    match &write.verb {
        Verb::Create { .. } => ("create", resource.into_owned()),
        Verb::Delete(_) => ("delete", resource.into_owned()),
        Verb::Evict(_) => ("create", format!("{resource}/eviction")),
        Verb::Record(_) => ("create", "events".to_owned()),
        Verb::Patch(Patch { part: Part::Object, .. }) => ("patch", resource.into_owned()),
        Verb::Patch(Patch { part: Part::Status, .. }) => ("patch", format!("{resource}/status")),
    }
}

pub(super) fn answer_is_read(verb: &Verb<'_>) -> bool {
    match verb {
        Verb::Create { .. } | Verb::Patch(_) => true,
        Verb::Delete(how) => how.answer_is_read,
        Verb::Evict(_) | Verb::Record(_) => false,
    }
}

pub(super) fn request(write: &Write<'_>, by: &Signature<'_>) -> Result<Request<Vec<u8>>, Failure> {
    let object = &write.object;
    let (method, path, content_type, body) = match &write.verb {
        Verb::Create { body } => (Method::POST, managed(&collection(object)), JSON, body.as_bytes().to_vec()),
        Verb::Patch(patch) => {
            let subresource = match patch.part {
                Part::Object => "",
                Part::Status => "/status",
            };
            let content_type = match patch.merge {
                Merge::Strategic => "application/strategic-merge-patch+json",
                Merge::Plain => "application/merge-patch+json",
            };
            let path = managed(&format!("{}{subresource}", path(object)));
            (Method::PATCH, path, content_type, json_of(&Body { guard: write.guard, patch })?)
        }
        Verb::Delete(how) => (Method::DELETE, path(object), JSON, json_of(&options(*how, write.guard))?),
        Verb::Evict(grace) => {
            let body = json_of(&Eviction::of(object, *grace, write.guard))?;
            (Method::POST, managed(&format!("{}/eviction", path(object))), JSON, body)
        }
        Verb::Record(note) => {
            let path = format!("/api/v1/namespaces/{}/events", note.regarding.event_namespace());
            (Method::POST, path, JSON, json_of(&event(note, by))?)
        }
    };
    let accept = if answer_is_read(&write.verb) { JSON } else { BRIEFLY };
    let request = Request::builder().method(method).uri(path);
    let request = request.header(CONTENT_TYPE, content_type).header(ACCEPT, accept).body(body);
    request.map_err(|e| Failure::Api(kube::Error::HttpError(e)))
}

fn managed(path: &str) -> String {
    format!("{path}?fieldManager={FIELD_MANAGER}")
}

fn json_of(body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(body).map_err(|e| Failure::Api(kube::Error::SerdeError(e)))
}

// ---- bodies, serialized directly because they are sent by the thousand ----

/// A patch with its preconditions: the server rejects a UID or a resourceVersion that is not the object's.
struct Body<'a> {
    guard: Guard<'a>,
    patch: &'a Patch,
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("metadata", &Metadata { guard: self.guard, changes: &self.patch.metadata })?;
        if let Some((part, content)) = &self.patch.content {
            map.serialize_entry(part, content)?;
        }
        map.end()
    }
}

struct Metadata<'a> {
    guard: Guard<'a>,
    changes: &'a Map<String, Value>,
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let Preconditions { uid, resource_version } = preconditions(self.guard);
        if let Some(uid) = uid {
            map.serialize_entry("uid", uid)?;
        }
        if let Some(resource_version) = resource_version {
            map.serialize_entry("resourceVersion", resource_version)?;
        }
        for (key, value) in self.changes {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a Uid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<&'a ResourceVersion>,
}

fn preconditions(guard: Guard<'_>) -> Preconditions<'_> {
    let (uid, resource_version) = match guard {
        Guard::None => (None, None),
        Guard::Uid(uid) => (Some(uid), None),
        Guard::Judged { uid, resource_version } => (Some(uid), Some(resource_version)),
    };
    Preconditions { uid, resource_version }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    propagation_policy: Option<&'static str>,
    preconditions: Preconditions<'a>,
}

fn options(how: Delete, guard: Guard<'_>) -> DeleteOptions<'_> {
    DeleteOptions {
        grace_period_seconds: match how.grace {
            Grace::Own => None,
            Grace::ASecond => Some(1),
            Grace::None => Some(0),
        },
        propagation_policy: match how.owned {
            Owned::AsUsual => None,
            Owned::First => Some("Foreground"),
            Owned::Afterwards => Some("Background"),
        },
        preconditions: preconditions(guard),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Eviction<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: EvictionMetadata<'a>,
    delete_options: DeleteOptions<'a>,
}

#[derive(Serialize)]
struct EvictionMetadata<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

impl<'a> Eviction<'a> {
    fn of(pod: &Object<'a>, grace: Grace, guard: Guard<'a>) -> Self {
        Self {
            api_version: "policy/v1",
            kind: "Eviction",
            metadata: EvictionMetadata { name: pod.name, namespace: pod.namespace },
            delete_options: options(Delete { grace, ..Delete::OWN_GRACE }, guard),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: EventMetadata<'a>,
    involved_object: Regarding<'a>,
    #[serde(rename = "type")]
    type_: String,
    reason: &'a str,
    action: &'a str,
    message: &'a str,
    source: EventSource<'a>,
    first_timestamp: &'a str,
    last_timestamp: &'a str,
    count: u32,
    reporting_component: &'a str,
    reporting_instance: &'a str,
}

#[derive(Serialize)]
struct EventSource<'a> {
    component: &'a str,
}

#[derive(Serialize)]
struct EventMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Regarding<'a> {
    api_version: std::borrow::Cow<'a, str>,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
}

/// An event in the form that Kubernetes' own controllers write. `kubectl` sorts by the last timestamp and shows the
/// source, and the newer API has no field for either.
fn event<'a>(note: &'a EventNote, by: &'a Signature<'_>) -> Event<'a> {
    Event {
        api_version: "v1",
        kind: "Event",
        metadata: EventMetadata { name: &note.name, namespace: note.regarding.event_namespace() },
        involved_object: regarding(&note.regarding),
        type_: format!("{:?}", note.kind),
        reason: &note.reason,
        action: note.action,
        message: &note.message[..note.message.floor_char_boundary(LONGEST_NOTE)],
        source: EventSource { component: note.reporting_controller },
        first_timestamp: &by.at,
        last_timestamp: &by.at,
        count: 1,
        reporting_component: note.reporting_controller,
        reporting_instance: by.instance,
    }
}

fn regarding(object: &ObjectRef) -> Regarding<'_> {
    Regarding {
        api_version: object.kind.api_version(),
        kind: &object.kind.kind,
        namespace: object.namespace.as_deref(),
        name: &object.name,
        // Kubernetes' own controllers use a node's name as its UID here, and `kubectl describe node` searches for that.
        uid: if object.kind == NODE { &object.name } else { object.uid.as_str() },
    }
}
