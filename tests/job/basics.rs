//! Jobs that run as expected.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{
    Site, wait,
    workloads::{PodShape, job},
};
use serde_json::json;

use crate::stage::{Stage, condition, conditions, counts, has_finalizer, index, template};

/// Everything is real except the machines: scheduler, nodes, and all other controllers of Kubernetes.
async fn a_job_runs_to_its_end_on_nodes(site: Site) {
    let stage = Stage::new(site, "runs").await;
    let _fleet = stage.arena.fleet(2).await;
    let spec = json!({"completions": 3, "parallelism": 2, "managedBy": "salvor.dev/job-controller"});
    let shape = PodShape::new().script("run-for", "500ms");
    stage.jobs.create(&Default::default(), &job("work", spec, &shape)).await.unwrap();
    let done = stage.until("work", "Complete").await;
    assert_eq!(conditions(&done), "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)");
    stage.counts("work", "A0 R0 S3 F0 T0").await;
    stage.no_finalizer_is_left("work").await;
    let pods = stage.all_pods("work").await;
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod.name_any().starts_with("work-")));
}

/// TestNonParallelJob.
async fn one_pod_after_another_until_one_succeeds(site: Site) {
    let stage = Stage::new(site, "single").await;
    stage.job("one", json!({})).await;
    stage.counts("one", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("one").await[0], 1).await;
    stage.counts("one", "A1 R0 S0 F1 T0").await;
    stage.end(&stage.alive("one").await[0], 0).await;
    stage.until("one", "Complete").await;
    stage.counts("one", "A0 R0 S1 F1 T0").await;
    stage.no_finalizer_is_left("one").await;
}

/// TestParallelJob: a work queue.
async fn a_work_queue_is_done_after_its_first_success(site: Site) {
    let stage = Stage::new(site, "queue").await;
    stage.job("queue", json!({"parallelism": 5})).await;
    stage.counts("queue", "A5 R0 S0 F0 T0").await;
    let pods = stage.alive("queue").await;
    stage.ready(&pods[0]).await;
    stage.ready(&pods[1]).await;
    stage.counts("queue", "A5 R2 S0 F0 T0").await;
    stage.end(&pods[2], 1).await;
    stage.end(&pods[3], 1).await;
    stage.counts("queue", "A5 R2 S0 F2 T0").await;
    stage.end(&pods[0], 0).await;
    stage.counts("queue", "A4 R1 S1 F2 T0").await;
    let left = stage.alive("queue").await;
    stage.end(&left[0], 1).await;
    stage
        .counts("queue", &format!("A3 R{} S1 F3 T0", i32::from(left[0].name_any() != pods[1].name_any())))
        .await;
    for pod in stage.alive("queue").await {
        stage.end(&pod, 0).await;
    }
    stage.until("queue", "Complete").await;
    stage.counts("queue", "A0 R0 S4 F3 T0").await;
    stage.no_finalizer_is_left("queue").await;
}

/// TestParallelJobChangingParallelism: pods that are deleted to reduce the parallelism have not failed.
async fn parallelism_goes_down_and_up(site: Site) {
    let stage = Stage::new(site, "resize").await;
    stage.job("resize", json!({"parallelism": 5, "backoffLimit": 2})).await;
    stage.counts("resize", "A5 R0 S0 F0 T0").await;
    stage.change("resize", json!({"parallelism": 2})).await;
    stage.counts("resize", "A2 R0 S0 F0 T0").await;
    stage.change("resize", json!({"parallelism": 4})).await;
    stage.counts("resize", "A4 R0 S0 F0 T0").await;
    for pod in stage.alive("resize").await {
        stage.end(&pod, 0).await;
    }
    stage.until("resize", "Complete").await;
    stage.counts("resize", "A0 R0 S4 F0 T0").await;
}

/// TestIndexedJob.
async fn every_index_must_succeed(site: Site) {
    let stage = Stage::new(site, "indexed").await;
    stage.job("ix", json!({"parallelism": 3, "completions": 4, "completionMode": "Indexed"})).await;
    stage.counts("ix", "A3 R0 S0 F0 T0").await;
    let pods = stage.alive("ix").await;
    assert_eq!(pods.iter().map(index).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    for pod in &pods {
        let hostname = pod.spec.as_ref().unwrap().hostname.clone();
        assert_eq!(hostname, index(pod).map(|i| format!("ix-{i}")));
        assert!(pod.name_any().starts_with(&format!("ix-{}-", index(pod).unwrap())));
        let env = pod.spec.as_ref().unwrap().containers[0].env.clone().unwrap();
        assert_eq!(env[0].name, "JOB_COMPLETION_INDEX");
    }
    stage.end(&stage.alive_at("ix", 1).await, 0).await;
    let job = stage.counts("ix", "A3 R0 S1 F0 T0").await;
    assert_eq!(job.status.unwrap().completed_indexes.as_deref(), Some("1"));
    stage.end(&stage.alive_at("ix", 2).await, 1).await;
    stage.counts("ix", "A3 R0 S1 F1 T0").await;
    for at in [0, 2, 3] {
        stage.end(&stage.alive_at("ix", at).await, 0).await;
    }
    let job = stage.until("ix", "Complete").await;
    assert_eq!(job.status.unwrap().completed_indexes.as_deref(), Some("0-3"));
    stage.no_finalizer_is_left("ix").await;
}

/// TestElasticIndexedJob.
async fn an_indexed_job_is_elastic(site: Site) {
    let stage = Stage::new(site, "elastic").await;
    stage.job("el", json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"})).await;
    stage.counts("el", "A3 R0 S0 F0 T0").await;
    stage.end(&stage.alive_at("el", 2).await, 0).await;
    stage.counts("el", "A2 R0 S1 F0 T0").await;
    stage.change("el", json!({"parallelism": 1, "completions": 1})).await;
    stage.counts("el", "A1 R0 S0 F0 T0").await;
    stage.change("el", json!({"parallelism": 4, "completions": 4})).await;
    stage.counts("el", "A4 R0 S0 F0 T0").await;
    stage.change("el", json!({"parallelism": 0, "completions": 0})).await;
    let job = stage.until("el", "Complete").await;
    assert_eq!(condition(&job, "Complete").as_deref(), Some("CompletionsReached"));
}

/// TestSuspendJob, TestStartTimeUpdateOnResume.
async fn a_suspended_job_has_no_pods_and_begins_anew(site: Site) {
    let stage = Stage::new(site, "suspend").await;
    stage.job("su", json!({"parallelism": 2, "completions": 4, "suspend": true})).await;
    let job = stage.until("su", "Suspended").await;
    assert!(job.status.as_ref().unwrap().start_time.is_none());
    stage.change("su", json!({"suspend": false})).await;
    let job = stage.counts("su", "A2 R0 S0 F0 T0").await;
    assert!(job.status.as_ref().unwrap().start_time.is_some());
    assert_eq!(condition(&job, "Suspended"), None);
    stage.change("su", json!({"suspend": true})).await;
    stage.until("su", "Suspended").await;
    let job = stage.counts("su", "A0 R0 S0 F0 T0").await;
    assert!(job.status.as_ref().unwrap().start_time.is_none());
    stage.change("su", json!({"suspend": false})).await;
    stage.counts("su", "A2 R0 S0 F0 T0").await;
}

/// TestSuspendJobWithZeroCompletions.
async fn a_suspended_job_without_work_is_complete(site: Site) {
    let stage = Stage::new(site, "nothing").await;
    stage.job("no", json!({"completions": 0, "suspend": true})).await;
    let job = stage.until("no", "Complete").await;
    assert_eq!(conditions(&job), "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)");
}

/// TestManagedBy: Jobs of other controllers are ignored, with or without the field.
async fn jobs_of_others_are_left_alone(site: Site) {
    let stage = Stage::new(site, "foreign").await;
    stage.job("theirs", json!({"managedBy": "example.com/controller"})).await;
    stage.job("built-in", json!({"managedBy": "kubernetes.io/job-controller"})).await;
    // If there is a built-in controller, it runs the Job.
    let pods = i32::from(site == Site::Real);
    wait::for_object(&stage.jobs, "built-in", "it is run if anybody runs it", |j| {
        j.status.as_ref().and_then(|s| s.active).unwrap_or(0) == pods
    })
    .await;
    // Salvor has observed both Jobs by the time it has run its own.
    stage.job("ours", json!({})).await;
    stage.counts("ours", "A1 R0 S0 F0 T0").await;
    let theirs = stage.jobs.get("theirs").await.unwrap();
    assert_eq!(theirs.status.unwrap_or_default(), Default::default());
    assert!(stage.all_pods("theirs").await.is_empty());
    assert_eq!(i32::try_from(stage.all_pods("built-in").await.len()).unwrap(), pods);
}

/// TestManagedBy_UsingReservedJobFinalizers: neither Salvor nor the built-in controller releases pods that another one
/// tracks.
async fn pods_of_jobs_of_others_keep_their_finalizer(site: Site) {
    let stage = Stage::new(site, "reserved").await;
    let theirs = stage.job("theirs", json!({"managedBy": "example.com/controller"})).await;
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": "theirs", "uid": theirs.uid(), "controller": true,
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": "work", "finalizers": ["batch.kubernetes.io/job-tracking"], "ownerReferences": [owner],
            "labels": theirs.spec.as_ref().unwrap().template.metadata.as_ref().unwrap().labels,
        },
        "spec": {"containers": [{"name": "main", "image": "work"}], "restartPolicy": "Never"},
    }))
    .unwrap();
    let pod = stage.pods.create(&PostParams::default(), &pod).await.unwrap();
    let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let bound_to_complete = Patch::Merge(json!({"status": {"startTime": now, "conditions": [{
        "type": "SuccessCriteriaMet", "status": "True", "reason": "CompletionsReached", "lastTransitionTime": now,
    }]}}));
    stage.jobs.patch_status("theirs", &PatchParams::default(), &bound_to_complete).await.unwrap();
    stage.end(&pod, 0).await;
    // By the time this Job is done, the other has been observed.
    stage.job("later", json!({})).await;
    stage.counts("later", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("later").await[0], 0).await;
    stage.until("later", "Complete").await;
    assert_eq!(stage.pods.get("work").await.unwrap().finalizers(), ["batch.kubernetes.io/job-tracking"]);
}

/// TestManagedBy_RecreatedJob: a Job of another controller inherits nothing from Salvor's former Job of the same name.
async fn a_job_made_anew_for_another_controller_is_left_alone(site: Site) {
    let stage = Stage::new(site, "handed-over").await;
    stage.job("name", json!({})).await;
    stage.counts("name", "A1 R0 S0 F0 T0").await;
    stage.jobs.delete("name", &DeleteParams::background()).await.unwrap();
    stage.job("name", json!({"managedBy": "example.com/controller"})).await;
    stage.no_finalizer_is_left("name").await;
    // By the time this Job is done, the other has been observed.
    stage.job("later", json!({})).await;
    stage.counts("later", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("later").await[0], 0).await;
    stage.until("later", "Complete").await;
    assert_eq!(stage.jobs.get("name").await.unwrap().status.unwrap_or_default(), Default::default());
}

/// A pod with the Job's labels and no owner is adopted. One that loses the labels is released.
async fn pods_are_adopted_and_released(site: Site) {
    let stage = Stage::new(site, "adopt").await;
    let made = stage.job("ad", json!({"parallelism": 1, "completions": 5})).await;
    stage.counts("ad", "A1 R0 S0 F0 T0").await;
    let first = stage.alive("ad").await.remove(0);
    let none = json!({"batch.kubernetes.io/controller-uid": null, "batch.kubernetes.io/job-name": null});
    let off = Patch::Merge(json!({"metadata": {"labels": none}}));
    stage.pods.patch(&first.name_any(), &PatchParams::default(), &off).await.unwrap();
    let released = wait::for_object(&stage.pods, &first.name_any(), "it is released", |pod| {
        pod.owner_references().is_empty() && !has_finalizer(pod)
    })
    .await;
    assert!(released.metadata.deletion_timestamp.is_none());
    wait::for_object(&stage.jobs, "ad", "it has another pod", |j| counts(j) == "A1 R0 S0 F0 T0").await;

    let stray = serde_json::from_value(json!({
        "metadata": {"name": "stray", "labels": {
            "batch.kubernetes.io/controller-uid": made.uid(), "batch.kubernetes.io/job-name": "ad"}},
        "spec": {"containers": [{"name": "main", "image": "work"}], "restartPolicy": "Never"},
    }))
    .unwrap();
    stage.pods.create(&PostParams::default(), &stray).await.unwrap();
    // Two pods are one too many, so one is deleted again. What counts is that the stray first got an owner.
    let log = wait::patience();
    let adopted = log
        .until(async {
            loop {
                match stage.pods.get_opt("stray").await.unwrap() {
                    Some(pod) if pod.owner_references().is_empty() => {}
                    _ => return,
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
    assert!(adopted.is_some(), "the stray was never adopted");
    stage.counts("ad", "A1 R0 S0 F0 T0").await;
}

/// Pods that `kubectl delete job --cascade=orphan` leaves are adopted by the next Job with the same selector.
async fn a_pod_that_an_ended_job_left_behind_is_adopted_by_the_next(site: Site) {
    let stage = Stage::new(site, "left").await;
    let spec = json!({
        "parallelism": 1, "completions": 1,
        "manualSelector": true, "selector": {"matchLabels": {"work": "left"}},
        "template": {"metadata": {"labels": {"work": "left"}}, "spec": template()["spec"]},
    });
    stage.job("first", spec.clone()).await;
    wait::for_object(&stage.jobs, "first", "it has a pod", |job| counts(job) == "A1 R0 S0 F0 T0").await;
    let left = ListParams::default().labels("work=left");
    let pod = stage.pods.list(&left).await.unwrap().items.remove(0);
    stage.end(&pod, 0).await;
    stage.until("first", "Complete").await;
    wait::for_object(&stage.pods, &pod.name_any(), "it is let go", |pod| !has_finalizer(pod)).await;
    let no_owner = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    stage.pods.patch(&pod.name_any(), &PatchParams::default(), &no_owner).await.unwrap();
    stage.jobs.delete("first", &DeleteParams::background()).await.unwrap();
    wait::for_absence(&stage.jobs, "first").await;
    // Watch events of pods are ordered: when the end of a later pod is observed, so is the removal of this one's owner.
    stage.job("probe", json!({"parallelism": 1, "completions": 1})).await;
    stage.counts("probe", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("probe").await[0], 0).await;
    stage.until("probe", "Complete").await;

    stage.job("second", spec).await;
    let second = stage.until("second", "Complete").await;
    assert_eq!(counts(&second), "A0 R0 S1 F0 T0");
    let pods = stage.pods.list(&left).await.unwrap().items;
    assert_eq!(pods.iter().map(ResourceExt::uid).collect::<Vec<_>>(), [pod.uid()], "nothing was done twice");
}

salvor_testkit::on_both!(
    a_job_runs_to_its_end_on_nodes,
    one_pod_after_another_until_one_succeeds,
    a_work_queue_is_done_after_its_first_success,
    parallelism_goes_down_and_up,
    every_index_must_succeed,
    an_indexed_job_is_elastic,
    a_suspended_job_has_no_pods_and_begins_anew,
    a_suspended_job_without_work_is_complete,
    jobs_of_others_are_left_alone,
    pods_of_jobs_of_others_keep_their_finalizer,
    a_job_made_anew_for_another_controller_is_left_alone,
    pods_are_adopted_and_released,
    a_pod_that_an_ended_job_left_behind_is_adopted_by_the_next,
);
