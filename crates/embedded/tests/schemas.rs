//! The embedded definitions are those of the real server. `SALVOR_UPDATE=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};

use salvor_testkit::ControlPlane;
use serde_json::{Map, Value};

/// Which Kubernetes the embedded server is like, in every detail.
const EMBEDDED_MINOR: &str = "1.37";

/// Where the definitions are published.
const DOCUMENTS: [&str; 12] = [
    "api/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/apps/v1",
    "apis/batch/v1",
    "apis/coordination.k8s.io/v1",
    "apis/discovery.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/policy/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/scheduling.k8s.io/v1",
    "apis/storage.k8s.io/v1",
    "apis/authentication.k8s.io/v1",
];

/// The definitions that are needed, by the end of their names; what they refer to is needed as well.
const ROOTS: &[&str] = &[
    "core.v1.Namespace",
    "core.v1.Node",
    "core.v1.Pod",
    "core.v1.Event",
    "core.v1.ConfigMap",
    "core.v1.Secret",
    "core.v1.Service",
    "core.v1.ServiceAccount",
    "core.v1.PersistentVolume",
    "core.v1.PersistentVolumeClaim",
    "core.v1.Endpoints",
    "core.v1.LimitRange",
    "core.v1.ResourceQuota",
    "core.v1.ReplicationController",
    "core.v1.PodTemplate",
    "core.v1.Binding",
    "apps.v1.Deployment",
    "apps.v1.ReplicaSet",
    "apps.v1.StatefulSet",
    "apps.v1.DaemonSet",
    "apps.v1.ControllerRevision",
    "batch.v1.Job",
    "batch.v1.CronJob",
    "policy.v1.PodDisruptionBudget",
    "policy.v1.Eviction",
    "storage.v1.StorageClass",
    "storage.v1.CSIDriver",
    "storage.v1.CSINode",
    "storage.v1.VolumeAttachment",
    "coordination.v1.Lease",
    "events.v1.Event",
    "scheduling.v1.PriorityClass",
    "discovery.v1.EndpointSlice",
    "rbac.v1.Role",
    "rbac.v1.RoleBinding",
    "rbac.v1.ClusterRole",
    "rbac.v1.ClusterRoleBinding",
    "autoscaling.v1.Scale",
];

const OTHER_ROOTS: [&str; 2] = [
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
];

/// Without help texts, which nothing here reads.
fn slim(value: &Value, are_properties: bool) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(key, _)| are_properties || !["description", "externalDocs"].contains(&key.as_str()))
            .map(|(key, member)| (key.clone(), slim(member, key == "properties" && !are_properties)))
            .collect(),
        Value::Array(elements) => elements.iter().map(|element| slim(element, false)).collect(),
        other => other.clone(),
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member {
                    Value::String(text) if key == "$ref" => {
                        found.insert(text.rsplit('/').next().unwrap().to_owned());
                    }
                    other => references(other, found),
                }
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| references(element, found)),
        _ => {}
    }
}

#[tokio::test]
async fn definitions_are_those_of_the_real_server() {
    if salvor_testkit::kubernetes_minor() != EMBEDDED_MINOR {
        return eprintln!("the embedded server is a {EMBEDDED_MINOR}: not compared with another minor");
    }
    let real = ControlPlane::builder().start().await.unwrap();
    let client = real.admin().client("schemas");
    let mut published: Map<String, Value> = Map::new();
    for document in DOCUMENTS {
        let request = http::Request::get(format!("/openapi/v3/{document}")).body(Vec::new()).unwrap();
        let document: Value = client.request(request).await.unwrap();
        published.extend(document["components"]["schemas"].as_object().unwrap().clone());
    }
    let mut wanted: BTreeSet<String> = ROOTS.iter().map(|name| format!("io.k8s.api.{name}")).collect();
    wanted.extend(OTHER_ROOTS.map(str::to_owned));
    let mut definitions: BTreeMap<String, Value> = BTreeMap::new();
    while let Some(name) = wanted.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        let mut definition = slim(&published[&name], false);
        // A kind of options belongs to every group, which says nothing here.
        let kinds = definition["x-kubernetes-group-version-kind"].as_array().map_or(0, Vec::len);
        if kinds != 1 {
            definition.as_object_mut().unwrap().remove("x-kubernetes-group-version-kind");
        }
        references(&definition, &mut wanted);
        definitions.insert(name, definition);
    }
    let lines: Vec<String> =
        definitions.iter().map(|(name, definition)| format!("{name:?}: {definition}")).collect();
    let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/schemas.json");
    if std::env::var_os("SALVOR_UPDATE").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap();
    let different: Vec<&str> =
        text.lines().filter(|line| !stored.lines().any(|known| known == *line)).collect();
    assert!(
        stored == text,
        "data/schemas.json is not what the real server publishes; run this test with SALVOR_UPDATE=1. Different: {:?}",
        different.iter().map(|line| line.split(':').next()).collect::<Vec<_>>()
    );
}
