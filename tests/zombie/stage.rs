//! A small control plane for one test, real or embedded, with hand-made nodes and pods, and a `salvor run` process.

use std::path::PathBuf;

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
        events::v1::Event,
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Access, Plane, Salvor, Site, wait};
use serde_json::{Value, json};

pub(crate) const SALVOR: &str = env!("CARGO_BIN_EXE_salvor");

pub(crate) const TERMINATE: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
pub(crate) const DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";

/// Recovers pods labelled `salvor: fail` or `salvor: delete` as soon as their own grace period is over.
pub(crate) const AT_ONCE: &str = r#"
failureRecoveryPolicy:
  rules:
  - terminatePod:
      podLabelSelector: {matchLabels: {salvor: fail}}
      forcefulTerminationGracePeriod: 0s
  - terminatePod:
      podLabelSelector: {matchLabels: {salvor: delete}}
      forcefulTerminationGracePeriod: 0s
      action: FailAndDelete
"#;

/// The control plane of one test.
pub(crate) struct Stage {
    pub(crate) plane: Plane,
    pub(crate) client: Client,
    folder: tempfile::TempDir,
}

impl Stage {
    /// Only an API server: the test itself plays all controllers.
    pub(crate) async fn new(site: Site) -> Self {
        Self::on(site.api_server().await)
    }

    pub(crate) fn on(plane: impl Into<Plane>) -> Self {
        let plane = plane.into();
        let client = plane.admin().in_namespace("default").client("stage");
        Self { plane, client, folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Starts `salvor run` as the admin with this configuration, without leader election.
    pub(crate) async fn salvor(&self, configuration: &str) -> Salvor {
        self.salvor_as(&self.plane.admin(), configuration, &["--leader-elect=false"], &[]).await
    }

    pub(crate) async fn salvor_as(
        &self,
        access: &Access,
        configuration: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Salvor {
        let always = ["--feature-gates=FailureRecoveryPolicy=true", "--controllers=zombie"];
        let arguments = [&always, arguments].concat();
        Salvor::start(SALVOR, access, configuration, &arguments, environment)
    }

    /// A node that the control plane has just lost.
    pub(crate) async fn lost_node(&self, name: &str) -> Node {
        self.node(name).await;
        self.taint(name, "node.kubernetes.io/unreachable").await
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        self.set_taints(name, json!([])).await
    }

    pub(crate) async fn taint(&self, name: &str, key: &str) -> Node {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let taints = json!([{"key": key, "effect": "NoSchedule"}, {"key": key, "effect": "NoExecute", "timeAdded": now}]);
        self.set_taints(name, taints).await
    }

    pub(crate) async fn set_taints(&self, name: &str, taints: Value) -> Node {
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        self.nodes().patch(name, &PatchParams::default(), &patch).await.unwrap()
    }

    /// Sets the Ready status, as the kubelet or the control plane does.
    pub(crate) async fn ready(&self, name: &str, status: &str) {
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "kube-node-lease")
    }

    /// The kubelet of a node reports this boot ID.
    pub(crate) async fn boots(&self, name: &str, boot_id: &str) {
        let info = json!({
            "machineID": "", "systemUUID": "", "bootID": boot_id, "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
        });
        let status = Patch::Strategic(json!({"status": {"nodeInfo": info}}));
        self.nodes().patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }

    /// The kubelet renews its Lease of this many seconds, with a clock that is this far ahead.
    pub(crate) async fn renew(&self, name: &str, lasts: u32, ahead: SignedDuration) {
        let renewed = (Timestamp::now() + ahead).strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "renewTime": renewed, "leaseDurationSeconds": lasts},
        });
        let apply = PatchParams::apply("kubelet").force();
        self.leases().patch(name, &apply, &Patch::Apply(lease)).await.unwrap();
    }

    /// A running pod on a node, as its kubelet last reported it.
    pub(crate) async fn pod(&self, name: &str, node: &str, extra: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "work"}],
                "tolerations": [{"operator": "Exists"}],
            },
        });
        merge(&mut pod, extra);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pod = self.pods().create(&PostParams::default(), &pod).await.unwrap();
        let running = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(running)).await.unwrap();
        pod
    }

    /// The same, being deleted.
    pub(crate) async fn terminating(&self, name: &str, node: &str, extra: Value) -> Pod {
        let pod = self.pod(name, node, extra).await;
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
        pod
    }

    /// Removes every pod, including its finalizers.
    pub(crate) async fn remove_all_pods(&self) {
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let at_once = DeleteParams::default().grace_period(0);
        for pod in self.pods().list(&ListParams::default()).await.unwrap() {
            self.pods().patch(&pod.name_any(), &PatchParams::default(), &free).await.unwrap();
            // A pod that only a finalizer kept is already gone.
            let _ = self.pods().delete(&pod.name_any(), &at_once).await;
        }
        wait::for_list(&self.pods(), &ListParams::default(), "no pod is left", <[Pod]>::is_empty).await;
    }

    pub(crate) async fn until_failed(&self, name: &str) -> Pod {
        wait::for_object(&self.pods(), name, "the pod is Failed", |p| phase(p) == "Failed").await
    }

    /// Waits until Salvor has decided about everything so far: a pod created now is recovered. Returns its name.
    pub(crate) async fn until_all_is_judged(&self, node: &str) -> String {
        let name = format!("probe-{}", Timestamp::now().as_millisecond());
        self.terminating(&name, node, json!({"metadata": {"labels": {"salvor": "fail"}}})).await;
        self.until_failed(&name).await;
        name
    }

    pub(crate) async fn events_about(&self, pod: &Pod) -> Vec<Event> {
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        let all = events.list(&ListParams::default()).await.unwrap();
        let about = |e: &Event| e.regarding.as_ref().and_then(|r| r.uid.clone()) == pod.uid();
        all.into_iter().filter(about).collect()
    }
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

/// The pod's conditions as (type, status, reason, message).
pub(crate) fn conditions(pod: &Pod) -> Vec<(String, String, String, String)> {
    let all = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    all.into_iter()
        .map(|c| (c.type_, c.status, c.reason.unwrap_or_default(), c.message.unwrap_or_default()))
        .collect()
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
