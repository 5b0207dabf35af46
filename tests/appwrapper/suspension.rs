//! A suspension wins at any moment, and leads to Suspended with nothing left.

use salvor_testkit::Site;
use serde_json::{Value, json};

use crate::{
    controller::cases,
    stage::{Run, Stage, Wrap, history, phases},
};

/// Suspend while running, from CodeFlare's unit tests.
async fn a_running_one_is_suspended_and_comes_back(site: Site) {
    let stage = Stage::new(site, "running", 1).await;
    let recorder = stage.record().await;
    stage.create(Wrap::new("w").of(Run::on().pod("p1")).of(Run::on().pod("p2"))).await;
    stage.ready("w").await;
    let stop = json!({"spec": {"suspend": true, "components": [
        component(&Run::on().pod("p1")), component(&Run::on().pod("p2")),
    ]}});
    stage.change("w", stop).await;
    stage.released("w", "Suspended").await;
    stage.suspend("w", false).await;
    stage.ready("w").await;
    let quota = history(&recorder, "w", "QuotaReserved").await;
    let told: Vec<_> = quota.iter().map(|c| (&*c.status, &*c.reason)).collect();
    assert_eq!(told, [("True", "Resuming"), ("False", "Suspended"), ("True", "Resuming")]);
}

fn component(template: &Value) -> Value {
    json!({ "template": template })
}

/// The component cannot be created.
async fn one_that_is_being_made_is_suspended(site: Site) {
    let stage = Stage::new(site, "making", 1).await;
    stage.at_most_pods(1).await;
    let wrap = Wrap::new("w")
        .of(Run::on().pod("first"))
        .of(Run::on().pod("second"))
        .set("admissionGracePeriodDuration", "1h")
        .set("warmupGracePeriodDuration", "1h");
    stage.create(wrap).await;
    stage.pods_until("w", "its first pod is there", |pods| pods.len() == 1).await;
    stage.phase("w", "Resuming").await;
    stage.suspend("w", true).await;
    stage.released("w", "Suspended").await;
    stage.event("w", "Suspending", "Externally suspended while in the Resuming phase").await;
}

/// In the pause of a reset, and while a reset deletes.
async fn one_that_is_being_reset_is_suspended(site: Site) {
    let stage = Stage::new(site, "resetting", 1).await;
    let failing =
        |name: &str, run: Run| Wrap::new(name).of(run.pod(name)).set("failureGracePeriodDuration", "0s");
    stage.create(failing("pause", Run::to_end("1s", 1)).set("retryPausePeriodDuration", "1h")).await;
    stage.until("pause", "it pauses", |w| w.phase() == "Resetting" && !w.is("ResourcesDeployed")).await;
    stage.suspend("pause", true).await;
    let suspended = stage.released("pause", "Suspended").await;
    assert_eq!(suspended.resets(), 1, "resets are remembered");
    assert_eq!(suspended.reason("Unhealthy"), "Suspended");
    stage.event("pause", "Suspending", "Externally suspended while in the Resetting phase").await;

    stage.create(failing("deleting", Run::to_end("1s", 1).blocked())).await;
    stage.phase("deleting", "Resetting").await;
    stage.suspend("deleting", true).await;
    stage.phase("deleting", "Suspending").await;
    stage.unblock("deleting").await;
    stage.released("deleting", "Suspended").await;
}

/// It is resumed while it is being suspended: it first reaches Suspended and then runs again.
async fn a_change_of_mind_waits_until_all_is_gone(site: Site) {
    let stage = Stage::new(site, "mind", 1).await;
    let recorder = stage.record().await;
    stage.create(Wrap::new("w").of(Run::on().blocked().pod("p"))).await;
    stage.ready("w").await;
    stage.suspend("w", true).await;
    stage.phase("w", "Suspending").await;
    stage.suspend("w", false).await;
    stage.unblock("p").await;
    stage.until("w", "it was suspended and runs again", |w| w.is("PodsReady")).await;
    stage.ready("w").await;
    let seen = phases(&recorder, "w").await;
    let at = |phase: &str| {
        seen.iter().rposition(|seen| seen == phase).unwrap_or_else(|| panic!("no {phase}: {seen:?}"))
    };
    assert!(at("Suspending") < at("Suspended") && at("Suspended") < at("Running"), "{seen:?}");
    let quota = history(&recorder, "w", "QuotaReserved").await;
    assert!(quota.iter().any(|c| c.status == "False" && c.message == "Suspend is true"), "{quota:?}");
}

/// A finished workload stays finished.
async fn what_is_over_is_not_suspended(site: Site) {
    let stage = Stage::new(site, "over", 1).await;
    stage.create(Wrap::new("done").of(Run::to_end("1s", 0).pod("done"))).await;
    let failing = Wrap::new("failed")
        .of(Run::to_end("1s", 1).pod("failed"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryLimit", "0");
    stage.create(failing).await;
    stage.phase("done", "Succeeded").await;
    stage.released("failed", "Failed").await;
    let recorder = stage.record().await;
    for name in ["done", "failed"] {
        stage.suspend(name, true).await;
    }
    // Another AppWrapper goes through all phases after that.
    stage.create(Wrap::new("clock").of(Run::to_end("1s", 0).pod("clock"))).await;
    stage.phase("clock", "Succeeded").await;
    assert_eq!(phases(&recorder, "done").await, ["Succeeded"]);
    assert_eq!(phases(&recorder, "failed").await, ["Failed"]);
}

cases!(
    Both, on both sites:
    a_running_one_is_suspended_and_comes_back,
    one_that_is_being_reset_is_suspended,
    a_change_of_mind_waits_until_all_is_gone,
    what_is_over_is_not_suspended,
);
// Quotas have no effect in the embedded cluster.
cases!(Both, on the real one: one_that_is_being_made_is_suspended);
