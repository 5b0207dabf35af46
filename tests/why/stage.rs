//! A cluster, the binary, and its output.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use salvor_testkit::{
    Access, Kubectl, Part, Salvor, program_of, wait,
    workloads::{PodShape, pod},
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

pub(crate) const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");
const KUBECONFIG: &str = "kubeconfig";
const PROGRAMS: &str = "bin";

pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) kubectl: Kubectl,
    pub(crate) namespace: String,
    admin: Access,
    folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new(admin: &Access, kubectl: Kubectl, namespace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let admin = admin.in_namespace(namespace);
        admin.write_kubeconfig(&folder.path().join(KUBECONFIG)).unwrap();
        // The programs under the names that remedies use.
        let programs = folder.path().join(PROGRAMS);
        std::fs::create_dir(&programs).unwrap();
        let kubernetes = program_of(Part::ApiServer).unwrap();
        symlink(kubernetes.with_file_name("kubectl"), programs.join("kubectl")).unwrap();
        symlink(SALVOR, programs.join("salvor")).unwrap();
        Self {
            client: admin.client("stage"),
            kubectl: kubectl.in_namespace(namespace),
            namespace: namespace.to_owned(),
            admin,
            folder,
        }
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join(KUBECONFIG)
    }

    /// Writes a file into the test's folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn salvor(&self, configuration: &str, arguments: &[&str]) -> Salvor {
        Salvor::start(SALVOR, &self.admin, configuration, arguments, &[])
    }

    /// Runs the binary. Returns its exit code and its standard output.
    pub(crate) async fn run(&self, arguments: &[&str]) -> (i32, String) {
        let (code, said, _) = self.run_with(arguments, &self.kubeconfig()).await;
        (code, said)
    }

    /// The same with a kubeconfig. Also returns its standard error.
    pub(crate) async fn run_with(&self, arguments: &[&str], kubeconfig: &Path) -> (i32, String, String) {
        let output = tokio::process::Command::new(SALVOR)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = !said.is_empty() || !complained.is_empty();
        assert!(told || output.status.success(), "it failed without a word");
        (output.status.code().unwrap_or(-1), said, complained)
    }

    /// Starts the binary and reads its output while it runs.
    pub(crate) fn view(&self, arguments: &[&str]) -> View {
        let mut program = tokio::process::Command::new(SALVOR)
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = program.stdout.take().unwrap();
        View { _program: program, output, shown: String::new() }
    }

    pub(crate) async fn why(&self, about: &str) -> Value {
        let (code, said) = self.run(&["why", about, "-n", &self.namespace, "-o", "json"]).await;
        assert_eq!(code, 0, "{about}: {said}");
        let answer = serde_json::from_str(&said).unwrap();
        keeps_the_contract(&answer);
        answer
    }

    /// Everything that does not recover in the namespace.
    pub(crate) async fn all(&self) -> Value {
        let (code, said) = self.run(&["why", "--all", "-n", &self.namespace, "-o", "json"]).await;
        assert_eq!(code, 0, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    /// Waits until this is the first root cause of an object.
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
        last
    }

    /// The same, with the object of the cause.
    pub(crate) async fn until_in(&self, about: &str, code: &str, kind: &str, name: &str) -> Value {
        let answer = self.until(about, code).await;
        let namespace = match kind {
            "Node" | "VolumeAttachment" | "ValidatingAdmissionPolicy" => Value::Null,
            _ => self.namespace.clone().into(),
        };
        let object = json!({"kind": kind, "namespace": namespace, "name": name});
        assert_eq!(answer["rootCauses"][0]["object"], object, "{answer:#}");
        answer
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

    /// Executes the first remedy that is a command, as if copied to a shell.
    pub(crate) async fn carry_out(&self, answer: &Value) {
        let commands =
            answer["remedies"].as_array().unwrap().iter().filter_map(|remedy| remedy["command"].as_str());
        let command = commands.into_iter().next().unwrap_or_else(|| panic!("no command: {answer:#}"));
        self.shell(command).await;
    }

    /// Runs a command in a shell that has kubectl and salvor.
    pub(crate) async fn shell(&self, command: &str) {
        let programs = self.folder.path().join(PROGRAMS);
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let output = tokio::process::Command::new("sh")
            .args(["-c", command])
            .env("PATH", path)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }

    pub(crate) fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        Api::default_namespaced_with(
            self.client.clone(),
            &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        )
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn cluster_api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)),
        )
    }

    pub(crate) async fn create(&self, group: &str, kind: &str, object: Value) {
        let api = match kind {
            "Node" | "PersistentVolume" | "VolumeAttachment" | "StorageClass" | "Namespace" => {
                self.cluster_api(group, "v1", kind)
            }
            "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
                self.cluster_api(group, "v1", kind)
            }
            _ => self.api(group, "v1", kind),
        };
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    pub(crate) async fn make<K>(&self, object: &K)
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::default_namespaced(self.client.clone());
        api.create(&PostParams::default(), object).await.unwrap();
    }

    /// Waits until the API server refuses a pod with this label: policies take effect a moment after their creation.
    pub(crate) async fn until_refused(&self, app: &str, shape: &PodShape) {
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        let only_asks = PostParams { dry_run: true, ..PostParams::default() };
        let refused = wait::patience().until(async {
            while pods.create(&only_asks, &pod(app, shape)).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        assert!(refused.await.is_some(), "pod {app} is never refused");
    }

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

    /// A node with this Ready status; `Unknown` adds the unreachable taint.
    pub(crate) async fn node(&self, name: &str, ready: &str) {
        let mut node = json!({"metadata": {"name": name}});
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if ready == "Unknown" {
            node["spec"] = json!({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": now}]});
        }
        self.create("", "Node", node.clone()).await;
        let nodes = self.nodes();
        let taints = Patch::Merge(json!({"spec": {"taints": node["spec"]["taints"]}}));
        nodes.patch(name, &PatchParams::default(), &taints).await.unwrap();
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "R", "message": "m", "lastTransitionTime": now}]}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }
}

/// A program that keeps writing output. Dropping it kills it.
pub(crate) struct View {
    _program: tokio::process::Child,
    output: tokio::process::ChildStdout,
    shown: String,
}

impl View {
    pub(crate) async fn until(&mut self, text: &str) {
        let seen = wait::patience().until(async {
            let mut buffer = [0; 4096];
            while !self.shown.contains(text) {
                let read = self.output.read(&mut buffer).await.unwrap();
                assert!(read > 0, "it ended: {}", self.shown);
                self.shown.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        });
        let in_time = seen.await.is_some();
        assert!(in_time, "it never shows {text}: {}", self.shown);
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

/// Checks that the answer has the documented format.
fn keeps_the_contract(answer: &Value) {
    let keys = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let object = ["kind", "name", "namespace"];
    let mut all = keys(answer);
    all.sort();
    let keys_of_answer = ["about", "chain", "expectedBack", "missing", "notSeen", "remedies", "rootCauses"];
    assert_eq!(all, keys_of_answer, "{answer:#}");
    let list = |key: &str| answer[key].as_array().unwrap().clone();
    let sorted = |value: &Value| {
        let mut keys = keys(value);
        keys.sort();
        keys
    };
    assert_eq!(sorted(&answer["about"]), object, "{answer:#}");
    assert_eq!(answer["missing"].is_null(), list("rootCauses").is_empty(), "{answer:#}");
    for cause in list("rootCauses") {
        let keys_of_cause = ["code", "expectedBack", "message", "object", "since", "until"];
        assert_eq!(sorted(&cause), keys_of_cause, "{answer:#}");
        says_when_or_on_what(&cause["expectedBack"]);
        assert_eq!(sorted(&cause["object"]), object, "{answer:#}");
        for time in [&cause["since"], &cause["until"]] {
            assert!(time.is_null() || time.as_str().unwrap().parse::<Timestamp>().is_ok(), "{answer:#}");
        }
    }
    if !answer["missing"].is_null() {
        says_when_or_on_what(&answer["expectedBack"]);
    }
    for link in list("chain") {
        assert_eq!(sorted(&link), ["object", "says"], "{answer:#}");
    }
    for remedy in list("remedies") {
        assert_eq!(sorted(&remedy), ["command", "text"], "{answer:#}");
        for text in [&remedy["text"], &remedy["command"]].into_iter().filter_map(Value::as_str) {
            assert!(!text.is_empty() && !text.contains(['\n', '<', '>']), "{answer:#}");
        }
    }
    for missed in list("notSeen") {
        assert_eq!(sorted(&missed), ["what", "why"], "{answer:#}");
    }
    let Some(cause) = list("rootCauses").first().cloned() else { return };
    let (chain, remedies) = (list("chain"), list("remedies"));
    assert_eq!(chain[0]["object"], answer["about"], "the chain begins at what was asked: {answer:#}");
    assert_eq!(chain.last().unwrap()["object"], cause["object"], "the chain ends in the cause: {answer:#}");
    assert!(!remedies[0]["text"].as_str().unwrap().contains("twice"), "{answer:#}");
}

/// Checks that an expectation has the documented format, and says something.
fn says_when_or_on_what(expected: &Value) {
    let time = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap();
    assert!(expected["at"].is_string() || expected["dependsOn"].is_string(), "{expected:#}");
    let phases = expected["phases"].as_array().unwrap();
    let untils: Vec<Timestamp> = phases.iter().map(|phase| time(&phase["until"])).collect();
    assert!(phases.iter().all(|phase| phase["name"].is_string()) && untils.is_sorted(), "{expected:#}");
    if expected["at"].is_string() && !untils.is_empty() {
        assert_eq!(untils.last(), Some(&time(&expected["at"])), "{expected:#}");
    }
}
