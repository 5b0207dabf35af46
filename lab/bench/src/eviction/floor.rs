//! The bare requests of an eviction, as many at once as Salvor sends: no decisions, no reads, no watch, no state.

use std::sync::Arc;

use futures::future::{try_join, try_join_all};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::world::Set;
use crate::{
    requests::{JSON, MERGE, STRATEGIC, send},
    zombie::world::MadePod,
};

/// The default of Salvor's `concurrency.writes`.
const AT_ONCE: usize = 32;
const MESSAGE: &str = "Node bench-floor-000 is down and its pods were evicted by force (requested by taint salvor.dev/force-eviction=bench:NoSchedule)";

/// Sends the writes of an eviction for every node and pod: all nodes at once, each step by step.
pub(crate) async fn run(client: &Client, set: Set) -> Result<(), String> {
    let bare = Bare { client: client.clone(), permits: Arc::new(Semaphore::new(AT_ONCE)) };
    let nodes =
        set.nodes.iter().map(|node| {
            let pods: Vec<MadePod> = set.pods.iter().filter(|pod| pod.node == *node).cloned().collect();
            let (bare, node) = (bare.clone(), node.clone());
            async move {
                tokio::spawn(async move { bare.empty(&node, pods).await }).await.map_err(|e| e.to_string())?
            }
        });
    try_join_all(nodes).await.map(|_| ())
}

/// A client with a limited number of concurrent requests.
#[derive(Clone)]
struct Bare {
    client: Client,
    permits: Arc<Semaphore>,
}

impl Bare {
    async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> Result<(), String> {
        send(&self.client, method, path, kind, body).await.map(|_| ())
    }

    /// Runs this when a slot is free. The slot covers a pod's whole sequence of requests.
    async fn in_turn(&self, work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
        let _permit = self.permits.acquire().await.map_err(|e| e.to_string())?;
        work.await
    }

    /// One node: requested, started and reported; then its pods; then its volumes, and the end.
    async fn empty(&self, node: &str, pods: Vec<MadePod>) -> Result<(), String> {
        let path = format!("/api/v1/nodes/{node}");
        let taint =
            |effect: &str| json!({"key": "bench.example.com/floor", "value": "bench", "effect": effect});
        let asked = json!({"spec": {"taints": [taint("NoSchedule")]}});
        self.in_turn(self.send(Method::PATCH, &path, MERGE, &asked)).await?;
        let begun = json!({
            "metadata": {"annotations": {"bench.example.com/progress": "started"}},
            "spec": {"taints": [taint("NoSchedule"), taint("NoExecute")]},
        });
        self.in_turn(self.send(Method::PATCH, &path, MERGE, &begun)).await?;
        let told = async {
            self.in_turn(self.tell("default", &format!("started.{node}"), &regarding_node(node))).await?;
            self.in_turn(self.report(node, "EvictingPods", &json!({}))).await
        };
        try_join(told, try_join_all(pods.iter().map(|pod| self.in_turn(self.evict(pod))))).await?;
        self.in_turn(self.report(node, "EvictingPods", &json!({"volumesInUse": []}))).await?;
        self.in_turn(self.report(node, "DetachingVolumes", &json!({}))).await?;
        self.in_turn(self.report(node, "NodeEvicted", &json!({}))).await?;
        self.in_turn(self.tell("default", &format!("finished.{node}"), &regarding_node(node))).await
    }

    async fn report(&self, node: &str, reason: &str, status: &Value) -> Result<(), String> {
        let condition = json!({
            "type": "BenchFloor", "status": "True", "reason": reason, "message": MESSAGE,
            "lastHeartbeatTime": now(), "lastTransitionTime": now(),
        });
        let mut status = status.clone();
        status["conditions"] = json!([condition]);
        let body =
            json!({"metadata": {"annotations": {"bench.example.com/progress": reason}}, "status": status});
        self.send(Method::PATCH, &format!("/api/v1/nodes/{node}/status"), STRATEGIC, &body).await
    }

    async fn evict(&self, pod: &MadePod) -> Result<(), String> {
        let MadePod { namespace, name, uid, resource_version, .. } = pod;
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "ForceEvictionBySalvor", "message": MESSAGE,
            "lastTransitionTime": now(),
        });
        let patch = json!({
            "metadata": {"uid": uid, "resourceVersion": resource_version},
            "status": {"phase": "Failed", "conditions": [condition]},
        });
        let status = format!("{}/status?fieldManager=bench-floor", pod.path());
        self.send(Method::PATCH, &status, STRATEGIC, &patch).await?;
        let regarding =
            json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
        self.tell(namespace, &format!("evicted.{uid}"), &regarding).await?;
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
        self.send(Method::DELETE, &pod.path(), JSON, &options).await
    }

    async fn tell(&self, namespace: &str, name: &str, regarding: &Value) -> Result<(), String> {
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
            "type": "Warning",
            "reason": "ForceEvictionBySalvor",
            "action": "EvictPod",
            "note": MESSAGE,
            "regarding": regarding,
            "reportingController": "salvor-eviction",
            "reportingInstance": "bench-floor",
        });
        let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        self.send(Method::POST, &events, JSON, &event).await
    }
}

fn regarding_node(node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node})
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
