//! The bare requests of an eviction, by as many clients at once as Salvor has: no judgement, no watch, nothing kept.

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use super::world::Set;
use crate::{
    requests::{JSON, MERGE, STRATEGIC, concurrently, send},
    zombie::world::MadePod,
};

/// The default of Salvor's `concurrency.writes`.
const AT_ONCE: usize = 32;
const MESSAGE: &str = "Node bench-floor-000 is down and was emptied by force, asked for by taint salvor.dev/force-eviction=bench:NoSchedule";

/// Does to every node and pod what an eviction does.
pub(crate) async fn run(client: &Client, set: Set) -> Result<(), String> {
    let own = client.clone();
    concurrently(AT_ONCE, set.nodes.clone(), move |node| {
        let client = own.clone();
        async move {
            let taints = json!([{"key": "bench.example.com/floor", "value": "bench", "effect": "NoExecute"}]);
            let annotations = json!({"bench.example.com/progress": "started"});
            let body = json!({"metadata": {"annotations": annotations}, "spec": {"taints": taints}});
            send(&client, Method::PATCH, &format!("/api/v1/nodes/{node}"), MERGE, &body).await
        }
    })
    .await?;
    let own = client.clone();
    concurrently(AT_ONCE, set.pods, move |pod| {
        let client = own.clone();
        async move { evict(&client, &pod).await }
    })
    .await?;
    let own = client.clone();
    concurrently(AT_ONCE, set.nodes, move |node| {
        let client = own.clone();
        async move {
            let body = json!({"status": {"volumesInUse": []}});
            send(&client, Method::PATCH, &format!("/api/v1/nodes/{node}/status"), STRATEGIC, &body).await
        }
    })
    .await
    .map(|_| ())
}

async fn evict(client: &Client, pod: &MadePod) -> Result<(), String> {
    let MadePod { namespace, name, uid, resource_version, .. } = pod;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "ForceEvictionBySalvor", "message": MESSAGE,
        "lastTransitionTime": now,
    });
    let patch = json!({
        "metadata": {"uid": uid, "resourceVersion": resource_version},
        "status": {"phase": "Failed", "conditions": [condition]},
    });
    let status = format!("{}/status?fieldManager=bench-floor", pod.path());
    send(client, Method::PATCH, &status, STRATEGIC, &patch).await?;
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("evicted.{uid}"), "namespace": namespace},
        "eventTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        "type": "Warning",
        "reason": "ForceEvictionBySalvor",
        "action": "EvictPod",
        "note": MESSAGE,
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "reportingController": "salvor-eviction",
        "reportingInstance": "bench-floor",
    });
    let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    send(client, Method::POST, &events, JSON, &event).await?;
    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    send(client, Method::DELETE, &pod.path(), JSON, &options).await.map(|_| ())
}
