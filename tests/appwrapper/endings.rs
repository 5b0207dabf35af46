//! Endings: failures that are kept for debugging, pods that do not terminate, and deletion at any moment.

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::ListParams};
use salvor_nodes::Fault;
use salvor_testkit::{Recorder, Site, wait};
use serde_json::json;

use crate::{
    controller::cases,
    objects::AppWrapper,
    stage::{Run, Stage, Wrap, history, members, seconds},
};

/// Crashes the node of a terminating pod, so that no kubelet ends it.
async fn lose_machine(stage: &Stage<'_>, name: &str) {
    let is_marked = |pods: &[Pod]| pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some());
    stage.pods_until(name, "a pod is being deleted", is_marked).await;
    stage.fleet.inject(&stage.arena.node_name(0), Fault::Crash).await.unwrap();
}

/// Pods that no kubelet ends are force deleted after ForcefulDeletionGracePeriod.
async fn a_pod_that_will_not_end_is_deleted_by_force(site: Site) {
    let stage = Stage::new(site, "force", 1).await;
    stage
        .create(
            Wrap::new("w").of(Run::on().stubborn().pod("p")).set("forcefulDeletionGracePeriodDuration", "2s"),
        )
        .await;
    stage.ready("w").await;
    stage.suspend("w", true).await;
    let deployed = |w: &AppWrapper| w.phase() == "Suspended" && w.is("ResourcesDeployed");
    wait::never(&stage.wrappers, &ListParams::default(), "Suspended, and not all is gone", deployed, async {
        lose_machine(&stage, "w").await;
        stage.released("w", "Suspended").await;
    })
    .await;
}

/// The same for the pods of a Job: the Job is deleted in the background, its pods stay.
async fn the_pods_of_a_job_that_will_not_end_are_deleted_by_force(site: Site) {
    let stage = Stage::new(site, "forcejob", 1).await;
    let job = stage.job("j", json!({}), &Run::on().stubborn());
    stage.create(Wrap::new("w").of(job).set("forcefulDeletionGracePeriodDuration", "2s")).await;
    stage.ready("w").await;
    stage.delete("w").await;
    lose_machine(&stage, "w").await;
    stage.gone("w").await;
    assert!(stage.jobs.get_opt("j").await.unwrap().is_none());
}

/// A finalizer means that work is left. It keeps the resources, and therefore the quota.
async fn a_pod_with_a_finalizer_holds_the_quota(site: Site) {
    let stage = Stage::new(site, "held", 1).await;
    stage
        .create(
            Wrap::new("w").of(Run::on().blocked().pod("p")).set("forcefulDeletionGracePeriodDuration", "1s"),
        )
        .await;
    stage.ready("w").await;
    stage.suspend("w", true).await;
    wait::for_object(&stage.pods, "p", "it is being deleted", |pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    let early = |w: &AppWrapper| !w.is("QuotaReserved") || !w.is("ResourcesDeployed");
    // Waits long enough for a forced deletion, measured by the same clock.
    wait::never(
        &stage.wrappers,
        &ListParams::default().fields("metadata.name=w"),
        "it is let go early",
        early,
        async {
            stage.create(Wrap::new("clock").of(Run::to_end("4s", 0).pod("clock"))).await;
            stage.phase("clock", "Succeeded").await;
        },
    )
    .await;
    stage.unblock("p").await;
    stage.released("w", "Suspended").await;
}

/// A failed workload is kept for debugging once, counted from the failure (2.7; 9, 6).
async fn a_failed_one_is_kept_for_its_time_and_once(site: Site) {
    let stage = Stage::new(site, "look", 1).await;
    let recorder = stage.record().await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("1s", 1).pod("bad"))
        .of(Run::on().pod("good"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1")
        .set("deletionOnFailureGracePeriodDuration", "5s");
    stage.create(wrap).await;
    let failed = stage.phase("w", "Failed").await;
    assert!(failed.is("QuotaReserved") && failed.is("ResourcesDeployed"));
    let paused = stage
        .until("w", "its deletion is put off", |w| w.reason("DeletingResources") == "DeletionPaused")
        .await;
    assert_eq!(
        paused.condition("DeletingResources").unwrap().message,
        "workload.codeflare.dev.appwrapper/deletionOnFailureGracePeriodDuration has value 5s"
    );
    stage.released("w", "Failed").await;

    let deleting = history(&recorder, "w", "DeletingResources").await;
    let paused = deleting.iter().position(|c| c.reason == "DeletionPaused").unwrap();
    let after: Vec<&str> = deleting[paused + 1..].iter().map(|c| c.reason.as_str()).collect();
    assert_eq!(after, ["DeletionInitiated", "DeletionComplete"], "once");
    // The failure is when its second pod was found failed.
    let changes = recorder.changes().await;
    let failed_at = changes.iter().position(|change| change.object["status"]["phase"] == "Failed").unwrap();
    assert!(failed_at > 0);
    let pods_gone = &deleting[paused + 1].since;
    let failure = history(&recorder, "w", "Unhealthy").await.last().unwrap().since.clone();
    let kept = seconds(&failure, pods_gone);
    assert!(kept >= 4, "its resources are deleted {kept} s after the failure");
}

/// A forced deletion still works after the time for debugging.
async fn force_is_used_after_the_time_to_look(site: Site) {
    let stage = Stage::new(site, "lookforce", 1).await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("1s", 1).pod("bad"))
        .of(Run::on().stubborn().pod("stubborn"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryLimit", "0")
        .set("deletionOnFailureGracePeriodDuration", "3s")
        .set("forcefulDeletionGracePeriodDuration", "2s");
    stage.create(wrap).await;
    lose_machine(&stage, "w").await;
    stage.released("w", "Failed").await;
}

/// Kueue may take the quota of a failed workload that is only kept for debugging.
async fn suspending_ends_the_time_to_look(site: Site) {
    let stage = Stage::new(site, "looktaken", 1).await;
    let wrap = Wrap::new("w")
        .of(Run::to_end("1s", 1).pod("bad"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryLimit", "0")
        .set("deletionOnFailureGracePeriodDuration", "1h");
    stage.create(wrap).await;
    stage.until("w", "its deletion is put off", |w| w.reason("DeletingResources") == "DeletionPaused").await;
    stage.suspend("w", true).await;
    let failed = stage.released("w", "Failed").await;
    assert_eq!(
        failed.condition("ResourcesDeployed").unwrap().message,
        "Kueue forced resource deletion by suspending AppWrapper"
    );
}

/// Deletion in every phase leaves nothing behind.
async fn deleting_works_in_every_phase(site: Site) {
    let stage = Stage::new(site, "delete", 1).await;
    let failing = |name: &str| {
        Wrap::new(name).of(Run::to_end("1s", 1).pod(name)).set("failureGracePeriodDuration", "0s")
    };
    let cases = [
        ("suspended", Wrap::new("suspended").suspended().of(Run::on().pod("suspended")), "Suspended"),
        ("running", Wrap::new("running").of(Run::on().pod("running")), "Running"),
        ("pausing", failing("pausing").set("retryPausePeriodDuration", "1h"), "Resetting"),
        ("failed", failing("failed").set("retryLimit", "0"), "Failed"),
        (
            "kept",
            failing("kept").set("retryLimit", "0").set("deletionOnFailureGracePeriodDuration", "1h"),
            "Failed",
        ),
        ("succeeded", Wrap::new("succeeded").of(Run::to_end("1s", 0).pod("succeeded")), "Succeeded"),
    ];
    for (name, wrap, phase) in cases {
        stage.create(wrap).await;
        stage.phase(name, phase).await;
        stage.delete(name).await;
        stage.gone(name).await;
    }
    // In the middle of deletions: a pod keeps the AppWrapper in its phase.
    let blocked = |name: &str| {
        Wrap::new(name)
            .of(Run::to_end("1s", 1).blocked().pod(&format!("{name}-bad")))
            .set("failureGracePeriodDuration", "0s")
    };
    stage.create(blocked("resetting")).await;
    stage.phase("resetting", "Resetting").await;
    stage.create(Wrap::new("suspending").of(Run::on().blocked().pod("suspending-bad"))).await;
    stage.ready("suspending").await;
    stage.suspend("suspending", true).await;
    stage.phase("suspending", "Suspending").await;
    for name in ["resetting", "suspending"] {
        stage.delete(name).await;
        let going = stage.phase(name, "Terminating").await;
        assert!(going.is("QuotaReserved") && going.is("ResourcesDeployed"), "{name}");
        stage.unblock(&format!("{name}-bad")).await;
        stage.gone(name).await;
    }
}

/// The component cannot be created at all.
async fn deleting_works_while_creating(site: Site) {
    let stage = Stage::new(site, "deletenew", 1).await;
    stage.at_most_pods(0).await;
    stage.create(Wrap::new("w").of(Run::on().pod("p"))).await;
    stage.phase("w", "Resuming").await;
    stage.delete("w").await;
    stage.gone("w").await;
}

/// The last status of an AppWrapper that is deleted while it runs.
async fn a_deleted_one_says_when_everything_is_gone(site: Site) {
    let stage = Stage::new(site, "lastword", 1).await;
    let recorder = stage.record().await;
    let pods = Recorder::start(&stage.pods, &members("w")).await;
    stage.create(Wrap::new("w").of(stage.job("j", json!({}), &Run::on()))).await;
    stage.ready("w").await;
    stage.delete("w").await;
    stage.gone("w").await;
    let last = recorder.changes().await.pop().unwrap();
    let told = |kind: &str| {
        let c = crate::objects::condition(&last.object["status"], kind).unwrap();
        (c.status, c.reason, c.message)
    };
    let words = |status: &str, reason: &str, message: &str| {
        (status.to_owned(), reason.to_owned(), message.to_owned())
    };
    assert_eq!(told("ResourcesDeployed"), words("False", "Terminating", "Resources successfully deleted"));
    assert_eq!(told("QuotaReserved"), words("False", "Terminating", "No resources deployed"));
    assert!(
        pods.changes()
            .await
            .iter()
            .any(|change| change.kind == salvor_testkit::recorder::ChangeKind::Deleted)
    );
}

/// A new AppWrapper with the same name is independent of the old one's components.
async fn a_new_one_of_the_same_name_begins_anew(site: Site) {
    let stage = Stage::new(site, "anew", 1).await;
    let wrap = || Wrap::new("w").of(stage.job("j", json!({}), &Run::on()));
    stage.create(wrap()).await;
    stage.ready("w").await;
    let first = stage.jobs.get("j").await.unwrap();
    stage.delete("w").await;
    stage.gone("w").await;
    let again = stage.create(wrap()).await;
    stage.ready("w").await;
    let second = stage.jobs.get("j").await.unwrap();
    assert_ne!(first.uid(), second.uid());
    assert_eq!(Some(&second.owner_references()[0].uid), again.uid().as_ref());
}

cases!(
    Both, on both sites:
    a_pod_that_will_not_end_is_deleted_by_force,
    the_pods_of_a_job_that_will_not_end_are_deleted_by_force,
    a_pod_with_a_finalizer_holds_the_quota,
    suspending_ends_the_time_to_look,
    deleting_works_in_every_phase,
    a_deleted_one_says_when_everything_is_gone,
    a_new_one_of_the_same_name_begins_anew,
);
// Quotas have no effect in the embedded cluster.
cases!(Both, on the real one: deleting_works_while_creating);
cases!(
    Salvor, on both sites:
    a_failed_one_is_kept_for_its_time_and_once,
    force_is_used_after_the_time_to_look,
);
