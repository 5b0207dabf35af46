//! Nodes with their NodeClaims, created directly with a realistic size; there are no kubelets and no controllers.

use std::{ops::Range, path::Path, process::Command, time::Duration};

use http::Method;
use jiff::Timestamp;
use kube::Client;
use salvor_testkit::{ControlPlane, peers, peers::Peer, wait::Patience};
use serde_json::{Value, json};

use crate::requests::{JSON, MERGE, STRATEGIC, concurrently, send};

/// The number of concurrent requests during setup.
const AT_ONCE: usize = 32;
const POLICY: &str = "/apis/salvor.dev/v1alpha1/noderepairpolicies";
const CLAIMS: &str = "/apis/karpenter.sh/v1/nodeclaims";
const BAD: &str = "AcceleratedHardwareReady";
/// The conditions of all unhealthy nodes are written by then.
const TOLD_BY: Duration = Duration::from_secs(300);

/// The reason for blocking that an unhealthy node reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Paused,
    TooManyUnhealthy,
}

impl Held {
    /// Words of the condition's message that are unique to this reason.
    fn words(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::TooManyUnhealthy => "unhealthyLimit",
        }
    }
}

/// Installs the CRDs: Karpenter's, and ours from the manifests.
pub(crate) async fn install(plane: &ControlPlane, salvor: &Path) -> Result<(), String> {
    let machines = Peer::Machines.folder().map_err(|e| e.to_string())?;
    peers::install(&plane.admin(), &machines.join("crds"), |_| ()).await?;
    let output = Command::new(salvor).args(["manifests", "--controllers", "repair"]).output();
    let output = output.map_err(|e| format!("{}: {e}", salvor.display()))?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&String::from_utf8_lossy(&output.stdout)).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let definitions = documents.iter().filter(|document| document["kind"] == "CustomResourceDefinition");
    for (number, definition) in definitions.enumerate() {
        let file = folder.path().join(format!("{number}.yaml"));
        std::fs::write(&file, definition.to_string()).map_err(|e| e.to_string())?;
    }
    peers::install(&plane.admin(), folder.path(), |_| ()).await
}

fn name(number: usize) -> String {
    format!("gpu-{number:05}")
}

/// Creates the policy, paused.
pub(crate) async fn begin(client: &Client) -> Result<(), String> {
    let policy = json!({
        "apiVersion": "salvor.dev/v1alpha1", "kind": "NodeRepairPolicy", "metadata": {"name": "gpu"},
        "spec": {
            "nodeSelector": {"matchLabels": {"karpenter.sh/nodepool": "gpu"}},
            "policies": [{"conditionType": BAD, "conditionStatus": "False", "toleration": "10m"}],
            "unhealthyLimit": 1,
            "paused": true,
        },
    });
    send(client, Method::POST, POLICY, JSON, &policy).await?;
    Ok(())
}

/// Creates the nodes with these numbers; the first ones of all are unhealthy. Returns the size in bytes of a Node and
/// of a NodeClaim as JSON.
pub(crate) async fn fill(
    client: &Client,
    numbers: Range<usize>,
    sick: usize,
) -> Result<(usize, usize), String> {
    let own = client.clone();
    let sizes = concurrently(AT_ONCE, numbers, move |number| {
        let client = own.clone();
        async move { make(&client, number, number < sick).await }
    })
    .await?;
    Ok(sizes.first().copied().unwrap_or_default())
}

async fn make(client: &Client, number: usize, is_sick: bool) -> Result<(usize, usize), String> {
    let claim = format!("{}-claim", name(number));
    send(client, Method::POST, CLAIMS, JSON, &claim_of(number)).await?;
    let status = json!({"status": claim_status(number)});
    let claim = send(client, Method::PATCH, &format!("{CLAIMS}/{claim}/status"), MERGE, &status).await?;
    let node = send(client, Method::POST, "/api/v1/nodes", JSON, &node(number, is_sick)).await?;
    Ok((node.len(), claim.len()))
}

fn labels(number: usize) -> Value {
    json!({
        "kubernetes.io/hostname": name(number), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "region-1",
        // Enough zones that none is unhealthy as a whole.
        "topology.kubernetes.io/zone": format!("zone-{}", number % 9),
        "node.kubernetes.io/instance-type": "gpu-8x.large",
        "karpenter.sh/nodepool": "gpu", "karpenter.sh/capacity-type": "on-demand",
        "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
    })
}

fn whole(ago: Duration) -> String {
    let then = Timestamp::now() - ago;
    Timestamp::from_second(then.as_second()).unwrap_or(then).to_string()
}

fn node(number: usize, is_sick: bool) -> Value {
    let (long_ago, now) = (whole(Duration::from_hours(24)), whole(Duration::ZERO));
    let condition = |kind: &str, status: &str, since: &str| {
        json!({
            "type": kind, "status": status, "reason": "KubeletSays", "message": "as the kubelet has it",
            "lastTransitionTime": since, "lastHeartbeatTime": now,
        })
    };
    let hour = whole(Duration::from_hours(1));
    let hardware = if is_sick { condition(BAD, "False", &hour) } else { condition(BAD, "True", &long_ago) };
    let images: Vec<Value> = (0..20)
        .map(|image| {
            json!({"names": [format!("registry.example.com/team/image-{image}:v1.{image}.0")], "sizeBytes": 123_456_789})
        })
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name(number), "labels": labels(number), "annotations": {
            "volumes.kubernetes.io/controller-managed-attach-detach": "true", "node.alpha.kubernetes.io/ttl": "0",
        }},
        "spec": {"providerID": format!("kwok://{}", name(number)), "podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": [
                condition("MemoryPressure", "False", &long_ago),
                condition("DiskPressure", "False", &long_ago),
                condition("PIDPressure", "False", &long_ago),
                condition("Ready", "True", &long_ago),
                hardware,
            ],
            "images": images,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name(number)}],
        },
    })
}

fn claim_of(number: usize) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": format!("{}-claim", name(number)), "labels": labels(number),
            "finalizers": ["karpenter.sh/termination"],
        },
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            "requirements": [],
        },
    })
}

fn claim_status(number: usize) -> Value {
    let now = whole(Duration::ZERO);
    let conditions: Vec<Value> = ["Launched", "Registered", "Initialized", "Ready"]
        .iter()
        .map(|kind| {
            json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": now})
        })
        .collect();
    json!({"nodeName": name(number), "providerID": format!("kwok://{}", name(number)), "conditions": conditions})
}

/// Pauses or resumes the policy.
pub(crate) async fn pause(client: &Client, paused: bool) -> Result<(), String> {
    let body = json!({"spec": {"paused": paused}});
    send(client, Method::PATCH, &format!("{POLICY}/gpu"), MERGE, &body).await.map(|_| ())
}

/// Writes a condition of an unhealthy node, as large as Salvor's.
pub(crate) async fn touch(client: &Client, number: usize) -> Result<(), String> {
    let condition = json!({
        "type": "Bench", "status": "False", "reason": "Measured",
        "message": format!("one bare write of a condition in the size of ours, number {number}: {}", "x".repeat(100)),
        "lastTransitionTime": whole(Duration::ZERO), "lastHeartbeatTime": whole(Duration::ZERO),
    });
    let body = json!({"status": {"conditions": [condition]}});
    let path = format!("/api/v1/nodes/{}/status", name(number));
    send(client, Method::PATCH, &path, STRATEGIC, &body).await.map(|_| ())
}

/// Waits until every unhealthy node reports this reason.
pub(crate) async fn until_told(client: &Client, sick: usize, held: Held) -> Result<(), String> {
    let all_tell = async {
        // Nodes that reported it once need not be read again.
        let mut missing: Vec<usize> = (0..sick).collect();
        while let Some(number) = missing.last() {
            let path = format!("/api/v1/nodes/{}", name(*number));
            let text = send(client, Method::GET, &path, JSON, &Value::Null).await?;
            let node: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let conditions = node["status"]["conditions"].as_array();
            let ours = conditions.into_iter().flatten().find(|it| it["type"] == "SalvorRepair");
            let message = ours.and_then(|it| it["message"].as_str()).unwrap_or_default();
            if message.contains(held.words()) {
                missing.pop();
            } else {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok::<_, String>(())
    };
    Patience::of(TOLD_BY).until(all_tell).await.unwrap_or(Err(format!("not every node tells {held:?}")))
}
