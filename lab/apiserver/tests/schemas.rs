//! The embedded definitions are those of the real server. `SALVOR_UPDATE=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};

use salvor_testkit::ControlPlane;
use serde_json::{Map, Value, json};

/// The Kubernetes minor that the embedded server imitates.
const EMBEDDED_MINOR: &str = "1.37";

#[path = "support/served.rs"]
mod served;

/// Definitions that are needed besides those of the served kinds; the definitions that they refer to are needed as
/// well.
const OTHERS: [&str; 4] = [
    "io.k8s.api.autoscaling.v1.Scale",
    "io.k8s.api.core.v1.Binding",
    "io.k8s.api.policy.v1.Eviction",
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
    let mut wanted: BTreeSet<String> = OTHERS.iter().map(|&name| name.to_owned()).collect();
    let kinds = served::all().await;
    let mut documents: BTreeSet<String> = kinds.iter().map(served::Served::below).collect();
    documents.insert("/apis/autoscaling/v1".to_owned());
    for document in documents {
        let request = http::Request::get(format!("/openapi/v3{document}")).body(Vec::new()).unwrap();
        let document: Value = client.request(request).await.unwrap();
        published.extend(document["components"]["schemas"].as_object().unwrap().clone());
    }
    for kind in kinds {
        let is_it = |definition: &Value| {
            definition["x-kubernetes-group-version-kind"]
                == json!([{ "group": kind.group, "version": kind.version, "kind": kind.kind }])
        };
        let found = published.iter().find(|(_, definition)| is_it(definition));
        let (name, _) = found.unwrap_or_else(|| panic!("the real server does not publish {kind:?}"));
        wanted.insert(name.clone());
    }
    let mut definitions: BTreeMap<String, Value> = BTreeMap::new();
    while let Some(name) = wanted.pop_first() {
        if definitions.contains_key(&name) {
            continue;
        }
        let mut definition = slim(&published[&name], false);
        // A kind of options belongs to every group, which is irrelevant here.
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
