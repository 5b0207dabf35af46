//! The server with real sockets and clients who mean harm, and the keeper in paused time.

mod keeping;
mod serving;

use serde_json::{Value, json};

use super::*;

/// A webhook about ConfigMaps.
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

/// An example of a handler: it refuses what is called `bad`, labels all else, and warns.
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

#[tokio::test]
async fn what_is_declared_is_what_is_registered() {
    let configuration = Configuration::default();
    let client = Client::new(
        tower::service_fn(async |_: http::Request<kube::client::Body>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
        }),
        "default",
    );
    let registered: Vec<_> =
        registrations(&configuration, &client).into_iter().map(|registration| registration.webhook).collect();
    assert_eq!(registered, declared(&configuration));
}

#[test]
fn nothing_is_served_in_a_dry_run_or_where_webhooks_are_switched_off() {
    let mut configuration = Configuration { dry_run: true, ..Configuration::default() };
    assert_eq!(in_effect(&configuration), []);
    configuration.dry_run = false;
    configuration.webhooks.enabled = false;
    assert_eq!(in_effect(&configuration), []);
}
