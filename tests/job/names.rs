//! Names of pods: logs, metrics and people refer to pods by name, so no name is used twice during the life of a Job.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use salvor_testkit::{Recorder, Site, recorder::ChangeKind, wait};
use serde_json::json;

use crate::stage::{QUICK, Stage, counts, template};

async fn nothing_is_left(stage: &Stage<'_>) {
    wait::for_list(&stage.pods, &ListParams::default(), "no pod is left", <[Pod]>::is_empty).await;
}

/// Pods fail and are deleted, Jobs are suspended and scaled down, and the controller is a new process each time.
async fn no_name_comes_back_in_the_life_of_a_job(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("names").await);
    let recorder = Recorder::start(&stage.pods, &ListParams::default()).await;
    let start = || stage.salvor(&format!("controllers: [job]\n{QUICK}"), &[]);
    let salvor = start();
    for (name, mode) in [("indexed", "Indexed"), ("plain", "NonIndexed")] {
        let spec = json!({"completions": 2, "parallelism": 2, "completionMode": mode, "backoffLimit": 50});
        stage.job(name, spec).await;
        stage.counts(name, "A2 R0 S0 F0 T0").await;
        for pod in stage.alive(name).await {
            stage.end_long_ago(&pod, 1, json!([])).await;
            stage.delete(&pod).await;
        }
        stage.counts(name, "A2 R0 S0 F2 T0").await;
        for pod in stage.alive(name).await {
            stage.not_ready_long_ago(&pod, json!([])).await;
            stage.delete(&pod).await;
        }
        stage.counts(name, "A2 R0 S0 F4 T0").await;
    }
    drop(salvor);
    let salvor = start();
    for name in ["indexed", "plain"] {
        stage.change(name, json!({"suspend": true})).await;
        stage.counts(name, "A0 R0 S0 F4 T0").await;
    }
    nothing_is_left(&stage).await;
    drop(salvor);
    // No process remembers the names, and no pod is left to show them.
    let salvor = start();
    for name in ["indexed", "plain"] {
        stage.change(name, json!({"suspend": false})).await;
        stage.counts(name, "A2 R0 S0 F4 T0").await;
        let smaller = if name == "indexed" {
            json!({"parallelism": 1, "completions": 1})
        } else {
            json!({"parallelism": 1})
        };
        stage.change(name, smaller).await;
        stage.counts(name, "A1 R0 S0 F4 T0").await;
    }
    drop(salvor);
    let _salvor = start();
    for name in ["indexed", "plain"] {
        stage.change(name, json!({"parallelism": 2, "completions": 2})).await;
        stage.counts(name, "A2 R0 S0 F4 T0").await;
        for pod in stage.alive(name).await {
            stage.end(&pod, 0).await;
        }
        stage.until(name, "Complete").await;
    }
    let changes = recorder.changes().await;
    let made: Vec<&str> =
        changes.iter().filter(|c| c.kind == ChangeKind::Added).map(|c| c.name.as_str()).collect();
    let names: BTreeSet<&str> = made.iter().copied().collect();
    assert_eq!((made.len(), names.len()), (18, 18), "two Jobs, each with 2 + 2 + 2 + 2 + 1: {made:?}");
}

/// A Job with an invalid record of names gets no pods, reports why, and continues when the record is repaired.
async fn a_job_of_which_something_cannot_be_read_is_held(site: Site) {
    let stage = Stage::new(site, "held").await;
    let spec = json!({"completions": 3, "parallelism": 1, "completionMode": "Indexed"});
    stage.job("held", spec).await;
    stage.counts("held", "A1 R0 S0 F0 T0").await;
    let annotate = async |value: serde_json::Value| {
        let patch =
            Patch::Merge(json!({"metadata": {"annotations": {"job.salvor.dev/used-pod-names": value}}}));
        stage.jobs.patch("held", &PatchParams::default(), &patch).await.unwrap();
    };
    let before = stage.jobs.get("held").await.unwrap().annotations()["job.salvor.dev/used-pod-names"].clone();
    assert_eq!(before, r#"{"counts":{"1":"0"}}"#);
    annotate(json!("gar{bage")).await;
    let told = stage.events("UnreadableStatus", 1).await;
    let message = told[0].message.clone().unwrap_or_default();
    assert!(message.contains("job.salvor.dev/used-pod-names") && message.contains("gar{bage"), "{message}");
    let why = stage.ours().explain("job", &format!("{}/held", stage.arena.namespace())).await;
    assert!(why.contains("The Job is held") && why.contains("gar{bage"), "{why}");
    stage.end(&stage.alive("held").await[0], 0).await;
    // A later Job is done, so the watch events of this one's pod were processed.
    stage.job("other", json!({})).await;
    stage.counts("other", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("other").await[0], 0).await;
    stage.until("other", "Complete").await;
    assert_eq!(counts(&stage.jobs.get("held").await.unwrap()), "A1 R0 S0 F0 T0");
    assert_eq!(stage.all_pods("held").await.len(), 1);
    annotate(json!(before)).await;
    stage.counts("held", "A1 R0 S1 F0 T0").await;
    for done in [2, 3] {
        stage.end(&stage.alive("held").await[0], 0).await;
        wait::for_object(&stage.jobs, "held", "one more is done", |job| {
            job.status.as_ref().is_some_and(|status| status.succeeded == Some(done))
        })
        .await;
        if done < 3 {
            stage.counts("held", &format!("A1 R0 S{done} F0 T0")).await;
        }
    }
    stage.until("held", "Complete").await;
    assert_eq!(stage.all_pods("held").await.len(), 3, "nothing was done twice");
}

/// Pods that existed before the Job that adopts them.
async fn pods_that_were_there_before_their_job_are_adopted(site: Site) {
    let stage = Stage::new(site, "before").await;
    for name in ["matching", "another"] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"work": name}},
            "spec": template()["spec"],
        }))
        .unwrap();
        stage.pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    // Watch events of pods are ordered: when a later pod is observed, so are these.
    stage.job("probe", json!({})).await;
    stage.counts("probe", "A1 R0 S0 F0 T0").await;
    let spec = json!({
        "parallelism": 1, "completions": 1,
        "manualSelector": true, "selector": {"matchLabels": {"work": "matching"}},
        "template": {"metadata": {"labels": {"work": "matching"}}, "spec": template()["spec"]},
    });
    stage.job("late", spec).await;
    wait::for_object(&stage.jobs, "late", "it has a pod", |job| counts(job) == "A1 R0 S0 F0 T0").await;
    let pods = stage.pods.list(&ListParams::default().labels("work")).await.unwrap().items;
    let owned: Vec<(String, bool)> =
        pods.iter().map(|pod| (pod.name_any(), !pod.owner_references().is_empty())).collect();
    assert_eq!(owned, [("another".into(), false), ("matching".into(), true)], "no other pod was made");
}

salvor_testkit::on_both!(
    no_name_comes_back_in_the_life_of_a_job,
    a_job_of_which_something_cannot_be_read_is_held,
    pods_that_were_there_before_their_job_are_adopted,
);
