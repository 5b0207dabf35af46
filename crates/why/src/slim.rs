//! Reduces objects to the fields that the rules read, so that ten thousand of them fit into memory.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use salvor_api::names::{annotations, conditions::DISRUPTION_TARGET};

use crate::{
    all::ROOTS,
    json::{
        condition, controller, entry, is_ready, is_terminating, job_of, list, name, number, owner_kind, text,
    },
    kinds::{DEPLOYMENT, EVENT, Kind, POD, REPLICA_SET},
    pods::mounts_config,
    presence::NAME as SALVOR,
};

/// The annotations that express the consent of a pod's owner.
const CONSENTS: [&str; 4] = [
    annotations::SAFE_TO_FORCEFULLY_DELETE,
    annotations::SAFE_TO_FORCEFULLY_TERMINATE,
    annotations::TERMINATION_GRACE_AFTER,
    annotations::EVICT_AFTER,
];

const UNREAD: [&str; 11] = [
    "addresses",
    "allocatable",
    "capacity",
    "daemonEndpoints",
    "features",
    "images",
    "nodeInfo",
    "runtimeHandlers",
    "uncountedTerminatedPods",
    "volumesAttached",
    "volumesInUse",
];

/// Reduces an object to what the rules read when they diagnose all workloads. Returns `None` if they read nothing of
/// it. `lost` are the nodes with silent kubelets: pods there may report Ready, which is stale.
///
/// Every map of a JSON value costs more than half a kilobyte, however small it is, so the result has few maps.
pub(crate) fn slim(kind: &Kind, mut object: Value, lost: &BTreeSet<String>) -> Option<Value> {
    if *kind == POD {
        return slim_pod(&object, lost);
    }
    if *kind == EVENT {
        let read = [
            "/metadata/namespace",
            "/metadata/name",
            "/involvedObject/uid",
            "/reason",
            "/message",
            "/lastTimestamp",
            "/eventTime",
        ];
        return Some(keep(&object, &read));
    }
    // An old revision that needs no pods.
    if *kind == REPLICA_SET
        && number(&object, "/spec/replicas") == Some(0)
        && number(&object, "/status/replicas").unwrap_or(0) == 0
        && number(&object, "/status/terminatingReplicas").unwrap_or(0) == 0
    {
        return None;
    }
    // Salvor's own Deployment keeps these fields: they show how Salvor was installed.
    let is_root = ROOTS.contains(&kind) && !(*kind == DEPLOYMENT && name(&object) == SALVOR);
    if is_root && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        // Pods are found by their owner reference.
        spec.remove("selector");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if is_root {
            metadata.remove("annotations");
            metadata.remove("labels");
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        for unread in UNREAD {
            status.remove(unread);
        }
    }
    if let Some(template) = object.pointer_mut("/spec/template") {
        *template = slim_template(template);
    }
    Some(object)
}

/// The fields of a pod template that quotas count, and the images.
fn slim_template(template: &Value) -> Value {
    let resources = |path| -> Value {
        list(template, path).iter().map(|container| keep(container, &["/resources", "/image"])).collect()
    };
    let mut slim =
        keep(template, &["/spec/priorityClassName", "/spec/activeDeadlineSeconds", "/spec/affinity"]);
    slim["spec"]["containers"] = resources("/spec/containers");
    slim["spec"]["initContainers"] = resources("/spec/initContainers");
    slim
}

fn slim_pod(pod: &Value, lost: &BTreeSet<String>) -> Option<Value> {
    let (phase, ends) = (text(pod, "/status/phase"), is_terminating(pod));
    // Most owners are diagnosed as well, so the UID is enough.
    let known = |owner: &&Value| ROOTS.iter().any(|kind| kind.kind == text(owner, "/kind"));
    let owner = controller(pod).filter(known).map(|owner| text(owner, "/uid"));
    if phase == "Succeeded" && !ends {
        return None;
    }
    let on = text(pod, "/spec/nodeName");
    if is_ready(pod) && !lost.contains(on) {
        let any = controller(pod).map(|owner| text(owner, "/uid"));
        return any.map(|owner| json!({"healthy": true, "owner": owner}));
    }
    let mut kept =
        vec!["/metadata/namespace", "/metadata/name", "/metadata/uid", "/spec/nodeName", "/status/phase"];
    // What its eviction and its recovery depend on.
    let on_lost = lost.contains(on);
    if on_lost {
        kept.extend(["/metadata/labels", "/spec/tolerations", "/spec/terminationGracePeriodSeconds"]);
    }
    if ends || on_lost {
        kept.push("/metadata/resourceVersion");
    }
    if ends {
        kept.extend([
            "/metadata/deletionTimestamp",
            "/metadata/deletionGracePeriodSeconds",
            "/metadata/finalizers",
            "/metadata/labels",
        ]);
    }
    if owner.is_none() {
        kept.push("/metadata/ownerReferences");
    }
    if phase == "Pending" {
        kept.extend(["/metadata/creationTimestamp", "/spec/schedulingGates", "/spec/schedulerName"]);
    }
    if phase != "Failed" {
        kept.extend(["/status/containerStatuses", "/status/initContainerStatuses"]);
    }
    let mut slim = keep(pod, &kept);
    if let Some(owner) = owner {
        slim["owner"] = owner.into();
        slim["ownerKind"] = owner_kind(pod).into();
    }
    let told = if on.is_empty() { "PodScheduled" } else { "Ready" };
    if let Some(condition) = condition(pod, told).filter(|_| phase != "Failed") {
        slim["status"]["conditions"] = json!([condition]);
    }
    if ends || on_lost {
        if let Some(job) = job_of(pod) {
            slim["job"] = job.into();
        }
        for key in CONSENTS {
            if let Some(value) = entry(pod, "/metadata/annotations", key) {
                slim["metadata"]["annotations"][key] = value.into();
            }
        }
    }
    if phase == "Failed" {
        slim["status"]["containerStatuses"] = ends_of(pod);
        let told = |status: &Value| !text(status, "/state/terminated/finishedAt").is_empty();
        if !list(pod, "/status/containerStatuses").iter().any(told) {
            slim["metadata"]["creationTimestamp"] = text(pod, "/metadata/creationTimestamp").into();
            slim["status"]["conditions"] = condition(pod, "Ready").into_iter().cloned().collect();
        }
        if let Some(disrupted) = condition(pod, DISRUPTION_TARGET) {
            let known = slim["status"]["conditions"].as_array().cloned().unwrap_or_default();
            slim["status"]["conditions"] = known.into_iter().chain([disrupted.clone()]).collect();
        }
    }
    if phase == "Pending" || on_lost {
        let refers = |volume: &&Value| {
            ["persistentVolumeClaim", "ephemeral"].iter().any(|kind| volume.get(kind).is_some())
                || mounts_config(volume)
        };
        let volumes: Vec<Value> = list(pod, "/spec/volumes").iter().filter(refers).cloned().collect();
        if !volumes.is_empty() {
            slim["spec"]["volumes"] = volumes.into();
        }
    }
    if phase == "Pending" {
        for path in ["containers", "initContainers"] {
            let containers =
                list(pod, &format!("/spec/{path}")).iter().filter_map(references).collect::<Vec<_>>();
            if !containers.is_empty() {
                slim["spec"][path] = containers.into();
            }
        }
    }
    Some(slim)
}

/// The ConfigMaps and Secrets that a container refers to. `None` if there are none.
fn references(container: &Value) -> Option<Value> {
    let env: Vec<Value> =
        list(container, "/env").iter().filter(|env| env.get("valueFrom").is_some()).cloned().collect();
    let from = list(container, "/envFrom");
    if env.is_empty() && from.is_empty() {
        return None;
    }
    Some(json!({"env": env, "envFrom": from}))
}

fn ends_of(pod: &Value) -> Value {
    list(pod, "/status/containerStatuses").iter().map(|status| json!({"name": text(status, "/name"), "state": {"terminated": {
        "exitCode": status.pointer("/state/terminated/exitCode"), "finishedAt": status.pointer("/state/terminated/finishedAt"),
    }}})).collect()
}

fn keep(object: &Value, paths: &[&str]) -> Value {
    let mut kept = Value::Object(Map::new());
    for path in paths {
        let Some(value) = object.pointer(path) else { continue };
        let mut at = &mut kept;
        for part in path.trim_start_matches('/').split('/') {
            at = &mut at[part];
        }
        *at = value.clone();
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_pod_is_little_more_than_its_owner() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}, "ownerReferences": [{"uid": "o", "kind": "Job", "name": "j", "controller": true}]},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let none = BTreeSet::new();
        assert_eq!(slim(&POD, pod.clone(), &none), Some(json!({"healthy": true, "owner": "o"})));
        // On a lost node, Ready is only the last status.
        let kept = slim(&POD, pod, &BTreeSet::from(["n".to_owned()])).unwrap();
        assert_eq!(kept["spec"]["nodeName"], "n", "{kept}");
    }

    #[test]
    fn of_a_workload_only_what_the_rules_read_is_kept() {
        let job = json!({
            "metadata": {"name": "j", "namespace": "ns", "annotations": {"a": "b"}, "labels": {"a": "b"}, "managedFields": []},
            "spec": {"parallelism": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {"containers": [
                {"name": "main", "image": "i", "args": ["x"], "resources": {"requests": {"cpu": "1"}}},
            ]}}},
            "status": {"succeeded": 1, "uncountedTerminatedPods": {}},
        });
        let kept = json!({
            "metadata": {"name": "j", "namespace": "ns"},
            "spec": {"parallelism": 2, "template": {"spec": {
                "containers": [{"image": "i", "resources": {"requests": {"cpu": "1"}}}], "initContainers": [],
            }}},
            "status": {"succeeded": 1},
        });
        assert_eq!(slim(&crate::kinds::JOB, job, &BTreeSet::new()), Some(kept));
        let old = json!({"metadata": {"name": "r"}, "spec": {"replicas": 0}, "status": {"replicas": 0}});
        assert_eq!(slim(&REPLICA_SET, old, &BTreeSet::new()), None);
    }
}
