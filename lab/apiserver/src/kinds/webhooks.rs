//! Validation of webhook configurations.

use std::collections::BTreeSet;

use http::Uri;
use serde_json::{Value, json};

use super::metadata::{dns_1035_label_problem, subdomain_problem};
use crate::object;
use crate::protocol::status::Cause;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// The longest timeout of a webhook, in seconds.
const LONGEST: i64 = 30;

pub(super) fn check(configuration: &Value) -> Vec<Cause> {
    let mut names = BTreeSet::new();
    let mut causes = Vec::new();
    for (index, hook) in object::list(configuration, "/webhooks").iter().enumerate() {
        let at = format!("webhooks[{index}]");
        causes.extend(webhook(hook, &at));
        causes.extend(review_versions(hook, &at));
        let name = object::text(hook, "/name");
        if !name.is_empty() && !names.insert(name) {
            causes.push(Cause::duplicate(format!("{at}.name"), &json!(name)));
        }
    }
    causes
}

fn webhook(hook: &Value, at: &str) -> Vec<Cause> {
    let mut causes = name(object::text(hook, "/name"), &format!("{at}.name"));
    for (index, rule) in object::list(hook, "/rules").iter().enumerate() {
        causes.extend(rule_problems(rule, &format!("{at}.rules[{index}]")));
    }
    let one_of = |key: &str, known: &[&str]| {
        let stated = object::at(hook, &format!("/{key}")).and_then(Value::as_str)?;
        (!known.contains(&stated)).then(|| Cause::unsupported(format!("{at}.{key}"), stated, known))
    };
    causes.extend(one_of("failurePolicy", &["Fail", "Ignore"]));
    causes.extend(one_of("matchPolicy", &["Equivalent", "Exact"]));
    if object::text(hook, "/sideEffects").is_empty() {
        let field = format!("{at}.sideEffects");
        causes.push(Cause::required(field, "must specify one of None, NoneOnDryRun"));
    } else {
        causes.extend(one_of("sideEffects", &["None", "NoneOnDryRun"]));
    }
    if let Some(seconds) = hook.get("timeoutSeconds").and_then(Value::as_i64)
        && !(1..=LONGEST).contains(&seconds)
    {
        let why = "the timeout value must be between 1 and 30 seconds";
        causes.push(Cause::invalid(format!("{at}.timeoutSeconds"), &json!(seconds), why));
    }
    causes.extend(one_of("reinvocationPolicy", &["IfNeeded", "Never"]));
    causes.extend(client(hook, &format!("{at}.clientConfig")));
    causes
}

fn name(name: &str, field: &str) -> Vec<Cause> {
    if name.is_empty() {
        return vec![Cause::required(field, "")];
    }
    if let Some(why) = subdomain_problem(name) {
        return vec![Cause::invalid(field, &json!(name), why)];
    }
    if name.split('.').count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        return vec![Cause::invalid(field, &json!(name), why)];
    }
    Vec::new()
}

fn rule_problems(rule: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let lists = [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")];
    for (key, what) in lists {
        let stated = object::strings(rule, &format!("/{key}"));
        let field = format!("{at}.{key}");
        if stated.is_empty() {
            causes.push(Cause::required(field.clone(), ""));
        }
        if stated.len() > 1 && stated.iter().any(|item| item == "*") {
            let why = format!("if '*' is present, must not specify other {what}");
            causes.push(Cause::invalid(field.clone(), &json!(stated), &why));
        }
        for (index, item) in stated.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match key {
                "operations" if !OPERATIONS.contains(&item.as_str()) => {
                    causes.push(Cause::unsupported(field, item, &OPERATIONS));
                }
                "apiVersions" if item.is_empty() => causes.push(Cause::required(field, "")),
                _ => {}
            }
        }
    }
    if object::list(rule, "/resources").is_empty() {
        causes.push(Cause::required(format!("{at}.resources"), ""));
    }
    let scope = object::text(rule, "/scope");
    let scopes = ["*", "Cluster", "Namespaced"];
    if !scope.is_empty() && !scopes.contains(&scope) {
        causes.push(Cause::unsupported(format!("{at}.scope"), scope, &scopes));
    }
    causes
}

fn client(hook: &Value, at: &str) -> Vec<Cause> {
    let stated = |key: &str| object::at(hook, &format!("/clientConfig/{key}")).filter(|it| !it.is_null());
    let (url, service) = (stated("url"), stated("service"));
    match (url.and_then(Value::as_str), service) {
        (Some(url), None) => url_problems(url, &format!("{at}.url")),
        (None, Some(service)) => {
            // The real server swaps the two in its message.
            let missing = [("namespace", "name"), ("name", "namespace")]
                .into_iter()
                .filter(|(key, _)| object::text(service, &format!("/{key}")).is_empty());
            missing.map(|(_, named)| Cause::required(format!("{at}.service.{named}"), "")).collect()
        }
        _ => vec![Cause::required(at, "exactly one of url or service is required")],
    }
}

fn url_problems(url: &str, field: &str) -> Vec<Cause> {
    const FORM: &str = "; desired format: https://host[/path]";
    let Ok(uri) = url.parse::<Uri>() else {
        return vec![Cause::required(field, &format!("url must be a valid URL: {url}{FORM}"))];
    };
    let mut causes = Vec::new();
    let scheme = uri.scheme_str().unwrap_or("");
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        causes.push(Cause::invalid(field, &json!(scheme), &why));
    }
    if uri.host().is_none_or(str::is_empty) {
        causes.push(Cause::invalid(field, &json!(""), &format!("host must be specified{FORM}")));
    }
    if let Some((user, _)) = uri.authority().and_then(|authority| authority.as_str().rsplit_once('@')) {
        let why = "user information is not permitted in the URL";
        causes.push(Cause::invalid(field, &json!(user), why));
    }
    if let Some((_, fragment)) = url.split_once('#') {
        causes.push(Cause::invalid(field, &json!(fragment), "fragments are not permitted in the URL"));
    }
    if let Some(query) = uri.query() {
        causes.push(Cause::invalid(field, &json!(query), "query parameters are not permitted in the URL"));
    }
    causes
}

fn review_versions(hook: &Value, at: &str) -> Vec<Cause> {
    let versions = object::strings(hook, "/admissionReviewVersions");
    let field = format!("{at}.admissionReviewVersions");
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        return vec![Cause::required(field, &format!("must specify one of {known}"))];
    }
    let mut causes = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if versions[..index].contains(version) {
            causes.push(Cause::invalid(field, &json!(version), "duplicate version"));
        } else if let Some(why) = dns_1035_label_problem(version) {
            causes.push(Cause::invalid(field, &json!(version), &why));
        }
    }
    if !versions.iter().any(|version| REVIEW_VERSIONS.contains(&version.as_str())) {
        let why = format!("must include at least one of {known}");
        causes.push(Cause::invalid(field, &json!(versions), &why));
    }
    causes
}
