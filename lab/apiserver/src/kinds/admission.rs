//! The kinds of `admissionregistration.k8s.io`. Webhooks are called; policies are stored, but not evaluated.

use serde_json::json;

use super::table::Generation;
use super::table::Subresource::Status;
use super::{ALL_METADATA, API_EXTENSIONS, Kind, clustered, defaults, webhooks};
use crate::object;
use crate::protocol::printing::{AGE, Column, NAME, Row, UNSET, count, made, text};

const GROUP: &str = "admissionregistration.k8s.io";

pub(super) const KINDS: &[Kind] = &[
    Kind {
        columns: &[NAME, count("Mutations", "/spec/mutations"), PARAMETER_KIND, AGE],
        defaults: defaults::mutating_policy,
        ..policy("MutatingAdmissionPolicy", "mutatingadmissionpolicies")
    },
    Kind {
        columns: BINDING,
        defaults: defaults::policy_binding,
        ..policy("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")
    },
    Kind {
        generation: Generation::Of(&["/webhooks"]),
        columns: WEBHOOKS,
        defaults: defaults::mutating_webhooks,
        check: webhooks::check,
        ..policy("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
    },
    Kind {
        subresources: &[Status],
        columns: &[NAME, count("Validations", "/spec/validations"), PARAMETER_KIND, AGE],
        defaults: defaults::validating_policy,
        status_keeps: ALL_METADATA,
        ..policy("ValidatingAdmissionPolicy", "validatingadmissionpolicies")
    },
    Kind {
        columns: BINDING,
        defaults: defaults::policy_binding,
        ..policy("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
    },
    Kind {
        generation: Generation::Of(&["/webhooks"]),
        columns: WEBHOOKS,
        defaults: defaults::validating_webhooks,
        check: webhooks::check,
        ..policy("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
    },
];

const fn policy(kind: &'static str, plural: &'static str) -> Kind {
    Kind {
        categories: API_EXTENSIONS,
        generation: Generation::SPEC,
        unconditional_update: false,
        ..clustered(GROUP, kind, plural)
    }
}

const WEBHOOKS: &[Column] = &[NAME, count("Webhooks", "/webhooks"), AGE];

const BINDING: &[Column] =
    &[NAME, text("PolicyName", "/spec/policyName"), made("ParamRef", |row| json!(parameter(row))), AGE];

const PARAMETER_KIND: Column = made("ParamKind", |row| {
    json!(row.at("/spec/paramKind").map_or_else(
        || UNSET.to_owned(),
        |kind| format!("{}/{}", object::text(kind, "/apiVersion"), object::text(kind, "/kind")),
    ))
});

fn parameter(row: &Row<'_>) -> String {
    let field = |key: &str| row.text(&format!("/spec/paramRef/{key}"));
    match (field("name"), field("namespace"), row.at("/spec/paramRef/selector")) {
        ("", _, None) => UNSET.to_owned(),
        ("", _, Some(selector)) => super::go::label_selector(selector),
        (name, "", _) => format!("*/{name}"),
        (name, namespace, _) => format!("{namespace}/{name}"),
    }
}
