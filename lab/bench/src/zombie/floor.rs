//! The bare requests of a recovery, as many at once as Salvor sends: no decisions, no watch, no state.

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use super::world::{Consent, MadePod};
use crate::requests::{JSON, STRATEGIC, concurrently, send};

/// The default of Salvor's `concurrency.writes`.
const AT_ONCE: usize = 32;

/// Sends the writes of a recovery for every pod.
pub(crate) async fn run(client: &Client, consent: Consent, pods: Vec<MadePod>) -> Result<(), String> {
    let client = client.clone();
    concurrently(AT_ONCE, pods, move |pod| {
        let client = client.clone();
        async move { recover(&client, consent, &pod).await }
    })
    .await
    .map(|_| ())
}

async fn recover(client: &Client, consent: Consent, pod: &MadePod) -> Result<(), String> {
    let MadePod { namespace, name, uid, node, resource_version, .. } = pod;
    let reason = match consent {
        Consent::Terminate => "KueueForcefullyTerminated",
        Consent::Delete => "KueueForcefullyDeleted",
    };
    let message = format!(
        "Pod forcefully terminated after 61s grace period due to unreachable node `{node}` (triggered by `{}` annotation)",
        consent.annotation(),
    );
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now});
    let patch = json!({
        "metadata": {"uid": uid, "resourceVersion": resource_version},
        "status": {"phase": "Failed", "conditions": [condition("KueueFailureRecovery"), condition("DisruptionTarget")]},
    });
    let status = format!("{}/status?fieldManager=bench-floor", pod.path());
    send(client, Method::PATCH, &status, STRATEGIC, &patch).await?;

    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("recovered.{uid}"), "namespace": namespace},
        "eventTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        "type": "Warning",
        "reason": reason,
        "action": "ForcefulTermination",
        "note": message,
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "reportingController": "pod-termination-controller",
        "reportingInstance": "bench-floor",
    });
    let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    send(client, Method::POST, &events, JSON, &event).await?;

    if consent == Consent::Delete {
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
        send(client, Method::DELETE, &pod.path(), JSON, &options).await?;
    }
    Ok(())
}
