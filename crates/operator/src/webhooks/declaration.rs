//! A webhook as the API server is told of it: plain data.

use serde_json::{Value, json};

/// The name of both webhook configurations.
pub const CONFIGURATION: &str = "salvor";
/// The Service through which the API server reaches the operator in a cluster, and the Secret that replicas share.
pub const SERVICE: &str = "salvor-webhooks";
/// The port of that Service.
pub const SERVICE_PORT: u16 = 443;

/// What a webhook may do to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WebhookKind {
    /// Change it, or refuse it.
    Mutating,
    /// Only refuse it.
    Validating,
}

impl WebhookKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Mutating, Self::Validating];

    /// The kind of object in which such webhooks are listed.
    pub const fn configuration(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }

    /// The same in URLs and rights.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Mutating => "mutatingwebhookconfigurations",
            Self::Validating => "validatingwebhookconfigurations",
        }
    }
}

/// What somebody wants to do to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Create it.
    Create,
    /// Change it.
    Update,
    /// Delete it.
    Delete,
    /// Connect to it.
    Connect,
}

/// What happens to a request when the webhook cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is refused.
    Fail,
    /// It is let through.
    Ignore,
}

/// Requests about which a webhook is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The group of the objects; empty for the core group.
    pub group: &'static str,
    /// Its versions.
    pub versions: &'static [&'static str],
    /// Resources, as `pods` or `pods/status`.
    pub resources: &'static [&'static str],
    /// What is done to them.
    pub operations: &'static [Operation],
}

/// What the API server is told of a webhook. Each has no side effects, is asked about equivalent versions too
/// (`matchPolicy: Equivalent`), and speaks `AdmissionReview` v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// What it may do.
    pub kind: WebhookKind,
    /// Its name in the configuration, such as `mappwrapper.kb.io`.
    pub name: &'static str,
    /// The path at which it is called, with a leading `/`; a token follows that only the API server knows.
    pub path: &'static str,
    /// About what it is asked.
    pub rules: Vec<Rule>,
    /// What happens when it cannot be asked.
    pub failure_policy: FailurePolicy,
    /// After so many seconds the API server gives up, 1 to 30. The handler gets no longer either.
    pub timeout_seconds: u8,
}

/// Where the API server calls the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Through the Service in this namespace.
    Service {
        /// The operator's namespace.
        namespace: String,
    },
    /// At this URL, without a path.
    Url(String),
}

impl Webhook {
    /// The path with the token.
    pub(super) fn path_with(&self, token: &str) -> String {
        format!("{}/{token}", self.path)
    }

    /// The entry in a configuration, with every default spelled out, so that it can be compared with what the server has.
    /// There is neither `caBundle` nor path yet: both are filled in by who serves.
    pub fn entry(&self, target: &Target) -> Value {
        let client = match target {
            Target::Service { namespace } => {
                json!({ "service": { "name": SERVICE, "namespace": namespace, "port": SERVICE_PORT } })
            }
            Target::Url(url) => json!({ "url": url }),
        };
        let rules = self.rules.iter().map(|rule| {
            json!({
                "apiGroups": [rule.group],
                "apiVersions": rule.versions,
                "resources": rule.resources,
                "operations": rule.operations,
                "scope": "*",
            })
        });
        let mut entry = json!({
            "name": self.name,
            "clientConfig": client,
            "rules": rules.collect::<Vec<_>>(),
            "failurePolicy": match self.failure_policy {
                FailurePolicy::Fail => "Fail",
                FailurePolicy::Ignore => "Ignore",
            },
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": self.timeout_seconds,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {},
            "objectSelector": {},
        });
        if self.kind == WebhookKind::Mutating {
            // What others change after us must be seen: it is signed.
            entry["reinvocationPolicy"] = json!("IfNeeded");
        }
        entry
    }
}

/// The configuration of one kind with these webhooks, or nothing if none is of that kind.
pub fn configuration(kind: WebhookKind, webhooks: &[Webhook], target: &Target) -> Option<Value> {
    let entries: Vec<_> =
        webhooks.iter().filter(|webhook| webhook.kind == kind).map(|webhook| webhook.entry(target)).collect();
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind.configuration(),
        "metadata": { "name": CONFIGURATION, "labels": { "app.kubernetes.io/name": "salvor" } },
        "webhooks": entries,
    });
    (!entries.is_empty()).then_some(object)
}
