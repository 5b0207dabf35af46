//! Ordinary workloads for tests, with the required fields filled in.

use std::collections::BTreeMap;

use k8s_openapi::api::{apps::v1, batch, core::v1::Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[derive(Clone, Debug, Default)]
pub struct PodShape {
    annotations: BTreeMap<String, String>,
    spec: serde_json::Map<String, Value>,
}

impl PodShape {
    /// One container that runs until it is terminated, and is evicted six seconds after its node is lost: by then a
    /// machine that was only paused is back.
    pub fn new() -> Self {
        let evicted_soon = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 6});
        Self::default()
            .spec("containers", json!([{"name": "main", "image": "work"}]))
            .spec("terminationGracePeriodSeconds", json!(2))
            .spec(
                "tolerations",
                json!([
                    evicted_soon("node.kubernetes.io/unreachable"),
                    evicted_soon("node.kubernetes.io/not-ready"),
                ]),
            )
    }

    /// The script of the containers: see [`salvor_nodes::script`] for the names.
    pub fn script(self, name: &str, value: &str) -> Self {
        self.annotation(&format!("{}{name}", salvor_nodes::script::PREFIX), value)
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.spec.insert(field.to_owned(), value);
        self
    }

    fn template(&self, app: &str) -> Value {
        json!({
            "metadata": { "labels": { "app": app }, "annotations": self.annotations },
            "spec": self.spec,
        })
    }
}

pub fn pod(name: &str, shape: &PodShape) -> Pod {
    let template = shape.template(name);
    let mut metadata = template["metadata"].clone();
    metadata["name"] = name.into();
    typed(json!({ "metadata": metadata, "spec": template["spec"] }))
}

/// A Job; `spec` has its fields besides the template.
pub fn job(name: &str, spec: Value, shape: &PodShape) -> batch::v1::Job {
    let mut shape = shape.clone();
    shape.spec.entry("restartPolicy").or_insert("Never".into());
    typed(workload(name, spec, shape.template(name)))
}

pub fn deployment(name: &str, replicas: usize, shape: &PodShape) -> v1::Deployment {
    let spec = json!({ "replicas": replicas, "selector": { "matchLabels": { "app": name } } });
    typed(workload(name, spec, shape.template(name)))
}

/// A StatefulSet whose pods each have a volume of the given storage class.
pub fn stateful_set(name: &str, replicas: usize, storage_class: &str, shape: &PodShape) -> v1::StatefulSet {
    let mut shape = shape.clone();
    let mount = json!([{ "name": "data", "mountPath": "/data" }]);
    if let Some(containers) = shape.spec.get_mut("containers") {
        containers[0]["volumeMounts"] = mount;
    }
    let spec = json!({
        "replicas": replicas,
        "serviceName": name,
        "selector": { "matchLabels": { "app": name } },
        "volumeClaimTemplates": [{
            "metadata": { "name": "data" },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": storage_class,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }],
    });
    typed(workload(name, spec, shape.template(name)))
}

fn workload(name: &str, mut spec: Value, template: Value) -> Value {
    spec["template"] = template;
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn typed<K: DeserializeOwned>(value: Value) -> K {
    match serde_json::from_value(value) {
        Ok(object) => object,
        Err(error) => panic!("the test describes an object that Kubernetes does not know: {error}"),
    }
}
