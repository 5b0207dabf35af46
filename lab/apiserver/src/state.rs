//! The state of a server: its objects, and the kinds that it serves.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::custom;
use crate::kinds::table::{Resource, ResourceKey, Table};
use crate::object::{self, Stored};
use crate::protocol::request::{self, Request, Target};
use crate::protocol::status::{Cause, Refusal};
use crate::protocol::wire;
use crate::schema;
use crate::store::{self, Store};

/// A Kubernetes API: all objects, and the rules for changing them.
///
/// It does no I/O and reads no clock. [`handle`](Self::handle) answers a request; a [`Watch`](crate::Watch) returns its
/// new events through [`news`](Self::news) whenever something may have changed.
#[derive(Debug, Clone)]
pub struct Core {
    pub(crate) table: Table,
    pub(crate) store: Store,
    /// The last address that a Service was assigned.
    pub(crate) service_addresses: u16,
}

impl Core {
    /// Decodes the body as an object of the resource.
    pub(crate) fn decode(&self, resource: &Resource, request: &Request) -> Result<Value, Refusal> {
        let kind = request::media_type(&request.content_type);
        let known = ["application/json", "application/yaml", ""].contains(&kind)
            || (kind == wire::MEDIA_TYPE && resource.custom.is_none());
        if !known {
            return Err(Refusal::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
            ));
        }
        let value = request.value()?;
        if resource.custom.is_some() && value.is_object() && object::text(&value, "/kind").is_empty() {
            return Err(untyped(resource, &request.body));
        }
        check_type(resource, &value)?;
        Ok(value)
    }

    pub(crate) fn lookup(&self, target: &Target) -> Result<Arc<Stored>, Refusal> {
        self.present(&target.resource, &target.namespace, &target.name)
            .ok_or_else(|| Refusal::not_found(&target.resource, &target.name))
    }

    /// The object in the form of its kind's current definition.
    pub(crate) fn present(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        let stored = self.find(resource, namespace, name)?;
        Some(custom::as_read(resource, stored).unwrap_or_else(|| Arc::clone(stored)))
    }

    pub(crate) fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Option<&Arc<Stored>> {
        self.store.get(resource.key(), &store::key(namespace, name))
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<&Arc<Stored>> {
        self.store.get(&namespaces(), name)
    }
}

pub(crate) fn namespaces() -> ResourceKey {
    (String::new(), "namespaces".to_owned())
}

/// Refuses a custom object without apiVersion or kind.
fn untyped(resource: &Resource, body: &[u8]) -> Refusal {
    const SHOWN: usize = 30;
    let whole = String::from_utf8_lossy(body);
    let start: String = whole.chars().take(SHOWN).collect();
    let dots = if start.len() < whole.len() { " ..." } else { "" };
    Refusal::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{whole}' ({start}{dots})",
        resource.kind
    ))
}

/// Refuses an object of another kind.
pub(crate) fn check_type(resource: &Resource, value: &Value) -> Result<(), Refusal> {
    let stated = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (stated("apiVersion"), stated("kind"));
    if !value.is_object() {
        return Err(Refusal::bad_request(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            match value {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            }
        )));
    }
    let wrong = |why: String| {
        Refusal::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: {why}",
            resource.version, resource.kind
        ))
    };
    // Missing fields are taken from the path.
    if kind.is_empty() || (kind == resource.kind && api_version == resource.api_version()) {
        return Ok(());
    }
    if api_version.is_empty() && resource.custom.is_none() {
        return Ok(());
    }
    if resource.custom.is_some() {
        if kind == resource.kind {
            return Err(Refusal::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                resource.api_version()
            )));
        }
        let cause = Cause::invalid("kind", &json!(kind), &format!("must be {}", resource.kind));
        return Err(Refusal::invalid(&resource.group, kind, object::name(value), &[cause]));
    }
    if api_version != resource.api_version() && kind == resource.kind {
        return Err(wrong(format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
        )));
    }
    if kind != resource.kind {
        let group =
            if resource.group.is_empty() { "core" } else { resource.group.split('.').next().unwrap_or("") };
        return Err(wrong(format!(
            "converting (v1.{kind}) to ({group}.{}): unknown conversion",
            resource.kind
        )));
    }
    Ok(())
}

/// Brings an object into its stored form: known fields only, without its type.
pub(crate) fn normalise(
    resource: &Resource,
    value: Value,
    dropped: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let mut value = if resource.custom.is_some() {
        value
    } else {
        schema::decode_noting(&resource.schema, value, dropped).map_err(|why| {
            Refusal::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {why}",
                resource.kind, resource.version, resource.kind
            ))
        })?
    };
    if let Some(members) = value.as_object_mut() {
        members.remove("apiVersion");
        members.remove("kind");
    }
    Ok(value)
}
