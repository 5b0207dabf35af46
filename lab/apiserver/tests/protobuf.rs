//! Protobuf of the real server is decoded here to the same object that it writes in JSON.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use kube::client::Body;
use salvor_apiserver::{Cluster, Request, Settings};
use salvor_testkit::ControlPlane;
use serde_json::{Value, json};

#[path = "support/samples.rs"]
#[allow(dead_code, reason = "only the objects are needed")]
mod samples;
#[path = "support/served.rs"]
mod served;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An object of every kind, by the path of its collection.
async fn one_of_each() -> Vec<(String, Value)> {
    let samples = samples::all();
    let mut all = Vec::new();
    // CustomResourceDefinitions are not decoded from protobuf.
    for kind in served::all().await.iter().filter(|kind| kind.kind != "CustomResourceDefinition") {
        let is_it = |sample: &&samples::Sample| sample.kind == kind.kind && sample.group == kind.group;
        let sample = samples.iter().find(is_it).unwrap_or_else(|| panic!("no sample of {kind:?}"));
        let place = if kind.namespaced { "/namespaces/default" } else { "" };
        let object = sample.object.to_string().replace("{ns}", "default");
        let mut object: Value = serde_json::from_str(&object).unwrap();
        if ["Namespace", "PriorityLevelConfiguration"].contains(&kind.kind.as_str()) {
            object["metadata"]["name"] = json!("sample");
        }
        all.push((format!("{}{place}/{}", kind.below(), kind.plural), object));
    }
    all
}

/// Objects with as many fields as possible, by the path of their collection.
fn rich() -> Vec<(&'static str, Value)> {
    let template = json!({
        "metadata": { "labels": { "app": "x" }, "annotations": { "a": "b" } },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "nodeName": "n", "hostNetwork": true,
            "nodeSelector": { "a": "b" }, "automountServiceAccountToken": false,
            "tolerations": [{ "key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0 }],
            "volumes": [
                { "name": "e", "emptyDir": { "sizeLimit": "1Gi" } },
                { "name": "c", "configMap": { "name": "c", "optional": false } },
                { "name": "p", "persistentVolumeClaim": { "claimName": "p", "readOnly": true } },
                { "name": "j", "projected": { "sources": [{ "downwardAPI": { "items": [{ "path": "x", "fieldRef": { "fieldPath": "metadata.name" } }] } }] } },
            ],
            "initContainers": [{ "name": "i", "image": "i:1", "command": ["a", ""] }],
            "containers": [{
                "name": "m", "image": "m:1", "args": ["--x"],
                "env": [{ "name": "A", "value": "" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                "ports": [{ "containerPort": 80, "hostPort": 80, "name": "web" }],
                "resources": { "limits": { "cpu": "1500m", "memory": "1Gi" }, "requests": { "cpu": 1 } },
                "readinessProbe": { "httpGet": { "port": "web", "path": "/" }, "periodSeconds": 5 },
                "livenessProbe": { "tcpSocket": { "port": 80 } },
                "lifecycle": { "preStop": { "exec": { "command": ["x"] } } },
                "volumeMounts": [{ "name": "e", "mountPath": "/e" }],
                "securityContext": { "runAsUser": 0, "privileged": false, "capabilities": { "drop": ["ALL"] } },
            }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["b"] }] }] } } },
            "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "x" } } }],
        },
    });
    let mut lasting = template.clone();
    lasting["spec"]["restartPolicy"] = json!("Always");
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u", "controller": true, "blockOwnerDeletion": false }]);
    let mut pod = template.clone();
    pod["metadata"] = json!({ "name": "s", "ownerReferences": owner, "finalizers": ["example.com/f"] });
    let selector = json!({ "matchLabels": { "app": "x" } });
    vec![
        ("/api/v1/namespaces", json!({ "metadata": { "name": "s" } })),
        (
            "/api/v1/namespaces/default/configmaps",
            json!({ "metadata": { "name": "s" }, "data": { "a": "b", "empty": "" }, "binaryData": { "c": "AAEC" }, "immutable": false }),
        ),
        (
            "/api/v1/namespaces/default/secrets",
            json!({ "metadata": { "name": "s" }, "data": { "a": "AAEC" }, "type": "Opaque" }),
        ),
        ("/api/v1/namespaces/default/pods", pod),
        (
            "/api/v1/nodes",
            json!({ "metadata": { "name": "s" }, "spec": { "unschedulable": true, "taints": [{ "key": "a", "effect": "NoExecute", "timeAdded": "2019-01-01T00:00:00Z" }] } }),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({ "metadata": { "name": "s" }, "spec": { "clusterIP": "None", "selector": { "a": "b" }, "ports": [{ "name": "a", "port": 80, "targetPort": "web" }, { "name": "b", "port": 81, "targetPort": 8 }] } }),
        ),
        (
            "/api/v1/namespaces/default/events",
            json!({ "metadata": { "name": "s" }, "involvedObject": { "kind": "Pod", "namespace": "default", "name": "p" }, "reason": "r", "message": "m", "type": "Normal", "count": 1, "firstTimestamp": "2019-01-01T00:00:00Z", "eventTime": "2019-01-01T00:00:00.000001Z", "action": "a", "reportingComponent": "example.com/c", "reportingInstance": "i" }),
        ),
        (
            "/api/v1/persistentvolumes",
            json!({ "metadata": { "name": "s" }, "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/x" } } }),
        ),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({ "metadata": { "name": "s" }, "spec": { "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({ "metadata": { "name": "s" }, "spec": { "replicas": 0, "selector": selector, "template": lasting, "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": "50%" } } } }),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            json!({ "metadata": { "name": "s" }, "spec": { "serviceName": "s", "replicas": 1, "selector": selector, "template": lasting, "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }] } }),
        ),
        (
            "/apis/apps/v1/namespaces/default/daemonsets",
            json!({ "metadata": { "name": "s" }, "spec": { "selector": selector, "template": lasting } }),
        ),
        (
            "/apis/batch/v1/namespaces/default/jobs",
            json!({ "metadata": { "name": "s" }, "spec": { "manualSelector": true, "selector": selector, "completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 0, "ttlSecondsAfterFinished": 0, "podFailurePolicy": { "rules": [{ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [1, 2] } }] }, "template": template } }),
        ),
    ]
}

/// Creates with dry run, and reads the whole answer.
async fn rehearse(client: &kube::Client, path: &str, object: &Value, accept: &str) -> (u16, Bytes) {
    let request = http::Request::post(format!("{path}?dryRun=All"))
        .header("content-type", "application/json")
        .header("accept", accept)
        .body(Body::from(object.to_string().into_bytes()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes())
}

async fn create(cluster: &Cluster, path: &str, kind: &str, body: Bytes) -> Value {
    let mut request = Request::new(Method::POST, &format!("{path}?dryRun=All"), body);
    kind.clone_into(&mut request.content_type);
    let body = cluster.handle(&request).into_body();
    let bytes = body.collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

/// Removes the fields that differ between two creations of one object.
fn without_identity(mut object: Value) -> String {
    let metadata = object["metadata"].as_object_mut().unwrap();
    let uid = metadata.remove("uid").map_or_else(String::new, |uid| uid.as_str().unwrap_or("").to_owned());
    metadata.remove("managedFields");
    metadata.remove("creationTimestamp");
    let text = object.to_string();
    if uid.is_empty() { text } else { text.replace(&uid, "<uid>") }
}

#[tokio::test]
async fn both_forms_of_an_object_are_read_alike() {
    let real = ControlPlane::builder().start().await.unwrap();
    let client = real.admin().client("protobuf");
    let rich = rich().into_iter().map(|(path, object)| (path.to_owned(), object));
    for (path, object) in rich.chain(one_of_each().await) {
        let path = path.as_str();
        let cluster = Cluster::new(Settings::default());
        let (status, as_json) = rehearse(&client, path, &object, "application/json").await;
        assert_eq!(status, 201, "{path}: {}", String::from_utf8_lossy(&as_json));
        let as_json: Value = serde_json::from_slice(&as_json).unwrap();
        let (_, as_protobuf) = rehearse(&client, path, &object, PROTOBUF).await;
        assert!(as_protobuf.starts_with(b"k8s\0"), "{path} is not answered in protobuf");
        let read = create(&cluster, path, PROTOBUF, as_protobuf).await;
        let expected = create(&cluster, path, "application/json", Bytes::from(as_json.to_string())).await;
        assert!(expected.get("code").is_none(), "{path}: {expected}");
        assert_eq!(without_identity(read), without_identity(expected), "{path}");
    }
}
