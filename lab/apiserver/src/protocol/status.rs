//! Refusals: the `Status` objects that an API server answers with, with its messages.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::kinds::table::Resource;

/// One reason why one field was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) field: String,
}

impl Cause {
    fn new(field: impl Into<String>, reason: &'static str, message: String) -> Self {
        Self { reason, message, field: field.into() }
    }

    pub(crate) fn required(field: impl Into<String>, why: &str) -> Self {
        let message =
            if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self::new(field, "FieldValueRequired", message)
    }

    /// `value` as Go prints it: strings in quotes, other values as they are.
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self::invalid_text(field, &go_value(value), why)
    }

    pub(crate) fn invalid_text(field: impl Into<String>, value: &str, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {value}: {why}"))
    }

    /// A refusal of a whole value that is not shown.
    pub(crate) fn invalid_whole(field: impl Into<String>, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {why}"))
    }

    pub(crate) fn too_long(field: impl Into<String>, most: usize) -> Self {
        let unit = if most == 1 { "byte" } else { "bytes" };
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {most} {unit}"))
    }

    pub(crate) fn too_many(field: impl Into<String>, count: usize, most: usize) -> Self {
        let unit = if most == 1 { "item" } else { "items" };
        Self::new(field, "FieldValueTooMany", format!("Too many: {count}: must have at most {most} {unit}"))
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        Self::new(
            field,
            "FieldValueNotSupported",
            format!("Unsupported value: {value:?}: supported values: {}", supported.join(", ")),
        )
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {}", go_value(value)))
    }

    pub(crate) fn duplicate_text(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {value}"))
    }

    pub(crate) fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {why}"))
    }

    pub(crate) fn type_invalid(field: impl Into<String>, message: String) -> Self {
        Self::new(field, "FieldValueTypeInvalid", message)
    }

    pub(crate) fn not_found(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {value:?}"))
    }
}

/// A value as Go's `%#v`-like field errors print it.
pub(crate) fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(Box<Body>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Body {
    code: u16,
    reason: Cow<'static, str>,
    message: String,
    details: Option<Value>,
    retry_after: Option<u32>,
    /// Where an expired list may continue.
    next_page: Option<String>,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self(Box::new(Body {
            code,
            reason: reason.into(),
            message: message.into(),
            details: None,
            retry_after: None,
            next_page: None,
        }))
    }

    fn with_details(mut self, details: Value) -> Self {
        self.0.details = Some(details);
        self
    }

    /// Says `pods/binding` instead of `pods`.
    pub(crate) fn renamed(mut self, resource: &str) -> Self {
        let plural = resource.split('/').next().unwrap_or(resource);
        self.0.message = self.0.message.replacen(plural, resource, 1);
        if let Some(details) = &mut self.0.details {
            details["kind"] = json!(resource);
        }
        self
    }

    /// Names the object in the details.
    pub(crate) fn about_object(self, resource: &Resource, name: &str) -> Self {
        self.about(resource, name)
    }

    /// An internal error without a reason.
    pub(crate) fn internal_plain(message: &str) -> Self {
        Self::new(500, "", message)
    }

    /// Omits the details, as some answers do.
    pub(crate) fn without_details(self) -> Self {
        self.with_details(json!({}))
    }

    fn about(self, resource: &Resource, name: &str) -> Self {
        self.with_details(details(&resource.group, &resource.plural, name))
    }

    pub(crate) fn with_causes(mut self, causes: Value) -> Self {
        let details = self.0.details.get_or_insert_with(|| json!({}));
        details["causes"] = causes;
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after = Some(seconds);
        if seconds > 0 {
            let details = self.0.details.get_or_insert_with(|| json!({}));
            details["retryAfterSeconds"] = json!(seconds);
        }
        self
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    pub(crate) fn namespace_not_found(name: &str) -> Self {
        Self::new(404, "NotFound", format!("namespaces {name:?} not found")).with_details(details(
            "",
            "namespaces",
            name,
        ))
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// A conflict that names the kind rather than the resource.
    pub(crate) fn kind_conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let kind = with_group(&resource.kind, &resource.group);
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {kind} {name:?}: {why}"))
            .with_details(details(&resource.group, &resource.kind, name))
    }

    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", resource.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", resource.qualified())
        };
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    pub(crate) fn invalid(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let text: Vec<String> = causes
            .iter()
            .map(|cause| match cause.field.as_str() {
                "" => cause.message.clone(),
                field => format!("{field}: {}", cause.message),
            })
            .collect();
        // A problem that occurs twice is reported once.
        let mut said: Vec<&str> = Vec::new();
        for one in &text {
            if !said.contains(&one.as_str()) {
                said.push(one);
            }
        }
        let text = match said.as_slice() {
            [one] => (*one).to_owned(),
            many => format!("[{}]", many.join(", ")),
        };
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| {
                let mut entry = json!({ "reason": cause.reason, "message": cause.message });
                if !cause.field.is_empty() {
                    entry["field"] = json!(cause.field);
                }
                entry
            })
            .collect();
        let mut about = details(group, kind, name);
        about["causes"] = Value::Array(causes);
        Self::new(422, "Invalid", format!("{} {name:?} is invalid: {text}", with_group(kind, group)))
            .with_details(about)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .without_details()
    }

    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").with_details(json!({}))
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Adds a token with which a list can continue.
    pub(crate) fn with_continue(mut self, token: &str) -> Self {
        self.0.next_page = Some(token.to_owned());
        self
    }

    pub(crate) fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(429, "TooManyRequests", message)
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
            .with_details(json!({ "causes": [{ "message": message.to_string() }] }))
    }

    /// A request that timed out.
    pub(crate) fn too_slow() -> Self {
        const WHY: &str = "request did not complete within requested timeout - context deadline exceeded";
        Self::new(504, "Timeout", format!("Timeout: {WHY}")).without_details()
    }

    /// The refusal of an admission webhook, with the `Status` that it returned.
    pub(crate) fn by_webhook(name: &str, status: &Value) -> Self {
        let (stated, reason) = (text(status, "message"), text(status, "reason"));
        let why = match (stated, reason) {
            ("", "") => " without explanation".to_owned(),
            ("", reason) => format!(": {reason}"),
            (message, _) => format!(": {message}"),
        };
        // A refusal is never a success, whatever code the webhook returns.
        let code = status.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let code = code.filter(|code| *code >= 400).unwrap_or(400);
        let message = format!("admission webhook {name:?} denied the request{why}");
        let refusal = Self::new(code, reason.to_owned(), message);
        match status.get("details") {
            Some(details) if details.is_object() => refusal.with_details(details.clone()),
            _ => refusal,
        }
    }

    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// The machine-readable reason, for example `NotFound`.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Seconds for the `Retry-After` header.
    pub(crate) fn retry_after_seconds(&self) -> Option<u32> {
        self.0.retry_after
    }

    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.0.message, "code": self.0.code,
        });
        if !self.0.reason.is_empty() {
            status["reason"] = json!(self.0.reason);
        }
        if let Some(token) = &self.0.next_page {
            status["metadata"]["continue"] = json!(token);
        }
        if let Some(details) = &self.0.details {
            status["details"] = details.clone();
        }
        status
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} ({}): {}", self.0.code, self.0.reason, self.0.message)
    }
}

impl std::error::Error for Refusal {}

/// `pods` or `deployments.apps`, `Pod` or `Deployment.apps`.
pub(crate) fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// The answer to a delete that removed the object.
pub(crate) fn success(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut about = details(&resource.group, &resource.plural, name);
    if !uid.is_empty() {
        about["uid"] = json!(uid);
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": about })
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

fn details(group: &str, kind: &str, name: &str) -> Value {
    let mut details = Map::new();
    for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
        if !value.is_empty() {
            details.insert(key.to_owned(), json!(value));
        }
    }
    Value::Object(details)
}
