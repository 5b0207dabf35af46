//! Jobs as people and other controllers use them: kubectl, CronJob, quota, and an installation with minimal rights.

use http::Method;
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::{Event, Pod, ResourceQuota},
    rbac::v1::PolicyRule,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{
    FaultyServer, Site, wait,
    workloads::{PodShape, job},
};
use serde_json::{Value, json};

use crate::stage::{QUICK, Stage, counts, has_finalizer, salvor_as, template};

/// Scripts create, wait, read the status, describe.
async fn kubectl_waits_for_jobs_and_describes_them(site: Site) {
    let stage = Stage::new(site, "kubectl").await;
    let _fleet = stage.arena.fleet(1).await;
    let kubectl = stage.arena.kubectl();
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "managedBy": "salvor.dev/job-controller"});
    let shape = PodShape::new().script("run-for", "300ms");
    stage.jobs.create(&PostParams::default(), &job("good", spec.clone(), &shape)).await.unwrap();
    let mut limited = spec;
    limited["backoffLimit"] = 0.into();
    let shape = shape.script("exit-code", "3");
    stage.jobs.create(&PostParams::default(), &job("bad", limited, &shape)).await.unwrap();

    kubectl.run(&["wait", "--for=condition=Complete", "job/good", "--timeout=80s"]).await.unwrap();
    kubectl.run(&["wait", "--for=condition=Failed", "job/bad", "--timeout=80s"]).await.unwrap();
    kubectl
        .run(&["wait", "--for=jsonpath={.status.succeeded}=2", "job/good", "--timeout=80s"])
        .await
        .unwrap();
    let table = kubectl.run(&["get", "jobs"]).await.unwrap();
    let row = |name: &str| -> Vec<String> {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().take(3).map(Into::into).collect()
    };
    assert_eq!(row("good"), ["good", "Complete", "2/2"], "{table}");
    assert_eq!(row("bad"), ["bad", "Failed", "0/2"], "{table}");
    // Events are written asynchronously and may arrive a moment later.
    let described = async |name: &str, texts: &[&str]| {
        let mut page = String::new();
        let told = wait::patience().until(async {
            loop {
                page = kubectl.run(&["describe", "job", name]).await.unwrap();
                let squeezed = page.split_whitespace().collect::<Vec<_>>().join(" ");
                if texts.iter().all(|text| squeezed.contains(text)) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        });
        let in_time = told.await.is_some();
        assert!(in_time, "not all of {texts:?} are in\n{page}");
    };
    let first = &stage.all_pods("good").await[0].name_any();
    let created = format!("job-controller Created pod: {first}");
    let good =
        ["Pods Statuses: 0 Active (0 Ready) / 2 Succeeded / 0 Failed", "Completed Indexes: 0,1", &created];
    described("good", &good).await;
    described("good", &["Normal Completed", "job-controller Job completed"]).await;
    described("bad", &["Warning BackoffLimitExceeded", "Job has reached the specified backoff limit"]).await;
    let logs = kubectl.run(&["get", "pods", "-l", "job-name=good", "-o", "name"]).await.unwrap();
    assert_eq!(logs.lines().count(), 2, "the labels that people select by are there");
    kubectl.run(&["delete", "job", "good"]).await.unwrap();
    kubectl.run(&["wait", "--for=delete", "job/good", "--timeout=80s"]).await.unwrap();
}

/// Events as the built-in controller writes them: `kubectl describe` sorts by their times, and tools filter by their
/// source.
async fn events_are_those_that_users_know(site: Site) {
    let stage = Stage::new(site, "events").await;
    stage.job("ev", json!({})).await;
    stage.counts("ev", "A1 R0 S0 F0 T0").await;
    let first = stage.alive("ev").await.remove(0);
    stage.change("ev", json!({"suspend": true})).await;
    wait::for_list(&stage.pods, &ListParams::default(), "its pod is gone", <[Pod]>::is_empty).await;
    stage.counts("ev", "A0 R0 S0 F0 T0").await;
    stage.change("ev", json!({"suspend": false})).await;
    stage.counts("ev", "A1 R0 S0 F0 T0").await;
    let second = stage.alive("ev").await.remove(0);
    assert_ne!(first.name_any(), second.name_any());
    let told = stage.events("SuccessfulCreate", 2).await;
    for pod in [&first, &second] {
        let message = Some(format!("Created pod: {}", pod.name_any()));
        assert_eq!(told.iter().filter(|event| event.message == message).count(), 1, "{told:?}");
    }
    for event in told {
        let source = event.source.as_ref().and_then(|source| source.component.as_deref());
        assert_eq!((source, event.count), (Some("job-controller"), Some(1)), "{event:?}");
        assert_eq!(event.reporting_component.as_deref(), Some("job-controller"), "{event:?}");
        assert!(
            event.first_timestamp.is_some() && event.last_timestamp == event.first_timestamp,
            "{event:?}"
        );
        assert!(event.event_time.is_none(), "{event:?}");
    }
}

/// Even in quick succession.
async fn every_suspension_and_every_resumption_is_told(site: Site) {
    let stage = Stage::new(site, "again").await;
    stage.job("again", json!({})).await;
    stage.counts("again", "A1 R0 S0 F0 T0").await;
    for _ in 0..3 {
        for (suspend, status) in [(true, "True"), (false, "False")] {
            stage.change("again", json!({ "suspend": suspend })).await;
            wait::for_object(&stage.jobs, "again", "its condition says so", |job| {
                let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions.into_iter().flatten().any(|c| c.type_ == "Suspended" && c.status == status)
            })
            .await;
        }
    }
    stage.events("Suspended", 3).await;
    stage.events("Resumed", 3).await;
}

/// As with the built-in controller. The remaining work continues.
async fn a_pod_that_cannot_be_deleted_is_told_of(site: Site) {
    let plane = site.api_server().await;
    let stage = Stage::on(plane.arena("undeleted").await);
    let server = FaultyServer::before(&stage.arena.admin()).await;
    let _salvor = salvor_as(server.admin(), &format!("controllers: [job]\n{QUICK}"), &[]);
    stage.job("un", json!({"parallelism": 2, "completions": 4})).await;
    stage.counts("un", "A2 R0 S0 F0 T0").await;
    server.faults().add(Fault::new(Effect::InternalError).method(Method::DELETE).path("/pods/"));
    stage.change("un", json!({"parallelism": 1})).await;
    let events: Api<Event> = Api::default_namespaced(stage.arena.client());
    let failed = |event: &Event| event.reason.as_deref() == Some("FailedDelete");
    let any = |all: &[Event]| all.iter().any(failed);
    let told = wait::for_list(&events, &ListParams::default(), "it is told", any).await;
    let told = told.into_iter().find(failed).unwrap();
    assert!(told.message.as_ref().is_some_and(|text| text.starts_with("Error deleting: ")), "{told:?}");
    assert_eq!((told.type_.as_deref(), told.involved_object.kind.as_deref()), (Some("Warning"), Some("Job")));
    // The pod to delete is already released.
    let alive = stage.alive("un").await;
    let stays = alive.iter().find(|pod| has_finalizer(pod)).unwrap();
    stage.end(stays, 0).await;
    wait::for_object(&stage.jobs, "un", "it is counted", |job| counts(job) == "A1 R0 S1 F0 T0").await;
}

/// The real CronJob controller creates Jobs for Salvor, observes their end, and waits for them under `Forbid`.
#[tokio::test]
async fn a_cron_job_makes_jobs_of_ours_one_after_the_other() {
    let stage = Stage::new(Site::Real, "cron").await;
    let crons: Api<CronJob> = Api::default_namespaced(stage.arena.client());
    let cron: CronJob = serde_json::from_value(json!({
        "metadata": {"name": "nightly"},
        "spec": {
            "schedule": "* * * * *", "concurrencyPolicy": "Forbid", "suspend": true,
            "jobTemplate": {"spec": {"managedBy": "salvor.dev/job-controller", "template": template()}},
        },
    }))
    .unwrap();
    crons.create(&PostParams::default(), &cron).await.unwrap();
    // `kubectl create job --from` does the same as the controller, without waiting for a full minute.
    stage.arena.kubectl().run(&["create", "job", "by-hand", "--from=cronjob/nightly"]).await.unwrap();
    stage.counts("by-hand", "A1 R0 S0 F0 T0").await;
    // The CronJob controller lists only Jobs that it created as active, but takes ownership of this one when it is
    // finished.
    stage.end(&stage.alive("by-hand").await[0], 0).await;
    stage.until("by-hand", "Complete").await;

    crons
        .patch("nightly", &Default::default(), &kube::api::Patch::Merge(json!({"spec": {"suspend": false}})))
        .await
        .unwrap();
    let scheduled =
        wait::for_list(&stage.jobs, &Default::default(), "the schedule makes a Job", |jobs: &[Job]| {
            jobs.iter().any(|job| job.name_any().starts_with("nightly-"))
        })
        .await;
    let name = scheduled.iter().map(ResourceExt::name_any).find(|name| name.starts_with("nightly-")).unwrap();
    stage.counts(&name, "A1 R0 S0 F0 T0").await;
    wait::for_object(&crons, "nightly", "it knows its active Job", |cron| {
        cron.status.as_ref().is_some_and(|s| s.active.as_ref().is_some_and(|active| active.len() == 1))
    })
    .await;
    stage.end(&stage.alive(&name).await[0], 0).await;
    stage.until(&name, "Complete").await;
    let after = wait::for_object(&crons, "nightly", "it has seen its Job end", |cron| {
        cron.status.as_ref().is_some_and(|s| s.last_successful_time.is_some())
    })
    .await;
    assert!(after.status.unwrap().last_schedule_time.is_some());
}

/// If a quota admits fewer pods than needed, Salvor retries and reports it.
#[tokio::test]
async fn a_quota_is_waited_for_and_the_rest_goes_on() {
    let stage = Stage::new(Site::Real, "quota").await;
    let quotas: Api<ResourceQuota> = Api::default_namespaced(stage.arena.client());
    let quota = serde_json::from_value(json!({"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}}))
        .unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    wait::for_object(&quotas, "two", "it is in force", |quota| {
        quota.status.as_ref().is_some_and(|status| status.hard.is_some())
    })
    .await;
    stage.job("qu", json!({"parallelism": 4, "completions": 4})).await;
    stage.counts("qu", "A2 R0 S0 F0 T0").await;
    let page = wait::patience().until(async {
        loop {
            let page = stage.arena.kubectl().run(&["describe", "job", "qu"]).await.unwrap();
            if page.contains("FailedCreate") && page.contains("exceeded quota") {
                return page;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    });
    let page = page.await.unwrap();
    assert!(page.contains("Error creating: "), "{page}");
    for pod in stage.alive("qu").await {
        stage.end(&pod, 0).await;
    }
    // Pods that have ended no longer count towards a quota of pods.
    stage.counts("qu", "A2 R0 S2 F0 T0").await;
    for pod in stage.alive("qu").await {
        stage.end(&pod, 0).await;
    }
    stage.until("qu", "Complete").await;
}

/// Everything works with exactly the rights that `salvor manifests` grants.
#[tokio::test]
async fn the_rights_of_an_installation_are_enough() {
    let plane = Site::Real.api_server().await;
    let stage = Stage::on(plane.arena("rights").await);
    let settings = "controllers: [job]\njob: {backoffBase: 100ms, deleteFinishedJobs: true}\n";
    let rights = cluster_rights(settings);
    let account = plane.admin().service_account(stage.arena.namespace(), "salvor", rights).await.unwrap();
    let salvor = salvor_as(&account, settings, &[]);
    stage.job("ri", json!({"parallelism": 2, "completions": 2, "ttlSecondsAfterFinished": 0})).await;
    stage.counts("ri", "A2 R0 S0 F0 T0").await;
    stage.events("SuccessfulCreate", 2).await;
    stage.change("ri", json!({"parallelism": 1})).await;
    stage.counts("ri", "A1 R0 S0 F0 T0").await;
    stage.end(&stage.alive("ri").await[0], 1).await;
    stage.counts("ri", "A1 R0 S0 F1 T0").await;
    for succeeded in 0..2 {
        stage.counts("ri", &format!("A1 R0 S{succeeded} F1 T0")).await;
        stage.end(&stage.alive("ri").await[0], 0).await;
    }
    wait::for_list(&stage.jobs, &Default::default(), "it is deleted", |jobs: &[Job]| {
        jobs.iter().all(|job| job.metadata.deletion_timestamp.is_some())
    })
    .await;
    // The pause is on a Lease, which the ClusterRole does not cover.
    let output = salvor.program.output();
    let refused: Vec<&str> =
        output.lines().filter(|line| line.contains("cannot ") && !line.contains("salvor pause")).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

fn cluster_rights(settings: &str) -> Vec<PolicyRule> {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let head = "apiVersion: config.salvor.dev/v1alpha1\nkind: Configuration\n";
    std::fs::write(&config, format!("{head}{settings}")).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_salvor"))
        .arg("manifests")
        .arg("--config")
        .arg(&config)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let objects = text.split("---\n").map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    let role = objects.into_iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    serde_json::from_value(role["rules"].clone()).unwrap()
}

salvor_testkit::on_both!(
    kubectl_waits_for_jobs_and_describes_them,
    events_are_those_that_users_know,
    every_suspension_and_every_resumption_is_told,
    a_pod_that_cannot_be_deleted_is_told_of,
);
