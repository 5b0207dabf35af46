//! `AdmissionReview` v1: the request of the API server, and the response.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use super::declaration::{Operation, WebhookKind};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupVersionKind {
    /// Empty for the core group.
    pub group: String,
    /// The version in which it was sent.
    pub version: String,
    pub kind: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupVersionResource {
    /// Empty for the core group.
    pub group: String,
    /// The version in which it was sent.
    pub version: String,
    /// The plural name.
    pub resource: String,
}

/// A request of the API server to admit an operation on one object.
///
/// The object stays raw until a handler decodes it: a few megabytes of brackets would take a hundred as a generic JSON
/// value.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    /// Identifies the response.
    pub uid: String,
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    /// The subresource that is written, such as `status`.
    #[serde(default)]
    pub sub_resource: Option<String>,
    /// Empty while the server has not generated a name yet.
    #[serde(default)]
    pub name: String,
    /// Empty for cluster-scoped objects.
    #[serde(default)]
    pub namespace: String,
    pub operation: Operation,
    #[serde(default)]
    pub user_info: UserInfo,
    /// The new object; `None` on deletion.
    #[serde(default)]
    pub object: Option<Box<RawValue>>,
    /// The existing object; `None` on creation.
    #[serde(default)]
    pub old_object: Option<Box<RawValue>>,
    /// True if nothing will be persisted.
    #[serde(default)]
    pub dry_run: Option<bool>,
}

impl AdmissionRequest {
    /// Decodes the new object.
    ///
    /// # Errors
    /// A refusal that says what is wrong, if the object is missing or has another form.
    pub fn object<T: DeserializeOwned>(&self) -> Result<T, Answer> {
        read_object("object", self.object.as_deref())
    }

    /// Decodes the existing object.
    ///
    /// # Errors
    /// A refusal that says what is wrong, if the object is missing or has another form.
    pub fn old_object<T: DeserializeOwned>(&self) -> Result<T, Answer> {
        read_object("oldObject", self.old_object.as_deref())
    }
}

fn read_object<T: DeserializeOwned>(field: &str, object: Option<&RawValue>) -> Result<T, Answer> {
    let Some(object) = object else {
        return Err(Answer::denied(400, format!("request.{field} is missing: send the object")));
    };
    serde_json::from_str(object.get())
        .map_err(|error| Answer::denied(400, format!("request.{field} cannot be read: {error}")))
}

/// One operation of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "op")]
pub enum Change {
    /// Adds a value, or replaces one in a map.
    Add {
        /// A JSON pointer.
        path: String,
        value: Value,
    },
    /// Replaces an existing value.
    Replace {
        /// A JSON pointer.
        path: String,
        value: Value,
    },
    /// Removes an existing value.
    Remove {
        /// A JSON pointer.
        path: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    Allowed,
    /// Admitted with these changes. Only a mutating webhook may answer so.
    Patched(Vec<Change>),
    Denied {
        /// The HTTP status that the user gets, such as 403 or 422.
        code: u16,
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub ruling: Ruling,
    /// Shown by `kubectl`, one line each.
    pub warnings: Vec<String>,
}

impl Answer {
    pub fn allowed() -> Self {
        Ruling::Allowed.into()
    }

    /// Admits the object with these changes; without any, as it is.
    pub fn patched(changes: Vec<Change>) -> Self {
        if changes.is_empty() { Self::allowed() } else { Ruling::Patched(changes).into() }
    }

    /// Refuses the object with an HTTP status and a message for the user.
    pub fn denied(code: u16, message: impl Into<String>) -> Self {
        Ruling::Denied { code, message: message.into() }.into()
    }

    #[must_use]
    pub fn warning(mut self, text: impl Into<String>) -> Self {
        self.warnings.push(text.into());
        self
    }
}

impl From<Ruling> for Answer {
    fn from(ruling: Ruling) -> Self {
        Self { ruling, warnings: Vec::new() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    request: Option<AdmissionRequest>,
}

/// Decodes the request, or describes what is wrong with it.
pub(super) fn read(body: &[u8]) -> Result<AdmissionRequest, String> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|error| format!("the body is not an AdmissionReview: {error}"))?;
    if review.api_version != API_VERSION || review.kind != KIND {
        let found = format!("{} {}", review.api_version, review.kind);
        return Err(format!("the body is {found:?}: send {API_VERSION} {KIND}"));
    }
    let request = review.request.ok_or("request is missing: send what is to be admitted")?;
    if request.uid.is_empty() {
        return Err("request.uid is empty: send the uid by which the answer is recognised".to_owned());
    }
    Ok(request)
}

/// The reason that Kubernetes uses for a status code.
fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    }
}

/// Encodes an answer. Fails if the answer is invalid, which is a bug in the handler.
pub(super) fn write(kind: WebhookKind, uid: &str, answer: &Answer) -> Result<Value, String> {
    let mut response = json!({ "uid": uid });
    match (&answer.ruling, kind) {
        (Ruling::Allowed, _) => response["allowed"] = json!(true),
        (Ruling::Patched(changes), WebhookKind::Mutating) => {
            let patch = serde_json::to_vec(changes).map_err(|error| error.to_string())?;
            response["allowed"] = json!(true);
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(STANDARD.encode(patch));
        }
        (Ruling::Patched(_), WebhookKind::Validating) => {
            return Err("a validating webhook cannot change an object".to_owned());
        }
        (Ruling::Denied { code, message }, _) => {
            response["allowed"] = json!(false);
            response["status"] = json!({
                "status": "Failure", "code": code, "reason": reason(*code), "message": message,
            });
        }
    }
    if !answer.warnings.is_empty() {
        response["warnings"] = json!(answer.warnings);
    }
    Ok(json!({ "apiVersion": API_VERSION, "kind": KIND, "response": response }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::testing::fuzz::cases(1024))]

        #[test]
        fn any_bytes_are_a_review_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err_and(|refusal| refusal.starts_with("the body is ")));
        }

        #[test]
        fn a_damaged_review_is_read_or_refused(
            at in 0usize..600,
            cut in 0usize..40,
            new in "\\PC{0,4}|[\\[\\]{}\":,0-9eE.-]{0,6}|(null|true|-1|1e999)",
        ) {
            let review = review().to_string();
            let start = review.floor_char_boundary(at);
            let end = review.floor_char_boundary((start + cut).min(review.len()));
            let damaged = format!("{}{new}{}", &review[..start], &review[end.max(start)..]);
            match read(damaged.as_bytes()) {
                Err(refusal) => prop_assert!(refusal.contains("the body is ") || refusal.starts_with("request"), "{}", refusal),
                Ok(request) => {
                    prop_assert!(!request.uid.is_empty());
                    for object in [request.object::<Value>(), request.old_object::<Value>()] {
                        if let Err(answer) = object {
                            prop_assert!(write(WebhookKind::Mutating, &request.uid, &answer).is_ok());
                        }
                    }
                }
            }
        }
    }

    fn review() -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u1",
                "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
                "resource": {"group": "", "version": "v1", "resource": "configmaps"},
                "name": "settings",
                "namespace": "team",
                "operation": "UPDATE",
                "userInfo": {"username": "ann", "groups": ["devs"], "extra": {"a": ["b"]}},
                "object": {"data": {"a": "1"}},
                "oldObject": null,
                "dryRun": false,
                "options": {"kind": "UpdateOptions"},
            },
        })
    }

    #[test]
    fn a_review_is_read() {
        let request = read(review().to_string().as_bytes()).unwrap();
        assert_eq!((request.uid.as_str(), request.operation), ("u1", Operation::Update));
        assert_eq!(request.user_info.username.as_deref(), Some("ann"));
        assert_eq!(request.object::<Value>(), Ok(json!({"data": {"a": "1"}})));
        let refused = request.object::<Vec<String>>().unwrap_err();
        assert!(matches!(refused.ruling, Ruling::Denied { code: 400, .. }), "{refused:?}");
        assert!(request.old_object.is_none() && request.old_object::<Value>().is_err());
        assert_eq!((request.dry_run, request.sub_resource), (Some(false), None));
    }

    #[test]
    fn what_is_no_review_is_refused_with_what_would_be_right() {
        let changed = |path: &str, value: Value| {
            let mut review = review();
            *review.pointer_mut(path).unwrap() = value;
            read(review.to_string().as_bytes()).unwrap_err()
        };
        for (refusal, text) in [
            (
                changed("/apiVersion", json!("admission.k8s.io/v1beta1")),
                "send admission.k8s.io/v1 AdmissionReview",
            ),
            (changed("/kind", json!("Pod")), "the body is \"admission.k8s.io/v1 Pod\""),
            (changed("/request", Value::Null), "request is missing"),
            (changed("/request/uid", json!("")), "request.uid is empty"),
            (changed("/request/uid", json!(7)), "invalid type"),
            (changed("/request/operation", json!("LOOK")), "unknown variant `LOOK`"),
            (read(b"").unwrap_err(), "EOF"),
            (read(b"\xff\x00").unwrap_err(), "the body is not an AdmissionReview"),
            (read("[".repeat(100_000).as_bytes()).unwrap_err(), "the body is not an AdmissionReview"),
        ] {
            assert!(refusal.contains(text), "{refusal}");
        }
        let deep = format!("{{\"apiVersion\":{}", "[".repeat(100_000));
        assert!(read(deep.as_bytes()).is_err());
        let deep =
            review().to_string().replace("\"1\"", &format!("{}{}", "[".repeat(50_000), "]".repeat(50_000)));
        let refused = read(deep.as_bytes()).unwrap().object::<Value>().unwrap_err();
        assert!(format!("{refused:?}").contains("recursion limit"), "{refused:?}");
    }

    #[test]
    fn answers_are_written_as_the_api_server_reads_them() {
        let written =
            |answer: &Answer| write(WebhookKind::Mutating, "u1", answer).unwrap()["response"].clone();
        assert_eq!(written(&Answer::allowed()), json!({"uid": "u1", "allowed": true}));
        let changes = vec![
            Change::Add { path: "/a".into(), value: json!(1) },
            Change::Replace { path: "/b".into(), value: json!("x") },
            Change::Remove { path: "/c".into() },
        ];
        let patched = written(&Answer::patched(changes).warning("mind the gap"));
        assert_eq!((&patched["allowed"], &patched["patchType"]), (&json!(true), &json!("JSONPatch")));
        assert_eq!(patched["warnings"], json!(["mind the gap"]));
        let patch = STANDARD.decode(patched["patch"].as_str().unwrap()).unwrap();
        let patch: Value = serde_json::from_slice(&patch).unwrap();
        let expected = json!([
            {"op": "add", "path": "/a", "value": 1},
            {"op": "replace", "path": "/b", "value": "x"},
            {"op": "remove", "path": "/c"},
        ]);
        assert_eq!(patch, expected);
        assert_eq!(Answer::patched(Vec::new()), Answer::allowed());
        let denied = written(&Answer::denied(422, "no"));
        assert_eq!(denied["allowed"], json!(false));
        let status = json!({"status": "Failure", "code": 422, "reason": "Invalid", "message": "no"});
        assert_eq!(denied["status"], status);
    }

    #[test]
    fn a_validating_webhook_that_changes_an_object_has_a_defect() {
        let answer = Answer::patched(vec![Change::Remove { path: "/a".into() }]);
        assert!(write(WebhookKind::Validating, "u1", &answer).unwrap_err().contains("cannot change"));
        assert!(write(WebhookKind::Mutating, "u1", &answer).is_ok());
    }
}
