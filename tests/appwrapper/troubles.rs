//! An unreliable API server: lost answers, endless refusals and late watch events, in front of both clusters.

use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use salvor_apiserver::{Effect, Fault};
use salvor_testkit::{FaultyServer, Plane, Recorder, Site, recorder::ChangeKind, wait};
use serde_json::json;

use crate::{
    controller::{Controller, Settings, cases},
    stage::{Run, Stage, Wrap, members, phases, service},
};

/// Salvor behind a proxy with faults. The test itself uses no proxy.
async fn behind<'p>(
    site: Site,
    plane: &'p Plane,
    settings: &Settings,
) -> (Stage<'p>, FaultyServer, Controller) {
    let stage = Stage::unattended(site, plane, 1).await;
    let (server, controller) = salvor_behind(site, plane, settings).await;
    (stage, server, controller)
}

async fn salvor_behind(site: Site, plane: &Plane, settings: &Settings) -> (FaultyServer, Controller) {
    let server = FaultyServer::before(&plane.admin()).await;
    let controller = Controller::start_as(site, &plane.admin(), server.admin(), settings).await;
    (server, controller.ready().await)
}

fn posts(path: &str, effect: Effect) -> Fault {
    Fault::new(effect).method(Method::POST).path(path)
}

/// A creation without an answer gets AdmissionGracePeriod like any other, and no more.
async fn a_creation_that_is_never_answered_is_given_up(site: Site) {
    let plane = site.control_plane().await;
    let (stage, server, _controller) = behind(site, &plane, &Settings::default()).await;
    server.faults().add(posts("/pods", Effect::Unanswered { carried_out: false }));
    let wrap = Wrap::new("w")
        .of(Run::on().pod("p"))
        .set("admissionGracePeriodDuration", "3s")
        .set("warmupGracePeriodDuration", "3s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    let failed = stage.released("w", "Failed").await;
    assert_eq!((failed.resets(), failed.reason("Unhealthy").as_str()), (1, "CreateFailed"));
    let history = &failed.status["resets"][0];
    assert!(history["message"].as_str().unwrap().contains("no answer"), "{history}");
}

/// A creation that succeeded without an answer is found by its owner, and not repeated.
async fn a_creation_whose_answer_is_lost_is_found_again(site: Site) {
    let plane = site.control_plane().await;
    let (stage, server, _controller) = behind(site, &plane, &Settings::default()).await;
    server.faults().add(posts("/pods", Effect::AnswerLost).times(2));
    server.faults().add(posts("/services", Effect::Unanswered { carried_out: true }).times(1));
    let pods: Recorder<Pod> = Recorder::start(&stage.pods, &ListParams::default()).await;
    let mut generated = Run::on().pod("p");
    generated["metadata"]["generateName"] = "p-".into();
    generated["metadata"].as_object_mut().unwrap().remove("name");
    stage.create(Wrap::new("w").of(generated).of(service("s"))).await;
    let ready = stage.ready("w").await;
    assert_eq!(ready.resets(), 0);
    let made = pods.changes().await.iter().filter(|c| c.kind == ChangeKind::Added).count();
    assert_eq!(made, 1);
}

/// Answers to status writes are lost, and other writes are refused as conflicts. The phases stay the same.
async fn lost_answers_and_conflicts_change_nothing(site: Site) {
    let plane = site.control_plane().await;
    let (stage, server, _controller) = behind(site, &plane, &Settings::default()).await;
    let recorder = stage.record().await;
    let status = |effect| Fault::new(effect).method(Method::PATCH).path("/appwrappers/w/status");
    for effect in [Effect::AnswerLost, Effect::Conflict, Effect::AnswerLost, Effect::InternalError] {
        server.faults().add(status(effect).times(2));
    }
    let wrap =
        Wrap::new("w").of(stage.job("j", json!({}), &Run::to_end("1s", 0))).set("successTTLDuration", "1s");
    stage.create(wrap).await;
    stage.released("w", "Succeeded").await;
    let seen = phases(&recorder, "w").await;
    let bad = ["Resetting", "Failed", "Suspending"];
    assert!(!seen.iter().any(|phase| bad.contains(&phase.as_str())), "{seen:?}");
}

/// The server refuses all events. Resets continue, and the status has the reason.
async fn events_that_nobody_takes_hold_up_no_reset(site: Site) {
    let plane = site.control_plane().await;
    let (stage, server, _controller) = behind(site, &plane, &Settings::default()).await;
    server.faults().add(posts("/events", Effect::InternalError));
    let wrap = Wrap::new("w")
        .of(Run::to_end("1s", 3).pod("p"))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "2");
    stage.create(wrap).await;
    let failed = stage.released("w", "Failed").await;
    assert_eq!((failed.resets(), failed.status["resets"].as_array().map(Vec::len)), (2, Some(3)));
    // When events are accepted again, the last one is recorded.
    server.faults().clear();
    stage.event("w", "Unhealthy", "FoundFailedPods").await;
}

/// One component cannot be deleted. The others and the pods are deleted, and the quota is kept until it is gone too.
async fn a_component_that_cannot_be_deleted_holds_up_no_other(site: Site) {
    let plane = site.control_plane().await;
    let (stage, server, _controller) = behind(site, &plane, &Settings::default()).await;
    let wrap = Wrap::new("w")
        .of(service("kept"))
        .of(service("other"))
        .of(Run::on().stubborn().deployment("d", 1))
        .set("forcefulDeletionGracePeriodDuration", "1s");
    stage.create(wrap).await;
    stage.ready("w").await;
    let denied = Fault::new(Effect::InternalError).method(Method::DELETE).path("/services/kept");
    server.faults().add(denied);
    stage.suspend("w", true).await;
    let services: Api<Service> = Api::default_namespaced(stage.arena.client());
    wait::for_absence(&services, "other").await;
    stage.fleet.inject(&stage.arena.node_name(0), salvor_nodes::Fault::Crash).await.unwrap();
    stage.pods_until("w", "its pod is deleted by force", <[Pod]>::is_empty).await;
    let held = stage.get("w").await;
    assert_eq!((held.phase(), held.is("QuotaReserved")), ("Suspending", true));
    assert!(services.get_opt("kept").await.unwrap().is_some());
    server.faults().clear();
    stage.released("w", "Suspended").await;
}

/// An AppWrapper with the maximum number of components is created and deleted.
async fn as_many_components_as_may_be_come_and_go(site: Site) {
    let plane = site.control_plane().await;
    let settings = Settings::default();
    let stage = Stage::alone(site, &plane, 1, &settings).await;
    let headless = |number: usize| {
        let mut service = service(&format!("s{number}"));
        service["spec"]["clusterIP"] = "None".into();
        service
    };
    let wrap = (0..127).fold(Wrap::new("w").of(Run::on().pod("p")), |wrap, n| wrap.of(headless(n)));
    stage.create(wrap).await;
    stage.ready("w").await;
    let services: Api<Service> = Api::default_namespaced(stage.arena.client());
    assert_eq!(services.list(&members("w")).await.unwrap().items.len(), 127);
    stage.suspend("w", true).await;
    stage.released("w", "Suspended").await;
    assert_eq!(services.list(&members("w")).await.unwrap().items.len(), 0);
}

/// Watch events of one kind are late. A suspended AppWrapper still ends with nothing left, and a finished one finishes
/// once.
async fn news_of_one_kind_that_come_late(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    for path in ["/v1beta2/appwrappers", "/api/v1/pods", "/apis/batch/v1/jobs"] {
        let (server, controller) = salvor_behind(site, &plane, &Settings::default()).await;
        let late = Effect::Lag(Duration::from_secs(3));
        server.faults().add(Fault::new(late).path(path).user_agent("salvor"));
        // Restarts the watches, so that the fault applies to them.
        server.faults().cut_watches();
        let recorder = stage.record().await;
        stage.create(Wrap::new("stops").of(stage.job("stops", json!({}), &Run::on()))).await;
        stage.create(Wrap::new("ends").of(stage.job("ends", json!({}), &Run::to_end("1s", 0)))).await;
        stage.until("stops", "it has begun", |w| w.is("ResourcesDeployed")).await;
        stage.suspend("stops", true).await;
        stage.released("stops", "Suspended").await;
        stage.phase("ends", "Succeeded").await;
        let seen = phases(&recorder, "ends").await;
        assert!(!seen.contains(&"Resetting".to_owned()), "{path}: {seen:?}");
        for name in ["stops", "ends"] {
            stage.delete(name).await;
            stage.gone(name).await;
        }
        controller.kill().await;
    }
}

/// Another object replaces a component under its name. Salvor must neither count nor delete it.
async fn a_component_that_is_replaced_under_its_name(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &Settings::default()).await;
    let wrap = Wrap::new("w")
        .of(Run::on().pod("p"))
        .of(service("s"))
        .set("retryPausePeriodDuration", "0s")
        .set("retryLimit", "1");
    stage.create(wrap).await;
    stage.ready("w").await;
    let services: Api<Service> = Api::default_namespaced(stage.arena.client());
    let theirs: Service = serde_json::from_value(service("s")).unwrap();
    services.delete("s", &DeleteParams::default()).await.unwrap();
    let theirs = services.create(&PostParams::default(), &theirs).await.unwrap();
    let failed = stage.released("w", "Failed").await;
    let causes = ["MissingComponent", "CreateFailed"];
    assert!(causes.contains(&failed.reason("Unhealthy").as_str()), "{}", failed.status);
    assert_eq!(services.get("s").await.unwrap().uid(), theirs.uid());
    stage.delete("w").await;
    stage.gone("w").await;
    assert_eq!(services.get("s").await.unwrap().uid(), theirs.uid());
}

cases!(
    Salvor, on both sites:
    a_creation_that_is_never_answered_is_given_up,
    a_creation_whose_answer_is_lost_is_found_again,
    lost_answers_and_conflicts_change_nothing,
    events_that_nobody_takes_hold_up_no_reset,
    a_component_that_cannot_be_deleted_holds_up_no_other,
    as_many_components_as_may_be_come_and_go,
    news_of_one_kind_that_come_late,
    a_component_that_is_replaced_under_its_name,
);
