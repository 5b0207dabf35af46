//! A cluster, the binary, and what it says.

use std::{path::PathBuf, process::Stdio, time::Duration};

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Access, Kubectl, wait};
use serde_json::{Value, json};

pub(crate) const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");

pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) kubectl: Kubectl,
    pub(crate) namespace: String,
    kubeconfig: PathBuf,
    _folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new(admin: &Access, kubectl: Kubectl, namespace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let admin = admin.in_namespace(namespace);
        admin.write_kubeconfig(&kubeconfig).unwrap();
        Self {
            client: admin.client("stage"),
            kubectl: kubectl.in_namespace(namespace),
            namespace: namespace.to_owned(),
            kubeconfig,
            _folder: folder,
        }
    }

    /// Runs the binary; its exit code and what it wrote to standard output.
    pub(crate) async fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = tokio::process::Command::new(SALVOR)
            .args(arguments)
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(0) || !complained.is_empty(), "it failed without a word");
        (output.status.code().unwrap_or(-1), said)
    }

    /// The answer about an object.
    pub(crate) async fn why(&self, about: &str) -> Value {
        let (code, said) = self.run(&["why", about, "-n", &self.namespace, "-o", "json"]).await;
        assert_eq!(code, 0, "{about}: {said}");
        serde_json::from_str(&said).unwrap()
    }

    /// Waits until the first root cause of an object is this one.
    pub(crate) async fn until(&self, about: &str, code: &str) -> Value {
        let mut last = Value::Null;
        let found = wait::patience().until(async {
            loop {
                last = self.why(about).await;
                if last["rootCauses"][0]["code"] == code {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        assert!(found.await.is_some(), "{about} is never {code}: {last:#}");
        let (cause, end) =
            (&last["rootCauses"][0]["object"], last["chain"].as_array().unwrap().last().unwrap());
        assert_eq!(*cause, end["object"], "the chain ends in the cause: {last:#}");
        assert_eq!(last["chain"][0]["object"], last["about"], "the chain begins at what was asked: {last:#}");
        let remedies = last["remedies"].as_array().unwrap();
        assert!(!remedies.is_empty(), "{last:#}");
        assert!(!remedies[0]["text"].as_str().unwrap().contains("twice"), "{last:#}");
        last
    }

    /// Waits until nothing is missing of an object, or until it is gone.
    pub(crate) async fn until_well(&self, about: &str) {
        let mut last = String::new();
        let found = wait::patience().until(async {
            loop {
                let (code, said) = self.run(&["why", about, "-n", &self.namespace, "-o", "json"]).await;
                let answer: Value = serde_json::from_str(&said).unwrap_or_default();
                if code == 1 || (code == 0 && answer["missing"].is_null()) {
                    return;
                }
                last = said;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        assert!(found.await.is_some(), "{about} is never well: {last}");
    }

    /// Carries out the first remedy that is a command of kubectl or of ours.
    pub(crate) async fn carry_out(&self, answer: &Value) {
        let commands =
            answer["remedies"].as_array().unwrap().iter().filter_map(|remedy| remedy["command"].as_str());
        let command = commands.into_iter().next().unwrap_or_else(|| panic!("no command: {answer:#}"));
        let words = words(command);
        let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        match words[0].as_str() {
            "kubectl" => drop(self.kubectl.run(&arguments).await.unwrap()),
            "salvor" => assert_eq!(self.run(&arguments).await.0, 0, "{command}"),
            _ => panic!("{command}"),
        }
    }

    pub(crate) fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        Api::default_namespaced_with(
            self.client.clone(),
            &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        )
    }

    pub(crate) fn cluster_api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        )
    }

    pub(crate) async fn create(&self, group: &str, kind: &str, object: Value) {
        let api = match kind {
            "Node" | "PersistentVolume" | "VolumeAttachment" | "StorageClass" | "CSIDriver" => {
                self.cluster_api(group, "v1", kind)
            }
            _ => self.api(group, "v1", kind),
        };
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// A running pod on a node.
    pub(crate) async fn pod(&self, name: &str, node: &str, extra: Value, status: Value) {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "work"}],
                "tolerations": [{"operator": "Exists"}],
            },
        });
        merge(&mut pod, extra);
        self.create("", "Pod", pod).await;
        let status = Patch::Merge(json!({"status": status}));
        self.api("", "v1", "Pod").patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        self.api("", "v1", "Pod").delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A node whose kubelet says this; `Unknown` with the taint of a lost one.
    pub(crate) async fn node(&self, name: &str, ready: &str) {
        let mut node = json!({"metadata": {"name": name}});
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if ready == "Unknown" {
            node["spec"] = json!({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": now}]});
        }
        self.create("", "Node", node.clone()).await;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let taints = Patch::Merge(json!({"spec": {"taints": node["spec"]["taints"]}}));
        nodes.patch(name, &PatchParams::default(), &taints).await.unwrap();
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "R", "message": "m", "lastTransitionTime": now}]}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }
}

pub(crate) fn running() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
}

pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A command's words, as a shell splits them.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in command.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty())),
            c => word.push(c),
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}
