//! When a pod is replaced: `podReplacementPolicy`, backoff, and the counters in the meantime.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use salvor_testkit::{Site, wait};
use serde_json::{Value, json};

use crate::stage::{Stage, blocked_template, condition, conditions, counts, is_over};

async fn deleted_and_failed(
    site: Site,
    name: &str,
    mode: &str,
    policy: Value,
    after_delete: &str,
    after_failing: &str,
) {
    let stage = Stage::new(site, name).await;
    let spec = json!({
        "parallelism": 2, "completions": 2, "completionMode": mode, "podReplacementPolicy": policy,
        "template": blocked_template(),
    });
    stage.job("re", spec).await;
    stage.counts("re", "A2 R0 S0 F0 T0").await;
    stage.pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    stage.counts("re", after_delete).await;
    for pod in stage.all_pods("re").await.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
        stage.end(pod, 1).await;
    }
    stage.counts("re", after_failing).await;
}

/// TestJobPodReplacementPolicy.
async fn by_default_terminating_pods_are_replaced_indexed(site: Site) {
    deleted_and_failed(site, "r-default-ix", "Indexed", json!(null), "A2 R0 S0 F2 T2", "A2 R0 S0 F2 T0")
        .await;
}

async fn under_terminating_or_failed_terminating_pods_are_replaced(site: Site) {
    for mode in ["Indexed", "NonIndexed"] {
        let policy = json!("TerminatingOrFailed");
        deleted_and_failed(site, "r-either", mode, policy, "A2 R0 S0 F2 T2", "A2 R0 S0 F2 T0").await;
    }
}

async fn under_failed_only_failed_pods_are_replaced(site: Site) {
    for mode in ["Indexed", "NonIndexed"] {
        deleted_and_failed(site, "r-failed", mode, json!("Failed"), "A0 R0 S0 F0 T2", "A2 R0 S0 F2 T0").await;
    }
}

/// A terminating pod that succeeds counts as a success under `Failed`, and stays a failure under the other policy.
async fn a_terminating_pod_that_ends_well_counts_by_the_policy(site: Site) {
    let stage = Stage::new(site, "late-success").await;
    for (name, policy, then) in
        [("only-failed", "Failed", "A0 R0 S1 F0 T0"), ("either", "TerminatingOrFailed", "A1 R0 S0 F1 T0")]
    {
        stage.job(name, json!({"podReplacementPolicy": policy, "template": blocked_template()})).await;
        stage.counts(name, "A1 R0 S0 F0 T0").await;
        let pod = stage.alive(name).await.remove(0);
        stage.delete(&pod).await;
        wait::for_object(&stage.jobs, name, "its pod is seen terminating", |j| counts(j).ends_with("T1"))
            .await;
        stage.end(&pod, 0).await;
        stage.counts(name, then).await;
    }
    stage.until("only-failed", "Complete").await;
}

/// The policy may be changed while pods are terminating.
async fn the_policy_is_changed_while_a_pod_hangs(site: Site) {
    let stage = Stage::new(site, "changed").await;
    stage.job("ch", json!({"podReplacementPolicy": "Failed", "template": blocked_template()})).await;
    stage.counts("ch", "A1 R0 S0 F0 T0").await;
    stage.delete(&stage.alive("ch").await[0]).await;
    stage.counts("ch", "A0 R0 S0 F0 T1").await;
    let why = stage.ours().explain("job", &format!("{}/ch", stage.arena.namespace())).await;
    assert!(why.contains("AwaitingTermination") && why.contains("on node its-kubelet-is-the-test"), "{why}");
    stage.change("ch", json!({"podReplacementPolicy": "TerminatingOrFailed"})).await;
    stage.counts("ch", "A1 R0 S0 F1 T1").await;
}

/// Each index has its own reason to wait, which is shown. The explanation uses the operator's backoff.
async fn explain_says_what_each_index_waits_for(site: Site) {
    // In its own cluster, because another Salvor would have another backoff.
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("each-index").await);
    let salvor = stage.salvor("controllers: [job]\njob: {backoffBase: 1h, backoffMax: 1h}\n", &[]);
    let spec = json!({
        "parallelism": 3, "completions": 4, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
        "template": blocked_template(),
    });
    stage.job("ea", spec).await;
    stage.counts("ea", "A3 R0 S0 F0 T0").await;
    let hangs = stage.alive_at("ea", 0).await;
    stage.delete(&hangs).await;
    stage.end(&stage.alive_at("ea", 1).await, 1).await;
    stage.counts("ea", "A1 R0 S0 F1 T1").await;
    let name = format!("{}/ea", stage.arena.namespace());
    let why = salvor.explain("job", &name).await;
    assert!(why.contains(&format!("job {name}: WAIT until ")) && why.contains("[job: BackingOff]"), "{why}");
    let ends = format!("index 0: pod {} on node its-kubelet-is-the-test to end", hangs.name_any());
    let last = "index 3: its turn: the Job runs as many pods as it may";
    for line in [ends.as_str(), "index 1: its backoff, until ", "index 2: pod ", last] {
        assert!(why.contains(&format!("\n  {line}")), "{line}: {why}");
    }
}

/// TestMutablePodResourcesWithPodReplacementPolicyFailed, without the resources.
async fn a_suspended_job_counts_its_hanging_pods_and_replaces_them_after_it_goes_on(site: Site) {
    let stage = Stage::new(site, "hanging").await;
    let spec = json!({"parallelism": 2, "completions": 2, "podReplacementPolicy": "Failed", "template": blocked_template()});
    stage.job("ha", spec).await;
    stage.counts("ha", "A2 R0 S0 F0 T0").await;
    stage.change("ha", json!({"suspend": true})).await;
    stage.counts("ha", "A0 R0 S0 F0 T2").await;
    stage.change("ha", json!({"suspend": false})).await;
    wait::for_object(&stage.jobs, "ha", "it goes on", |j| condition(j, "Suspended").is_none()).await;
    stage.counts("ha", "A0 R0 S0 F0 T2").await;
    for pod in stage.all_pods("ha").await {
        stage.unblock(&pod).await;
    }
    stage.counts("ha", "A2 R0 S0 F0 T0").await;
}

/// The built-in controller of 1.37.1 retries its last write forever here, because it is refused.
async fn a_suspended_job_whose_last_pod_ends_comes_to_its_end(site: Site) {
    let stage = Stage::new(site, "suspended-end").await;
    for (name, code, end) in [
        (
            "good",
            0,
            "Suspended(JobSuspended) SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
        ),
        (
            "bad",
            1,
            "Suspended(JobSuspended) FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)",
        ),
    ] {
        let spec =
            json!({"podReplacementPolicy": "Failed", "backoffLimit": 0, "template": blocked_template()});
        stage.job(name, spec).await;
        stage.counts(name, "A1 R0 S0 F0 T0").await;
        let pod = stage.alive(name).await.remove(0);
        stage.delete(&pod).await;
        stage.counts(name, "A0 R0 S0 F0 T1").await;
        stage.change(name, json!({"suspend": true})).await;
        let suspended = stage.until(name, "Suspended").await;
        assert!(suspended.status.unwrap().start_time.is_none());
        stage.end(&pod, code).await;
        let kind = if code == 0 { "Complete" } else { "Failed" };
        let job = stage.until(name, kind).await;
        assert_eq!(conditions(&job), end);
        assert!(job.status.unwrap().start_time.is_some());
    }
}

/// After a replacement is done, an old pod that hangs still delays the end of the Job.
async fn a_hanging_pod_delays_the_end_and_not_the_work(site: Site) {
    let stage = Stage::new(site, "late-end").await;
    stage.job("le", json!({"template": blocked_template()})).await;
    stage.counts("le", "A1 R0 S0 F0 T0").await;
    let old = stage.alive("le").await.remove(0);
    stage.delete(&old).await;
    stage.counts("le", "A1 R0 S0 F1 T1").await;
    let new = stage.alive("le").await.remove(0);
    stage.end(&new, 0).await;
    let job = stage.counts("le", "A0 R0 S1 F1 T1").await;
    assert_eq!(conditions(&job), "SuccessCriteriaMet(CompletionsReached)");
    stage.unblock(&old).await;
    stage.until("le", "Complete").await;
}

/// An index has one pod, even if the API server is overloaded.
async fn no_index_ever_has_two_pods(site: Site) {
    let stage = Stage::new(site, "once").await;
    let spec = json!({
        "parallelism": 20, "completions": 60, "completionMode": "Indexed", "podReplacementPolicy": "Failed",
        "backoffLimit": 1000,
    });
    stage.job("once", spec).await;
    let done = async {
        loop {
            let alive = stage.alive("once").await;
            for (turn, pod) in alive.iter().enumerate() {
                match turn % 7 {
                    3 => stage.end(pod, 1).await,
                    _ => stage.end(pod, 0).await,
                }
            }
            let job = stage.jobs.get("once").await.unwrap();
            if condition(&job, "Complete").is_some() {
                return;
            }
        }
    };
    let mut seen = std::collections::BTreeMap::<u32, std::collections::BTreeSet<String>>::new();
    let mut twice = move |pod: &Pod| {
        let (Some(index), Some(uid)) = (crate::stage::index(pod), pod.metadata.uid.clone()) else {
            return false;
        };
        let alive = seen.entry(index).or_default();
        if is_over(pod) {
            alive.remove(&uid);
        } else {
            alive.insert(uid);
        }
        alive.len() > 1
    };
    wait::never(&stage.pods, &ListParams::default(), "two pods of one index are alive", &mut twice, done)
        .await;
}

salvor_testkit::on_both!(
    by_default_terminating_pods_are_replaced_indexed,
    under_terminating_or_failed_terminating_pods_are_replaced,
    under_failed_only_failed_pods_are_replaced,
    a_terminating_pod_that_ends_well_counts_by_the_policy,
    the_policy_is_changed_while_a_pod_hangs,
    explain_says_what_each_index_waits_for,
    a_suspended_job_counts_its_hanging_pods_and_replaces_them_after_it_goes_on,
    a_suspended_job_whose_last_pod_ends_comes_to_its_end,
    a_hanging_pod_delays_the_end_and_not_the_work,
    no_index_ever_has_two_pods,
);
