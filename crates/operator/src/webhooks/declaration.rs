//! A webhook as it is declared to the API server: plain data.

use serde_json::{Value, json};

/// The name of both webhook configurations.
pub const CONFIGURATION: &str = "salvor";
/// The Service through which the API server reaches the operator in a cluster, and the Secret that replicas share.
pub const SERVICE: &str = "salvor-webhooks";
pub const SERVICE_PORT: u16 = 443;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WebhookKind {
    /// May change or refuse an object.
    Mutating,
    /// May only refuse an object.
    Validating,
}

impl WebhookKind {
    pub const ALL: [Self; 2] = [Self::Mutating, Self::Validating];

    /// The kind of the configuration object that lists such webhooks.
    pub const fn configuration(self) -> &'static str {
        match self {
            Self::Mutating => "MutatingWebhookConfiguration",
            Self::Validating => "ValidatingWebhookConfiguration",
        }
    }

    /// The resource name in URLs and RBAC rules.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Mutating => "mutatingwebhookconfigurations",
            Self::Validating => "validatingwebhookconfigurations",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

/// What happens to a request when the webhook cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is refused.
    Fail,
    /// The request is admitted.
    Ignore,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Empty for the core group.
    pub group: &'static str,
    pub versions: &'static [&'static str],
    /// For example `pods` or `pods/status`.
    pub resources: &'static [&'static str],
    pub operations: &'static [Operation],
}

/// The declaration of a webhook. Each has no side effects, is called for equivalent versions too (`matchPolicy:
/// Equivalent`), and uses `AdmissionReview` v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub kind: WebhookKind,
    /// For example `mappwrapper.kb.io`.
    pub name: &'static str,
    /// Starts with `/`. A token follows that only the API server knows.
    pub path: &'static str,
    pub rules: Vec<Rule>,
    pub failure_policy: FailurePolicy,
    /// The API server gives up after this many seconds, 1 to 30. The handler has the same limit.
    pub timeout_seconds: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Through the operator's Service.
    Service {
        /// The operator's namespace.
        namespace: String,
    },
    /// At this URL, without a path.
    Url(String),
}

impl Webhook {
    pub(super) fn path_with(&self, token: &str) -> String {
        format!("{}/{token}", self.path)
    }

    /// The entry in a configuration, with every default spelled out so that it can be compared with the server's
    /// object. The server process fills in `caBundle` and the path.
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
            // Later changes by other webhooks must be seen, because the result is signed.
            entry["reinvocationPolicy"] = json!("IfNeeded");
        }
        entry
    }
}

/// The configuration of one kind with these webhooks; `None` if none is of that kind.
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
