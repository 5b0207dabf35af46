//! The API calls of loops, as values; and the one place that runs them.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use salvor_apiserver::object;
use salvor_apiserver::propagation::Propagation;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::world::collection::{Collection, Kind};
use crate::world::follow::Shared;
use crate::world::views::{Meta, key};
use crate::world::{HasMeta, World};

/// A call without an answer by then has failed; it is unknown whether it was carried out.
const PATIENCE: Duration = Duration::from_secs(10);

/// One object, by name and UID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ref {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Ref {
    pub(crate) fn to(kind: Kind, object: &impl HasMeta) -> Self {
        let Meta { namespace, name, uid, .. } = object.meta();
        Self { kind, namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }

    fn path(&self, subresource: &str) -> String {
        let base = format!("{}/{}", self.kind.path(&self.namespace), self.name);
        if subresource.is_empty() { base } else { format!("{base}/{subresource}") }
    }
}

/// One object of any kind as it was read: a call for it is refused if it has changed since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) collection: Collection,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) revision: String,
}

impl Sighting {
    pub(crate) fn of(collection: &Collection, object: &Meta) -> Self {
        Self {
            collection: collection.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
            revision: object.resource_version.clone(),
        }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection.path(&self.namespace), self.name)
    }

    /// True if the world shows a newer state of the object.
    fn is_outdated(&self, world: &World) -> bool {
        let found = world.meta(&self.collection, &key(&self.namespace, &self.name));
        found.is_none_or(|found| found.uid != self.uid || found.resource_version != self.revision)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Status,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Create {
        kind: Kind,
        namespace: String,
        body: Value,
    },
    /// A strategic merge patch of exactly this object: the body gets its UID.
    Patch {
        of: Ref,
        part: Part,
        body: Value,
    },
    /// Replaces fields of exactly this object, with the resourceVersion as a precondition.
    MergeAt {
        of: Ref,
        part: Part,
        revision: String,
        body: Value,
    },
    Delete {
        of: Ref,
        grace: Option<u32>,
    },
    /// Deletes the object after its dependents.
    DeleteForeground(Ref),
    Bind {
        pod: Ref,
        node: String,
    },
    /// Deletes an object in the state that was read.
    Collect {
        seen: Sighting,
        propagation: Propagation,
    },
    /// Replaces fields of the metadata of an object in the state that was read.
    Amend {
        seen: Sighting,
        metadata: Value,
    },
    /// Continues only if a live read finds no such object.
    ExpectAbsent {
        kind: Kind,
        name: String,
    },
    /// Continues only if there is no object with this UID under this name.
    ExpectGone {
        collection: Collection,
        namespace: String,
        name: String,
        uid: String,
    },
    /// For users; a failure to write it changes nothing.
    Event(Note),
}

/// The content of an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) about: Ref,
    pub(crate) component: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Why a call was not carried out, or may not have been.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no answer within {}s", PATIENCE.as_secs())]
    NoAnswer,
    #[error("{} {name} is there after all", kind.name())]
    Present { kind: Kind, name: String },
    #[error("{path} is there after all")]
    NotGone { path: String },
    #[error("what is there is given {}s more", .0.as_secs())]
    NotYet(Duration),
    #[error("cannot empty the namespace: {0}")]
    NotEmptied(String),
    #[error("the request cannot be made: {0}")]
    Request(#[from] http::Error),
    #[error("the watch has not shown what was written within {}s", PATIENCE.as_secs())]
    NotSeen,
}

/// The fields that are read from an answer: an object, or a Status.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Written {
    metadata: Meta,
}

impl Call {
    /// Makes the call, and waits until the world shows its effect, so that no loop decides on a stale view.
    pub(crate) async fn make(
        &self,
        client: &Client,
        shared: &Shared,
        now: Timestamp,
    ) -> Result<(), CallError> {
        let (method, path, content_type, body) = self.request(now);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(CONTENT_TYPE, HeaderValue::from_static(content_type))
            .body(if body.is_null() { Vec::new() } else { object::encode(&body).to_vec() })?;
        let answer = timeout(PATIENCE, client.request::<Written>(request)).await;
        let answer = answer.map_err(|_| CallError::NoAnswer)?;
        match (self, answer) {
            (Self::Event(_), _) => Ok(()),
            (Self::ExpectAbsent { .. }, Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            (Self::ExpectAbsent { kind, name }, Ok(_)) => {
                Err(CallError::Present { kind: *kind, name: name.clone() })
            }
            (Self::ExpectGone { .. }, Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            (Self::ExpectGone { uid, .. }, Ok(found)) if found.metadata.uid != *uid => Ok(()),
            (Self::ExpectGone { collection, namespace, name, .. }, Ok(_)) => {
                Err(CallError::NotGone { path: format!("{}/{name}", collection.path(namespace)) })
            }
            // Another client was faster.
            (Self::Collect { .. } | Self::Amend { .. }, Err(kube::Error::Api(status)))
                if status.code == 404 =>
            {
                self.wait_until_seen(&Meta::default(), shared).await
            }
            (_, Err(error)) => Err(error.into()),
            (_, Ok(written)) => self.wait_until_seen(&written.metadata, shared).await,
        }
    }

    async fn wait_until_seen(&self, written: &Meta, shared: &Shared) -> Result<(), CallError> {
        let seen = shared.until(|world| self.is_seen(written, world));
        timeout(PATIENCE, seen).await.map_err(|_| CallError::NotSeen)
    }

    fn request(&self, now: Timestamp) -> (Method, String, &'static str, Value) {
        const JSON: &str = "application/json";
        match self {
            Self::Create { kind, namespace, body } => {
                let mut body = body.clone();
                body["apiVersion"] = json!(kind.api_version());
                body["kind"] = json!(kind.name());
                (Method::POST, kind.path(namespace), JSON, body)
            }
            Self::Patch { of, part, body } => {
                let mut body = body.clone();
                body["metadata"]["uid"] = json!(of.uid);
                (Method::PATCH, of.path(part.path()), "application/strategic-merge-patch+json", body)
            }
            Self::MergeAt { of, part, revision, body } => {
                let mut body = body.clone();
                body["metadata"]["uid"] = json!(of.uid);
                body["metadata"]["resourceVersion"] = json!(revision);
                (Method::PATCH, of.path(part.path()), "application/merge-patch+json", body)
            }
            Self::Delete { of, grace } => {
                let mut body = json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": of.uid },
                });
                if let Some(grace) = grace {
                    body["gracePeriodSeconds"] = json!(grace);
                }
                (Method::DELETE, of.path(""), JSON, body)
            }
            Self::DeleteForeground(of) => {
                let body = json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": of.uid },
                    "propagationPolicy": "Foreground",
                });
                (Method::DELETE, of.path(""), JSON, body)
            }
            Self::Bind { pod, node } => {
                let body = json!({
                    "apiVersion": "v1", "kind": "Binding",
                    "metadata": { "namespace": pod.namespace, "name": pod.name, "uid": pod.uid },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": node },
                });
                (Method::POST, pod.path("binding"), JSON, body)
            }
            Self::Collect { seen, propagation } => {
                let body = json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation.name(),
                    "preconditions": { "uid": seen.uid, "resourceVersion": seen.revision },
                });
                (Method::DELETE, seen.path(), JSON, body)
            }
            Self::Amend { seen, metadata } => {
                let mut body = json!({ "metadata": metadata });
                body["metadata"]["uid"] = json!(seen.uid);
                body["metadata"]["resourceVersion"] = json!(seen.revision);
                (Method::PATCH, seen.path(), "application/merge-patch+json", body)
            }
            Self::ExpectAbsent { kind, name } => {
                (Method::GET, format!("{}/{name}", kind.path("")), JSON, Value::Null)
            }
            Self::ExpectGone { collection, namespace, name, .. } => {
                (Method::GET, format!("{}/{name}", collection.path(namespace)), JSON, Value::Null)
            }
            Self::Event(note) => {
                let namespace =
                    if note.about.namespace.is_empty() { "default" } else { &note.about.namespace };
                (Method::POST, Kind::Event.path(namespace), JSON, note.body(namespace, now))
            }
        }
    }

    /// True if the watch of the kind has reached the write.
    fn is_seen(&self, written: &Meta, world: &World) -> bool {
        let as_far_as = |kind| world.revision(kind).is_none_or(|seen| seen >= written.revision());
        match self {
            Self::Create { kind, .. } => as_far_as(*kind),
            Self::Patch { of, .. } | Self::MergeAt { of, .. } => as_far_as(of.kind),
            Self::Delete { of, .. } if of.kind == Kind::Pod => {
                let pod = world.pods.named(&of.namespace, &of.name);
                world.revision(Kind::Pod).is_none()
                    || pod.is_none_or(|pod| pod.metadata.uid != of.uid || pod.metadata.is_terminating())
            }
            Self::Bind { pod, .. } => {
                let seen = world.pods.get(&key(&pod.namespace, &pod.name));
                seen.is_none_or(|seen| seen.metadata.uid != pod.uid || seen.is_bound())
            }
            Self::Collect { seen, .. } | Self::Amend { seen, .. } => seen.is_outdated(world),
            Self::Delete { .. }
            | Self::DeleteForeground(_)
            | Self::ExpectAbsent { .. }
            | Self::ExpectGone { .. }
            | Self::Event(_) => true,
        }
    }
}

impl Part {
    fn path(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Status => "status",
        }
    }
}

impl Note {
    fn body(&self, namespace: &str, now: Timestamp) -> Value {
        let at = object::time(now);
        let about = &self.about;
        let name = format!("{}.{:016x}", about.name, self.fingerprint(now));
        let mut body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": name, "namespace": namespace },
            "involvedObject": {
                "apiVersion": about.kind.api_version(), "kind": about.kind.name(),
                "namespace": about.namespace, "name": about.name,
            },
            "reason": self.reason,
            "message": self.message,
            "type": self.severity,
            "source": { "component": self.component },
            "reportingComponent": self.component,
            "reportingInstance": "",
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        });
        if !about.uid.is_empty() {
            body["involvedObject"]["uid"] = json!(about.uid);
        }
        body
    }

    /// FNV-1a: a name that is unique for each event and reproducible for a seed.
    fn fingerprint(&self, now: Timestamp) -> u64 {
        let time = now.as_nanosecond().to_le_bytes();
        let about = format!("{}/{}/{}", self.about.namespace, self.about.name, self.about.uid);
        let texts = [about.as_bytes(), self.reason.as_bytes(), self.message.as_bytes(), &time];
        let bytes = texts.into_iter().flatten();
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}
