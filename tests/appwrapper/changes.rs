//! Without webhooks, only the controller refuses changes of an admitted AppWrapper.

use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt};
use salvor_testkit::Site;
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Settings, cases},
    objects::AppWrapper,
    stage::{Run, Stage, Wrap, members, service},
};

fn settings() -> Settings {
    let kinds = json!(["Pod", "Service", "Deployment.apps", "Job.batch"]);
    Settings::default().without_webhooks().with("wrappedKindsWithoutWebhooks", kinds)
}

fn wrap(name: &str) -> Wrap {
    Wrap::new(name)
        .of(Run::on().pod(&format!("{name}-p")))
        .of(service(&format!("{name}-s")))
        .set("failureGracePeriodDuration", "0s")
        .set("retryPausePeriodDuration", "1s")
        .set("retryLimit", "3")
}

fn says(field: &str) -> impl FnMut(&AppWrapper) -> bool {
    let field = field.to_owned();
    move |w| {
        w.condition("ComponentsValid")
            .is_some_and(|it| it.status == "False" && it.reason == "Refused" && it.message.contains(&field))
    }
}

fn is_valid_again(w: &AppWrapper) -> bool {
    w.condition("ComponentsValid").is_some_and(|it| it.status == "True" && it.reason == "Valid")
}

/// The update rules of the webhook. Each change is made and reverted while the AppWrapper runs.
async fn what_was_admitted_stays_as_it_was_without_webhooks(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &settings()).await;
    stage.create(wrap("w")).await;
    let before = stage.ready("w").await;
    assert!(before.condition("ComponentsValid").is_none(), "{}", before.status);
    let pod = stage.pods.get("w-p").await.unwrap().uid();
    assert!(pod.is_some());
    let components = before.spec["components"].clone();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut components = components.clone();
        change(&mut components);
        json!({"spec": {"components": components}})
    };
    let label = "workload.codeflare.dev/user";
    for (what, patch, field) in [
        (
            "another image",
            with(&|it| it[0]["template"]["spec"]["containers"][0]["image"] = "other".into()),
            "spec.components[0].template",
        ),
        (
            "another kind",
            with(&|it| it[1]["template"] = Run::on().deployment("d", 1)),
            "spec.components[1].template",
        ),
        (
            "one component more",
            with(&|it| {
                let more = it[1].clone();
                it.as_array_mut().unwrap().push(more);
            }),
            "spec.components",
        ),
        ("one component less", with(&|it| drop(it.as_array_mut().unwrap().pop())), "spec.components"),
        (
            "declared pod sets",
            with(&|it| it[0]["podSets"] = json!([{"path": "template"}])),
            "spec.components[0].podSets",
        ),
        ("another user", json!({"metadata": {"labels": {label: "somebody"}}}), label),
    ] {
        stage.change("w", patch).await;
        let told = stage.until("w", &format!("it says that {what} is refused"), says(field)).await;
        assert_eq!((told.phase(), told.is("PodsReady"), told.resets()), ("Running", true, 0), "{what}");
        assert_eq!(stage.pods.get("w-p").await.unwrap().uid(), pod, "{what}");
        let back = json!({"metadata": {"labels": {label: null}}, "spec": {"components": components}});
        stage.change("w", back).await;
        stage.until("w", &format!("{what} is taken back"), is_valid_again).await;
    }
    // Changes that the webhook allows do not count.
    let mut infos = components.clone();
    infos[0]["podSetInfos"] = json!([{"labels": {"a": "b"}}]);
    infos[0]["annotations"] = json!({"a": "b"});
    stage.change("w", json!({"spec": {"components": infos}, "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}})).await;
    stage.suspend("w", true).await;
    let suspended = stage.released("w", "Suspended").await;
    assert!(is_valid_again(&suspended), "{}", suspended.status);
    stage.suspend("w", false).await;
    stage.ready("w").await;
    let services: Api<Service> = Api::default_namespaced(stage.arena.client());
    assert_eq!(services.list(&members("w")).await.unwrap().items.len(), 1);
}

/// A pod fails while the template is changed. The workload is deleted, and starts again after the template is reverted.
async fn a_reset_waits_until_it_is_changed_back(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::alone(site, &plane, 1, &settings()).await;
    let grace = |grace: &str| json!({"metadata": {"annotations": {"workload.codeflare.dev.appwrapper/failureGracePeriodDuration": grace}}});
    for (name, admission, back) in [("back", "1h", true), ("kept", "2s", false)] {
        let pod = format!("{name}-p");
        let wrap = Wrap::new(name)
            .of(Run::to_end("1s", 1).pod(&pod))
            .set("failureGracePeriodDuration", "1h")
            .set("retryPausePeriodDuration", "1s")
            .set("admissionGracePeriodDuration", admission)
            .set("warmupGracePeriodDuration", "1h");
        stage.create(wrap).await;
        let failed = |w: &AppWrapper| w.phase() == "Running" && w.reason("Unhealthy") == "FoundFailedPods";
        let before = stage.until(name, "its pod has failed", failed).await.spec["components"].clone();
        let first = stage.pods.get(&pod).await.unwrap().uid();
        let mut changed = before.clone();
        changed[0]["template"]["spec"]["containers"][0]["image"] = "changed".into();
        stage.change(name, json!({"spec": {"components": changed}})).await;
        stage.until(name, "it is refused", says("spec.components[0].template")).await;
        stage.change(name, grace("0s")).await;
        if back {
            let deleted = |w: &AppWrapper| w.phase() == "Resetting" && !w.is("ResourcesDeployed");
            stage.until(name, "everything is deleted", deleted).await;
            assert!(stage.get(name).await.is("QuotaReserved"));
            let place = format!("{}/{name}", stage.arena.namespace());
            let said = stage.controller().salvor().explain("appwrapper", &place).await;
            assert!(said.contains("spec.components[0].template"), "{said}");
            stage.change(name, grace("1h")).await;
            stage.change(name, json!({"spec": {"components": before}})).await;
            stage.phase(name, "Running").await;
            let second = stage.pods.get(&pod).await.unwrap();
            assert_ne!(second.uid(), first);
            assert_eq!(second.spec.unwrap().containers[0].image.as_deref(), Some("work"));
        } else {
            let failed = stage.released(name, "Failed").await;
            assert_eq!(failed.reason("Unhealthy"), "Refused", "{}", failed.status);
            let last = failed.status["resets"].as_array().unwrap().last().unwrap();
            assert_eq!(last["cause"], "Refused", "{last}");
        }
        stage.delete(name).await;
        stage.gone(name).await;
    }
}

/// The change happens while no controller runs, and while the AppWrapper waits for its turn.
async fn a_change_that_nobody_saw_is_noticed(site: Site) {
    let plane = site.control_plane().await;
    let stage = Stage::unattended(site, &plane, 1).await;
    let controller = Controller::start(site, &plane.admin(), &settings()).await;
    stage.create(wrap("runs")).await;
    stage.create(wrap("waits").suspended()).await;
    stage.ready("runs").await;
    stage
        .until("waits", "it is admitted", |w| w.phase() == "Suspended" && !w.status["admitted"].is_null())
        .await;
    let service_before =
        Api::<Service>::default_namespaced(stage.arena.client()).get("runs-s").await.unwrap().uid();
    controller.kill().await;
    for name in ["runs", "waits"] {
        let mut components = stage.get(name).await.spec["components"].clone();
        components.as_array_mut().unwrap().pop();
        stage.change(name, json!({"spec": {"components": components}})).await;
    }
    let _again = Controller::start(site, &plane.admin(), &settings()).await;
    for name in ["runs", "waits"] {
        stage.until(name, "it is refused", says("spec.components")).await;
    }
    assert_eq!(stage.get("runs").await.phase(), "Running");
    let service_now =
        Api::<Service>::default_namespaced(stage.arena.client()).get("runs-s").await.unwrap().uid();
    assert_eq!(service_before, service_now, "the component that was taken out of the spec is still there");
    stage.suspend("waits", false).await;
    stage.released("waits", "Failed").await;
    stage.suspend("runs", true).await;
    stage.released("runs", "Suspended").await;
    let services: Api<Service> = Api::default_namespaced(stage.arena.client());
    assert_eq!(services.list(&members("runs")).await.unwrap().items.len(), 0, "nothing is left behind");
}

cases!(
    Salvor, on both sites:
    what_was_admitted_stays_as_it_was_without_webhooks,
    a_reset_waits_until_it_is_changed_back,
    a_change_that_nobody_saw_is_noticed,
);
