//! Pods that the real API server refuses: quotas, policies and pod security.

use salvor_testkit::{
    Site,
    workloads::{PodShape, deployment, job},
};
use serde_json::{Value, json};

use crate::stage::Stage;

#[tokio::test]
async fn pods_that_are_refused_are_told_with_whoever_refuses_them() {
    if !Site::Real.is_chosen() {
        return;
    }
    let arena = Site::Real.arena("why-admission").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    let shape = PodShape::new();

    // A policy that refuses pods of one name in this namespace.
    let policy = stage.namespace.clone();
    let rule = json!({
        "metadata": {"name": policy},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            },
            "validations": [{"expression": "object.metadata.labels['app'] != 'by-policy'", "message": "not that one"}],
        },
    });
    stage.create("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", rule).await;
    let binding =
        json!({"metadata": {"name": policy}, "spec": {"policyName": policy, "validationActions": ["Deny"]}});
    stage.create("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", binding).await;
    stage.until_refused("by-policy", &shape).await;
    stage.make(&job("by-policy", json!({}), &shape)).await;
    let answer =
        stage.until_in("job/by-policy", "AdmissionRefused", "ValidatingAdmissionPolicy", &policy).await;
    assert!(answer["rootCauses"][0]["message"].as_str().unwrap().contains("not that one"), "{answer:#}");
    assert!(answer["rootCauses"][0]["since"].is_string(), "{answer:#}");

    // Three quotas, one of which is full. The command makes room.
    let quota = |name: &str, hard: Value| json!({"metadata": {"name": name}, "spec": {"hard": hard}});
    stage
        .create("", "ResourceQuota", quota("a-roomy", json!({"count/configmaps": "100", "pods": "50"})))
        .await;
    stage.create("", "ResourceQuota", quota("full", json!({"requests.cpu": "1"}))).await;
    stage
        .create("", "ResourceQuota", quota("z-roomy", json!({"count/secrets": "100", "requests.cpu": "9"})))
        .await;
    let containers = json!([{"name": "main", "image": "work", "resources": {"requests": {"cpu": "1500m"}}}]);
    let asks = shape.clone().spec("containers", containers);
    stage.make(&deployment("many", 2, &asks)).await;
    let answer = stage.until_in("deployment/many", "QuotaExceeded", "ResourceQuota", "full").await;
    assert_eq!(answer["missing"], "2 of 2 pods", "{answer:#}");
    stage.carry_out(&answer).await;
    // There are no nodes here, so after the quota this is the next cause.
    let answer = stage.until("deployment/many", "Unschedulable").await;
    assert_eq!(answer["missing"], "2 of 2 pods", "{answer:#}");

    let label = "pod-security.kubernetes.io/enforce=restricted";
    stage.kubectl.run(&["delete", "resourcequota", "full", "z-roomy"]).await.unwrap();
    stage.kubectl.run(&["label", "namespace", &stage.namespace, label]).await.unwrap();
    stage.make(&job("refused", json!({}), &shape)).await;
    stage.until_in("job/refused", "AdmissionRefused", "Job", "refused").await;
}
