//! The phases of a healthy AppWrapper, and the conditions that Kueue and people read.

use kube::{ResourceExt, api::ListParams};
use salvor_testkit::{Recorder, Site, recorder::ChangeKind, wait};
use serde_json::json;

use crate::{
    controller::cases,
    stage::{FINALIZER, MEMBER, OURS, Run, Stage, Wrap, all_run, history, phases, pod_phase, service},
};

async fn a_suspended_one_is_counted_and_makes_nothing(site: Site) {
    let stage = Stage::new(site, "suspended", 0).await;
    let run = Run::on();
    stage
        .create(Wrap::new("w").suspended().of(run.deployment("d", 3)).of(service("s")).of(run.pod("p")))
        .await;
    let wrapper = stage.phase("w", "Suspended").await;
    let paths = |component: usize| {
        let sets = wrapper.status["componentStatus"][component]["podSets"].as_array().cloned();
        let path = |set: &serde_json::Value| format!("{}={}", set["path"].as_str().unwrap(), set["replicas"]);
        sets.unwrap().iter().map(path).collect::<Vec<_>>()
    };
    assert_eq!(paths(0), ["template.spec.template=3"]);
    assert_eq!(paths(1), Vec::<String>::new());
    assert_eq!(paths(2), ["template=1"]);
    assert_eq!(wrapper.finalizers(), Vec::<String>::new(), "whoever never ran can be deleted at once");
    assert!(stage.pod_names("w").await.is_empty());
    stage.delete("w").await;
    stage.gone("w").await;
}

/// The happy path of CodeFlare's unit tests.
async fn two_pods_run_and_succeed_one_after_the_other(site: Site) {
    let stage = Stage::new(site, "happy", 1).await;
    let recorder = stage.record().await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("3s", 0).pod("first"))
        .of(Run::to_end("6s", 0).pod("second"))
        .set("successTTLDuration", "2s");
    stage.create(wrap).await;
    let ready = stage.ready("w").await;
    assert_eq!(ready.finalizers(), [FINALIZER]);
    assert!(ready.is("QuotaReserved") && ready.is("ResourcesDeployed") && !ready.is("Unhealthy"));
    stage.phase("w", "Succeeded").await;
    let done = stage.released("w", "Succeeded").await;
    let message = |kind: &str| done.condition(kind).unwrap().message;
    assert_eq!(message("QuotaReserved"), "2 pods succeeded and no running, pending, or failed pods");
    assert_eq!(message("ResourcesDeployed"), "Time to live after success of 2s expired");
    assert_eq!(done.reason("QuotaReserved"), "Succeeded");
    assert_eq!(done.resets(), 0);

    // Success is reported after the second pod has ended, and while the pods still exist.
    let deployed = history(&recorder, "w", "ResourcesDeployed").await;
    let told: Vec<_> = deployed.iter().map(|c| (c.status.as_str(), c.reason.as_str())).collect();
    assert_eq!(told, [("True", "Resuming"), ("True", "Succeeded"), ("False", "Succeeded")]);
    let seen = phases(&recorder, "w").await;
    let order = ["Suspended", "Resuming", "Running", "Succeeded"];
    assert!(
        is_part_of(&seen, &order) && seen.ends_with(&["Running".to_owned(), "Succeeded".to_owned()]),
        "{seen:?}"
    );
    stage.delete("w").await;
    stage.gone("w").await;
}

/// Whether phases came in this order. Phases may be missing.
fn is_part_of(seen: &[String], order: &[&str]) -> bool {
    let mut rest = order.iter();
    seen.iter().all(|phase| rest.any(|next| next == phase))
}

async fn conditions_say_what_kueue_and_people_read(site: Site) {
    let stage = Stage::new(site, "words", 1).await;
    let recorder = stage.record().await;
    stage.create(Wrap::new("w").of(Run::on().pod("p"))).await;
    let ready = stage.ready("w").await;
    for (kind, status, reason, message) in [
        ("QuotaReserved", "True", "Resuming", "Suspend is false"),
        ("ResourcesDeployed", "True", "Resuming", "Suspend is false"),
        ("Unhealthy", "False", "Resuming", "Suspend is false"),
        ("PodsReady", "True", "SufficientPodsReady", "1 pods running; 0 pods succeeded"),
    ] {
        let condition = ready.condition(kind).unwrap();
        assert_eq!(
            (&*condition.status, &*condition.reason, &*condition.message),
            (status, reason, message),
            "{kind}"
        );
    }
    let component = &ready.status["componentStatus"][0];
    assert_eq!(
        (&component["name"], &component["kind"], &component["apiVersion"]),
        (&json!("p"), &json!("Pod"), &json!("v1"))
    );
    let deployed = crate::objects::condition(component, "ResourcesDeployed").unwrap();
    assert_eq!((&*deployed.status, &*deployed.reason), ("True", "ComponentCreatedSuccessfully"));

    stage.suspend("w", true).await;
    let suspended = stage.released("w", "Suspended").await;
    for (kind, reason, message) in [
        ("QuotaReserved", "Suspended", "Suspend is true"),
        ("ResourcesDeployed", "Suspended", "Suspend is true"),
        ("PodsReady", "Suspended", ""),
        ("DeletingResources", "DeletionComplete", ""),
    ] {
        let condition = suspended.condition(kind).unwrap();
        assert_eq!(
            (&*condition.status, &*condition.reason, &*condition.message),
            ("False", reason, message),
            "{kind}"
        );
    }
    let gone =
        crate::objects::condition(&suspended.status["componentStatus"][0], "ResourcesDeployed").unwrap();
    assert_eq!((&*gone.status, &*gone.reason), ("False", "CompononetDeleted"), "as it stands on the wire");
    stage.event("w", "Suspending", "Externally suspended while in the Running phase").await;

    // The quota is released last: while it is reserved, resources may still exist.
    let early = recorder.changes().await.into_iter().find(|change| {
        let is = |kind: &str| {
            crate::objects::condition(&change.object["status"], kind).is_some_and(|c| c.status == "True")
        };
        is("ResourcesDeployed") && !is("QuotaReserved") && change.object["status"]["phase"] != "Succeeded"
    });
    assert!(early.is_none(), "{early:?}");
}

async fn kubectl_shows_the_columns_that_users_know(site: Site) {
    let stage = Stage::new(site, "columns", 0).await;
    stage.create(Wrap::new("w").suspended().of(Run::on().pod("p"))).await;
    stage.phase("w", "Suspended").await;
    let table = stage.arena.kubectl().run(&["get", "aw"]).await.unwrap();
    let head: Vec<&str> =
        table.lines().next().unwrap().split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(head, ["NAME", "STATUS", "QUOTA RESERVED", "RESOURCES DEPLOYED", "UNHEALTHY", "AGE"]);
    assert!(table.contains("Suspended"), "{table}");
}

async fn pods_deployments_stateful_sets_and_jobs_run(site: Site) {
    let stage = Stage::new(site, "kinds", 2).await;
    let run = Run::on().requests("cpu", "200m");
    let mut job = stage.job("j", json!({}), &run);
    job["metadata"] = json!({"generateName": "job-"});
    stage.create(Wrap::new("pods").of(run.pod("p1")).of(run.pod("p2"))).await;
    stage.create(Wrap::new("deployment").of(run.deployment("d", 2))).await;
    stage.create(Wrap::new("set").of(run.stateful_set("s", 2))).await;
    stage.create(Wrap::new("job").of(job)).await;
    let mixed = Wrap::new("mixed")
        .of(run.pod("mp"))
        .of(run.deployment("md", 2))
        .of(run.stateful_set("ms", 2))
        .of(service("msvc"))
        .of(stage.job("mj", json!({}), &run));
    stage.create(mixed).await;
    for (name, pods) in [("pods", 2), ("deployment", 2), ("set", 2), ("job", 1), ("mixed", 6)] {
        let wrapper = stage.ready(name).await;
        assert_eq!(
            wrapper.condition("PodsReady").unwrap().message,
            format!("{pods} pods running; 0 pods succeeded")
        );
        stage.pods_until(name, "all its pods run", all_run(pods)).await;
    }
    let job = stage.get("job").await;
    let made = job.status["componentStatus"][0]["name"].as_str().unwrap().to_owned();
    assert!(made.starts_with("job-") && stage.jobs.get(&made).await.is_ok(), "{made}");
}

/// Kueue recognises children by this owner.
async fn components_are_owned_and_labelled(site: Site) {
    let stage = Stage::new(site, "owned", 1).await;
    let wrapper = stage.create(Wrap::new("w").of(stage.job("j", json!({}), &Run::on()))).await;
    stage.ready("w").await;
    let job = stage.jobs.get("j").await.unwrap();
    let owner = &job.owner_references()[0];
    assert_eq!((&*owner.kind, &*owner.name), ("AppWrapper", "w"));
    assert_eq!(owner.api_version, "workload.codeflare.dev/v1beta2");
    assert_eq!(Some(&owner.uid), wrapper.uid().as_ref());
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    assert_eq!(job.labels()[MEMBER], "w");
    assert_eq!(stage.pods_of("w").await.len(), 1);
}

async fn another_manager_keeps_its_own(site: Site) {
    let stage = Stage::new(site, "foreign", 1).await;
    stage.create(Wrap::new("theirs").managed_by("kueue.x-k8s.io/multikueue").of(Run::on().pod("t"))).await;
    stage.create(Wrap::new("ours").managed_by(OURS).of(Run::on().pod("o"))).await;
    let untouched = async {
        stage.ready("ours").await;
        stage.delete("ours").await;
        stage.gone("ours").await;
    };
    let only_theirs = ListParams::default().fields("metadata.name=theirs");
    let touched =
        |wrapper: &crate::objects::AppWrapper| !wrapper.status.is_null() || !wrapper.finalizers().is_empty();
    wait::never(&stage.wrappers, &only_theirs, "another manager's AppWrapper is touched", touched, untouched)
        .await;
    assert!(stage.pods_of("theirs").await.is_empty());
    stage.delete("theirs").await;
    stage.gone("theirs").await;
}

/// A Job with more completions than parallelism is between two waves: no pod runs, and it is not done (6.2, 3).
async fn a_job_between_two_waves_is_not_done(site: Site) {
    let stage = Stage::new(site, "waves", 1).await;
    let recorder = stage.record().await;
    let job = stage.job("j", json!({"completions": 4, "parallelism": 1}), &Run::to_end("1s", 0));
    stage.create(Wrap::new("w").of(job)).await;
    stage.phase("w", "Succeeded").await;
    let job = stage.jobs.get("j").await.unwrap();
    assert_eq!(job.status.unwrap().succeeded, Some(4), "{:?}", phases(&recorder, "w").await);
}

/// A failed pod that its Job has replaced is no failure of the workload (6.2, 2).
async fn a_job_that_helps_itself_is_left_alone_and_succeeds(site: Site) {
    let stage = Stage::new(site, "selfhelp", 1).await;
    let recorder = stage.record().await;
    let run = Run::to_end("1s", 0).script("fail-first", "1");
    let job = stage.job("j", json!({"backoffLimit": 3}), &run);
    stage.create(Wrap::new("w").of(job).set("failureGracePeriodDuration", "1m")).await;
    stage.phase("w", "Succeeded").await;
    let failed = stage.pods_of("w").await.into_iter().filter(|pod| pod_phase(pod) == "Failed").count();
    assert_eq!(failed, 1, "the failed pod is still there");
    assert!(!phases(&recorder, "w").await.contains(&"Resetting".to_owned()));
    assert_eq!(stage.get("w").await.resets(), 0);
}

/// A Job may be deleted as soon as it is done. Nothing is missing then (6.2, 4).
async fn a_job_that_is_deleted_after_its_success_is_not_missing(site: Site) {
    let stage = Stage::new(site, "ttl", 1).await;
    let recorder = stage.record().await;
    let job = stage.job("j", json!({"ttlSecondsAfterFinished": 0}), &Run::to_end("2s", 0));
    stage.create(Wrap::new("w").of(job)).await;
    wait::for_object(&stage.jobs, "j", "it is there", |_| true).await;
    wait::for_absence(&stage.jobs, "j").await;
    let done = stage.until("w", "it is over", |w| ["Succeeded", "Failed"].contains(&w.phase())).await;
    assert_eq!(done.phase(), "Succeeded", "{:?}: {}", phases(&recorder, "w").await, done.status);
    assert_eq!(done.resets(), 0);
}

/// The TTL begins at success (2.7; 9, 7).
async fn the_time_to_live_begins_at_success(site: Site) {
    let stage = Stage::new(site, "lives", 1).await;
    let recorder = stage.record().await;
    let job = stage.job("j", json!({}), &Run::to_end("6s", 0));
    stage.create(Wrap::new("w").of(job).set("successTTLDuration", "5s")).await;
    stage.released("w", "Succeeded").await;
    let quota = history(&recorder, "w", "QuotaReserved").await;
    let deleting = history(&recorder, "w", "DeletingResources").await;
    let succeeded = &quota.iter().find(|c| c.reason == "Succeeded").unwrap().since;
    let began = &deleting.iter().find(|c| c.status == "True").unwrap().since;
    let lived = crate::stage::seconds(succeeded, began);
    assert!(lived >= 4, "its resources are deleted {lived} s after its success, not 5");
}

/// A component that was just created is not missing because a watch lags (6.1, #416).
async fn a_component_that_the_watch_has_not_shown_yet_is_not_missing(site: Site) {
    use salvor_apiserver::{Effect, Fault};
    use salvor_testkit::FaultyServer;

    use crate::controller::{Controller, Settings};

    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    let server = FaultyServer::before(&plane.admin()).await;
    let late = std::time::Duration::from_secs(4);
    server.faults().add(Fault::new(Effect::Lag(late)).path("/api/v1/pods"));
    server.faults().add(Fault::new(Effect::Lag(late)).path("/apis/batch/v1/jobs"));
    let controller =
        Controller::start_as(site, &plane.admin(), server.admin(), &Settings::default()).await.ready().await;
    let recorder = stage.record().await;
    let made = Recorder::start(&stage.jobs, &ListParams::default()).await;
    for name in ["a", "b", "c"] {
        let job = stage.job(&format!("{name}-job"), json!({}), &Run::on());
        stage.create(Wrap::new(name).of(job).of(Run::on().pod(&format!("{name}-pod")))).await;
    }
    for name in ["a", "b", "c"] {
        stage.ready(name).await;
        let seen = phases(&recorder, name).await;
        assert!(!seen.contains(&"Failed".to_owned()) && !seen.contains(&"Resetting".to_owned()), "{seen:?}");
    }
    let jobs = made.changes().await.iter().filter(|change| change.kind == ChangeKind::Added).count();
    assert_eq!(jobs, 3, "each was made once");
    drop(controller);
}

/// Load, from CodeFlare's end-to-end tests.
async fn fifty_run_at_once(site: Site) {
    let stage = Stage::new(site, "load", 2).await;
    let name = |number: usize| format!("w{number}");
    for number in 0..50 {
        let run = Run::on().requests("cpu", "5m");
        stage.create(Wrap::new(&name(number)).of(run.deployment(&name(number), 2))).await;
    }
    for number in 0..50 {
        stage.ready(&name(number)).await;
    }
}

/// Metrics, after CodeFlare's end-to-end tests: the counter that its users have, except for Terminating.
async fn each_phase_is_counted(site: Site) {
    let stage = Stage::new(site, "metrics", 1).await;
    stage.create(Wrap::new("w").of(Run::to_end("1s", 0).pod("p"))).await;
    stage.phase("w", "Succeeded").await;
    let namespace = stage.arena.namespace();
    for phase in ["Resuming", "Running", "Succeeded"] {
        let line = format!("appwrapper_phase_total{{namespace=\"{namespace}\",phase=\"{phase}\"}} 1");
        stage.controller().salvor().shows(&line).await;
    }
}

cases!(
    Both, on both sites:
    fifty_run_at_once,
    a_suspended_one_is_counted_and_makes_nothing,
    two_pods_run_and_succeed_one_after_the_other,
    conditions_say_what_kueue_and_people_read,
    kubectl_shows_the_columns_that_users_know,
    pods_deployments_stateful_sets_and_jobs_run,
    components_are_owned_and_labelled,
    another_manager_keeps_its_own,
);
cases!(
    Salvor, on both sites:
    each_phase_is_counted,
    a_job_between_two_waves_is_not_done,
    a_job_that_helps_itself_is_left_alone_and_succeeds,
    a_job_that_is_deleted_after_its_success_is_not_missing,
    the_time_to_live_begins_at_success,
    a_component_that_the_watch_has_not_shown_yet_is_not_missing,
);
