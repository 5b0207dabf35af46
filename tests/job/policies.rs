//! A Job's own rules about ended pods: pod failure policy, success policy, limits per index.

use kube::ResourceExt;
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::stage::{Stage, conditions, counts};

/// TestJobPodFailurePolicy.
async fn a_pod_failure_policy_ends_ignores_and_counts(site: Site) {
    let stage = Stage::new(site, "failure-policy").await;
    let rules = json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Count", "onExitCodes": {"operator": "In", "values": [10]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [-1_073_741_510, 5, 6, 7]}},
    ]});
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "Test"}]);
    for (name, code, pod_conditions, expected) in [
        ("ends", 5, json!([]), "A0 R0 S0 F1 T0"),
        ("ignores", 5, disrupted, "A1 R0 S0 F0 T0"),
        ("counts", 10, json!([]), "A1 R0 S0 F1 T0"),
        ("negative", -1_073_741_510, json!([]), "A0 R0 S0 F1 T0"),
        ("no-match", 11, json!([]), "A1 R0 S0 F1 T0"),
    ] {
        stage.job(name, json!({"podFailurePolicy": rules})).await;
        stage.counts(name, "A1 R0 S0 F0 T0").await;
        let pod = stage.alive(name).await.remove(0);
        stage.end_with(&pod, code, pod_conditions).await;
        wait::for_object(&stage.pods, &pod.name_any(), "it is counted", |p| !crate::stage::has_finalizer(p))
            .await;
        stage.counts(name, expected).await;
    }
    let job = stage.until("ends", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(PodFailurePolicy) Failed(PodFailurePolicy)");
    stage.end(&stage.alive("ignores").await[0], 0).await;
    stage.until("ignores", "Complete").await;
}

/// TestSuccessPolicy.
async fn a_success_policy_ends_a_job_early(site: Site) {
    let stage = Stage::new(site, "success-policy").await;
    for (name, rule) in [
        ("index", json!({"succeededIndexes": "1"})),
        ("count", json!({"succeededCount": 1})),
        ("count-of-indexes", json!({"succeededIndexes": "0,1", "succeededCount": 1})),
    ] {
        let spec = json!({
            "parallelism": 2, "completions": 2, "completionMode": "Indexed", "successPolicy": {"rules": [rule]},
        });
        stage.job(name, spec).await;
        stage.counts(name, "A2 R0 S0 F0 T0").await;
        stage.end(&stage.alive_at(name, 1).await, 0).await;
        let job = stage.until(name, "Complete").await;
        assert_eq!(conditions(&job), "SuccessCriteriaMet(SuccessPolicy) Complete(SuccessPolicy)");
        assert_eq!(counts(&job), "A0 R0 S1 F0 T0");
        stage.no_finalizer_is_left(name).await;
    }
}

/// TestSuccessPolicy: all indexes are required, there is no policy, or one index failed for good.
async fn a_success_policy_that_asks_for_everything_is_none(site: Site) {
    let stage = Stage::new(site, "success-all").await;
    let all = json!({"rules": [{"succeededIndexes": "0,1"}]});
    for (name, more, code, end) in [
        (
            "all",
            json!({"successPolicy": all}),
            0,
            "SuccessCriteriaMet(SuccessPolicy) Complete(SuccessPolicy)",
        ),
        ("none", json!({}), 0, "SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)"),
        (
            "failed-index",
            json!({"successPolicy": all, "backoffLimitPerIndex": 0}),
            1,
            "FailureTarget(FailedIndexes) Failed(FailedIndexes)",
        ),
    ] {
        let spec = with(json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}), &more);
        stage.job(name, spec).await;
        stage.counts(name, "A2 R0 S0 F0 T0").await;
        stage.end(&stage.alive_at(name, 0).await, code).await;
        stage.counts(name, if code == 0 { "A1 R0 S1 F0 T0" } else { "A1 R0 S0 F1 T0" }).await;
        stage.end(&stage.alive_at(name, 1).await, 0).await;
        let job = stage.until(name, if code == 0 { "Complete" } else { "Failed" }).await;
        assert_eq!(conditions(&job), end, "{name}");
        stage.no_finalizer_is_left(name).await;
    }
}

/// TestBackoffLimitPerIndex: the limit of the whole Job still applies, and a rule can fail an index at once.
async fn limits_of_indexes_go_with_those_of_the_job(site: Site) {
    let stage = Stage::new(site, "per-index-more").await;
    let indexed =
        json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 2});
    stage.job("global", with(indexed.clone(), &json!({"backoffLimit": 2}))).await;
    for failures in 0..3 {
        stage.counts("global", &format!("A3 R0 S0 F{failures} T0")).await;
        stage.end(&stage.alive_at("global", failures).await, 1).await;
    }
    let job = stage.until("global", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)");
    assert_eq!(counts(&job), "A0 R0 S0 F5 T0", "all pods count");

    let rule = json!({"rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [13]}},
    ]});
    stage.job("rule", with(indexed, &json!({ "podFailurePolicy": rule }))).await;
    stage.counts("rule", "A3 R0 S0 F0 T0").await;
    stage.end(&stage.alive_at("rule", 0).await, 13).await;
    let job = stage.counts("rule", "A2 R0 S0 F1 T0").await;
    assert_eq!(job.status.unwrap().failed_indexes.as_deref(), Some("0"));
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": "Test"}]);
    let victim = stage.alive_at("rule", 1).await;
    stage.end_with(&victim, 13, disrupted).await;
    wait::for_object(&stage.pods, &victim.name_any(), "it is let go", |p| !crate::stage::has_finalizer(p))
        .await;
    stage.counts("rule", "A2 R0 S0 F1 T0").await;
    let again = stage.alive_at("rule", 1).await;
    let ignored = again.annotations().get("batch.kubernetes.io/job-index-ignored-failure-count").cloned();
    assert_eq!(ignored.as_deref(), Some("1"), "known to its replacement, and counted nowhere");
    for at in [1, 2] {
        stage.end(&stage.alive_at("rule", at).await, 0).await;
    }
    let job = stage.until("rule", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(FailedIndexes) Failed(FailedIndexes)");
    assert_eq!(counts(&job), "A0 R0 S2 F1 T0");
}

fn with(mut spec: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

/// TestBackoffLimitPerIndex, and its delayed pod deletion.
async fn every_index_has_its_own_limit(site: Site) {
    let stage = Stage::new(site, "per-index").await;
    let spec = |more: Value| {
        let spec = json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
        with(spec, &more)
    };
    stage.job("pi", spec(json!({}))).await;
    stage.counts("pi", "A3 R0 S0 F0 T0").await;
    let first = stage.alive_at("pi", 0).await;
    stage.end(&first, 1).await;
    stage.delete(&first).await;
    stage.counts("pi", "A3 R0 S0 F1 T0").await;
    let again = stage.alive_at("pi", 0).await;
    let failures = again.annotations().get("batch.kubernetes.io/job-index-failure-count").cloned();
    assert_eq!(failures.as_deref(), Some("1"));
    stage.end(&again, 1).await;
    let job = stage.counts("pi", "A2 R0 S0 F2 T0").await;
    assert_eq!(job.status.unwrap().failed_indexes.as_deref(), Some("0"));
    for at in [1, 2] {
        stage.end(&stage.alive_at("pi", at).await, 0).await;
    }
    let job = stage.until("pi", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(FailedIndexes) Failed(FailedIndexes)");

    stage.job("max", spec(json!({"backoffLimitPerIndex": 0, "maxFailedIndexes": 1}))).await;
    stage.counts("max", "A3 R0 S0 F0 T0").await;
    stage.end(&stage.alive_at("max", 0).await, 1).await;
    stage.counts("max", "A2 R0 S0 F1 T0").await;
    stage.end(&stage.alive_at("max", 1).await, 1).await;
    let job = stage.until("max", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(MaxFailedIndexesExceeded) Failed(MaxFailedIndexesExceeded)");
    assert_eq!(job.status.as_ref().unwrap().failed_indexes.as_deref(), Some("0,1"));
    assert_eq!(counts(&job), "A0 R0 S0 F3 T0");
}

salvor_testkit::on_both!(
    a_pod_failure_policy_ends_ignores_and_counts,
    a_success_policy_ends_a_job_early,
    a_success_policy_that_asks_for_everything_is_none,
    limits_of_indexes_go_with_those_of_the_job,
    every_index_has_its_own_limit,
);
