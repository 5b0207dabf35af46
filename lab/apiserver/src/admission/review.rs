//! The `AdmissionReview`: the request to a webhook, and how its answer is read.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

use super::hearing::Answer;
use super::hooks::{Flow, Hook};
use super::subject::Subject;
use crate::environment::Environment;
use crate::kinds::table::Resource;
use crate::object;
use crate::protocol::status::Refusal;
use crate::protocol::user;

#[derive(Debug)]
pub(super) struct Review(Value);

impl Review {
    pub(super) fn encoded(&self) -> Bytes {
        object::encode(&self.0)
    }

    pub(super) fn object(&self) -> Option<&Value> {
        self.0.pointer("/request/object").filter(|object| !object.is_null())
    }

    fn uid(&self) -> &str {
        object::text(&self.0, "/request/uid")
    }

    fn api_version(&self) -> &str {
        object::text(&self.0, "/apiVersion")
    }
}

pub(super) fn of(
    hook: &Hook,
    seen_as: &Arc<Resource>,
    subject: &Subject<'_>,
    environment: &mut Environment<'_>,
) -> Review {
    let named_kind = |resource| {
        let (group, version, kind) = subject.kind_as(resource);
        json!({ "group": group, "version": version, "kind": kind })
    };
    let named = |resource: &Resource| json!({ "group": resource.group, "version": resource.version, "resource": resource.plural });
    let (object, old) = subject.shown_as(seen_as);
    let mut options = subject.options.clone();
    options["kind"] = json!(subject.operation.options());
    options["apiVersion"] = json!("meta.k8s.io/v1");
    let mut request = json!({
        "uid": environment.uid(),
        "kind": named_kind(seen_as),
        "resource": named(seen_as),
        "requestKind": named_kind(subject.resource),
        "requestResource": named(subject.resource),
        "operation": subject.operation.name(),
        "userInfo": { "username": user::USER, "groups": user::GROUPS },
        "object": object,
        "oldObject": old,
        "dryRun": subject.dry_run,
        "options": options,
    });
    let texts = [
        ("subResource", subject.subresource),
        ("requestSubResource", subject.subresource),
        ("name", &subject.name),
        ("namespace", subject.namespace()),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        request[key] = json!(text);
    }
    let version = hook.review_version();
    Review(json!({
        "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{version}"), "request": request,
    }))
}

#[derive(Debug)]
pub(super) enum Verdict {
    /// The request continues, with a JSON patch if there is one.
    Allowed {
        patch: Option<Value>,
        warnings: Vec<String>,
    },
    Refused {
        refusal: Refusal,
        warnings: Vec<String>,
    },
    /// There is no answer, or it cannot be parsed.
    Failed(String),
}

pub(super) fn read(hook: &Hook, asked: &Review, answer: Answer) -> Verdict {
    let body = match answer {
        Ok(body) => body,
        Err(why) => return Verdict::Failed(format!("failed to call webhook: {why}")),
    };
    let review: Value = match serde_json::from_slice(&body) {
        Ok(review) => review,
        Err(why) => {
            let why = format!("couldn't get version/kind; json parse error: {why}");
            return Verdict::Failed(format!("failed to call webhook: {why}"));
        }
    };
    checked(hook, asked, &review).unwrap_or_else(Verdict::Failed)
}

fn invalid(why: &str) -> String {
    format!("received invalid webhook response: {why}")
}

/// Checks that an answer belongs to this review.
fn checked(hook: &Hook, asked: &Review, review: &Value) -> Result<Verdict, String> {
    let Some(response) = review.get("response").filter(|response| response.is_object()) else {
        return Err(invalid("webhook response was absent"));
    };
    let is_first_version = asked.api_version().ends_with("/v1beta1");
    let (uid, expected) = (object::text(response, "/uid"), asked.uid());
    if uid != expected && !is_first_version {
        return Err(invalid(&format!("expected response.uid={expected:?}, got {uid:?}")));
    }
    let (stated, kind) = (object::text(review, "/apiVersion"), object::text(review, "/kind"));
    if (stated != asked.api_version() || kind != "AdmissionReview") && !is_first_version {
        let version = |stated: &str| stated.rsplit('/').next().unwrap_or(stated).to_owned();
        return Err(format!(
            "failed to call webhook: converting ({}.{kind}) to ({}.AdmissionReview): unknown conversion",
            version(stated),
            version(asked.api_version())
        ));
    }
    let warnings = object::strings(response, "/warnings");
    let patch = patch(hook.flow, response, is_first_version)?;
    if response.get("allowed") != Some(&json!(true)) {
        let refusal = Refusal::by_webhook(hook.name(), response.get("status").unwrap_or(&Value::Null));
        return Ok(Verdict::Refused { refusal, warnings });
    }
    Ok(Verdict::Allowed { patch, warnings })
}

/// The patch of an answer. Only a mutating webhook may send one, and must declare its type.
fn patch(flow: Flow, response: &Value, is_first_version: bool) -> Result<Option<Value>, String> {
    let text = object::text(response, "/patch");
    let kind = response.get("patchType").filter(|kind| !kind.is_null()).and_then(Value::as_str);
    match (flow, text, kind) {
        (Flow::Validating, ..) if is_first_version => return Ok(None),
        (Flow::Validating, "", None) | (Flow::Mutating, "", None) => return Ok(None),
        (Flow::Validating, "", Some(_)) => {
            return Err(invalid("validating webhook may not return response.patchType"));
        }
        (Flow::Validating, ..) => return Err(invalid("validating webhook may not return response.patch")),
        (Flow::Mutating, "", Some(_)) if is_first_version => return Ok(None),
        (Flow::Mutating, "", Some(_)) => {
            return Err(invalid("webhook returned response.patchType but not response.patch"));
        }
        (Flow::Mutating, _, None) if !is_first_version => {
            return Err(invalid("webhook returned response.patch but not response.patchType"));
        }
        (Flow::Mutating, _, Some(kind)) if kind != "JSONPatch" && !is_first_version => {
            return Err(format!("unsupported patch type {kind:?}"));
        }
        (Flow::Mutating, ..) => {}
    }
    let undecodable = |why: String| format!("received undecodable patch in webhook response: {why}");
    let bytes = STANDARD.decode(text).map_err(|why| undecodable(why.to_string()))?;
    let patch: Value = serde_json::from_slice(&bytes).map_err(|why| undecodable(why.to_string()))?;
    Ok(Some(patch).filter(|patch| patch.as_array().is_none_or(|operations| !operations.is_empty())))
}
