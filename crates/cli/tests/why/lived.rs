//! Root causes that real controllers make: the Job controller, quotas, admission, the scheduler.

use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::PostParams};
use salvor_testkit::{
    Site,
    workloads::{PodShape, job},
};
use serde_json::{Value, json};

use crate::stage::Stage;

async fn create(stage: &Stage, name: &str, spec: Value, shape: &PodShape) {
    let jobs: Api<Job> = Api::default_namespaced(stage.client.clone());
    jobs.create(&PostParams::default(), &job(name, spec, shape)).await.unwrap();
}

#[tokio::test]
async fn a_job_tells_why_it_has_no_pods() {
    if !Site::Real.is_chosen() {
        return;
    }
    let arena = Site::Real.arena("why").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    let _fleet = arena.fleet(1).await;
    let here = PodShape::new().spec("nodeSelector", json!({"topology.kubernetes.io/zone": arena.zone()}));

    create(&stage, "suspended", json!({"suspend": true}), &here).await;
    let answer = stage.until("job/suspended", "Suspended").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    stage.carry_out(&answer).await;
    stage.until_well("job/suspended").await;

    create(
        &stage,
        "large",
        json!({}),
        &here.clone().spec(
            "containers",
            json!([{"name": "main", "image": "work", "resources": {"requests": {"cpu": "1000"}}}]),
        ),
    )
    .await;
    stage.until("job/large", "Unschedulable").await;

    create(&stage, "late", json!({"activeDeadlineSeconds": 1}), &here.clone()).await;
    stage.until("job/late", "DeadlineExceeded").await;

    let fails = here.clone().script("run-for", "10ms").script("exit-code", "3");
    create(&stage, "retries", json!({"backoffLimit": 6}), &fails).await;
    let answer = stage.until("job/retries", "BackoffRunning").await;
    assert!(answer["rootCauses"][0]["until"].is_string(), "{answer:#}");
    create(&stage, "failed", json!({"backoffLimit": 0, "parallelism": 2, "completions": 2}), &fails).await;
    let answer = stage.until("job/failed", "BackoffLimitExceeded").await;
    assert_eq!(answer["missing"], "2 of 2 pods", "{answer:#}");

    // Two quotas, one of which is full.
    let quota = |name: &str, hard: Value| json!({"metadata": {"name": name}, "spec": {"hard": hard}});
    stage.create("", "ResourceQuota", quota("a-roomy", json!({"count/configmaps": "100"}))).await;
    stage.create("", "ResourceQuota", quota("full", json!({"count/pods": "0"}))).await;
    stage.create("", "ResourceQuota", quota("z-roomy", json!({"count/secrets": "100"}))).await;
    create(&stage, "many", json!({}), &here.clone()).await;
    let answer = stage.until("job/many", "QuotaExceeded").await;
    assert_eq!(answer["rootCauses"][0]["object"]["name"], "full", "{answer:#}");
    stage.kubectl.run(&["delete", "resourcequota", "full"]).await.unwrap();
    stage.until_well("job/many").await;

    stage
        .kubectl
        .run(&["label", "namespace", &stage.namespace, "pod-security.kubernetes.io/enforce=restricted"])
        .await
        .unwrap();
    create(&stage, "refused", json!({}), &here.clone()).await;
    let answer = stage.until("job/refused", "AdmissionRefused").await;
    assert_eq!(answer["rootCauses"][0]["object"]["name"], "refused", "{answer:#}");
}
