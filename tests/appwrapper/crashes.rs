//! The controller dies at the worst moments. A new one finds what exists, and creates nothing twice.

use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use salvor_testkit::{Plane, Recorder, Site, recorder::ChangeKind, wait};
use serde_json::json;

use crate::{
    controller::{Controller, Settings, cases},
    objects::AppWrapper,
    stage::{Run, Stage, Wrap},
};

fn wrap(stage: &Stage<'_>, name: &str) -> Wrap {
    let mut job = stage.job(name, json!({}), &Run::on());
    job["metadata"] = json!({"generateName": format!("{name}-")});
    Wrap::new(name).of(job).of(Run::on().pod(&format!("{name}-pod")))
}

/// Checks how many Jobs were ever created for each AppWrapper.
async fn assert_made_once(jobs: &Recorder<Job>, names: &[String]) {
    let changes = jobs.changes().await;
    for name in names {
        let made =
            changes.iter().filter(|c| c.kind == ChangeKind::Added && c.name.starts_with(&format!("{name}-")));
        let made: Vec<_> = made.map(|c| c.name.as_str()).collect();
        assert_eq!(made.len(), 1, "{made:?}");
    }
}

/// `kill -9` as soon as a Job with a generated name appears (9, 10).
async fn killed_as_its_job_appears(site: Site) {
    let plane: Plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 2).await;
    let mut controller = Controller::start(site, &plane.admin(), &Settings::default()).await;
    let jobs: Recorder<Job> = Recorder::start(&stage.jobs, &ListParams::default()).await;
    let names: Vec<String> = (0..8).map(|number| format!("w{number}")).collect();
    for name in &names {
        stage.create(wrap(&stage, name)).await;
        let appeared = |jobs: &[Job]| {
            jobs.iter()
                .any(|job| job.metadata.name.as_deref().unwrap_or_default().starts_with(&format!("{name}-")))
        };
        wait::for_list(&stage.jobs, &ListParams::default(), "its Job appears", appeared).await;
        controller.kill().await;
        controller = Controller::start(site, &plane.admin(), &Settings::default()).await;
        stage.ready(name).await;
    }
    assert_made_once(&jobs, &names).await;
}

/// Salvor exits right before or right after each of its first writes.
async fn ended_at_each_write(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 2).await;
    // Installs the CRD first.
    drop(Controller::start(site, &plane.admin(), &Settings::default()).await);
    let jobs: Recorder<Job> = Recorder::start(&stage.jobs, &ListParams::default()).await;
    let mut names = Vec::new();
    for number in 1..=9 {
        for moment in ["before", "after"] {
            let name = format!("{moment}{number}");
            let settings =
                Settings::default().environment("SALVOR_TEST_CRASH", &format!("{moment}:{number}"));
            let dying = Controller::start_as(site, &plane.admin(), &plane.admin(), &settings).await;
            // Nothing can be created without its webhooks, so it may die earlier, during its start.
            let created = wait::patience().until(async {
                loop {
                    match stage.wrappers.create(&Default::default(), &wrap(&stage, &name).object()).await {
                        Ok(_) => return true,
                        Err(_) if dying.salvor().program.has_ended() => return false,
                        Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
                    }
                }
            });
            let created = created.await.unwrap();
            let running = |w: &AppWrapper| w.is("PodsReady");
            tokio::select! {
                _ = dying.salvor().program.exit_code() => {}
                _ = stage.until(&name, "it is ready", running), if created => {}
            }
            drop(dying);
            let again = Controller::start(site, &plane.admin(), &Settings::default()).await;
            if !created {
                stage.create(wrap(&stage, &name)).await;
            }
            stage.ready(&name).await;
            stage.delete(&name).await;
            stage.gone(&name).await;
            names.push(name);
            drop(again);
        }
    }
    assert_made_once(&jobs, &names).await;
}

/// A new process continues the waits of the old one: the deadlines are in the object.
async fn a_wait_survives_the_controller(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    let controller = Controller::start(site, &plane.admin(), &Settings::default()).await;
    let failing = Wrap::new("w")
        .of(Run::to_end("1s", 1).pod("p"))
        .set("failureGracePeriodDuration", "4s")
        .set("retryPausePeriodDuration", "3s")
        .set("retryLimit", "1");
    stage.create(failing).await;
    let unhealthy = stage.until("w", "it is unhealthy", |w| w.is("Unhealthy")).await;
    controller.kill().await;
    let again = Controller::start(site, &plane.admin(), &Settings::default()).await;
    let reset = stage.until("w", "it was reset", |w| w.resets() == 1).await;
    assert_eq!(
        reset.condition("Unhealthy").unwrap().since,
        unhealthy.condition("Unhealthy").unwrap().since,
        "it is the same failure"
    );
    again.kill().await;
    let _last = Controller::start(site, &plane.admin(), &Settings::default()).await;
    stage.released("w", "Failed").await;
}

/// AppWrappers are deleted and suspended while no controller runs.
async fn what_changed_meanwhile_is_noticed(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    let controller = Controller::start(site, &plane.admin(), &Settings::default()).await;
    for name in ["deleted", "suspended", "failed"] {
        stage
            .create(
                Wrap::new(name)
                    .of(Run::on().pod(name))
                    .set("failureGracePeriodDuration", "0s")
                    .set("retryLimit", "0"),
            )
            .await;
        stage.ready(name).await;
    }
    controller.kill().await;
    // The validating process is dead. Deletions are not validated, and a status patch of a pod does not concern
    // AppWrappers.
    stage.delete("deleted").await;
    let failed = json!({"status": {"phase": "Failed"}});
    let patch = kube::api::Patch::Strategic(failed);
    stage.pods.patch_status("failed", &Default::default(), &patch).await.unwrap();
    let _again = Controller::start(site, &plane.admin(), &Settings::default()).await;
    stage.suspend("suspended", true).await;
    stage.gone("deleted").await;
    stage.released("suspended", "Suspended").await;
    stage.released("failed", "Failed").await;
}

cases!(Both, on both sites: a_wait_survives_the_controller, what_changed_meanwhile_is_noticed);
cases!(Salvor, on both sites: killed_as_its_job_appears, ended_at_each_write);
