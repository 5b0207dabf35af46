//! Defaults in the spec of a pod.

use serde_json::{Value, json};

use super::{default, each, members};
use crate::object::{self, object_at};

/// Used for pods and for templates.
pub(in crate::kinds) fn pod_spec(spec: &mut Value) {
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

pub(super) fn pod_only(spec: &mut Value) {
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
