//! Jobs in a cluster without another Job controller: limits, backoff, metrics, and Jobs without `managedBy`.

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use salvor_testkit::{Site, wait};
use serde_json::json;

use crate::stage::{FINALIZER, QUICK, Stage, condition, conditions, counts, index, is_over, template};

const BUILT_IN_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const SMALL: &str =
    "job: {backoffBase: 100ms, batchPeriod: 100ms, maxUncountedPods: 10, maxPodsAtOnce: 10}\n";

/// TestParallelJobWithCompletions, TestFinalizersClearedWhenBackoffLimitExceeded, with other actors in between.
async fn small_portions_come_to_the_same_end(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("portions").await);
    let settings = format!("controllers: [job]\n{SMALL}");
    let first = stage.salvor(&settings, &[]);
    stage.job("many", json!({"parallelism": 54, "completions": 56})).await;
    stage
        .job(
            "fails",
            json!({"parallelism": 40, "completions": 40, "completionMode": "Indexed", "backoffLimit": 0}),
        )
        .await;
    stage.counts("many", "A54 R0 S0 F0 T0").await;
    stage.counts("fails", "A40 R0 S0 F0 T0").await;
    for pod in stage.alive("many").await.iter().take(52) {
        stage.ready(pod).await;
    }
    stage.counts("many", "A54 R52 S0 F0 T0").await;
    drop(first);

    for pod in stage.alive("many").await.iter().filter(|pod| !is_ready(pod)) {
        stage.end(pod, 1).await;
    }
    stage.end(&stage.alive_at("fails", 7).await, 1).await;
    let second = stage.salvor(&settings, &[]);
    stage.counts("many", "A54 R52 S0 F2 T0").await;
    let job = stage.until("fails", "Failed").await;
    assert_eq!(counts(&job), "A0 R0 S0 F40 T0");
    stage.no_finalizer_is_left("fails").await;

    for pod in stage.alive("many").await {
        stage.end(&pod, 0).await;
    }
    stage.counts("many", "A2 R0 S54 F2 T0").await;
    for pod in stage.alive("many").await {
        stage.end(&pod, 0).await;
    }
    let job = stage.until("many", "Complete").await;
    assert_eq!(counts(&job), "A0 R0 S56 F2 T0");
    stage.no_finalizer_is_left("many").await;
    for line in [
        "job_controller_jobs_finished_total{completion_mode=\"Indexed\",result=\"failed\",reason=\"BackoffLimitExceeded\"} 1",
        "job_controller_jobs_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\",reason=\"CompletionsReached\"} 1",
        "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"} 56",
        "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"failed\"} 2",
        "job_controller_job_pods_finished_total{completion_mode=\"Indexed\",result=\"failed\"} 40",
    ] {
        second.shows(line).await;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The metrics of TestJobPodReplacementPolicy, TestJobPodFailurePolicy and TestManagedBy.
async fn what_is_done_is_counted_as_the_built_in_controller_counts_it(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("figures").await);
    let salvor = stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
    stage.job("theirs", json!({"managedBy": "example.com/controller", "suspend": true})).await;

    let spec = json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"});
    stage.job("either", spec.clone()).await;
    stage.counts("either", "A2 R0 S0 F0 T0").await;
    stage.delete(&stage.alive_at("either", 0).await).await;
    stage.counts("either", "A2 R0 S0 F1 T0").await;

    let rules = json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [10]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [5]}},
    ]});
    stage.job("rules", json!({ "podFailurePolicy": rules })).await;
    stage.counts("rules", "A1 R0 S0 F0 T0").await;
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "Test"}]);
    let first = stage.alive("rules").await.remove(0);
    stage.end_with(&first, 10, disrupted).await;
    wait::for_object(&stage.pods, &first.name_any(), "it is let go", |p| !crate::stage::has_finalizer(p))
        .await;
    for (code, expected) in [(10, "A1 R0 S0 F1 T0"), (11, "A1 R0 S0 F2 T0"), (5, "A0 R0 S0 F3 T0")] {
        stage.counts("rules", &format!("A1 R0 S0 F{} T0", expected.as_bytes()[10] - b'1')).await;
        stage.end(&stage.alive("rules").await[0], code).await;
        stage.counts("rules", expected).await;
    }
    stage.until("rules", "Failed").await;
    for at in [0, 1] {
        stage.end(&stage.alive_at("either", at).await, 0).await;
    }
    stage.until("either", "Complete").await;
    for line in [
        "job_controller_jobs_by_external_controller_total{controller_name=\"other\"} 1",
        "job_controller_job_pods_creation_total{reason=\"new\",status=\"succeeded\"} 4",
        "job_controller_job_pods_creation_total{reason=\"recreate_terminating_or_failed\",status=\"succeeded\"} 1",
        "job_controller_job_pods_creation_total{reason=\"recreate_failed\",status=\"succeeded\"} 2",
        "job_controller_pod_failures_handled_by_failure_policy_total{action=\"Ignore\"} 1",
        "job_controller_pod_failures_handled_by_failure_policy_total{action=\"Count\"} 1",
        "job_controller_pod_failures_handled_by_failure_policy_total{action=\"FailJob\"} 1",
        "job_controller_job_finished_indexes_total{status=\"succeeded\",backoffLimit=\"global\"} 2",
        "job_controller_terminated_pods_tracking_finalizer_total{event=\"add\"} 6",
        "job_controller_terminated_pods_tracking_finalizer_total{event=\"delete\"} 6",
    ] {
        salvor.shows(line).await;
    }
}

/// TestJobPodsCreatedWithExponentialBackoff and the same per index; TestImmediateJobRecreation.
async fn failures_are_waited_for_longer_each_time_and_forgotten_with_their_job(site: Site) {
    const BASE: i64 = 2;
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("backoff").await);
    let patient = stage.salvor(&format!("controllers: [job]\njob: {{backoffBase: {BASE}s}}\n"), &[]);
    stage.job("whole", json!({})).await;
    stage.job("index", json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 3})).await;
    let both = ["whole", "index"];
    for failures in 0..3 {
        for name in both {
            let active = if name == "whole" { 1 } else { 2 };
            stage.counts(name, &format!("A{active} R0 S0 F{failures} T0")).await;
            let pod = stage.alive(name).await.remove(0);
            assert_eq!(index(&pod), (name == "index").then_some(0));
            if failures < 2 {
                stage.end(&pod, 1).await;
            }
        }
    }
    for name in both {
        let pods: Vec<Pod> =
            stage.all_pods(name).await.into_iter().filter(|p| index(p).unwrap_or(0) == 0).collect();
        let ends: Vec<_> = pods.iter().filter(|pod| is_over(pod)).map(finished_at).collect();
        let mut made: Vec<_> =
            pods.iter().map(|p| p.metadata.creation_timestamp.clone().unwrap().0).collect();
        made.sort();
        for (nth, wait) in [(0, BASE), (1, 2 * BASE)] {
            let mut ends = ends.clone();
            ends.sort();
            let gap = made[nth + 1].duration_since(ends[nth]).as_secs();
            assert!(gap >= wait, "{name}: replacement {nth} came after {gap}s, which is before {wait}s");
        }
    }
    drop(patient);

    let _most_patient = stage.salvor("controllers: [job]\njob: {backoffBase: 1h, backoffMax: 2h}\n", &[]);
    stage.job("again", json!({})).await;
    stage.counts("again", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("again").await[0], 1).await;
    stage.counts("again", "A0 R0 S0 F1 T0").await;
    let old = stage.jobs.get("again").await.unwrap().uid();
    stage.jobs.delete("again", &DeleteParams::background()).await.unwrap();
    stage.job("again", json!({})).await;
    let new = stage.counts("again", "A1 R0 S0 F0 T0").await;
    assert_ne!(new.uid(), old);
}

fn finished_at(pod: &Pod) -> k8s_openapi::jiff::Timestamp {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
    let ended = statuses[0].state.clone().and_then(|state| state.terminated).unwrap();
    ended.finished_at.unwrap().0
}

/// Without another controller, Jobs need no `managedBy`, may name the built-in controller there, and are deleted after
/// their TTL. After this is switched off again, nothing of Salvor is left on their pods.
async fn jobs_without_a_manager_are_run_while_that_is_wanted(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("unmanaged").await);
    let plain = async |name: &str, spec: serde_json::Value| {
        let mut spec = spec;
        spec["template"] = template();
        let job: Job = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        stage.jobs.create(&PostParams::default(), &job).await.unwrap();
    };
    let all =
        "controllers: [job]\njob: {backoffBase: 100ms, unmanagedJobs: true, deleteFinishedJobs: true}\n";
    let wanted = stage.salvor(all, &[]);
    plain("kept", json!({"managedBy": "kubernetes.io/job-controller"})).await;
    plain("short", json!({"ttlSecondsAfterFinished": 1})).await;
    plain("left", json!({"parallelism": 3, "completions": 3})).await;
    for name in ["kept", "short"] {
        stage.counts(name, "A1 R0 S0 F0 T0").await;
        stage.end(&stage.alive(name).await[0], 0).await;
    }
    stage.until("kept", "Complete").await;
    let deleting =
        wait::for_list(&stage.jobs, &Default::default(), "the short one goes", |jobs: &[Job]| {
            jobs.iter().all(|job| job.name_any() != "short" || job.metadata.deletion_timestamp.is_some())
        })
        .await;
    assert!(deleting.iter().any(|job| job.name_any() == "kept" && job.metadata.deletion_timestamp.is_none()));
    stage.counts("left", "A3 R0 S0 F0 T0").await;
    drop(wanted);

    let _not_wanted = stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
    stage.no_finalizer_is_left("left").await;
    assert_eq!(stage.alive("left").await.len(), 3, "they live on");
    let job = stage.jobs.get("left").await.unwrap();
    assert_eq!((counts(&job).as_str(), condition(&job, "Failed")), ("A3 R0 S0 F0 T0", None));
}

/// The built-in controller ran a Job until it was switched off. Its pods are counted, kept and released like Salvor's
/// own.
async fn pods_that_the_built_in_controller_made_are_taken_over(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("taken-over").await);
    let job = json!({"metadata": {"name": "over"}, "spec": {"parallelism": 2, "completions": 3, "template": template()}});
    let job: Job = serde_json::from_value(job).unwrap();
    let job = stage.jobs.create(&PostParams::default(), &job).await.unwrap();
    for name in ["over-ended", "over-alive"] {
        let mut pod = template();
        pod["metadata"] = json!({
            "name": name,
            "labels": job.spec.as_ref().unwrap().template.metadata.as_ref().unwrap().labels,
            "finalizers": [BUILT_IN_FINALIZER],
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "over", "uid": job.uid().unwrap(), "controller": true,
            }],
        });
        stage.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    stage.end(&stage.pods.get("over-ended").await.unwrap(), 0).await;

    let _salvor = stage.salvor("controllers: [job]\njob: {batchPeriod: 100ms, unmanagedJobs: true}\n", &[]);
    let expected = "A2 R0 S1 F0 T0";
    wait::for_object(&stage.jobs, "over", "its pods are counted", |job| counts(job) == expected).await;
    let alive: Vec<String> = stage.alive("over").await.iter().map(ResourceExt::name_any).collect();
    assert!(alive.len() == 2 && alive.contains(&"over-alive".to_owned()), "{alive:?}");
    for pod in stage.alive("over").await {
        stage.end(&pod, 0).await;
    }
    let job = stage.until("over", "Complete").await;
    assert_eq!((counts(&job).as_str(), stage.all_pods("over").await.len()), ("A0 R0 S3 F0 T0", 3));
    wait::for_list(&stage.pods, &Default::default(), "all pods are let go", |pods: &[Pod]| {
        pods.iter().all(|pod| pod.finalizers().is_empty())
    })
    .await;
}

/// TestJobPodFailurePolicyWithFailedPodDeletedDuringControllerRestart.
async fn a_failure_that_is_written_down_is_not_forgotten_with_its_pod(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("written").await);
    let rules = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [5]}}]});
    stage.job("ru", json!({"parallelism": 3, "completions": 3, "podFailurePolicy": rules})).await;
    let doomed = stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
    stage.counts("ru", "A3 R0 S0 F0 T0").await;
    let victim = stage.alive("ru").await.remove(0);
    stage.end(&victim, 5).await;
    wait::for_object(&stage.jobs, "ru", "it is bound to fail", |j| condition(j, "FailureTarget").is_some())
        .await;
    doomed.program.kill().await;
    let pods: Api<Pod> = stage.pods.clone();
    let _ = pods.delete(&victim.name_any(), &DeleteParams::default().grace_period(0)).await;
    let _second = stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
    let job = stage.until("ru", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(PodFailurePolicy) Failed(PodFailurePolicy)");
    assert_eq!(counts(&job), "A0 R0 S0 F3 T0");
    stage.no_finalizer_is_left("ru").await;
}

/// TestSuspendJobControllerRestart, TestNodeSelectorUpdate, TestMutablePodResources: changes of a suspended Job apply
/// to the pods that are created when it resumes.
async fn a_suspended_job_goes_on_with_what_it_was_given_meanwhile(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("changed").await);
    let settings = format!("controllers: [job]\n{QUICK}");
    let first = stage.salvor(&settings, &[]);
    stage.job("ch", json!({"parallelism": 2, "completions": 2, "suspend": true})).await;
    stage.until("ch", "Suspended").await;
    drop(first);
    stage.change("ch", json!({"template": {"spec": {"nodeSelector": {"pool": "gpu"}}}})).await;
    let _second = stage.salvor(&settings, &[]);
    stage.change("ch", json!({"suspend": false})).await;
    stage.counts("ch", "A2 R0 S0 F0 T0").await;
    for pod in stage.alive("ch").await {
        let selector = pod.spec.unwrap().node_selector.unwrap();
        assert_eq!(selector.get("pool").map(String::as_str), Some("gpu"));
        assert!(pod.metadata.finalizers.unwrap().contains(&FINALIZER.to_owned()));
    }
}

salvor_testkit::on_both!(
    small_portions_come_to_the_same_end,
    what_is_done_is_counted_as_the_built_in_controller_counts_it,
    failures_are_waited_for_longer_each_time_and_forgotten_with_their_job,
    jobs_without_a_manager_are_run_while_that_is_wanted,
    pods_that_the_built_in_controller_made_are_taken_over,
    a_failure_that_is_written_down_is_not_forgotten_with_its_pod,
    a_suspended_job_goes_on_with_what_it_was_given_meanwhile,
);
