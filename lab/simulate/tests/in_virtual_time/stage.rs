//! A cluster without control loops: the test itself decides which node is lost and which pod is deleted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use salvor_api::config::Configuration;
use salvor_apiserver::{ChangeKind, Cluster};
use serde_json::{Value, json};

pub(crate) const TERMINATE: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
pub(crate) const DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";

/// A configuration with the feature gate FailureRecoveryPolicy on, and these further lines.
pub(crate) fn configuration(lines: &str) -> Configuration {
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\nfeatureGates: {FailureRecoveryPolicy: true}\n";
    salvor_api::config::parse(&format!("{head}{lines}")).unwrap()
}

pub(crate) fn annotated(key: &str) -> Value {
    json!({"metadata": {"annotations": {key: "true"}}})
}

#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    happenings: Arc<Mutex<Vec<Happening>>>,
}

impl Stage {
    pub(crate) async fn new(seed: u64) -> Self {
        let cluster = Cluster::new(salvor_simulate::cluster(seed).api);
        let stage = Self::of(&cluster);
        stage.home().await;
        stage
    }

    /// Creates the namespace of the operator's Lease, so that this is not one of the operator's writes.
    pub(crate) async fn home(&self) {
        let home: Namespace = serde_json::from_value(json!({"metadata": {"name": "salvor-system"}})).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &home).await.unwrap();
    }

    pub(crate) fn of(cluster: &Cluster) -> Self {
        let happenings = Arc::default();
        let stage = Self { cluster: cluster.clone(), client: cluster.client(), happenings };
        let happenings = stage.happenings.clone();
        cluster.observe(move |change| {
            happenings.lock().unwrap().push(Happening {
                at: change.at,
                change: change.kind,
                resource: change.resource.to_owned(),
                object: change.value.clone(),
            });
        });
        stage
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A healthy node with a Lease.
    pub(crate) async fn node(&self, name: &str) {
        let node = json!({"metadata": {"name": name, "labels": {"pool": "batch"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        let lease: Lease = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        self.leases().create(&PostParams::default(), &lease).await.unwrap();
        self.comes_back(name).await;
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "kube-node-lease")
    }

    /// The control plane loses a node.
    pub(crate) async fn lose(&self, name: &str) {
        self.ready(name, "Unknown").await;
        let (key, now) = ("node.kubernetes.io/unreachable", seconds(self.cluster.now()));
        let lost = [
            json!({"key": key, "effect": "NoSchedule"}),
            json!({"key": key, "effect": "NoExecute", "timeAdded": now}),
        ];
        self.retaint(name, &lost).await;
    }

    /// Its kubelet sends heartbeats again.
    pub(crate) async fn comes_back(&self, name: &str) {
        self.renews(name).await;
        self.ready(name, "True").await;
        self.retaint(name, &[]).await;
    }

    /// Its kubelet reports this boot of its machine.
    pub(crate) async fn boots(&self, name: &str, boot_id: &str) {
        let status = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }

    /// Its kubelet renews its Lease.
    pub(crate) async fn renews(&self, name: &str) {
        let renewed = json!({"spec": {
            "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micros(self.cluster.now()),
        }});
        self.leases().patch(name, &PatchParams::default(), &Patch::Merge(renewed)).await.unwrap();
    }

    async fn ready(&self, name: &str, status: &str) {
        let now = seconds(self.cluster.now());
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": now}]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }

    /// Replaces the taints that node lifecycle sets, and keeps all others.
    async fn retaint(&self, name: &str, lifecycle: &[Value]) {
        let node = self.nodes().get(name).await.unwrap();
        let taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
        let others = taints.into_iter().filter(|t| t.key != "node.kubernetes.io/unreachable");
        let all: Vec<Value> = others
            .map(|taint| serde_json::to_value(taint).unwrap())
            .chain(lifecycle.iter().cloned())
            .collect();
        let patch = Patch::Merge(json!({"spec": {"taints": all}}));
        self.nodes().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// A Job without a controller. Returns its UID.
    pub(crate) async fn job(&self, name: &str, spec: Value) -> String {
        let mut job = json!({
            "metadata": {"name": name},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work"}]}}},
        });
        merge(&mut job, json!({"spec": spec}));
        let job: Job = serde_json::from_value(job).unwrap();
        let jobs: Api<Job> = Api::default_namespaced(self.client.clone());
        jobs.create(&PostParams::default(), &job).await.unwrap().metadata.uid.unwrap()
    }

    /// A pod with a grace period of a second, for the scheduler to place.
    pub(crate) async fn scheduled_pod(&self, name: &str, extra: Value) {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "work"}]},
        });
        merge(&mut pod, extra);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap();
    }

    /// A running pod on a node.
    pub(crate) async fn pod(&self, name: &str, node: &str, mut extra: Value) {
        merge(&mut extra, json!({"spec": {"nodeName": node}}));
        self.scheduled_pod(name, extra).await;
        let running =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(running)).await.unwrap();
    }

    /// Like `pod`, with a deletion in progress.
    pub(crate) async fn terminating(&self, name: &str, node: &str, extra: Value) {
        self.pod(name, node, extra).await;
        self.delete(name).await;
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn phase(&self, name: &str) -> String {
        let pod = self.pods().get(name).await.unwrap();
        pod.status.and_then(|status| status.phase).unwrap_or_default()
    }

    /// When, since the beginning, something happened for the first time.
    pub(crate) fn first(&self, what: impl Fn(&Happening) -> bool) -> Option<Timestamp> {
        self.happenings().into_iter().find(|happening| what(happening)).map(|happening| happening.at)
    }

    /// All that happened, without Leases.
    pub(crate) fn happenings(&self) -> Vec<Happening> {
        let mut all = self.happenings_with_leases();
        all.retain(|happening| happening.resource != "leases");
        all
    }

    pub(crate) fn happenings_with_leases(&self) -> Vec<Happening> {
        self.happenings.lock().unwrap().clone()
    }

    /// The objects of a resource by name, as they are now. Costs no request, and nothing is decoded.
    pub(crate) fn objects(&self, resource: &str) -> BTreeMap<String, Arc<Value>> {
        let mut objects = BTreeMap::new();
        let all = self.happenings.lock().unwrap();
        for Happening { change, object, .. } in all.iter().filter(|it| it.resource == resource) {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            match change {
                ChangeKind::Added | ChangeKind::Modified => objects.insert(name, object.clone()),
                ChangeKind::Removed => objects.remove(&name),
            };
        }
        objects
    }

    /// Lets everything that is due at this instant happen first.
    pub(crate) async fn settle(&self) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// The number of changes so far, without those of Leases. While it is the same, so is the cluster.
    pub(crate) fn revision(&self) -> usize {
        self.happenings.lock().unwrap().iter().filter(|happening| happening.resource != "leases").count()
    }

    /// All messages of events and conditions since then.
    pub(crate) fn said_since(&self, since: Timestamp) -> String {
        let all = self.happenings().into_iter().filter(|it| it.at >= since);
        let said = all.map(|it| {
            let object = &it.object;
            format!("{} {} {}\n", object["message"], object["note"], object["status"]["conditions"])
        });
        said.collect()
    }

    /// The final state of every pod, node and event, without differences that a crash may cause: times, revisions, and
    /// which of several processes it was.
    pub(crate) fn end(&self) -> BTreeMap<String, Value> {
        let mut end = BTreeMap::new();
        let last: BTreeMap<_, _> = self.happenings().into_iter().map(|it| (it.name(), it)).collect();
        for (name, Happening { change, resource, object, .. }) in last {
            let mut object = Value::clone(&object);
            forget(&mut object);
            if resource == "events" {
                // The name contains the time, and the text depends on whether it is recorded at once or later.
                object["metadata"] = Value::Null;
                object["message"] = Value::Null;
            }
            for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
                // Our annotations on a node contain times.
                if resource == "nodes" {
                    condition["message"] = Value::Null;
                }
            }
            end.insert(name, json!([format!("{change:?}"), object]));
        }
        end
    }

    /// How often every object was changed.
    pub(crate) fn changes(&self) -> BTreeMap<String, usize> {
        let mut changes = BTreeMap::new();
        for happening in self.happenings() {
            *changes.entry(format!("{:?} {}", happening.change, happening.name())).or_default() += 1;
        }
        changes
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Happening {
    pub(crate) at: Timestamp,
    pub(crate) change: ChangeKind,
    pub(crate) resource: String,
    pub(crate) object: Arc<Value>,
}

impl Happening {
    pub(crate) fn name(&self) -> String {
        let name = self.object["metadata"]["name"].as_str().unwrap();
        // The names of events about nodes end in the second of the incident.
        let name = if self.resource == "events" { name.split('.').next().unwrap() } else { name };
        format!("{} {name}", self.resource)
    }
}

fn forget(value: &mut Value) {
    const PASSING: [&str; 12] = [
        "resourceVersion",
        "managedFields",
        "creationTimestamp",
        "deletionTimestamp",
        "lastHeartbeatTime",
        "lastTransitionTime",
        "timeAdded",
        "eventTime",
        "firstTimestamp",
        "lastTimestamp",
        "reportingInstance",
        "zombie.salvor.dev/out-of-service-since",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !PASSING.contains(&key.as_str()));
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
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
