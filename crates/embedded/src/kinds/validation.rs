//! What the server refuses about objects of single kinds.

use serde_json::{Value, json};

use super::{CheckUpdate, go};
use crate::metadata::{
    check_finalizer, check_maps, is_subdomain, label_value_problem, qualified_name_problems,
};
use crate::object;
use crate::selectors::Labels;
use crate::status::Cause;
use crate::table::Resource;

const TAINT_EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
pub(super) const IMMUTABLE: &str = "field is immutable";
const POD_UPDATE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// What a client is told beside the answer when it creates or changes an object of a built-in kind.
pub(crate) fn warnings(resource: &Resource, value: &Value) -> Vec<String> {
    resource.built_in.map_or_else(Vec::new, |kind| (kind.warnings)(value))
}

/// Checks a new object of a built-in kind.
pub(crate) fn create(resource: &Resource, value: &Value) -> Vec<Cause> {
    resource.built_in.map_or_else(Vec::new, |kind| (kind.check)(value))
}

/// Checks an update of a built-in kind, beyond what is checked on creation.
pub(crate) fn update(resource: &Resource, current: &Value, new: &Value) -> Vec<Cause> {
    let Some(kind) = resource.built_in else { return Vec::new() };
    match kind.check_update {
        CheckUpdate::Only(check) => check(current, new),
        CheckUpdate::Also(check) => {
            let mut causes = (kind.check)(new);
            causes.extend(check(current, new));
            causes
        }
    }
}

/// Whatever keeps a text from being a qualified name.
pub(crate) fn named(field: impl Into<String>, name: &str) -> impl Iterator<Item = Cause> {
    let (field, name) = (field.into(), json!(name));
    let problems = qualified_name_problems(name.as_str().unwrap_or("")).into_iter();
    problems.map(move |why| Cause::invalid(field.clone(), &name, why))
}

/// Checks an update of a namespace's own finalizers.
pub(crate) fn finalize(namespace: &Value) -> Vec<Cause> {
    let finalizers = object::strings(namespace, "/spec/finalizers");
    let checked = finalizers.iter().enumerate().flat_map(|(index, finalizer)| {
        let field = format!("spec.finalizers[{index}]");
        named(field.clone(), finalizer).chain(check_finalizer(&field, finalizer))
    });
    checked.collect()
}

/// Checks a new namespace.
pub(super) fn namespace(value: &Value) -> Vec<Cause> {
    let field = "spec.finalizers";
    let finalizers = object::strings(value, "/spec/finalizers");
    finalizers
        .iter()
        .flat_map(|finalizer| named(field, finalizer).chain(check_finalizer(field, finalizer)))
        .collect()
}

/// The phase of a namespace says whether it is being deleted, and nothing else.
pub(super) fn namespace_phase(_: &Value, namespace: &Value) -> Vec<Cause> {
    let (phase, why) = if object::is_terminating(namespace) {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    let stated = object::text(namespace, "/status/phase");
    if stated == phase { Vec::new() } else { vec![Cause::invalid("status.Phase", &json!(stated), why)] }
}

/// Checks an update of a status.
pub(crate) fn update_status(resource: &Resource, current: &Value, new: &Value) -> Vec<Cause> {
    resource.built_in.map_or_else(Vec::new, |kind| (kind.check_status)(current, new))
}

pub(super) fn budget_status_update(_: &Value, new: &Value) -> Vec<Cause> {
    ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"]
        .iter()
        .filter_map(|key| {
            let field = new.pointer(&format!("/status/{key}"))?;
            (field.as_i64()? < 0).then(|| negative(format!("status.{key}"), field))
        })
        .collect()
}

/// Fields that must be there, by their dotted paths.
pub(super) fn required(value: &Value, fields: &[&str]) -> Vec<Cause> {
    let is_missing = |field: &str| match object::at(value, &format!("/{}", field.replace('.', "/"))) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    let missing = fields.iter().copied().filter(|field| is_missing(field));
    missing.map(|field| Cause::required(field, "")).collect()
}

pub(super) fn pod(value: &Value) -> Vec<Cause> {
    pod_spec(value.get("spec").unwrap_or(&Value::Null), "spec")
}

/// How the real server says that a field may not change.
pub(super) enum Style<'s> {
    /// With the new value.
    Immutable,
    /// Without it.
    Unshown,
    /// As something forbidden. `{}` is the field.
    Forbidden(&'s str),
}

pub(crate) fn immutable(current: &Value, new: &Value, fields: &[&str]) -> Vec<Cause> {
    immutable_with(current, new, fields, &Style::Immutable)
}

pub(super) fn immutable_with(current: &Value, new: &Value, fields: &[&str], style: &Style<'_>) -> Vec<Cause> {
    let pointer = |field: &str| format!("/{}", field.replace('.', "/"));
    fields
        .iter()
        .filter(|field| current.pointer(&pointer(field)) != new.pointer(&pointer(field)))
        .map(|&field| match style {
            Style::Immutable => {
                let shown = new.pointer(&pointer(field)).unwrap_or(&Value::Null);
                Cause::invalid(field, shown, IMMUTABLE)
            }
            Style::Unshown => Cause::invalid(field, &Value::Null, IMMUTABLE),
            Style::Forbidden(why) => Cause::forbidden(field, &why.replace("{}", field)),
        })
        .collect()
}

/// The same for fields whose new value the real server does not show.
pub(super) fn immutable_unshown(current: &Value, new: &Value, fields: &[&str]) -> Vec<Cause> {
    immutable_with(current, new, fields, &Style::Unshown)
}

pub(crate) fn negative(field: String, value: &Value) -> Cause {
    Cause::invalid(field, value, "must be greater than or equal to 0")
}

pub(super) fn frozen(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if current.get("immutable") == Some(&json!(true)) {
        if new.get("immutable") != Some(&json!(true)) {
            causes.push(Cause::forbidden("immutable", "field is immutable when `immutable` is set"));
        }
        for key in ["data", "binaryData"] {
            if current.get(key) != new.get(key) {
                causes.push(Cause::forbidden(key, "field is immutable when `immutable` is set"));
            }
        }
    }
    causes
}

pub(super) fn secret_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = frozen(current, new);
    causes.extend(immutable(current, new, &["type"]));
    causes
}

pub(super) fn data_keys(value: &Value, maps: &[&str]) -> Vec<Cause> {
    let mut causes = Vec::new();
    for map in maps {
        for key in value.get(*map).and_then(Value::as_object).into_iter().flat_map(serde_json::Map::keys) {
            let fits = !key.is_empty()
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            if !fits {
                causes.push(Cause::invalid(
                    format!("{map}[{key}]"),
                    &json!(key),
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                ));
            }
        }
    }
    causes
}

pub(super) fn config_map(value: &Value) -> Vec<Cause> {
    let mut causes = data_keys(value, &["data"]);
    let keys = |map: &str| value.get(map).and_then(Value::as_object);
    for key in keys("data").into_iter().flat_map(serde_json::Map::keys) {
        if keys("binaryData").is_some_and(|binary| binary.contains_key(key)) {
            let why = "duplicate of key present in binaryData";
            causes.push(Cause::invalid(format!("data[{key}]"), &json!(key), why));
        }
    }
    causes.extend(data_keys(value, &["binaryData"]));
    causes
}

pub(crate) fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_subdomain(name)
}

const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Checks the spec of a pod or of a template.
pub(crate) fn pod_spec(spec: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let volumes: Vec<&str> =
        object::list(spec, "/volumes").iter().map(|volume| object::text(volume, "/name")).collect();
    for (index, name) in volumes.iter().enumerate() {
        let at = format!("{field}.volumes[{index}].name");
        if name.is_empty() {
            causes.push(Cause::required(at, ""));
        } else if !is_dns_label(name) {
            causes.push(Cause::invalid(at, &json!(name), DNS_LABEL));
        } else if volumes[..index].contains(name) {
            causes.push(Cause::duplicate(at, &json!(name)));
        }
    }
    let containers = object::list(spec, "/containers");
    if containers.is_empty() {
        causes.push(Cause::required(format!("{field}.containers"), ""));
    }
    let mut names: Vec<&str> = Vec::new();
    for list in ["containers", "initContainers"] {
        for (index, container) in object::list(spec, &format!("/{list}")).iter().enumerate() {
            let at = format!("{field}.{list}[{index}]");
            causes.extend(self::container(container, &at, &volumes));
            let name = object::text(container, "/name");
            if !name.is_empty() && names.contains(&name) {
                causes.push(Cause::duplicate(format!("{at}.name"), &json!(name)));
            }
            names.push(name);
        }
    }
    let policy = object::text(spec, "/restartPolicy");
    if !["Always", "OnFailure", "Never"].contains(&policy) {
        causes.push(Cause::unsupported(
            format!("{field}.restartPolicy"),
            policy,
            &["Always", "OnFailure", "Never"],
        ));
    }
    let node = object::text(spec, "/nodeName");
    if !node.is_empty() && !is_subdomain(node) {
        causes.push(Cause::invalid(format!("{field}.nodeName"), &json!(node), DNS_SUBDOMAIN));
    }
    causes.extend(deadline(spec, field));
    causes.extend(tolerations(spec, field));
    causes
}

fn deadline(spec: &Value, field: &str) -> Option<Cause> {
    let seconds = spec.get("activeDeadlineSeconds").filter(|seconds| !seconds.is_null())?;
    let fits = seconds.as_i64().is_some_and(|seconds| (1..=i64::from(i32::MAX)).contains(&seconds));
    (!fits).then(|| {
        let why = "must be between 1 and 2147483647, inclusive";
        Cause::invalid(format!("{field}.activeDeadlineSeconds"), seconds, why)
    })
}

/// The deadline of a pod may only come closer.
fn deadline_update(old: &Value, new: &Value) -> Option<Cause> {
    const FIELD: &str = "spec.activeDeadlineSeconds";
    let seconds = |spec: &Value| spec.get("activeDeadlineSeconds").and_then(Value::as_i64);
    if let Some(cause) = deadline(new, "spec") {
        return Some(cause);
    }
    match (seconds(old), seconds(new)) {
        (Some(_), None) => {
            let why = "must not update from a positive integer to nil value";
            Some(Cause::invalid(FIELD, &Value::Null, why))
        }
        (Some(old), Some(new)) if new > old => {
            Some(Cause::invalid(FIELD, &json!(new), "must be less than or equal to previous value"))
        }
        _ => None,
    }
}

fn container(container: &Value, field: &str, volumes: &[&str]) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = object::text(container, "/name");
    if name.is_empty() {
        causes.push(Cause::required(format!("{field}.name"), ""));
    } else if !is_dns_label(name) {
        causes.push(Cause::invalid(format!("{field}.name"), &json!(name), DNS_LABEL));
    }
    if object::text(container, "/image").is_empty() {
        causes.push(Cause::required(format!("{field}.image"), ""));
    }
    for (index, mount) in object::list(container, "/volumeMounts").iter().enumerate() {
        let name = object::text(mount, "/name");
        let at = format!("{field}.volumeMounts[{index}].name");
        if name.is_empty() {
            causes.push(Cause::required(at, ""));
        } else if !volumes.contains(&name) {
            causes.push(Cause::not_found(at, name));
        }
    }
    for (name, request) in
        container.pointer("/resources/requests").and_then(Value::as_object).into_iter().flatten()
    {
        let amount = |value: &Value| value.as_str().and_then(crate::quantity::amount);
        let limit = container.pointer("/resources/limits").and_then(|limits| limits.get(name));
        if let (Some(asked), Some(limit)) = (amount(request), limit)
            && amount(limit).is_some_and(|limit| asked > limit)
        {
            let why =
                format!("must be less than or equal to {name} limit of {}", limit.as_str().unwrap_or(""));
            causes.push(Cause::invalid(format!("{field}.resources.requests"), request, &why));
        }
    }
    causes
}

fn tolerations(spec: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, toleration) in object::list(spec, "/tolerations").iter().enumerate() {
        let at = format!("{field}.tolerations[{index}]");
        let text = |name: &str| object::text(toleration, &format!("/{name}"));
        let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
        if !key.is_empty() {
            causes.extend(named(format!("{at}.key"), key));
        }
        if key.is_empty() && operator != "Exists" {
            causes.push(Cause::invalid(
                format!("{at}.operator"),
                &json!(operator),
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        let seconds = toleration.get("tolerationSeconds").filter(|seconds| !seconds.is_null());
        if seconds.is_some() && effect != "NoExecute" {
            causes.push(Cause::invalid(
                format!("{at}.effect"),
                &json!(effect),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "" | "Equal" => {
                if let Some(why) = label_value_problem(value) {
                    causes.push(Cause::invalid(format!("{at}.operator"), &json!(value), why));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    causes.push(Cause::invalid(
                        format!("{at}.operator"),
                        &json!(value),
                        "value must be empty when `operator` is 'Exists'",
                    ));
                }
            }
            "Lt" | "Gt" => {}
            other => causes.push(Cause::unsupported(format!("{at}.operator"), other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() && !TAINT_EFFECTS.contains(&effect) {
            causes.push(Cause::unsupported(
                format!("{at}.effect"),
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ));
        }
    }
    causes
}

pub(super) fn taints(node: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let taints = object::list(node, "/spec/taints");
    for (index, taint) in taints.iter().enumerate() {
        let at = format!("metadata.taints[{index}]");
        let text = |name: &str| object::text(taint, &format!("/{name}"));
        let (key, value, effect) = (text("key"), text("value"), text("effect"));
        causes.extend(named(format!("{at}.key"), key));
        if let Some(why) = label_value_problem(value) {
            causes.push(Cause::invalid(format!("{at}.value"), &json!(value), why));
        }
        if effect.is_empty() {
            causes.push(Cause::required(format!("{at}.effect"), ""));
        } else if !TAINT_EFFECTS.contains(&effect) {
            causes.push(Cause::unsupported(
                format!("{at}.effect"),
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ));
        }
        let same =
            |other: &Value| object::text(other, "/key") == key && object::text(other, "/effect") == effect;
        if taints[..index].iter().any(same) {
            let added = taint.get("timeAdded").unwrap_or(&Value::Null);
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{added}}}",
                json!(key),
                json!(value),
                json!(effect)
            );
            let mut cause = Cause::duplicate_text(at.clone(), &shown);
            cause.message.push_str(": taints must be unique by key and effect pair");
            causes.push(cause);
        }
    }
    causes
}

pub(super) fn node_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let provider = object::text(current, "/spec/providerID");
    if !provider.is_empty() && provider != object::text(new, "/spec/providerID") {
        causes.push(Cause::forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
    causes
}

pub(super) fn pod_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let null = Value::Null;
    let (old_spec, new_spec) = (current.get("spec").unwrap_or(&null), new.get("spec").unwrap_or(&null));
    let lengths = |spec: &Value, list: &str| object::list(spec, list).len();
    for (list, why) in [
        ("containers", "pod updates may not add or remove containers"),
        ("initContainers", "pod updates may not add or remove containers"),
    ] {
        let pointer = format!("/{list}");
        if lengths(old_spec, &pointer) != lengths(new_spec, &pointer) {
            causes.push(Cause::forbidden(format!("spec.{list}"), why));
        }
    }
    if !causes.is_empty() {
        return causes;
    }
    let mut expected = old_spec.clone();
    for list in ["containers", "initContainers"] {
        let pointer = format!("/{list}");
        let images: Vec<Value> = object::list(new_spec, &pointer)
            .iter()
            .map(|container| container.get("image").cloned().unwrap_or(Value::Null))
            .collect();
        if let Some(containers) = expected.pointer_mut(&pointer).and_then(Value::as_array_mut) {
            for (container, image) in containers.iter_mut().zip(images) {
                container["image"] = image;
            }
        }
    }
    let old_tolerations = object::list(old_spec, "/tolerations");
    let new_tolerations = object::list(new_spec, "/tolerations");
    // The seconds of a toleration may change; everything else about it may not.
    let same = |one: &Value, other: &Value| {
        ["key", "operator", "value", "effect"].iter().all(|key| one.get(*key) == other.get(*key))
    };
    if old_tolerations.iter().any(|old| !new_tolerations.iter().any(|new| same(old, new))) {
        causes.push(Cause::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    for key in ["tolerations", "activeDeadlineSeconds"] {
        match new_spec.get(key) {
            Some(field) => expected[key] = field.clone(),
            None => {
                if let Some(members) = expected.as_object_mut() {
                    members.remove(key);
                }
            }
        }
    }
    if !object::list(old_spec, "/schedulingGates").is_empty() {
        for key in ["schedulingGates", "nodeSelector", "affinity"] {
            object::carry(new_spec, &mut expected, key);
        }
    }
    for (index, container) in object::list(new_spec, "/containers").iter().enumerate() {
        if object::text(container, "/image").is_empty() {
            causes.push(Cause::required(format!("spec.containers[{index}].image"), ""));
        }
    }
    causes.extend(tolerations(new_spec, "spec"));
    causes.extend(deadline_update(old_spec, new_spec));
    if expected != *new_spec {
        causes.push(Cause::forbidden("spec", POD_UPDATE));
    }
    causes
}

pub(crate) fn selector(value: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, label) in value.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        causes.extend(named(format!("{field}.matchLabels"), key));
        if let Some(why) = label_value_problem(label.as_str().unwrap_or("")) {
            causes.push(Cause::invalid(format!("{field}.matchLabels"), label, why));
        }
    }
    for (index, expression) in object::list(value, "/matchExpressions").iter().enumerate() {
        let at = format!("{field}.matchExpressions[{index}]");
        let is_empty = object::list(expression, "/values").is_empty();
        match object::text(expression, "/operator") {
            "In" | "NotIn" if is_empty => causes.push(Cause::required(
                format!("{at}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !is_empty => causes.push(Cause::forbidden(
                format!("{at}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => causes.push(Cause::invalid(
                format!("{at}.operator"),
                &json!(other),
                "not a valid selector operator",
            )),
        }
    }
    causes
}

pub(crate) fn mismatch(template: &Value) -> Cause {
    let labels = template.pointer("/metadata/labels").unwrap_or(&Value::Null);
    Cause::invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
}

/// The selector of a daemon set is not asked for, although nothing matches without it.
/// Its claims become volumes of its pods, so that its template may mount what it does not declare.
pub(super) fn stateful_set(value: &Value) -> Vec<Cause> {
    let mut causes = workload(value, true);
    causes.retain(|cause| !cause.field.contains(".volumeMounts["));
    causes
}

pub(super) fn workload(value: &Value, asks_for_selector: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let template = value.pointer("/spec/template").unwrap_or(&Value::Null);
    if let Some(replicas) = value.pointer("/spec/replicas")
        && replicas.as_i64().is_some_and(|replicas| replicas < 0)
    {
        causes.push(negative("spec.replicas".to_owned(), replicas));
    }
    match value.pointer("/spec/selector") {
        None => {
            if asks_for_selector {
                causes.push(Cause::required("spec.selector", ""));
            }
            causes.push(mismatch(template));
        }
        Some(wanted) => {
            causes.extend(selector(wanted, "spec.selector"));
            let labels = Labels::of_object(wanted);
            if labels.is_empty() {
                causes.push(Cause::invalid(
                    "spec.selector",
                    wanted,
                    "empty selector is invalid for deployment",
                ));
            } else if !labels.matches(template) {
                causes.push(mismatch(template));
            }
        }
    }
    causes.extend(check_maps(value, "/spec/template/metadata", "spec.template"));
    let claims = object::list(value, "/spec/volumeClaimTemplates");
    let claims: Vec<&str> = claims.iter().map(|claim| object::text(claim, "/metadata/name")).collect();
    let spec = pod_spec(template.get("spec").unwrap_or(&Value::Null), "spec.template.spec");
    // A stateful set makes a volume of each claim template, of the same name.
    let is_claim = |cause: &Cause| {
        cause.field.contains(".volumeMounts[")
            && claims.iter().any(|name| cause.message.contains(&format!("\"{name}\"")))
    };
    causes.extend(spec.into_iter().filter(|cause| !is_claim(cause)));
    let policy = object::text(template, "/spec/restartPolicy");
    if ["OnFailure", "Never"].contains(&policy) {
        causes.push(Cause::unsupported("spec.template.spec.restartPolicy", policy, &["Always"]));
    }
    causes
}

pub(super) fn deployment(value: &Value) -> Vec<Cause> {
    let mut causes = workload(value, true);
    let field = "spec.strategy";
    let rolling = value.pointer("/spec/strategy/rollingUpdate").filter(|update| !update.is_null());
    match object::text(value, "/spec/strategy/type") {
        "Recreate" => {
            if rolling.is_some() {
                let why = "may not be specified when strategy `type` is 'Recreate'";
                causes.push(Cause::forbidden(format!("{field}.rollingUpdate"), why));
            }
        }
        "RollingUpdate" => {
            causes.extend(rolling_update(rolling.unwrap_or(&Value::Null), &format!("{field}.rollingUpdate")));
        }
        other => {
            let mut cause = Cause::unsupported(field, "", &["Recreate", "RollingUpdate"]);
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":null}}", json!(other));
            cause.message = cause.message.replacen("\"\"", &shown, 1);
            causes.push(cause);
        }
    }
    let number = |key: &str| value.pointer(&format!("/spec/{key}")).and_then(Value::as_i64);
    for key in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        if let Some(number) = number(key).filter(|number| *number < 0) {
            causes.push(negative(format!("spec.{key}"), &json!(number)));
        }
    }
    if let Some(deadline) = number("progressDeadlineSeconds")
        && deadline <= number("minReadySeconds").unwrap_or(0)
    {
        let why = "must be greater than minReadySeconds";
        causes.push(Cause::invalid("spec.progressDeadlineSeconds", &json!(deadline), why));
    }
    causes
}

fn rolling_update(update: &Value, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let amount = |key: &str| update.get(key).unwrap_or(&Value::Null);
    for key in ["maxUnavailable", "maxSurge"] {
        let at = format!("{field}.{key}");
        match amount(key) {
            Value::String(text) if percent(text).is_none() => {
                causes.push(Cause::invalid(at, &json!(text), PERCENT));
            }
            number if number.as_i64().is_some_and(|number| number < 0) => causes.push(negative(at, number)),
            _ => {}
        }
    }
    let is_zero = |value: &Value| match value {
        Value::String(text) => percent(text) == Some(0),
        number => number.as_i64() == Some(0),
    };
    let at = format!("{field}.maxUnavailable");
    if is_zero(amount("maxUnavailable")) && is_zero(amount("maxSurge")) {
        causes.push(Cause::invalid(
            at.clone(),
            amount("maxUnavailable"),
            "may not be 0 when `maxSurge` is 0",
        ));
    }
    if let Value::String(text) = amount("maxUnavailable")
        && percent(text).is_some_and(|percent| percent > 100)
    {
        causes.push(Cause::invalid(at, &json!(text), "must not be greater than 100%"));
    }
    causes
}

const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

/// The number of a text such as `25%`.
fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

pub(super) fn stateful_set_update(current: &Value, new: &Value) -> Vec<Cause> {
    let mut causes =
        immutable(current, new, &["spec.serviceName", "spec.selector", "spec.podManagementPolicy"]);
    let claims = |value: &Value| json!(object::list(value, "/spec/volumeClaimTemplates"));
    if claims(current) != claims(new) {
        causes.push(Cause::invalid("spec.volumeClaimTemplates", &claims(new), "field is immutable"));
    }
    causes
}

pub(super) fn budget(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (min, max) = (value.pointer("/spec/minAvailable"), value.pointer("/spec/maxUnavailable"));
    if min.is_some() && max.is_some() {
        let shown = go::budget_spec(value.get("spec").unwrap_or(&Value::Null));
        let why = "minAvailable and maxUnavailable cannot be both set";
        causes.push(Cause::invalid_text("spec", &shown, why));
    }
    for (key, field) in [("minAvailable", min), ("maxUnavailable", max)] {
        match field {
            Some(number @ Value::Number(_)) if number.as_i64().is_some_and(|number| number < 0) => {
                causes.push(negative(format!("spec.{key}"), number));
            }
            Some(Value::String(text)) => match percent(text) {
                Some(0..=100) => {}
                Some(_) => causes.push(Cause::invalid(
                    format!("spec.{key}"),
                    &json!(text),
                    "must not be greater than 100%",
                )),
                None => causes.push(Cause::invalid(format!("spec.{key}"), &json!(text), PERCENT)),
            },
            _ => {}
        }
    }
    if let Some(wanted) = value.pointer("/spec/selector") {
        causes.extend(selector(wanted, "spec.selector"));
    }
    causes
}

pub(super) fn lease(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(duration) = value.pointer("/spec/leaseDurationSeconds")
        && duration.as_i64().is_some_and(|seconds| seconds <= 0)
    {
        causes.push(Cause::invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"));
    }
    if let Some(transitions) = value.pointer("/spec/leaseTransitions")
        && transitions.as_i64().is_some_and(|transitions| transitions < 0)
    {
        causes.push(Cause::invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        ));
    }
    causes
}

pub(super) fn event(value: &Value) -> Vec<Cause> {
    let about = object::text(value, "/involvedObject/namespace");
    let namespace = object::namespace(value);
    let fits =
        about == namespace || (about.is_empty() && ["", "default", "kube-system"].contains(&namespace));
    if fits {
        Vec::new()
    } else {
        vec![Cause::invalid("involvedObject.namespace", &json!(about), "does not match event.namespace")]
    }
}

/// Events of the newer group say more: when, who, and what was done. They are kept under the older names.
pub(super) fn new_event(value: &Value) -> Vec<Cause> {
    let mut causes = event(value);
    let text = |key: &str| object::text(value, &format!("/{key}"));
    if text("eventTime").is_empty() {
        causes.push(Cause::required("eventTime", ""));
    }
    let controller = text("reportingComponent");
    if controller.is_empty() {
        causes.push(Cause::required("reportingController", ""));
    }
    causes.extend(named("reportingController", controller));
    for key in ["reportingInstance", "action", "reason"] {
        if text(key).is_empty() {
            causes.push(Cause::required(key, ""));
        }
    }
    if !["Normal", "Warning"].contains(&text("type")) {
        causes.push(Cause::invalid("type", &json!(""), &format!("has invalid value: {}", text("type"))));
    }
    causes
}

pub(super) fn claim(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if object::list(value, "/spec/accessModes").is_empty() {
        causes.push(Cause::required("spec.accessModes", "at least 1 access mode is required"));
    }
    if value.pointer("/spec/resources/requests/storage").is_none() {
        causes.push(Cause::required("spec.resources[storage]", ""));
    }
    causes
}

pub(super) fn volume(value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if object::list(value, "/spec/accessModes").is_empty() {
        causes.push(Cause::required("spec.accessModes", ""));
    }
    if value.pointer("/spec/capacity").is_none() {
        causes.push(Cause::required("spec.capacity", ""));
    }
    causes
}

pub(super) fn service(value: &Value) -> Vec<Cause> {
    let headless = object::text(value, "/spec/clusterIP") == "None";
    let external = object::text(value, "/spec/type") == "ExternalName";
    if object::list(value, "/spec/ports").is_empty() && !headless && !external {
        return vec![Cause::required("spec.ports", "")];
    }
    Vec::new()
}

pub(super) fn priority_class(value: &Value) -> Vec<Cause> {
    let name = object::name(value);
    let number = value.get("value").and_then(Value::as_i64).unwrap_or(0);
    if name.starts_with("system-") && !["system-node-critical", "system-cluster-critical"].contains(&name) {
        return vec![Cause::forbidden(
            "metadata.name",
            "priority class names with 'system-' prefix are reserved for system use only. error: ",
        )];
    }
    if number > 1_000_000_000 && !name.starts_with("system-") {
        return vec![Cause::forbidden(
            "value",
            "maximum allowed value of a user defined priority is 1000000000",
        )];
    }
    Vec::new()
}
