//! What the server decides about an object of a kind when it is created or updated, and what it does not let through.

use serde_json::{Value, json};

use crate::environment::Environment;
use crate::object::{self, carry, object_at};
use crate::quantity;
use crate::table::{Resource, Subresource};

/// Prepares a new object: drops what only the system may set, and adds what admission adds.
pub(crate) fn create(resource: &Resource, value: &mut Value, environment: &Environment<'_>) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
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
        ("", "Node") => add_not_ready_taint(value),
        ("", "Namespace") => {
            value["status"] = json!({ "phase": "Active" });
            let spec = object_at(value, "spec");
            let mut finalizers: Vec<Value> =
                spec.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
            if !finalizers.contains(&json!("kubernetes")) {
                finalizers.push(json!("kubernetes"));
            }
            spec.insert("finalizers".to_owned(), Value::Array(finalizers));
        }
        ("", "PersistentVolume") => {
            value["status"] =
                json!({ "phase": "Pending", "lastPhaseTransitionTime": object::time(environment.now) });
            add_finalizer(value, "kubernetes.io/pv-protection");
        }
        ("", "PersistentVolumeClaim") => {
            value["status"] = json!({ "phase": "Pending" });
            add_finalizer(value, "kubernetes.io/pvc-protection");
        }
        ("", "Service") => {
            value["status"] = json!({ "loadBalancer": {} });
        }
        ("apps", "DaemonSet") => {
            value["status"] = empty_status("DaemonSet");
            let metadata = object::metadata(value);
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            annotations["deprecated.daemonset.template.generation"] = json!("1");
        }
        ("batch", "Job") => {
            value["status"] = json!({});
            generate_selector(value);
        }
        ("storage.k8s.io", "VolumeAttachment") => {
            value["status"] = json!({ "attached": false });
        }
        ("apiextensions.k8s.io", _) => {
            let stored: Vec<&Value> = stored_version(value).into_iter().collect();
            let stored = json!(stored);
            value["status"] = json!({
                "acceptedNames": { "kind": "", "plural": "" }, "conditions": null, "storedVersions": stored,
            });
        }
        (_, kind) if resource.has(Subresource::Status) && resource.custom.is_none() => {
            value["status"] = empty_status(kind);
        }
        _ => {}
    }
}

/// The status as it is printed before anybody has set it.
fn empty_status(kind: &str) -> Value {
    match kind {
        "ReplicaSet" | "ReplicationController" => json!({ "replicas": 0 }),
        "StatefulSet" => json!({ "replicas": 0, "availableReplicas": 0 }),
        "DaemonSet" => json!({
            "currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0,
        }),
        "PodDisruptionBudget" => json!({
            "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
        }),
        _ => json!({}),
    }
}

/// Prepares an update of the object itself: the status stays as it is.
pub(crate) fn update(resource: &Resource, current: &Value, new: &mut Value) {
    if resource.has(Subresource::Status) {
        carry(current, new, "status");
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Namespace") => {
            let kept = object::at(current, "/spec/finalizers").cloned();
            let spec = object_at(new, "spec");
            match kept {
                Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers),
                None => spec.remove("finalizers"),
            };
        }
        ("", "Service") => {
            let spec = object_at(new, "spec");
            for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if let (false, Some(kept)) = (spec.contains_key(key), current["spec"].get(key)) {
                    spec.insert(key.to_owned(), kept.clone());
                }
            }
        }
        ("", "Pod") => {
            tolerate_node_failure(new);
            let spec = object_at(new, "spec");
            for key in ["priority", "preemptionPolicy"] {
                if let (false, Some(kept)) = (spec.contains_key(key), current["spec"].get(key)) {
                    spec.insert(key.to_owned(), kept.clone());
                }
            }
        }
        ("apiextensions.k8s.io", _) => {
            if let Some(name) = stored_version(new).cloned()
                && let Some(stored) = new.pointer_mut("/status/storedVersions").and_then(Value::as_array_mut)
                && !stored.contains(&name)
            {
                stored.push(name);
            }
        }
        _ => {}
    }
}

/// The name of the version in which a definition has its objects stored.
fn stored_version(definition: &Value) -> Option<&Value> {
    let versions = object::list(definition, "/spec/versions").iter();
    versions
        .filter(|version| version.get("storage") == Some(&json!(true)))
        .find_map(|version| version.get("name"))
}

/// Prepares an update of the status: everything else stays as it is, apart from the metadata that kinds let through.
pub(crate) fn update_status(resource: &Resource, current: &Value, new: &mut Value) {
    if resource.is_pod() {
        align_addresses(new);
    }
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
    let (kept_metadata, kept_status): (&[&str], &[&str]) = match resource.kind.as_str() {
        "Pod" => (&["ownerReferences", "deletionTimestamp"], &["qosClass"]),
        "Deployment" => (&["labels"], &[]),
        "VolumeAttachment" | "CustomResourceDefinition" => {
            (&["labels", "annotations", "finalizers", "ownerReferences"], &[])
        }
        _ => (&[], &[]),
    };
    for key in kept_metadata {
        let kept = object::at(current, &format!("/metadata/{key}")).cloned();
        object::set_metadata(new, key, kept.unwrap_or(Value::Null));
    }
    for key in kept_status {
        if let Some(kept) = object::at(current, &format!("/status/{key}"))
            && object::at(new, &format!("/status/{key}")).is_none()
        {
            let kept = kept.clone();
            object_at(new, "status").insert((*key).to_owned(), kept);
        }
    }
}

/// A pod's single address also leads the list of its addresses, and is what the others follow.
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

fn add_finalizer(value: &mut Value, finalizer: &str) {
    let mut finalizers = object::finalizers(value);
    if !finalizers.iter().any(|known| known == finalizer) {
        finalizers.push(finalizer.to_owned());
    }
    object::set_finalizers(value, &finalizers);
}

/// Pods stay for five minutes on a node that is not ready or out of reach, unless they say otherwise.
fn tolerate_node_failure(value: &mut Value) {
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

fn add_not_ready_taint(value: &mut Value) {
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

/// Pods of a job are found by its UID, unless the client chose a selector.
fn generate_selector(value: &mut Value) {
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

/// Defaults that nobody checks, because the server fills them in when it reads what it has stored: a job without
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
