//! Admission webhooks in this process, under a paused clock.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use salvor_apiserver::{Cluster, Settings, WebhookAnswer, WebhookRequest};
use serde_json::{Value, json};

async fn configure(cluster: &Cluster, kind: &str, client: Value) {
    let group = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    let api: Api<DynamicObject> = Api::all_with(cluster.client(), &ApiResource::from_gvk(&group));
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": "w" },
        "webhooks": [{
            "name": "w.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client,
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"] }],
        }],
    });
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

fn review(request: &WebhookRequest) -> Value {
    serde_json::from_slice(request.body()).unwrap()
}

/// Allows the request, with a patch.
fn allow(review: &Value, patch: &Value) -> WebhookAnswer {
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": true });
    if !patch.is_null() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(patch.to_string()));
    }
    let review =
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
    http::Response::new(Bytes::from(review.to_string()))
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_handler_answers_a_host_and_a_service() {
    let cluster = Cluster::new(Settings::default());
    for host in ["hooks.test", "hooks.default.svc"] {
        cluster.answer_webhooks(host, |request| async move {
            assert!(request.uri().to_string().ends_with("?timeout=10s"), "{}", request.uri());
            allow(&review(&request), &json!([{ "op": "add", "path": "/data", "value": { "a": "b" } }]))
        });
    }
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    configure(&cluster, "MutatingWebhookConfiguration", json!({ "url": "https://hooks.test/mutate" })).await;
    let made = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert_eq!(made.data.unwrap()["a"], "b");
    let service = json!({ "service": { "namespace": "default", "name": "hooks", "path": "/validate" } });
    configure(&cluster, "ValidatingWebhookConfiguration", service).await;
    // A validating webhook may not patch.
    let refusal = api.create(&PostParams::default(), &config_map("b")).await.unwrap_err();
    assert!(refusal.to_string().contains("validating webhook may not return response.patch"), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_never_answers_takes_its_time_and_no_more() {
    let cluster = Cluster::new(Settings::default());
    cluster.answer_webhooks("hooks.test", |_| std::future::pending());
    configure(&cluster, "ValidatingWebhookConfiguration", json!({ "url": "https://hooks.test/" })).await;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let began = tokio::time::Instant::now();
    let refusal = api.create(&PostParams::default(), &config_map("a")).await.unwrap_err();
    assert!(refusal.to_string().contains("context deadline exceeded"), "{refusal}");
    assert_eq!(began.elapsed().as_secs(), 10, "the default of timeoutSeconds, on the paused clock");
    assert!(api.get_opt("a").await.unwrap().is_none());
}

/// While a webhook is running, other clients write: to other objects without waiting, and to this one so that the
/// webhook is called again.
#[tokio::test(start_paused = true)]
async fn an_object_that_changes_under_a_review_is_reviewed_again() {
    let cluster = Cluster::new(Settings::default());
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, of_handler) = (Arc::clone(&calls), api.clone());
    cluster.answer_webhooks("hooks.test", move |request| {
        let (calls, api) = (Arc::clone(&counted), of_handler.clone());
        async move {
            let review = review(&request);
            if review["request"]["object"]["data"]["who"] == "outer"
                && calls.fetch_add(1, Ordering::SeqCst) == 0
            {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let inner = Patch::Merge(json!({ "data": { "inner": "yes" } }));
                api.patch("a", &PatchParams::default(), &inner).await.unwrap();
            }
            allow(&review, &Value::Null)
        }
    });
    configure(&cluster, "ValidatingWebhookConfiguration", json!({ "url": "https://hooks.test/" })).await;
    let outer = Patch::Merge(json!({ "data": { "who": "outer" } }));
    let patched = api.patch("a", &PatchParams::default(), &outer).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "what was reviewed first was not what was written");
    let data = patched.data.unwrap();
    assert_eq!((data["who"].as_str(), data["inner"].as_str()), ("outer", "yes"), "neither write is lost");
}

/// An update names the resourceVersion that it replaces, and is refused if that is no longer the present one.
#[tokio::test(start_paused = true)]
async fn an_update_that_is_overtaken_during_its_review_conflicts() {
    let cluster = Cluster::new(Settings::default());
    let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    let mut made = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let of_handler = api.clone();
    cluster.answer_webhooks("hooks.test", move |request| {
        let api = of_handler.clone();
        async move {
            let review = review(&request);
            if review["request"]["object"]["data"]["who"] == "slow" {
                let quick = Patch::Merge(json!({ "data": { "who": "quick" } }));
                api.patch("a", &PatchParams::default(), &quick).await.unwrap();
            }
            allow(&review, &Value::Null)
        }
    });
    configure(&cluster, "ValidatingWebhookConfiguration", json!({ "url": "https://hooks.test/" })).await;
    made.data = Some([("who".to_owned(), "slow".to_owned())].into());
    let refusal = api.replace("a", &PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(&refusal, kube::Error::Api(status) if status.code == 409), "{refusal}");
    assert_eq!(api.get("a").await.unwrap().data.unwrap()["who"], "quick");
}

/// Two requests that wait at the same time get different UIDs, and the same ones in every run.
#[tokio::test(start_paused = true)]
async fn reviews_do_not_disturb_the_seed() {
    let play = async || {
        let cluster = Cluster::new(Settings { seed: 7, ..Settings::default() });
        cluster.answer_webhooks("hooks.test", |request| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            allow(&review(&request), &Value::Null)
        });
        configure(&cluster, "ValidatingWebhookConfiguration", json!({ "url": "https://hooks.test/" })).await;
        let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
        let (options, one, other) = (PostParams::default(), config_map("a"), config_map("b"));
        let (one, other) = futures::join!(api.create(&options, &one), api.create(&options, &other));
        (one.unwrap().metadata.uid.unwrap(), other.unwrap().metadata.uid.unwrap())
    };
    let (first, second) = (play().await, play().await);
    assert_ne!(first.0, first.1);
    assert_eq!(first, second);
}
