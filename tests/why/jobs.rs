//! Jobs and pods with the real controllers and simulated kubelets.

use kube::api::{DeleteParams, ListParams};
use salvor_testkit::{
    Site,
    workloads::{PodShape, deployment, job, pod},
};
use serde_json::{Value, json};

use crate::stage::Stage;

fn ends(shape: &PodShape) -> PodShape {
    shape.clone().script("run-for", "10ms").script("exit-code", "3")
}

/// A Job that fails at once when a container exits with 3.
fn fails_by_policy() -> Value {
    json!({"backoffLimit": 6, "podFailurePolicy": {"rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
    ]}})
}

fn since(answer: &Value) -> &str {
    answer["rootCauses"][0]["since"].as_str().unwrap_or_else(|| panic!("no since: {answer:#}"))
}

fn until(answer: &Value) -> &str {
    answer["rootCauses"][0]["until"].as_str().unwrap_or_else(|| panic!("no until: {answer:#}"))
}

fn kinds_of_chain(answer: &Value) -> Vec<&str> {
    answer["chain"].as_array().unwrap().iter().filter_map(|link| link["object"]["kind"].as_str()).collect()
}

#[tokio::test]
async fn jobs_and_pods_tell_why_they_do_not_run() {
    if !Site::Real.is_chosen() {
        return;
    }
    let arena = Site::Real.arena("why-jobs").await;
    let stage = Stage::new(&arena.admin(), arena.kubectl(), arena.namespace());
    let _fleet = arena.fleet(1).await;
    let shape = PodShape::new();
    let failing = ends(&shape);

    // All at once, so that their waits run in parallel.
    let absent = json!({"managedBy": "example.com/nobody"});
    stage.make(&job("absent", absent, &shape)).await;
    stage.make(&job("suspended", json!({"suspend": true}), &shape)).await;
    stage.make(&job("late", json!({"activeDeadlineSeconds": 1}), &shape)).await;
    stage.make(&job("retries", json!({"backoffLimit": 6}), &failing)).await;
    let twice = json!({"backoffLimit": 0, "parallelism": 2, "completions": 2});
    stage.make(&job("failed", twice, &failing)).await;
    stage.make(&job("by-policy", fails_by_policy(), &failing)).await;
    let large = json!([{"name": "main", "image": "work", "resources": {"requests": {"cpu": "1000"}}}]);
    stage.make(&job("large", json!({}), &shape.clone().spec("containers", large))).await;
    stage.make(&deployment("web", 2, &shape.clone().script("image-error", "forever"))).await;
    stage.make(&pod("crashes", &failing.clone().spec("restartPolicy", json!("Always")))).await;
    let needs =
        json!([{"name": "main", "image": "work", "envFrom": [{"configMapRef": {"name": "settings"}}]}]);
    let needs = shape.clone().spec("containers", needs).script("start-delay", "forever");
    stage.make(&pod("config", &needs)).await;
    let mut held = pod("held", &shape);
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    stage.make(&held).await;
    stage.make(&pod("ended", &failing.clone().spec("restartPolicy", json!("Never")))).await;
    let slow =
        shape.clone().script("ignore-sigterm", "forever").spec("terminationGracePeriodSeconds", json!(600));
    stage.make(&job("slow", json!({"podReplacementPolicy": "Failed"}), &slow)).await;

    let answer = stage.until_in("job/suspended", "Suspended", "Job", "suspended").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");
    since(&answer);
    stage.carry_out(&answer).await;
    stage.until_well("job/suspended").await;

    let answer = stage.until_in("job/retries", "BackoffRunning", "Job", "retries").await;
    assert!(until(&answer) > since(&answer), "{answer:#}");
    let answer = stage.until_in("job/late", "DeadlineExceeded", "Job", "late").await;
    since(&answer);
    let answer = stage.until_in("job/failed", "BackoffLimitExceeded", "Job", "failed").await;
    assert_eq!(answer["missing"], "2 of 2 pods", "{answer:#}");
    stage.until_in("job/by-policy", "JobFailed", "Job", "by-policy").await;
    stage.until_in("pod/ended", "PodFailed", "Pod", "ended").await;

    let answer = stage.until("job/large", "Unschedulable").await;
    assert_eq!(kinds_of_chain(&answer), ["Job", "Pod"], "{answer:#}");
    assert!(answer["rootCauses"][0]["message"].as_str().unwrap().contains("Insufficient cpu"), "{answer:#}");
    let answer = stage.until("deploy/web", "ImagePullFailed").await;
    assert_eq!(kinds_of_chain(&answer), ["Deployment", "ReplicaSet", "Pod"], "{answer:#}");
    assert_eq!(answer["missing"], "2 of 2 pods", "{answer:#}");
    stage.until_in("pod/crashes", "CrashLooping", "Pod", "crashes").await;

    stage.until_in("pod/config", "ConfigMissing", "ConfigMap", "settings").await;
    stage.create("", "ConfigMap", json!({"metadata": {"name": "settings"}})).await;
    stage.until_in("pod/config", "Starting", "Pod", "config").await;

    stage.until_well("pod/held").await;
    stage.delete_pod("held").await;
    let answer = stage.until_in("pod/held", "FinalizerHolds", "Pod", "held").await;
    since(&answer);
    stage.carry_out(&answer).await;
    stage.until_well("pod/held").await;

    // The wait counts from the request of its deletion.
    stage.until_well("job/slow").await;
    let pods = stage.api("", "v1", "Pod");
    let of_slow = ListParams::default().labels("batch.kubernetes.io/job-name=slow");
    let running = pods.list(&of_slow).await.unwrap().items.remove(0);
    let name = running.metadata.name.unwrap();
    let deleted = pods.delete(&name, &DeleteParams::default()).await.unwrap().left().unwrap();
    let answer = stage.until_in("job/slow", "AwaitingTermination", "Pod", &name).await;
    let (from, to) = (since(&answer).parse(), until(&answer).parse());
    let (from, to): (jiff::Timestamp, jiff::Timestamp) = (from.unwrap(), to.unwrap());
    assert_eq!(to.duration_since(from).as_secs(), 600, "{answer:#}");
    assert_eq!(Some(to.to_string()), deleted.metadata.deletion_timestamp.map(|at| at.0.to_string()));

    let answer = stage.until_in("job/absent", "ControllerAbsent", "Job", "absent").await;
    assert_eq!(answer["missing"], "1 of 1 pods", "{answer:#}");

    // The same for all together.
    let all = stage.all().await;
    let groups: Vec<&str> = all["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|group| group["rootCause"]["code"].as_str())
        .collect();
    for code in
        ["BackoffLimitExceeded", "DeadlineExceeded", "ControllerAbsent", "ImagePullFailed", "Unschedulable"]
    {
        assert!(groups.contains(&code), "{code}: {all:#}");
    }
    assert_eq!(groups[0], "BackoffLimitExceeded", "worst first: {all:#}");
    assert!(!groups.contains(&"Suspended"), "{all:#}");
}
