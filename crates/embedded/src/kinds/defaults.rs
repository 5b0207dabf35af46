//! Fields that the server fills in when the client leaves them out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::object::{self, object_at};
use crate::table::Resource;

/// Sets `key` unless it is there.
fn default(members: &mut Map<String, Value>, key: &str, value: Value) {
    let place = members.entry(key).or_insert(Value::Null);
    if place.is_null() {
        *place = value;
    }
}

fn members<'v>(value: &'v mut Value, pointer: &str) -> Option<&'v mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
}

fn each<'v>(value: &'v mut Value, pointer: &str) -> impl Iterator<Item = &'v mut Value> {
    value.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Fills in the defaults of a built-in kind.
pub(crate) fn apply(resource: &Resource, value: &mut Value) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
            if let Some(spec) = value.get_mut("spec") {
                pod_spec(spec);
                pod_only(spec);
            }
            let status = object_at(value, "status");
            default(status, "phase", json!("Pending"));
        }
        ("", "Node") => {
            let status = object_at(value, "status");
            if let Some(capacity) = status.get("capacity").cloned() {
                default(status, "allocatable", capacity);
            }
        }
        ("", "Namespace") => {
            label_namespace(value);
            default(object_at(value, "status"), "phase", json!("Active"));
        }
        ("", "Secret") => secret(value),
        ("", "Service") => service(value),
        ("", "PersistentVolume") => {
            let spec = object_at(value, "spec");
            default(spec, "persistentVolumeReclaimPolicy", json!("Retain"));
            default(spec, "volumeMode", json!("Filesystem"));
            if let Some(path) = members(value, "/spec/hostPath") {
                default(path, "type", json!(""));
            }
            default(object_at(value, "status"), "phase", json!("Pending"));
        }
        ("", "PersistentVolumeClaim") => claim(value),
        ("", "ReplicationController") => {
            default(object_at(value, "spec"), "replicas", json!(1));
            let labels = object::at(value, "/spec/template/metadata/labels").cloned();
            if let Some(labels) =
                labels.filter(|labels| labels.as_object().is_some_and(|labels| !labels.is_empty()))
            {
                default(object_at(value, "spec"), "selector", labels.clone());
                default(object::metadata(value), "labels", labels);
            }
            template(value);
        }
        ("", "PodTemplate") => {
            if let Some(spec) = value.pointer_mut("/template/spec") {
                pod_spec(spec);
            }
        }
        ("apps", "Deployment") => {
            let spec = object_at(value, "spec");
            default(spec, "replicas", json!(1));
            default(spec, "revisionHistoryLimit", json!(10));
            default(spec, "progressDeadlineSeconds", json!(600));
            rolling(value, "strategy", &json!({"maxUnavailable": "25%", "maxSurge": "25%"}));
            template(value);
        }
        ("apps", "ReplicaSet") => {
            default(object_at(value, "spec"), "replicas", json!(1));
            template(value);
        }
        ("apps", "DaemonSet") => {
            default(object_at(value, "spec"), "revisionHistoryLimit", json!(10));
            rolling(value, "updateStrategy", &json!({"maxUnavailable": 1, "maxSurge": 0}));
            template(value);
        }
        ("apps", "StatefulSet") => stateful_set(value),
        ("batch", "Job") => {
            if let Some(spec) = value.get_mut("spec") {
                job_spec(spec);
            }
            let spec = object_at(value, "spec");
            default(spec, "manualSelector", json!(false));
        }
        ("batch", "CronJob") => {
            let spec = object_at(value, "spec");
            default(spec, "concurrencyPolicy", json!("Allow"));
            default(spec, "suspend", json!(false));
            default(spec, "successfulJobsHistoryLimit", json!(3));
            default(spec, "failedJobsHistoryLimit", json!(1));
            if let Some(spec) = value.pointer_mut("/spec/jobTemplate/spec/template/spec") {
                pod_spec(spec);
            }
        }
        ("storage.k8s.io", "StorageClass") => {
            let class = value.as_object_mut();
            if let Some(class) = class {
                default(class, "reclaimPolicy", json!("Delete"));
                default(class, "volumeBindingMode", json!("Immediate"));
            }
        }
        ("storage.k8s.io", "CSIDriver") => {
            let spec = object_at(value, "spec");
            for (key, field) in [
                ("attachRequired", json!(true)),
                ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
                ("podInfoOnMount", json!(false)),
                ("preventPodSchedulingIfMissing", json!(false)),
                ("requiresRepublish", json!(false)),
                ("seLinuxMount", json!(false)),
                ("storageCapacity", json!(false)),
                ("volumeLifecycleModes", json!(["Persistent"])),
            ] {
                default(spec, key, field);
            }
        }
        ("scheduling.k8s.io", "PriorityClass") => {
            if let Some(class) = value.as_object_mut() {
                default(class, "preemptionPolicy", json!("PreemptLowerPriority"));
            }
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            for subject in each(value, "/subjects") {
                let group = match object::text(subject, "/kind") {
                    "User" | "Group" => "rbac.authorization.k8s.io",
                    _ => continue,
                };
                if let Some(subject) = subject.as_object_mut() {
                    default(subject, "apiGroup", json!(group));
                }
            }
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(value),
        _ => {}
    }
}

fn rolling(value: &mut Value, field: &str, limits: &Value) {
    let Some(spec) = value.get_mut("spec") else {
        return;
    };
    let strategy = object_at(spec, field);
    default(strategy, "type", json!("RollingUpdate"));
    if strategy.get("type") == Some(&json!("RollingUpdate")) {
        let update = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
        for (key, limit) in limits.as_object().into_iter().flatten() {
            if let Some(update) = update.as_object_mut() {
                default(update, key, limit.clone());
            }
        }
    }
}

fn template(value: &mut Value) {
    if let Some(spec) = value.pointer_mut("/spec/template/spec") {
        pod_spec(spec);
    }
}

fn stateful_set(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "replicas", json!(1));
    default(spec, "revisionHistoryLimit", json!(10));
    default(spec, "serviceName", json!(""));
    default(spec, "podManagementPolicy", json!("OrderedReady"));
    let retention = spec.entry("persistentVolumeClaimRetentionPolicy").or_insert_with(|| json!({}));
    if let Some(retention) = retention.as_object_mut() {
        default(retention, "whenDeleted", json!("Retain"));
        default(retention, "whenScaled", json!("Retain"));
    }
    rolling(value, "updateStrategy", &json!({"maxUnavailable": 1, "partition": 0}));
    template(value);
    for wanted in each(value, "/spec/volumeClaimTemplates") {
        claim(wanted);
        if let Some(wanted) = wanted.as_object_mut() {
            default(wanted, "apiVersion", json!("v1"));
            default(wanted, "kind", json!("PersistentVolumeClaim"));
        }
    }
}

fn claim(value: &mut Value) {
    default(object_at(value, "spec"), "volumeMode", json!("Filesystem"));
    default(object_at(value, "status"), "phase", json!("Pending"));
}

fn job_spec(spec: &mut Value) {
    let Some(members) = spec.as_object_mut() else {
        return;
    };
    let is_set =
        |members: &Map<String, Value>, key: &str| members.get(key).is_some_and(|value| !value.is_null());
    if !is_set(members, "completions") && !is_set(members, "parallelism") {
        default(members, "completions", json!(1));
    }
    default(members, "parallelism", json!(1));
    let limit = if is_set(members, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    default(members, "backoffLimit", json!(limit));
    default(members, "completionMode", json!("NonIndexed"));
    default(members, "suspend", json!(false));
    let policy = if is_set(members, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default(members, "podReplacementPolicy", json!(policy));
    for rule in each(spec, "/podFailurePolicy/rules") {
        for condition in each(rule, "/onPodConditions") {
            if let Some(condition) = condition.as_object_mut() {
                // The schema has made an empty text of what was left out.
                if condition.get("status") == Some(&json!("")) {
                    condition.remove("status");
                }
                default(condition, "status", json!("True"));
            }
        }
    }
    if let Some(spec) = spec.pointer_mut("/template/spec") {
        pod_spec(spec);
    }
}

fn secret(value: &mut Value) {
    let plain = value.as_object_mut().and_then(|members| members.remove("stringData"));
    if let Some(Value::Object(plain)) = plain {
        let data = object_at(value, "data");
        for (key, text) in plain {
            data.insert(key, json!(STANDARD.encode(text.as_str().unwrap_or(""))));
        }
    }
    if let Some(secret) = value.as_object_mut() {
        default(secret, "type", json!("Opaque"));
    }
}

fn service(value: &mut Value) {
    let spec = object_at(value, "spec");
    default(spec, "type", json!("ClusterIP"));
    default(spec, "sessionAffinity", json!("None"));
    if spec.get("type") != Some(&json!("ExternalName")) {
        default(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    for port in each(value, "/spec/ports") {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", json!("TCP"));
            let number = port.get("port").cloned().unwrap_or(Value::Null);
            default(port, "targetPort", number);
        }
    }
}

fn definition(value: &mut Value) {
    let kind = object::text(value, "/spec/names/kind").to_owned();
    if let Some(names) = members(value, "/spec/names") {
        if !kind.is_empty() {
            default(names, "listKind", json!(format!("{kind}List")));
        }
        default(names, "singular", json!(kind.to_lowercase()));
    }
    let Some(spec) = value.get_mut("spec") else {
        return;
    };
    let conversion = object_at(spec, "conversion");
    default(conversion, "strategy", json!("None"));
}

/// Every namespace has its name as a label.
pub(crate) fn label_namespace(value: &mut Value) {
    let name = object::name(value).to_owned();
    if !name.is_empty() {
        let labels = object::metadata(value).entry("labels").or_insert_with(|| json!({}));
        labels["kubernetes.io/metadata.name"] = json!(name);
    }
}

/// The defaults of a pod's spec, in a pod and in a template.
pub(crate) fn pod_spec(spec: &mut Value) {
    let Some(members) = spec.as_object_mut() else {
        return;
    };
    default(members, "dnsPolicy", json!("ClusterFirst"));
    default(members, "restartPolicy", json!("Always"));
    default(members, "schedulerName", json!("default-scheduler"));
    default(members, "securityContext", json!({}));
    default(members, "terminationGracePeriodSeconds", json!(30));
    if members["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        members.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    if let Some(account) = members.get("serviceAccountName").cloned() {
        default(members, "serviceAccount", account);
    }
    let host_network = members.get("hostNetwork") == Some(&json!(true));
    for list in ["/containers", "/initContainers", "/ephemeralContainers"] {
        for container in each(spec, list) {
            self::container(container, host_network);
        }
    }
    for volume in each(spec, "/volumes") {
        self::volume(volume);
    }
}

fn pod_only(spec: &mut Value) {
    if let Some(members) = spec.as_object_mut() {
        default(members, "enableServiceLinks", json!(true));
    }
    for list in ["/containers", "/initContainers"] {
        for container in each(spec, list) {
            let Some(limits) = container.pointer("/resources/limits").and_then(Value::as_object).cloned()
            else {
                continue;
            };
            let Some(resources) = container.get_mut("resources") else {
                continue;
            };
            let requests = object_at(resources, "requests");
            for (name, limit) in limits {
                default(requests, &name, limit);
            }
        }
    }
}

fn container(container: &mut Value, host_network: bool) {
    let policy = pull_policy(object::text(container, "/image"));
    if let Some(members) = container.as_object_mut() {
        default(members, "imagePullPolicy", json!(policy));
        default(members, "terminationMessagePath", json!("/dev/termination-log"));
        default(members, "terminationMessagePolicy", json!("File"));
    }
    for port in each(container, "/ports") {
        if let Some(port) = port.as_object_mut() {
            default(port, "protocol", json!("TCP"));
            if host_network {
                let number = port.get("containerPort").cloned().unwrap_or(Value::Null);
                default(port, "hostPort", number);
            }
        }
    }
    for variable in each(container, "/env") {
        if let Some(reference) = members(variable, "/valueFrom/fieldRef") {
            default(reference, "apiVersion", json!("v1"));
        }
    }
    for probe in ["/livenessProbe", "/readinessProbe", "/startupProbe"] {
        if let Some(probe) = members(container, probe) {
            default(probe, "timeoutSeconds", json!(1));
            default(probe, "periodSeconds", json!(10));
            default(probe, "successThreshold", json!(1));
            default(probe, "failureThreshold", json!(3));
        }
        http_get(container.pointer_mut(probe));
    }
    http_get(container.pointer_mut("/lifecycle/preStop"));
    http_get(container.pointer_mut("/lifecycle/postStart"));
}

fn http_get(handler: Option<&mut Value>) {
    if let Some(get) = handler.and_then(|handler| members(handler, "/httpGet")) {
        default(get, "path", json!("/"));
        default(get, "scheme", json!("HTTP"));
    }
}

fn pull_policy(image: &str) -> &'static str {
    if image.contains('@') {
        return "IfNotPresent";
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn volume(volume: &mut Value) {
    if let Some(members) = volume.as_object_mut()
        && members.len() <= 1
    {
        members.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["/secret", "/configMap", "/downwardAPI", "/projected"] {
        if let Some(source) = members(volume, source) {
            default(source, "defaultMode", json!(420));
        }
    }
    if let Some(path) = members(volume, "/hostPath") {
        default(path, "type", json!(""));
    }
    for item in each(volume, "/downwardAPI/items") {
        if let Some(reference) = members(item, "/fieldRef") {
            default(reference, "apiVersion", json!("v1"));
        }
    }
    for source in each(volume, "/projected/sources") {
        if let Some(token) = members(source, "/serviceAccountToken") {
            default(token, "expirationSeconds", json!(3600));
        }
        for item in each(source, "/downwardAPI/items") {
            if let Some(reference) = members(item, "/fieldRef") {
                default(reference, "apiVersion", json!("v1"));
            }
        }
    }
    if let Some(claim) = members(volume, "/ephemeral/volumeClaimTemplate/spec") {
        default(claim, "volumeMode", json!("Filesystem"));
    }
}
