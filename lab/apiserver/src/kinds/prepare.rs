//! Changes that the server makes to an object when it is created or updated, and fields that it does not accept.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::table::{Resource, Subresource};
use crate::environment::Environment;
use crate::object::{self, carry, object_at};
use crate::protocol::user;
use crate::quantity;

/// Prepares a new object: drops what only the system may set, and adds what admission adds.
pub(crate) fn create(resource: &Resource, value: &mut Value, environment: &Environment<'_>) {
    let Some(kind) = resource.built_in else { return };
    if resource.has(Subresource::Status)
        && let Some(status) = kind.new_status()
    {
        value["status"] = status;
    }
    (kind.on_create)(value, environment);
}

pub(super) fn pod(value: &mut Value, environment: &Environment<'_>) {
    let class = qos_class(value);
    value["status"] = json!({ "phase": "Pending", "qosClass": class });
    if let Some(gates) = object::at(value, "/spec/schedulingGates").and_then(Value::as_array)
        && !gates.is_empty()
    {
        value["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": object::time(environment.now),
        }]);
    }
    tolerate_node_failure(value);
}

pub(super) fn namespace(value: &mut Value, _: &Environment<'_>) {
    let spec = object_at(value, "spec");
    let mut finalizers: Vec<Value> =
        spec.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    if !finalizers.contains(&json!("kubernetes")) {
        finalizers.push(json!("kubernetes"));
    }
    spec.insert("finalizers".to_owned(), Value::Array(finalizers));
}

pub(super) fn volume(value: &mut Value, environment: &Environment<'_>) {
    value["status"] = json!({ "phase": "Pending", "lastPhaseTransitionTime": object::time(environment.now) });
    add_finalizer(value, "kubernetes.io/pv-protection");
}

pub(super) fn daemon_set(value: &mut Value, _: &Environment<'_>) {
    let metadata = object::metadata(value);
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    annotations["deprecated.daemonset.template.generation"] = json!("1");
}

pub(super) fn definition(value: &mut Value, _: &Environment<'_>) {
    let stored: Vec<&Value> = stored_version(value).into_iter().collect();
    let stored = json!(stored);
    value["status"] = json!({
        "acceptedNames": { "kind": "", "plural": "" }, "conditions": null, "storedVersions": stored,
    });
}

/// The user comes from the request, and cannot be set by the client.
pub(super) fn certificate_request(value: &mut Value, _: &Environment<'_>) {
    let spec = object_at(value, "spec");
    spec.remove("uid");
    spec.remove("extra");
    spec.insert("username".to_owned(), json!(user::USER));
    spec.insert("groups".to_owned(), json!(user::GROUPS));
}

/// A taint on devices gets its creation time.
pub(super) fn device_taint(value: &mut Value, now: Timestamp) {
    if let Some(taint) = value.pointer_mut("/spec/taint").and_then(Value::as_object_mut) {
        taint.entry("timeAdded").or_insert_with(|| json!(object::time(now)));
    }
}

/// A taint gets a new time when its effect changes.
pub(super) fn device_taint_update(current: &Value, new: &mut Value, now: Timestamp) {
    device_taint(new, now);
    let same = |pointer: &str| object::at(current, pointer) == object::at(new, pointer);
    if !same("/spec/taint/effect") && same("/spec/taint/timeAdded") {
        new["spec"]["taint"]["timeAdded"] = json!(object::time(now));
    }
}

/// The taints that a driver puts on its devices get their creation time.
pub(super) fn slice_taints(value: &mut Value, now: Timestamp) {
    let devices = value.pointer_mut("/spec/devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        let taints = device.get_mut("taints").and_then(Value::as_array_mut);
        for taint in taints.into_iter().flatten().filter_map(Value::as_object_mut) {
            taint.entry("timeAdded").or_insert_with(|| json!(object::time(now)));
        }
    }
}

/// Prepares an update of the object itself: the status stays as it is.
pub(crate) fn update(resource: &Resource, current: &Value, new: &mut Value, now: Timestamp) {
    if resource.has(Subresource::Status) {
        carry(current, new, "status");
    }
    if let Some(kind) = resource.built_in {
        (kind.on_update)(current, new, now);
    }
}

pub(super) fn namespace_update(current: &Value, new: &mut Value, _: Timestamp) {
    let kept = object::at(current, "/spec/finalizers").cloned();
    let spec = object_at(new, "spec");
    match kept {
        Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
        None => spec.remove("finalizers"),
    };
}

pub(super) fn service_update(current: &Value, new: &mut Value, _: Timestamp) {
    keep_in_spec(current, new, &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
}

pub(super) fn pod_update(current: &Value, new: &mut Value, _: Timestamp) {
    tolerate_node_failure(new);
    keep_in_spec(current, new, &["priority", "preemptionPolicy"]);
}

/// Fields of the spec that an update may leave out.
fn keep_in_spec(current: &Value, new: &mut Value, fields: &[&str]) {
    let spec = object_at(new, "spec");
    for &key in fields {
        if let (false, Some(kept)) = (spec.contains_key(key), current["spec"].get(key)) {
            spec.insert(key.to_owned(), kept.clone());
        }
    }
}

pub(super) fn definition_update(_: &Value, new: &mut Value, _: Timestamp) {
    if let Some(name) = stored_version(new).cloned()
        && let Some(stored) = new.pointer_mut("/status/storedVersions").and_then(Value::as_array_mut)
        && !stored.contains(&name)
    {
        stored.push(name);
    }
}

/// The name of a definition's storage version.
fn stored_version(definition: &Value) -> Option<&Value> {
    let versions = object::list(definition, "/spec/versions").iter();
    versions
        .filter(|version| version.get("storage") == Some(&json!(true)))
        .find_map(|version| version.get("name"))
}

/// Prepares an update of the status: everything else stays as it is, apart from the metadata that kinds allow.
pub(crate) fn update_status(resource: &Resource, current: &Value, new: &mut Value, now: Timestamp) {
    if resource.custom.is_some() {
        let status = new.get("status").cloned();
        let version = object::at(new, "/metadata/resourceVersion").cloned();
        let managed = object::at(new, "/metadata/managedFields").cloned();
        *new = current.clone();
        if let Some(members) = new.as_object_mut() {
            match status {
                Some(status) => members.insert("status".to_owned(), status),
                None => members.remove("status"),
            };
        }
        if let Some(version) = version {
            object::set_metadata(new, "resourceVersion", version);
        }
        if let Some(managed) = managed {
            object::set_metadata(new, "managedFields", managed);
        }
        return;
    }
    for key in current.as_object().into_iter().flat_map(serde_json::Map::keys) {
        if key != "status" && key != "metadata" {
            carry(current, new, key);
        }
    }
    if current.get("spec").is_none()
        && let Some(members) = new.as_object_mut()
    {
        members.remove("spec");
    }
    let Some(kind) = resource.built_in else { return };
    for key in kind.status_keeps {
        let kept = object::at(current, &format!("/metadata/{key}")).cloned();
        object::set_metadata(new, key, kept.unwrap_or(Value::Null));
    }
    (kind.on_status)(current, new, now);
}

pub(super) fn pod_status(current: &Value, new: &mut Value, _: Timestamp) {
    align_addresses(new);
    if let Some(kept) = object::at(current, "/status/qosClass").cloned() {
        object_at(new, "status").entry("qosClass").or_insert(kept);
    }
}

/// A condition without times gets the present time, or keeps its old one.
pub(super) fn certificate_conditions(current: &Value, new: &mut Value, now: Timestamp) {
    let now = json!(object::time(now));
    let conditions = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let same = |known: &&Value| ["type", "status"].iter().all(|key| known.get(key) == condition.get(key));
        let known = object::list(current, "/status/conditions").iter().find(same);
        let began = known.and_then(|known| known.get("lastTransitionTime")).filter(|time| !time.is_null());
        let began = began.unwrap_or(&now).clone();
        for (key, time) in [("lastUpdateTime", now.clone()), ("lastTransitionTime", began)] {
            if condition.get(key).is_none_or(Value::is_null) {
                condition[key] = time;
            }
        }
    }
}

/// A pod's single address is also the first in the list of its addresses.
fn align_addresses(pod: &mut Value) {
    let single = object::text(pod, "/status/podIP").to_owned();
    let leads =
        object::list(pod, "/status/podIPs").first().map(|entry| object::text(entry, "/ip").to_owned());
    match leads {
        Some(first) if single.is_empty() => {
            object_at(pod, "status").insert("podIP".to_owned(), json!(first));
        }
        Some(first) if first == single => {}
        _ if single.is_empty() => {}
        _ => {
            object_at(pod, "status").insert("podIPs".to_owned(), json!([{ "ip": single }]));
        }
    }
}

pub(super) fn add_finalizer(value: &mut Value, finalizer: &str) {
    let mut finalizers = object::finalizers(value);
    if !finalizers.iter().any(|known| known == finalizer) {
        finalizers.push(finalizer.to_owned());
    }
    object::set_finalizers(value, &finalizers);
}

/// Pods stay for five minutes on a node that is not ready or unreachable, unless they set other tolerations.
pub(crate) fn tolerate_node_failure(value: &mut Value) {
    let spec = object_at(value, "spec");
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else {
        return;
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerates = tolerations.iter().any(|toleration| {
            let field = |name: &str| object::text(toleration, &format!("/{name}"));
            (field("key") == key || field("key").is_empty())
                && (field("effect") == "NoExecute" || field("effect").is_empty())
        });
        if !tolerates {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}

pub(super) fn add_not_ready_taint(value: &mut Value) {
    let taint = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    let spec = object_at(value, "spec");
    let taints = spec.entry("taints").or_insert_with(|| json!([]));
    if let Some(taints) = taints.as_array_mut()
        && !taints
            .iter()
            .any(|known| known.get("key") == taint.get("key") && known.get("effect") == taint.get("effect"))
    {
        taints.push(taint);
    }
}

/// Pods of a Job are selected by its UID, unless the client chose a selector.
pub(super) fn generate_selector(value: &mut Value) {
    let name = object::name(value).to_owned();
    let uid = object::uid(value).to_owned();
    if object::at(value, "/spec/manualSelector") != Some(&json!(true)) {
        let labels = [
            ("batch.kubernetes.io/controller-uid", &uid),
            ("batch.kubernetes.io/job-name", &name),
            ("controller-uid", &uid),
            ("job-name", &name),
        ];
        if let Some(template) = value.pointer_mut("/spec/template") {
            let own = object::metadata(template).entry("labels").or_insert_with(|| json!({}));
            for (key, label) in labels {
                // A label that the client chose stays, for validation to refuse.
                if own.get(key).is_none() {
                    own[key] = json!(label);
                }
            }
        }
        let matched = &mut value["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"];
        if matched.is_null() {
            *matched = json!(uid);
        }
    }
}

/// Defaults that are not validated, because the server fills them in when it reads a stored object: a Job without
/// labels has those of its pods.
pub(crate) fn when_read(resource: &Resource, value: &mut Value) {
    if resource.is("batch", "Job")
        && object::at(value, "/metadata/labels").is_none()
        && let Some(labels) = object::at(value, "/spec/template/metadata/labels").cloned()
    {
        object::set_metadata(value, "labels", labels);
    }
}

/// Guaranteed, Burstable or BestEffort, by the resources of all containers.
pub(crate) fn qos_class(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let containers =
        object::list(pod, "/spec/containers").iter().chain(object::list(pod, "/spec/initContainers"));
    for container in containers {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| {
                container
                    .pointer(&format!("/resources/{kind}/{resource}"))
                    .and_then(Value::as_str)
                    .and_then(quantity::amount)
                    .filter(|amount| *amount != 0)
            };
            let (limit, request) = (amount("limits"), amount("requests"));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
