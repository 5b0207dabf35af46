//! A reset deletes everything, pauses, and creates everything again. It keeps the quota all the time.

use k8s_openapi::api::batch::v1::Job;
use kube::{ResourceExt, api::ListParams};
use salvor_testkit::{Recorder, Site, recorder::ChangeKind, wait};
use serde_json::{Value, json};

use crate::{
    controller::cases,
    objects::{AppWrapper, condition},
    stage::{Run, Stage, Wrap, history, phases, seconds},
};

/// The quota is kept, and new components are created only after the old ones and all their pods are gone.
async fn nothing_new_comes_before_the_old_is_gone_and_quota_is_kept(site: Site) {
    let stage = Stage::new(site, "order", 1).await;
    let recorder = stage.record().await;
    let pods = Recorder::start(&stage.pods, &ListParams::default()).await;
    // A second pod takes longer to terminate.
    let slow = Run::on().script("ignore-sigterm", "2s").spec("terminationGracePeriodSeconds", 10.into());
    let wrap = Wrap::new("w")
        .of(Run::to_end("2s", 1).script("fail-first", "1").script("exit-code", "0").pod("bad"))
        .of(slow.pod("slow"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "8s")
        .set("retryLimit", "5");
    stage.create(wrap).await;
    stage.until("w", "it was reset and runs again", |w| w.resets() >= 1 && w.phase() == "Running").await;
    let seen = phases(&recorder, "w").await;
    let at = seen.iter().position(|phase| phase == "Resetting").unwrap();
    assert_eq!(seen[at - 1..=at], ["Running", "Resetting"], "{seen:?}");

    for change in recorder.changes().await {
        let status = &change.object["status"];
        let is = |kind: &str| condition(status, kind).is_some_and(|c| c.status == "True");
        if status["phase"] == "Resetting" {
            assert!(is("QuotaReserved"), "quota is given away in a reset: {status}");
        }
    }
    // No name is used again before both pods of the first generation are gone.
    let (mut alive, mut gone) = (0, 0);
    for change in pods.changes().await {
        match change.kind {
            ChangeKind::Added => {
                assert!(gone == 0 || gone >= 2, "{} is made while {alive} pods are left", change.name);
                alive += 1;
            }
            ChangeKind::Deleted => {
                alive -= 1;
                gone += 1;
            }
            ChangeKind::Existed | ChangeKind::Modified => {}
        }
    }
    let deployed = history(&recorder, "w", "ResourcesDeployed").await;
    let told: Vec<_> = deployed.iter().map(|c| (&*c.status, &*c.reason, &*c.message)).take(3).collect();
    assert_eq!(
        told,
        [
            ("True", "Resuming", "Suspend is false"),
            ("False", "Resetting", "Resources deleted for resetting AppWrapper"),
            ("True", "Resuming", "Reset complete; resuming"),
        ]
    );
}

/// The pause begins after the deletion (seed; 9, 4), which takes longer than the pause here.
async fn the_pause_begins_when_everything_is_gone(site: Site) {
    let stage = Stage::new(site, "pause", 1).await;
    let recorder = stage.record().await;
    let jobs: Recorder<Job> = Recorder::start(&stage.jobs, &ListParams::default()).await;
    let slow = Run::on().script("ignore-sigterm", "6s").spec("terminationGracePeriodSeconds", 20.into());
    let wrap = Wrap::new("w")
        .of(stage.job("j", json!({}), &Run::to_end("1s", 1)))
        .of(slow.pod("slow"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "5s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    stage.phase("w", "Failed").await;
    let deployed = history(&recorder, "w", "ResourcesDeployed").await;
    let gone =
        deployed.iter().find(|c| c.reason == "Resetting").expect("it is told when all is gone").since.clone();
    let changes = jobs.changes().await;
    let made: Vec<_> = changes.iter().filter(|change| change.kind == ChangeKind::Added).collect();
    assert_eq!(made.len(), 2);
    let again = made[1].object["metadata"]["creationTimestamp"].as_str().unwrap();
    let paused = seconds(&gone, again);
    assert!(paused >= 4, "the Job is made again {paused} s after the old one was gone");
}

/// Every failure gets its grace period and every reset its pause, even if the workload was never healthy in between (9,
/// 5).
async fn each_failure_has_its_own_grace_and_pause(site: Site) {
    let stage = Stage::new(site, "each", 1).await;
    let pods = Recorder::start(&stage.pods, &ListParams::default()).await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("0s", 1).pod("p"))
        .set("failureGracePeriodDuration", "2s")
        .set("retryPausePeriodDuration", "2s")
        .set("retryLimit", "2");
    stage.create(wrap).await;
    assert_eq!(stage.phase("w", "Failed").await.resets(), 2);
    let changes = pods.changes().await;
    let made: Vec<&str> = changes
        .iter()
        .filter(|change| change.kind == ChangeKind::Added)
        .map(|change| change.object["metadata"]["creationTimestamp"].as_str().unwrap())
        .collect();
    assert_eq!(made.len(), 3);
    for (earlier, later) in made.iter().zip(&made[1..]) {
        let apart = seconds(earlier, later);
        assert!(apart >= 3, "the next pod comes {apart} s after the last, not 4");
    }
}

/// The same for components that cannot be created (2.5): the second cycle has a pause too.
async fn creations_that_fail_are_tried_again_after_a_pause_each_time(site: Site) {
    let stage = Stage::new(site, "creating", 1).await;
    stage.at_most_pods(0).await;
    let recorder = stage.record().await;
    let wrap = Wrap::new("w")
        .of(Run::on().pod("p"))
        .set("admissionGracePeriodDuration", "1s")
        .set("warmupGracePeriodDuration", "1s")
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "3s")
        .set("retryLimit", "2");
    stage.create(wrap).await;
    let failed = stage.phase("w", "Failed").await;
    assert_eq!((failed.resets(), failed.reason("Unhealthy").as_str()), (2, "CreateFailed"));
    let deployed = history(&recorder, "w", "ResourcesDeployed").await;
    let flips: Vec<_> =
        deployed.iter().filter(|c| c.reason == "Resetting" || c.reason == "Resuming").collect();
    let pauses: Vec<i64> = flips
        .windows(2)
        .filter(|pair| pair[0].reason == "Resetting")
        .map(|pair| seconds(&pair[0].since, &pair[1].since))
        .collect();
    assert!(pauses.len() == 2 && pauses.iter().all(|pause| *pause >= 2), "{pauses:?}");
}

/// A temporary refusal is retried and not final (2.3).
async fn a_creation_that_is_refused_for_now_is_tried_again(site: Site) {
    let stage = Stage::new(site, "again", 1).await;
    stage.at_most_pods(0).await;
    stage.create(Wrap::new("w").of(Run::on().pod("p")).set("admissionGracePeriodDuration", "5m")).await;
    let errored = |w: &AppWrapper| {
        condition(&w.status["componentStatus"][0], "ResourcesDeployed")
            .is_some_and(|c| c.reason == "ComponentCreationErrored")
    };
    let waiting = stage.until("w", "its creation was refused", errored).await;
    assert_eq!(waiting.phase(), "Resuming");
    stage.no_quota().await;
    stage.ready("w").await;
}

/// A generated name stays the same after a reset, so that a late creation cannot create a second object.
async fn a_generated_name_stays(site: Site) {
    let stage = Stage::new(site, "generated", 1).await;
    let jobs: Recorder<Job> = Recorder::start(&stage.jobs, &ListParams::default()).await;
    let mut job = stage.job("j", json!({}), &Run::to_end("1s", 1));
    job["metadata"] = json!({"generateName": "g-"});
    let wrap = Wrap::new("w")
        .of(job)
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    stage.released("w", "Failed").await;
    let changes = jobs.changes().await;
    let names: Vec<_> =
        changes.iter().filter(|c| c.kind == ChangeKind::Added).map(|c| c.name.clone()).collect();
    assert!(
        names.len() == 2 && names[0] == names[1] && names.iter().all(|n| n.starts_with("g-")),
        "{names:?}"
    );
    wait::for_list(&stage.jobs, &ListParams::default(), "no Job is left", <[Job]>::is_empty).await;
}

/// The status still shows much later whether it was preempted or failed.
async fn the_status_remembers_why_it_was_reset(site: Site) {
    let stage = Stage::new(site, "remembers", 1).await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("1s", 42).pod("culprit"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "2");
    stage.create(wrap).await;
    let failed = stage.released("w", "Failed").await;
    let known = ["conditions", "componentStatus"];
    let lists = failed.status.as_object().unwrap().iter().filter(|(key, _)| !known.contains(&key.as_str()));
    let resets: Vec<Value> = lists.filter_map(|(_, value)| value.as_array().cloned()).flatten().collect();
    assert!(resets.len() >= 2, "{}", failed.status);
    let node = stage.arena.node_name(0);
    for reset in &resets[..2] {
        let text = reset.to_string();
        for part in ["FoundFailedPods", "culprit", "42", &node] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

/// A full cluster is no failure of the workload and uses no retries.
async fn pods_that_find_no_room_do_not_eat_the_retries(site: Site) {
    let stage = Stage::new(site, "room", 1).await;
    let wrap = Wrap::new("w")
        .of(Run::on().requests("cpu", "100").pod("huge"))
        .set("admissionGracePeriodDuration", "1s")
        .set("warmupGracePeriodDuration", "1s")
        .set("failureGracePeriodDuration", "1s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1");
    let recorder = stage.record().await;
    stage.create(wrap).await;
    // If they counted, the second one would be a failure.
    let resets = async {
        loop {
            let seen = phases(&recorder, "w").await;
            if seen.iter().filter(|phase| *phase == "Resetting").count() >= 2 {
                return seen;
            }
            stage.until("w", "it goes on", |w| w.phase() != "Failed").await;
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let seen = wait::patience().until(resets).await.expect("it is reset again and again");
    assert!(!seen.contains(&"Failed".to_owned()), "{seen:?}");
    assert_eq!(stage.get("w").await.resets(), 0);
}

/// An object with the same name and another owner is not Salvor's, even if that owner had the same name as this one.
async fn an_object_of_a_former_owner_of_the_name_is_not_taken_over(site: Site) {
    let stage = Stage::new(site, "former", 1).await;
    let mut foreign = stage.job("j", json!({}), &Run::on());
    foreign["metadata"]["finalizers"] = json!(["fake.example.com/stays"]);
    foreign["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": "w",
        "uid": "11111111-2222-3333-4444-555555555555", "controller": true, "blockOwnerDeletion": true,
    }]);
    let foreign: Job = serde_json::from_value(foreign).unwrap();
    let foreign = stage.jobs.create(&Default::default(), &foreign).await.unwrap();
    let wrap = Wrap::new("w")
        .of(stage.job("j", json!({}), &Run::on()))
        .set("deletionOnFailureGracePeriodDuration", "1h");
    stage.create(wrap).await;
    let ended = stage.until("w", "it does not run", |w| ["Failed", "Running"].contains(&w.phase())).await;
    assert_eq!((ended.phase(), ended.reason("Unhealthy").as_str()), ("Failed", "CreateFailed"));
    let still = stage.jobs.get("j").await.unwrap();
    assert_eq!(still.uid(), foreign.uid());
}

cases!(
    Both, on both sites:
    nothing_new_comes_before_the_old_is_gone_and_quota_is_kept,
    a_generated_name_stays,
);
// Quotas have no effect in the embedded cluster.
cases!(Both, on the real one: a_creation_that_is_refused_for_now_is_tried_again);
cases!(Salvor, on the real one: creations_that_fail_are_tried_again_after_a_pause_each_time);
cases!(
    Salvor, on both sites:
    the_pause_begins_when_everything_is_gone,
    each_failure_has_its_own_grace_and_pause,
    the_status_remembers_why_it_was_reset,
    pods_that_find_no_room_do_not_eat_the_retries,
    an_object_of_a_former_owner_of_the_name_is_not_taken_over,
);
