//! Webhooks as their configurations describe them, and the requests that they match.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

use super::conditions;
use super::hearing::Call;
use super::subject::{GROUP, Operation, Subject};
use crate::kinds::table::{Resource, ResourceKey};
use crate::object;
use crate::protocol::status::Refusal;
use crate::state::Core;
use crate::store;
use crate::store::selectors::Labels;

const HTTPS: u64 = 443;

const TIMEOUT_SECONDS: u64 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Mutating,
    Validating,
}

impl Flow {
    fn configurations(self) -> ResourceKey {
        let plural = match self {
            Self::Mutating => "mutatingwebhookconfigurations",
            Self::Validating => "validatingwebhookconfigurations",
        };
        (GROUP.to_owned(), plural.to_owned())
    }
}

/// One webhook of a configuration.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) flow: Flow,
    /// Its entry in the configuration, with all defaults.
    entry: Value,
}

pub(super) fn are_there(core: &Core, flow: Flow) -> bool {
    core.store.scan(&flow.configurations(), "").next().is_some()
}

/// The webhooks of all configurations, in the order of the configurations' names.
pub(super) fn all(core: &Core, flow: Flow) -> Vec<Hook> {
    core.store
        .scan(&flow.configurations(), "")
        .flat_map(|(_, stored)| object::list(&stored.value(), "/webhooks").to_vec())
        .map(|entry| Hook { flow, entry })
        .collect()
}

impl Hook {
    pub(super) fn name(&self) -> &str {
        object::text(&self.entry, "/name")
    }

    /// True if the request continues when the webhook cannot be called.
    pub(super) fn fails_open(&self) -> bool {
        object::text(&self.entry, "/failurePolicy") == "Ignore"
    }

    pub(super) fn wants_reinvocation(&self) -> bool {
        object::text(&self.entry, "/reinvocationPolicy") == "IfNeeded"
    }

    /// The version of the review that it receives: the first that both sides know. (There is one, or the configuration
    /// would have been refused.)
    pub(super) fn review_version(&self) -> &'static str {
        let versions = object::list(&self.entry, "/admissionReviewVersions").iter();
        let known = versions
            .filter_map(Value::as_str)
            .find_map(|version| ["v1", "v1beta1"].into_iter().find(|known| *known == version));
        known.unwrap_or("v1")
    }

    /// The resource as which the webhook sees a request; `None` if it is not called.
    pub(super) fn sees(&self, core: &Core, subject: &Subject<'_>) -> Result<Option<Arc<Resource>>, Refusal> {
        if !self.selects_object(subject) {
            return Ok(None);
        }
        let in_namespace = self.selects_namespace(core, subject);
        if let Ok(false) = in_namespace {
            return Ok(None);
        }
        let Some(seen_as) = self.rule_for(core, subject) else { return Ok(None) };
        in_namespace?;
        let is_wanted = conditions::hold(&self.conditions(), &seen_as, subject, self.fails_open())
            .map_err(|why| Refusal::forbidden(subject.resource, &subject.name, &why))?;
        Ok(is_wanted.then_some(seen_as))
    }

    fn conditions(&self) -> Vec<String> {
        let expressions = object::list(&self.entry, "/matchConditions").iter();
        expressions.map(|condition| object::text(condition, "/expression").to_owned()).collect()
    }

    fn selector(&self, key: &str) -> Labels {
        self.entry.get(key).map(Labels::of_object).unwrap_or_else(|| Labels::of_object(&json!({})))
    }

    fn selects_object(&self, subject: &Subject<'_>) -> bool {
        let selector = self.selector("objectSelector");
        let matches = |value: Option<&Value>| value.is_some_and(|value| selector.matches(value));
        selector.is_empty() || matches(subject.body.object()) || matches(subject.body.old())
    }

    fn selects_namespace(&self, core: &Core, subject: &Subject<'_>) -> Result<bool, Refusal> {
        let namespace = subject.namespace();
        let selector = self.selector("namespaceSelector");
        // A cluster-scoped object is never exempt.
        if selector.is_empty() || namespace.is_empty() {
            return Ok(true);
        }
        let is_written = subject.operation != Operation::Delete && subject.subresource.is_empty();
        if subject.resource.is_namespace() && is_written {
            return Ok(subject.body.object().is_some_and(|object| selector.matches(object)));
        }
        let found = core.namespace(namespace).ok_or_else(|| Refusal::namespace_not_found(namespace))?;
        Ok(selector.matches(&found.value()))
    }

    /// The resource that a rule names: the one of the request, or the same objects in another version.
    fn rule_for(&self, core: &Core, subject: &Subject<'_>) -> Option<Arc<Resource>> {
        let rules = object::list(&self.entry, "/rules");
        if rules.iter().any(|rule| names(rule, subject.resource, subject)) {
            return Some(Arc::clone(subject.resource));
        }
        if object::text(&self.entry, "/matchPolicy") != "Equivalent" {
            return None;
        }
        rules.iter().find_map(|rule| {
            let others = core.table.iter().filter(|other| {
                other.key() == subject.resource.key() && other.api_version() != subject.resource.api_version()
            });
            others.into_iter().find(|other| names(rule, other, subject)).cloned()
        })
    }

    /// The call that sends a review.
    pub(super) fn call(&self, core: &Core, review: Bytes) -> Call {
        let seconds = self.entry.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(TIMEOUT_SECONDS);
        let authorities =
            STANDARD.decode(object::text(&self.entry, "/clientConfig/caBundle")).unwrap_or_default();
        let (address, unreachable) = self.address(core);
        Call {
            url: format!("{address}?timeout={seconds}s"),
            authorities,
            timeout: Duration::from_secs(seconds),
            body: review,
            unreachable,
        }
    }

    /// The address of the webhook, and why it cannot be reached over the network. There is no routing to Services here.
    fn address(&self, core: &Core) -> (String, Option<String>) {
        let Some(service) = object::at(&self.entry, "/clientConfig/service") else {
            return (object::text(&self.entry, "/clientConfig/url").to_owned(), None);
        };
        let (namespace, name) = (object::text(service, "/namespace"), object::text(service, "/name"));
        let port = service.get("port").and_then(Value::as_u64).unwrap_or(HTTPS);
        let path = object::text(service, "/path").trim_start_matches('/');
        let services = (String::new(), "services".to_owned());
        let why = match core.store.get(&services, &store::key(namespace, name)) {
            None => format!("service {name:?} not found"),
            Some(found) => {
                let service = found.value();
                let address = object::text(&service, "/spec/clusterIP");
                format!("dial tcp {address}:{port}: connect: no route to host")
            }
        };
        (format!("https://{name}.{namespace}.svc:{port}/{path}"), Some(why))
    }
}

/// True if a rule matches a resource and the operation on it.
fn names(rule: &Value, resource: &Resource, subject: &Subject<'_>) -> bool {
    let has =
        |key: &str, wanted: &str| object::list(rule, key).iter().any(|item| item == "*" || item == wanted);
    let in_scope = match object::text(rule, "/scope") {
        "Namespaced" => resource.namespaced,
        "Cluster" => !resource.namespaced,
        _ => true,
    };
    let is_named = object::strings(rule, "/resources").iter().any(|item| {
        let (plural, subresource) = item.split_once('/').unwrap_or((item, ""));
        (plural == "*" || plural == resource.plural)
            && (subresource == "*" || subresource == subject.subresource)
    });
    in_scope
        && is_named
        && has("/operations", subject.operation.name())
        && has("/apiGroups", &resource.group)
        && has("/apiVersions", &resource.version)
}
