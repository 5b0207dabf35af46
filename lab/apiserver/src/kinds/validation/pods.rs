//! Validation of pods, their templates, and the taints of nodes.

use serde_json::{Value, json};

use super::{is_dns_label, named};
use crate::kinds::metadata::{is_subdomain, label_value_problem};
use crate::object;
use crate::protocol::status::Cause;

const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const TAINT_EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];

const POD_UPDATE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

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

/// The deadline of a pod may only be shortened.
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

pub(in crate::kinds) fn taints(node: &Value) -> Vec<Cause> {
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

pub(in crate::kinds) fn node_update(current: &Value, new: &Value) -> Vec<Cause> {
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

pub(in crate::kinds) fn pod_update(current: &Value, new: &Value) -> Vec<Cause> {
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
