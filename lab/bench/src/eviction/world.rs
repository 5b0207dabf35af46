//! Dead nodes with pods and attached volumes, created without kubelets; and what detaches a volume once its node
//! releases it.

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use futures::AsyncBufReadExt;
use http::{Method, Request};
use kube::Client;
use serde::Deserialize;
use serde_json::json;

use crate::{
    requests::{JSON, MERGE, STRATEGIC, concurrently, send},
    zombie::world::{MadePod, WantedPod, make_namespace, make_pods_that_tolerate_nothing},
};

/// The number of concurrent requests during setup.
const AT_ONCE: usize = 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) volumes: usize,
}

/// Dead nodes with their own namespace.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) namespace: String,
    pub(crate) nodes: Vec<String>,
    pub(crate) pods: Vec<MadePod>,
    volumes: usize,
}

pub(crate) fn volume_in_use(node: &str, number: usize) -> String {
    format!("kubernetes.io/csi/disk.example.com^{node}-{number}")
}

impl Set {
    pub(crate) async fn make(client: &Client, namespace: String, shape: Shape) -> Result<Self, String> {
        let nodes: Vec<String> = (0..shape.nodes).map(|i| format!("{namespace}-{i:03}")).collect();
        make_namespace(client, &namespace).await?;
        let own = client.clone();
        concurrently(AT_ONCE, nodes.clone(), move |node| {
            let client = own.clone();
            async move { make_dead_node(&client, &node, shape.volumes).await }
        })
        .await?;
        let wanted = (0..shape.nodes * shape.pods).map(|i| WantedPod {
            name: format!("work-{i:05}"),
            node: nodes[i % nodes.len()].clone(),
            annotation: None,
        });
        let pods = make_pods_that_tolerate_nothing(client, &namespace, wanted.collect()).await?;
        Ok(Self { namespace, nodes, pods, volumes: shape.volumes })
    }

    pub(crate) fn names(&self) -> HashSet<String> {
        self.pods.iter().map(|pod| pod.name.clone()).collect()
    }
}

async fn make_dead_node(client: &Client, node: &str, volumes: usize) -> Result<(), String> {
    let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
    send(client, Method::POST, "/api/v1/nodes", JSON, &body).await?;
    let in_use: Vec<String> = (0..volumes).map(|i| volume_in_use(node, i)).collect();
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}],
        "volumesInUse": in_use,
    }});
    send(client, Method::PATCH, &format!("/api/v1/nodes/{node}/status"), STRATEGIC, &status).await?;
    for number in 0..volumes {
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": format!("{node}-{number}")},
            "spec": {
                "attacher": "disk.example.com", "nodeName": node,
                "source": {"persistentVolumeName": format!("{node}-{number}")},
            },
        });
        send(client, Method::POST, "/apis/storage.k8s.io/v1/volumeattachments", JSON, &body).await?;
    }
    Ok(())
}

/// Requests the eviction of all nodes of a set.
pub(crate) async fn request(client: &Client, set: &Set) -> Result<(), String> {
    let client = client.clone();
    concurrently(AT_ONCE, set.nodes.clone(), move |node| {
        let client = client.clone();
        async move {
            let taints =
                json!([{"key": "salvor.dev/force-eviction", "value": "bench", "effect": "NoSchedule"}]);
            let body = json!({"spec": {"taints": taints}});
            send(&client, Method::PATCH, &format!("/api/v1/nodes/{node}"), MERGE, &body).await
        }
    })
    .await
    .map(|_| ())
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: NodeSeen,
}

#[derive(Deserialize)]
struct NodeSeen {
    metadata: Meta,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    name: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    volumes_in_use: Vec<String>,
}

#[derive(Deserialize)]
struct List {
    metadata: Meta,
}

/// Plays attach/detach controller and driver: a node that has released its volumes loses its attachments.
pub(crate) struct Detacher {
    client: Client,
    lines: std::pin::Pin<Box<dyn futures::AsyncBufRead + Send>>,
    awaited: HashMap<String, usize>,
}

impl Detacher {
    /// Starts to watch; releases from now on are seen.
    pub(crate) async fn start(client: Client, set: &Set) -> Result<Self, String> {
        let get = |query: &str| {
            let request = Request::get(format!("/api/v1/nodes?{query}")).body(Vec::new());
            request.map_err(|e| e.to_string())
        };
        let list = client.request_text(get("limit=1")?).await.map_err(|e| e.to_string())?;
        let List { metadata } = serde_json::from_str(&list).map_err(|e| e.to_string())?;
        let query = format!("watch=true&timeoutSeconds=900&resourceVersion={}", metadata.resource_version);
        let lines = client.request_stream(get(&query)?).await.map_err(|e| e.to_string())?;
        let awaited = set.nodes.iter().map(|node| (node.clone(), set.volumes)).collect();
        Ok(Self { client, lines: Box::pin(lines), awaited })
    }

    /// Waits until every volume is free. Returns when that was.
    pub(crate) async fn until_free(mut self) -> Result<Instant, String> {
        let mut line = Vec::new();
        let mut detaching = Vec::new();
        while !self.awaited.is_empty() {
            line.clear();
            let read = self.lines.read_until(b'\n', &mut line).await.map_err(|e| e.to_string())?;
            if read == 0 {
                return Err("the watch of nodes ended".to_owned());
            }
            let Line { kind, object } = serde_json::from_slice(&line).map_err(|e| e.to_string())?;
            if kind != "MODIFIED" || !object.status.volumes_in_use.is_empty() {
                continue;
            }
            let node = object.metadata.name;
            let Some(volumes) = self.awaited.remove(&node) else { continue };
            for number in 0..volumes {
                let client = self.client.clone();
                let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{node}-{number}");
                detaching.push(tokio::spawn(async move {
                    send(&client, Method::DELETE, &path, JSON, &json!({})).await.map(|_| Instant::now())
                }));
            }
        }
        let mut last = Instant::now();
        for detached in detaching {
            last = last.max(detached.await.map_err(|e| e.to_string())??);
        }
        Ok(last)
    }
}
