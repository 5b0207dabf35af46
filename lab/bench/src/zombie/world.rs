//! Nodes and pods created directly: no kubelet runs them, and no other controller handles them.

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::requests::{JSON, MERGE, concurrently, send};

/// Consent to be marked Failed.
pub(crate) const TERMINATE: &str = "kueue.x-k8s.io/safe-to-forcefully-terminate";
/// Consent to be marked Failed and deleted.
pub(crate) const DELETE: &str = "kueue.x-k8s.io/safe-to-forcefully-delete";

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The number of concurrent requests during setup.
const AT_ONCE: usize = 32;
/// Gives a pod about ten kilobytes, including its managedFields.
const VARIABLES: usize = 62;

#[derive(Clone, Debug)]
pub(crate) struct MadePod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) resource_version: String,
    /// Its size as JSON.
    pub(crate) bytes: usize,
}

#[derive(Deserialize)]
struct Answer {
    metadata: AnswerMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerMeta {
    uid: String,
    resource_version: String,
}

impl MadePod {
    fn from_answer(namespace: &str, name: &str, node: &str, answer: &str) -> Result<Self, String> {
        let Answer { metadata } =
            serde_json::from_str(answer).map_err(|e| format!("pod {namespace}/{name}: {e}"))?;
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            node: node.to_owned(),
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            bytes: answer.len(),
        })
    }

    /// Its path in the API.
    pub(crate) fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct WantedPod {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) annotation: Option<(&'static str, &'static str)>,
}

pub(crate) async fn make_namespace(client: &Client, name: &str) -> Result<(), String> {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    send(client, Method::POST, "/api/v1/namespaces", JSON, &body).await.map(|_| ())
}

/// Creates nodes without a Lease whose `Ready` condition has this status.
pub(crate) async fn make_nodes(
    client: &Client,
    names: Vec<String>,
    ready: &'static str,
) -> Result<(), String> {
    let client = client.clone();
    concurrently(AT_ONCE, names, move |name| {
        let client = client.clone();
        async move {
            let body = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Bench"}]},
            });
            send(&client, Method::POST, "/api/v1/nodes", JSON, &body).await
        }
    })
    .await
    .map(|_| ())
}

/// What node lifecycle does when it has lost nodes.
pub(crate) async fn lose_nodes(client: &Client, names: &[String]) -> Result<(), String> {
    let client = client.clone();
    concurrently(AT_ONCE, names.to_vec(), move |name| {
        let client = client.clone();
        async move {
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let taints = json!([
                {"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": now},
                {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": now},
            ]);
            let body = json!({"spec": {"taints": taints}});
            send(&client, Method::PATCH, &format!("/api/v1/nodes/{name}"), MERGE, &body).await
        }
    })
    .await
    .map(|_| ())
}

pub(crate) async fn make_pods(
    client: &Client,
    namespace: &str,
    pods: Vec<WantedPod>,
) -> Result<Vec<MadePod>, String> {
    make(client, namespace, pods, json!([{"operator": "Exists"}])).await
}

/// Like `make_pods`, for nodes that are to be evicted.
pub(crate) async fn make_pods_that_tolerate_nothing(
    client: &Client,
    namespace: &str,
    pods: Vec<WantedPod>,
) -> Result<Vec<MadePod>, String> {
    make(client, namespace, pods, json!([])).await
}

async fn make(
    client: &Client,
    namespace: &str,
    pods: Vec<WantedPod>,
    tolerations: Value,
) -> Result<Vec<MadePod>, String> {
    let (client, namespace) = (client.clone(), namespace.to_owned());
    concurrently(AT_ONCE, pods, move |pod| {
        let (client, namespace) = (client.clone(), namespace.clone());
        let mut manifest = manifest(&pod);
        manifest["spec"]["tolerations"] = tolerations.clone();
        async move {
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            let answer = send(&client, Method::POST, &path, JSON, &manifest).await?;
            MadePod::from_answer(&namespace, &pod.name, &pod.node, &answer)
        }
    })
    .await
}

/// Requests the deletion of pods. Without a kubelet they stay; they are zombies a minute and a second later.
pub(crate) async fn mark_deleted(client: &Client, pods: Vec<MadePod>) -> Result<Vec<MadePod>, String> {
    let client = client.clone();
    concurrently(AT_ONCE, pods, move |pod| {
        let client = client.clone();
        async move {
            let answer = send(&client, Method::DELETE, &pod.path(), JSON, &json!({})).await?;
            MadePod::from_answer(&pod.namespace, &pod.name, &pod.node, &answer)
        }
    })
    .await
}

/// A training pod with a long environment, as launchers write them.
fn manifest(pod: &WantedPod) -> Value {
    let variables: Vec<Value> = (0..VARIABLES)
        .map(|i| json!({"name": format!("TRAINING_SETTING_{i:03}"), "value": format!("/data/shard-{i:03}/part")}))
        .collect();
    let annotations: Map<String, Value> =
        pod.annotation.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "labels": {"app": "training", "team": "research"},
            "annotations": annotations,
        },
        "spec": {
            "nodeName": pod.node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "example.org/training:1",
                "env": variables,
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            }],
        },
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consent {
    Terminate,
    Delete,
}

impl Consent {
    pub(crate) fn annotation(self) -> &'static str {
        match self {
            Self::Terminate => TERMINATE,
            Self::Delete => DELETE,
        }
    }
}
