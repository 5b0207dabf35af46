//! What an AppWrapper must be when somebody creates or changes it, and what is set for them.
//!
//! [`mutate`] gives the patch of the mutating webhook, [`validate`] the answer of the validating one: refused, allowed, or a
//! list of questions to the API server about what the user may do. [`Questions::judge`] turns the answers into one.
//! [`refusal_without_webhook`] is for a controller that runs without webhooks, and [`refusal_without_stamp`] for what was written
//! while they were not asked.

mod rules;

pub(super) use rules::{IMMUTABLE, components};

use std::collections::BTreeMap;
use std::fmt;

use salvor_api::config::{AppWrapperSettings, WrappedKind};
use salvor_api::names::appwrapper as names;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bounds::Size;
use super::podsets::{FieldError, FieldErrorKind, TemplateKind};
use super::stamp::Unstamped;

/// What is done to an AppWrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// It is new.
    Create,
    /// It was this before.
    Update {
        /// The object as it is stored.
        old: &'a Value,
    },
}

/// Somebody's wish to create or change an AppWrapper.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is done.
    pub operation: Operation<'a>,
    /// The namespace in which.
    pub namespace: &'a str,
    /// Who does it.
    pub user: &'a User,
    /// The object as it would be.
    pub object: &'a Value,
}

/// Who asks, as `userInfo` of an AdmissionReview has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// Their name.
    pub username: String,
    /// Their UID, if they have one.
    pub uid: String,
    /// Their groups.
    pub groups: Vec<String>,
    /// What else authenticators said about them.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The configuration as far as AppWrappers are judged by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionPolicy {
    /// Whether users are asked about.
    pub check_users: bool,
    /// The queue of AppWrappers that name none; empty for none.
    pub default_queue: String,
    /// The kinds that may be wrapped.
    pub kinds: Vec<WrappedKind>,
    /// The kinds that may be wrapped where no webhook is.
    pub kinds_without_webhooks: Vec<WrappedKind>,
}

impl AdmissionPolicy {
    /// Takes what matters out of the configuration.
    pub fn new(settings: &AppWrapperSettings) -> Self {
        Self {
            check_users: settings.user_rbac_admission_check,
            default_queue: settings.default_queue_name.clone(),
            kinds: settings.kinds(),
            kinds_without_webhooks: settings.kinds_without_webhooks(),
        }
    }

    fn kind(&self, template: TemplateKind<'_>) -> Option<&WrappedKind> {
        self.kinds.iter().find(|kind| kind.is(template.group, template.kind))
    }
}

/// One operation of a JSON patch: `add`, which replaces what is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PatchOperation {
    /// Always `add`.
    pub op: &'static str,
    /// A JSON pointer.
    pub path: String,
    /// What is put there.
    pub value: Value,
}

/// What is set for the user in a new AppWrapper: a queue if it names none, and who created it, whatever it says itself. One of
/// ours that is to run at once has its finalizer from the beginning, which saves a write.
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
        // The API server refuses such labels; there is nothing to add to.
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

/// The longest value of a label.
const LONGEST_LABEL: usize = 63;

/// A label value that is as much like the text as a label can be.
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

/// What is known of a request before anybody is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may go on.
    Allowed,
    /// It may not.
    Refused(Refusal),
    /// It depends on what the user may do.
    Ask(Questions),
}

/// Why a request is refused: everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub Vec<FieldError>);

impl Refusal {
    /// The HTTP status code of the answer: 500 if what is wrong is that nobody could tell, otherwise 403.
    pub fn code(&self) -> u16 {
        if self.0.iter().all(|error| error.kind == FieldErrorKind::Internal) { 500 } else { 403 }
    }

    /// False if some of it could not be asked.
    pub fn is_certain(&self) -> bool {
        self.0.iter().all(|error| error.kind != FieldErrorKind::Internal)
    }
}

/// As Kubernetes joins errors: one alone, several in brackets.
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

/// What must be asked about a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    user: User,
    namespace: String,
    questions: Vec<Question>,
}

/// Whether a user may create objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The API group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The resource.
    pub resource: String,
    /// The components that depend on it.
    components: Vec<usize>,
}

/// What a SubjectAccessReview came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user may.
    Allowed,
    /// The user may not, or nobody says that they may.
    Denied,
    /// Nobody knows, and this is why.
    Unknown(String),
}

impl Access {
    /// Reads the answer to a SubjectAccessReview.
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
    /// The SubjectAccessReviews to create, in the order in which [`judge`](Self::judge) wants their answers.
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

    /// The answer to the request. A question without an answer counts as one that nobody could answer.
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

/// The most questions about one AppWrapper. Nobody needs so many kinds; somebody might want to keep the API server busy.
const MOST_QUESTIONS: usize = 32;

/// Whether a request may go on, as far as that is known without asking.
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
    for (index, component) in rules::components(object).iter().enumerate() {
        // Both were shown to be there.
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

/// Why a controller without webhooks may not run an AppWrapper: by the same rules, and only the kinds are allowed that the
/// administrator named for it. It must be asked before every creation: without a webhook everything can change meanwhile.
pub fn refusal_without_webhook(object: &Value, policy: &AdmissionPolicy) -> Option<Refusal> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut errors = rules::creation(object, namespace, policy);
    if Size::of(object).excess().is_none() {
        errors.extend(rules::unasked_kinds(object, policy));
    }
    (!errors.is_empty()).then_some(Refusal(errors))
}

/// Why nothing may be created for an AppWrapper whose author is not known: some of its kinds are not among those that the
/// administrator named for that.
pub fn refusal_without_stamp(object: &Value, policy: &AdmissionPolicy, why: &Unstamped) -> Option<Refusal> {
    let errors = rules::unstamped_kinds(object, policy, why);
    (!errors.is_empty()).then_some(Refusal(errors))
}

#[cfg(test)]
mod tests;
