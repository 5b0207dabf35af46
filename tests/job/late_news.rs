//! The controller's cache lags behind the cluster, and behind its own writes.

use std::time::Duration;

use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Recorder, Site, recorder::ChangeKind, wait};
use serde_json::json;

use crate::stage::{QUICK, Stage, counts, has_finalizer, salvor_as};

/// Long enough for a pod to be created, end, be counted and be deleted before the first watch event of its Job arrives.
const LATE: Duration = Duration::from_secs(2);

/// TestDelayedJobUpdateEvent: a controller that forgets its own writes creates pods twice.
async fn news_of_jobs_that_come_late_make_no_pod_twice(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("late").await);
    let server = FaultyServer::before(&stage.arena.admin()).await;
    server.faults().add(Fault::new(Effect::Lag(LATE)).path("/apis/batch/v1/jobs"));
    let _salvor = salvor_as(server.admin(), &format!("controllers: [job]\n{QUICK}"), &[]);
    let recorder = Recorder::start(&stage.pods, &ListParams::default()).await;
    let indexed = json!({"completions": 3, "parallelism": 1, "completionMode": "Indexed"});
    // When the last Job is known, everything that happened to the others is known too.
    for (name, spec, completions) in [("one", json!({}), 1), ("indexed", indexed, 3), ("last", json!({}), 1)]
    {
        stage.job(name, spec).await;
        for succeeded in 0..completions {
            stage.counts(name, &format!("A1 R0 S{succeeded} F0 T0")).await;
            let pod = stage.alive(name).await.remove(0);
            stage.end(&pod, 0).await;
            wait::for_object(&stage.pods, &pod.name_any(), "it is counted", |pod| !has_finalizer(pod)).await;
            // The pods no longer show what has been done.
            stage.delete(&pod).await;
        }
        let done = stage.until(name, "Complete").await;
        assert_eq!(counts(&done), format!("A0 R0 S{completions} F0 T0"));
    }
    let changes = recorder.changes().await;
    let made: Vec<&str> =
        changes.iter().filter(|c| c.kind == ChangeKind::Added).map(|c| c.name.as_str()).collect();
    assert_eq!(made.len(), 5, "{made:?}");
}

/// A Job is deleted while the watch of Jobs is stuck. Its failed pod would be replaced needlessly.
async fn a_job_that_is_gone_unseen_gets_no_pod(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("unseen").await);
    let server = FaultyServer::before(&stage.arena.admin()).await;
    stage.job("gone", json!({})).await;
    // Only the first list of Jobs arrives.
    let never = Duration::from_secs(86_400);
    server.faults().add(Fault::new(Effect::Lag(never)).path("/apis/batch/v1/jobs"));
    let recorder = Recorder::start(&stage.pods, &ListParams::default()).await;
    let salvor = salvor_as(server.admin(), &format!("controllers: [job]\n{QUICK}"), &[]);
    stage.counts("gone", "A1 R0 S0 F0 T0").await;
    let pod = stage.alive("gone").await.remove(0);
    stage.jobs.delete("gone", &DeleteParams::background()).await.unwrap();
    wait::for_absence(&stage.jobs, "gone").await;
    stage.end_long_ago(&pod, 1, json!([])).await;
    salvor.says("write skipped: live objects differ").await;
    let changes = recorder.changes().await;
    let made: Vec<&str> =
        changes.iter().filter(|c| c.kind == ChangeKind::Added).map(|c| c.name.as_str()).collect();
    assert_eq!(made, [pod.name_any()], "{}", salvor.program.output());
}

salvor_testkit::on_both!(
    news_of_jobs_that_come_late_make_no_pod_twice,
    a_job_that_is_gone_unseen_gets_no_pod,
);
