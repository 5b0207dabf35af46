//! The server with real sockets and hostile clients, and the reconciler in paused time.

mod keeping;
mod serving;

use serde_json::{Value, json};

use super::*;

fn webhook(kind: WebhookKind, name: &'static str, path: &'static str) -> Webhook {
    Webhook {
        kind,
        name,
        path,
        rules: vec![Rule {
            group: "",
            versions: &["v1"],
            resources: &["configmaps"],
            operations: &[Operation::Create],
        }],
        failure_policy: FailurePolicy::Fail,
        timeout_seconds: 10,
    }
}

/// An example handler: it refuses the name `bad`, labels everything else, and warns.
async fn label(request: AdmissionRequest) -> Answer {
    if request.name == "bad" {
        return Answer::denied(403, "the name is bad: use another one");
    }
    let labels = json!({ "by": request.user_info.username });
    let change = Change::Add { path: "/metadata/labels".to_owned(), value: labels };
    Answer::patched(vec![change]).warning("it was labelled")
}

fn review(name: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u1",
            "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
            "resource": {"group": "", "version": "v1", "resource": "configmaps"},
            "name": name,
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {"username": "ann"},
            "object": {"metadata": {"name": name}},
        },
    })
}
