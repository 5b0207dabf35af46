//! The admission rules for AppWrappers, and the defaults that are set.
//!
//! [`mutate`] returns the patch of the mutating webhook. [`validate`] returns the answer of the validating one:
//! refused, allowed, or a list of SubjectAccessReviews about the user. [`Questions::judge`] turns their results into an
//! answer. [`refusal_without_webhook`] is for a controller that runs without webhooks, and [`refusal_without_stamp`]
//! for objects written while the webhooks were not called.

mod policy;
mod request;
mod rules;

use std::fmt;

use salvor_api::names::appwrapper as names;
use serde::Serialize;
use serde_json::{Value, json};

pub use policy::AdmissionPolicy;
pub use request::{Operation, Request, User};

use super::bounds::Size;
use super::components::components;
use super::podsets::{FieldError, FieldErrorKind, TemplateKind};
use super::stamp::Unstamped;

/// One operation of a JSON patch: `add`, which replaces an existing value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PatchOperation {
    /// Always `add`.
    pub op: &'static str,
    /// A JSON pointer.
    pub path: String,
    pub value: Value,
}

/// The patch for a new AppWrapper: a queue if it names none, and labels for its creator, which replace any in the
/// request. An AppWrapper of Salvor that is to run at once also gets its finalizer, which saves a write later.
pub fn mutate(request: &Request<'_>, policy: &AdmissionPolicy) -> Vec<PatchOperation> {
    match request.operation {
        Operation::Create => {}
        Operation::Update { .. } => return Vec::new(),
    }
    let add = |path: String, value: Value| PatchOperation { op: "add", path, value };
    let metadata = &request.object["metadata"];
    let mut patch = Vec::new();
    match &metadata["labels"] {
        Value::Object(_) => {}
        Value::Null => patch.push(add("/metadata/labels".into(), json!({}))),
        // The API server refuses such labels, so there is nothing to patch.
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => return Vec::new(),
    }
    let pointer = |label: &str| format!("/metadata/labels/{}", label.replace('~', "~0").replace('/', "~1"));
    if !policy.default_queue.is_empty() && metadata["labels"].get(names::QUEUE_LABEL).is_none() {
        patch.push(add(pointer(names::QUEUE_LABEL), policy.default_queue.clone().into()));
    }
    let user = [(names::USER_LABEL, &request.user.username), (names::USER_ID_LABEL, &request.user.uid)];
    patch.extend(user.map(|(label, text)| add(pointer(label), label_value(text).into())));
    let spec = &request.object["spec"];
    let is_ours = spec["managedBy"].is_null() || spec["managedBy"] == names::CONTROLLER_NAME;
    if is_ours && spec["suspend"] != true {
        match &metadata["finalizers"] {
            Value::Null => patch.push(add("/metadata/finalizers".into(), json!([names::FINALIZER]))),
            Value::Array(there) if !there.iter().any(|it| it == names::FINALIZER) => {
                patch.push(add("/metadata/finalizers/-".into(), names::FINALIZER.into()));
            }
            Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {}
        }
    }
    patch
}

const LONGEST_LABEL: usize = 63;

/// The valid label value closest to the text.
pub fn label_value(text: &str) -> String {
    let bytes = &text.as_bytes()[..text.len().min(LONGEST_LABEL)];
    let mut value = String::new();
    for chunk in bytes.utf8_chunks() {
        let allowed = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
        value.extend(chunk.valid().chars().map(|letter| if allowed(&letter) { letter } else { '_' }));
        value.extend(chunk.invalid().iter().map(|_| '_'));
    }
    value.trim_matches(['-', '_', '.']).to_owned()
}

/// The answer as far as it is known without a SubjectAccessReview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Allowed,
    Refused(Refusal),
    /// It depends on the user's rights.
    Ask(Questions),
}

/// All errors of a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub Vec<FieldError>);

impl Refusal {
    /// The HTTP status code of the answer: 500 if the request could not be checked, otherwise 403.
    pub fn code(&self) -> u16 {
        if self.0.iter().all(|error| error.kind == FieldErrorKind::Internal) { 500 } else { 403 }
    }

    /// False if part of the request could not be checked.
    pub fn is_certain(&self) -> bool {
        self.0.iter().all(|error| error.kind != FieldErrorKind::Internal)
    }
}

/// Formats errors as Kubernetes does: a single one as it is, several in brackets.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        match errors.as_slice() {
            [alone] => f.write_str(alone),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

impl std::error::Error for Refusal {}

/// The rights of a user that must be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    user: User,
    namespace: String,
    questions: Vec<Question>,
}

/// Whether a user may create objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub group: String,
    pub version: String,
    pub resource: String,
    /// The indexes of the components that depend on it.
    components: Vec<usize>,
}

/// The result of a SubjectAccessReview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Allowed,
    /// The user may not, or no authorizer allows it.
    Denied,
    /// The review failed. The text says why.
    Unknown(String),
}

impl Access {
    pub fn read(review: &Value) -> Self {
        let status = &review["status"];
        match (&status["allowed"], &status["denied"]) {
            (Value::Bool(true), Value::Null | Value::Bool(false)) => Self::Allowed,
            (Value::Bool(_), _) => Self::Denied,
            _ => Self::Unknown("the answer has no status.allowed".into()),
        }
    }
}

impl Questions {
    /// The SubjectAccessReviews to create, in the order in which [`judge`](Self::judge) expects their answers.
    pub fn reviews(&self) -> Vec<Value> {
        let review = |question: &Question| {
            json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "resourceAttributes": {
                        "namespace": self.namespace,
                        "verb": "create",
                        "group": question.group,
                        "version": question.version,
                        "resource": question.resource,
                    },
                    "user": self.user.username,
                    "uid": self.user.uid,
                    "groups": self.user.groups,
                    "extra": self.user.extra,
                },
            })
        };
        self.questions.iter().map(review).collect()
    }

    /// The answer to the request. A missing answer counts as a failed review.
    ///
    /// # Errors
    /// The components whose kind the user may not create.
    pub fn judge(&self, answers: &[Access]) -> Result<(), Refusal> {
        let unanswered = Access::Unknown("it was not asked".into());
        let mut errors = Vec::new();
        for (index, question) in self.questions.iter().enumerate() {
            let resource = &question.resource;
            let refuse = |component: &usize, error: fn(String, String) -> FieldError, detail: String| {
                error(format!("spec.components[{component}].template"), detail)
            };
            match answers.get(index).unwrap_or(&unanswered) {
                Access::Allowed => {}
                Access::Denied => {
                    let user = &self.user.username;
                    let detail =
                        format!("User {user} is not authorized to create {resource} in {}", self.namespace);
                    let forbidden = |component| refuse(component, FieldError::forbidden, detail.clone());
                    errors.extend(question.components.iter().map(forbidden));
                }
                Access::Unknown(why) => {
                    let detail = format!("cannot ask whether the user may create {resource}: {why}");
                    let unknown = |component| refuse(component, FieldError::internal, detail.clone());
                    errors.extend(question.components.iter().map(unknown));
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(Refusal(errors)) }
    }
}

/// The maximum number of reviews for one AppWrapper. No one needs more kinds, and a user could otherwise keep the API
/// server busy.
const MOST_QUESTIONS: usize = 32;

/// Decides a request as far as possible without a review.
pub fn validate(request: &Request<'_>, policy: &AdmissionPolicy) -> Answer {
    let errors = match request.operation {
        Operation::Create => rules::creation(request.object, request.namespace, policy),
        Operation::Update { old } => rules::change(old, request.object),
    };
    if !errors.is_empty() {
        return Answer::Refused(Refusal(errors));
    }
    let questions = match request.operation {
        Operation::Create if policy.check_users => questions(request.object, policy),
        Operation::Create | Operation::Update { .. } => Vec::new(),
    };
    if questions.is_empty() {
        return Answer::Allowed;
    }
    if questions.len() > MOST_QUESTIONS {
        let detail =
            format!("wraps {} different kinds and versions: wrap at most {MOST_QUESTIONS}", questions.len());
        return Answer::Refused(Refusal(vec![FieldError::forbidden("spec.components", detail)]));
    }
    Answer::Ask(Questions { user: request.user.clone(), namespace: request.namespace.into(), questions })
}

fn questions(object: &Value, policy: &AdmissionPolicy) -> Vec<Question> {
    let mut questions: Vec<Question> = Vec::new();
    for (index, component) in components(object).iter().enumerate() {
        // The rules have already checked both.
        let Ok(template) = TemplateKind::of(&component["template"]) else { continue };
        let Some(kind) = policy.kind(template) else { continue };
        let known = questions.iter_mut().find(|question| {
            question.group == template.group
                && question.version == template.version
                && question.resource == kind.plural
        });
        match known {
            Some(question) => question.components.push(index),
            None => questions.push(Question {
                group: template.group.into(),
                version: template.version.into(),
                resource: kind.plural.clone(),
                components: vec![index],
            }),
        }
    }
    questions
}

/// Why a controller without webhooks may not run an AppWrapper. It applies the same rules, and allows only the kinds
/// that the administrator named for this case. It must be called before every creation: without a webhook everything
/// can change meanwhile.
pub fn refusal_without_webhook(object: &Value, policy: &AdmissionPolicy) -> Option<Refusal> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut errors = rules::creation(object, namespace, policy);
    if Size::of(object).excess().is_none() {
        errors.extend(rules::unasked_kinds(object, policy));
    }
    (!errors.is_empty()).then_some(Refusal(errors))
}

/// Why nothing may be created for an AppWrapper without a known author: some of its kinds are not among those that the
/// administrator named for this case.
pub fn refusal_without_stamp(object: &Value, policy: &AdmissionPolicy, why: &Unstamped) -> Option<Refusal> {
    let errors = rules::unstamped_kinds(object, policy, why);
    (!errors.is_empty()).then_some(Refusal(errors))
}

#[cfg(test)]
mod tests;
