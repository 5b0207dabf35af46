//! How Jobs end: limits, policies, deadlines, deletion.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PropagationPolicy};
use salvor_testkit::{Site, wait};
use serde_json::json;

use crate::stage::{Stage, blocked_template, conditions, counts};

/// TestDelayTerminalPhaseCondition.
async fn a_job_has_failed_only_when_its_last_pod_has_ended(site: Site) {
    let stage = Stage::new(site, "delay-failed").await;
    stage
        .job(
            "df",
            json!({"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": blocked_template()}),
        )
        .await;
    stage.counts("df", "A2 R0 S0 F0 T0").await;
    let pods = stage.alive("df").await;
    stage.end(&pods[0], 1).await;
    let job = stage.counts("df", "A0 R0 S0 F2 T1").await;
    assert_eq!(conditions(&job), "FailureTarget(BackoffLimitExceeded)");
    stage.end(&pods[1], 0).await;
    let job = stage.until("df", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)");
    assert_eq!(counts(&job), "A0 R0 S0 F2 T0");
}

async fn a_job_scaled_down_is_complete_only_when_the_surplus_has_ended(site: Site) {
    let stage = Stage::new(site, "delay-complete").await;
    let spec = json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": blocked_template()});
    stage.job("dc", spec).await;
    stage.counts("dc", "A2 R0 S0 F0 T0").await;
    stage.end(&stage.alive_at("dc", 0).await, 0).await;
    stage.counts("dc", "A1 R0 S1 F0 T0").await;
    let surplus = stage.alive_at("dc", 1).await;
    stage.change("dc", json!({"parallelism": 1, "completions": 1})).await;
    let job = stage.counts("dc", "A0 R0 S1 F0 T1").await;
    assert_eq!(conditions(&job), "SuccessCriteriaMet(CompletionsReached)");
    assert_eq!(job.status.unwrap().completed_indexes.as_deref(), Some("0"));
    stage.end(&surplus, 0).await;
    stage.until("dc", "Complete").await;
}

async fn a_deadline_ends_a_job(site: Site) {
    let stage = Stage::new(site, "deadline").await;
    stage.job("dl", json!({"activeDeadlineSeconds": 2})).await;
    let job = stage.until("dl", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(DeadlineExceeded) Failed(DeadlineExceeded)");
    assert_eq!(counts(&job), "A0 R0 S0 F1 T0");
    let status = job.status.unwrap();
    let ended = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Failed").unwrap();
    let ran = ended.last_transition_time.unwrap().0.duration_since(status.start_time.unwrap().0);
    assert!(ran.as_secs() >= 2, "it ran for {ran:?}");
}

/// TestFinalizersClearedWhenBackoffLimitExceeded.
async fn a_large_job_that_fails_at_once_leaves_no_finalizer(site: Site) {
    let stage = Stage::new(site, "large").await;
    stage
        .job(
            "large",
            json!({"parallelism": 100, "completions": 100, "completionMode": "Indexed", "backoffLimit": 0}),
        )
        .await;
    let first =
        wait::for_list(&stage.pods, &Default::default(), "it has a pod", |pods: &[_]| !pods.is_empty()).await;
    stage.end(&first[0], 1).await;
    stage.until("large", "Failed").await;
    stage.no_finalizer_is_left("large").await;
}

/// TestOrphanPodsFinalizersClearedWithGC.
async fn a_job_that_is_deleted_leaves_no_finalizer(site: Site) {
    let stage = Stage::new(site, "deleted").await;
    for (name, policy) in [
        ("background", PropagationPolicy::Background),
        ("foreground", PropagationPolicy::Foreground),
        ("orphan", PropagationPolicy::Orphan),
    ] {
        stage.job(name, json!({"parallelism": 5, "completions": 5})).await;
        stage.counts(name, "A5 R0 S0 F0 T0").await;
        stage.until_the_collector_knows_all_pods().await;
        let how = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        stage.jobs.delete(name, &how).await.unwrap();
        stage.no_finalizer_is_left(name).await;
        wait::for_absence(&stage.jobs, name).await;
        if name == "orphan" {
            assert_eq!(stage.alive(name).await.len(), 5, "they live on");
        } else {
            let mine = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
            wait::for_list(&stage.pods, &mine, "its pods are gone", |pods: &[Pod]| pods.is_empty()).await;
        }
    }
}

/// TestImmediateJobRecreation: what was remembered of a Job does not outlive it.
async fn a_job_made_anew_starts_anew(site: Site) {
    let stage = Stage::new(site, "anew").await;
    for _ in 0..2 {
        stage.job("anew", json!({"backoffLimit": 0})).await;
        stage.counts("anew", "A1 R0 S0 F0 T0").await;
        stage.end(&stage.alive("anew").await[0], 1).await;
        stage.until("anew", "Failed").await;
        stage.jobs.delete("anew", &DeleteParams::background()).await.unwrap();
        wait::for_absence(&stage.jobs, "anew").await;
    }
}

salvor_testkit::on_both!(
    a_job_has_failed_only_when_its_last_pod_has_ended,
    a_job_scaled_down_is_complete_only_when_the_surplus_has_ended,
    a_deadline_ends_a_job,
    a_large_job_that_fails_at_once_leaves_no_finalizer,
    a_job_that_is_deleted_leaves_no_finalizer,
    a_job_made_anew_starts_anew,
);
