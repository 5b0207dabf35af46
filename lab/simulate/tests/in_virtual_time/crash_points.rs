//! Every write of the zombie recovery, a crash before and after it, and each of those under every fault: the end is the
//! same as without, and nothing is written twice.

use std::time::Duration;

use salvor_api::config::Configuration;
use salvor_simulate::{CrashPoint, Line, in_virtual_time};
use serde_json::json;

use crate::stage::{DELETE, Stage, TERMINATE, annotated, configuration};
use crate::troubles::{Ending, Salvor, TROUBLES, Trouble, play_all};

/// The course of a recovery, and its number of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// The pod becomes Failed.
    Terminate,
    /// It is deleted as well.
    Delete,
    /// The same with a finalizer that blocks the deletion.
    DeleteHeld,
    /// Its Job would fail, so the Job's limit is raised first.
    OfJob,
    /// The node is tainted out-of-service, and the taint is removed when it sends heartbeats again.
    OutOfService,
}

impl Flow {
    fn writes(self) -> u32 {
        match self {
            // Status and event.
            Self::Terminate => 2,
            // Status, event and delete.
            Self::Delete | Self::DeleteHeld => 3,
            // Limit and event; then status, and both events.
            Self::OfJob => 5,
            // Taint and event; later the same for the removal.
            Self::OutOfService => 4,
        }
    }

    fn configuration(self) -> Configuration {
        let rules = match self {
            Self::OutOfService => {
                "[{taintNodeOutOfService: {nodeSelector: {matchLabels: {pool: batch}}, unreachableNodeTimeout: 60s}}]"
            }
            _ => "[]",
        };
        // A new process must wait for the lease of the one that died. Renewals are most of the events here, so they are
        // rare.
        configuration(&format!(
            "leaderElection: {{leaseDuration: 60s, renewDeadline: 40s, retryPeriod: 20s}}
failureRecoveryPolicy: {{rules: {rules}}}"
        ))
    }
}

/// Plays a recovery to its end.
async fn play(flow: Flow, crash: Option<CrashPoint>, trouble: Trouble) -> (Ending, u32) {
    let stage = Stage::new(1).await;
    stage.node("node").await;
    stage.lose("node").await;
    match flow {
        Flow::Terminate => stage.terminating("zombie", "node", annotated(TERMINATE)).await,
        Flow::Delete => stage.terminating("zombie", "node", annotated(DELETE)).await,
        Flow::DeleteHeld => {
            let mut held = annotated(DELETE);
            held["metadata"]["finalizers"] = json!(["test.salvor.dev/hold"]);
            stage.terminating("zombie", "node", held).await;
        }
        Flow::OfJob => {
            let job = stage.job("train", json!({"backoffLimit": 0, "podReplacementPolicy": "Failed"})).await;
            let mut owned = annotated(TERMINATE);
            let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": job, "controller": true});
            owned["metadata"]["ownerReferences"] = json!([owner]);
            owned["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
            stage.terminating("zombie", "node", owned).await;
        }
        Flow::OutOfService => {}
    }
    let line = crash.map(Line::dying).unwrap_or_default();
    // A minute after the node was lost, or the pod's grace period was over.
    let due = Duration::from_secs(55);
    let mut salvor = Salvor::start(&stage, flow.configuration(), line, trouble, due);
    salvor.live(Duration::from_secs(900)).await;
    if flow == Flow::OutOfService {
        salvor.begin_trouble();
        stage.comes_back("node").await;
        // A kubelet keeps renewing its Lease.
        for _ in 0..60 {
            salvor.live(Duration::from_secs(10)).await;
            stage.renews("node").await;
        }
    }
    salvor.stop().await
}

fn all_points_of(flow: Flow) {
    let (undisturbed, _) = in_virtual_time(play(flow, None, Trouble::None));
    let events = if matches!(flow, Flow::OutOfService | Flow::OfJob) { 2 } else { 1 };
    assert_eq!(undisturbed.events(), events, "{undisturbed:#?}");
    play_all(flow, flow.writes(), &TROUBLES, |crash, trouble| {
        let (ending, lives) = in_virtual_time(play(flow, crash, trouble));
        // Our mark goes with the taint, and with it all information about the incident: a process that dies at that
        // moment, or never learns that the taint is gone, does not report the node's return.
        let blinded = crash.is_some() || trouble.hides_answers();
        let may_be_missing = |what: &str| blinded && what == "Added events node-back-in-service";
        let mut found = ending.differences(&undisturbed, may_be_missing, |_| true);
        if lives != 1 + u32::from(crash.is_some()) {
            found.push(format!("{lives} lives"));
        }
        (found, lives)
    });
}

#[test]
fn a_pod_that_is_failed() {
    all_points_of(Flow::Terminate);
}

#[test]
fn a_pod_that_is_failed_and_deleted() {
    all_points_of(Flow::Delete);
}

#[test]
fn a_pod_that_is_failed_and_deleted_and_held_by_a_finalizer() {
    all_points_of(Flow::DeleteHeld);
}

#[test]
fn a_pod_whose_job_would_fail() {
    all_points_of(Flow::OfJob);
}

#[test]
fn a_node_that_is_taken_out_of_service_and_back() {
    all_points_of(Flow::OutOfService);
}
