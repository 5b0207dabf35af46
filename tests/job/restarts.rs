//! The controller stops and starts again at any point.

use kube::api::DeleteParams;
use salvor_testkit::Site;
use serde_json::json;

use crate::stage::{QUICK, Stage, blocked_template, condition, conditions, counts, has_finalizer};

const GATE_OFF: &str = "featureGates: {JobPodReplacementPolicy: false}\n";

fn only_jobs(more: &str) -> String {
    format!("controllers: [job]\n{QUICK}{more}")
}

/// Killed before or after every single write, it reaches the same end with the same counts.
async fn a_crash_between_any_two_writes_changes_nothing(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("crash").await);
    let mut writes_were_enough = false;
    for write in 1..40 {
        for moment in ["before", "after"] {
            let name = format!("crash-{write}-{moment}");
            stage
                .job(&name, json!({"parallelism": 2, "completions": 2, "podReplacementPolicy": "Failed"}))
                .await;
            let crash = format!("{moment}:{write}");
            let doomed = stage.salvor(&only_jobs(""), &[("SALVOR_TEST_CRASH", &crash)]);
            let mut next = None;
            let mut failed_one = false;
            let job = loop {
                if next.is_none() && doomed.program.has_ended() {
                    next = Some(stage.salvor(&only_jobs(""), &[]));
                }
                let alive = stage.alive(&name).await;
                for pod in &alive {
                    stage.end(pod, i32::from(!failed_one)).await;
                    failed_one = true;
                }
                let job = stage.jobs.get(&name).await.unwrap();
                let is_over = condition(&job, "Complete").is_some();
                // Pods may be released after that, which takes further writes.
                if is_over && !stage.all_pods(&name).await.iter().any(has_finalizer) {
                    break job;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            };
            assert_eq!(counts(&job), "A0 R0 S2 F1 T0", "{crash}");
            assert_eq!(stage.all_pods(&name).await.len(), 3, "{crash}: no pod too many");
            stage.jobs.delete(&name, &DeleteParams::background()).await.unwrap();
            writes_were_enough |= next.is_none();
        }
        if writes_were_enough {
            return;
        }
    }
    panic!("a Job of two pods takes forty writes");
}

/// etcd is restored from a backup: revisions continue from an earlier one, and everything since then is gone.
async fn after_the_restore_of_a_backup_everything_is_read_anew(site: Site) {
    // A leader notices by its Lease. Without an election the watches must notice.
    for election in ["", "leaderElection: {leaseDuration: 6s, renewDeadline: 4s, retryPeriod: 1s}\n"] {
        let plane = site.api_server().await;
        let stage = Stage::on(plane.arena("restore").await);
        let salvor = stage.salvor(&only_jobs(election), &[]);
        stage.job("kept", json!({"parallelism": 1, "completions": 2})).await;
        stage.counts("kept", "A1 R0 S0 F0 T0").await;
        let backup = plane.back_up().await;
        // Enough writes that the new history does not reach the same revision within this test.
        for number in 0..30 {
            stage.job(&format!("lost-{number}"), json!({"parallelism": 2, "completions": 2})).await;
        }
        for number in 0..30 {
            stage.counts(&format!("lost-{number}"), "A2 R0 S0 F0 T0").await;
        }
        let pod = stage.alive("kept").await.remove(0);
        stage.end(&pod, 0).await;
        stage.counts("kept", "A1 R0 S1 F0 T0").await;
        plane.restore(&backup).await;

        stage.job("new", json!({"parallelism": 2, "completions": 2})).await;
        stage.counts("new", "A2 R0 S0 F0 T0").await;
        // The old history had a higher revision and another state, in which the pod had ended and was counted.
        let again = stage.alive("kept").await;
        assert_eq!(again.iter().map(|pod| &pod.metadata.uid).collect::<Vec<_>>(), [&pod.metadata.uid]);
        stage.counts("kept", "A1 R0 S0 F0 T0").await;
        stage.end(&again[0], 0).await;
        stage.counts("kept", "A1 R0 S1 F0 T0").await;
        for pod in stage.alive("new").await {
            stage.end(&pod, 0).await;
        }
        stage.until("new", "Complete").await;
        stage.end(&stage.alive("kept").await[0], 0).await;
        stage.until("kept", "Complete").await;
        assert!(salvor.count(&["went backwards"]) >= 1, "{}", salvor.program.output());
        // Nothing is done for Jobs that no longer exist.
        assert!(stage.all_pods("lost-0").await.is_empty());
    }
}

/// The seed's case: the gate is switched off and on again while pods are terminating.
async fn the_gate_goes_off_and_on_again(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("gate").await);
    let spec = json!({"parallelism": 2, "completions": 4, "podReplacementPolicy": "Failed", "template": blocked_template()});
    stage.job("ga", spec).await;
    let on = stage.salvor(&only_jobs(""), &[]);
    stage.counts("ga", "A2 R0 S0 F0 T0").await;
    let first = stage.alive("ga").await;
    drop(on);

    let off = stage.salvor(&only_jobs(GATE_OFF), &[]);
    stage.delete(&first[0]).await;
    stage.counts("ga", "A2 R0 S0 F1 T-").await;
    drop(off);

    let _on = stage.salvor(&only_jobs(""), &[]);
    stage.end(&first[0], 0).await;
    stage.counts("ga", "A2 R0 S0 F1 T0").await;
    stage.delete(&first[1]).await;
    stage.counts("ga", "A1 R0 S0 F1 T1").await;
    stage.end(&first[1], 1).await;
    stage.counts("ga", "A2 R0 S0 F2 T0").await;
}

/// TestOrphanPodsFinalizersClearedOnRestart, TestJobFailedWithInterrupts.
async fn what_happens_while_it_is_away_is_seen_when_it_is_back(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("away").await);
    stage.job("gone", json!({"parallelism": 3, "completions": 3})).await;
    stage.job("failed", json!({"parallelism": 5, "completions": 5, "backoffLimit": 0})).await;
    let first = stage.salvor(&only_jobs(""), &[]);
    stage.counts("gone", "A3 R0 S0 F0 T0").await;
    stage.counts("failed", "A5 R0 S0 F0 T0").await;
    drop(first);
    stage.jobs.delete("gone", &DeleteParams::default()).await.unwrap();
    for (position, pod) in stage.alive("failed").await.iter().enumerate() {
        stage.end(pod, i32::from(position == 0)).await;
    }
    let _second = stage.salvor(&only_jobs(""), &[]);
    stage.no_finalizer_is_left("gone").await;
    let job = stage.until("failed", "Failed").await;
    assert_eq!(conditions(&job), "FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)");
    assert_eq!(counts(&job), "A0 R0 S4 F1 T0");
}

/// Three leaders in a row, two of them killed during their work: every pod is created once and counted once.
async fn a_new_leader_goes_on_where_the_old_one_was_killed(site: Site) {
    const ELECTION: &str = "leaderElection: {leaseNamespace: default, leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}\n";
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("leaders").await);
    let mut replicas: Vec<_> = (0..3).map(|_| stage.salvor(&only_jobs(ELECTION), &[])).collect();
    stage.job("le", json!({"parallelism": 20, "completions": 100, "backoffLimit": 1000})).await;
    let (mut succeeded, mut failed) = (0, 0);
    let job = loop {
        for pod in stage.alive("le").await {
            let fails = (succeeded + failed) % 5 == 4;
            stage.end(&pod, i32::from(fails)).await;
            *(if fails { &mut failed } else { &mut succeeded }) += 1;
        }
        let job = stage.jobs.get("le").await.unwrap();
        if condition(&job, "Complete").is_some() {
            break job;
        }
        // The leader is the replica that has done something.
        if succeeded > 30 * (4 - replicas.len())
            && replicas.len() > 1
            && let Some(leader) =
                replicas.iter().position(|r| r.program.output().contains("\"write succeeded\""))
        {
            drop(replicas.remove(leader));
        }
    };
    assert_eq!(replicas.len(), 1, "two leaders were killed");
    assert_eq!(counts(&job), format!("A0 R0 S{succeeded} F{failed} T0"));
    assert_eq!(stage.all_pods("le").await.len(), succeeded + failed);
    stage.no_finalizer_is_left("le").await;
}

salvor_testkit::on_both!(
    a_crash_between_any_two_writes_changes_nothing,
    after_the_restore_of_a_backup_everything_is_read_anew,
    the_gate_goes_off_and_on_again,
    what_happens_while_it_is_away_is_seen_when_it_is_back,
    a_new_leader_goes_on_where_the_old_one_was_killed,
);
