//! Validation of a Job: its spec, and changes of it.

use serde_json::{Value, json};

use super::metadata::{check_maps, is_subdomain};
use super::validation::{immutable, is_dns_label, mismatch, named, negative, pod_spec, selector};
use super::{go, indexes};
use crate::object;
use crate::protocol::status::Cause;
use crate::store::selectors::Labels;

const MAX_INDEXED_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// With more completions than this, other limits are tighter.
const MANY_COMPLETIONS: i64 = 100_000;
const LIMIT_WITH_MANY_COMPLETIONS: i64 = 10_000;
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_MANAGER_BYTES: usize = 63;

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const HTTP_PATH: &str = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Warnings to a client that creates or changes a Job.
pub(crate) fn warnings(job: &Value) -> Vec<String> {
    let is_above = |key, limit| number(job, key).is_some_and(|value| value > limit);
    if is_indexed(job)
        && is_above("completions", MANY_COMPLETIONS)
        && is_above("parallelism", LIMIT_WITH_MANY_COMPLETIONS)
    {
        return vec!["spec: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail".to_owned()];
    }
    Vec::new()
}

pub(crate) fn create(job: &Value) -> Vec<Cause> {
    let mut causes = generated_labels(job);
    causes.extend(spec(job));
    causes.extend(pod_names(job));
    causes
}

pub(crate) fn update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = spec(new);
    causes.extend(completions_update(current, new));
    causes.extend(immutable(current, new, &["spec.selector"]));
    causes.extend(template_update(current, new));
    causes.extend(immutable(current, new, &["spec.completionMode"]));
    causes.extend(immutable_policy(current, new, "podFailurePolicy", go::failure_policy));
    causes.extend(immutable(current, new, &["spec.backoffLimitPerIndex", "spec.managedBy"]));
    causes.extend(immutable_policy(current, new, "successPolicy", go::success_policy));
    causes.extend(pod_names(new));
    causes
}

fn field<'v>(job: &'v Value, key: &str) -> Option<&'v Value> {
    job.get("spec")?.get(key).filter(|field| !field.is_null())
}

fn number(job: &Value, key: &str) -> Option<i64> {
    field(job, key)?.as_i64()
}

fn is_indexed(job: &Value) -> bool {
    field(job, "completionMode") == Some(&json!("Indexed"))
}

/// The server generates the labels by which pods are found, unless the client chose a selector.
fn generated_labels(job: &Value) -> Vec<Cause> {
    if field(job, "manualSelector") == Some(&json!(true)) {
        return Vec::new();
    }
    let (uid, name) = (object::uid(job), object::name(job));
    let expected = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    let labels = job.pointer("/spec/template/metadata/labels").unwrap_or(&Value::Null);
    let mut causes = Vec::new();
    for (key, wanted) in expected {
        let at = format!("spec.template.metadata.labels[{key}]");
        match labels.get(key).and_then(Value::as_str) {
            None => causes.push(Cause::required(at, &format!("must be '{wanted}'"))),
            Some(found) if found != wanted => {
                causes.push(Cause::invalid(at, labels, &format!("must be '{wanted}'")));
            }
            Some(_) => {}
        }
    }
    if let Some(chosen) = field(job, "selector") {
        let pods = json!({ "metadata": { "labels": serde_json::Map::from_iter(
            expected.map(|(key, value)| (key.to_owned(), json!(value))),
        ) } });
        if !Labels::of_object(chosen).matches(&pods) {
            causes.push(Cause::invalid("spec.selector", chosen, "`selector` not auto-generated"));
        }
    }
    causes
}

/// Pods of an Indexed Job are named after their index, and the names must be valid.
fn pod_names(job: &Value) -> Option<Cause> {
    let last = number(job, "completions").filter(|completions| *completions > 0 && is_indexed(job))? - 1;
    let name = object::name(job);
    let longest = format!("{name}-{last}");
    (!is_dns_label(&longest)).then(|| {
        let why = format!("will not able to create pod with invalid DNS label: {longest}");
        Cause::invalid("metadata.name", &json!(name), &why)
    })
}

fn spec(job: &Value) -> Vec<Cause> {
    let template = job.pointer("/spec/template").unwrap_or(&Value::Null);
    let mut causes = numbers(job);
    causes.extend(managed_by(job));
    causes.extend(completion_mode(job));
    causes.extend(failure_policy(job, template));
    causes.extend(success_policy(job));
    causes.extend(replacement_policy(job));
    causes.extend(check_maps(job, "/spec/template/metadata", "spec.template"));
    causes.extend(pod_spec(template.get("spec").unwrap_or(&Value::Null), "spec.template.spec"));
    causes.extend(restart_policy(job, template));
    match field(job, "selector") {
        None => {
            causes.push(Cause::required("spec.selector", ""));
            causes.push(mismatch(template));
        }
        Some(wanted) => {
            causes.extend(selector(wanted, "spec.selector"));
            if !Labels::of_object(wanted).matches(template) {
                causes.push(mismatch(template));
            }
        }
    }
    causes
}

fn numbers(job: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for key in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        if let Some(value) = field(job, key)
            && value.as_i64().is_some_and(|value| value < 0)
        {
            causes.push(negative(format!("spec.{key}"), value));
        }
    }
    if field(job, "maxFailedIndexes").is_some() && field(job, "backoffLimitPerIndex").is_none() {
        causes.push(Cause::required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified"));
    }
    causes
}

fn managed_by(job: &Value) -> Vec<Cause> {
    let Some(manager) = field(job, "managedBy").and_then(Value::as_str) else {
        return Vec::new();
    };
    let at = "spec.managedBy";
    let mut causes = Vec::new();
    match manager.split_once('/') {
        _ if manager.is_empty() => causes.push(Cause::required(at, "")),
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            if !is_subdomain(host) {
                causes.push(Cause::invalid(at, &json!(host), SUBDOMAIN));
            }
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
            if !path.bytes().all(allowed) {
                causes.push(Cause::invalid(at, &json!(path), HTTP_PATH));
            }
        }
        _ => causes.push(Cause::invalid(
            at,
            &json!(manager),
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        )),
    }
    if manager.len() > MAX_MANAGER_BYTES {
        causes.push(Cause::too_long(at, MAX_MANAGER_BYTES));
    }
    causes
}

fn completion_mode(job: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mode = job.pointer("/spec/completionMode").and_then(Value::as_str).unwrap_or("NonIndexed");
    if !["NonIndexed", "Indexed"].contains(&mode) {
        causes.push(Cause::unsupported("spec.completionMode", mode, &["NonIndexed", "Indexed"]));
    }
    let (parallelism, completions) = (number(job, "parallelism"), number(job, "completions"));
    let (per_index, most_failed) = (number(job, "backoffLimitPerIndex"), number(job, "maxFailedIndexes"));
    let above = |value: Option<i64>, limit: i64| value.filter(|value| *value > limit);
    if mode == "Indexed" {
        if completions.is_none() {
            causes.push(Cause::required("spec.completions", "when completion mode is Indexed"));
        }
        if let Some(value) = above(parallelism, MAX_INDEXED_PARALLELISM) {
            let why = format!(
                "must be less than or equal to {MAX_INDEXED_PARALLELISM} when completion mode is Indexed"
            );
            causes.push(Cause::invalid("spec.parallelism", &json!(value), &why));
        }
        if let (Some(completions), Some(failed)) = (completions, most_failed)
            && failed > completions
        {
            let why = "must be less than or equal to completions";
            causes.push(Cause::invalid("spec.maxFailedIndexes", &json!(failed), why));
        }
        if let Some(failed) = above(most_failed, MAX_FAILED_INDEXES) {
            let why = format!("must be less than or equal to {MAX_FAILED_INDEXES}");
            causes.push(Cause::invalid("spec.maxFailedIndexes", &json!(failed), &why));
        }
        if above(completions, MANY_COMPLETIONS).is_some() && per_index.is_some() {
            causes.extend(many_completions(parallelism, most_failed));
        }
    }
    if mode == "NonIndexed" {
        for (key, value) in [("backoffLimitPerIndex", per_index), ("maxFailedIndexes", most_failed)] {
            if let Some(value) = value {
                let why = "requires indexed completion mode";
                causes.push(Cause::invalid(format!("spec.{key}"), &json!(value), why));
            }
        }
    }
    causes
}

fn many_completions(parallelism: Option<i64>, most_failed: Option<i64>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let why = format!(
        "must be less than or equal to {LIMIT_WITH_MANY_COMPLETIONS} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
    );
    if most_failed.is_none() {
        let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        causes.push(Cause::required("spec.maxFailedIndexes", &why));
    }
    for (key, value) in [("parallelism", parallelism), ("maxFailedIndexes", most_failed)] {
        if let Some(value) = value.filter(|value| *value > LIMIT_WITH_MANY_COMPLETIONS) {
            causes.push(Cause::invalid(format!("spec.{key}"), &json!(value), &why));
        }
    }
    causes
}

fn failure_policy(job: &Value, template: &Value) -> Vec<Cause> {
    let Some(policy) = field(job, "podFailurePolicy") else {
        return Vec::new();
    };
    let mut causes = Vec::new();
    let rules = object::list(policy, "/rules");
    if rules.len() > MAX_RULES {
        causes.push(Cause::too_many("spec.podFailurePolicy.rules", rules.len(), MAX_RULES));
    }
    let containers: Vec<&str> = ["/spec/containers", "/spec/initContainers"]
        .iter()
        .flat_map(|list| object::list(template, list))
        .map(|container| object::text(container, "/name"))
        .collect();
    let per_index = field(job, "backoffLimitPerIndex").is_some();
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("spec.podFailurePolicy.rules[{index}]");
        causes.extend(failure_rule(rule, &at, per_index, &containers));
    }
    causes
}

fn failure_rule(rule: &Value, at: &str, per_index: bool, containers: &[&str]) -> Vec<Cause> {
    let mut causes = Vec::new();
    let action_at = format!("{at}.action");
    match object::text(rule, "/action") {
        "" => causes.push(Cause::required(action_at, &valid_values(&ACTIONS))),
        "FailIndex" if !per_index => {
            let why = "requires the backoffLimitPerIndex to be set";
            causes.push(Cause::invalid(action_at, &json!("FailIndex"), why));
        }
        action if !ACTIONS.contains(&action) => {
            causes.push(Cause::unsupported(action_at, action, &ACTIONS));
        }
        _ => {}
    }
    let codes = rule.get("onExitCodes");
    let conditions = object::list(rule, "/onPodConditions");
    if let Some(codes) = codes {
        causes.extend(exit_codes(codes, &format!("{at}.onExitCodes"), containers));
    }
    if conditions.len() > MAX_RULES {
        causes.push(Cause::too_many(format!("{at}.onPodConditions"), conditions.len(), MAX_RULES));
    }
    for (index, condition) in conditions.iter().enumerate() {
        let at = format!("{at}.onPodConditions[{index}]");
        let kind = object::text(condition, "/type");
        causes.extend(named(format!("{at}.type"), kind));
        let supported = ["False", "True", "Unknown"];
        match object::text(condition, "/status") {
            "" => causes.push(Cause::required(format!("{at}.status"), &valid_values(&supported))),
            status if !supported.contains(&status) => {
                causes.push(Cause::unsupported(format!("{at}.status"), status, &supported));
            }
            _ => {}
        }
    }
    match (codes.is_some(), conditions.is_empty()) {
        (true, false) => causes.push(Cause::invalid_whole(
            at,
            "specifying both OnExitCodes and OnPodConditions is not supported",
        )),
        (false, true) => causes
            .push(Cause::invalid_whole(at, "specifying one of OnExitCodes and OnPodConditions is required")),
        _ => {}
    }
    causes
}

fn exit_codes(codes: &Value, at: &str, containers: &[&str]) -> Vec<Cause> {
    let mut causes = Vec::new();
    let operator = object::text(codes, "/operator");
    match operator {
        "" => causes.push(Cause::required(format!("{at}.operator"), &valid_values(&["In", "NotIn"]))),
        "In" | "NotIn" => {}
        other => causes.push(Cause::unsupported(format!("{at}.operator"), other, &["In", "NotIn"])),
    }
    if let Some(name) = codes.get("containerName").and_then(Value::as_str)
        && !containers.contains(&name)
    {
        causes.push(Cause::invalid(
            format!("{at}.containerName"),
            &json!(name),
            "must be one of the container or initContainer names in the pod template",
        ));
    }
    let values = object::list(codes, "/values");
    let values_at = format!("{at}.values");
    if values.is_empty() {
        causes.push(Cause::invalid(values_at.clone(), &json!([]), "at least one value is required"));
    } else if values.len() > MAX_EXIT_CODES {
        causes.push(Cause::too_many(values_at.clone(), values.len(), MAX_EXIT_CODES));
    }
    for (index, value) in values.iter().enumerate() {
        let at = format!("{values_at}[{index}]");
        if operator == "In" && value == &json!(0) {
            causes.push(Cause::invalid(at.clone(), value, "must not be 0 for the In operator"));
        }
        if values[..index].contains(value) {
            causes.push(Cause::duplicate(at, value));
        }
    }
    if !values.is_sorted_by_key(Value::as_i64) {
        causes.push(Cause::invalid(values_at, &json!(values), "must be ordered"));
    }
    causes
}

fn success_policy(job: &Value) -> Vec<Cause> {
    let Some(policy) = field(job, "successPolicy") else {
        return Vec::new();
    };
    if !is_indexed(job) {
        let shown = go::success_policy(policy);
        return vec![Cause::invalid_text("spec.successPolicy", &shown, "requires indexed completion mode")];
    }
    let mut causes = Vec::new();
    let rules = object::list(policy, "/rules");
    if rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        causes.push(Cause::required("spec.successPolicy.rules", why));
    }
    if rules.len() > MAX_RULES {
        causes.push(Cause::too_many("spec.successPolicy.rules", rules.len(), MAX_RULES));
    }
    let completions = number(job, "completions").unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("spec.successPolicy.rules[{index}]");
        causes.extend(success_rule(rule, &at, completions));
    }
    causes
}

fn success_rule(rule: &Value, at: &str, completions: i64) -> Vec<Cause> {
    let mut causes = Vec::new();
    let indexes = rule.get("succeededIndexes").and_then(Value::as_str);
    let count = rule.get("succeededCount").and_then(Value::as_i64);
    if indexes.is_none() && count.is_none() {
        let why = "at least one of succeededCount or succeededIndexes must be specified";
        causes.push(Cause::required(at, why));
    }
    let mut named = 0;
    if let Some(text) = indexes {
        match indexes::count(text, completions) {
            Ok(count) => named = count,
            Err(why) => causes.push(Cause::invalid(
                format!("{at}.succeededIndexes"),
                &json!(text),
                &format!("error parsing succeededIndexes: {why}"),
            )),
        }
    }
    if let Some(count) = count {
        let at = format!("{at}.succeededCount");
        let shown = json!(count);
        if count < 0 {
            causes.push(negative(at.clone(), &shown));
        }
        if count > completions {
            let why =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            causes.push(Cause::invalid(at.clone(), &shown, &why));
        }
        if indexes.is_some() && count > named {
            let why = format!(
                "must be less than or equal to {named} (the number of indexes in the specified succeededIndexes field)"
            );
            causes.push(Cause::invalid(at, &shown, &why));
        }
    }
    causes
}

fn replacement_policy(job: &Value) -> Option<Cause> {
    let policy = field(job, "podReplacementPolicy").and_then(Value::as_str)?;
    let supported: &[&str] = if field(job, "podFailurePolicy").is_some() {
        &["Failed"]
    } else {
        &["Failed", "TerminatingOrFailed"]
    };
    (!supported.contains(&policy)).then(|| Cause::unsupported("spec.podReplacementPolicy", policy, supported))
}

fn restart_policy(job: &Value, template: &Value) -> Option<Cause> {
    let at = "spec.template.spec.restartPolicy";
    match object::text(template, "/spec/restartPolicy") {
        "Always" | "" => Some(Cause::required(at, "valid values: \"OnFailure\", \"Never\"")),
        "OnFailure" if field(job, "podFailurePolicy").is_some() => {
            let why = "only \"Never\" is supported when podFailurePolicy is specified";
            Some(Cause::invalid(at, &json!("OnFailure"), why))
        }
        "OnFailure" | "Never" => None,
        other => Some(Cause::unsupported(at, other, &["OnFailure", "Never"])),
    }
}

/// As Go prints a list of texts: quoted, with spaces between.
fn valid_values(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("valid values: [{}]", quoted.join(" "))
}

fn completions_update(current: &Value, new: &Value) -> Vec<Cause> {
    if !is_indexed(new) {
        return immutable(current, new, &["spec.completions"]);
    }
    let (before, after) = (number(current, "completions"), number(new, "completions"));
    match after {
        Some(completions) if before != after && after != number(new, "parallelism") => {
            let why = "can only be modified in tandem with spec.parallelism";
            vec![Cause::invalid("spec.completions", &json!(completions), why)]
        }
        _ => Vec::new(),
    }
}

fn immutable_policy(
    current: &Value,
    new: &Value,
    key: &str,
    show: impl Fn(&Value) -> String,
) -> Option<Cause> {
    let (before, after) = (field(current, key), field(new, key));
    (before != after).then(|| {
        let shown = after.map_or_else(|| "null".to_owned(), show);
        Cause::invalid_text(format!("spec.{key}"), &shown, "field is immutable")
    })
}

/// The template may not change, except while a suspended Job has no pods: then scheduling directives and resources may.
fn template_update(current: &Value, new: &Value) -> Vec<Cause> {
    let is_suspended = field(current, "suspend") == Some(&json!(true));
    let conditions = object::list(current, "/status/conditions");
    let has_paused = conditions.iter().any(|condition| {
        object::text(condition, "/type") == "Suspended" && object::text(condition, "/status") == "True"
    });
    let has_no_pods = current.pointer("/status/active").and_then(Value::as_i64).unwrap_or(0) == 0;
    let never_started = current.pointer("/status/startTime").is_none();
    if !(is_suspended && has_no_pods && (never_started || has_paused)) {
        return immutable(current, new, &["spec.template"]);
    }
    let null = Value::Null;
    let after = new.pointer("/spec/template/spec").unwrap_or(&null);
    let mut expected = current.pointer("/spec/template/spec").cloned().unwrap_or_default();
    for key in ["nodeSelector", "tolerations", "schedulingGates"] {
        object::carry(after, &mut expected, key);
    }
    carry_node_affinity(after, &mut expected);
    for list in ["containers", "initContainers"] {
        carry_resources(after, &mut expected, list);
    }
    if expected == *after {
        return Vec::new();
    }
    vec![Cause::invalid("spec.template.spec", after, "field is immutable")]
}

fn carry_node_affinity(from: &Value, to: &mut Value) {
    let wanted = from.pointer("/affinity/nodeAffinity").cloned();
    let Some(to) = to.as_object_mut() else { return };
    let mut affinity = to.remove("affinity").unwrap_or_else(|| json!({}));
    if let Some(members) = affinity.as_object_mut() {
        match wanted {
            Some(wanted) => members.insert("nodeAffinity".to_owned(), wanted),
            None => members.remove("nodeAffinity"),
        };
    }
    if from.get("affinity").is_some() || affinity.as_object().is_some_and(|members| !members.is_empty()) {
        to.insert("affinity".to_owned(), affinity);
    }
}

fn carry_resources(from: &Value, to: &mut Value, list: &str) {
    let wanted = object::list(from, &format!("/{list}"));
    let Some(containers) = to.get_mut(list).and_then(Value::as_array_mut) else { return };
    if containers.len() != wanted.len() {
        return;
    }
    for (container, wanted) in containers.iter_mut().zip(wanted) {
        if container.get("name") == wanted.get("name") {
            object::carry(wanted, container, "resources");
        }
    }
}
