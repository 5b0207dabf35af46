//! With the real Kueue.

use kube::api::{DynamicObject, PostParams};
use salvor_testkit::{
    Site,
    peers::Kueue,
    wait,
    workloads::{PodShape, job},
};
use serde_json::{Value, json};

use crate::stage::Stage;

const GROUP: &str = "kueue.x-k8s.io";

/// Creates an object of Kueue. Its webhooks answer a moment after it is ready.
async fn create(stage: &Stage, kind: &str, namespaced: bool, object: Value) {
    let api = if namespaced {
        stage.api(GROUP, "v1beta2", kind)
    } else {
        stage.cluster_api(GROUP, "v1beta2", kind)
    };
    let mut object = object;
    object["apiVersion"] = format!("{GROUP}/v1beta2").into();
    object["kind"] = kind.into();
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let made = wait::patience().until(async {
        while let Err(error) = api.create(&PostParams::default(), &object).await {
            assert!(error.to_string().contains("webhook"), "{error}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    });
    made.await.expect("Kueue's webhooks answer");
}

fn queued(name: &str, priority: &str, cpu: &str) -> k8s_openapi::api::batch::v1::Job {
    let containers = json!([{"name": "main", "image": "work", "resources": {"requests": {"cpu": cpu}}}]);
    let mut job = job(name, json!({"suspend": true}), &PodShape::new().spec("containers", containers));
    let labels = [("kueue.x-k8s.io/queue-name", "queue"), ("kueue.x-k8s.io/priority-class", priority)];
    job.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    job
}

#[tokio::test]
async fn a_job_in_a_queue_tells_what_kueue_says() {
    if !Site::Real.is_chosen() {
        return;
    }
    let plane = Site::Real.control_plane().await;
    let admin = plane.admin();
    let kueue = Kueue::build().unwrap_or_else(|error| panic!("{error}"));
    kueue.install(&admin, true).await.unwrap();
    let _kueue = kueue.start(&admin, &[]).unwrap().ready().await.unwrap_or_else(|error| panic!("{error}"));
    let arena = plane.arena("why-kueue").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    let _fleet = arena.fleet(1).await;

    create(&stage, "ResourceFlavor", false, json!({"metadata": {"name": "default-flavor"}})).await;
    for (name, value) in [("low", 10), ("high", 100)] {
        create(&stage, "WorkloadPriorityClass", false, json!({"metadata": {"name": name}, "value": value}))
            .await;
    }
    let spec = json!({
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{
            "coveredResources": ["cpu"],
            "flavors": [{"name": "default-flavor", "resources": [{"name": "cpu", "nominalQuota": "2"}]}],
        }],
    });
    create(&stage, "ClusterQueue", false, json!({"metadata": {"name": "all"}, "spec": spec})).await;
    create(
        &stage,
        "LocalQueue",
        true,
        json!({"metadata": {"name": "queue"}, "spec": {"clusterQueue": "all"}}),
    )
    .await;

    stage.make(&queued("first", "low", "2")).await;
    stage.until_well("job/first").await;
    stage.make(&queued("second", "low", "2")).await;
    let answer = stage.until("job/second", "KueueNotAdmitted").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    let workload = answer["rootCauses"][0]["object"].clone();
    assert_eq!(workload["kind"], "Workload", "{answer:#}");
    assert!(answer["rootCauses"][0]["since"].is_string(), "{answer:#}");
    stage.until(&format!("workload/{}", workload["name"].as_str().unwrap()), "KueueNotAdmitted").await;

    stage.make(&queued("urgent", "high", "2")).await;
    let answer = stage.until("job/first", "KueuePreempted").await;
    assert_eq!(answer["rootCauses"][0]["object"]["kind"], "Workload", "{answer:#}");
    stage.until_well("job/urgent").await;
    let all = stage.all().await;
    let codes: Vec<&Value> =
        all["groups"].as_array().unwrap().iter().map(|group| &group["rootCause"]["code"]).collect();
    assert_eq!(codes, ["KueuePreempted", "KueueNotAdmitted"], "{all:#}");

    // More quota, as the remedy says.
    let spec = r#"{"spec":{"resourceGroups":[{"coveredResources":["cpu"],"flavors":[{"name":"default-flavor","resources":[{"name":"cpu","nominalQuota":"6"}]}]}]}}"#;
    stage
        .kubectl
        .run(&["patch", "clusterqueues.kueue.x-k8s.io", "all", "--type=merge", "-p", spec])
        .await
        .unwrap();
    stage.until_well("job/first").await;
    stage.until_well("job/second").await;
}
