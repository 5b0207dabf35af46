//! Of ten thousand objects only what the rules read is kept.

use serde_json::{Map, Value, json};

use crate::{
    json::{is_ready, is_terminating, list, text},
    kinds::{EVENT, Kind, POD},
};

/// The same object with what the rules read of it when there are many.
pub(crate) fn slim(kind: &Kind, mut object: Value) -> Value {
    if *kind == POD {
        return slim_pod(object);
    }
    if *kind == EVENT {
        return keep(
            &object,
            &[
                "/metadata/namespace",
                "/metadata/name",
                "/involvedObject/uid",
                "/reason",
                "/message",
                "/lastTimestamp",
                "/eventTime",
            ],
        );
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("images");
        status.remove("nodeInfo");
    }
    object
}

fn slim_pod(pod: Value) -> Value {
    let ended_well = text(&pod, "/status/phase") == "Succeeded" && !is_terminating(&pod);
    if is_ready(&pod) || ended_well {
        let owners: Vec<Value> = list(&pod, "/metadata/ownerReferences")
            .iter()
            .map(|owner| json!({"uid": text(owner, "/uid"), "controller": owner.get("controller")}))
            .collect();
        let mut slim =
            keep(&pod, &["/metadata/namespace", "/metadata/name", "/spec/nodeName", "/status/phase"]);
        slim["metadata"]["ownerReferences"] = owners.into();
        slim["healthy"] = is_ready(&pod).into();
        if ended_well {
            slim["status"]["containerStatuses"] = ends(&pod);
        }
        return slim;
    }
    let mut kept = vec![
        "/metadata/namespace",
        "/metadata/name",
        "/metadata/uid",
        "/metadata/resourceVersion",
        "/metadata/creationTimestamp",
        "/metadata/deletionTimestamp",
        "/metadata/deletionGracePeriodSeconds",
        "/metadata/ownerReferences",
        "/metadata/finalizers",
        "/metadata/labels",
        "/metadata/annotations",
        "/spec/nodeName",
        "/status/phase",
        "/status/reason",
        "/status/conditions",
    ];
    match text(&pod, "/status/phase") {
        // Only one that has not started is looked at for what it needs.
        "Pending" => kept.extend([
            "/spec/volumes",
            "/spec/containers",
            "/spec/initContainers",
            "/spec/schedulingGates",
            "/spec/schedulerName",
            "/status/containerStatuses",
            "/status/initContainerStatuses",
        ]),
        "Failed" => {}
        _ => kept.extend(["/status/containerStatuses", "/status/initContainerStatuses"]),
    }
    let mut slim = keep(&pod, &kept);
    if text(&pod, "/status/phase") == "Failed" {
        slim["status"]["containerStatuses"] = ends(&pod);
    }
    slim
}

/// When the containers of a pod ended, and how.
fn ends(pod: &Value) -> Value {
    list(pod, "/status/containerStatuses").iter().map(|status| json!({"name": text(status, "/name"), "state": {"terminated": {
        "exitCode": status.pointer("/state/terminated/exitCode"), "finishedAt": status.pointer("/state/terminated/finishedAt"),
    }}})).collect()
}

/// An object with these fields alone.
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
        let slim = slim(&POD, pod);
        assert!(is_ready(&slim), "{slim}");
        assert!(
            slim.pointer("/spec/containers").is_none() && slim.pointer("/metadata/labels").is_none(),
            "{slim}"
        );
    }
}
