//! A small control plane with hand-made nodes and pods: the test itself plays every controller.

use std::time::Duration;

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::VolumeAttachment,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use salvor_testkit::{Plane, Salvor, Site, wait};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::stage::{KEY, PROGRESS, annotate, condition, is_finished, salvor, taint};

pub(crate) struct Stage {
    pub(crate) plane: Plane,
    pub(crate) client: Client,
}

impl Stage {
    pub(crate) async fn new(site: Site) -> Self {
        let plane = site.api_server().await;
        let client = plane.admin().in_namespace("default").client("stage");
        Self { plane, client }
    }

    pub(crate) fn salvor(&self, configuration: &str, environment: &[(&str, &str)]) -> Salvor {
        salvor(&self.plane.admin(), configuration, environment)
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// A node whose kubelet became silent a while ago.
    pub(crate) async fn dead_node(&self, name: &str, volumes_in_use: &[&str]) -> Node {
        self.node(name, json!({}), "Unknown", volumes_in_use).await;
        self.lease(name, 120, 40).await;
        self.nodes().get(name).await.unwrap()
    }

    pub(crate) async fn node(&self, name: &str, metadata: Value, ready: &str, volumes_in_use: &[&str]) {
        let mut metadata = metadata;
        metadata["name"] = name.into();
        create(&self.nodes(), json!({ "metadata": metadata })).await;
        // The API server taints every new node, and no node lifecycle controller removes the taint here.
        let schedulable = Patch::Merge(json!({"spec": {"taints": null}}));
        self.nodes().patch(name, &PatchParams::default(), &schedulable).await.unwrap();
        let attached: Vec<Value> =
            volumes_in_use.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        self.set_status(
            name,
            json!({
                "conditions": [{"type": "Ready", "status": ready, "reason": "test"}],
                "volumesInUse": volumes_in_use,
                "volumesAttached": attached,
            }),
        )
        .await;
    }

    /// A node that came back while it was being evicted at a person's request. Pods that are created in the next half
    /// minute count as older than that.
    pub(crate) async fn returned_node(&self, name: &str) {
        self.node(name, json!({}), "True", &[]).await;
        self.lease(name, 0, 3600).await;
        let began = seconds(Timestamp::now().as_second() + 30);
        let progress = json!({"started": began, "request": format!("{KEY}:NoSchedule")}).to_string();
        annotate(&self.nodes(), name, json!({ PROGRESS: progress })).await;
        taint(&self.client, name, "", &["NoSchedule", "NoExecute"]).await;
    }

    pub(crate) async fn set_status(&self, node: &str, status: Value) {
        let patch = Patch::Strategic(json!({ "status": status }));
        self.nodes().patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Its Lease was renewed `seconds_ago` seconds ago and lasts `lasts` seconds.
    pub(crate) async fn lease(&self, node: &str, seconds_ago: i64, lasts: i64) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let renewed = Timestamp::from_second(Timestamp::now().as_second() - seconds_ago).unwrap();
        let renewed = renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
            "spec": {"holderIdentity": node, "renewTime": renewed, "leaseDurationSeconds": lasts},
        });
        let force = PatchParams { force: true, ..PatchParams::apply("stage") };
        leases.patch(node, &force, &Patch::Apply(lease)).await.unwrap();
    }

    /// A running pod on a node, as its kubelet last reported it.
    pub(crate) async fn pod(&self, name: &str, node: &str, extra: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "work"}]},
        });
        merge(&mut pod, extra);
        create(&self.pods(), pod.clone()).await;
        let running = Patch::Strategic(json!({"status": {"phase": "Running"}}));
        match self.pods().patch_status(name, &PatchParams::default(), &running).await {
            Ok(pod) => pod,
            // On a node that is being evicted, Salvor may be faster.
            Err(kube::Error::Api(status)) if status.code == 404 => serde_json::from_value(pod).unwrap(),
            Err(error) => panic!("the pod {name} cannot be started: {error}"),
        }
    }

    /// Waits until anything that begins now is later than this pod by API time, which has a resolution of a second.
    pub(crate) async fn until_later_than(&self, pod: &Pod) {
        let created = pod.metadata.creation_timestamp.as_ref().unwrap().0.as_second();
        while Timestamp::now().as_second() < created + 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A volume with its claim, attached to a node. Returns the node's name for it.
    pub(crate) async fn volume(&self, name: &str, node: &str) -> String {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        create(&attachments, json!({
            "metadata": {"name": name},
            "spec": {"attacher": "disk.example.com", "nodeName": node, "source": {"persistentVolumeName": name}},
        }))
        .await;
        self.claimed_volume(name).await
    }

    /// A volume with its claim. Returns a node's name for it.
    pub(crate) async fn claimed_volume(&self, name: &str) -> String {
        self.claim(name, json!({"csi": {"driver": "disk.example.com", "volumeHandle": name}})).await;
        format!("kubernetes.io/csi/disk.example.com^{name}")
    }

    /// A claim to a volume of a kind that is never attached.
    pub(crate) async fn nfs_claim(&self, name: &str) {
        self.claim(name, json!({"nfs": {"server": "files", "path": "/"}})).await;
    }

    /// A claim with these access modes that is not bound.
    pub(crate) async fn unbound_claim(&self, name: &str, modes: &[&str]) {
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let size = json!({"storage": "1Gi"});
        let spec = json!({"accessModes": modes, "resources": {"requests": size}, "storageClassName": "disk"});
        create(&claims, json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    async fn claim(&self, name: &str, source: Value) {
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let size = json!({"storage": "1Gi"});
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "capacity": size, "storageClassName": "disk",
            "claimRef": {"namespace": "default", "name": name},
        });
        merge(&mut spec, source);
        create(&volumes, json!({"metadata": {"name": name}, "spec": spec})).await;
        create(&claims, json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": size}, "storageClassName": "disk",
                "volumeName": name,
            },
        }))
        .await;
    }

    /// Requests the eviction of a node and waits until it is finished.
    pub(crate) async fn evict(&self, node: &str) -> Node {
        // Starts to watch before the request, because the mark of the end may soon be removed.
        let nodes = self.nodes();
        let end = wait::for_object(&nodes, node, "its eviction is finished", is_finished);
        tokio::join!(end, taint(&self.client, node, "INC-1", &["NoSchedule"])).0
    }

    /// Waits until Salvor has decided about everything so far: a node requested now is evicted.
    pub(crate) async fn until_all_is_judged(&self) {
        let name = format!("probe-{}", Timestamp::now().as_millisecond());
        self.dead_node(&name, &[]).await;
        taint(&self.client, &name, "INC-1", &["NoSchedule"]).await;
        // The condition stays. The mark may be removed before the test reads it.
        wait::for_object(&self.nodes(), &name, "the probe is emptied", |node| {
            condition(node, "ForceEviction").is_some_and(|(_, reason)| reason == "Finished")
        })
        .await;
    }
}

/// A time in the format of the API.
pub(crate) fn seconds(since_1970: i64) -> String {
    Timestamp::from_second(since_1970).unwrap().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn claiming(claim: &str) -> Value {
    json!({"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}})
}

/// Owned by a missing object of a kind of the group `apps`. A garbage collector would delete the pod.
pub(crate) fn owned_by(kind: &str) -> Value {
    owned_by_any("apps/v1", kind)
}

/// Owned by an object of any kind. If the API does not serve the kind, its absence cannot be determined.
pub(crate) fn owned_by_any(version: &str, kind: &str) -> Value {
    let owner =
        json!({"apiVersion": version, "kind": kind, "name": "owner", "uid": "owner-uid", "controller": true});
    json!({"metadata": {"ownerReferences": [owner]}})
}

pub(crate) fn tolerating(seconds: Option<i64>) -> Value {
    json!({"spec": {"tolerations": [{
        "key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
    }]}})
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

pub(crate) fn both(mut one: Value, other: Value) -> Value {
    merge(&mut one, other);
    one
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}
